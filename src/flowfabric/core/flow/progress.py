"""How endings of upstreams reach an execution: its join counts them, fires once, and then the
execution may run or is skipped."""

from typing import NamedTuple
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import Delayed, pause_attempt, released, same_release
from flowfabric.core.execution.attempts import closing_attempts
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.ending import end
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.gate import admit
from flowfabric.core.execution.lease import Owner, enter, lease_event, present
from flowfabric.core.execution.model import (
    Ended,
    Gate,
    Life,
    Outcome,
    Snapshot,
    Waiting,
)
from flowfabric.core.execution.status import vector
from flowfabric.core.flow.join import Join, JoinState, count, evaluate
from flowfabric.core.flow.outbox import SIBLING, OutboxEntry, OutboxKind
from flowfabric.core.wait.model import Loaded, Needs

IMPOSSIBLE = "dependency_impossible"
WAIT_CHILDREN = "wait_children"


class Settlement(NamedTuple):
    """An edge and how its upstream ended. Which ending that is: the version it was written with
    or, where only the ended upstream was seen, how often that was replayed before (`round`)."""

    edge: UUID
    outcome: Outcome
    number: int | None = None
    round: int | None = None


class Settled(Struct, frozen=True):
    """`edges` of those asked for were settled now; the join is as it stands afterwards."""

    edges: int
    join: Join | None


def ask_to_settle(snapshot: Snapshot | None, settlements: tuple[Settlement, ...]) -> Needs | None:
    if snapshot is None:
        return None
    return Needs(snapshot.execution.uuid, edges=tuple(told[0] for told in settlements))


def settle(
    snapshot: Snapshot | None, now: Millis, settlements: tuple[Settlement, ...], memory: Loaded
) -> "Change[Settled]":
    """Counts endings of upstreams, each edge once however often it is told. If that fires the
    join the execution passes the door, or is skipped in the same change."""
    if snapshot is None:
        return unchanged(Settled(0, None))
    join = snapshot.life.join
    told = [Settlement(*each) for each in settlements]
    fresh = [(each.edge, each.outcome) for each in told if _is_open(memory, each, snapshot)]
    if join is None or not fresh:
        return unchanged(Settled(0, join))
    for edge, outcome in fresh:
        join = count(join, memory.edges[edge].edge.on, outcome)
    if not snapshot.life.unsealed:
        join = evaluate(join, now)
    return replace(join_changed(snapshot, join, now), settled=tuple(fresh))


def join_changed(snapshot: Snapshot, join: Join, now: Millis) -> "Change[Settled]":
    """The execution with a new join, and what follows if it has just fired."""
    before = snapshot.life.join
    life = replace(snapshot.life, join=join)
    answer = Settled(join.succeeded + join.failed + join.skipped, join)
    open = before is None or not before.n or before.state is JoinState.PENDING
    fired = open and join.state is not JoinState.PENDING
    if isinstance(snapshot.state, Ended) or not fired:
        return Change(answer, snapshot, snapshot.to(snapshot.state, life=life))
    if join.state is JoinState.IMPOSSIBLE:
        change: Change[Settled] = replace(_skip(snapshot, life, now), outcome=answer)
    else:
        change = Change(answer, snapshot, _passed(snapshot, life, now))
    return replace(change, owed=siblings(change.after, join))


def sibling_reason(join: Join) -> str:
    """Why the upstreams of a join that has fired are cancelled."""
    return f"{SIBLING}quorum_{join.state}"


def wait_children(snapshot: Snapshot | None, now: Millis, owner: Owner) -> "Change[Delayed]":
    """Gives the lease up until the executions this one depends on have ended; the same attempt
    goes on then, or at once if they have."""
    snapshot = present(snapshot)
    if same_release(snapshot, owner.fence, WAIT_CHILDREN):
        return unchanged(Delayed(snapshot.execution.id, vector(snapshot).public))
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    life, next = pause_attempt(snapshot, now, lease, WAIT_CHILDREN)
    life = replace(life, not_before=None, released=released(snapshot, lease, WAIT_CHILDREN, None))
    after = snapshot.to(admit(life, next, now, snapshot.head.flags), life=life)
    return Change(
        Delayed(snapshot.execution.id, vector(after).public),
        snapshot,
        after,
        (lease_event(snapshot, now, lease, EventKind.WAITING_CHILDREN),),
        closing_attempts(snapshot),
    )


def _is_open(memory: Loaded, told: Settlement, snapshot: Snapshot) -> bool:
    known, join = memory.edges.get(told.edge), snapshot.life.join
    if known is None or join is None or known.outcome is not None:
        return False
    if known.edge.downstream != snapshot.execution.uuid:
        return False
    floor, last = join.floors.get(told.edge.hex), join.rounds.get(told.edge.hex)
    if told.round is not None:
        return last is None or told.round > last
    return floor is None or told.number is None or told.number > floor


def _passed(snapshot: Snapshot, life: Life, now: Millis) -> Snapshot:
    match snapshot.state:
        case Waiting(gate=Gate.DEPENDENCIES, next=next):
            life = replace(life, touched_at=now)
            return snapshot.to(admit(life, next, now, snapshot.head.flags), life=life)
        case _:
            return snapshot.to(snapshot.state, life=life)


def _skip(snapshot: Snapshot, life: Life, now: Millis) -> "Change[Settled]":
    """One that never ran is skipped; one with an attempt in hand is cancelled, its lease with
    it: nothing that ran was skipped."""
    if snapshot.current_attempt is None:
        return end(snapshot, now, Outcome.SKIPPED, EventKind.SKIPPED, life, IMPOSSIBLE)
    life = replace(life, cancel_reason=IMPOSSIBLE, cancelled_by="flow_cascade")
    return end(snapshot, now, Outcome.CANCELLED, EventKind.CANCELLED, life, IMPOSSIBLE)


def siblings(after: Snapshot | None, join: Join) -> tuple[OutboxEntry, ...]:
    """What a join owes that has just fired: the cancel of those that still run."""
    if after is None or after.execution.flow is None or not join.cancels_rest:
        return ()
    id, number = after.execution.uuid, after.head.version
    return (OutboxEntry(after.execution.flow, id, number, OutboxKind.SIBLINGS),)
