"""What the owner of a lease can do with it: complete, fail, delay, hand back.

Every rule first checks whether the call repeats one that already took effect (a lost reply must be
harmless), then checks ownership, then decides.
"""

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotEligible
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import cleanup as cleanup_rules
from flowfabric.core.execution.attempts import (
    ATTEMPT_TIMEOUT,
    attempt_of,
    closing_attempts,
    from_lost_lease,
)
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.ending import event_of
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.gate import admit, gated
from flowfabric.core.execution.lease import Owner, ended_by, enter, fence_of, lease_event, present
from flowfabric.core.execution.model import (
    HANDED_BACK,
    Active,
    Attempt,
    AttemptOutcome,
    Ended,
    Failure,
    Fence,
    Flags,
    Gate,
    InterruptedAttempt,
    Lease,
    Life,
    LostLease,
    Next,
    Outcome,
    Released,
    Snapshot,
    Start,
)
from flowfabric.core.execution.retry import Category, RetryPolicy, backoff_delay, may_retry
from flowfabric.core.execution.status import PublicState, vector, vector_of
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.takeover import put_back

LONGEST_CLEANUP_PAUSE = Millis(1_000)
"""The longest pause before a clean-up that failed is tried again: its time is bounded."""


class Completed(Struct, frozen=True, gc=False):
    id: ExecutionId


class RetryScheduled(Struct, frozen=True):
    id: ExecutionId
    delay_until: Millis
    next_attempt: int


class TerminalFailed(Struct, frozen=True):
    id: ExecutionId


class CleaningUp(Struct, frozen=True):
    """The failure is final, but the run has compensations: its owner keeps the lease and undoes
    what was done, until `until` at the latest."""

    id: ExecutionId
    until: Millis


Failing = RetryScheduled | TerminalFailed | CleaningUp
"""The answers to a failure."""


class Delayed(Struct, frozen=True):
    id: ExecutionId
    state: PublicState


def complete(
    snapshot: Snapshot | None,
    now: Millis,
    owner: Owner,
    result: bytes | None = None,
    encoding: str | None = None,
) -> "Change[Completed]":
    """Ends the execution in success. The first result and its encoding stay, even if the call is
    repeated."""
    snapshot = present(snapshot)
    if _ended_by(snapshot, owner, Outcome.SUCCESS):
        return unchanged(Completed(snapshot.execution.id))
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    ended = Ended(
        outcome=Outcome.SUCCESS, ended_at=now, attempt=lease.attempt, lease=lease, result=result
    )
    return Change(
        outcome=Completed(snapshot.execution.id),
        before=snapshot,
        after=snapshot.to(ended, life=_completed(snapshot, encoding)),
        events=(lease_event(snapshot, now, lease, EventKind.COMPLETED),),
    )


def _completed(snapshot: Snapshot, encoding: str | None) -> Life:
    """The life of a run that has completed. A cancel came too late for it, but what a failure has
    begun to undo cannot complete."""
    life = snapshot.life
    if encoding is not None:
        life = replace(life, result_encoding=encoding)
    if life.cleanup is None:
        return life
    if life.cleanup.outcome is not Outcome.CANCELLED:
        raise NotEligible(f"{snapshot.run} has failed and is being undone, so it cannot complete")
    return replace(life, cleanup=None, cancel_reason=None, cancelled_by=None, lost_race=False)


class JitterSource(Struct, frozen=True):
    """What decides the pause before a retry: a random number for the jitter, or a requested
    delay."""

    jitter: float = 0.0
    after: Millis | None = None


def fail(
    snapshot: Snapshot | None,
    now: Millis,
    owner: Owner,
    failure: Failure,
    jitter: JitterSource = JitterSource(),  # noqa: B008 - frozen
) -> "Change[Failing]":
    """Ends the attempt in failure: a retry is scheduled if the stored policy allows one."""
    snapshot = present(snapshot)
    if (repeat := _failed_by(snapshot, owner)) is not None:
        return unchanged(repeat)
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    if may_retry(snapshot.execution.rules.retry_policy, snapshot.life.retries, failure.category):
        return _schedule_retry(snapshot, now, lease, failure, jitter)
    return _end_failed(snapshot, now, lease, failure, Outcome.FAILED)


