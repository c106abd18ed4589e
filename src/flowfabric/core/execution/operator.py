"""What operators and timers do to an execution: cancel, expire, replay, block, …"""

from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    FenceRequired,
    InvalidBlockingReason,
    LeaseRevoked,
    MaxReplays,
    NotEligible,
    NotTerminal,
    StaleLease,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import attempt as owner_rules
from flowfabric.core.execution import cleanup as cleanup_rules
from flowfabric.core.execution.attempt import CleaningUp, RetryScheduled, TerminalFailed
from flowfabric.core.execution.attempts import ATTEMPT_TIMEOUT, inline_attempts
from flowfabric.core.execution.change import Change, fold, unchanged
from flowfabric.core.execution.cleanup import CleanedUp
from flowfabric.core.execution.ending import end, event_of
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.gate import DELAYS, LOOK_AGAIN, cause_of_block, gated
from flowfabric.core.execution.lease import (
    AlreadySatisfied,
    Owner,
    ended_by,
    enter,
    fence_of,
    mark_expired,
    not_active,
    present,
    required_fence,
    unended,
    why_revoked,
)
from flowfabric.core.execution.model import (
    RANK_STEP,
    Active,
    Ended,
    Failure,
    Flags,
    Gate,
    Lease,
    Life,
    Lost,
    LostLease,
    Next,
    Outcome,
    Ready,
    Snapshot,
    Source,
    Start,
    Suspended,
    Waiting,
    clamp_priority,
    rank_of,
)
from flowfabric.core.execution.status import ADMISSION_BLOCKS, Blocking, PublicState, vector
from flowfabric.core.execution.takeover import GIVEN_UP, losses_kept
from flowfabric.core.wait.resume import clean_up_first, expire_suspension
from flowfabric.core.wait.waitpoint import expire_pending

STRAY = "never_became_a_member"
"""The cancel reason of an execution that was created for a flow but never joined it."""
_UNFENCED = frozenset({Source.OPERATOR, Source.FLOW_CASCADE, Source.SYSTEM_TIMEOUT})


class CancelAnswer(Struct, frozen=True, omit_defaults=True, gc=False):
    """The answer to a cancel. `until` is None if the run has ended; otherwise its handler cleans
    up, and the run ends then at the latest."""

    id: ExecutionId
    until: Millis | None = None


Cancelled = CancelAnswer
"""The name of the answer in the specification."""


class Expired(Struct, frozen=True):
    id: ExecutionId


class Changed(Struct, frozen=True):
    id: ExecutionId
    priority: int


class Replayed(Struct, frozen=True):
    id: ExecutionId
    state: PublicState


class Blocked(Struct, frozen=True):
    id: ExecutionId


class BlockInQuestion(Struct, frozen=True):
    """It is time to ask whether the cause of a block is gone; the next time was written down."""

    uuid: UUID


class Unblocked(Struct, frozen=True):
    id: ExecutionId


def cancel(
    snapshot: Snapshot | None,
    now: Millis,
    owner: Owner,
    reason: str,
    *,
    force: bool = False,
    lost_race: bool = False,
) -> "Change[CancelAnswer]":
    """Ends the execution as cancelled, in any state; with a clean-up if it asked for one, unless
    its owner or an operator with `force` cancels it. Cancelling twice is one cancel. `lost_race`
    says that a join cancels it, which no caller of the engine can say."""
    snapshot = present(snapshot)
    id = snapshot.execution.id
    if isinstance(snapshot.state, Ended):
        if snapshot.state.outcome is Outcome.CANCELLED:
            return unchanged(CancelAnswer(id))
        raise not_active(snapshot)
    _check_canceller(snapshot, owner)
    cleanup, life = snapshot.life.cleanup, snapshot.life
    if cleanup is None or life.cancel_reason is None:
        by = str(owner.source)
        life = replace(life, cancel_reason=reason, cancelled_by=by, lost_race=lost_race)
    if not force and owner.source != Source.LEASE_HOLDER:
        if cleanup is not None:
            return unchanged(CancelAnswer(id, cleanup.until))
        if (span := cleanup_rules.cleanup_time(snapshot)) is not None:
            why = life.cancel_reason or reason
            change = clean_up_first(snapshot, now, life, Outcome.CANCELLED, span, why)
            return change.answering(CancelAnswer(id, Millis(now + span)))
    change = end(
        snapshot, now, Outcome.CANCELLED, EventKind.CANCELLED, life, life.cancel_reason or reason
    )
    return change.answering(CancelAnswer(id))


