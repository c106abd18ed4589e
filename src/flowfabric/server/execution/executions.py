"""`/v1/executions`: create, list, read, control."""

from base64 import b64encode
from contextlib import suppress
from typing import Annotated, Any, Literal
from uuid import UUID

from litestar import Request, Response, get, post, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError, Invalid, InvalidId, NotActive, NotFound
from flowfabric.core.base.ids import (
    ANYWHERE,
    ExecutionId,
    flow_partition,
    home_of,
    lane_partition,
    partition_key,
)
from flowfabric.core.base.text import check_lane, check_worker
from flowfabric.core.execution.grant import Granted, NotReclaimable
from flowfabric.core.execution.grant_record import GrantNotes
from flowfabric.core.execution.lease import Owner, Revoked
from flowfabric.core.execution.model import Source, WorkerIdentity, clamp_priority
from flowfabric.core.execution.status import PublicState, Vector
from flowfabric.core.execution.submission import Duplicate, Submission, Submitted
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.described import Info
from flowfabric.server.caller.access import caller_of, check_namespace, check_run, needs
from flowfabric.server.context import engine_of
from flowfabric.server.execution.policies import GivenPolicy, read_policy, with_canonical_names
from flowfabric.server.http.errors import BODIES, CHANGES, READS
from flowfabric.server.http.parameters import Wait, refused_parameter, until_ended
from flowfabric.server.http.wire import (
    I32,
    OCTETS,
    U16,
    U32,
    U64,
    Bytes,
    Lane,
    Moment,
    Now,
    RunText,
    Tagged,
    UuidText,
    fit,
    optional_uuid,
    read_bytes,
    read_id,
    read_moment,
    respond,
    same_id,
)

CREATE_BODY = 1 << 20
MAX_GRANT_TTL = 60_000
CLAMPED = "FlowFabric-Priority-Clamped"

RunPath = FromPath[RunText]


async def own_run(request: Request[Any, Any, Any], text: str) -> tuple[ExecutionId, Engine]:
    """The execution that a path names, if the caller sees it, and the engine."""
    id, engine = read_id(text), engine_of(request)
    await check_run(caller_of(request), engine, id)
    return id, engine


# -- create


class CreateExecution(Struct, kw_only=True):
    """A request to run a task. `flow_id` puts it into the partition of a flow that it will join;
    an `execution_id` with a partition does so as well."""

    namespace: str
    lane_id: Lane
    execution_kind: str
    input_payload: Bytes
    priority: I32
    creator_identity: str
    execution_id: RunText | None = None
    payload_encoding: str | None = None
    idempotency_key: str | None = None
    tags: dict[str, str] = {}
    policy: GivenPolicy | None = None
    delay_until: Moment | None = None
    execution_deadline_at: Moment | None = None
    partition_id: U16 = 0
    flow_id: UuidText | None = None
    now: Now = None


class CreatedExecution(Struct):
    execution_id: str
    public_state: PublicState


class DuplicateExecution(Struct):
    execution_id: str


class CreateAnswer(Tagged):
    Created: CreatedExecution | None = None
    Duplicate: DuplicateExecution | None = None


@post(
    "/v1/executions",
    opt=needs("submit", body=CREATE_BODY, octets="input_payload", takes=OCTETS),
    operation_id="create_execution",
    tags=["executions"],
    responses=BODIES
    | {200: ResponseSpec(CreateAnswer, generate_examples=False, description="It existed.")},
)
async def create_execution(
    request: Request[Any, Any, Any], data: JSONBody[CreateExecution]
) -> Response[CreateAnswer]:
    """Creates an execution. 201 `Created`, or 200 `Duplicate` with the id that exists already. A
    body of the type application/octet-stream is the payload; the other members are in the query."""
    answer = await submit(request, data)
    headers = clamped(data.priority)
    if isinstance(answer, Submitted):
        created = CreatedExecution(answer.id, answer.state)
        return respond(CreateAnswer(Created=created), 201, headers)
    return respond(CreateAnswer(Duplicate=DuplicateExecution(answer.id)), 200, headers)


