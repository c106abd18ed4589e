"""What an owner does with its lease, as pure rules: complete, fail, delay, hand back."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flowfabric.core.base.errors import LeaseExpired, NotActive, NotFound, StaleLease
from flowfabric.core.base.time import MAX_SPAN, Millis
from flowfabric.core.execution import attempt, lease
from flowfabric.core.execution.attempt import (
    Completed,
    Delayed,
    JitterSource,
    RetryScheduled,
    TerminalFailed,
)
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import Owner, Taking
from flowfabric.core.execution.model import (
    Ended,
    Failure,
    Gate,
    InterruptedAttempt,
    Life,
    Next,
    Outcome,
    Ready,
    Released,
    Snapshot,
    Start,
    Waiting,
)
from flowfabric.core.execution.retry import Category
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Step
from tests.kit.lab import TTL, W1
from tests.kit.snapshots import NOW, OPERATOR, after, fresh, lease_of, owner_of
from tests.kit.walk import running

EXPIRY = Millis(NOW + TTL)
STEP = Step(0, 0, "sleep", 0, b"until then")
STRANGER = Owner(UUID(int=9), 9, UUID(int=9))

jitter = st.floats(0, 1, exclude_max=True)


def retrying(times: int = 1, **backoff: Any) -> dict[str, Any]:
    return {
        "retry_policy": {
            "max_retries": times,
            "backoff": {"type": "fixed", "delay_ms": 1000, **backoff},
        }
    }


def state_of(snapshot: Snapshot) -> Ended:
    assert isinstance(snapshot.state, Ended)
    return snapshot.state


def rules(held: Snapshot | None, who: Owner, now: Millis = NOW) -> list[Any]:
    """Every rule of this module, ready to be asked."""
    return [
        lambda: attempt.complete(held, now, who, b"done"),
        lambda: attempt.fail(held, now, who, Failure("boom")),
        lambda: attempt.delay(held, now, who, Millis(now + 1000)),
        lambda: attempt.hand_back(held, now, who),
    ]


def test_every_rule_passes_the_gate() -> None:
    """G1, G3, G5, G6"""
    held = running()
    for rule in rules(None, owner_of(held)):
        with pytest.raises(NotFound):
            rule()
    for rule in rules(fresh(), STRANGER):
        with pytest.raises(NotActive):
            rule()
    for rule in rules(held, STRANGER):
        with pytest.raises(StaleLease):
            rule()
    for rule in rules(held, owner_of(held), EXPIRY):
        assert isinstance(rule().outcome, LeaseExpired)


# -- complete


@given(st.none() | st.binary(), st.integers(0, TTL - 1))
def test_a_completion_ends_the_attempt_with_its_result(result: bytes | None, pause: int) -> None:
    """E-T130"""
    held, now = running(), Millis(NOW + pause)
    change = attempt.complete(held, now, owner_of(held), result)
    assert change.outcome == Completed(held.execution.id)
    assert after(change).state == Ended(
        Outcome.SUCCESS, now, attempt=0, lease=lease_of(held), result=result
    )
    assert [event.kind for event in change.events] == [EventKind.COMPLETED]
    assert (change.attempts, change.steps) == ((), ())


@pytest.mark.parametrize(
    ("end", "first"),
    [
        (attempt.complete, Completed),
        (lambda held, now, who: attempt.fail(held, now, who, Failure("boom")), TerminalFailed),
    ],
)
def test_an_ending_repeated_by_the_same_fence_changes_nothing(end: Any, first: Any) -> None:
    """E-X18, INV-23: at whatever moment; any other fence is refused"""
    held = running()
    ended = after(end(held, NOW, owner_of(held)))
    again = end(ended, Millis(NOW + 10 * TTL), owner_of(held))
    assert (again.outcome, again.after) == (first(held.execution.id), None)
    for who in (STRANGER, OPERATOR):
        with pytest.raises(NotActive):
            end(ended, NOW, who)


def test_one_ending_is_no_repeat_of_another() -> None:
    """INV-4"""
    held = running()
    completed = after(attempt.complete(held, NOW, owner_of(held)))
    failed = after(attempt.fail(held, NOW, owner_of(held), Failure("boom")))
    with pytest.raises(NotActive):
        attempt.fail(completed, NOW, owner_of(held), Failure("boom"))
    with pytest.raises(NotActive):
        attempt.complete(failed, NOW, owner_of(held))


# -- fail


@given(st.sampled_from(Category), st.integers(0, 3), st.integers(0, 3))
def test_a_failure_is_retried_while_the_policy_allows(
    category: Category, retries: int, times: int
) -> None:
    """§3.15, D-3, INV-11"""
    held = running(policy=retrying(times))
    held = replace(held, head=replace(held.head, life=Life(retries=retries)))
    failure = Failure("boom", category)
    change = attempt.fail(held, NOW, owner_of(held), failure)
    final = category in (Category.PERMANENT, Category.CANCELLED, Category.UNDECODABLE)
    if final or retries >= times:
        assert change.outcome == TerminalFailed(held.execution.id)
        assert state_of(after(change)).outcome is Outcome.FAILED
        assert after(change).life.failure == failure
        assert after(change).life.retries == retries
    else:
        assert change.outcome == RetryScheduled(held.execution.id, Millis(NOW + 1000), 1)
        assert after(change).state == Waiting(
            Gate.BACKOFF, Next(Start.RETRY, 1), Millis(NOW + 1000)
        )
        assert after(change).life.retries == retries + 1
        [record] = change.attempts
        assert (record.index, record.outcome, record.failure) == (0, "ended_failure", failure)


@given(jitter)
def test_jitter_is_between_a_half_and_the_whole(jitter: float) -> None:
    held = running(policy=retrying(jitter=True))
    change = attempt.fail(held, NOW, owner_of(held), Failure("boom"), JitterSource(jitter))
    assert isinstance(change.outcome, RetryScheduled)
    assert 500 <= change.outcome.delay_until - NOW <= 1000


@given(st.integers(0, MAX_SPAN), jitter)
def test_a_delay_that_is_asked_for_replaces_the_backoff(wait: int, jitter: float) -> None:
    held = running(policy=retrying(jitter=True))
    change = attempt.fail(
        held, NOW, owner_of(held), Failure("boom"), JitterSource(jitter, Millis(wait))
    )
    assert change.outcome == RetryScheduled(held.execution.id, Millis(NOW + wait), 1)
    assert isinstance(after(change).state, Waiting if wait else Ready)


@given(jitter, jitter, st.booleans())
def test_a_retry_is_scheduled_once_whatever_the_luck_of_a_repeat(
    first: float, second: float, promoted: bool
) -> None:
    """E-X18, INV-23"""
    held = running(policy=retrying(jitter=True))
    change = attempt.fail(held, NOW, owner_of(held), Failure("boom"), JitterSource(first))
    waiting = after(change)
    if promoted:
        waiting = replace(waiting, state=Ready(Next(Start.RETRY, 1)))
    again = attempt.fail(waiting, EXPIRY, owner_of(held), Failure("again"), JitterSource(second))
    assert (again.outcome, again.after) == (change.outcome, None)


def test_a_retry_that_runs_is_not_failed_by_the_attempt_before() -> None:
    """E-X05"""
    held = running(policy=retrying(delay_ms=0))
    ready = after(attempt.fail(held, NOW, owner_of(held), Failure("boom")))
    taken = running(ready)
    for rule in rules(taken, owner_of(held)):
        with pytest.raises(StaleLease):
            rule()


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        ({}, Outcome.EXPIRED),
        (retrying(0), Outcome.EXPIRED),
        (retrying(1), None),
    ],
)
def test_a_timeout_is_a_failure_and_an_expiry_when_it_is_the_last(
    policy: dict[str, Any], outcome: Outcome | None
) -> None:
    """D-18"""
    held = running(policy=policy)
    change = attempt.time_out(held, NOW, lease_of(held), 0.0)
    if outcome is None:
        assert isinstance(change.outcome, RetryScheduled)
        [record] = change.attempts
        assert record.failure == Failure("attempt_timeout", "timeout")
    else:
        assert state_of(after(change)).outcome is outcome
        assert after(change).life.failure == Failure("attempt_timeout", "timeout")
        assert [event.kind for event in change.events] == [EventKind.EXPIRED]


# -- delay, hand back


@given(st.integers(-TTL, TTL))
def test_a_delay_waits_only_for_what_is_to_come(millis: int) -> None:
    """§3.16"""
    held, until = running(), Millis(NOW + millis)
    change = attempt.delay(held, NOW, owner_of(held), until)
    next = Next(Start.CONTINUE, 0)
    if millis > 0:
        assert after(change).state == Waiting(Gate.WORKER_DELAY, next, until)
        assert change.outcome == Delayed(held.execution.id, PublicState.DELAYED)
    else:
        assert after(change).state == Ready(next)
        assert change.outcome == Delayed(held.execution.id, PublicState.WAITING)


def test_a_pause_keeps_what_the_attempt_was() -> None:
    """INV-10"""
    held = running()
    now = Millis(NOW + 5)
    change = attempt.hand_back(held, now, owner_of(held))
    assert after(change).life.paused == InterruptedAttempt(
        index=0,
        type=Start.INITIAL,
        worker=W1,
        epoch=1,
        started_at=NOW,
        paused_at=now,
        reason="handed_back",
    )
    assert after(change).life.released == Released(
        "handed_back", lease_of(held).id, 1, 0, now, "waiting"
    )
    again = running(after(change), Millis(NOW + 10))
    paused = after(attempt.hand_back(again, Millis(NOW + 15), owner_of(again))).life.paused
    assert paused is not None
    assert (paused.type, paused.started_at, paused.epoch) == (Start.INITIAL, NOW, 2)


@given(st.lists(st.integers(0, TTL - 1), max_size=6), st.integers(1, 4 * TTL))
def test_an_attempt_never_has_more_time_than_it_was_given(turns: list[int], timeout: int) -> None:
    """§3.9: nor less, as long as there is any"""
    held = running(policy={"timeout_policy": {"attempt_timeout_ms": timeout}})
    now, used = NOW, 0
    for turn in turns:
        now, used = Millis(now + turn), used + turn
        handed_back = after(attempt.hand_back(held, now, owner_of(held)))
        now = Millis(now + 12_345)
        held = running(handed_back, now)
        left = lease_of(held).times_out_at
        assert left is not None
        assert left - now == max(1, timeout - used)
        used = min(used, timeout - 1)


def test_a_pause_repeated_by_the_same_fence_changes_nothing() -> None:
    """INV-23: but only a repeat of the same thing"""
    held = running()
    paused = after(attempt.delay(held, NOW, owner_of(held), EXPIRY))
    again = attempt.delay(paused, EXPIRY, owner_of(held), Millis(EXPIRY + 1))
    assert again.after is None
    assert again.outcome == Delayed(held.execution.id, PublicState.DELAYED)
    with pytest.raises(NotActive):
        attempt.hand_back(paused, NOW, owner_of(held))
    with pytest.raises(NotActive):
        attempt.delay(paused, NOW, STRANGER, EXPIRY)


def test_a_step_is_written_only_by_the_change_that_parks() -> None:
    held = running()
    assert attempt.delay(held, NOW, owner_of(held), EXPIRY, step=STEP).steps == (STEP,)
    late = attempt.delay(held, EXPIRY, owner_of(held), EXPIRY, step=STEP)
    assert isinstance(late.outcome, LeaseExpired)
    assert late.steps == ()
    paused = after(attempt.delay(held, NOW, owner_of(held), EXPIRY))
    assert attempt.delay(paused, NOW, owner_of(held), EXPIRY, step=STEP).steps == ()


# -- what moves with the state


@pytest.mark.parametrize("number", range(4))
def test_every_operation_that_moves_the_state_on_records_the_lost_attempt(number: int) -> None:
    """INV-9: unless the ending still carries it"""
    held = running(policy=retrying())
    lost = after(lease.lose(held, EXPIRY, lease_of(held), revoked=False))
    assert not isinstance(lost.state, Ended)
    rescued = running(lost, Millis(EXPIRY + 7))
    change = rules(rescued, owner_of(rescued), Millis(EXPIRY + 9))[number]()
    if isinstance(after(change).state, Ended):
        assert change.attempts == ()
        assert after(change).life.lapsed is not None
        return
    record = change.attempts[0]
    assert (record.index, record.outcome, record.ended_at) == (
        0,
        "interrupted_reclaimed",
        EXPIRY + 7,
    )
    assert after(change).life.lapsed is None


def test_a_lease_taken_again_by_the_same_call_is_another_lease() -> None:
    """INV-2: the epoch tells them apart even if their ids do not"""
    held = running()
    ready = after(attempt.hand_back(held, NOW, owner_of(held)))
    assert isinstance(ready.state, Ready)
    taking = Taking(lease_of(held).id, W1, TTL)
    again = after(lease.take(ready, NOW, ready.state.next, taking))
    for rule in rules(again, owner_of(held)):
        with pytest.raises(StaleLease):
            rule()
