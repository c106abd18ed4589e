"""Flows as people look at them: lists, one flow, its members, edges and joins."""

import asyncio
from typing import Annotated, Any, Literal
from uuid import UUID

from litestar import Request, Response, get, post, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from msgspec import UNSET, Struct, UnsetType

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.numbers import check_word
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.time import Millis
from flowfabric.core.flow.grow import check_k
from flowfabric.core.flow.join import AllOf, AnyOf, EdgeState, Join, JoinPolicy, Quorum, Rest
from flowfabric.core.flow.model import Flow, FlowState
from flowfabric.core.flow.status import FlowStatus, PublicFlowState, flow_status
from flowfabric.engine.flow.views import Member
from flowfabric.server.caller.access import caller_of, check_again, needs
from flowfabric.server.context import engine_of
from flowfabric.server.http.documents import document, plain, respond_page
from flowfabric.server.http.long_polls import while_wanted
from flowfabric.server.http.parameters import (
    Cursor,
    ListLimit,
    Namespace,
    Tag,
    Wait,
    find_flow,
    read_tag,
    read_wait,
    visible_namespace,
)
from flowfabric.server.http.shown import also, by_name, entry, members, page, shown, word_of
from flowfabric.server.http.wire import U32, read_id, read_member, read_uuid_text, respond

GROUPS_SHOWN = 1_000

States = Annotated[
    list[FlowState] | None, QueryParameter(name="state", description="Only in these; repeatable")
]

FLOW = entry(Flow, status=word_of(FlowStatus))


class EdgeGroupPolicy(Struct):
    """`kind` is all_of, any_of or quorum, which needs `k`."""

    kind: str
    k: U32 | None = None
    on_satisfied: str = "cancel_remaining"


class ShownPolicy(Struct, omit_defaults=True):
    """When a member runs: after all of its upstreams, any of them, or `k`."""

    kind: Literal["all_of", "any_of", "quorum"]
    k: int | UnsetType = UNSET
    on_satisfied: Rest | UnsetType = UNSET


NOTES = ("inputs", "last", "floors", "rounds")
"""What the engine keeps in mind of a join, for passing results and for replays."""
JOIN = also(Join, *NOTES, policy=ShownPolicy, running=int)
MEMBER = also(Member, join=JOIN | None)


@get("/v1/flows", opt=needs("read", shows=page("flows", FLOW)))
async def list_flows(
    request: Request[Any, Any, Any],
    namespace: Namespace = None,
    kind: FromQuery[str | None] = None,
    states: States = None,
    tag: Tag = None,
    newest_first: FromQuery[bool] = True,
    cursor: Cursor = None,
    limit: ListLimit = 100,
) -> Response[dict[str, Any]]:
    """Flows that match every filter, by creation time, newest first. `status` also tells whether
    all members of a flow that stays open have ended."""
    found = await engine_of(request).flow_views.page(
        namespace=visible_namespace(caller_of(request), namespace),
        kind=kind,
        states=tuple(states or ()),
        tag=read_tag(tag),
        after=None if cursor is None else _read_cursor(cursor),
        limit=limit,
        newest_first=newest_first,
    )
    return respond_page("flows", found, limit, _write_cursor, _shown)


def _shown(flow: Flow) -> dict[str, Any]:
    return {**document(flow), "status": str(flow_status(flow))}


def _write_cursor(flow: Flow) -> str:
    return f"{flow.created_at}.{flow.id.hex}"


def _read_cursor(text: str) -> tuple[Millis, UUID]:
    moment, _, key = text.partition(".")
    try:
        return Millis(int(moment)), UUID(hex=key)
    except ValueError:
        raise Invalid(f"not a cursor: {text[:80]!r}") from None