def time_out(snapshot: Snapshot, now: Millis, lease: Lease, jitter: float) -> "Change[Failing]":
    """The attempt exceeded its timeout: a failure of category timeout, and `expired` if no retry is
    left."""
    failure = Failure(message=ATTEMPT_TIMEOUT, category=Category.TIMEOUT)
    if may_retry(snapshot.execution.rules.retry_policy, snapshot.life.retries, Category.TIMEOUT):
        return _schedule_retry(snapshot, now, lease, failure, JitterSource(jitter))
    return _end_failed(snapshot, now, lease, failure, Outcome.EXPIRED)


def retry_revoked(
    snapshot: Snapshot, now: Millis, lost: LostLease, jitter: float
) -> "Change[RetryScheduled] | None":
    """The attempt whose lease was revoked exceeded its timeout before a worker took it over: a
    retry, as `time_out` has it; None if there is none left. The loss was followed by no takeover,
    so it does not count as one."""
    policy, life = snapshot.execution.rules.retry_policy, snapshot.life
    if policy is None or not may_retry(policy, life.retries, Category.TIMEOUT):
        return None
    until = Millis(now + backoff_delay(policy, life.retries, jitter))
    next = Next(Start.RETRY, lost.index + 1, snapshot.execution.rules.attempt_timeout)
    life = replace(
        life,
        retries=life.retries + 1,
        losses=life.losses - 1,
        excused=min(life.excused, life.losses - 1),
        revokes=life.revokes - 1,
        max_reclaims=None,
        not_before=until if until > now else None,
        delay=Gate.BACKOFF,
        lapsed=None,
        grant=None,
    )
    failure = Failure(message=ATTEMPT_TIMEOUT, category=Category.TIMEOUT)
    ended = replace(from_lost_lease(snapshot, lost, AttemptOutcome.FAILURE, now), failure=failure)
    flags = snapshot.head.flags & ~Flags.SPENT
    detail = {"until": until, "message": failure.message, "category": failure.category}
    return Change(
        outcome=RetryScheduled(snapshot.execution.id, until, next.attempt),
        before=snapshot,
        after=gated(snapshot, now, next, life, flags),
        events=(event_of(snapshot, now, EventKind.RETRY_SCHEDULED, detail),),
        attempts=(ended,),
    )


def time_out_owned(
    snapshot: Snapshot | None, now: Millis, owner: Owner, jitter: float
) -> "Change[Failing]":
    """The owner ends an attempt that exceeded its timeout by the worker's timer, which may be a
    little ahead of the store's clock."""
    snapshot = present(snapshot)
    if (repeat := _failed_by(snapshot, owner, Outcome.EXPIRED)) is not None:
        return unchanged(repeat)
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    if lease.times_out_at is None:
        raise Invalid("the attempt has no timeout")
    return time_out(snapshot, now, lease, jitter)


def delay(
    snapshot: Snapshot | None,
    now: Millis,
    owner: Owner,
    until: Millis,
    *,
    step: Step | None = None,
) -> "Change[Delayed]":
    """Gives up the lease; the same attempt continues at `until`."""
    change = _pause(snapshot, now, owner, until, EventKind.DELAYED, "worker_delay")
    parked = change.after is not None and isinstance(change.outcome, Delayed)
    return replace(change, steps=(step,)) if step is not None and parked else change


def hand_back(snapshot: Snapshot | None, now: Millis, owner: Owner) -> "Change[Delayed]":
    """Gives up the lease at once because the worker stops: the same attempt continues, no retry is
    used."""
    return _pause(snapshot, now, owner, now, EventKind.HANDED_BACK, HANDED_BACK)


def hand_back_unheard(
    snapshot: Snapshot | None, now: Millis, owner: Owner
) -> "Change[Delayed] | Change[None]":
    """The same for a claim whose answer was lost. If its lease was renewed, a worker has got it
    from a repeat of the claim (`lease.renew_claimed`), and keeps it. A spent execution, which the
    claim took to give it up, is lost as before."""
    snapshot = present(snapshot)
    match snapshot.state:
        case Active(lease=lease) if lease.renewed_at is not None:
            return unchanged(None)
        case Active(lease=lease) if snapshot.head.flags & Flags.SPENT:
            entered = enter(snapshot, now, owner)
            put = entered if isinstance(entered, Change) else put_back(snapshot, lease)
            return put.answering(None)
        case _:
            return hand_back(snapshot, now, owner)


