"""Clean-up: a run that asked for it is not ended at once by a cancel, nor by its last failure.

The wish is stored with the run: by its policy (`cleanup_policy`, for a cancel), or by compensations
that its handler has recorded (`life.undo_time`, for a cancel and for a failure). A run that never
ran, and one without the wish, ends at once.

    cancelled while it runs          its lease stays; the worker tells the handler
    cancelled while it waits         it is woken: the next claim tells the handler
    the worker dies                  another one takes it over and continues the clean-up
    the handler has cleaned up       the run ends as cancelled (or failed, or expired)
    it has not by `cleanup.until`    the sweep ends the run all the same
"""

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import NotEligible
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.ending import end, event_of
from flowfabric.core.execution.event import ENDING_KINDS, Event, EventKind
from flowfabric.core.execution.gate import admit
from flowfabric.core.execution.lease import (
    Owner,
    ended_by,
    enter,
    lease_event,
    present,
    required_fence,
)
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Failure,
    Flags,
    Life,
    Lost,
    Next,
    Outcome,
    Ready,
    Snapshot,
    State,
    Suspended,
    Waiting,
)
from flowfabric.core.execution.outcome import Cleanup
from flowfabric.core.execution.status import PublicState, public_state


class CleanedUp(Struct, frozen=True):
    """The run has ended after its clean-up."""

    id: ExecutionId
    state: PublicState


class Compensated(Struct, frozen=True):
    """The run has a compensation, so that it is cleaned up before it ends without success."""

    id: ExecutionId


def cleanup_time(snapshot: Snapshot) -> Millis | None:
    """How long the clean-up after a cancel may take; None if the run is cancelled at once."""
    if snapshot.attempts_made == 0:
        return None
    times = [snapshot.life.undo_time, snapshot.execution.rules.cleanup_time]
    return max((each for each in times if each is not None), default=None)


def begin(
    snapshot: Snapshot, now: Millis, life: Life, outcome: Outcome, span: Millis, reason: str
) -> tuple[Snapshot, Event]:
    """The execution in its clean-up, which may be claimed or keeps its lease. The attempt has no
    timeout any more."""
    cleanup = Cleanup(
        since=now, until=Millis(now + span), epoch=snapshot.head.epoch, outcome=outcome
    )
    life = replace(
        life,
        cleanup=cleanup,
        not_before=None,
        delay=None,
        blocked=None,
        detail=None,
        code=None,
        budget=None,
        grant=None,  # a cancel destroys it
    )
    flags = snapshot.head.flags | Flags.CLEANUP
    state = _going_on(snapshot, now, life, flags)
    detail = {"reason": reason, "until": cleanup.until}
    if isinstance(snapshot.state, Active):
        event = lease_event(snapshot, now, snapshot.state.lease, EventKind.CLEANING_UP, **detail)
    else:
        event = event_of(snapshot, now, EventKind.CLEANING_UP, detail)
    return snapshot.to(state, life=life, flags=flags), event


def is_unheard(snapshot: Snapshot) -> bool:
    """Whether the clean-up began under the current lease, whose handler may not know of it: it must
    not sleep or wait now, so that the next claim tells it."""
    cleanup = snapshot.life.cleanup
    return cleanup is not None and cleanup.epoch == snapshot.head.epoch


def finish(
    snapshot: Snapshot | None, now: Millis, owner: Owner, failure: Failure | None = None
) -> "Change[CleanedUp]":
    """The handler has cleaned up: the run ends as its clean-up says. A `failure` is what could not
    be cleaned up."""
    snapshot = present(snapshot)
    required_fence(owner)
    cleanup = snapshot.life.cleanup
    if cleanup is not None and ended_by(snapshot, owner.fence):
        return unchanged(CleanedUp(snapshot.execution.id, public_state(snapshot)))
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    if cleanup is None:
        raise NotEligible(f"{snapshot.run} is not being cancelled, so it has nothing to clean up")
    return end_after(snapshot, now, cleanup, failure=failure)


def end_after(
    snapshot: Snapshot, now: Millis, cleanup: Cleanup, *, failure: Failure | None = None
) -> "Change[CleanedUp]":
    """Ends an execution with the outcome that its clean-up began with. Only a cancelled one takes a
    failure of its clean-up as its own: the others keep the one that has ended them."""
    life = snapshot.life
    if failure is not None and cleanup.outcome is Outcome.CANCELLED:
        life = replace(life, failure=failure)
    reason = _reason(life, cleanup)
    change = end(snapshot, now, cleanup.outcome, ENDING_KINDS[cleanup.outcome], life, reason)
    return change.answering(
        CleanedUp(snapshot.execution.id, public_state(change.after or snapshot))
    )


def compensate(
    snapshot: Snapshot | None, now: Millis, owner: Owner, undo_time: Millis
) -> "Change[Compensated]":
    """The owner has a compensation; from now on the run is cleaned up before it ends without
    success. Saying so again changes nothing."""
    snapshot = present(snapshot)
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    answer = Compensated(snapshot.execution.id)
    if snapshot.life.undo_time is not None:
        return unchanged(answer)
    after = snapshot.to(Active(lease), life=replace(snapshot.life, undo_time=undo_time))
    return Change(answer, snapshot, after)


def _going_on(snapshot: Snapshot, now: Millis, life: Life, flags: Flags) -> State:
    match snapshot.state:
        case Active(lease=lease):
            return Active(replace(lease, times_out_at=None))
        case Lost(revoked=revoked, next=next):
            return Lost(revoked, _untimed(next))
        case Ready(next=next):
            return Ready(_untimed(next))
        case Waiting(next=next) | Suspended(next=next):
            return admit(life, _untimed(next), now, flags)
        case Ended():
            return snapshot.state


def _untimed(next: Next) -> Next:
    return replace(next, timeout=None)


def _reason(life: Life, cleanup: Cleanup) -> str:
    if cleanup.outcome is Outcome.CANCELLED:
        return life.cancel_reason or ""
    message = life.failure.message if life.failure is not None else ""
    return "failed" if cleanup.outcome is Outcome.FAILED else f"expired:{message}"
