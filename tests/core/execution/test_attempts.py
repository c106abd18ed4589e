"""Attempts as history, and what holds over any life of an execution."""

from typing import Any

import pytest
from hypothesis import given

from flowfabric.core.base.errors import LeaseExpired
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import attempt, lease, operator
from flowfabric.core.execution.attempts import closing_attempts, current_attempt, inline_attempts
from flowfabric.core.execution.event import StoredEvent
from flowfabric.core.execution.model import (
    Active,
    Attempt,
    AttemptOutcome,
    Ended,
    Failure,
    Lost,
    Outcome,
    Snapshot,
    Start,
    Waiting,
)
from tests.kit.lab import TTL, W1
from tests.kit.snapshots import NOW, OPERATOR, after, fresh, lease_of, owner_of
from tests.kit.walk import BY_OWNERS, POLICY, Act, Book, lives, play, running

EXPIRY = Millis(NOW + TTL)
STARTED = AttemptOutcome.STARTED
SUSPENDED = AttemptOutcome.SUSPENDED
RECLAIMED = AttemptOutcome.RECLAIMED


def lost() -> Snapshot:
    held = running()
    return after(lease.lose(held, EXPIRY, lease_of(held), revoked=False))


def rescued() -> Snapshot:
    return running(lost(), Millis(EXPIRY + 5))


def handed_back() -> Snapshot:
    held = running()
    return after(attempt.hand_back(held, Millis(NOW + 5), owner_of(held)))


def cancelled(snapshot: Snapshot) -> Snapshot:
    return after(operator.cancel(snapshot, Millis(EXPIRY + 9), OPERATOR, "enough"))


def seen(records: tuple[Attempt, ...]) -> list[tuple[int, Start, AttemptOutcome, int | None]]:
    return [(each.index, each.type, each.outcome, each.ended_at) for each in records]


END = Millis(EXPIRY + 9)
CANCELLED = AttemptOutcome.CANCELLED


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (fresh(), []),
        (running(), [(0, Start.INITIAL, STARTED, None)]),
        (lost(), [(0, Start.INITIAL, STARTED, None)]),
        (
            rescued(),
            [(0, Start.INITIAL, RECLAIMED, EXPIRY + 5), (1, Start.RECLAIM, STARTED, None)],
        ),
        (handed_back(), [(0, Start.INITIAL, SUSPENDED, None)]),
        (running(handed_back()), [(0, Start.INITIAL, STARTED, None)]),
        (cancelled(fresh()), []),
        (cancelled(running()), [(0, Start.INITIAL, CANCELLED, END)]),
        (cancelled(lost()), [(0, Start.INITIAL, CANCELLED, END)]),
        (
            cancelled(rescued()),
            [(0, Start.INITIAL, RECLAIMED, EXPIRY + 5), (1, Start.RECLAIM, CANCELLED, END)],
        ),
        (cancelled(handed_back()), [(0, Start.INITIAL, CANCELLED, END)]),
        (cancelled(running(handed_back())), [(0, Start.INITIAL, CANCELLED, END)]),
    ],
)
def test_what_is_not_in_history_yet_is_read_from_the_state(
    snapshot: Snapshot, expected: list[Any]
) -> None:
    """INV-9"""
    assert seen(inline_attempts(snapshot)) == expected


@pytest.mark.parametrize(
    ("outcome", "record"),
    [
        (Outcome.SUCCESS, AttemptOutcome.SUCCESS),
        (Outcome.FAILED, AttemptOutcome.FAILURE),
        (Outcome.EXPIRED, AttemptOutcome.FAILURE),
        (Outcome.CANCELLED, AttemptOutcome.CANCELLED),
        (Outcome.SKIPPED, AttemptOutcome.CANCELLED),
    ],
)
def test_an_attempt_ends_as_its_execution_does(outcome: Outcome, record: AttemptOutcome) -> None:
    """§2.6"""
    held = running()
    ended = Ended(outcome, END, attempt=0, lease=lease_of(held), result=b"done")
    current = current_attempt(held.to(ended))
    assert current is not None
    assert (current.outcome, current.ended_at, current.result) == (record, END, b"done")
    assert (current.worker, current.lease_id, current.epoch) == (W1, lease_of(held).id, 1)


def test_a_final_outcome_is_told_from_one_that_goes_on() -> None:
    """§2.6"""
    going_on = {outcome for outcome in AttemptOutcome if not outcome.final}
    assert going_on == {AttemptOutcome.CREATED, STARTED, SUSPENDED}


def test_an_attempt_that_is_in_hand_is_not_closed() -> None:
    assert closing_attempts(lost()) == ()
    assert closing_attempts(running()) == ()
    assert [record.index for record in closing_attempts(rescued())] == [0]