async def submit(request: Request[Any, Any, Any], data: CreateExecution) -> Submitted | Duplicate:
    """Submits what a body asks for. An id that another tenant has used is refused: to call it a
    duplicate would say that the caller has this execution."""
    caller, engine = caller_of(request), engine_of(request)
    check_namespace(caller, data.namespace)
    try:
        answer = await _submitted(engine, data)
    except Invalid as error:
        answer = await _repeated(engine, data, error)
    if isinstance(answer, Submitted) and answer.state is PublicState.RATE_LIMITED:
        return replace(answer, state=await _settled(engine, answer.id))
    if isinstance(answer, Duplicate) and not caller.sees_all:
        namespace = await engine.views.namespace(answer.id)
        if namespace is not None and not caller.sees(namespace):
            raise Invalid("this execution_id is taken")
    return answer


async def _submitted(engine: Engine, data: CreateExecution) -> Submitted | Duplicate:
    """Budgets and quotas are found by the very names that the body says, or else by the form of a
    uuid that these routes give them."""
    try:
        return await engine.executions.submit(read_submission(data))
    except NotFound:
        named = with_canonical_names(data.policy)
        if named == data.policy:
            raise
        return await engine.executions.submit(read_submission(replace(data, policy=named)))


async def _settled(engine: Engine, id: ExecutionId) -> PublicState:
    """The state of an execution that has just come to wait for its quotas, after a look at them: if
    they have room, it waits for a worker."""
    with suppress(FlowFabricError):  # what the caller asked for is done in any case
        return await engine.views.state(id) or PublicState.RATE_LIMITED
    return PublicState.RATE_LIMITED


async def _repeated(engine: Engine, data: CreateExecution, error: Invalid) -> Submitted | Duplicate:
    """The first answer to a body that is repeated, whatever is wrong with the rest of it. Without a
    kind it can only be a duplicate."""
    id = None if data.execution_id is None else read_id(data.execution_id)
    named = Submission(
        kind="", namespace=data.namespace, key=data.idempotency_key, id=id, policy=data.policy
    )
    with suppress(Invalid):
        return await engine.executions.submit(named)
    raise error


def read_submission(data: CreateExecution) -> Submission:
    """What a body asks for. What is wrong with its policy comes first, as in the engine."""
    policy = read_policy(data.policy)
    lane = check_lane(data.lane_id)
    id = None if data.execution_id is None else read_id(data.execution_id)
    partition = _partition(lane, id, optional_uuid(data.flow_id, "flow_id"))
    return Submission(
        kind=data.execution_kind,
        payload=read_bytes(data.input_payload, "input_payload"),
        id=id,
        namespace=data.namespace,
        lane=lane,
        priority=data.priority,
        key=data.idempotency_key,
        tags=data.tags,
        policy=policy,
        delay_until=read_moment(data.delay_until),
        deadline_at=read_moment(data.execution_deadline_at),
        creator=data.creator_identity or None,
        encoding=data.payload_encoding,
        flow=None if partition == lane_partition(lane) else home_of(partition),
    )


def _partition(lane: str, id: ExecutionId | None, flow: UUID | None) -> int:
    """Where the caller puts it: beside a flow that it will join, or by its id, or by its lane."""
    if flow is not None:
        return flow_partition(flow)
    if id is not None and id.partition_index != ANYWHERE:
        return id.partition_index
    return lane_partition(lane)


def clamped(priority: int) -> dict[str, str]:
    """A header for a caller whose priority is out of range: what it became."""
    kept = clamp_priority(priority)
    return {} if kept == priority else {CLAMPED: str(kept)}


# -- read


class ExecutionIds(Struct):
    executions: list[str]
    next_cursor: str | None


@get(
    "/v1/executions",
    opt=needs("read", body=CREATE_BODY),
    operation_id="list_executions_of_partition",
    tags=["executions"],
    responses=READS,
)
async def list_executions(
    request: Request[Any, Any, Any],
    partition: Annotated[int, QueryParameter(ge=0, lt=1 << 16)],
    cursor: FromQuery[str | None] = None,
    limit: Annotated[int, QueryParameter(ge=0)] = 50,
) -> Response[ExecutionIds]:
    """The ids of one partition in ascending order; `cursor` is the last id of the page before, and
    `limit` is at most 1,000."""
    caller = caller_of(request)
    try:
        after = None if cursor is None else read_id(cursor).uuid
    except InvalidId as error:
        raise refused_parameter("cursor", error.detail) from None
    page = await engine_of(request).views.partition(
        partition, after=after, limit=limit, sees=caller.sees if not caller.sees_all else None
    )
    return respond(ExecutionIds([str(id) for id in page.ids], page.cursor))