def cancel_owned(
    snapshot: Snapshot | None, now: Millis, owner: Owner, reason: str
) -> "Change[CancelAnswer]":
    """A worker cancels the execution it owns: it needs the whole fence, like every owner
    operation. The owner that it was cancelled under may repeat the call, or come after another
    cancel."""
    snapshot = present(snapshot)
    fence = required_fence(owner)
    state, own = snapshot.state, fence is None or ended_by(snapshot, fence)
    if own and isinstance(state, Ended) and state.outcome is Outcome.CANCELLED:
        return unchanged(CancelAnswer(snapshot.execution.id))
    lease = enter(snapshot, now, owner)
    return lease if isinstance(lease, Change) else cancel(snapshot, now, owner, reason, force=True)


def expire(
    snapshot: Snapshot | None, now: Millis, jitter: float = 0.0
) -> "Change[Expired | CleanedUp | AlreadySatisfied | RetryScheduled]":
    """Ends an execution whose deadline or whose time to clean up has passed, or an attempt that
    exceeded its timeout.

    The timer is checked again on the stored state, so a stale timer does nothing.
    """
    if snapshot is None or isinstance(snapshot.state, Ended):
        return unchanged(AlreadySatisfied("already_terminal"))
    return (
        _end_in_time(snapshot, now)
        or _expire_attempt(snapshot, now, jitter)
        or unchanged(AlreadySatisfied("not_yet_due"))
    )


def _end_in_time(snapshot: Snapshot, now: Millis) -> "Change[Expired | CleanedUp] | None":
    """The end of a run whose clean-up or deadline is over."""
    cleanup = snapshot.life.cleanup
    if cleanup is not None:
        return cleanup_rules.end_after(snapshot, now, cleanup) if cleanup.until <= now else None
    if snapshot.deadline_at is not None and snapshot.deadline_at <= now:
        return expire_now(snapshot, now, "execution_deadline")
    return None


def _expire_attempt(
    snapshot: Snapshot, now: Millis, jitter: float
) -> "Change[Expired | RetryScheduled] | None":
    """The end of an attempt whose timeout has passed."""
    match snapshot.state:
        case Active(lease=Lease(times_out_at=int() as at) as lease) if at <= now:
            return _time_out(snapshot, now, lease, jitter)
        case Lost() if snapshot.life.cleanup is None and (lost := _overdue(snapshot, now)):
            retry = owner_rules.retry_revoked(snapshot, now, lost, jitter)
            return expire_now(snapshot, now, ATTEMPT_TIMEOUT) if retry is None else retry
        case _:
            return None


def _overdue(snapshot: Snapshot, now: Millis) -> LostLease | None:
    """The revoked lease whose attempt has exceeded its timeout since."""
    lost = snapshot.life.lapsed
    if lost is None or lost.times_out_at is None or lost.times_out_at > now:
        return None
    return lost


def expire_now(snapshot: Snapshot, now: Millis, reason: str) -> "Change[Expired]":
    """Ends an execution as expired, after its compensations if it has any."""
    life = replace(snapshot.life, failure=Failure(message=reason, category="timeout"))
    why = f"expired:{reason}"
    if (span := life.undo_time) is not None and life.cleanup is None:
        change = clean_up_first(snapshot, now, life, Outcome.EXPIRED, span, why)
    else:
        change = end(snapshot, now, Outcome.EXPIRED, EventKind.EXPIRED, life, why)
    return change.answering(Expired(snapshot.execution.id))


def change_priority(
    snapshot: Snapshot | None,
    now: Millis,
    priority: int,
    *,
    anywhere: bool = False,
    step: int = RANK_STEP,
) -> "Change[Changed]":
    """Moves a ready execution in the claim order; with `anywhere`, also a parked one."""
    snapshot = present(snapshot)
    allowed = (Ready, Waiting, Suspended) if anywhere else (Ready,)
    if not isinstance(snapshot.state, allowed):
        raise NotEligible(f"{snapshot.run} does not wait for a worker; its priority stays as it is")
    new = clamp_priority(priority)
    place = rank_of(snapshot.execution.created_at, new, step)
    limited = snapshot.head.flags & Flags.LIMITS
    kept = place if limited and step != RANK_STEP else None
    after = snapshot.to(
        snapshot.state,
        rank=snapshot.head.rank - snapshot.place + place if limited else place,
        life=replace(snapshot.life, priority=new, place=kept),
    )
    detail = {"old_priority": snapshot.priority, "new_priority": new}
    event = event_of(snapshot, now, EventKind.PRIORITY_CHANGED, detail)
    return Change(Changed(snapshot.execution.id, new), snapshot, after, (event,))


