"""Lanes: what waits in them, and pausing, draining, resuming them."""

from typing import Any

from litestar import Request, Response, get, post, put
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, JSONBody
from msgspec import Struct

from flowfabric.core.explain.lane import LaneExplanation
from flowfabric.core.limit.lane import Lane
from flowfabric.server.caller.access import caller_of, needs, run_filter
from flowfabric.server.caller.explanations import without_foreign_runs
from flowfabric.server.context import engine_of
from flowfabric.server.http.documents import document, plain, respond_page
from flowfabric.server.http.parameters import (
    Cursor,
    ListLimit,
    Namespace,
    shared_engine,
    visible_namespace,
)
from flowfabric.server.http.shown import also, page, shown
from flowfabric.server.http.wire import U32, respond


class LaneChange(Struct, forbid_unknown_fields=True):
    """Why the lane is changed, for those who find it so."""

    reason: str = ""


class LaneSettings(Struct, forbid_unknown_fields=True):
    """`concurrency` 0 means any number."""

    weight: U32 | None = None
    concurrency: U32 | None = None


@get("/v1/lanes", opt=needs("read", shows=page("lanes", shown(Lane))))
async def list_lanes(
    request: Request[Any, Any, Any], cursor: Cursor = None, limit: ListLimit = 100
) -> Response[dict[str, Any]]:
    """Lanes by name, with what operators have set."""
    engine = engine_of(request)
    names = await engine.lanes.list(after=cursor, limit=limit)
    known = await engine.lanes.settings(names)
    found = [known.get(name) or Lane(name=name) for name in names]
    return respond_page("lanes", found, limit, lambda last: last.name)


@get("/v1/lanes/{lane:str}", opt=needs("read", shows=also(Lane, counts=dict[str, int])))
async def describe_lane(
    request: Request[Any, Any, Any], lane: FromPath[str], namespace: Namespace = None
) -> Response[dict[str, Any]]:
    """The settings of a lane, and how many executions of it are in which state."""
    engine, caller = engine_of(request), caller_of(request)
    place = visible_namespace(caller, namespace)
    settings = await engine.lanes.get(lane)
    counts = await engine.views.counts(namespace=place, lane=lane)
    return respond({**document(settings), "counts": plain(counts.by_state)})


@get("/v1/lanes/{lane:str}/explain", opt=needs("read", shows=shown(LaneExplanation)))
async def explain_lane(
    request: Request[Any, Any, Any], lane: FromPath[str], namespace: Namespace = None
) -> Response[dict[str, Any]]:
    """What the executions of a lane wait for, by reason."""
    caller, engine = caller_of(request), engine_of(request)
    found = await engine.explain.lane(lane, visible_namespace(caller, namespace))
    return respond(document(await without_foreign_runs(found, run_filter(caller, engine))))


@post("/v1/lanes/{lane:str}/{action:str}", opt=needs("operate", shows=shown(Lane)), status_code=200)
async def change_lane(
    request: Request[Any, Any, Any],
    lane: FromPath[str],
    action: FromPath[str],
    data: JSONBody[LaneChange],
) -> Response[dict[str, Any]]:
    """`pause`: nothing of it is claimed. `drain`: what has begun goes on. `resume`: as before."""
    lanes, caller = shared_engine(request).lanes, caller_of(request)
    actions = {"pause": lanes.pause, "drain": lanes.drain, "resume": lanes.resume}
    if action not in actions:
        raise NotFoundException
    changed = await actions[action](lane, by=caller.name, reason=data.reason)
    return respond(document(changed))


@put("/v1/lanes/{lane:str}", opt=needs("operate", shows=shown(Lane)))
async def set_lane(
    request: Request[Any, Any, Any], lane: FromPath[str], data: JSONBody[LaneSettings]
) -> Response[dict[str, Any]]:
    """Sets the weight of a lane, or how many of it may run at once."""
    lanes = shared_engine(request).lanes
    changed = await lanes.set(lane, weight=data.weight, concurrency=data.concurrency)
    return respond(document(changed))


HANDLERS = [list_lanes, describe_lane, explain_lane, change_lane, set_lane]
