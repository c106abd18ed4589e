"""The history of attempts: one record per numbered try.

The current attempt is part of the state row; it gets its own row only when another attempt replaces
it. So the common execution, which runs once, writes no attempt row at all.
"""

from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import (
    Active,
    Attempt,
    AttemptOutcome,
    Ended,
    Lease,
    Lost,
    LostLease,
    Outcome,
    Snapshot,
    Start,
)

_ENDINGS = {
    Outcome.SUCCESS: AttemptOutcome.SUCCESS,
    Outcome.FAILED: AttemptOutcome.FAILURE,
    Outcome.EXPIRED: AttemptOutcome.FAILURE,
    Outcome.CANCELLED: AttemptOutcome.CANCELLED,
    Outcome.SKIPPED: AttemptOutcome.CANCELLED,
}


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
    return (_from_lost_lease(snapshot, lapsed, AttemptOutcome.RECLAIMED, ended_at),)


def current_attempt(snapshot: Snapshot) -> Attempt | None:
    """The record of the current attempt; None between two attempts or before the first."""
    match snapshot.state:
        case Active(lease=lease):
            return attempt_of(snapshot, lease, AttemptOutcome.STARTED, None)
        case Lost():
            lapsed = snapshot.life.lapsed
            if lapsed is None:
                return None
            return _from_lost_lease(snapshot, lapsed, AttemptOutcome.STARTED, None)
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
        record = _from_lost_lease(snapshot, lapsed, outcome, ended.ended_at)
    else:
        paused = _from_paused(snapshot, outcome, ended.ended_at)
        if paused is None:
            return None
        record = paused
    return replace(record, failure=snapshot.life.failure, result=ended.result)


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
            previous=_previous(lease.attempt),
        ),
    )


def _from_lost_lease(
    snapshot: Snapshot, lapsed: LostLease, outcome: AttemptOutcome, ended_at: Millis | None
) -> Attempt:
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
            previous=_previous(lapsed.index),
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
            previous=_previous(paused.index),
        ),
    )


def _with_given(snapshot: Snapshot, attempt: Attempt) -> Attempt:
    """The record with the id and the policy that its claim gave it, if any."""
    given = snapshot.given_to(attempt.index)
    return attempt if given is None else replace(attempt, id=given.id, policy=given.policy)


def _previous(index: int) -> int | None:
    return index - 1 if index else None
