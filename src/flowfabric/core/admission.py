"""Budgets at the door: who was taken although a budget is spent goes back and waits for it."""

from msgspec.structs import replace

from flowfabric.core.budget import Exhausted
from flowfabric.core.change import Change, unchanged
from flowfabric.core.event import EventKind
from flowfabric.core.execution import Active, Gate, Lease, Next, Snapshot, Start, Waiting
from flowfabric.core.gate import admit
from flowfabric.core.lease import lease_event
from flowfabric.core.time import Millis

STARTS = frozenset({Start.INITIAL, Start.RETRY, Start.REPLAY})
"""Taking one of these is new work. What runs already is never turned away."""


def is_start(snapshot: Snapshot) -> bool:
    """Whether the attempt that was just taken is new work."""
    state = snapshot.state
    return isinstance(state, Active) and state.lease.start in STARTS


def turn_away(
    snapshot: Snapshot | None, lease: Lease, why: Exhausted, now: Millis
) -> "Change[bool]":
    """Gives a lease back before anybody has worked under it: everything is as before the take, but
    for the epoch, and it waits for the budget. False when somebody else has it meanwhile."""
    if snapshot is None or not _holds(snapshot, lease):
        return unchanged(False)
    spent = None if lease.times_out_at is None else Millis(lease.times_out_at - lease.started_at)
    life = replace(snapshot.life, budget=why.budget, detail=str(why))
    next = Next(lease.start, lease.attempt, spent)
    after = snapshot.to(admit(life, next, now, snapshot.head.flags), life=life)
    event = lease_event(snapshot, lease, EventKind.TURNED_AWAY, now, detail=str(why))
    return Change(True, snapshot, after, (event,))


def let_in(snapshot: Snapshot | None, budget: str, now: Millis) -> "Change[bool]":
    """The budget it waits for has room again: the rest of the gates are asked."""
    match snapshot:
        case Snapshot(state=Waiting(gate=Gate.BUDGET, next=next)) if snapshot.life.budget == budget:
            life = replace(snapshot.life, budget=None, detail=None)
            after = snapshot.to(admit(life, next, now, snapshot.head.flags), life=life)
            return Change(True, snapshot, after)
        case _:
            return unchanged(False)


def _holds(snapshot: Snapshot, lease: Lease) -> bool:
    match snapshot.state:
        case Active(lease=current):
            return (current.id, current.attempt) == (lease.id, lease.attempt)
        case _:
            return False
