"""What `flowfabric top` shows: read every second, in at most five statements."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.failures import FailureGroup, FailureGroups
from flowfabric.core.execution.registry import Presence
from flowfabric.store.activity import UNKNOWN, LaneActivity, read_activity
from flowfabric.store.contract import Store
from flowfabric.store.queries import Counts, FailedSince
from flowfabric.store.rows.record import PRESENCES

T = TypeVar("T")

FAILED_SPAN = Millis(600_000)
FAILURES_READ = 200
WORKERS_READ = 1000
SHARE = 20
"""What takes long is asked again after so many times as long, and never costs more than that share
of the store's time."""

STARTED = (EventKind.CLAIMED, EventKind.RESUMED, EventKind.RECLAIMED)


class Rates(Struct, frozen=True):
    """How many a second since the last look."""

    submitted: float = 0.0
    started: float = 0.0
    completed: float = 0.0
    failed: float = 0.0
    retried: float = 0.0
    suspended: float = 0.0
    lost: float = 0.0


class StoreMoment(Struct, frozen=True, kw_only=True):
    """One moment of a store."""

    at: Millis
    rates: Rates
    states: Counts
    lanes: tuple[LaneActivity, ...]
    workers: tuple[Presence, ...]
    held: Mapping[str, int]
    """How many leases each worker instance holds."""
    failures: tuple[FailureGroup, ...]

    def load(self, worker: Presence) -> float:
        return self.held.get(worker.instance, 0) / worker.concurrency

    @property
    def oldest(self) -> LaneActivity | None:
        """The lane in which a run has waited the longest for a worker."""
        waiting = [lane for lane in self.lanes if lane.oldest_at is not None]
        return min(waiting, key=lambda lane: lane.oldest_at or 0, default=None)


class _Paced:
    """An answer that is kept for a while: the longer it took, the longer."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._due = 0.0

    async def get(self, ask: Callable[[], Awaitable[T]], known: T | None) -> T:
        started = time.monotonic()
        if known is not None and started < self._due:
            return known
        found = await ask()
        ended = time.monotonic()
        self._due = started + max(self._every, SHARE * (ended - started))
        return found


class StoreWatch:
    """Looks at a store again and again; the first look has no rates."""

    def __init__(self, store: Store, interval: float = 1.0) -> None:
        self._store = store
        self._cursor = UNKNOWN
        self._seen_at: Millis | None = None
        self._states: Counts | None = None
        self._failures: tuple[FailureGroup, ...] | None = None
        self._held: Mapping[str, int] | None = None
        # These three take turns, so that a look is at most five statements.
        self._turn = 0
        self._paced = (_Paced(interval), _Paced(interval), _Paced(interval))

    async def look(self) -> StoreMoment:
        store, now = self._store, self._store.clock.now()
        since = now if self._seen_at is None else self._seen_at
        activity = await read_activity(store, self._cursor, since)
        rates = Rates()
        if self._seen_at is not None:
            rates = _rates(activity.events, activity.submitted, (now - since) / 1000)
        self._cursor, self._seen_at = max(activity.cursor, 0), now
        entries = await store.records.page(PRESENCES, None, WORKERS_READ)
        workers = tuple(worker for worker in entries if worker.alive(now))
        await self._take_turns(now, workers)
        return StoreMoment(
            at=now,
            rates=rates,
            states=self._states or Counts({}, frozenset()),
            lanes=activity.lanes,
            workers=workers,
            held=self._held or {},
            failures=self._failures or (),
        )

    async def _take_turns(self, now: Millis, workers: Sequence[Presence]) -> None:
        turn, self._turn = self._turn, (self._turn + 1) % len(self._paced)
        if turn == 0 or self._held is None:
            self._held = await self._paced[0].get(lambda: self._read_held(workers), self._held)
        if turn == 1 or self._states is None:
            self._states = await self._paced[1].get(self._store.counts, self._states)
        if turn == 2 or self._failures is None:
            self._failures = await self._paced[2].get(
                lambda: self._read_failures(now), self._failures
            )

    async def _read_held(self, workers: Sequence[Presence]) -> Mapping[str, int]:
        found: Counter[str] = Counter()
        if workers:
            names = [worker.instance for worker in workers]
            for holding in await self._store.held_counts(names):
                found[holding.worker.instance] += holding.leases
        return found

    async def _read_failures(self, now: Millis) -> tuple[FailureGroup, ...]:
        since = Millis(max(0, now - FAILED_SPAN))
        found = await self._store.snapshots(FailedSince(since, None, FAILURES_READ))
        groups = FailureGroups()
        groups.add(found)
        return groups.groups()


def _rates(events: Mapping[EventKind, int], submitted: int, seconds: float) -> Rates:
    def each(*kinds: EventKind) -> float:
        return sum(events.get(kind, 0) for kind in kinds) / max(seconds, 0.001)

    return Rates(
        submitted=submitted / max(seconds, 0.001),
        started=each(*STARTED),
        completed=each(EventKind.COMPLETED),
        failed=each(EventKind.FAILED, EventKind.EXPIRED, EventKind.RECLAIMS_EXCEEDED),
        retried=each(EventKind.RETRY_SCHEDULED),
        suspended=each(EventKind.SUSPENDED),
        lost=each(EventKind.LEASE_EXPIRED, EventKind.LEASE_REVOKED),
    )
