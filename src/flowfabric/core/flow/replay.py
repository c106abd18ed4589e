"""Replaying members of flows: which ones a replay of the flow runs again, and what their joins
count.

A join is counted from the present outcomes of its upstreams. An edge whose upstream is replayed
as well, or has not ended, is open again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempts import inline_attempts
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.ending import event_of
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.gate import gated
from flowfabric.core.execution.lease import present
from flowfabric.core.execution.model import Ended, Next, Outcome, Snapshot, Start
from flowfabric.core.execution.operator import Replayed, check_replay, reborn, replay
from flowfabric.core.execution.status import vector
from flowfabric.core.flow.join import EdgeState, Join, JoinState, count, evaluate, satisfies
from flowfabric.core.flow.outbox import is_spared
from flowfabric.core.flow.progress import sibling_reason
from flowfabric.core.wait.model import Loaded, Needs

_GIVEN_UP = sibling_reason(Join(state=JoinState.IMPOSSIBLE))


class ReplayPlan(Struct, frozen=True):
    """`members` are to be replayed, each after those that depend on it; `rounds` is how often each
    of them was replayed before. `upstreams` is every member of the flow as it was when the plan was
    made."""

    members: tuple[Snapshot, ...]
    rounds: Mapping[UUID, int]
    upstreams: Mapping[UUID, Snapshot]


class _Edge(NamedTuple):
    """An edge, and the outcome it counts with now (None: open). `brought` is an open one whose
    upstream has ended for good: what follows the replay brings that ending."""

    state: EdgeState
    outcome: Outcome | None
    brought: bool = False


def plan_replay(members: Mapping[UUID, Snapshot], edges: Iterable[EdgeState]) -> ReplayPlan:
    """What a replay of the flow runs again: members that failed, expired or were cancelled, and
    skipped ones that can run once those have succeeded. Not a branch for failures that did not
    happen, and not the losers of a race that was won."""
    incoming: dict[UUID, list[EdgeState]] = {id: [] for id in members}
    for state in edges:
        incoming.setdefault(state.edge.downstream, []).append(state)
    order = [id for id in _upstreams_first(incoming) if id in members]
    given_up = {id for id, member in members.items() if _was_given_up(member)}
    while True:
        chosen = _chosen(members, incoming, order, given_up)
        wanted = _wanted(members, incoming, order, chosen, given_up)
        if given_up <= wanted:
            break
        given_up &= wanted  # nothing that runs again waits for the others
    again = tuple(members[id] for id in reversed(order) if id in chosen)
    return ReplayPlan(again, {each.execution.uuid: each.life.replays for each in again}, members)


def needed_to_replay(snapshot: Snapshot | None) -> Needs | None:
    """Incoming edges, where a replay must wait for some of them again."""
    if snapshot is None or not _is_hopeless(snapshot):
        return None
    return Needs(snapshot.execution.uuid, incoming=True)


def needed_to_replay_planned(snapshot: Snapshot | None) -> Needs | None:
    if snapshot is None or snapshot.life.join is None:
        return None
    return Needs(snapshot.execution.uuid, incoming=True)


def replay_member(
    snapshot: Snapshot | None, now: Millis, loaded: Loaded, upstreams: Mapping[UUID, Snapshot]
) -> "Change[Replayed]":
    """Runs one ended member again. One whose join had become impossible waits for the upstreams
    that have not ended as it needs, also if it was cancelled or expired before that."""
    if snapshot is None or needed_to_replay(snapshot) is None:
        return replay(snapshot, now)
    edges = [_needed(state, upstreams.get(state.edge.upstream)) for state in loaded.edges.values()]
    return _waiting_again(snapshot, now, edges, upstreams)


def replay_planned(
    snapshot: Snapshot | None, now: Millis, loaded: Loaded, plan: ReplayPlan
) -> "Change[Replayed | None]":
    """Runs a member of the plan again, unless another caller has done so since."""
    snapshot = present(snapshot)
    before = plan.rounds[snapshot.execution.uuid]
    if not isinstance(snapshot.state, Ended) or snapshot.life.replays != before:
        return unchanged(None)
    join = snapshot.life.join
    if join is None:
        return replay(snapshot, now)
    states = loaded.edges.values()
    edges = [_Edge(state, _present(state, plan.upstreams, plan.rounds)) for state in states]
    counted = _counted(join, edges, now)
    if counted.state is join.state is JoinState.SATISFIED:
        return replay(snapshot, now)
    if counted.state is JoinState.IMPOSSIBLE:
        # What follows the replay brings the endings that make it so, and the member is skipped.
        edges = [
            edge if _is_good(edge) else edge._replace(outcome=None, brought=True) for edge in edges
        ]
    return _waiting_again(snapshot, now, edges, plan.upstreams)


def _waiting_again(
    snapshot: Snapshot, now: Millis, edges: list[_Edge], upstreams: Mapping[UUID, Snapshot]
) -> "Change[Replayed]":
    """The member with the outcomes that its edges count with now."""
    ended = check_replay(snapshot)
    join = _counted(snapshot.life.join or Join(), edges, now, judged=not snapshot.life.unsealed)
    life, flags = reborn(snapshot, now, ended)
    life = replace(life, join=_remembering(join, edges, upstreams))
    next = Next(Start.REPLAY, snapshot.attempts_made, snapshot.execution.rules.attempt_timeout)
    after = gated(snapshot, now, next, life, flags)
    skipped = ended.outcome is Outcome.SKIPPED
    detail = {"branch": "skipped_flow_member" if skipped else "normal", "groups_reset": 1}
    return Change(
        Replayed(snapshot.execution.id, vector(after).public),
        snapshot,
        after,
        (event_of(snapshot, now, EventKind.REPLAYED, detail),),
        inline_attempts(snapshot),
        settled=tuple(
            (edge.state.edge.id, edge.outcome)
            for edge in edges
            if edge.outcome is not edge.state.outcome
        ),
    )


def _remembering(join: Join, edges: list[_Edge], upstreams: Mapping[UUID, Snapshot]) -> Join:
    """The join, with the version and round of the upstreams of its open edges: only later endings
    count."""
    floors, rounds = {}, {}
    for edge in edges:
        upstream = upstreams.get(edge.state.edge.upstream)
        if edge.outcome is not None or upstream is None:
            continue
        over = isinstance(upstream.state, Ended) and not edge.brought
        floors[edge.state.edge.id.hex] = upstream.head.version
        rounds[edge.state.edge.id.hex] = upstream.life.replays - (not over)
    return replace(join, floors=floors, rounds=rounds)


def _counted(join: Join, edges: Iterable[_Edge], now: Millis, *, judged: bool = True) -> Join:
    """The join counted from the given outcomes alone; unless the flow is open, it may fire."""
    fresh = replace(
        join,
        succeeded=0,
        failed=0,
        skipped=0,
        state=JoinState.PENDING,
        fired_at=None,
        last=None,
    )
    for edge in edges:
        if edge.outcome is not None:
            fresh = count(fresh, edge.state.edge.on, edge.outcome)
    return evaluate(fresh, now) if judged else fresh


def _needed(state: EdgeState, upstream: Snapshot | None) -> _Edge:
    """An edge of a member that is replayed alone. One that was satisfied stays so; any other is
    open, unless its upstream has ended as it needs since."""
    if state.satisfied or upstream is None:
        return _Edge(state, state.outcome if state.satisfied else None)
    outcome = _outcome(upstream)
    good = outcome is not None and satisfies(state.edge.on, outcome)
    return _Edge(state, outcome if good else None)


def _present(
    state: EdgeState, members: Mapping[UUID, Snapshot], again: Mapping[UUID, int] | set[UUID]
) -> Outcome | None:
    """How the upstream of an edge has ended; None when it has not, or runs again."""
    upstream = members.get(state.edge.upstream)
    if upstream is None:
        return state.outcome  # retention has taken it
    return None if state.edge.upstream in again else _outcome(upstream)


def _chosen(
    members: Mapping[UUID, Snapshot],
    incoming: Mapping[UUID, list[EdgeState]],
    order: Iterable[UUID],
    given_up: set[UUID],
) -> set[UUID]:
    chosen: set[UUID] = set()
    for id in order:
        member = members[id]
        outcome = _outcome(member)
        if outcome is None or outcome is Outcome.SUCCESS:
            continue
        if is_spared(member):
            again = id in given_up
        elif outcome is Outcome.SKIPPED:
            edges = [_Edge(state, _present(state, members, chosen)) for state in incoming[id]]
            join = _counted(member.life.join or Join(), edges, Millis(0))
            again = join.state is not JoinState.IMPOSSIBLE
        else:
            again = True
        if again:
            chosen.add(id)
    return chosen


def _wanted(
    members: Mapping[UUID, Snapshot],
    incoming: Mapping[UUID, list[EdgeState]],
    order: Sequence[UUID],
    chosen: set[UUID],
    given_up: set[UUID],
) -> set[UUID]:
    """Upstreams that members which run again wait for. One that was given up and that no other
    waits for does not run again, and so waits for none."""
    wanted: set[UUID] = set()
    for id in reversed(order):
        join = members[id].life.join
        waits = join is not None and join.state is not JoinState.SATISFIED
        if waits and id in chosen and (id in wanted or id not in given_up):
            wanted |= {state.edge.upstream for state in incoming[id]}
    return wanted


def _upstreams_first(incoming: Mapping[UUID, list[EdgeState]]) -> list[UUID]:
    """Every member after all it depends on."""
    left = {id: len(states) for id, states in incoming.items()}
    outgoing: dict[UUID, list[UUID]] = {}
    for id, states in incoming.items():
        for state in states:
            outgoing.setdefault(state.edge.upstream, []).append(id)
            left.setdefault(state.edge.upstream, 0)
    order = [id for id, number in left.items() if not number]
    for id in order:
        for follower in outgoing.get(id, ()):
            left[follower] -= 1
            if not left[follower]:
                order.append(follower)
    return order


def _outcome(member: Snapshot) -> Outcome | None:
    return member.state.outcome if isinstance(member.state, Ended) else None


def _was_given_up(member: Snapshot) -> bool:
    """Whether it was cancelled because a join it leads to became impossible."""
    return (
        _outcome(member) is not None
        and is_spared(member)
        and (member.life.cancel_reason == _GIVEN_UP)
    )


def _is_good(edge: _Edge) -> bool:
    return edge.outcome is not None and satisfies(edge.state.edge.on, edge.outcome)


def _is_hopeless(snapshot: Snapshot) -> bool:
    join = snapshot.life.join
    lost = join is not None and join.state is JoinState.IMPOSSIBLE
    return lost and isinstance(snapshot.state, Ended)