def replay(snapshot: Snapshot | None, now: Millis) -> "Change[Replayed]":
    """Runs an ended execution again: a new attempt, a fresh retry budget, the same history.

    Recorded steps are kept if the run had not succeeded; after a success or a clean-up, a new
    generation of steps starts.
    """
    snapshot = present(snapshot)
    ended = check_replay(snapshot)
    next = Next(Start.REPLAY, snapshot.attempts_made, snapshot.execution.rules.attempt_timeout)
    life, flags = reborn(snapshot, now, ended)
    after = gated(snapshot, now, next, life, flags)
    detail = {"branch": "normal", "groups_reset": 0}
    return Change(
        outcome=Replayed(snapshot.execution.id, vector(after).public),
        before=snapshot,
        after=after,
        events=(event_of(snapshot, now, EventKind.REPLAYED, detail),),
        attempts=inline_attempts(snapshot),
    )


def check_replay(snapshot: Snapshot) -> Ended:
    """The ending of an execution that may be replayed."""
    ended = snapshot.state
    if not isinstance(ended, Ended):
        raise NotTerminal(
            f"{snapshot.run} has not ended, so it cannot be replayed; cancel it first, or fork it"
        )
    if snapshot.life.replays >= snapshot.execution.rules.max_replay_count:
        raise MaxReplays(f"{snapshot.run} was replayed {snapshot.life.replays} times, the limit")
    return ended


def block(
    snapshot: Snapshot | None, now: Millis, reason: str, detail: str | None = None
) -> "Change[Blocked]":
    """Keeps an eligible execution from being claimed until it is unblocked. The sweep undoes
    a block that has a cause once the cause is gone."""
    snapshot = unended(snapshot)
    if not isinstance(snapshot.state, Ready):
        raise NotEligible(f"{snapshot.run} does not wait for a worker, so it cannot be blocked")
    if reason not in ADMISSION_BLOCKS:
        raise InvalidBlockingReason(reason)
    life = replace(snapshot.life, blocked=str(Blocking(reason)), detail=detail, touched_at=now)
    after = gated(snapshot, now, snapshot.state.next, life)
    return Change(Blocked(snapshot.execution.id), snapshot, after)


def unblock(
    snapshot: Snapshot | None, now: Millis, expected: str | None = None
) -> "Change[Unblocked]":
    """Undoes a block; `expected` protects a newer block from an older decision. A run that was
    blocked by code may be claimed by any worker again, also by one whose code did not fit. One that
    waits for a budget may be claimed, and waits again if the budget is still used up."""
    snapshot = present(snapshot)
    life = snapshot.life
    match snapshot.state:
        case Waiting(gate=Gate.BLOCKED, next=next):
            reason = life.blocked
        case Waiting(gate=Gate.BUDGET, next=next):
            reason, life = str(Blocking.BUDGET), replace(life, budget=None)
        case Waiting(gate=Gate.LIMIT):
            raise NotEligible(
                f"{snapshot.run} waits in the line of its quotas until they have room"
            )
        case _:
            raise NotEligible(f"{snapshot.run} is not blocked")
    if expected is not None and expected != reason:
        raise NotEligible(f"{snapshot.run} is blocked for {reason}, not {expected}")
    life = replace(life, blocked=None, detail=None, code=None, touched_at=now)
    after = gated(snapshot, now, next, life)
    return Change(Unblocked(snapshot.execution.id), snapshot, after)


def due(
    snapshot: Snapshot | None, now: Millis, jitter: float, grace: Millis, signal_id: UUID
) -> "Change[object]":
    """Does everything that is due for this execution. A stale timer changes nothing.

    `signal_id` is the id of the signal that reports a suspension's timeout.
    """
    if snapshot is None or isinstance(snapshot.state, Ended):
        return unchanged(AlreadySatisfied("already_terminal"))
    change = _due(snapshot, now, jitter, grace, signal_id)
    if change.after is None:
        closed = expire_pending(snapshot, now)
        return _forget_timer(snapshot, now) if closed.after is None else closed
    closed = expire_pending(change.after, now)
    return change if closed.after is None else replace(fold(change, closed), outcome=change.outcome)


def _forget_timer(snapshot: Snapshot, now: Millis) -> "Change[AlreadySatisfied]":
    """Removes the timer of a revoked attempt that is due although a worker has taken the run over:
    the new attempt has its own."""
    answer = AlreadySatisfied("not_yet_due")
    lost = _overdue(snapshot, now)
    if lost is None:
        return unchanged(answer)
    life = replace(snapshot.life, lapsed=replace(lost, times_out_at=None))
    return Change(answer, snapshot, snapshot.to(snapshot.state, life=life))


