"""What has happened lately: how many executions ended in each span of time, how long they waited
for a worker and how long they ran. Computed from events, which are read once each."""

from collections import OrderedDict, deque
from collections.abc import Iterable
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, StoredEvent

BUCKET = Millis(5_000)
BUCKETS = 60
SAMPLES = 2_000
"""Durations that are kept for the percentiles."""
STARTED = 10_000
"""Attempts whose end is awaited; the oldest are forgotten first."""

_BEGIN = frozenset({EventKind.CLAIMED, EventKind.RESUMED, EventKind.RECLAIMED})
_FAILED = frozenset({EventKind.FAILED, EventKind.EXPIRED, EventKind.RECLAIMS_EXCEEDED})
_UUID7 = 7


class SpanCounts(Struct):
    """What happened in the five seconds that begin `at`."""

    at: Millis
    started: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0


class DurationSummary(Struct, frozen=True):
    """Percentiles in milliseconds of `count` durations."""

    p50: int
    p95: int
    max: int
    count: int


class RecentActivity:
    """Folds events into spans and durations. Events come in order, each once."""

    def __init__(self) -> None:
        self._spans: OrderedDict[int, SpanCounts] = OrderedDict()
        self._started: OrderedDict[ExecutionId, Millis] = OrderedDict()
        self._waited: deque[tuple[Millis, int]] = deque(maxlen=SAMPLES)
        self._ran: deque[tuple[Millis, int]] = deque(maxlen=SAMPLES)

    def add(self, events: Iterable[StoredEvent]) -> None:
        for event in events:
            if event.id is not None:
                self._add(event, event.id)

    def _add(self, event: StoredEvent, id: ExecutionId) -> None:
        span = self._span(event.at)
        if event.kind in _BEGIN:
            span.started += 1
            self._begin(event, id)
        elif event.kind is EventKind.COMPLETED:
            span.completed += 1
            self._end(event, id)
        elif event.kind in _FAILED:
            span.failed += 1
            self._end(event, id)
        elif event.kind is EventKind.CANCELLED:
            span.cancelled += 1
            self._started.pop(id, None)
        elif event.kind is EventKind.RETRY_SCHEDULED:
            span.retried += 1
            self._started.pop(id, None)

    def spans(self, now: Millis) -> list[SpanCounts]:
        """The last five minutes without gaps, oldest first."""
        last = now // BUCKET
        numbers = range(last - BUCKETS + 1, last + 1)
        return [self._spans.get(n) or SpanCounts(Millis(n * BUCKET)) for n in numbers]

    def waited(self, now: Millis) -> DurationSummary | None:
        """How long first attempts waited for a worker; None without any in the last minutes."""
        return _summary(self._waited, now)

    def ran(self, now: Millis) -> DurationSummary | None:
        """How long attempts ran that ended an execution."""
        return _summary(self._ran, now)

    def _span(self, at: Millis) -> SpanCounts:
        number = at // BUCKET
        if number not in self._spans:
            self._spans[number] = SpanCounts(Millis(number * BUCKET))
            while len(self._spans) > 2 * BUCKETS:
                self._spans.popitem(last=False)
        return self._spans[number]

    def _begin(self, event: StoredEvent, id: ExecutionId) -> None:
        self._started[id] = event.at
        if len(self._started) > STARTED:
            self._started.popitem(last=False)
        created_at = minted_at(id.uuid)
        if event.kind is EventKind.CLAIMED and not event.attempt and created_at is not None:
            self._waited.append((event.at, max(0, event.at - created_at)))

    def _end(self, event: StoredEvent, id: ExecutionId) -> None:
        began = self._started.pop(id, None)
        if began is not None:
            self._ran.append((event.at, max(0, event.at - began)))


def minted_at(id: UUID) -> Millis | None:
    """When an id was made, which is when its execution was submitted; None for ids of another kind
    that a client has brought."""
    return Millis(id.int >> 80) if id.version == _UUID7 else None


def _summary(samples: Iterable[tuple[Millis, int]], now: Millis) -> DurationSummary | None:
    since = now - BUCKET * BUCKETS
    found = sorted(duration for at, duration in samples if at >= since)
    if not found:
        return None
    return DurationSummary(
        p50=found[len(found) // 2],
        p95=found[min(len(found) - 1, len(found) * 95 // 100)],
        max=found[-1],
        count=len(found),
    )
