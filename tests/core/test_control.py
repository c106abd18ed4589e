"""What outsiders may do with an execution, state by state. INV-4 to INV-7, E-T160 to E-T201."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core import attempt, control, grant, lease
from flowfabric.core.attempt import RetryScheduled
from flowfabric.core.change import Change
from flowfabric.core.control import Cancelled, Expired, Replayed, Resumed
from flowfabric.core.errors import (
    FenceRequired,
    FlowFabricError,
    InvalidBlockingReason,
    LeaseExpired,
    LeaseRevoked,
    MaxReplays,
    NotActive,
    NotEligible,
    NotFound,
    NotSuspended,
    NotTerminal,
    PartialFence,
    StaleLease,
)
from flowfabric.core.event import EventKind, StoredEvent
from flowfabric.core.execution import (
    MAX_PRIORITY,
    Active,
    AttemptOutcome,
    Ended,
    Failure,
    Fence,
    Flags,
    Gate,
    Lease,
    Lost,
    Outcome,
    Ready,
    Snapshot,
    Source,
    Start,
    Suspended,
    Waiting,
    rank_of,
)
from flowfabric.core.history import inline_attempts
from flowfabric.core.ids import new_uuid7
from flowfabric.core.lease import AlreadySatisfied, MarkedExpired, Owner, Taking, fence_of
from flowfabric.core.submission import Submission, create
from flowfabric.core.time import NO_TIME, Millis
from flowfabric.core.vector import ADMISSION_BLOCKS, PublicState, blocking_detail, vector
from tests.lab import TTL, W1, W2
from tests.situations import RETRY, RETRY_AT_ONCE, is_legal, suspension

NOW = Millis(1_700_000_000_000)
LATER = Millis(NOW + 10_000)
LEASE = UUID(int=1)
OPERATOR = Owner(source=Source.OPERATOR)
HOLDER = Owner(source=Source.LEASE_HOLDER)
UNFENCED = [Source.OPERATOR, Source.FLOW_CASCADE, Source.SYSTEM_TIMEOUT]


def fresh(**members: Any) -> Snapshot:
    submission = Submission(kind="job", **members)
    return create(submission, new_uuid7(NOW, 1), NOW).snapshot


def after(change: Change[Any]) -> Snapshot:
    assert change.after is not None
    return change.after


def running(snapshot: Snapshot | None = None, at: Millis = NOW, **members: Any) -> Snapshot:
    found = snapshot or fresh(**members)
    assert isinstance(found.state, Ready | Lost)
    return after(lease.take(found, found.state.next, Taking(LEASE, W1, TTL), at))


def lease_in(snapshot: Snapshot) -> Lease:
    assert isinstance(snapshot.state, Active)
    return snapshot.state.lease


def owner(snapshot: Snapshot) -> Owner:
    return Owner.of(fence_of(snapshot, lease_in(snapshot)))


def failing(**members: Any) -> Snapshot:
    held = running(**members)
    return after(attempt.fail(held, owner(held), NOW, Failure("boom")))


def lost(*, revoked: bool, **members: Any) -> Snapshot:
    held = running(**members)
    return after(lease.lose(held, lease_in(held), NOW, revoked=revoked, reason="maintenance"))


def suspended(**members: Any) -> Snapshot:
    return after(suspension(running(**members), NOW))


def completed(**members: Any) -> Snapshot:
    held = running(**members)
    return after(attempt.complete(held, owner(held), NOW, b"result"))


def at_gate(gate: Gate, snapshot: Snapshot) -> Snapshot:
    assert isinstance(snapshot.state, Ready)
    return snapshot.to(Waiting(gate, snapshot.state.next))


def living(**members: Any) -> dict[str, Snapshot]:
    held = running(**members)
    return {
        "waiting": fresh(**members),
        "delayed": fresh(delay_until=LATER, **members),
        "depending": at_gate(Gate.DEPENDENCIES, fresh(**members)),
        "limited": at_gate(Gate.LIMIT, fresh(**members)),
        "blocked": after(control.block(fresh(**members), NOW, "paused_by_operator", "why")),
        "running": held,
        "lost": lost(revoked=False, **members),
        "revoked": lost(revoked=True, **members),
        "suspended": suspended(**members),
        "resumed": after(control.resume(suspended(**members), NOW)),
        "resume_delayed": after(control.resume(suspended(**members), NOW, Millis(10_000))),
        "worker_delayed": after(attempt.delay(held, owner(held), NOW, LATER)),
        "backing_off": failing(**{"policy": RETRY, **members}),
        "retry_ready": failing(**{"policy": RETRY_AT_ONCE, **members}),
        "replay_ready": after(control.replay(completed(**members), NOW)),
    }


def ended() -> dict[str, Snapshot]:
    late = Millis(NOW + 5)
    return {
        "completed": completed(),
        "failed": failing(),
        "cancelled": after(control.cancel(running(), OPERATOR, NOW, "enough")),
        "cancelled_unrun": after(control.cancel(fresh(), OPERATOR, NOW, "enough")),
        "expired": after(control.expire(running(deadline_at=late), late)),
        "expired_unrun": after(control.expire(fresh(deadline_at=late), late)),
        "skipped": fresh().to(Ended(Outcome.SKIPPED, NOW, pending=Start.INITIAL)),
    }


LIVING = living()
ENDED = ended()
ALL = {**LIVING, **ENDED}
CANCELLED = {"cancelled", "cancelled_unrun"}
READY = {"waiting", "resumed", "retry_ready", "replay_ready"}
NEVER_RUN = {"waiting", "delayed", "depending", "limited", "blocked"}


def told(change: Change[Any]) -> list[StoredEvent]:
    """The events of a change as readers see them."""
    assert change.before is not None
    execution = change.before.execution
    return [
        StoredEvent(
            seq=index,
            id=execution.id,
            namespace=execution.route.namespace,
            lane=execution.route.lane,
            at=event.at,
            kind=event.kind,
            epoch=event.epoch,
            attempt=event.attempt,
            worker=event.worker,
            detail=event.detail,
        )
        for index, event in enumerate(change.events)
    ]


def check_ending(change: Change[Any], outcome: Outcome) -> Snapshot:
    """INV-5: one completion event, of the very outcome that is stored; INV-6, INV-7."""
    end = after(change)
    assert isinstance(end.state, Ended)
    assert end.state.outcome is outcome
    assert [event.completion for event in told(change)] == [outcome]
    assert is_legal(vector(end))
    assert change.deadline is None
    return end


# -- cancel


@pytest.mark.parametrize("name", LIVING)
@pytest.mark.parametrize("source", UNFENCED)
def test_whoever_needs_no_fence_cancels_in_any_living_state(name: str, source: Source) -> None:
    """E-T160, E-T161, E-T162, E-X11"""
    before = LIVING[name]
    change = control.cancel(before, Owner(source=source), LATER, "enough")
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
    end = after(control.cancel(before, OPERATOR, LATER, "enough"))
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
        again = control.cancel(before, OPERATOR, LATER, "again")
        assert again.outcome == Cancelled(before.execution.id)
        assert again.after is None
        assert again.events == ()
        return
    with pytest.raises(NotActive) as caught:
        control.cancel(before, HOLDER, LATER, "late")
    error = caught.value
    assert (error.phase, error.outcome) == ("terminal", vector(before).outcome)
    assert (error.epoch, error.attempt_id) == (before.head.epoch, before.attempt_id)


def test_what_does_not_exist_cannot_be_steered() -> None:
    """E-T170"""
    rules: list[Callable[[], object]] = [
        lambda: control.cancel(None, OPERATOR, NOW, "r"),
        lambda: control.cancel_owned(None, HOLDER, NOW, "r"),
        lambda: control.change_priority(None, NOW, 1),
        lambda: control.replay(None, NOW),
        lambda: control.block(None, NOW, "nonsense"),
        lambda: control.unblock(None, NOW),
        lambda: control.resume(None, NOW),
    ]
    for rule in rules:
        with pytest.raises(NotFound) as caught:
            rule()
        assert caught.value.entity == "execution"


def test_an_owner_cancels_with_its_whole_fence_and_nothing_less() -> None:
    """E-T169: the fence first, then the revocation, then the comparison."""
    held = running()
    fence = fence_of(held, lease_in(held))
    with pytest.raises(FenceRequired):
        control.cancel(held, HOLDER, NOW, "r")
    with pytest.raises(FenceRequired):
        control.cancel(held, Owner(source="custom"), NOW, "r")
    with pytest.raises(PartialFence):
        control.cancel(held, Owner(lease_id=fence.lease_id), NOW, "r")
    for stale in (
        Fence(UUID(int=9), fence.epoch, fence.attempt_id),
        Fence(fence.lease_id, fence.epoch - 1, fence.attempt_id),
        Fence(fence.lease_id, fence.epoch, UUID(int=9)),
    ):
        with pytest.raises(StaleLease):
            control.cancel(held, Owner.of(stale), NOW, "r")
    check_ending(control.cancel(held, Owner.of(fence), NOW, "r"), Outcome.CANCELLED)


def test_an_owner_whose_lease_is_gone_cannot_cancel() -> None:
    """Being lost is still being active: without a fence nothing, with one too late."""
    held = running()
    fence = owner(held)
    for gone in (lost(revoked=False), lost(revoked=True)):
        with pytest.raises(FenceRequired):
            control.cancel(gone, HOLDER, NOW, "r")
    with pytest.raises(LeaseRevoked) as caught:
        control.cancel(lost(revoked=True), fence, NOW, "r")
    assert caught.value.detail == "maintenance"
    with pytest.raises(StaleLease):
        control.cancel(lost(revoked=False), fence, NOW, "r")


@pytest.mark.parametrize("name", ["waiting", "delayed", "blocked", "suspended", "backing_off"])
def test_nobody_owns_what_does_not_run_so_only_an_old_fence_is_refused(name: str) -> None:
    """INV-3"""
    before = LIVING[name]
    check_ending(control.cancel(before, HOLDER, NOW, "r"), Outcome.CANCELLED)
    with pytest.raises(StaleLease):
        control.cancel(before, Owner(LEASE, 1, UUID(int=3)), NOW, "r")


def test_a_worker_cancels_through_the_gate_of_every_owner() -> None:
    """§3.18: an expired lease is marked as lost although the caller gets an error."""
    held = running()
    change = control.cancel_owned(held, owner(held), NOW, "mine")
    end = check_ending(change, Outcome.CANCELLED)
    assert end.life.cancelled_by == "lease_holder"
    repeated = control.cancel_owned(end, owner(held), NOW, "mine")
    assert repeated.after is None
    assert repeated.outcome == Cancelled(held.execution.id)
    late = control.cancel_owned(held, owner(held), Millis(NOW + TTL), "late")
    assert isinstance(late.outcome, LeaseExpired)
    assert isinstance(after(late).state, Lost)
    with pytest.raises(NotActive):
        control.cancel_owned(completed(), owner(held), NOW, "late")
    with pytest.raises(FenceRequired):
        control.cancel_owned(held, HOLDER, NOW, "r")


# -- deadlines and attempts that run too long


@pytest.mark.parametrize("name", LIVING)
def test_a_deadline_ends_any_living_state(name: str) -> None:
    """E-T190, E-T191, FLAW-9"""
    policy = {**RETRY, "timeout_policy": {"execution_deadline_ms": 10_000}}
    before = living(policy=policy)[name]
    change = control.expire(before, LATER)
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
    change = control.expire(before, Millis(LATER - 1))
    assert change.outcome == AlreadySatisfied("not_yet_due")
    assert change.after is None
    assert control.expire(LIVING[name], Millis(NOW + 10**12)).after is None


@pytest.mark.parametrize("name", [*ENDED, "missing"])
def test_what_has_ended_or_never_was_does_not_expire(name: str) -> None:
    for change in (
        control.expire(ENDED.get(name), Millis(NOW + 10**12)),
        control.due(ENDED.get(name), Millis(NOW + 10**12), 0.0, NO_TIME),
    ):
        assert change.outcome == AlreadySatisfied("already_terminal")
        assert change.after is None


def test_an_attempt_that_runs_too_long_is_retried_while_the_policy_allows() -> None:
    """D-18: a failure of category timeout."""
    policy = {**RETRY, "timeout_policy": {"attempt_timeout_ms": 500}}
    held = running(policy=policy)
    late = Millis(NOW + 500)
    assert control.expire(held, Millis(late - 1)).after is None
    change = control.expire(held, late)
    retry = after(change)
    assert change.outcome == RetryScheduled(held.execution.id, Millis(late + 10_000), 1)
    assert [event.completion for event in told(change)] == [None]
    assert vector(retry).attempt == "pending_retry_attempt"
    assert change.attempts[-1].failure == Failure("attempt_timeout", "timeout")


def test_an_attempt_that_runs_too_long_expires_the_execution_when_it_was_the_last() -> None:
    """E-T190"""
    held = running(policy={"timeout_policy": {"attempt_timeout_ms": 500}})
    change = control.expire(held, Millis(NOW + 500))
    end = check_ending(change, Outcome.EXPIRED)
    assert change.outcome == Expired(held.execution.id)
    assert end.life.failure == Failure("attempt_timeout", "timeout")
    assert told(change)[0].reason == "expired:attempt_timeout"
    assert inline_attempts(end)[0].outcome is AttemptOutcome.FAILURE


def test_a_deadline_comes_before_an_attempt_timeout() -> None:
    policy = {**RETRY, "timeout_policy": {"attempt_timeout_ms": 500}}
    held = running(policy=policy, deadline_at=Millis(NOW + 400))
    end = check_ending(control.expire(held, Millis(NOW + 500)), Outcome.EXPIRED)
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
    early = control.due(before, Millis(NOW + 9_999), 0.0, NO_TIME)
    assert early.after is None
    late = Millis(NOW + TTL)
    change = control.due(before, late, 0.0, NO_TIME)
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


def test_a_grace_period_keeps_a_lost_execution_from_everybody() -> None:
    gone = after(control.due(running(), Millis(NOW + TTL), 0.0, Millis(700)))
    assert isinstance(gone.state, Lost)
    assert gone.state.hold is not None
    assert (gone.state.hold.until, gone.state.hold.worker) == (NOW + TTL + 700, None)


def test_a_delay_that_has_passed_asks_the_other_gates_again() -> None:
    """A block is stronger than a delay, and neither is forgotten."""
    held = running()
    delayed = after(attempt.delay(held, owner(held), NOW, LATER))
    stuck = delayed.to(delayed.state, life=_blocked(delayed))
    freed = after(control.due(stuck, LATER, 0.0, NO_TIME))
    assert vector(freed).blocking == "waiting_for_quota"


def _blocked(snapshot: Snapshot) -> Any:
    ready = after(control.resume(suspended(), NOW))
    life = after(control.block(ready, NOW, "waiting_for_quota")).life
    return type(life)(blocked=life.blocked, not_before=LATER, paused=snapshot.life.paused)


# -- priority


@pytest.mark.parametrize("name", ALL)
def test_priority_changes_only_while_a_worker_is_awaited(name: str) -> None:
    """E-T181, E-T182, D-19"""
    before = ALL[name]
    if name not in READY:
        with pytest.raises(NotEligible):
            control.change_priority(before, NOW, 5)
        return
    changed = after(control.change_priority(before, NOW, 5))
    assert changed.priority == 5
    assert changed.state == before.state
    assert vector(changed) == vector(before)


@pytest.mark.parametrize("name", ALL)
def test_anywhere_means_whatever_has_not_begun_or_ended(name: str) -> None:
    before = ALL[name]
    if vector(before).phase in ("active", "terminal"):
        with pytest.raises(NotEligible):
            control.change_priority(before, NOW, 5, anywhere=True)
    else:
        assert after(control.change_priority(before, NOW, 5, anywhere=True)).priority == 5


@given(st.integers())
def test_priority_stays_within_its_range(wanted: int) -> None:
    """INV-29, E-T180"""
    before = fresh(priority=7)
    change = control.change_priority(before, NOW, wanted)
    stored = after(change).priority
    assert stored == min(max(wanted, 0), MAX_PRIORITY)
    assert after(change).head.rank == rank_of(before.execution.created_at, stored)
    assert change.outcome == control.Changed(before.execution.id, stored)
    (event,) = told(change)
    assert event.operator == "priority_changed"
    assert event.detail == {"old_priority": 7, "new_priority": stored}


# -- replay


@pytest.mark.parametrize("name", ALL)
def test_only_what_has_ended_is_replayed(name: str) -> None:
    """E-T184, E-T185, E-T188"""
    before = ALL[name]
    if name in LIVING:
        with pytest.raises(NotTerminal):
            control.replay(before, LATER)
        return
    change = control.replay(before, LATER)
    again = after(change)
    assert change.outcome == Replayed(before.execution.id, PublicState.WAITING)
    assert vector(again).attempt == "pending_replay_attempt"
    assert is_legal(vector(again))
    assert again.attempts_made == before.attempts_made
    assert (again.life.replays, again.life.retries) == (before.life.replays + 1, 0)
    assert again.head.epoch == before.head.epoch
    assert again.started_at == before.started_at
    assert (again.life.failure, again.life.cancel_reason, again.life.cancelled_by) == (None,) * 3
    assert len(change.attempts) == before.attempts_made
    (event,) = told(change)
    assert event.operator == "replayed"
    assert event.detail == {"branch": "normal", "groups_reset": 0}
    assert event.completion is None


def test_replays_are_counted_and_limited() -> None:
    """E-X23; the count is looked at only after the state"""
    policy = {"max_replay_count": 1}
    once = after(control.replay(completed(policy=policy), NOW))
    with pytest.raises(NotTerminal):
        control.replay(once, NOW)
    twice = after(control.cancel(once, OPERATOR, NOW, "r"))
    with pytest.raises(MaxReplays):
        control.replay(twice, NOW)
    with pytest.raises(MaxReplays):
        control.replay(completed(policy={"max_replay_count": 0}), NOW)


def test_a_replay_keeps_the_steps_of_a_failed_run_and_begins_anew_after_a_success() -> None:
    assert after(control.replay(ENDED["completed"], NOW)).life.generation == 1
    for name in ("failed", "cancelled", "expired"):
        assert after(control.replay(ENDED[name], NOW)).life.generation == 0


def test_a_replay_counts_a_relative_deadline_from_now_and_drops_an_absolute_one() -> None:
    """§3.22"""
    policy = {"timeout_policy": {"execution_deadline_ms": 100}}
    late = Millis(NOW + 100)
    relative = after(control.expire(fresh(policy=policy), late))
    change = control.replay(relative, LATER)
    assert after(change).deadline_at == change.deadline == LATER + 100
    absolute = after(control.expire(fresh(deadline_at=late), late))
    change = control.replay(absolute, LATER)
    assert after(change).deadline_at is change.deadline is None
    assert not after(change).head.flags & Flags.DEADLINE


def test_a_replay_starts_as_long_an_attempt_as_the_first_was() -> None:
    policy = {"timeout_policy": {"attempt_timeout_ms": 500}}
    again = after(control.replay(completed(policy=policy), LATER))
    held = running(again, LATER)
    assert (lease_in(held).attempt, lease_in(held).start) == (1, Start.REPLAY)
    assert lease_in(held).times_out_at == LATER + 500


def test_a_lost_attempt_ends_at_the_same_moment_however_late_one_looks() -> None:
    """The reclaim ended it: before, while and after its replacement runs."""
    held = running(lost(revoked=False), Millis(NOW + 50))
    seen = [inline_attempts(held)[0]]
    done = after(attempt.complete(held, owner(held), Millis(NOW + 90)))
    seen.append(inline_attempts(done)[0])
    seen.append(control.replay(done, LATER).attempts[0])
    assert [record.outcome for record in seen] == [AttemptOutcome.RECLAIMED] * 3
    assert [record.ended_at for record in seen] == [NOW + 50] * 3


# -- block and unblock


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("reason", ["waiting_for_budget", "nonsense"])
def test_a_block_is_refused_in_the_order_of_its_checks(name: str, reason: str) -> None:
    """E-T200, E-X19: ended, not eligible, unknown reason"""
    before = ALL[name]
    if name in ENDED:
        with pytest.raises(NotActive):
            control.block(before, NOW, reason)
    elif name not in READY:
        with pytest.raises(NotEligible):
            control.block(before, NOW, reason)
    elif reason == "nonsense":
        with pytest.raises(InvalidBlockingReason):
            control.block(before, NOW, reason)
    else:
        assert vector(after(control.block(before, NOW, reason))).eligibility == "blocked_by_budget"


@pytest.mark.parametrize("name", sorted(READY))
@pytest.mark.parametrize("reason", list(ADMISSION_BLOCKS))
def test_every_block_can_be_undone(name: str, reason: str) -> None:
    """E-T200, E-T201, E-X19, D-16"""
    before = LIVING[name]
    stuck = after(control.block(before, NOW, reason, "because"))
    assert is_legal(vector(stuck))
    assert vector(stuck).blocking == reason
    assert vector(stuck).eligibility == ADMISSION_BLOCKS[vector(stuck).blocking]
    limited = reason in ("waiting_for_budget", "waiting_for_quota")
    assert vector(stuck).public == (PublicState.RATE_LIMITED if limited else PublicState.WAITING)
    assert blocking_detail(stuck) == "because"
    for other in set(ADMISSION_BLOCKS) - {reason}:
        with pytest.raises(NotEligible):
            control.unblock(stuck, NOW, other)
    for expected in (None, reason):
        freed = after(control.unblock(stuck, NOW, expected))
        assert vector(freed) == vector(before)
        assert blocking_detail(freed) is None


@pytest.mark.parametrize("name", [name for name in ALL if name != "blocked"])
def test_what_is_not_blocked_cannot_be_unblocked(name: str) -> None:
    with pytest.raises(NotEligible):
        control.unblock(ALL[name], NOW)


def test_a_block_takes_a_grant_away() -> None:
    granted = after(grant.issue_grant(fresh(), grant.Grantee("w1", frozenset(), TTL), NOW))
    freed = after(control.unblock(after(control.block(granted, NOW, "paused_by_operator")), NOW))
    assert isinstance(freed.state, Ready)
    assert freed.state.hold is None


# -- resume


@pytest.mark.parametrize("name", [name for name in ALL if name != "suspended"])
def test_only_a_suspended_execution_is_resumed(name: str) -> None:
    """E-X09: nothing wakes what has ended"""
    with pytest.raises(NotSuspended):
        control.resume(ALL[name], NOW)


def test_a_resumed_execution_goes_on_with_its_attempt() -> None:
    """§3.23: S8 to S9, or to S10 for a while"""
    before = suspended()
    change = control.resume(before, NOW)
    assert change.outcome == Resumed(before.execution.id, PublicState.WAITING)
    assert change.events == ()
    assert vector(after(change)).attempt == "attempt_interrupted"
    later = control.resume(before, NOW, Millis(10_000))
    assert later.outcome == Resumed(before.execution.id, PublicState.DELAYED)
    assert vector(after(later)).blocking == "waiting_for_resume_delay"
    assert blocking_detail(after(later)) == f"resume delayed until {LATER}"
    held = running(after(change), LATER)
    assert (lease_in(held).attempt, held.head.epoch) == (0, 2)


@pytest.mark.parametrize(
    ("reason", "blocking"),
    [
        ("waiting_for_signal", "waiting_for_signal"),
        ("waiting_for_approval", "waiting_for_approval"),
        ("waiting_for_callback", "waiting_for_callback"),
        ("waiting_for_tool_result", "waiting_for_tool_result"),
        ("waiting_for_operator_review", "paused_by_operator"),
        ("manual_pause", "paused_by_operator"),
        ("paused_by_policy", "paused_by_policy"),
        ("paused_by_budget", "waiting_for_budget"),
        ("step_boundary", "waiting_for_signal"),
        ("anything else", "waiting_for_signal"),
    ],
)
def test_a_suspension_shows_its_reason(reason: str, blocking: str) -> None:
    """§2.4"""
    shape = vector(after(suspension(running(), NOW, reason)))
    assert shape.blocking == blocking
    assert is_legal(shape)


# -- any sequence of them

_Act = Callable[[Snapshot, Millis], Change[Any]]


def _own(rule: Callable[[Snapshot, Owner, Millis], Change[Any]]) -> _Act:
    def act(snapshot: Snapshot, now: Millis) -> Change[Any]:
        held = isinstance(snapshot.state, Active)
        return rule(snapshot, owner(snapshot) if held else Owner(LEASE, 0, LEASE), now)

    return act


def _take(snapshot: Snapshot, now: Millis) -> Change[Any]:
    if not isinstance(snapshot.state, Ready | Lost):
        raise NotEligible
    return lease.take(snapshot, snapshot.state.next, Taking(LEASE, W2, TTL), now)


def _suspend(snapshot: Snapshot, now: Millis) -> Change[Any]:
    if not isinstance(snapshot.state, Active):
        raise NotEligible
    return suspension(snapshot, now)


ACTS: dict[str, _Act] = {
    "take": _take,
    "suspend": _suspend,
    "complete": _own(attempt.complete),
    "fail": _own(lambda held, who, now: attempt.fail(held, who, now, Failure("boom"))),
    "delay": _own(lambda held, who, now: attempt.delay(held, who, now, Millis(now + 50))),
    "hand back": _own(attempt.hand_back),
    "revoke": lambda held, now: lease.revoke(held, now, reason="r"),
    "cancel": lambda held, now: control.cancel(held, OPERATOR, now, "r"),
    "block": lambda held, now: control.block(held, now, "waiting_for_budget"),
    "unblock": control.unblock,
    "resume": control.resume,
    "resume later": lambda held, now: control.resume(held, now, Millis(50)),
    "priority": lambda held, now: control.change_priority(held, now, 3),
    "replay": control.replay,
    "due": lambda held, now: control.due(held, now, 0.5, NO_TIME),
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
