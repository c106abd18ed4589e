"""Events as subscribers see them. §8.2; C-T135, C-T136, F-64."""

from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.base.errors import Invalid, InvalidTag
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, Family, StoredEvent, kinds_of
from flowfabric.core.execution.event_filter import (
    MAX_CURSOR,
    EventBatch,
    EventFilter,
    EventGap,
    check_filter,
    encode_cursor,
    gap_between,
    parse_cursor,
)
from flowfabric.core.execution.event_views import EventView, gap_view, view
from flowfabric.core.execution.model import WorkerIdentity

RUN = ExecutionId.solo("mail", UUID(int=7))
FLOW = UUID(int=9)
ADA = WorkerIdentity("ada", "ada-1")


def event(kind: EventKind, **members: Any) -> StoredEvent:
    given: dict[str, Any] = {
        "seq": 5,
        "id": RUN,
        "namespace": "n",
        "lane": "mail",
        "at": Millis(3),
        "kind": kind,
        "epoch": 2,
        "attempt": 1,
        "worker": ADA,
    }
    return StoredEvent(**{**given, **members})


def signalled(**detail: Any) -> EventView:
    known = {"signal": str(UUID(int=1)), "waitpoint": str(UUID(int=2)), "name": "go"}
    return view(event(EventKind.SIGNALLED, detail={**known, **detail}))


# -- lease


@pytest.mark.parametrize(
    ("kind", "change", "by"),
    [
        (EventKind.CLAIMED, "acquired", None),
        (EventKind.RESUMED, "acquired", None),
        (EventKind.RECLAIMED, "reclaimed", None),
        (EventKind.LEASE_EXPIRED, "expired", None),
        (EventKind.LEASE_REVOKED, "revoked", "operator"),
        (EventKind.RECLAIMS_EXCEEDED, "revoked", "reconciler"),
        (EventKind.SUSPENDED, "released", None),
        (EventKind.COMPLETED, "released", None),
    ],
)
def test_a_lease_says_what_became_of_it_and_whose_it_is(
    kind: EventKind, change: str, by: str | None
) -> None:
    """§8.2, C-T136"""
    part = view(event(kind)).lease
    assert part is not None
    assert (part.change, part.revoked_by, part.epoch) == (change, by, 2)
    assert (part.worker_id, part.worker_instance) == ("ada", "ada-1")


def test_the_end_of_a_run_that_did_not_run_releases_nothing() -> None:
    shown = view(event(EventKind.CANCELLED, worker=None))
    assert shown.lease is None
    assert shown.completion is not None


# -- completion


@pytest.mark.parametrize(
    ("kind", "outcome", "state"),
    [
        (EventKind.COMPLETED, "success", "success"),
        (EventKind.FAILED, "failure", "failed"),
        (EventKind.RECLAIMS_EXCEEDED, "failure", "failed"),
        (EventKind.CANCELLED, "cancelled", "cancelled"),
        (EventKind.EXPIRED, "expired", "expired"),
        (EventKind.SKIPPED, "skipped", "skipped"),
    ],
)
def test_a_completion_says_how_the_run_ended(kind: EventKind, outcome: str, state: str) -> None:
    """F-64: failed is a failure, and every ending has a word of its own"""
    shown = view(event(kind, flow=FLOW))
    assert shown.completion is not None
    assert (shown.completion.outcome, shown.completion.state) == (outcome, state)
    assert (shown.execution_id, shown.flow_id) == (RUN.uuid, FLOW)


# -- signal


@pytest.mark.parametrize(
    ("effect", "word"),
    [
        ("resume_condition_satisfied", "satisfied"),
        ("buffered_for_pending_waitpoint", "buffered"),
        ("appended_to_waitpoint_duplicate", "deduped"),
        ("appended_to_waitpoint", "other"),
        ("no_op", "other"),
        ("an effect of a later release", "other"),
    ],
)
def test_a_signal_says_what_it_did(effect: str, word: str) -> None:
    """§8.2, C-T136"""
    part = signalled(effect=effect, source="ada").signal
    assert part is not None
    assert (part.effect, part.detail) == (word, effect)
    assert (part.signal_id, part.waitpoint_id) == (UUID(int=1), UUID(int=2))
    assert (part.name, part.source_identity) == ("go", "ada")


def test_a_signal_without_a_sender_has_none() -> None:
    part = signalled(effect="no_op", source="").signal
    assert part is not None
    assert part.source_identity is None


# -- operator and worker


def test_an_operator_event_has_no_tagged_ids() -> None:
    detail = {"old": 1, "by": str(RUN)}
    part = view(event(EventKind.PRIORITY_CHANGED, detail=detail)).operator
    assert part is not None
    assert (part.action, part.detail) == ("priority_changed", {"old": 1, "by": str(RUN.uuid)})


def test_a_worker_event_has_no_run() -> None:
    detail = {"worker": "ada", "instance": "ada-1", "lanes": ["fast"], "concurrency": 3}
    shown = view(
        event(EventKind.WORKER_REGISTERED, id=None, lane="", attempt=None, epoch=0, detail=detail)
    )
    assert (shown.execution_id, shown.lane, shown.lease) == (None, None, None)
    assert shown.worker is not None
    assert (shown.worker.change, shown.worker.worker_id) == ("registered", "ada")
    assert (shown.worker.lanes, shown.worker.concurrency) == (["fast"], 3)