def test_records_that_no_rule_left_behind_are_not_invented() -> None:
    held = running()
    ended = held.to(Ended(Outcome.FAILED, END, attempt=0))
    assert current_attempt(ended) is None
    assert current_attempt(held.to(Lost(False, lost_next()))) is None


def lost_next() -> Any:
    state = lost().state
    assert isinstance(state, Lost)
    return state.next


def test_a_failure_and_a_result_belong_to_the_last_attempt() -> None:
    held = rescued()
    failed = after(attempt.fail(held, END, owner_of(held), Failure("boom")))
    first, second = inline_attempts(failed)
    assert (first.failure, second.failure) == (None, Failure("boom"))
    completed = after(attempt.complete(held, END, owner_of(held), b"done"))
    first, second = inline_attempts(completed)
    assert (first.result, second.result) == (None, b"done")


# -- over any life


@given(lives)
def test_the_epoch_counts_the_leases_and_never_falls(life: list[Act]) -> None:
    """INV-1, INV-2"""
    leases = 0
    for turn in play(life):
        if turn.change.after is None:
            continue
        before, now = turn.before, turn.change.after
        taken = isinstance(now.state, Active) and not isinstance(before.state, Active)
        leases += taken
        assert now.head.epoch == leases
        assert now.head.version > before.head.version
        acquired = [event for event in turn.change.events if _stored(event).lease in _TAKEN]
        assert len(acquired) == taken


_TAKEN = {"acquired", "reclaimed"}


def _stored(event: Any) -> StoredEvent:
    execution = fresh().execution
    return StoredEvent(
        1,
        execution.id,
        "default",
        "default",
        event.at,
        event.kind,
        event.epoch,
        event.attempt,
        event.worker,
        event.detail,
    )


@given(lives)
def test_a_caller_with_an_old_fence_changes_nothing(life: list[Act]) -> None:
    """INV-3, E-X05: except that a lease found expired is marked"""
    for turn in play(life):
        if turn.act.deed not in BY_OWNERS or turn.change.after is None:
            continue
        assert isinstance(turn.before.state, Active)
        if isinstance(turn.change.outcome, LeaseExpired):
            assert turn.before.state.lease.expires_at <= turn.now
            assert isinstance(turn.change.after.state, Lost | Ended)
        else:
            assert turn.owner == owner_of(turn.before)
            assert turn.before.state.lease.expires_at > turn.now


@given(lives)
def test_attempts_have_no_gaps_and_what_is_over_stays_as_it_was(life: list[Act]) -> None:
    """INV-9, INV-10"""
    book, past = Book(fresh(policy=POLICY)), dict[int, Attempt]()
    for turn in play(life):
        book.write(turn.change)
        known = book.known()
        assert sorted(known) == list(range(book.snapshot.attempts_made))
        going_on = [index for index, record in known.items() if not record.outcome.final]
        assert going_on in ([], [book.snapshot.attempts_made - 1])
        assert {index: known[index] for index in past} == past
        past = {index: record for index, record in known.items() if record.outcome.final}
        assert all(record.type is not Start.CONTINUE for record in known.values())


@given(lives)
def test_every_ending_is_told_once_and_with_its_outcome(life: list[Act]) -> None:
    """INV-4, INV-5, INV-11, INV-28"""
    for turn in play(life):
        if turn.change.after is None:
            assert turn.change.events == ()
            continue
        before, now = turn.before, turn.change.after
        told = [_stored(event).completion for event in turn.change.events]
        endings = [outcome for outcome in told if outcome is not None]
        if isinstance(before.state, Ended) and turn.act.deed != "replay":
            # A redemption that comes too late uses its grant up, and changes nothing else.
            assert turn.act.deed == "reclaim"
            assert (now.state, endings) == (before.state, [])
        elif isinstance(now.state, Ended):
            assert endings == [now.state.outcome]
            assert now.reclaims <= 5
        else:
            assert endings == []
            assert now.reclaims <= 4
        assert now.life.retries <= 3
        assert now.life.replays <= 3
        assert before.started_at in (None, now.started_at)


@given(lives)
def test_whatever_waits_has_a_way_out(life: list[Act]) -> None:
    """INV-19: a claim, a timer or an operator"""
    for turn in play(life):
        state = (turn.change.after or turn.before).state
        if isinstance(state, Waiting) and state.due_at is None:
            assert turn.change.after is None or turn.change.after.life.blocked is not None
        if isinstance(state, Waiting) and state.due_at is not None:
            assert state.due_at > turn.now or turn.change.after is None
