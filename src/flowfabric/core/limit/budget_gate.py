"""The budget gate: an execution that was claimed although its budget is used up goes back and
waits. One that a search for an execution to grant finds first waits as well, so that the search
reaches the others."""

from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import hand_back
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.gate import gated
from flowfabric.core.execution.lease import Owner, fence_of, lease_event, without_given
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
"""Claiming one of these starts new work. An execution that has started is never sent back."""


def is_new_work(snapshot: Snapshot, start: Start) -> bool:
    """Whether claiming the execution with this start is stopped by a budget. The clean-up of a run
    is the end of its work, also if the run was cancelled before a retry."""
    return start in STARTS and snapshot.life.cleanup is None


def is_start(snapshot: Snapshot) -> bool:
    """Whether the claimed attempt is new work."""
    state = snapshot.state
    return isinstance(state, Active) and is_new_work(snapshot, state.lease.start)


def turn_away(
    snapshot: Snapshot | None, now: Millis, lease: Lease, why: Exhausted
) -> "Change[bool]":
    """Gives a lease back before its handler starts: everything is as before the claim, except the
    epoch, and the execution waits for the budget. False if another owner has it by now."""
    if snapshot is None or not _holds(snapshot, lease):
        return unchanged(False)
    after = _unbegun(snapshot, now, lease, why)
    event = lease_event(snapshot, now, lease, EventKind.TURNED_AWAY, detail=str(why))
    return Change(True, snapshot, after, (event,))


def hold_back(snapshot: Snapshot | None, now: Millis, why: Exhausted) -> "Change[bool]":
    """An execution that no worker has yet waits for its budget. False if it was claimed or granted
    by now."""
    match snapshot:
        case Snapshot(state=Ready(next=next, hold=hold)) if is_new_work(snapshot, next.start):
            if hold is not None and hold.alive(now):
                return unchanged(False)
            life = replace(snapshot.life, budget=why.budget, detail=str(why), touched_at=now)
            after = gated(snapshot, now, next, life)
            return Change(True, snapshot, after)
        case _:
            return unchanged(False)


def take_back(snapshot: Snapshot | None, now: Millis, lease: Lease) -> "Change[bool]":
    """Undoes a claim whose budgets could not be read. A started attempt continues; new work stays
    new work, so that its budgets are checked at the next claim."""
    if snapshot is None or not _holds(snapshot, lease):
        return unchanged(False)
    if lease.start not in STARTS:
        return hand_back(snapshot, now, Owner.of(fence_of(snapshot, lease))).answering(True)
    event = lease_event(snapshot, now, lease, EventKind.HANDED_BACK)
    return Change(True, snapshot, _unbegun(snapshot, now, lease), (event,))


def let_in(snapshot: Snapshot | None, now: Millis, budget: str) -> "Change[bool]":
    """The budget has room again: checks the remaining gates."""
    match snapshot:
        case Snapshot(state=Waiting(gate=Gate.BUDGET, next=next)) if snapshot.life.budget == budget:
            life = replace(snapshot.life, budget=None, detail=None, touched_at=now)
            after = gated(snapshot, now, next, life)
            return Change(True, snapshot, after)
        case _:
            return unchanged(False)


def give_slot_back(snapshot: Snapshot | None, now: Millis) -> "Change[bool]":
    """An execution that no worker can take gives its slot back and returns to its place in its
    line. One that was granted meanwhile keeps it."""
    match snapshot:
        case Snapshot(state=Ready(next=next, hold=hold)) if snapshot.head.flags & Flags.LIMITS:
            if hold is not None and hold.alive(now):
                return unchanged(False)
            after = gated(snapshot, now, next, snapshot.life)
            return Change(True, snapshot, after)
        case _:
            return unchanged(False)


def _unbegun(
    snapshot: Snapshot, now: Millis, lease: Lease, why: Exhausted | None = None
) -> Snapshot:
    """The execution as before the claim, which may have given the attempt an id, a policy and a
    time, and the execution a deadline. It waits for the budget, if one is used up."""
    head = without_given(snapshot, lease.attempt)
    life = head.life if why is None else replace(head.life, budget=why.budget, detail=str(why))
    timed = lease.times_out_at is not None
    timeout = snapshot.execution.rules.attempt_timeout if timed else None
    return gated(snapshot, now, Next(lease.start, lease.attempt, timeout), life, head.flags)


def _holds(snapshot: Snapshot, lease: Lease) -> bool:
    match snapshot.state:
        case Active(lease=current):
            return (current.id, current.attempt) == (lease.id, lease.attempt)
        case _:
            return False
