"""The history of attempts: one record per numbered try.

The current attempt is part of the state row; it gets its own row only when another attempt replaces
it. So the common execution, which runs once, writes no attempt row at all.
"""

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import (
    Active,
    Attempt,
    AttemptOutcome,
    Ended,
    Failure,
    Lease,
    Lost,
    LostLease,
    Outcome,
    Snapshot,
    Start,
)
from flowfabric.core.execution.outcome import CloseReason
from flowfabric.core.execution.retry import Category

ATTEMPT_TIMEOUT = "attempt_timeout"
"""The message of the failure of an attempt that exceeded its timeout."""

SUSPENSION_TIMEOUT = "suspension_timeout:"
"""Prefix of the failure, or of the cancel reason, of a run whose wait timed out."""

IMPOSSIBLE = "dependency_impossible"
"""The cancel reason of a run whose dependencies cannot be met any more."""

_ENDINGS = {
    Outcome.SUCCESS: AttemptOutcome.SUCCESS,
    Outcome.FAILED: AttemptOutcome.FAILURE,
    Outcome.EXPIRED: AttemptOutcome.FAILURE,
    Outcome.CANCELLED: AttemptOutcome.CANCELLED,
    Outcome.SKIPPED: AttemptOutcome.CANCELLED,
}

_CLOSINGS = {
    AttemptOutcome.SUCCESS: CloseReason.SUCCESS,
    AttemptOutcome.FAILURE: CloseReason.FAILURE,
    AttemptOutcome.CANCELLED: CloseReason.CANCELLED,
    AttemptOutcome.RECLAIMED: CloseReason.RECLAIMED,
}

_RUN_CLOSINGS = {
    Outcome.SUCCESS: CloseReason.SUCCESS,
    Outcome.FAILED: CloseReason.FAILURE,
    Outcome.CANCELLED: CloseReason.CANCELLED,
    Outcome.EXPIRED: CloseReason.EXPIRED,
    Outcome.SKIPPED: CloseReason.DEPENDENCY_IMPOSSIBLE,
}


class StreamClosing(Struct, frozen=True):
    """When and why an output stream was closed."""

    at: Millis
    reason: CloseReason


def closing_of(attempt: Attempt) -> StreamClosing | None:
    """When and why the stream of an attempt was closed; None if it goes on. The answer stays the
    same whatever happens to the run afterwards."""
    if attempt.closed is not None and attempt.closed_at is not None:
        return StreamClosing(attempt.closed_at, attempt.closed)
    if not attempt.outcome.final:
        return None
    reason = attempt.closed or _CLOSINGS[attempt.outcome]
    if reason is CloseReason.FAILURE and is_timeout(attempt.failure):
        reason = CloseReason.EXPIRED
    return StreamClosing(attempt.ended_at or Millis(0), reason)


def closing_of_run(snapshot: Snapshot, ended: Ended) -> StreamClosing:
    """When and why a run closes the stream of the attempt that was current at its end, or that it
    was to have next."""
    life = snapshot.life
    parked = ended.lease is None or life.cleanup is not None
    said = life.failure.message if life.failure else life.cancel_reason or ""
    reason = _RUN_CLOSINGS[ended.outcome]
    if ended.outcome is Outcome.CANCELLED and life.cancel_reason == IMPOSSIBLE:
        reason = CloseReason.DEPENDENCY_IMPOSSIBLE
    elif parked and said.startswith(SUSPENSION_TIMEOUT):
        reason = CloseReason.SUSPENSION_TIMEOUT
    return StreamClosing(ended.ended_at, reason)


def is_timeout(failure: Failure | None) -> bool:
    """Whether an attempt failed because it exceeded its timeout."""
    return (
        failure is not None
        and failure.message == ATTEMPT_TIMEOUT
        and failure.category == Category.TIMEOUT
    )


def inline_attempts(snapshot: Snapshot) -> tuple[Attempt, ...]:
    """The attempts that have no row yet, oldest first: a replaced one, then the current one."""
    replaced = closing_attempts(snapshot)
    current = current_attempt(snapshot)
    return replaced if current is None else (*replaced, current)


def closing_attempts(snapshot: Snapshot) -> tuple[Attempt, ...]:
    """The lost attempt that a reclaim has replaced; the next change of the state writes its row."""
    lapsed = snapshot.life.lapsed
    if lapsed is None or lapsed.index == snapshot.current_attempt:
        return ()
    ended_at = lapsed.at
    match snapshot.state:
        case Active(lease=lease) | Ended(lease=Lease() as lease) if lease.start is Start.RECLAIM:
            ended_at = lease.started_at
        case _:
            pass
    return (from_lost_lease(snapshot, lapsed, AttemptOutcome.RECLAIMED, ended_at),)