def pause_attempt(snapshot: Snapshot, now: Millis, lease: Lease, reason: str) -> tuple[Life, Next]:
    """The life and the next start of an execution whose owner interrupts its attempt."""
    earlier = snapshot.life.paused if lease.start is Start.CONTINUE else None
    timeout = None if lease.times_out_at is None else Millis(max(1, lease.times_out_at - now))
    paused = InterruptedAttempt(
        index=lease.attempt,
        type=earlier.type if earlier else lease.start,
        worker=lease.worker,
        epoch=snapshot.head.epoch,
        started_at=earlier.started_at if earlier else lease.started_at,
        paused_at=now,
        reason=reason,
        timeout=timeout,
    )
    life = replace(snapshot.life, paused=paused, lapsed=None, started_at=snapshot.started_at)
    return life, Next(Start.CONTINUE, lease.attempt, timeout)


def released(
    snapshot: Snapshot,
    lease: Lease,
    operation: str,
    until: Millis | None = None,
    state: PublicState | None = None,
) -> Released:
    return Released(operation, lease.id, snapshot.head.epoch, lease.attempt, until, state)


def same_release(snapshot: Snapshot, fence: Fence | None, operation: str) -> Released | None:
    """The earlier release by the same fence, if nothing has happened since."""
    last = snapshot.life.released
    if fence is None or last is None or last.epoch != snapshot.head.epoch:
        return None
    if isinstance(snapshot.state, Active):
        return None
    attempt_id = snapshot.attempt_id_of(last.attempt)
    if last.operation == operation and fence == Fence(last.lease_id, last.epoch, attempt_id):
        return last
    return None


def repeated_pause(snapshot: Snapshot, owner: Owner, operation: str) -> Delayed | None:
    """The first answer to an owner that repeats how it gave up its lease, whatever became of the
    execution since."""
    last = same_release(snapshot, owner.fence, operation)
    if last is None:
        return None
    state = vector(snapshot).public if last.state is None else PublicState(last.state)
    return Delayed(snapshot.execution.id, state)


def give_up_lease(
    snapshot: Snapshot,
    now: Millis,
    lease: Lease,
    life: Life,
    next: Next,
    operation: str,
    until: Millis | None = None,
) -> tuple[Snapshot, Delayed]:
    """The execution after its owner gave up the lease, and the answer, which a repeat gets too."""
    state = admit(life, next, now, snapshot.head.flags)
    public = vector_of(state, life).public
    life = replace(life, released=released(snapshot, lease, operation, until, public))
    return snapshot.to(state, life=life), Delayed(snapshot.execution.id, public)


def _pause(
    snapshot: Snapshot | None,
    now: Millis,
    owner: Owner,
    until: Millis,
    kind: EventKind,
    reason: str,
) -> "Change[Delayed]":
    snapshot = present(snapshot)
    if (repeat := repeated_pause(snapshot, owner, reason)) is not None:
        return unchanged(repeat)
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    life, next = pause_attempt(snapshot, now, lease, reason)
    life = replace(
        life,
        probation=None if reason == HANDED_BACK else life.probation,
        not_before=until if until > now and not cleanup_rules.is_unheard(snapshot) else None,
        delay=Gate.WORKER_DELAY,
    )
    after, answer = give_up_lease(snapshot, now, lease, life, next, reason, until)
    return Change(
        outcome=answer,
        before=snapshot,
        after=after,
        events=(lease_event(snapshot, now, lease, kind, until=until),),
        attempts=closing_attempts(snapshot),
    )


def _schedule_retry(
    snapshot: Snapshot, now: Millis, lease: Lease, failure: Failure, jitter: JitterSource
) -> "Change[Failing]":
    policy = snapshot.execution.rules.retry_policy or RetryPolicy()
    retries = snapshot.life.retries
    wait = backoff_delay(policy, retries, jitter.jitter) if jitter.after is None else jitter.after
    if snapshot.life.cleanup is not None:
        wait = min(wait, LONGEST_CLEANUP_PAUSE)
    until = Millis(now + wait)
    next = Next(Start.RETRY, lease.attempt + 1, snapshot.execution.rules.attempt_timeout)
    life = replace(
        snapshot.life,
        retries=retries + 1,
        not_before=until if until > now else None,
        delay=Gate.BACKOFF,
        paused=None,
        lapsed=None,
        started_at=snapshot.started_at,
        released=released(snapshot, lease, "fail", until),
    )
    ended = _failed_attempt(snapshot, now, lease, failure)
    return Change(
        outcome=RetryScheduled(snapshot.execution.id, until, next.attempt),
        before=snapshot,
        after=gated(snapshot, now, next, life),
        events=(
            lease_event(
                snapshot,
                now,
                lease,
                EventKind.RETRY_SCHEDULED,
                until=until,
                message=failure.message,
                category=failure.category,
            ),
        ),
        attempts=(*closing_attempts(snapshot), ended),
    )