class StateVector(Struct):
    lifecycle_phase: str
    ownership_state: str
    eligibility_state: str
    blocking_reason: str
    terminal_outcome: str
    attempt_state: str
    public_state: PublicState


class ExecutionInfo(Struct, kw_only=True):
    """Moments are decimal text, as clients of the original read them."""

    execution_id: str
    namespace: str
    lane_id: str
    priority: int
    execution_kind: str
    state_vector: StateVector
    public_state: PublicState
    created_at: str
    started_at: str | UnsetType = UNSET
    completed_at: str | UnsetType = UNSET
    current_attempt_index: int
    flow_id: str | None
    blocking_detail: str


@get(
    "/v1/executions/{id:str}",
    opt=needs("read", waits=True),
    operation_id="get_execution",
    tags=["executions"],
    responses=READS,
)
async def get_execution(
    request: Request[Any, Any, Any], id: RunPath, wait: Wait = None
) -> Response[ExecutionInfo]:
    """What is known of an execution, without payload and result; with `wait` when it has ended."""
    key, engine = await own_run(request, id)
    await until_ended(request, id, wait)
    info = await engine.views.info(key)
    if info is None:
        raise NotFound("execution", id)
    return respond(_info(info))


def _info(info: Info) -> ExecutionInfo:
    attempt = info.attempt if info.attempt is not None else max(0, info.attempts_made - 1)
    return ExecutionInfo(
        execution_id=str(info.id),
        namespace=info.namespace,
        lane_id=info.lane,
        priority=info.priority,
        execution_kind=info.kind,
        state_vector=_vector(info.vector),
        public_state=info.state,
        created_at=str(info.created_at),
        started_at=UNSET if info.started_at is None else str(info.started_at),
        completed_at=UNSET if info.ended_at is None else str(info.ended_at),
        current_attempt_index=attempt,
        flow_id=None if info.flow is None else str(info.flow),
        blocking_detail=info.blocking_detail or "",
    )


def _vector(vector: Vector) -> StateVector:
    return StateVector(
        lifecycle_phase=vector.phase,
        ownership_state=vector.ownership,
        eligibility_state=vector.eligibility,
        blocking_reason=vector.blocking,
        terminal_outcome=vector.outcome,
        attempt_state=vector.attempt,
        public_state=vector.public,
    )


@get(
    "/v1/executions/{id:str}/state",
    opt=needs("read", waits=True),
    operation_id="get_execution_state",
    tags=["executions"],
    responses=READS,
)
async def execution_state(
    request: Request[Any, Any, Any], id: RunPath, wait: Wait = None
) -> Response[PublicState]:
    """The public state, as one JSON string; with `wait` when it has ended, or by then."""
    key, engine = await own_run(request, id)
    if wait is not None:
        await until_ended(request, id, wait)
    state = await engine.views.state(key)
    if state is None:
        raise NotFound("execution", id)
    return respond(state)


class Base64Result(Struct):
    result: str
    encoding: Literal["base64"] = "base64"


@get(
    "/v1/executions/{id:str}/result",
    opt=needs("read", waits=True),
    operation_id="get_execution_result",
    tags=["executions"],
    media_type=OCTETS,
    responses=READS,
)
async def execution_result(
    request: Request[Any, Any, Any],
    id: RunPath,
    encoding: Annotated[
        str | None, QueryParameter(description="`base64` answers the bytes as JSON instead")
    ] = None,
    wait: Wait = None,
) -> Response[bytes]:
    """The exact bytes of the result. 404 if there is none, or none yet: `wait` waits for it."""
    if encoding not in (None, "raw", "base64"):
        raise Invalid("encoding must be raw or base64")
    key, engine = read_id(id), engine_of(request)
    caller = caller_of(request)
    sees = caller.sees_all or caller.sees(await engine.views.namespace(key) or "")
    if sees:
        await until_ended(request, id, wait)
    result = await engine.views.result(key) if sees else None
    if result is None:
        raise NotFound("execution result", id)
    if encoding == "base64":
        return respond(Base64Result(b64encode(result).decode()))
    return Response(content=result, media_type=OCTETS)


