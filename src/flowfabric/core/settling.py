"""How endings of upstreams reach an execution: its join counts them, fires once, and then the
execution may run or is skipped."""

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.attempt import Delayed, pause_attempt, released, same_release
from flowfabric.core.change import Change, unchanged
from flowfabric.core.chore import SIBLING, Chore, ChoreKind
from flowfabric.core.control import Replayed, check_replay, reborn, replay
from flowfabric.core.ending import end, event_of
from flowfabric.core.event import EventKind
from flowfabric.core.execution import (
    Ended,
    Gate,
    Life,
    Next,
    Outcome,
    Snapshot,
    Start,
    Waiting,
)
from flowfabric.core.gate import admit
from flowfabric.core.history import closing_attempts, inline_attempts
from flowfabric.core.join import EdgeState, Join, JoinState, count, evaluate
from flowfabric.core.lease import Owner, enter, lease_event, present
from flowfabric.core.time import Millis
from flowfabric.core.vector import vector
from flowfabric.core.waits import Ask, Memory

IMPOSSIBLE = "dependency_impossible"
WAIT_CHILDREN = "wait_children"


class Settlement(NamedTuple):
    """An edge, how its upstream ended, and with which version (None: it certainly counts)."""

    edge: UUID
    outcome: Outcome
    number: int | None = None


class Settled(Struct, frozen=True):
    """`edges` of those asked for were settled now; the join is as it stands afterwards."""

    edges: int
    join: Join | None


def ask_to_settle(snapshot: Snapshot | None, settlements: tuple[Settlement, ...]) -> Ask | None:
    if snapshot is None:
        return None
    return Ask(snapshot.execution.uuid, edges=tuple(told[0] for told in settlements))


def settle(
    snapshot: Snapshot | None, now: Millis, settlements: tuple[Settlement, ...], memory: Memory
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


def wait_children(snapshot: Snapshot | None, owner: Owner, now: Millis) -> "Change[Delayed]":
    """Gives the lease up until the executions this one depends on have ended; the same attempt
    goes on then, or at once if they have."""
    snapshot = present(snapshot)
    if same_release(snapshot, owner.fence, WAIT_CHILDREN):
        return unchanged(Delayed(snapshot.execution.id, vector(snapshot).public))
    lease = enter(snapshot, owner, now)
    if isinstance(lease, Change):
        return lease
    life, next = pause_attempt(snapshot, lease, now, WAIT_CHILDREN)
    life = replace(life, not_before=None, released=released(snapshot, lease, WAIT_CHILDREN, None))
    after = snapshot.to(admit(life, next, now, snapshot.head.flags), life=life)
    return Change(
        Delayed(snapshot.execution.id, vector(after).public),
        snapshot,
        after,
        (lease_event(snapshot, lease, EventKind.WAITING_CHILDREN, now),),
        closing_attempts(snapshot),
    )


def ask_to_replay(snapshot: Snapshot | None) -> Ask | None:
    """Incoming edges, where a replay must wait for some of them again."""
    if snapshot is None or not _is_hopeless(snapshot):
        return None
    return Ask(snapshot.execution.uuid, incoming=True)


def replay_member(
    snapshot: Snapshot | None, now: Millis, memory: Memory, versions: Mapping[UUID, int]
) -> "Change[Replayed]":
    """Runs an ended member again. One whose join had become impossible waits anew, also if it was
    cancelled or expired before that; `versions` are those of its upstreams."""
    if ask_to_replay(snapshot) is None:
        return replay(snapshot, now)
    return replay_skipped(snapshot, now, memory, versions)


def replay_skipped(
    snapshot: Snapshot | None, now: Millis, memory: Memory, versions: Mapping[UUID, int]
) -> "Change[Replayed]":
    """A skipped member waits again for the upstreams that did not end as it needs; those that did
    still count."""
    snapshot = present(snapshot)
    ended = check_replay(snapshot)
    join = snapshot.life.join or Join()
    lacking = [edge for edge in memory.edges.values() if _is_lacking(edge)]
    kept = sum(edge.satisfied for edge in memory.edges.values())
    join = replace(
        join,
        succeeded=kept,
        failed=0,
        skipped=0,
        state=JoinState.PENDING,
        fired_at=None,
        floors={edge.edge.id.hex: versions.get(edge.edge.upstream, 0) for edge in lacking},
    )
    life, flags = reborn(snapshot, ended, now)
    life = replace(life, join=evaluate(join, now))
    next = Next(Start.REPLAY, snapshot.attempts_made, snapshot.execution.rules.attempt_timeout)
    after = snapshot.to(admit(life, next, now, flags), life=life, flags=flags)
    detail = {"branch": "skipped_flow_member", "groups_reset": 1}
    return Change(
        Replayed(snapshot.execution.id, vector(after).public),
        snapshot,
        after,
        (event_of(snapshot, EventKind.REPLAYED, now, detail),),
        inline_attempts(snapshot),
        settled=tuple((edge.edge.id, None) for edge in lacking),
    )


def _is_hopeless(snapshot: Snapshot) -> bool:
    join = snapshot.life.join
    lost = join is not None and join.state is JoinState.IMPOSSIBLE
    return lost and isinstance(snapshot.state, Ended)


def _is_lacking(edge: EdgeState) -> bool:
    return edge.outcome is not None and not edge.satisfied


def _is_open(memory: Memory, told: Settlement, snapshot: Snapshot) -> bool:
    known, join = memory.edges.get(told.edge), snapshot.life.join
    if known is None or join is None or known.outcome is not None:
        return False
    floor = join.floors.get(told.edge.hex)
    fresh = floor is None or told.number is None or told.number > floor
    return fresh and known.edge.downstream == snapshot.execution.uuid


def _passed(snapshot: Snapshot, life: Life, now: Millis) -> Snapshot:
    match snapshot.state:
        case Waiting(gate=Gate.DEPENDENCIES, next=next):
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


def siblings(after: Snapshot | None, join: Join) -> tuple[Chore, ...]:
    """What a join owes that has just fired: the cancel of those that still run."""
    if after is None or after.execution.flow is None or not join.cancels_rest:
        return ()
    id, number = after.execution.uuid, after.head.version
    return (Chore(after.execution.flow, id, number, ChoreKind.SIBLINGS),)
