"""Budgets at the door: who was taken although a budget is spent goes back and waits for it."""

from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import hand_back
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.gate import admit
from flowfabric.core.execution.lease import Owner, fence_of, lease_event
from flowfabric.core.execution.model import (
    Active,
    Flags,
    Gate,
    Lease,
    Next,
    Ready,
    Snapshot,
    Start,
    Waiting,
)
from flowfabric.core.limit.budget import Exhausted
from flowfabric.core.limit.lane import BEGINS

STARTS = BEGINS | {Start.RETRY}
"""Taking one of these is new work. What runs already is never turned away."""


def is_start(snapshot: Snapshot) -> bool:
    """Whether the attempt that was just taken is new work."""
    state = snapshot.state
    return isinstance(state, Active) and state.lease.start in STARTS


def turn_away(
    snapshot: Snapshot | None, now: Millis, lease: Lease, why: Exhausted
) -> "Change[bool]":
    """Gives a lease back before anybody has worked under it: everything is as before the take, but
    for the epoch, and it waits for the budget. False when somebody else has it meanwhile."""
    if snapshot is None or not _holds(snapshot, lease):
        return unchanged(False)
    life = replace(snapshot.life, budget=why.budget, detail=str(why))
    next = Next(lease.start, lease.attempt, _span(lease))
    after = snapshot.to(admit(life, next, now, snapshot.head.flags), life=life)
    event = lease_event(snapshot, now, lease, EventKind.TURNED_AWAY, detail=str(why))
    return Change(True, snapshot, after, (event,))


def take_back(snapshot: Snapshot | None, now: Millis, lease: Lease) -> "Change[bool]":
    """Undoes a take whose budgets could not be asked. What runs already goes on in the same
    attempt; new work stays new work, so that its budgets are asked the next time."""
    if snapshot is None or not _holds(snapshot, lease):
        return unchanged(False)
    if lease.start not in STARTS:
        change = hand_back(snapshot, now, Owner.of(fence_of(snapshot, lease)))
        return Change(True, change.before, change.after, change.events, change.attempts)
    next = Next(lease.start, lease.attempt, _span(lease))
    after = snapshot.to(admit(snapshot.life, next, now, snapshot.head.flags))
    return Change(
        True, snapshot, after, (lease_event(snapshot, now, lease, EventKind.HANDED_BACK),)
    )


def let_in(snapshot: Snapshot | None, now: Millis, budget: str) -> "Change[bool]":
    """The budget it waits for has room again: the rest of the gates are asked."""
    match snapshot:
        case Snapshot(state=Waiting(gate=Gate.BUDGET, next=next)) if snapshot.life.budget == budget:
            life = replace(snapshot.life, budget=None, detail=None, touched_at=now)
            after = snapshot.to(admit(life, next, now, snapshot.head.flags), life=life)
            return Change(True, snapshot, after)
        case _:
            return unchanged(False)


def give_slot_back(snapshot: Snapshot | None, now: Millis) -> "Change[bool]":
    """One that nobody can take gives its slot back and waits in its line again, at its place."""
    match snapshot:
        case Snapshot(state=Ready(next=next)) if snapshot.head.flags & Flags.LIMITS:
            after = snapshot.to(admit(snapshot.life, next, now, snapshot.head.flags))
            return Change(True, snapshot, after)
        case _:
            return unchanged(False)


def _span(lease: Lease) -> Millis | None:
    """The time the attempt has, as if it had not begun."""
    if lease.times_out_at is None:
        return None
    return Millis(lease.times_out_at - lease.started_at)


def _holds(snapshot: Snapshot, lease: Lease) -> bool:
    match snapshot.state:
        case Active(lease=current):
            return (current.id, current.attempt) == (lease.id, lease.attempt)
        case _:
            return False