def test_a_worker_whose_entry_could_not_be_read_has_no_id() -> None:
    shown = view(
        event(EventKind.WORKER_EXPIRED, id=None, lane="", worker=WorkerIdentity("", "ada-1"))
    )
    assert shown.worker is not None
    assert (shown.worker.worker_id, shown.worker.worker_instance) == (None, "ada-1")


# -- the whole


def test_an_event_of_two_families_is_one_document_with_two_parts() -> None:
    """I-43: a cursor never stands between them"""
    shown = view(event(EventKind.COMPLETED))
    assert shown.lease is not None
    assert shown.completion is not None
    only = view(event(EventKind.COMPLETED), [Family.COMPLETION])
    assert (only.lease, only.completion) == (None, shown.completion)
    assert view(event(EventKind.COMPLETED), []) == shown


@pytest.mark.parametrize("kind", EventKind)
def test_every_kind_can_be_shown_as_json(kind: EventKind) -> None:
    detail = {"signal": str(UUID(int=1)), "effect": "no_op"}
    shown = view(event(kind, detail=detail))
    members = msgspec.json.decode(msgspec.json.encode(shown))
    assert (members["kind"], members["cursor"]) == (kind.name.lower(), encode_cursor(5))
    parts = {"lease", "completion", "signal", "operator", "worker"} & members.keys()
    assert parts == {family for family in Family if kind in kinds_of(family)}


def test_a_gap_says_from_where_to_where() -> None:
    shown = gap_view(EventGap(3, 8))
    assert (shown.kind, parse_cursor(shown.after), parse_cursor(shown.cursor)) == ("gap", 3, 8)


@pytest.mark.parametrize(
    ("until", "order"),
    [(1, [1, 2, 5]), (2, [2, 2, 5]), (4, [2, 4, 5]), (5, [2, 5, 5]), (9, [2, 5, 9])],
)
def test_a_gap_stands_where_its_cursor_does(until: int, order: list[int]) -> None:
    """E-T335: a reader that continues after any of them misses nothing that was left"""
    left = tuple(event(EventKind.CLAIMED, seq=seq) for seq in (2, 5))
    found = list(EventBatch(left, 9, EventGap(0, until)).in_order())
    assert [each.until if isinstance(each, EventGap) else each.seq for each in found] == order
    assert sum(isinstance(each, EventGap) for each in found) == 1
    assert list(EventBatch(left, 9).in_order()) == list(left)


# -- cursors


@given(st.integers(0, MAX_CURSOR))
def test_a_cursor_survives_being_text(seq: int) -> None:
    """§8.1"""
    assert parse_cursor(encode_cursor(seq)) == seq


def test_an_empty_cursor_means_from_now_on() -> None:
    """§8.1"""
    assert parse_cursor("") is None


@pytest.mark.parametrize(
    "wrong",
    [
        "5",
        "0-0",
        "AgAAAAAAAAAH ",
        " AgAAAAAAAAAH",
        "AgAAAAAAAAAH=",
        "AgAAAAAAAAA",
        "AgAAAAAAAAAHAA==",
        "AQAAAAAAAAAH",
        "AQAAAAAAAAAAAAAAAAAAAAA",
        "Av__________",
        "AgAAAAAAAAÄH",
        "\ud800",
        "a\0b",
        7,
        None,
        b"AgAAAAAAAAAH",
    ],
)
def test_what_is_no_cursor_is_refused(wrong: Any) -> None:
    """§8.1: wrong encoding, length or prefix"""
    with pytest.raises(Invalid):
        parse_cursor(wrong)


@given(st.text(max_size=20))
def test_no_text_makes_two_cursors(text: str) -> None:
    try:
        seq = parse_cursor(text)
    except Invalid:
        return
    assert text == ("" if seq is None else encode_cursor(seq))


# -- filters


def test_families_are_checked_and_put_in_order() -> None:
    wanted = check_filter(None, ["signal", "completion", Family.SIGNAL])
    assert wanted.families == (Family.COMPLETION, Family.SIGNAL)
    assert wanted.kinds == kinds_of(Family.COMPLETION) | kinds_of(Family.SIGNAL)
    assert EventFilter().kinds is None


@pytest.mark.parametrize("wrong", ["lease", b"lease", ["nonsense"], [7], 7, None])
def test_families_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(Invalid):
        check_filter(None, wrong)


def test_other_filters_that_are_none_are_refused() -> None:
    with pytest.raises(Invalid):
        check_filter("")
    with pytest.raises(InvalidTag):
        check_filter(None, (), ("nodot", "v"))


def test_a_release_is_wanted_only_if_there_was_a_lease() -> None:
    wanted = EventFilter(families=(Family.LEASE,))
    assert wanted.wants(event(EventKind.CANCELLED))
    assert not wanted.wants(event(EventKind.CANCELLED, worker=None))


@pytest.mark.parametrize(
    ("after", "cursor", "forgotten", "gap"),
    [
        (5, 9, 0, None),
        (5, 9, 5, None),
        (5, 9, 6, EventGap(5, 6)),
        (5, 9, 20, EventGap(5, 9)),
        (5, 5, 20, None),
    ],
)
def test_a_gap_is_what_was_deleted_beyond_the_cursor(
    after: int, cursor: int, forgotten: int, gap: EventGap | None
) -> None:
    """F-65"""
    assert gap_between(after, cursor, forgotten) == gap
