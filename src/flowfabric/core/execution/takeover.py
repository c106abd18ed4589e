"""Taking over lost executions: how often, and how carefully.

The next claim takes a lost execution over, but not forever: a handler that kills its process would
kill one worker after the other. The cap acts at the takeover. `lose` only marks the row SPENT; the
claim that finds it gives it up (`give_up`).

An expired lease may be the fault of the execution, of any other in the same process, or of the
machine. So the execution is a SUSPECT until a worker has survived it: workers run a suspect alone
(`watch`), and one that gets past a step, a suspension or its end is cleared, with all its losses
excused. Only the guilty one is lost again while it is alone, so only it reaches the cap.

    poison and 20 others share a worker, which dies    21 suspects, one loss each
    the others run alone and survive                   cleared: 20 × 0 counted losses
    poison runs alone, its worker dies, three times    4 losses > 3: the next claim gives it up
"""

from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.event import ENDING_KINDS, Event, EventKind
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Execution,
    Failure,
    Flags,
    Hold,
    Lease,
    Life,
    Lost,
    Next,
    Outcome,
    Probation,
    Snapshot,
)

MAX_LOSSES = 1000
"""The most losses of an execution, excused or not, unless its cap is higher."""

GIVEN_UP = Failure(message="max_reclaims_exceeded", category="infra_crash")


def over_cap(execution: Execution, life: Life) -> bool:
    """Whether a lost execution may no longer be taken over.

    A cap set by the submitter also counts revoked leases; the default cap counts only what may be
    the execution's fault.
    """
    cap = execution.reclaim_cap
    revokes = life.revokes if execution.rules.reclaim_cap is None else 0
    return life.losses - life.excused - revokes > cap or life.losses > max(cap, MAX_LOSSES)


def marked(execution: Execution, flags: Flags, life: Life, *, suspect: bool) -> Flags:
    """The flags of a lost execution. One that the next claim gives up is not a suspect."""
    clean = flags & ~(Flags.SUSPECT | Flags.SPENT)
    if over_cap(execution, life):
        return clean | Flags.SPENT
    return clean | Flags.SUSPECT if suspect or flags & Flags.SUSPECT else clean


def lost_life(life: Life, *, revoked: bool) -> Life:
    """The counts after one more loss. A loss beside others proves nothing: another one may be
    guilty."""
    return replace(
        life,
        losses=life.losses + 1,
        excused=life.excused + (life.probation is Probation.BESIDE),
        revokes=life.revokes + revoked,
        max_reclaims=None,
        probation=None,
    )


def losses_kept(snapshot: Snapshot) -> tuple[int, int]:
    """The losses that a replay starts with, and how many of them count: none under the default
    cap."""
    life, cap = snapshot.life, snapshot.execution.reclaim_cap
    is_default = snapshot.execution.rules.reclaim_cap is None
    counted = 0 if is_default else min(life.losses - life.excused, cap)
    return min(life.losses, cap), counted


def give_up(snapshot: Snapshot | None, now: Millis, lease: Lease) -> "Change[Snapshot | None]":
    """Ends a spent execution that a claim took, as if the claim had not touched it. If its worker
    has a reclaim grant with a higher cap, it takes the execution over instead, and gets it as it
    is then. Does nothing if another owner has it by now."""
    match snapshot:
        case Snapshot(state=Active(lease=current)) if current.id == lease.id:
            if not snapshot.head.flags & Flags.SPENT:
                return unchanged(snapshot)  # a repeat: this claim has taken it over
            if is_granted(snapshot.life, current.worker.id, current.started_at):
                return _take_over(snapshot, now, current)
            return end_lost(snapshot, now, current.attempt - 1).answering(None)
        case _:
            return unchanged(None)


def is_granted(life: Life, worker: str, now: Millis) -> bool:
    """Whether a claim of this worker redeems a reclaim grant that has room under its own cap. A
    grant that has expired is none."""
    grant, cap = life.grant, life.max_reclaims
    if grant is None or cap is None or life.losses > cap:
        return False
    return grant.worker == worker and grant.expires_at > now


def _take_over(snapshot: Snapshot, now: Millis, lease: Lease) -> "Change[Snapshot]":
    """The claim has left out the epoch and the event of a spent execution."""
    head = snapshot.head
    flags, epoch = head.flags & ~Flags.SPENT, head.epoch + 1
    after = snapshot.to(snapshot.state, epoch=epoch, flags=flags)
    event = Event(
        uuid=snapshot.execution.uuid,
        at=now,
        kind=EventKind.RECLAIMED,
        epoch=epoch,
        attempt=lease.attempt,
        worker=lease.worker,
    )
    return Change(after, snapshot, after, (event,))


def end_lost(snapshot: Snapshot, now: Millis, attempt: int) -> "Change[bool]":
    """The lost attempt was the last one. A reclaim grant is used up."""
    lapsed, cleanup = snapshot.life.lapsed, snapshot.life.cleanup
    failure = GIVEN_UP if cleanup is None else snapshot.life.failure
    event = Event(
        uuid=snapshot.execution.uuid,
        at=now,
        kind=EventKind.RECLAIMS_EXCEEDED if cleanup is None else ENDING_KINDS[cleanup.outcome],
        epoch=snapshot.head.epoch,
        attempt=attempt,
        worker=lapsed.worker if lapsed else None,
    )
    after = snapshot.to(
        Ended(
            outcome=Outcome.FAILED if cleanup is None else cleanup.outcome,
            ended_at=now,
            attempt=attempt,
        ),
        life=replace(snapshot.life, failure=failure, grant=None),
        flags=snapshot.head.flags & ~Flags.SPENT,
    )
    return Change(True, snapshot, after, (event,))


def put_back(snapshot: Snapshot, lease: Lease) -> "Change[Lease]":
    """The process that took a spent execution died before it gave it up: the next claim will."""
    next = Next(lease.start, lease.attempt, snapshot.execution.rules.attempt_timeout)
    lapsed, grant = snapshot.life.lapsed, snapshot.life.grant
    revoked = lapsed is not None and lapsed.revoked
    hold = None if grant is None else Hold(grant.expires_at, grant.worker)
    return Change(lease, snapshot, snapshot.to(Lost(revoked, next, hold)))
