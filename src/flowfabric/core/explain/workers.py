"""Reasons that are asked at the claim: the lane, and who could run it."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Next, Route
from flowfabric.core.execution.registry import Presence
from flowfabric.core.explain.limits import taken_by
from flowfabric.core.explain.reasons import Code, Reason, listed, number
from flowfabric.core.explain.serving import Serving, serving
from flowfabric.core.limit.lane import Lane, LaneState, begins, is_full

SHOWN = 10


class Running(Struct, frozen=True):
    """How many of a lane have a lease, and a few of them."""

    count: int = 0
    few: Sequence[ExecutionId] = ()


NOBODY = Running()


def lane_reasons(lane: Lane, running: Running, next: Next) -> Iterator[Reason]:
    """Why nothing of the lane is taken that begins as `next` does."""
    if not begins(lane, next.start):
        if lane.state is LaneState.DRAINING:
            text = "drains and begins nothing new"
            yield _decided(lane, Code.LANE_DRAINING, text, f"{text}, as decided")
        else:
            yield _decided(lane, Code.LANE_PAUSED, "is paused", "was paused")
    if lane.concurrency is not None and is_full(lane, running.count):
        ids = [str(id) for id in running.few]
        yield Reason(
            code=Code.LANE_FULL,
            text=f"lane {lane.name} is full: {running.count:,} of {lane.concurrency:,} run",
            detail={"lane": lane.name, "concurrency": lane.concurrency, "running": running.count},
            children=taken_by(ids, running.count),
        )


def _decided(lane: Lane, code: Code, state: str, deed: str) -> Reason:
    text = f"lane {lane.name} {deed} by {lane.by}" if lane.by else f"lane {lane.name} {state}"
    if lane.reason:
        text = f"{text}: {lane.reason}"
    detail = {"lane": lane.name, "by": lane.by, "reason": lane.reason}
    return Reason(code=code, text=text, since=lane.at, detail=detail)


def worker_reason(route: Route, workers: Sequence[Presence], now: Millis) -> Reason:
    """Who could run it, or what is missing."""
    found = serving(route, workers, now)
    return _busy_or_free(found) if found.capable else _missing(route, found)


def _missing(route: Route, found: Serving) -> Reason:
    """The first thing that no live worker has."""
    detail: dict[str, object] = {
        "namespace": route.namespace,
        "lane": route.lane,
        "kind": route.kind,
        "live": len(found.live),
    }
    if not found.live:
        text = f"no live worker takes work of namespace {route.namespace}"
        return Reason(code=Code.NO_WORKER, text=text, detail=detail)
    if not found.in_lane:
        lanes = sorted({lane for worker in found.live for lane in worker.lanes})
        text = f"no live worker takes lane {route.lane}; those there are take {listed(lanes)}"
        return Reason(
            code=Code.NO_WORKER_FOR_LANE, text=text, detail={**detail, "lanes": lanes[:SHOWN]}
        )
    if not found.of_kind:
        text = f"no live worker of lane {route.lane} runs {route.kind}"
        return Reason(code=Code.NO_WORKER_FOR_KIND, text=text, detail=detail)
    return _incapable(route, found, detail)


def _incapable(route: Route, found: Serving, detail: dict[str, object]) -> Reason:
    """Each worker on its own: what two of them offer together helps nobody."""
    offered = {token for worker in found.of_kind for token in worker.capabilities}
    nowhere = [token for token in route.capabilities if token not in offered]
    if nowhere:
        text = f"no live worker offers {listed(nowhere)}"
    else:
        text = f"no live worker offers {listed(route.capabilities, most=8)} together"
    children: tuple[Reason, ...] = ()
    near = found.nearest
    if near is not None:
        lacks = listed(near.lacks)
        children = (
            Reason(
                code=Code.CLOSEST_WORKER,
                text=f"{near.presence.worker} comes closest, it lacks {lacks}",
                detail={
                    "worker": near.presence.worker,
                    "instance": near.presence.instance,
                    "lacks": list(near.lacks),
                    "offers": list(near.presence.capabilities),
                },
            ),
        )
    return Reason(
        code=Code.NO_CAPABLE_WORKER,
        text=text,
        detail={**detail, "required": list(route.capabilities), "offered_by_none": nowhere},
        children=children,
    )


def _busy_or_free(found: Serving) -> Reason:
    names = [worker.worker for worker in found.capable]
    detail = {
        "workers": names[:SHOWN],
        "running": found.running,
        "slots": found.slots,
        "free": found.free,
    }
    if not found.free:
        who = "the only worker" if len(names) == 1 else f"all {len(names)} workers"
        verb = "is" if len(names) == 1 else "are"
        text = f"{who} that can run it {verb} busy ({found.running:,} of {found.slots:,} at once)"
        return Reason(code=Code.WORKER_BUSY, text=text, detail=detail)
    text = f"it waits to be taken; {number(len(names), 'live worker')} can run it"
    if len(names) <= 3:
        text = f"it waits to be taken; {listed(names)} can run it"
    return Reason(code=Code.WAITING_FOR_WORKER, text=text, detail=detail)