def current_attempt(snapshot: Snapshot) -> Attempt | None:
    """The record of the current attempt; None between two attempts or before the first."""
    match snapshot.state:
        case Active(lease=lease):
            return attempt_of(snapshot, lease, AttemptOutcome.STARTED, None)
        case Lost():
            lapsed = snapshot.life.lapsed
            if lapsed is None:
                return None
            return from_lost_lease(snapshot, lapsed, AttemptOutcome.STARTED, None)
        case Ended():
            return _ended_attempt(snapshot, snapshot.state)
        case _:
            return _from_paused(snapshot, AttemptOutcome.SUSPENDED, None)


def _ended_attempt(snapshot: Snapshot, ended: Ended) -> Attempt | None:
    if ended.attempt is None or ended.pending is not None:
        return None
    outcome = _ENDINGS[ended.outcome]
    lapsed = snapshot.life.lapsed
    if ended.lease is not None:
        record = attempt_of(snapshot, ended.lease, outcome, ended.ended_at)
    elif lapsed is not None and lapsed.index == ended.attempt:
        record = from_lost_lease(snapshot, lapsed, outcome, ended.ended_at)
    else:
        paused = _from_paused(snapshot, outcome, ended.ended_at)
        if paused is None:
            return None
        record = paused
    life = snapshot.life
    record = replace(
        record,
        failure=life.failure,
        result=ended.result,
        result_encoding=life.result_encoding,
    )
    closed = closing_of_run(snapshot, ended).reason
    if record.closed is not None or closed is _CLOSINGS[outcome]:
        return record
    return replace(record, closed=closed)


def attempt_of(
    snapshot: Snapshot, lease: Lease, outcome: AttemptOutcome, ended_at: Millis | None
) -> Attempt:
    """The record of the attempt a lease runs, or ran."""
    paused = snapshot.life.paused
    continued = paused if lease.start is Start.CONTINUE else None
    return _with_given(
        snapshot,
        Attempt(
            index=lease.attempt,
            type=continued.type if continued else lease.start,
            outcome=outcome,
            worker=lease.worker,
            lease_id=lease.id,
            epoch=snapshot.head.epoch,
            started_at=continued.started_at if continued else lease.started_at,
            ended_at=ended_at,
            suspended_at=continued.paused_at if continued else None,
            resumed_at=lease.started_at if continued else None,
            previous=_previous(lease.attempt),
        ),
    )


def from_lost_lease(
    snapshot: Snapshot, lapsed: LostLease, outcome: AttemptOutcome, ended_at: Millis | None
) -> Attempt:
    """The record of the attempt that lost its lease."""
    return _with_given(
        snapshot,
        Attempt(
            index=lapsed.index,
            type=lapsed.type,
            outcome=outcome,
            worker=lapsed.worker,
            lease_id=lapsed.lease_id,
            epoch=lapsed.epoch,
            started_at=lapsed.started_at,
            ended_at=ended_at,
            suspended_at=lapsed.suspended_at,
            resumed_at=lapsed.resumed_at,
            previous=_previous(lapsed.index),
            closed=CloseReason.LEASE_REVOKED if lapsed.revoked else CloseReason.LEASE_EXPIRED,
            closed_at=lapsed.at,
        ),
    )


def _from_paused(
    snapshot: Snapshot, outcome: AttemptOutcome, ended_at: Millis | None
) -> Attempt | None:
    paused = snapshot.life.paused
    if paused is None or paused.index != snapshot.current_attempt:
        return None
    return _with_given(
        snapshot,
        Attempt(
            index=paused.index,
            type=paused.type,
            outcome=outcome,
            worker=paused.worker,
            epoch=paused.epoch,
            started_at=paused.started_at,
            ended_at=ended_at,
            suspended_at=paused.paused_at,
            previous=_previous(paused.index),
        ),
    )


def _with_given(snapshot: Snapshot, attempt: Attempt) -> Attempt:
    """The record with the id and the policy that its claim gave it, if any."""
    given = snapshot.given_to(attempt.index)
    return attempt if given is None else replace(attempt, id=given.id, policy=given.policy)


def _previous(index: int) -> int | None:
    return index - 1 if index else None
