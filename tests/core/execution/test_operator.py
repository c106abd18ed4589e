"""What ends an execution from outside, what time makes due, and any sequence of operations.

E-T160 to E-T172, E-T190, E-T191, INV-2 to INV-11, INV-28, INV-29.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.base.errors import (
    FenceRequired,
    FlowFabricError,
    LeaseExpired,
    LeaseRevoked,
    NotActive,
    NotEligible,
    NotFound,
    PartialFence,
    StaleLease,
)
from flowfabric.core.base.time import NO_TIME, Millis
from flowfabric.core.execution import attempt, lease, operator
from flowfabric.core.execution.attempt import RetryScheduled
from flowfabric.core.execution.attempts import inline_attempts
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import AlreadySatisfied, MarkedExpired, Owner, Taking, fence_of
from flowfabric.core.execution.model import (
    Active,
    AttemptOutcome,
    Ended,
    Failure,
    Fence,
    Lost,
    Outcome,
    Ready,
    Snapshot,
    Source,
    Suspended,
)
from flowfabric.core.execution.operator import Cancelled, Expired
from flowfabric.core.execution.status import vector
from flowfabric.core.wait import resume
from tests.kit.lab import TTL, W2
from tests.kit.situations import RETRY, is_legal, suspension
from tests.kit.snapshots import (
    CANCELLED,
    ENDED,
    HOLDER,
    LATER,
    LEASE,
    LIVING,
    NEVER_RUN,
    NOW,
    OPERATOR,
    READY,
    UNFENCED,
    after,
    check_ending,
    completed,
    fresh,
    lease_of,
    living,
    lost,
    owner_of,
    running,
    suspended,
    told,
)

# -- cancel


@pytest.mark.parametrize("name", LIVING)
@pytest.mark.parametrize("source", UNFENCED)
def test_a_source_without_a_fence_cancels_in_any_living_state(name: str, source: Source) -> None:
    """E-T160, E-T161, E-T162, E-X11"""
    before = LIVING[name]
    change = operator.cancel(before, LATER, Owner(source=source), "enough")
    end = check_ending(change, Outcome.CANCELLED)
    assert change.outcome == Cancelled(before.execution.id)
    assert (end.life.cancel_reason, end.life.cancelled_by) == ("enough", source.value)
    assert end.head.epoch == before.head.epoch
    assert end.head.version == before.head.version + 1
    assert end.attempts_made == before.attempts_made
    released = [event for event in told(change) if event.lease == "released"]
    assert len(released) == (name == "running")


@pytest.mark.parametrize("name", LIVING)
def test_a_cancelled_execution_ends_the_attempt_in_hand_and_no_other(name: str) -> None:
    """S16 and S17: what was pending stays pending, what had begun is over."""
    before = LIVING[name]
    end = after(operator.cancel(before, LATER, OPERATOR, "enough"))
    assert isinstance(end.state, Ended)
    if before.current_attempt is None:
        assert end.state.pending is not None
        assert vector(end).attempt == vector(before).attempt
    else:
        assert end.state.pending is None
        assert end.state.attempt == before.current_attempt
        assert vector(end).attempt == "attempt_terminal"
        last = inline_attempts(end)[-1]
        assert (last.index, last.outcome) == (before.current_attempt, AttemptOutcome.CANCELLED)
        assert last.ended_at == LATER


@pytest.mark.parametrize("name", ENDED)
def test_an_ended_execution_is_cancelled_already_or_never(name: str) -> None:
    """E-T167, E-T168, INV-4"""
    before = ENDED[name]
    if name in CANCELLED:
        again = operator.cancel(before, LATER, OPERATOR, "again")
        assert again.outcome == Cancelled(before.execution.id)
        assert again.after is None
        assert again.events == ()
        return
    with pytest.raises(NotActive) as caught:
        operator.cancel(before, LATER, HOLDER, "late")
    error = caught.value
    assert (error.phase, error.outcome) == ("terminal", vector(before).outcome)
    assert (error.epoch, error.attempt_id) == (before.head.epoch, before.attempt_id)


def test_what_does_not_exist_cannot_be_steered() -> None:
    """E-T170"""
    rules: list[Callable[[], object]] = [
        lambda: operator.cancel(None, NOW, OPERATOR, "r"),
        lambda: operator.cancel_owned(None, NOW, HOLDER, "r"),
        lambda: operator.change_priority(None, NOW, 1),
        lambda: operator.replay(None, NOW),
        lambda: operator.block(None, NOW, "nonsense"),
        lambda: operator.unblock(None, NOW),
        lambda: resume.resume(None, NOW),
    ]
    for rule in rules:
        with pytest.raises(NotFound) as caught:
            rule()
        assert caught.value.entity == "execution"


def test_an_owner_cancels_with_its_whole_fence_and_nothing_less() -> None:
    """E-T169: the fence first, then the revocation, then the comparison."""
    held = running()
    fence = fence_of(held, lease_of(held))
    with pytest.raises(FenceRequired):
        operator.cancel(held, NOW, HOLDER, "r")
    with pytest.raises(FenceRequired):
        operator.cancel(held, NOW, Owner(source="custom"), "r")
    with pytest.raises(PartialFence):
        operator.cancel(held, NOW, Owner(lease_id=fence.lease_id), "r")
    for stale in (
        Fence(UUID(int=9), fence.epoch, fence.attempt_id),
        Fence(fence.lease_id, fence.epoch - 1, fence.attempt_id),
        Fence(fence.lease_id, fence.epoch, UUID(int=9)),
    ):
        with pytest.raises(StaleLease):
            operator.cancel(held, NOW, Owner.of(stale), "r")
    check_ending(operator.cancel(held, NOW, Owner.of(fence), "r"), Outcome.CANCELLED)


def test_an_owner_whose_lease_is_gone_cannot_cancel() -> None:
    """Being lost is still being active: without a fence nothing, with one too late."""
    held = running()
    fence = owner_of(held)
    for gone in (lost(revoked=False), lost(revoked=True)):
        with pytest.raises(FenceRequired):
            operator.cancel(gone, NOW, HOLDER, "r")
    with pytest.raises(LeaseRevoked) as caught:
        operator.cancel(lost(revoked=True), NOW, fence, "r")
    assert caught.value.detail == "maintenance"
    with pytest.raises(StaleLease):
        operator.cancel(lost(revoked=False), NOW, fence, "r")


@pytest.mark.parametrize("name", ["waiting", "delayed", "blocked", "suspended", "backing_off"])
def test_without_an_owner_only_an_old_fence_is_refused(name: str) -> None:
    """INV-3"""
    before = LIVING[name]
    check_ending(operator.cancel(before, NOW, HOLDER, "r"), Outcome.CANCELLED)
    with pytest.raises(StaleLease):
        operator.cancel(before, NOW, Owner(LEASE, 1, UUID(int=3)), "r")


def test_a_worker_cancels_through_the_gate_of_every_owner() -> None:
    """§3.18: an expired lease is marked as lost although the caller gets an error."""
    held = running()
    change = operator.cancel_owned(held, NOW, owner_of(held), "mine")
    end = check_ending(change, Outcome.CANCELLED)
    assert end.life.cancelled_by == "lease_holder"
    repeated = operator.cancel_owned(end, NOW, owner_of(held), "mine")
    assert repeated.after is None
    assert repeated.outcome == Cancelled(held.execution.id)
    late = operator.cancel_owned(held, Millis(NOW + TTL), owner_of(held), "late")
    assert isinstance(late.outcome, LeaseExpired)
    assert isinstance(after(late).state, Lost)
    with pytest.raises(NotActive):
        operator.cancel_owned(completed(), NOW, owner_of(held), "late")
    with pytest.raises(FenceRequired):
        operator.cancel_owned(held, NOW, HOLDER, "r")


# -- deadlines and attempts that run too long


@pytest.mark.parametrize("name", LIVING)
def test_a_deadline_ends_any_living_state(name: str) -> None:
    """E-T190, E-T191, FLAW-9"""
    policy = {**RETRY, "timeout_policy": {"execution_deadline_ms": 10_000}}
    before = living(policy=policy)[name]
    change = operator.expire(before, LATER)
    end = check_ending(change, Outcome.EXPIRED)
    assert change.outcome == Expired(before.execution.id)
    assert end.life.failure == Failure("execution_deadline", "timeout")
    assert told(change)[0].reason == "expired:execution_deadline"
    released = [event for event in told(change) if event.lease == "released"]
    assert len(released) == (name == "running")
    if name in NEVER_RUN:
        assert vector(end).attempt == "pending_first_attempt"


@pytest.mark.parametrize("name", LIVING)
def test_before_its_deadline_nothing_expires(name: str) -> None:
    """A stale timer changes nothing."""
    before = living(deadline_at=LATER)[name]
    change = operator.expire(before, Millis(LATER - 1))
    assert change.outcome == AlreadySatisfied("not_yet_due")
    assert change.after is None
    assert operator.expire(LIVING[name], Millis(NOW + 10**12)).after is None


@pytest.mark.parametrize("name", [*ENDED, "missing"])
def test_what_has_ended_or_never_was_does_not_expire(name: str) -> None:
    for change in (
        operator.expire(ENDED.get(name), Millis(NOW + 10**12)),
        operator.due(ENDED.get(name), Millis(NOW + 10**12), 0.0, NO_TIME, UUID(int=7)),
    ):
        assert change.outcome == AlreadySatisfied("already_terminal")
        assert change.after is None


def test_an_attempt_that_runs_too_long_is_retried_while_the_policy_allows() -> None:
    """D-18: a failure of category timeout."""
    policy = {**RETRY, "timeout_policy": {"attempt_timeout_ms": 500}}
    held = running(policy=policy)
    late = Millis(NOW + 500)
    assert operator.expire(held, Millis(late - 1)).after is None
    change = operator.expire(held, late)
    retry = after(change)
    assert change.outcome == RetryScheduled(held.execution.id, Millis(late + 10_000), 1)
    assert [event.completion for event in told(change)] == [None]
    assert vector(retry).attempt == "pending_retry_attempt"
    assert change.attempts[-1].failure == Failure("attempt_timeout", "timeout")


def test_an_attempt_that_runs_too_long_expires_the_execution_when_it_was_the_last() -> None:
    """E-T190"""
    held = running(policy={"timeout_policy": {"attempt_timeout_ms": 500}})
    change = operator.expire(held, Millis(NOW + 500))
    end = check_ending(change, Outcome.EXPIRED)
    assert change.outcome == Expired(held.execution.id)
    assert end.life.failure == Failure("attempt_timeout", "timeout")
    assert told(change)[0].reason == "expired:attempt_timeout"
    assert inline_attempts(end)[0].outcome is AttemptOutcome.FAILURE


def test_a_deadline_comes_before_an_attempt_timeout() -> None:
    policy = {**RETRY, "timeout_policy": {"attempt_timeout_ms": 500}}
    held = running(policy=policy, deadline_at=Millis(NOW + 400))
    end = check_ending(operator.expire(held, Millis(NOW + 500)), Outcome.EXPIRED)
    assert end.life.failure == Failure("execution_deadline", "timeout")


# -- what is due


DUE = {
    "delayed": READY,
    "resume_delayed": READY,
    "worker_delayed": READY,
    "backing_off": READY,
    "running": {"lost"},
}


@pytest.mark.parametrize("name", LIVING)
def test_only_a_timer_that_has_come_does_anything(name: str) -> None:
    """INV-18, E-X10"""
    before = LIVING[name]
    early = operator.due(before, Millis(NOW + 9_999), 0.0, NO_TIME, UUID(int=7))
    assert early.after is None
    late = Millis(NOW + TTL)
    change = operator.due(before, late, 0.0, NO_TIME, UUID(int=7))
    if name not in DUE:
        assert change.after is None
        return
    freed = after(change)
    assert is_legal(vector(freed))
    if name == "running":
        assert isinstance(freed.state, Lost)
        assert change.outcome == MarkedExpired(before.execution.id)
        return
    assert isinstance(freed.state, Ready)
    assert vector(freed).attempt == vector(before).attempt
    assert freed.life.not_before is None
    assert change.events == ()


def test_a_grace_period_keeps_a_lost_execution_from_every_worker() -> None:
    gone = after(operator.due(running(), Millis(NOW + TTL), 0.0, Millis(700), UUID(int=7)))
    assert isinstance(gone.state, Lost)
    assert gone.state.hold is not None
    assert (gone.state.hold.until, gone.state.hold.worker) == (NOW + TTL + 700, None)


def test_a_delay_that_has_passed_asks_the_other_gates_again() -> None:
    """A block is stronger than a delay, and neither is forgotten."""
    held = running()
    delayed = after(attempt.delay(held, NOW, owner_of(held), LATER))
    stuck = delayed.to(delayed.state, life=_blocked(delayed))
    freed = after(operator.due(stuck, LATER, 0.0, NO_TIME, UUID(int=7)))
    assert vector(freed).blocking == "waiting_for_quota"


def _blocked(snapshot: Snapshot) -> Any:
    ready = after(resume.resume(suspended(), NOW))
    life = after(operator.block(ready, NOW, "waiting_for_quota")).life
    return type(life)(blocked=life.blocked, not_before=LATER, paused=snapshot.life.paused)


# -- any sequence of them

_Act = Callable[[Snapshot, Millis], Change[Any]]


def _own(rule: Callable[[Snapshot, Millis, Owner], Change[Any]]) -> _Act:
    def act(snapshot: Snapshot, now: Millis) -> Change[Any]:
        held = isinstance(snapshot.state, Active)
        return rule(snapshot, now, owner_of(snapshot) if held else Owner(LEASE, 0, LEASE))

    return act


def _take(snapshot: Snapshot, now: Millis) -> Change[Any]:
    if not isinstance(snapshot.state, Ready | Lost):
        raise NotEligible
    return lease.take(snapshot, now, snapshot.state.next, Taking(LEASE, W2, TTL))


def _suspend(snapshot: Snapshot, now: Millis) -> Change[Any]:
    if not isinstance(snapshot.state, Active):
        raise NotEligible
    return suspension(snapshot, now)


ACTS: dict[str, _Act] = {
    "take": _take,
    "suspend": _suspend,
    "complete": _own(attempt.complete),
    "fail": _own(lambda held, now, who: attempt.fail(held, now, who, Failure("boom"))),
    "delay": _own(lambda held, now, who: attempt.delay(held, now, who, Millis(now + 50))),
    "hand back": _own(attempt.hand_back),
    "revoke": lambda held, now: lease.revoke(held, now, reason="r"),
    "cancel": lambda held, now: operator.cancel(held, now, OPERATOR, "r"),
    "block": lambda held, now: operator.block(held, now, "waiting_for_budget"),
    "unblock": operator.unblock,
    "resume": resume.resume,
    "resume later": lambda held, now: resume.resume(held, now, Millis(50)),
    "priority": lambda held, now: operator.change_priority(held, now, 3),
    "replay": operator.replay,
    "due": lambda held, now: operator.due(held, now, 0.5, NO_TIME, UUID(int=7)),
}
POLICY: dict[str, Any] = {
    "retry_policy": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 40}},
    "timeout_policy": {"attempt_timeout_ms": 20_000, "execution_deadline_ms": 100_000},
    "max_replay_count": 2,
    "max_reclaim_count": 2,
}


@given(st.lists(st.tuples(st.sampled_from(sorted(ACTS)), st.sampled_from([0, 60, TTL]))))
def test_no_sequence_of_operations_breaks_an_invariant(steps: list[tuple[str, int]]) -> None:
    """INV-2, INV-4, INV-5, INV-6, INV-7, INV-9, INV-11, INV-28, INV-29, E-X28"""
    now, state = NOW, fresh(policy=POLICY)
    history: dict[int, AttemptOutcome] = {}
    for name, pause in steps:
        now = Millis(now + pause)
        try:
            change = ACTS[name](state, now)
        except FlowFabricError:
            continue
        if change.after is None:
            assert change.events == ()
            continue
        check_step(state, change)
        state = change.after
        history |= {record.index: record.outcome for record in change.attempts}
        known = history | {record.index: record.outcome for record in inline_attempts(state)}
        assert sorted(known) == list(range(state.attempts_made))
        assert sum(not outcome.final for outcome in known.values()) <= 1


def check_step(before: Snapshot, change: Change[Any]) -> None:
    now = after(change)
    assert is_legal(vector(now))
    assert now.head.version == before.head.version + 1
    assert now.head.epoch == before.head.epoch + isinstance(now.state, Active)
    assert before.started_at in (None, now.started_at)
    assert now.life.retries <= 2
    assert now.life.replays <= 2
    endings = [event.completion for event in told(change) if event.completion is not None]
    if isinstance(now.state, Ended):
        assert endings == [now.state.outcome]
    else:
        assert endings == []
    if isinstance(before.state, Ended):
        assert change.events[0].kind is EventKind.REPLAYED
    if isinstance(now.state, Suspended):
        assert isinstance(before.state, Active)
