"""How endings of upstreams reach an execution: its join counts them, fires once, and then the
execution may run or is skipped."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import (
    Delayed,
    give_up_lease,
    pause_attempt,
    repeated_pause,
)
from flowfabric.core.execution.attempts import IMPOSSIBLE, closing_attempts
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.cleanup import cleanup_time
from flowfabric.core.execution.ending import end
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.gate import admit
from flowfabric.core.execution.lease import Owner, Taking, enter, lease_event, present, take
from flowfabric.core.execution.model import (
    Ended,
    Flags,
    Gate,
    Life,
    Outcome,
    Ready,
    Snapshot,
    Waiting,
)
from flowfabric.core.flow.join import (
    EdgeState,
    Join,
    JoinState,
    count,
    evaluate,
    remember_last,
    satisfies,
)
from flowfabric.core.flow.outbox import SIBLING, MemberEnding, OutboxEntry, OutboxKind
from flowfabric.core.wait.model import Loaded, Needs
from flowfabric.core.wait.resume import clean_up_first

WAIT_CHILDREN = "wait_children"
FEW = 8
"""A member with at most so many open edges settles them by the very commit that ends it."""

_ASKED_FIRST = int(Flags.BUDGETS | Flags.SUSPECT | Flags.SPENT)
"""What a claim asks for more than a free slot: a budget, a turn of its own, another takeover."""


class Settlement(NamedTuple):
    """An edge and how its upstream ended. Which ending that is: the version it was written with
    or, where only the ended upstream was seen, how often that was replayed before (`round`)."""

    edge: UUID
    outcome: Outcome
    number: int | None = None
    round: int | None = None


class DownstreamChange(Struct, frozen=True):
    """A change of a downstream that counts endings of these upstreams, which are not written yet.
    It is written in their commit, if all of them are, or not at all. `open` is how many open edges
    each of them has, if those were not read just now: one that has more lets none go on. `claimed`
    is written in place of `change` if nothing that the worker of the upstream would claim before
    the downstream is ready."""

    change: "Change[object]"
    upstreams: tuple[UUID, ...]
    open: tuple[int, ...] = ()
    claimed: "Change[object] | None" = None


def settlements_of(
    edges: Iterable[EdgeState], endings: Mapping[UUID, MemberEnding]
) -> tuple[Settlement, ...]:
    """How the upstreams of these edges have ended."""
    return tuple(Settlement(each.edge.id, *endings[each.edge.upstream]) for each in edges)


def settle_with(
    snapshot: Snapshot | None,
    now: Millis,
    edges: tuple[EdgeState, ...],
    endings: Mapping[UUID, MemberEnding],
) -> DownstreamChange | None:
    """What endings that are about to be written mean for a downstream, which was seen together with
    these edges. None if that is more than a move to the next gate (it is skipped, it runs): then
    it is decided after their commit."""
    loaded = Loaded({}, {}, [], {each.edge.id: each for each in edges})
    change = settle(snapshot, now, loaded, settlements_of(edges, endings))
    if not change.plain_release or len(change.settled) < len(edges):
        return None
    return DownstreamChange(change, tuple(each.edge.upstream for each in edges))


def claim_with(release: "Change[object]", now: Millis, taking: Taking) -> "Change[object] | None":
    """The release of a downstream and its claim as one change, for the worker that ends its
    upstream. None if it is not ready then, or if a claim would ask for more than a free slot."""
    after = release.after
    if after is None or int(after.head.flags) & _ASKED_FIRST:
        return None
    match after.state:
        case Ready(next=next, hold=None):
            taken = take(after, now, next, taking)
            return replace(release, after=taken.after, events=taken.events)
        case _:
            return None


def needed_to_settle(
    snapshot: Snapshot | None, settlements: tuple[Settlement, ...]
) -> Needs | None:
    if snapshot is None:
        return None
    return Needs(snapshot.execution.uuid, edges=tuple(each.edge for each in settlements))


def settle(
    snapshot: Snapshot | None, now: Millis, loaded: Loaded, settlements: tuple[Settlement, ...]
) -> "Change[object]":
    """Counts endings of upstreams, each edge once however often its ending is brought."""
    if snapshot is None:
        return unchanged(None)
    join = snapshot.life.join
    fresh = [each for each in settlements if _is_open(loaded, each, snapshot)]
    if join is None or not fresh:
        return unchanged(None)
    satisfied = []
    for each in fresh:
        edge = loaded.edges[each.edge].edge
        join = count(join, edge.on, each.outcome)
        if satisfies(edge.on, each.outcome):
            satisfied.append(edge)
    join = remember_last(join, satisfied)
    change = rejoined(snapshot, now, replace(snapshot.life, join=join))
    return replace(change, settled=tuple((each.edge, each.outcome) for each in fresh))


def rejoined(snapshot: Snapshot, now: Millis, life: Life) -> "Change[object]":
    """The execution with another join, or with its flow sealed. Unless the flow is open its join is
    judged; one that fires lets the execution pass or skips it, in the same change. The join of an
    execution that has ended fires as well: its upstreams race for nothing, and are cancelled."""
    before, join = snapshot.life.join, life.join
    if join is not None and not life.unsealed:
        join = evaluate(join, now)
        life = replace(life, join=join)
    if join is None or not _fires(before, join):
        return Change(None, snapshot, stand(snapshot, now, life))
    if join.state is JoinState.IMPOSSIBLE and not isinstance(snapshot.state, Ended):
        change = _skip(snapshot, now, life)
    else:
        change = Change(None, snapshot, stand(snapshot, now, life))
    return replace(change, outcome=None, owed=siblings(change.after, join))


def stand(snapshot: Snapshot, now: Millis, life: Life, **head: object) -> Snapshot:
    """The execution at the gate where its join and the seal of its flow put it. One that is at
    neither of the two and need not go back to them stays where it is."""
    state, join = snapshot.state, life.join
    closed = life.unsealed or (join is not None and join.is_open)
    match state:
        case Waiting(gate=Gate.DEPENDENCIES, next=next) if join is not None and not closed:
            state = admit(life, next, now, snapshot.head.flags)
        case Waiting(gate=Gate.UNSEALED, next=next):
            state = admit(life, next, now, snapshot.head.flags)
        case Waiting(next=next) | Ready(next=next) if closed:
            state = admit(life, next, now, snapshot.head.flags)
        case _:
            pass
    if state != snapshot.state:
        life = replace(life, touched_at=now)
    return snapshot.to(state, life=life, **head)


def sibling_reason(join: Join) -> str:
    """Why the upstreams of a join that has fired are cancelled."""
    return f"{SIBLING}{join.state}"


def wait_children(snapshot: Snapshot | None, now: Millis, owner: Owner) -> "Change[Delayed]":
    """Gives the lease up until the executions this one depends on have ended; the same attempt
    goes on then, or at once if they have."""
    snapshot = present(snapshot)
    if (repeat := repeated_pause(snapshot, owner, WAIT_CHILDREN)) is not None:
        return unchanged(repeat)
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    life, next = pause_attempt(snapshot, now, lease, WAIT_CHILDREN)
    life = replace(life, not_before=None)
    after, answer = give_up_lease(snapshot, now, lease, life, next, WAIT_CHILDREN)
    return Change(
        answer,
        snapshot,
        after,
        (lease_event(snapshot, now, lease, EventKind.WAITING_CHILDREN),),
        closing_attempts(snapshot),
    )


def _is_open(loaded: Loaded, ending: Settlement, snapshot: Snapshot) -> bool:
    known, join = loaded.edges.get(ending.edge), snapshot.head.life.join
    if known is None or join is None or known.outcome is not None:
        return False
    if known.edge.downstream != snapshot.execution.uuid:
        return False
    if not join.floors and not join.rounds:
        return True  # most joins
    floor, last = join.floors.get(ending.edge.hex), join.rounds.get(ending.edge.hex)
    if ending.round is not None:
        return last is None or ending.round > last
    return floor is None or ending.number is None or ending.number > floor


def _fires(before: Join | None, join: Join) -> bool:
    """Whether a join has its answer only now: it was open, or one more edge has opened it again and
    has made it impossible."""
    had = before is not None and before.n > 0 and before.state is join.state
    return join.n > 0 and join.state is not JoinState.PENDING and not had


def _skip(snapshot: Snapshot, now: Millis, life: Life) -> "Change[object]":
    """The execution is skipped, and its lease and its attempt end with it. One that asked for a
    clean-up is cancelled, after it."""
    if life.cleanup is not None:
        return Change(None, snapshot, stand(snapshot, now, life))
    if (span := cleanup_time(snapshot)) is not None and snapshot.current_attempt is not None:
        life = replace(life, cancel_reason=IMPOSSIBLE, cancelled_by="flow_cascade")
        return clean_up_first(snapshot, now, life, Outcome.CANCELLED, span, IMPOSSIBLE)
    return end(snapshot, now, Outcome.SKIPPED, EventKind.SKIPPED, life, IMPOSSIBLE)


def siblings(after: Snapshot | None, join: Join) -> tuple[OutboxEntry, ...]:
    """What a join owes that has just fired: the cancel of those that still run."""
    if after is None or after.execution.flow is None or not join.cancels_rest:
        return ()
    id, number = after.execution.uuid, after.head.version
    return (OutboxEntry(after.execution.flow, id, number, OutboxKind.SIBLINGS),)