# -- control


class CancelExecution(Struct, kw_only=True):
    """`source` is operator_override, lease_holder, flow_cascade, system_timeout or another word. A
    lease holder gives the three members of its lease; an operator's are ignored."""

    reason: str
    execution_id: RunText | None = None
    source: str = "operator_override"
    lease_id: UuidText | None = None
    lease_epoch: U64 | None = None
    attempt_id: UuidText | None = None
    now: Now = None


class CancelledExecution(Struct, omit_defaults=True):
    """`cleanup_until`: its handler cleans up first, at most until then."""

    execution_id: str
    public_state: PublicState
    cleanup_until: int | UnsetType = UNSET


class CancelRunAnswer(Tagged):
    Cancelled: CancelledExecution | None = None


@post(
    "/v1/executions/{id:str}/cancel",
    status_code=200,
    opt=needs("operate"),
    operation_id="cancel_execution",
    tags=["executions"],
    responses=BODIES,
)
async def cancel_execution(
    request: Request[Any, Any, Any], id: RunPath, data: JSONBody[CancelExecution]
) -> Response[CancelRunAnswer]:
    """Ends an execution as cancelled, in any state. Cancelling twice is one cancel."""
    same_id(read_id(id), data.execution_id)
    key, engine = await own_run(request, id)
    answer = await engine.executions.cancel(key, reason=data.reason, owner=_canceller(data))
    cancelled = CancelledExecution(str(answer.id), PublicState.CANCELLED)
    if answer.until is not None:
        state = await engine.views.state(key) or PublicState.CANCELLED
        cancelled = CancelledExecution(str(answer.id), state, answer.until)
    return respond(CancelRunAnswer(Cancelled=cancelled))


def _canceller(data: CancelExecution) -> Owner:
    """Who cancels. An operator's cancel does not depend on a lease, so it may name any."""
    lease = Owner(
        lease_id=optional_uuid(data.lease_id, "lease_id"),
        epoch=None if data.lease_epoch is None else fit(data.lease_epoch, "lease_epoch"),
        attempt_id=optional_uuid(data.attempt_id, "attempt_id"),
        source=data.source,
    )
    return Owner(source=data.source) if data.source == Source.OPERATOR else lease


class ChangePriority(Struct):
    new_priority: I32


class ChangedExecution(Struct):
    execution_id: str


class PriorityAnswer(Tagged):
    Changed: ChangedExecution | None = None


@put(
    "/v1/executions/{id:str}/priority",
    opt=needs("operate"),
    operation_id="change_priority",
    tags=["executions"],
    responses=BODIES,
)
async def change_priority(
    request: Request[Any, Any, Any], id: RunPath, data: JSONBody[ChangePriority]
) -> Response[PriorityAnswer]:
    """Moves an execution that waits for a worker in the claim order: 0 to 9000, clamped."""
    key, engine = await own_run(request, id)
    changed = await engine.executions.change_priority(key, data.new_priority)
    answer = PriorityAnswer(Changed=ChangedExecution(str(changed.id)))
    return respond(answer, headers=clamped(data.new_priority))


class ReplayedExecution(Struct):
    public_state: PublicState


class ReplayAnswer(Tagged):
    Replayed: ReplayedExecution | None = None


@post(
    "/v1/executions/{id:str}/replay",
    status_code=200,
    opt=needs("operate"),
    operation_id="replay_execution",
    tags=["executions"],
    responses=CHANGES,
)
async def replay_execution(request: Request[Any, Any, Any], id: RunPath) -> Response[ReplayAnswer]:
    """Runs an ended execution again."""
    key, engine = await own_run(request, id)
    replayed = await engine.executions.replay(key)
    state = replayed.state
    if state is PublicState.RATE_LIMITED:
        state = await _settled(engine, replayed.id)
    return respond(ReplayAnswer(Replayed=ReplayedExecution(state)))


class RevokedLease(Struct):
    lease_id: str
    lease_epoch: str


class WhySatisfied(Struct):
    reason: str


