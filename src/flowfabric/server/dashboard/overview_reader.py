"""One answer about the whole store, shared by all who ask within a second.

Ten open dashboards must not cost the store ten times as much. Throughput and durations come from
events, each read once per process; queues from one statement; what changes slowly (failures,
workers, lane settings) is read every ten seconds.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import StoredEvent
from flowfabric.core.execution.recent import BUCKET, DurationSummary, RecentActivity, SpanCounts
from flowfabric.core.limit.lane import LaneState
from flowfabric.engine.engine import Engine
from flowfabric.server.http.documents import document, word
from flowfabric.store.queries import Counts, RouteDepth

FRESH = 1.0
"""Seconds that an answer is shared."""
COUNTED = 3.0
"""Seconds that counts of states and lanes are shared."""
SLOW = 10.0
"""Seconds that failures, workers and lane settings are shared."""
PAGE = 1_000
AT_ONCE = 3
"""Pages of events that one answer may wait for; the next ones read on."""
BEHIND = 10_000
"""How many earlier events are read at first, and the most that are made up for later."""
FAILURES_READ = 500
FAILURES_WITHIN = Millis(3_600_000)
SHOWN = 100
"""Most groups of failures, lanes and workers in an answer."""

PLACES = 500
"""Most namespaces for which answers are shared."""

T = TypeVar("T")
Place = str | None

ACTIVE = word(LaneState.OPEN)


class LaneDepth(Struct):
    """What waits for a worker in a lane, and what runs. `state` is what an operator has set."""

    lane: str
    waiting: int = 0
    running: int = 0
    oldest_at: Millis | None = None
    state: str = ACTIVE


class OverviewAnswer(Struct, kw_only=True):
    """The whole at a glance. `durations` cover the last five minutes, `failures` the last hour."""

    now: Millis
    counts: dict[str, int] = field(default_factory=dict)
    capped: list[str] = field(default_factory=list)
    lanes: list[LaneDepth] = field(default_factory=list)
    oldest_waiting: dict[str, Any] | None = None
    span_ms: int = BUCKET
    spans: list[SpanCounts] = field(default_factory=list)
    waited: DurationSummary | None = None
    ran: DurationSummary | None = None
    failures: list[dict[str, Any]] = field(default_factory=list)
    failures_complete: bool = True
    workers: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def empty(cls, now: Millis) -> "OverviewAnswer":
        """What a caller sees of a namespace that is not its own."""
        return cls(now=now, spans=RecentActivity().spans(now))


class _Shared(Generic[T]):
    """A value that is read again after `seconds`, by one caller for all. Those who ask meanwhile
    get the value before, if there is one."""

    def __init__(self, seconds: float, read: Callable[[Engine, Place], Awaitable[T]]) -> None:
        self._seconds = seconds
        self._read = read
        self._found: dict[Place, tuple[float, T]] = {}
        self._locks: defaultdict[Place, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def get(self, engine: Engine, place: Place) -> T:
        if len(self._locks) >= PLACES:
            self._forget()
        lock = self._locks[place]
        if lock.locked() and place in self._found:
            return self._found[place][1]
        async with lock:
            loop = asyncio.get_running_loop()
            if place not in self._found or loop.time() - self._found[place][0] >= self._seconds:
                value = await self._read(engine, place)
                self._found[place] = (loop.time(), value)
            return self._found[place][1]

    def _forget(self) -> None:
        """What is not being read now: callers may ask for namespaces that do not exist."""
        for place in [each for each, lock in self._locks.items() if not lock.locked()]:
            del self._locks[place]
            self._found.pop(place, None)


class _Slow(Struct):
    """What changes slowly."""

    failures: list[dict[str, Any]]
    complete: bool
    workers: list[dict[str, Any]]
    lanes: dict[str, str]


class OverviewReader:
    """One per server process."""

    def __init__(self) -> None:
        self._answers = _Shared(FRESH, self._compute)
        self._slow = _Shared(SLOW, _read_slow)
        self._counts = _Shared(COUNTED, _read_counts)
        self._depths = _Shared(COUNTED, _read_depths)
        self._reading = asyncio.Lock()
        self._listeners: list[Callable[[Sequence[StoredEvent]], None]] = []
        self._read_at = 0.0
        self._cursor: int | None = None
        self._recent: dict[Place, RecentActivity] = {None: RecentActivity()}

    async def read(self, engine: Engine, place: Place) -> OverviewAnswer:
        """The overview of one namespace, or of all."""
        return await self._answers.get(engine, place)

    async def _compute(self, engine: Engine, place: Place) -> OverviewAnswer:
        _, counts, depths, slow = await asyncio.gather(
            self.news(engine, rounds=2.0),  # an open page has the change feed read every second
            self._counts.get(engine, place),
            self._depths.get(engine, None),
            self._slow.get(engine, place),
        )
        now = engine.store.clock.now()
        seen = [each for each in depths if place in (None, each.route.namespace)]
        lanes = lane_depths(seen, slow.lanes)
        recent = self._recent.get(place) or RecentActivity()
        return OverviewAnswer(
            now=now,
            counts={str(state): count for state, count in counts.by_state.items()},
            capped=sorted(str(state) for state in counts.capped),
            lanes=lanes[:SHOWN],
            oldest_waiting=oldest_of(seen),
            spans=recent.spans(now),
            waited=recent.waited(now),
            ran=recent.ran(now),
            failures=slow.failures,
            failures_complete=slow.complete,
            workers=slow.workers,
        )

    def on_news(self, act: Callable[[Sequence[StoredEvent]], None]) -> None:
        """Called with all events that are read, for an overview or for followers."""
        self._listeners.append(act)

    async def news(self, engine: Engine, *, rounds: float = 0.8) -> None:
        """Reads what happened since the last time, if that is so many rounds ago. A process that
        has fallen far behind goes on with the latest events: the spans between stay as they are."""
        loop = asyncio.get_running_loop()
        async with self._reading:
            if self._cursor is None:
                self._cursor = max(0, await engine.events.tail() - BEHIND)
            elif loop.time() - self._read_at < FRESH * rounds:
                return
            found: list[StoredEvent] = []
            for _ in range(AT_ONCE):
                page = await engine.events.read(after=self._cursor, limit=PAGE)
                self._cursor = page.cursor
                found += page.events
                if len(page.events) < PAGE:
                    break
            else:
                self._cursor = max(self._cursor, await engine.events.tail() - BEHIND)
            self._take(found)
            self._read_at = loop.time()

    def _take(self, events: Sequence[StoredEvent]) -> None:
        for act in self._listeners:
            act(events)
        self._recent[None].add(events)
        for event in events:
            self._recent.setdefault(event.namespace, RecentActivity()).add([event])


async def _read_counts(engine: Engine, place: Place) -> Counts:
    return await engine.views.counts(namespace=place)


async def _read_depths(engine: Engine, place: Place) -> Sequence[RouteDepth]:
    return await engine.lanes.depths()


async def _read_slow(engine: Engine, place: Place) -> _Slow:
    since = Millis(max(0, engine.store.clock.now() - FAILURES_WITHIN))
    failed = await engine.views.failures(namespace=place, since=since, most=FAILURES_READ)
    workers = await engine.workers.list(namespace=place, limit=SHOWN)
    settings = await engine.lanes.settings()
    return _Slow(
        failures=[document(group) for group in failed.groups[:SHOWN]],
        complete=failed.complete,
        workers=[document(entry) for entry in workers],
        lanes={name: word(lane.state) for name, lane in settings.items()},
    )


def lane_depths(depths: Sequence[RouteDepth], states: dict[str, str]) -> list[LaneDepth]:
    """The fullest lanes first; a lane that an operator has stopped is shown even if it is empty."""
    found: dict[str, LaneDepth] = {}
    for each in depths:
        lane = found.setdefault(each.route.lane, LaneDepth(each.route.lane))
        lane.waiting += each.waiting
        lane.running += each.running
        if (at := each.oldest_at) is not None:
            lane.oldest_at = at if lane.oldest_at is None else min(at, lane.oldest_at)
    for name, state in states.items():
        if name in found or state != ACTIVE:
            found.setdefault(name, LaneDepth(name)).state = state
    return sorted(found.values(), key=lambda lane: (-lane.waiting, -lane.running, lane.lane))


def oldest_of(depths: Sequence[RouteDepth]) -> dict[str, Any] | None:
    """The execution that has waited longest for a worker."""
    waiting = [(at, each) for each in depths if (at := each.oldest_at) is not None]
    if not waiting:
        return None
    at, each = min(waiting, key=lambda pair: pair[0])
    route = each.route
    return {"id": str(each.oldest), "since": at, "lane": route.lane, "kind": route.kind}
