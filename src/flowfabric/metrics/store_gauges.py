"""What the whole store looks like, whichever process is asked: queues, states, workers.

All of it is read at most every five seconds for all who ask, and less often where reading takes
long. Several processes may show the same figures; queries take the largest.
"""

import asyncio
from collections.abc import Iterator
from time import monotonic
from weakref import WeakKeyDictionary

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily

from flowfabric.core.base.time import Millis
from flowfabric.core.execution import webhook
from flowfabric.core.execution.registry import Presence
from flowfabric.engine.engine import Engine
from flowfabric.metrics.instruments import MOST_NAMES, OTHER
from flowfabric.store.activity import UNKNOWN, LaneActivity, read_activity
from flowfabric.store.queries import Counts
from flowfabric.store.rows.record import PRESENCES

FRESH = 5.0
SHARE = 20
"""Reading never takes more than that part of the store's time."""
WORKERS_READ = 1000


class StoreFigures(Struct, frozen=True):
    """One moment of a store. `next_due` is the earliest moment at which something is or was due."""

    at: Millis
    states: Counts
    lanes: tuple[LaneActivity, ...]
    workers: tuple[Presence, ...]
    next_due: Millis | None

    @property
    def lag(self) -> float:
        """How many seconds ago something was due that has not been done."""
        return 0.0 if self.next_due is None else max(0, self.at - self.next_due) / 1000


class StoreGauges:
    """The gauges of one engine's store."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.store
        self._reading = asyncio.Lock()
        self._found: StoreFigures | None = None
        self._fresh_until = 0.0

    async def read(self) -> StoreFigures:
        async with self._reading:
            began = monotonic()
            if self._found is None or began >= self._fresh_until:
                self._found = await self._look()
                self._fresh_until = began + max(FRESH, SHARE * (monotonic() - began))
            return self._found

    async def _look(self) -> StoreFigures:
        store, now = self._store, self._store.clock.now()
        activity = await read_activity(store, UNKNOWN, now)
        states = await store.counts()
        presences = await store.records.page(PRESENCES, None, WORKERS_READ)
        return StoreFigures(
            at=now,
            states=states,
            lanes=activity.lanes,
            workers=tuple(each for each in presences if each.alive(now) and _runs_tasks(each)),
            next_due=await store.next_due(Millis(0)),
        )


def _runs_tasks(worker: Presence) -> bool:
    """Not one that a server has for its webhooks: it runs none of the users' tasks."""
    return worker.kinds != (webhook.KIND,)


_known: "WeakKeyDictionary[Engine, StoreGauges]" = WeakKeyDictionary()


def gauges_of(engine: Engine) -> StoreGauges:
    """The gauges of this engine, shared by all who ask."""
    found = _known.get(engine)
    if found is None:
        found = _known[engine] = StoreGauges(engine)
    return found


def families(figures: StoreFigures) -> Iterator[GaugeMetricFamily]:
    """The figures as Prometheus has them."""
    states = GaugeMetricFamily(
        "ff_executions", "Runs in each state, counted up to 100,000.", labels=["state"]
    )
    for state, count in figures.states.by_state.items():
        states.add_metric([str(state)], count)
    yield states
    yield from _lanes(figures)
    workers = "Workers of tasks that are alive."
    yield GaugeMetricFamily("ff_workers", workers, value=len(figures.workers))
    slots = sum(each.concurrency for each in figures.workers)
    yield GaugeMetricFamily("ff_worker_slots", "How many runs they can run at once.", value=slots)
    lag = "How long ago something became due that has not been done."
    yield GaugeMetricFamily("ff_sweep_lag_seconds", lag, value=figures.lag)


def _lanes(figures: StoreFigures) -> Iterator[GaugeMetricFamily]:
    depth = GaugeMetricFamily(
        "ff_queue_depth", "Runs that wait for nothing but a worker.", labels=["lane"]
    )
    running = GaugeMetricFamily("ff_executions_running", "Runs that workers hold.", labels=["lane"])
    oldest = GaugeMetricFamily(
        "ff_queue_oldest_seconds", "How long ago the first in line was submitted.", labels=["lane"]
    )
    for lane in _bounded(figures.lanes):
        depth.add_metric([lane.lane], lane.ready)
        running.add_metric([lane.lane], lane.running)
        age = 0 if lane.oldest_at is None else max(0, figures.at - lane.oldest_at)
        oldest.add_metric([lane.lane], age / 1000)
    yield from (depth, running, oldest)


def _bounded(lanes: tuple[LaneActivity, ...]) -> list[LaneActivity]:
    """The fullest hundred lanes, and the rest as one."""
    if len(lanes) <= MOST_NAMES:
        return list(lanes)
    ranked = sorted(lanes, key=lambda lane: (-lane.ready, -lane.running, lane.lane))
    rest = ranked[MOST_NAMES:]
    waiting = [lane.oldest_at for lane in rest if lane.oldest_at is not None]
    ready, running = sum(lane.ready for lane in rest), sum(lane.running for lane in rest)
    other = LaneActivity(OTHER, ready, running, min(waiting, default=None))
    return [*ranked[:MOST_NAMES], other]