class RevokeAnswer(Tagged):
    Revoked: RevokedLease | None = None
    AlreadySatisfied: WhySatisfied | None = None


@post(
    "/v1/executions/{id:str}/revoke-lease",
    status_code=200,
    opt=needs("operate"),
    operation_id="revoke_lease",
    tags=["executions"],
    responses=CHANGES,
)
async def revoke_lease(request: Request[Any, Any, Any], id: RunPath) -> Response[RevokeAnswer]:
    """Takes the lease away from the worker that runs it."""
    key, engine = await own_run(request, id)
    try:
        answer = await engine.claims.revoke(key, reason="operator_revoke")
    except NotActive:
        return respond(RevokeAnswer(AlreadySatisfied=WhySatisfied("no_active_lease")))
    if isinstance(answer, Revoked):
        revoked = RevokedLease(str(answer.lease_id), str(answer.epoch))
        return respond(RevokeAnswer(Revoked=revoked))
    return respond(RevokeAnswer(AlreadySatisfied=WhySatisfied(answer.reason)))


class ReclaimExecution(Struct, kw_only=True):
    """Which worker is to get it, for how long it may take to come."""

    worker_id: str
    worker_instance_id: str
    lane_id: Lane
    grant_ttl_ms: U64
    capability_hash: str | None = None
    route_snapshot_json: str | None = None
    admission_summary: str | None = None
    worker_capabilities: list[str] = []


class ReclaimGranted(Struct, tag="granted", tag_field="status"):
    execution_id: str
    partition_key: str
    grant_key: str
    expires_at_ms: int
    lane_id: str


class ReclaimRefused(Struct, tag="not_reclaimable", tag_field="status"):
    execution_id: str
    detail: str


class ReclaimCapReached(Struct, tag="reclaim_cap_exceeded", tag_field="status"):
    execution_id: str
    reclaim_count: U32


ReclaimAnswer = ReclaimGranted | ReclaimRefused | ReclaimCapReached


@post(
    "/v1/executions/{id:str}/reclaim",
    status_code=200,
    opt=needs("work"),
    operation_id="reclaim_execution",
    tags=["executions"],
    responses=BODIES,
)
async def reclaim_execution(
    request: Request[Any, Any, Any], id: RunPath, data: JSONBody[ReclaimExecution]
) -> Response[ReclaimAnswer]:
    """Reserves an execution whose worker was lost for another worker."""
    key, engine = await own_run(request, id)
    lane = check_lane(data.lane_id)
    worker = grantee(data.worker_id, data.worker_instance_id)
    notes = GrantNotes(
        capability_hash=data.capability_hash,
        route_snapshot=data.route_snapshot_json,
        admission_summary=data.admission_summary,
    )
    answer = await engine.grants.issue_reclaim(
        key,
        worker,
        capabilities=data.worker_capabilities,
        ttl=check_grant_ttl(data.grant_ttl_ms),
        notes=notes,
    )
    (found,) = await engine.views.locate([key.uuid])
    match answer:
        case Granted():
            place = partition_key("fp", found.partition_index)
            granted = ReclaimGranted(str(found), place, answer.key, answer.expires_at, lane)
            return respond(granted)
        case NotReclaimable(detail=detail):
            spaced = detail.replace("capability_mismatch:", "capability_mismatch: ", 1)
            return respond(ReclaimRefused(str(found), spaced))
        case _:
            return respond(ReclaimCapReached(str(found), answer.reclaims))


def grantee(worker: str, instance: str) -> WorkerIdentity:
    """A worker that asks for a grant: names without white space and control characters."""
    return WorkerIdentity(
        check_worker(worker, "worker_id"), check_worker(instance, "worker_instance_id")
    )


def check_grant_ttl(ttl: int) -> int:
    if not 1 <= fit(ttl, "grant_ttl_ms") <= MAX_GRANT_TTL:
        raise Invalid(f"grant_ttl_ms must be 1 to {MAX_GRANT_TTL}")
    return ttl


HANDLERS = [
    list_executions,
    create_execution,
    get_execution,
    execution_state,
    execution_result,
    cancel_execution,
    change_priority,
    replay_execution,
    revoke_lease,
    reclaim_execution,
]