def _failed_attempt(snapshot: Snapshot, now: Millis, lease: Lease, failure: Failure) -> Attempt:
    record = attempt_of(snapshot, lease, AttemptOutcome.FAILURE, now)
    return replace(record, failure=failure)


def _end_failed(
    snapshot: Snapshot, now: Millis, lease: Lease, failure: Failure, outcome: Outcome
) -> "Change[Failing]":
    life = snapshot.life
    if life.cleanup is not None and life.undo_time and cleanup_rules.is_unheard(snapshot):
        return unchanged(CleaningUp(snapshot.execution.id, life.cleanup.until))
    if life.cleanup is not None:
        change = cleanup_rules.end_after(snapshot, now, life.cleanup, failure=failure)
        return change.answering(TerminalFailed(snapshot.execution.id))
    if life.undo_time is not None:
        return _undo(snapshot, now, failure, outcome, life.undo_time)
    ended = Ended(outcome=outcome, ended_at=now, attempt=lease.attempt, lease=lease)
    kind = EventKind.FAILED if outcome is Outcome.FAILED else EventKind.EXPIRED
    reason = "failed" if outcome is Outcome.FAILED else f"expired:{failure.message}"
    event = lease_event(
        snapshot,
        now,
        lease,
        kind,
        reason=reason,
        message=failure.message,
        category=failure.category,
    )
    return Change(
        outcome=TerminalFailed(snapshot.execution.id),
        before=snapshot,
        after=snapshot.to(ended, life=replace(snapshot.life, failure=failure)),
        events=(event,),
    )


def _undo(
    snapshot: Snapshot, now: Millis, failure: Failure, outcome: Outcome, span: Millis
) -> "Change[Failing]":
    """The failure is final, but first the compensations run."""
    life = replace(snapshot.life, failure=failure)
    after, event = cleanup_rules.begin(snapshot, now, life, outcome, span, failure.message)
    return Change(CleaningUp(snapshot.execution.id, Millis(now + span)), snapshot, after, (event,))


def _ended_by(snapshot: Snapshot, owner: Owner, outcome: Outcome) -> bool:
    """Whether the same fence has already ended the execution in this way."""
    state = snapshot.state
    return isinstance(state, Ended) and state.outcome is outcome and ended_by(snapshot, owner.fence)


def _cleaned_up_by(snapshot: Snapshot, owner: Owner) -> bool:
    """Whether the clean-up of the execution has ended under the same fence, as a failure ends it:
    in the outcome that it began with."""
    return snapshot.life.cleanup is not None and ended_by(snapshot, owner.fence)


def _failed_by(
    snapshot: Snapshot, owner: Owner, outcome: Outcome = Outcome.FAILED
) -> Failing | None:
    if _ended_by(snapshot, owner, outcome) or _cleaned_up_by(snapshot, owner):
        return TerminalFailed(snapshot.execution.id)
    if (until := _undoing(snapshot, owner, outcome)) is not None:
        return CleaningUp(snapshot.execution.id, until)
    last = same_release(snapshot, owner.fence, "fail")
    if last is None or last.until is None:
        return None
    return RetryScheduled(snapshot.execution.id, last.until, last.attempt + 1)


def _undoing(snapshot: Snapshot, owner: Owner, outcome: Outcome) -> Millis | None:
    """Until when the compensations run that the same fence has begun with this failure. Another
    failure under that fence is one of a compensation."""
    cleanup = snapshot.life.cleanup
    match snapshot.state:
        case Active(lease=lease) if cleanup is not None and cleanup.outcome is outcome:
            same = cleanup.epoch == snapshot.head.epoch and owner.fence == fence_of(snapshot, lease)
            return cleanup.until if same else None
        case _:
            return None
