"""Recent activity: events become spans of five seconds and percentiles of durations."""

from itertools import pairwise
from uuid import UUID

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, StoredEvent
from flowfabric.core.execution.recent import (
    BUCKET,
    BUCKETS,
    DurationSummary,
    RecentActivity,
    minted_at,
)

NOW = Millis(1_700_000_000_000)


def id_at(at: int, number: int = 0) -> ExecutionId:
    """An id that was minted at that moment."""
    return ExecutionId.of(0, UUID(int=at << 80 | 7 << 76 | 0b10 << 62 | number))


def event(kind: EventKind, at: int, id: ExecutionId, attempt: int | None = None) -> StoredEvent:
    return StoredEvent(
        seq=1, id=id, namespace="default", lane="default", at=Millis(at), kind=kind, epoch=1,
        attempt=attempt,
    )  # fmt: skip


def test_spans_have_no_gaps_and_end_now() -> None:
    activity = RecentActivity()
    id = id_at(NOW - 20_000)
    activity.add(
        [
            event(EventKind.CLAIMED, NOW - 10_000, id, 0),
            event(EventKind.COMPLETED, NOW - 9_000, id),
            event(EventKind.FAILED, NOW, id_at(NOW - 5)),
            event(EventKind.CANCELLED, NOW, id_at(NOW - 5, 2)),
            event(EventKind.RETRY_SCHEDULED, NOW, id_at(NOW - 5, 3)),
        ]
    )
    spans = activity.spans(NOW)
    assert len(spans) == BUCKETS
    assert [b.at - a.at for a, b in pairwise(spans)] == [BUCKET] * (BUCKETS - 1)
    assert (spans[-1].failed, spans[-1].cancelled, spans[-1].retried) == (1, 1, 1)
    assert (spans[-3].started, spans[-3].completed) == (1, 1)
    assert sum(span.completed for span in spans) == 1


def test_what_is_longer_ago_is_not_shown() -> None:
    activity = RecentActivity()
    old = id_at(NOW - 2 * BUCKET * BUCKETS)
    activity.add([event(EventKind.COMPLETED, NOW - BUCKET * BUCKETS, old)])
    assert sum(span.completed for span in activity.spans(NOW)) == 0


def test_how_long_first_attempts_waited_and_ran() -> None:
    activity = RecentActivity()
    for number in range(100):
        id = id_at(NOW - 1_000, number)
        activity.add([event(EventKind.CLAIMED, NOW - 1_000 + number, id, 0)])
        activity.add([event(EventKind.COMPLETED, NOW, id)])
    assert activity.waited(NOW) == DurationSummary(p50=50, p95=95, max=99, count=100)
    ran = activity.ran(NOW)
    assert ran is not None
    assert (ran.max, ran.count) == (1_000, 100)


def test_a_later_attempt_did_not_wait_since_the_submission() -> None:
    activity = RecentActivity()
    activity.add([event(EventKind.CLAIMED, NOW, id_at(NOW - 60_000), 1)])
    assert activity.waited(NOW) is None


def test_the_wait_between_two_attempts_is_no_running() -> None:
    activity = RecentActivity()
    id = id_at(NOW - 60_000)
    activity.add(
        [
            event(EventKind.CLAIMED, NOW - 60_000, id, 0),
            event(EventKind.RETRY_SCHEDULED, NOW - 59_000, id, 0),
            event(EventKind.CLAIMED, NOW - 10, id, 1),
            event(EventKind.COMPLETED, NOW, id, 1),
        ]
    )
    ran = activity.ran(NOW)
    assert ran is not None
    assert ran.max == 10


def test_without_news_there_are_no_durations() -> None:
    activity = RecentActivity()
    assert (activity.waited(NOW), activity.ran(NOW)) == (None, None)


def test_an_id_of_another_kind_says_nothing_of_its_time() -> None:
    assert minted_at(UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")) is None
    assert minted_at(id_at(NOW).uuid) == NOW