@get(
    "/v1/flows/{id:str}",
    opt=needs(
        "read",
        shows=also(
            Flow,
            status=word_of(FlowStatus),
            public_flow_state=word_of(PublicFlowState),
            graph_revision=int,
            states=dict[str, int],
            edge_groups=by_name(JOIN),
        ),
    ),
)
async def describe_flow(
    request: Request[Any, Any, Any], id: FromPath[str]
) -> Response[dict[str, Any]]:
    """One flow: its state by its members, its graph revision, how many members are in which state,
    the joins of its first 1,000 members. `/members` has those of all, by pages."""
    key, engine = await find_flow(request, id), engine_of(request)
    found = await engine.flow_views.describe(key)
    if found is None:
        raise NotFound("flow", id)
    joins = await engine.flow_views.groups(key, limit=GROUPS_SHOWN)
    return respond(
        {
            **_shown(found.flow),
            "public_flow_state": str(found.public_flow_state),
            "graph_revision": found.flow.revision,
            "states": plain(found.states),
            "edge_groups": {str(member): _join(join) for member, join in joins.items()},
        }
    )


@get("/v1/flows/{id:str}/members", opt=needs("read", shows=page("members", MEMBER)))
async def flow_members(
    request: Request[Any, Any, Any],
    id: FromPath[str],
    cursor: Cursor = None,
    limit: ListLimit = 100,
) -> Response[dict[str, Any]]:
    """Members by id, with their states."""
    key, engine = await _existing(request, id), engine_of(request)
    after = None if cursor is None else ExecutionId.member(key, read_id(cursor).uuid)
    found = await engine.flow_views.members(key, after=after, limit=limit)
    return respond_page("members", found, limit, lambda last: str(last.id), _member)


@get("/v1/flows/{id:str}/edges", opt=needs("read", shows=page("edges", shown(EdgeState))))
async def flow_edges(
    request: Request[Any, Any, Any],
    id: FromPath[str],
    upstream: FromQuery[str | None] = None,
    downstream: FromQuery[str | None] = None,
    cursor: Cursor = None,
    limit: ListLimit = MAX_PAGE,
) -> Response[dict[str, Any]]:
    """Edges by id, or those that leave or enter one execution, with how they were settled."""
    key, engine = await _existing(request, id), engine_of(request)
    found = await engine.flow_views.edges(
        key,
        upstream=None if upstream is None else read_id(upstream),
        downstream=None if downstream is None else read_id(downstream),
        after=None if cursor is None else read_uuid_text(cursor, "cursor"),
        limit=limit,
    )
    return respond_page("edges", found, limit, lambda last: str(last.edge.id), _edge)


@get(
    "/v1/flows/{id:str}/wait",
    opt=needs("read", long=True, shows=FLOW),
    responses={202: ResponseSpec(FLOW, generate_examples=False, description="Not yet.")},
)
async def wait_for_flow(
    request: Request[Any, Any, Any], id: FromPath[str], wait: Wait = "30s"
) -> Response[dict[str, Any]]:
    """Waits for all members: 200 with the flow, or 202 if some have not ended by then."""
    key, engine = await _existing(request, id), engine_of(request)
    waiting, _ = await while_wanted(request, engine.flow_views.wait(key, read_wait(wait)))
    await check_again(request)
    try:
        return respond(_shown(waiting.result()))
    except (TimeoutError, asyncio.CancelledError):
        found = await engine.flow_views.get(key)
        return respond(None if found is None else _shown(found), 202)


@put(
    "/v1/flows/{id:str}/edge-groups/{downstream:str}",
    opt=needs("submit", shows=members("EdgeGroupSet", set=bool)),
)
async def set_edge_group(
    request: Request[Any, Any, Any],
    id: FromPath[str],
    downstream: FromPath[str],
    data: JSONBody[EdgeGroupPolicy],
) -> Response[dict[str, Any]]:
    """How many upstreams a member waits for; before its first edge."""
    return await _set_edge_group(request, id, downstream, data)


@post(
    "/v1/flows/{id:str}/edge-groups/{downstream:str}",
    opt=needs("submit", shows=members("EdgeGroupSet", set=bool)),
    status_code=200,
)
async def declare_edge_group(
    request: Request[Any, Any, Any],
    id: FromPath[str],
    downstream: FromPath[str],
    data: JSONBody[EdgeGroupPolicy],
) -> Response[dict[str, Any]]:
    """The same as PUT, for clients that declare it as they add edges."""
    return await _set_edge_group(request, id, downstream, data)