def _due(
    snapshot: Snapshot, now: Millis, jitter: float, grace: Millis, signal_id: UUID
) -> "Change[object]":
    """What is due apart from pending waitpoints."""
    if (expired := _expire_due(snapshot, now, jitter)) is not None:
        return expired
    match snapshot.state:
        case Active(lease=lease) if lease.expires_at <= now:
            return mark_expired(snapshot, now, grace)
        case Suspended(due_at=int() as at) if at <= now:
            return expire_suspension(snapshot, now, signal_id)
        case Waiting(gate=gate, next=next, due_at=int() as at) if gate in DELAYS and at <= now:
            life = replace(snapshot.life, not_before=None, delay=None, touched_at=now)
            after = gated(snapshot, now, next, life)
            return Change(outcome=after, before=snapshot, after=after)
        case Waiting(gate=Gate.BLOCKED, due_at=int() as at) as state if (
            at <= now and cause_of_block(snapshot.life) is not None
        ):
            after = snapshot.to(replace(state, due_at=Millis(now + LOOK_AGAIN)))
            return Change(BlockInQuestion(snapshot.execution.uuid), snapshot, after)
        case Waiting(gate=Gate.INBOX, due_at=int() as at) if at <= now:
            return _end_refused(snapshot, now)
        case Waiting(gate=Gate.UNSEALED, due_at=int() as at) if at <= now:
            return cancel(snapshot, now, Owner(source=Source.SYSTEM_TIMEOUT), STRAY)
        case _:
            return unchanged(AlreadySatisfied("not_yet_due"))


def _expire_due(
    snapshot: Snapshot, now: Millis, jitter: float
) -> "Change[Expired | CleanedUp | RetryScheduled] | None":
    """As `expire`, but for an attempt whose lease ran out before its timeout: its worker was lost,
    which uses up no retry. The sweep may come late, because it was down as well."""
    if (ended := _end_in_time(snapshot, now)) is not None:
        return ended
    match snapshot.state:
        case Active(lease=Lease(expires_at=end, times_out_at=int() as timeout)) if end < timeout:
            return None
        case _:
            return _expire_attempt(snapshot, now, jitter)


def _end_refused(snapshot: Snapshot, now: Millis) -> "Change[object]":
    """Ends an inbox submission that the rules refused, without running it, for the stored
    reason."""
    failure = snapshot.life.failure or Failure(message="refused", category="permanent")
    after = snapshot.to(Ended(outcome=Outcome.FAILED, ended_at=now))
    detail = {"reason": "refused", "message": failure.message, "category": failure.category}
    return Change(failure, snapshot, after, (event_of(snapshot, now, EventKind.FAILED, detail),))


def _time_out(
    snapshot: Snapshot, now: Millis, lease: Lease, jitter: float
) -> "Change[Expired | RetryScheduled]":
    change = owner_rules.time_out(snapshot, now, lease, jitter)
    answer = change.outcome
    ended = Expired(snapshot.execution.id)
    return change.answering(ended if isinstance(answer, TerminalFailed | CleaningUp) else answer)


def _check_canceller(snapshot: Snapshot, owner: Owner) -> None:
    """Checks the fence of an owner; operators, cascades and timeouts need none."""
    fence = owner.fence  # a partial fence is a mistake of any caller
    if owner.source in _UNFENCED:
        return
    match snapshot.state:
        case Active() | Lost() if fence is None:
            raise FenceRequired("cancelling a running run as its owner needs the fence")
        case Lost(revoked=True):
            raise LeaseRevoked(why_revoked(snapshot))
        case Active(lease=lease):
            if fence != fence_of(snapshot, lease):
                raise StaleLease(f"{snapshot.run} has a newer lease, epoch {snapshot.head.epoch}")
        case _ if fence is not None:
            raise StaleLease(f"the fence is not the current one of {snapshot.run}")
        case _:
            pass


def reborn(snapshot: Snapshot, now: Millis, ended: Ended) -> tuple[Life, Flags]:
    """The life that a replay starts with: counters at zero, the deadline counted from now."""
    old = snapshot.life
    relative = snapshot.execution.rules.execution_deadline
    gone = Flags.DEADLINE | Flags.SPENT | Flags.SUSPECT | Flags.CLEANUP
    flags = snapshot.head.flags & ~gone
    if old.failure == GIVEN_UP:
        flags |= Flags.SUSPECT
    if relative is not None:
        flags |= Flags.DEADLINE
    losses, counted = losses_kept(snapshot)
    # What was undone must be done again.
    fresh_steps = ended.outcome is Outcome.SUCCESS or old.cleanup is not None
    waits = old.waits
    if waits is not None and fresh_steps:
        waits = replace(waits, pending=())  # those of the old generation
    life = Life(
        priority=old.priority,
        place=old.place,
        started_at=snapshot.started_at,
        deadline_at=None if relative is None else Millis(now + relative),
        losses=losses,
        excused=losses - counted,
        replays=old.replays + 1,
        generation=old.generation + fresh_steps,
        channels=None if fresh_steps else old.channels,
        waits=waits,
        join=old.join,
        unsealed=old.unsealed,
        newest_edge=old.newest_edge,
        orphans=() if fresh_steps else (*old.orphans, *old.flows),
        unknown=old.unknown,
    )
    return life, flags
