"""`/v1/flows`: create a flow, add members and edges, cancel it."""

from typing import Any
from uuid import UUID

from litestar import Request, Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Struct

from flowfabric.core.base.errors import (
    AlreadyInFlow,
    FlowConflict,
    FlowTerminal,
    InvalidGraph,
    NotFound,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.flow.grow import Added, Applied, Staged
from flowfabric.core.flow.join import Edge, On
from flowfabric.core.flow.model import CancelPolicy, Flow
from flowfabric.engine.engine import Engine
from flowfabric.engine.flow.flows import FlowCreated
from flowfabric.server.caller.access import (
    caller_of,
    check_flow,
    check_namespace,
    check_run,
    needs,
)
from flowfabric.server.context import engine_of
from flowfabric.server.http.errors import BODIES
from flowfabric.server.http.wire import (
    U64,
    Now,
    RunText,
    Tagged,
    UuidText,
    fit,
    optional_uuid,
    read_id,
    read_member,
    read_uuid_text,
    respond,
    same_uuid,
)

SUCCESS_ONLY = "success_only"
MEMBERS_SHOWN = 10_000
MEMBERS_SHOWN_AGAIN = 1_000
PAGE = 1_000

FlowPath = FromPath[UuidText]


async def own_flow(
    request: Request[Any, Any, Any], text: str, body: str | None
) -> tuple[UUID, Engine]:
    """The flow that a path names, if the caller sees it, and the engine. The body may repeat it."""
    id, engine = read_uuid_text(text, "flow_id"), engine_of(request)
    same_uuid(id, body, "flow_id")
    await check_flow(caller_of(request), engine, id)
    return id, engine


# -- create


class CreateFlow(Struct, kw_only=True):
    flow_kind: str
    namespace: str
    flow_id: UuidText | None = None
    now: Now = None


class FlowIdentity(Struct):
    flow_id: str


class CreateFlowAnswer(Tagged):
    Created: FlowIdentity | None = None
    AlreadySatisfied: FlowIdentity | None = None


@post(
    "/v1/flows",
    opt=needs("submit"),
    operation_id="create_flow",
    tags=["flows"],
    responses=BODIES
    | {200: ResponseSpec(CreateFlowAnswer, generate_examples=False, description="It existed.")},
)
async def create_flow(
    request: Request[Any, Any, Any], data: JSONBody[CreateFlow]
) -> Response[CreateFlowAnswer]:
    """Creates a flow without members. 201 `Created`, or 200 if it exists with the same kind and
    namespace."""
    check_namespace(caller_of(request), data.namespace)
    engine = engine_of(request)
    id = optional_uuid(data.flow_id, "flow_id") or engine.suspensions.new_id()
    try:
        answer = await engine.flows.create(
            data.flow_kind, id=id, namespace=data.namespace, eager=True
        )
    except FlowConflict:  # without the words of a flow that the caller may not see
        raise FlowConflict(f"flow {id} exists with another kind or namespace") from None
    identity = FlowIdentity(str(id))
    if isinstance(answer, FlowCreated):
        return respond(CreateFlowAnswer(Created=identity), 201)
    return respond(CreateFlowAnswer(AlreadySatisfied=identity))


# -- members


class AddMember(Struct, kw_only=True):
    execution_id: RunText
    flow_id: UuidText | None = None
    now: Now = None


class AddedMember(Struct):
    execution_id: str
    new_node_count: int


class KnownMember(Struct):
    execution_id: str
    node_count: int


class AddMemberAnswer(Tagged):
    Added: AddedMember | None = None
    AlreadyMember: KnownMember | None = None


@post(
    "/v1/flows/{id:str}/members",
    opt=needs("submit"),
    operation_id="add_flow_member",
    tags=["flows"],
    responses=BODIES
    | {200: ResponseSpec(AddMemberAnswer, generate_examples=False, description="It was one.")},
)
async def add_member(
    request: Request[Any, Any, Any], id: FlowPath, data: JSONBody[AddMember]
) -> Response[AddMemberAnswer]:
    """Makes an execution of the flow's partition a member."""
    flow, engine = await own_flow(request, id, data.flow_id)
    member = read_id(data.execution_id)
    await check_run(caller_of(request), engine, member)
    answer = await engine.flows.join(flow, member)
    if isinstance(answer, Added):
        added = AddedMember(str(answer.id), answer.nodes)
        return respond(AddMemberAnswer(Added=added), 201)
    return respond(AddMemberAnswer(AlreadyMember=KnownMember(str(answer.id), answer.nodes)))


# -- edges


class StageEdge(Struct, kw_only=True):
    """`dependency_kind` is success_only (on_success), on_failure or on_any_end. `data_passing_ref`
    names what the downstream gets the result of the upstream as."""

    upstream_execution_id: RunText
    downstream_execution_id: RunText
    expected_graph_revision: U64
    flow_id: UuidText | None = None
    edge_id: UuidText | None = None
    dependency_kind: str = SUCCESS_ONLY
    data_passing_ref: str | None = None
    now: Now = None


class StagedEdge(Struct):
    edge_id: str
    new_graph_revision: int


class KnownEdge(Struct):
    edge_id: str
    graph_revision: int


class StageAnswer(Tagged):
    Staged: StagedEdge | None = None
    AlreadyStaged: KnownEdge | None = None


@post(
    "/v1/flows/{id:str}/edges",
    opt=needs("submit"),
    operation_id="stage_edge",
    tags=["flows"],
    responses=BODIES
    | {200: ResponseSpec(StageAnswer, generate_examples=False, description="It was staged.")},
)
async def stage_edge(
    request: Request[Any, Any, Any], id: FlowPath, data: JSONBody[StageEdge]
) -> Response[StageAnswer]:
    """Adds an edge if the graph has the expected revision; the downstream waits from then on. 201
    `Staged`, or 200 `AlreadyStaged` if this edge is there, whatever the revision."""
    revision = fit(data.expected_graph_revision, "expected_graph_revision")
    flow, engine = await own_flow(request, id, data.flow_id)
    edge = Edge(
        id=optional_uuid(data.edge_id, "edge_id") or engine.suspensions.new_id(),
        flow=flow,
        upstream=read_member(data.upstream_execution_id, flow),
        downstream=read_member(data.downstream_execution_id, flow),
        on=_dependency(data.dependency_kind),
        input=data.data_passing_ref or None,
    )
    answer = await engine.flows.stage_only(edge, revision)
    if isinstance(answer, Staged):
        staged = StagedEdge(str(answer.edge), answer.revision)
        return respond(StageAnswer(Staged=staged), 201)
    known = KnownEdge(str(answer.edge), answer.revision)
    return respond(StageAnswer(AlreadyStaged=known))


class ApplyEdge(Struct, kw_only=True):
    edge_id: UuidText
    upstream_execution_id: RunText
    downstream_execution_id: RunText
    graph_revision: U64
    flow_id: UuidText | None = None
    dependency_kind: str = SUCCESS_ONLY
    data_passing_ref: str | None = None
    now: Now = None


class AppliedEdge(Struct):
    unsatisfied_count: int


class ApplyAnswer(Tagged):
    Applied: AppliedEdge | None = None


@post(
    "/v1/flows/{id:str}/edges/apply",
    status_code=200,
    opt=needs("submit"),
    operation_id="apply_edge",
    tags=["flows"],
    responses=BODIES,
)
async def apply_edge(
    request: Request[Any, Any, Any], id: FlowPath, data: JSONBody[ApplyEdge]
) -> Response[ApplyAnswer | str]:
    """The second step of adding an edge: `Applied` once, then `"AlreadyApplied"`. A
    `data_passing_ref` that staging it did not give counts from then on; another one is refused."""
    fit(data.graph_revision, "graph_revision")
    flow, engine = await own_flow(request, id, data.flow_id)
    edge = read_uuid_text(data.edge_id, "edge_id")
    await check_run(caller_of(request), engine, read_id(data.downstream_execution_id))
    await _check_edge(engine, flow, edge, data)
    answer = await engine.flows.apply(flow, edge, input=data.data_passing_ref or None)
    if isinstance(answer, Applied):
        return respond(ApplyAnswer(Applied=AppliedEdge(answer.unsatisfied)))
    return respond("AlreadyApplied")


_KINDS = {SUCCESS_ONLY: On.SUCCESS, **{str(on): on for on in On}}


def _dependency(kind: str) -> On:
    """Which ending of the upstream a kind of dependency asks for."""
    if kind not in _KINDS:
        raise InvalidGraph(f"dependency_kind must be one of {', '.join(_KINDS)}")
    return _KINDS[kind]


async def _check_edge(engine: Engine, flow: UUID, edge: UUID, data: ApplyEdge) -> None:
    """Whether the downstream is there, and the edge was staged like this between these two."""
    kind = _dependency(data.dependency_kind)
    if await engine.flow_views.get(flow) is None:
        raise NotFound("flow", flow)
    upstream, downstream = (
        read_member(data.upstream_execution_id, flow),
        read_id(data.downstream_execution_id),
    )
    if await engine.views.state(downstream) is None:
        raise NotFound("execution", downstream)
    home = await engine.flow_views.flow_of(downstream)
    if home not in (None, flow):
        raise AlreadyInFlow(home)
    staged = await engine.flow_views.edge(flow, edge)
    if staged is None:
        raise InvalidGraph("edge_not_found: stage the edge first")
    if (staged.upstream, staged.downstream) != (upstream, downstream.uuid):
        raise InvalidGraph("the edge was staged between other executions")
    if staged.on is not kind:
        raise InvalidGraph(f"the edge was staged as {staged.on}")


# -- cancel


class CancelFlow(Struct, kw_only=True):
    """`cancellation_policy` is cancel_all, cancel_pending, or another word: only the flow."""

    reason: str
    cancellation_policy: str
    flow_id: UuidText | None = None
    now: Now = None


class CancelledFlow(Struct):
    cancellation_policy: str
    member_execution_ids: list[str]


class ScheduledCancel(Struct):
    cancellation_policy: str
    member_count: int
    member_execution_ids: list[str]


class PartialCancel(Struct):
    cancellation_policy: str
    member_execution_ids: list[str]
    failed_member_execution_ids: list[str]


class CancelFlowAnswer(Tagged):
    Cancelled: CancelledFlow | None = None
    CancellationScheduled: ScheduledCancel | None = None
    PartiallyCancelled: PartialCancel | None = None


_POLICIES = {str(policy): policy for policy in CancelPolicy}


@post(
    "/v1/flows/{id:str}/cancel",
    status_code=200,
    opt=needs("operate"),
    operation_id="cancel_flow",
    tags=["flows"],
    responses=BODIES,
)
async def cancel_flow(
    request: Request[Any, Any, Any],
    id: FlowPath,
    data: JSONBody[CancelFlow],
    wait: FromQuery[str | None] = None,
) -> Response[CancelFlowAnswer]:
    """Cancels a flow and, by its policy, its members; with `wait=true` they have ended when it
    answers. Cancelling again answers the policy of the first call."""
    flow, engine = await own_flow(request, id, data.flow_id)
    found = await engine.flow_views.get(flow)
    if found is None:
        raise NotFound("flow", flow)
    if found.terminal:
        return respond(await _cancelled_before(engine, found, data.cancellation_policy))
    policy = _POLICIES.get(data.cancellation_policy, CancelPolicy.FLOW_ONLY)
    named = None if policy == data.cancellation_policy else data.cancellation_policy
    waits = wait in ("true", "1")
    try:
        answer = await engine.flows.cancel(
            flow, reason=data.reason, policy=policy, wait=waits, named=named
        )
    except FlowTerminal:
        return respond(await _cancelled_before(engine, found, data.cancellation_policy))
    word = _word(answer.policy, answer.named)
    members = await _members(engine, flow, MEMBERS_SHOWN)
    if waits and answer.remaining:
        failed = [str(left) for left in answer.remaining]
        members = sorted({*members, *failed})  # one that cannot be read is in no list of members
        return respond(CancelFlowAnswer(PartiallyCancelled=PartialCancel(word, members, failed)))
    if waits or policy is not CancelPolicy.ALL or not members:
        return respond(CancelFlowAnswer(Cancelled=CancelledFlow(word, members)))
    scheduled = ScheduledCancel(word, max(found.nodes, len(members)), members)
    return respond(CancelFlowAnswer(CancellationScheduled=scheduled))


def _word(policy: CancelPolicy, named: str | None) -> str:
    """What the caller called the policy: any word, also an empty one."""
    return str(policy) if named is None else named


async def _cancelled_before(engine: Engine, flow: Flow, asked: str) -> CancelFlowAnswer:
    """A flow that has ended stays as it is."""
    cancel = flow.cancel
    word = asked if cancel is None else _word(cancel.policy, cancel.named)
    members = await _members(engine, flow.id, MEMBERS_SHOWN_AGAIN)
    return CancelFlowAnswer(Cancelled=CancelledFlow(word, members))


async def _members(engine: Engine, flow: UUID, most: int) -> list[str]:
    found: list[str] = []
    last: ExecutionId | None = None
    while len(found) < most:
        page = await engine.flow_views.members(flow, after=last, limit=PAGE)
        found += [str(member.id) for member in page]
        if len(page) < PAGE:
            break
        last = page[-1].id
    return found[:most]


HANDLERS = [create_flow, add_member, stage_edge, apply_edge, cancel_flow]
