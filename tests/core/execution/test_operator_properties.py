"""How operators steer: priority, replay, block, resume. E-T180 to E-T201, INV-4, INV-29."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.base.errors import (
    InvalidBlockingReason,
    MaxReplays,
    NotActive,
    NotEligible,
    NotSuspended,
    NotTerminal,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import attempt, grant, operator
from flowfabric.core.execution.attempts import inline_attempts
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.model import (
    MAX_PRIORITY,
    AttemptOutcome,
    Flags,
    Start,
    rank_of,
)
from flowfabric.core.execution.operator import Replayed
from flowfabric.core.execution.status import ADMISSION_BLOCKS, PublicState, blocking_detail, vector
from flowfabric.core.wait import resume
from flowfabric.core.wait.resume import Resumed
from tests.kit.lab import TTL
from tests.kit.situations import is_legal, suspension
from tests.kit.snapshots import (
    ALL,
    ENDED,
    LATER,
    LIVING,
    NOW,
    OPERATOR,
    READY,
    after,
    completed,
    fresh,
    lease_of,
    lost,
    owner_of,
    running,
    suspended,
    told,
)

# -- priority


@pytest.mark.parametrize("name", ALL)
def test_priority_changes_only_while_a_worker_is_awaited(name: str) -> None:
    """E-T181, E-T182, D-19"""
    before = ALL[name]
    if name not in READY:
        with pytest.raises(NotEligible):
            operator.change_priority(before, NOW, 5)
        return
    changed = after(operator.change_priority(before, NOW, 5))
    assert changed.priority == 5
    assert changed.state == before.state
    assert vector(changed) == vector(before)


@pytest.mark.parametrize("name", ALL)
def test_anywhere_means_whatever_has_not_begun_or_ended(name: str) -> None:
    before = ALL[name]
    if vector(before).phase in ("active", "terminal"):
        with pytest.raises(NotEligible):
            operator.change_priority(before, NOW, 5, anywhere=True)
    else:
        assert after(operator.change_priority(before, NOW, 5, anywhere=True)).priority == 5


@given(st.integers())
def test_priority_stays_within_its_range(wanted: int) -> None:
    """INV-29, E-T180"""
    before = fresh(priority=7)
    change = operator.change_priority(before, NOW, wanted)
    stored = after(change).priority
    assert stored == min(max(wanted, 0), MAX_PRIORITY)
    assert after(change).head.rank == rank_of(before.execution.created_at, stored)
    assert change.outcome == operator.Changed(before.execution.id, stored)
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
            operator.replay(before, LATER)
        return
    change = operator.replay(before, LATER)
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
    once = after(operator.replay(completed(policy=policy), NOW))
    with pytest.raises(NotTerminal):
        operator.replay(once, NOW)
    twice = after(operator.cancel(once, NOW, OPERATOR, "r"))
    with pytest.raises(MaxReplays):
        operator.replay(twice, NOW)
    with pytest.raises(MaxReplays):
        operator.replay(completed(policy={"max_replay_count": 0}), NOW)


def test_a_replay_keeps_the_steps_of_a_failed_run_and_starts_over_after_a_success() -> None:
    assert after(operator.replay(ENDED["completed"], NOW)).life.generation == 1
    for name in ("failed", "cancelled", "expired"):
        assert after(operator.replay(ENDED[name], NOW)).life.generation == 0


def test_a_replay_counts_a_relative_deadline_from_now_and_drops_an_absolute_one() -> None:
    """§3.22"""
    policy = {"timeout_policy": {"execution_deadline_ms": 100}}
    late = Millis(NOW + 100)
    relative = after(operator.expire(fresh(policy=policy), late))
    change = operator.replay(relative, LATER)
    assert after(change).deadline_at == change.alarm == LATER + 100
    absolute = after(operator.expire(fresh(deadline_at=late), late))
    change = operator.replay(absolute, LATER)
    assert after(change).deadline_at is change.alarm is None
    assert not after(change).head.flags & Flags.DEADLINE


def test_a_replay_starts_as_long_an_attempt_as_the_first_was() -> None:
    policy = {"timeout_policy": {"attempt_timeout_ms": 500}}
    again = after(operator.replay(completed(policy=policy), LATER))
    held = running(again, LATER)
    assert (lease_of(held).attempt, lease_of(held).start) == (1, Start.REPLAY)
    assert lease_of(held).times_out_at == LATER + 500


def test_a_lost_attempt_ends_at_the_same_moment_however_late_one_looks() -> None:
    """The reclaim ended it: before, while and after its replacement runs."""
    held = running(lost(revoked=False), Millis(NOW + 50))
    seen = [inline_attempts(held)[0]]
    done = after(attempt.complete(held, Millis(NOW + 90), owner_of(held)))
    seen.append(inline_attempts(done)[0])
    seen.append(operator.replay(done, LATER).attempts[0])
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
            operator.block(before, NOW, reason)
    elif name not in READY:
        with pytest.raises(NotEligible):
            operator.block(before, NOW, reason)
    elif reason == "nonsense":
        with pytest.raises(InvalidBlockingReason):
            operator.block(before, NOW, reason)
    else:
        assert vector(after(operator.block(before, NOW, reason))).eligibility == "blocked_by_budget"


@pytest.mark.parametrize("name", sorted(READY))
@pytest.mark.parametrize("reason", list(ADMISSION_BLOCKS))
def test_every_block_can_be_undone(name: str, reason: str) -> None:
    """E-T200, E-T201, E-X19, D-16"""
    before = LIVING[name]
    stuck = after(operator.block(before, NOW, reason, "because"))
    assert is_legal(vector(stuck))
    assert vector(stuck).blocking == reason
    assert vector(stuck).eligibility == ADMISSION_BLOCKS[vector(stuck).blocking]
    limited = reason in ("waiting_for_budget", "waiting_for_quota")
    assert vector(stuck).public == (PublicState.RATE_LIMITED if limited else PublicState.WAITING)
    assert blocking_detail(stuck) == "because"
    for other in set(ADMISSION_BLOCKS) - {reason}:
        with pytest.raises(NotEligible):
            operator.unblock(stuck, NOW, other)
    for expected in (None, reason):
        freed = after(operator.unblock(stuck, NOW, expected))
        assert vector(freed) == vector(before)
        assert blocking_detail(freed) is None


@pytest.mark.parametrize("name", [name for name in ALL if name != "blocked"])
def test_what_is_not_blocked_cannot_be_unblocked(name: str) -> None:
    with pytest.raises(NotEligible):
        operator.unblock(ALL[name], NOW)


def test_a_grant_outlives_a_block() -> None:
    """§3.26, INV-17"""
    granted = after(grant.issue_grant(fresh(), NOW, grant.Grantee("w1", frozenset(), TTL)))
    freed = after(operator.unblock(after(operator.block(granted, NOW, "paused_by_operator")), NOW))
    assert freed.state == granted.state


# -- resume


@pytest.mark.parametrize("name", [name for name in ALL if name != "suspended"])
def test_only_a_suspended_execution_is_resumed(name: str) -> None:
    """E-X09: nothing wakes what has ended"""
    with pytest.raises(NotSuspended):
        resume.resume(ALL[name], NOW)


def test_a_resumed_execution_goes_on_with_its_attempt() -> None:
    """§3.23: S8 to S9, or to S10 for a while"""
    before = suspended()
    change = resume.resume(before, NOW)
    assert change.outcome == Resumed(before.execution.id, PublicState.WAITING)
    assert [event.kind for event in change.events] == [EventKind.WOKEN]
    assert vector(after(change)).attempt == "attempt_interrupted"
    later = resume.resume(before, NOW, Millis(10_000))
    assert later.outcome == Resumed(before.execution.id, PublicState.DELAYED)
    assert vector(after(later)).blocking == "waiting_for_resume_delay"
    assert blocking_detail(after(later)) == f"resume delayed until {LATER}"
    held = running(after(change), LATER)
    assert (lease_of(held).attempt, held.head.epoch) == (0, 2)


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
