"""Reasons that are asked at the claim: the lane, and which workers could run it."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Next, Route
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.serving import Serving, serving
from flowfabric.core.execution.versions import version_of, version_token, versions_in
from flowfabric.core.explain.limits import holder_reasons
from flowfabric.core.explain.reasons import Reason, ReasonCode
from flowfabric.core.explain.sentences import because
from flowfabric.core.limit.lane import Lane, LaneState, begins, is_full

SHOWN = 10


class Running(Struct, frozen=True):
    """How many of a lane have a lease, and a few of them."""

    count: int = 0
    few: Sequence[ExecutionId] = ()


NOTHING_RUNS = Running()


def lane_reasons(lane: Lane, running: Running, next: Next) -> Iterator[Reason]:
    """Why nothing of the lane is taken that begins as `next` does."""
    if not begins(lane, next.start):
        drains = lane.state is LaneState.DRAINING
        code = ReasonCode.LANE_DRAINING if drains else ReasonCode.LANE_PAUSED
        yield because(code, since=lane.at, lane=lane.name, by=lane.by, reason=lane.reason)
    if lane.concurrency is not None and is_full(lane, running.count):
        yield because(
            ReasonCode.LANE_FULL,
            children=holder_reasons([str(id) for id in running.few], running.count),
            lane=lane.name,
            concurrency=lane.concurrency,
            running=running.count,
        )


def worker_reason(route: Route, workers: Sequence[Presence], now: Millis) -> Reason:
    """Who could run it, or what is missing."""
    found = serving(route, workers, now)
    if not found.capable:
        return _missing(route, found)
    names = [worker.worker for worker in found.capable]
    return because(
        ReasonCode.WAITING_FOR_WORKER if found.free else ReasonCode.WORKER_BUSY,
        also={"capable": len(names)},
        workers=names[:SHOWN],
        running=found.running,
        slots=found.slots,
        free=found.free,
    )


def _missing(route: Route, found: Serving) -> Reason:
    """The first thing that no live worker has."""
    detail: dict[str, Any] = {
        "namespace": route.namespace,
        "lane": route.lane,
        "kind": route.kind,
        "live": len(found.live),
    }
    if not found.live:
        return because(ReasonCode.NO_WORKER, **detail)
    if not found.in_lane:
        lanes = sorted({lane for worker in found.live for lane in worker.lanes})
        also = {"all_lanes": lanes}
        return because(ReasonCode.NO_WORKER_FOR_LANE, also=also, **detail, lanes=lanes[:SHOWN])
    if not found.of_kind:
        return because(ReasonCode.NO_WORKER_FOR_KIND, **detail)
    offered = {token for worker in found.of_kind for token in worker.capabilities}
    version = version_of(route)
    if version is not None and version_token(route.kind, version) not in offered:
        versions = versions_in(tuple(offered), route.kind)
        return because(
            ReasonCode.NO_WORKER_FOR_VERSION, **detail, version=version, offered=versions
        )
    return because(
        ReasonCode.NO_CAPABLE_WORKER,
        children=_closest(found),
        **detail,
        required=list(route.capabilities),
        offered_by_none=[token for token in route.capabilities if token not in offered],
    )


def _closest(found: Serving) -> Iterator[Reason]:
    """Each worker on its own: what two of them offer together helps neither."""
    if (near := found.nearest) is not None:
        yield because(
            ReasonCode.CLOSEST_WORKER,
            worker=near.presence.worker,
            instance=near.presence.instance,
            lacks=list(near.lacks),
            offers=list(near.presence.capabilities),
        )
