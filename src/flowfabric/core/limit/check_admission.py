"""Asks a quota to admit one execution: admitted now, or why not; and gives its room back.

A positive answer takes the room: in every quota that the execution uses or in none, exactly like a
release. The ready row is the slot, and the start counts in the window. Room that is given back is
free at once: the execution stays out of its line for a while, or until it is asked for again.
"""

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotEligible
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.lease import not_active
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Gate,
    Lost,
    Next,
    Ready,
    Snapshot,
    Start,
    Waiting,
)
from flowfabric.core.execution.operator import block
from flowfabric.core.execution.status import Blocking
from flowfabric.core.limit.quota import queue_of
from flowfabric.core.limit.release import Candidate, QuotaView, Release, Room, release


class Admitted(Struct, frozen=True):
    """The execution has room in its quotas. `already`: it had room before, so nothing was taken."""

    id: ExecutionId
    already: bool = False


class RateExceeded(Struct, frozen=True):
    """The rate of a quota allows no start now, but may after `retry_after` milliseconds."""

    quota: str
    retry_after: Millis


class ConcurrencyExceeded(Struct, frozen=True):
    """A quota has no free slot: `taken` of `cap`, for the whole quota or for the execution's
    key."""

    quota: str
    cap: int
    taken: int


class AdmissionReleased(Struct, frozen=True):
    """The execution has no room in its quotas, whether or not it had any."""

    id: ExecutionId


Refused = RateExceeded | ConcurrencyExceeded
Admission = Admitted | Refused


def has_room(snapshot: Snapshot, quota: str) -> bool:
    """Whether the execution already has its room; False if it waits for it. Raises in any other
    state."""
    if all(use.quota != quota for use in snapshot.execution.uses):
        raise Invalid(f"{snapshot.run} does not use quota {quota!r}")
    match snapshot.state:
        case Ready() | Active() | Lost():
            return True
        case Waiting(gate=Gate.LIMIT):
            return False
        case Ended():
            raise not_active(snapshot)
        case _:
            raise NotEligible(f"{snapshot.run} does not wait for its limits")


def gave_back(snapshot: Snapshot) -> bool:
    """Whether the execution stays out of its line, because its room was given back or it was
    blocked for its quota."""
    state = snapshot.state
    blocked = isinstance(state, Waiting) and state.gate is Gate.BLOCKED
    return blocked and snapshot.life.blocked == Blocking.QUOTA


def give_back(snapshot: Snapshot | None, now: Millis, quota: str) -> "Change[object]":
    """An execution that no worker has yet gives its room back. Refused while a worker has it or a
    grant on it: the room is theirs."""
    if snapshot is None or all(use.quota != quota for use in snapshot.execution.uses):
        return unchanged(None)
    match snapshot.state:
        case Ready(hold=hold):
            if hold is not None and hold.alive(now):
                raise NotEligible(f"{snapshot.run} is granted to a worker, which has its room")
            detail = f"its room in quota {quota} was given back"
            return block(snapshot, now, str(Blocking.QUOTA), detail)
        case Active() | Lost():
            raise NotEligible(f"{snapshot.run} has started; it gives its room back when it ends")
        case _:
            return unchanged(None)


def admit_one(
    snapshot: Snapshot, now: Millis, quota: str, view: QuotaView
) -> Release | Refused | None:
    """The release of this execution, or why it is refused; None if its line was not loaded, because
    the execution has moved on."""
    uses, state = snapshot.execution.uses, snapshot.state
    lines = [line for line in view.lines if line.id == queue_of(uses)]
    if not lines or not isinstance(state, Waiting):
        return None
    starts = _starts(state.next)
    refused = _refused(Room(view, now), snapshot, quota, now, starts=starts)
    if refused is not None:
        return refused
    candidate = Candidate(
        snapshot.execution.uuid, snapshot.head.version, snapshot.head.rank, starts
    )
    alone = replace(view, lines=[replace(lines[0], waiting=[candidate])])
    return release(alone, now, 1)


def _starts(next: Next) -> bool:
    return next.start is not Start.CONTINUE


def _refused(
    room: Room, snapshot: Snapshot, quota: str, now: Millis, *, starts: bool
) -> Refused | None:
    """Why it is refused: the rate first, then concurrency; of several quotas, the one that was
    asked."""
    uses = snapshot.execution.uses
    used_up = room.used_up(uses) if starts else []
    if used_up:
        named = [wait for wait in used_up if wait.use.quota == quota] or used_up
        opens_at = max(wait.opens_at for wait in used_up)
        return RateExceeded(named[0].use.quota, Millis(max(0, opens_at - now)))
    full = room.full(uses)
    if full:
        first = next((each for each in full if each.use.quota == quota), full[0])
        return ConcurrencyExceeded(first.use.quota, first.cap, first.taken)
    return None