async def _set_edge_group(
    request: Request[Any, Any, Any], id: str, downstream: str, data: EdgeGroupPolicy
) -> Response[dict[str, Any]]:
    if data.kind == "quorum" and data.k is not None:
        check_k(Quorum(data.k))  # before the flow is looked for
    key = await _existing(request, id)
    member = ExecutionId.member(key, read_member(downstream, key))
    changed = await engine_of(request).flows.set_join(key, member, _policy(data))
    return respond({"set": changed})


@post(
    "/v1/flows/{id:str}/replay",
    opt=needs("operate", shows=members("FlowReplayed", replayed=int)),
    status_code=200,
)
async def replay_flow(
    request: Request[Any, Any, Any], id: FromPath[str]
) -> Response[dict[str, Any]]:
    """Runs the members that did not succeed again."""
    key = await _existing(request, id)
    found = await engine_of(request).flows.replay(key)
    return respond({"replayed": len(found)})


@post(
    "/v1/flows/{id:str}/seal",
    opt=needs("submit", shows=members("FlowSealed", sealed=bool)),
    status_code=200,
)
async def seal_flow(request: Request[Any, Any, Any], id: FromPath[str]) -> Response[dict[str, Any]]:
    """Says that the graph is complete: members start as their joins allow, and the flow ends with
    the last of them."""
    key = await _existing(request, id)
    return respond({"sealed": await engine_of(request).flows.seal(key)})


@get("/v1/flows/{id:str}/tags", opt=needs("read"))
async def flow_tags(request: Request[Any, Any, Any], id: FromPath[str]) -> Response[dict[str, str]]:
    """The tags of a flow."""
    found = await engine_of(request).flow_views.get(await find_flow(request, id))
    if found is None:
        raise NotFound("flow", id)
    return respond(found.tags)


@put("/v1/flows/{id:str}/tags", opt=needs("operate"))
async def set_flow_tags(
    request: Request[Any, Any, Any], id: FromPath[str], data: JSONBody[dict[str, str]]
) -> Response[dict[str, int]]:
    """Adds or replaces tags, all or none."""
    key = await find_flow(request, id)
    return respond({"set": await engine_of(request).flows.set_tags(key, data)})


def _join(join: Join) -> dict[str, Any]:
    """`running` are the edges whose upstream has not ended."""
    shown = {"policy": _shown_policy(join.policy), "running": join.running}
    return {**document(join, *NOTES), **shown}


def _member(member: Member) -> dict[str, Any]:
    join = None if member.join is None else _join(member.join)
    return {**document(member), "join": join}


def _edge(state: EdgeState) -> dict[str, Any]:
    """The two ends are members, so that the partition of the flow is theirs."""
    flow = state.edge.flow
    ends = {"upstream": state.edge.upstream, "downstream": state.edge.downstream}
    tagged = {name: str(ExecutionId.member(flow, uuid)) for name, uuid in ends.items()}
    return {**document(state), "edge": {**document(state.edge), **tagged}}


def _shown_policy(policy: JoinPolicy) -> ShownPolicy:
    match policy:
        case AllOf():
            return ShownPolicy("all_of")
        case AnyOf(rest=rest):
            return ShownPolicy("any_of", on_satisfied=rest)
        case Quorum(k=k, rest=rest):
            return ShownPolicy("quorum", k, rest)


async def _existing(request: Request[Any, Any, Any], id: str) -> UUID:
    key = await find_flow(request, id)
    if await engine_of(request).flow_views.get(key) is None:
        raise NotFound("flow", id)
    return key


def _policy(data: EdgeGroupPolicy) -> JoinPolicy:
    rest = check_word(data.on_satisfied, Rest, "on_satisfied")
    match data.kind:
        case "all_of":
            return AllOf()
        case "any_of":
            return AnyOf(rest)
        case "quorum" if data.k is not None:
            return Quorum(data.k, rest)
        case "quorum":
            raise Invalid("a quorum needs k")
        case _:
            raise Invalid("kind must be all_of, any_of or quorum")


HANDLERS = [
    list_flows,
    describe_flow,
    flow_members,
    flow_edges,
    wait_for_flow,
    set_edge_group,
    declare_edge_group,
    replay_flow,
    seal_flow,
    flow_tags,
    set_flow_tags,
]
