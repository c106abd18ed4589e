"""Growing a flow piece by piece: members, edges, joins, and sealing it.

Until a flow is sealed its new members are held, so that no join fires before all its edges are
there.
"""

from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    FlowConflict,
    Invalid,
    InvalidGraph,
    NotFound,
    NotInFlow,
    SelfEdge,
)
from flowfabric.core.base.ids import ExecutionId, flow_partition
from flowfabric.core.base.numbers import check_kind_of
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.gate import admit
from flowfabric.core.execution.model import Ended, Flags, Ready, Snapshot, Waiting
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.submission import Creation
from flowfabric.core.flow.graph import check_on, check_policy
from flowfabric.core.flow.join import Edge, Join, JoinPolicy, JoinState, count, evaluate
from flowfabric.core.flow.model import Flow, FlowChange, FlowState, changed, counted_as, open_flow
from flowfabric.core.flow.progress import Settled, join_changed, siblings


class Added(Struct, frozen=True):
    id: ExecutionId
    nodes: int


class AlreadyMember(Struct, frozen=True):
    id: ExecutionId
    nodes: int


class Staged(Struct, frozen=True):
    edge: UUID
    revision: int


class AlreadyStaged(Struct, frozen=True):
    edge: UUID
    revision: int


MAX_STRAY = Millis(60_000)
"""How long one that is held for a flow may take to become a member of it."""


def held(creation: Creation) -> Creation:
    """A creation that waits for its flow to be sealed. It becomes a member by a second write, and
    is cancelled if that never comes: nobody would let it go."""
    snapshot = creation.snapshot
    made_at = snapshot.execution.created_at
    head = replace(snapshot.head, life=replace(snapshot.life, unsealed=True))
    state = snapshot.state
    if isinstance(state, Waiting | Ready):
        state = admit(head.life, state.next, made_at, head.flags)
    if isinstance(state, Waiting):
        state = replace(state, due_at=Millis(made_at + MAX_STRAY))
    return replace(creation, snapshot=replace(snapshot, head=head, state=state))


def is_member(snapshot: Snapshot | None, flow: UUID) -> bool:
    return (
        snapshot is not None
        and snapshot.execution.flow == flow
        and bool(snapshot.head.flags & Flags.FLOW)
    )


def check_home(flow: UUID, id: ExecutionId) -> None:
    """Before the store is asked: only an execution made for the flow can join it."""
    if id.partition_index != flow_partition(flow):
        raise Invalid("partition mismatch: the execution was not made for this flow")


def join(
    flow: Flow | None, snapshot: Snapshot | None, id: ExecutionId, now: Millis
) -> FlowChange | AlreadyMember:
    """Makes an execution a member, whatever it is doing; one that has ended is counted at once."""
    flow = open_flow(flow)
    if snapshot is None:
        raise NotFound("execution", id)
    home = snapshot.execution.flow
    if home != flow.id:
        if home is not None and snapshot.head.flags & Flags.FLOW:
            raise FlowConflict(f"already_member_of_different_flow:{home}")
        raise Invalid("partition mismatch: the execution was not made for this flow")
    if is_member(snapshot, flow.id):
        return AlreadyMember(id, flow.nodes)
    ended = dict(flow.ended)
    if isinstance(snapshot.state, Ended):
        name = counted_as(snapshot)
        ended[name] = ended.get(name, 0) + 1
    after = _welcomed(flow, snapshot, now)
    grown = changed(flow, now, nodes=flow.nodes + 1, revision=flow.revision + 1, ended=ended)
    # Counted here: `outbox_of` sees no ending in a change that only sets the flag.
    return FlowChange(flow, grown, changes=(Change(None, snapshot, after),))


def stage(
    flow: Flow, edge: Edge, upstream: Snapshot | None, downstream: Snapshot | None, now: Millis
) -> FlowChange:
    """Adds an edge and gates the downstream in one change; if the upstream has ended already it is
    settled at once. That the graph stays acyclic was looked at before."""
    for end in (upstream, downstream):
        if end is None or not is_member(end, flow.id):
            raise NotInFlow("both ends of an edge are members of the flow")
    if upstream is None or downstream is None:
        raise NotInFlow("both ends of an edge are members of the flow")
    if isinstance(downstream.state, Ended):
        raise InvalidGraph("the downstream has ended: it waits for nothing any more")
    grown = changed(flow, now, edges=flow.edges + 1, revision=flow.revision + 1)
    change = _gated(_holding(flow, downstream), edge, upstream, now)
    change = replace(change, before=downstream)
    return FlowChange(flow, grown, edges=(edge,), changes=(change,), guards=(upstream,))


def set_policy(
    flow: Flow | None, downstream: Snapshot | None, policy: JoinPolicy, now: Millis
) -> FlowChange | None:
    """Says when the downstream runs, before its first edge; None when that was said before."""
    flow = open_flow(flow)
    if not is_member(downstream, flow.id) or downstream is None:
        raise NotInFlow("a join belongs to a member of the flow")
    join = downstream.life.join
    if join is not None and join.policy == policy:
        return None
    if join is not None and join.n:
        raise InvalidGraph("edge_group_policy_already_fixed: the first edge is there")
    check_policy(policy, 2**31, str(downstream.execution.id))
    new = Join(policy=policy)
    if not downstream.life.unsealed:
        new = evaluate(new, now)  # it waits for nobody yet
    after = downstream.to(downstream.state, life=replace(downstream.life, join=new))
    return FlowChange(flow, changed(flow, now), changes=(Change(None, downstream, after),))


def check_seal(snapshot: Snapshot) -> None:
    """A join that can never be satisfied is refused when the flow is sealed, also one that nothing
    leads to: whoever asked for some upstreams has forgotten their edges."""
    join = snapshot.life.join
    if join is not None:
        check_policy(join.policy, join.n, str(snapshot.execution.id))


def unseal(snapshot: Snapshot | None, now: Millis) -> "Change[Settled]":
    """Lets a member of a sealed flow go: its join is judged, then the other gates are asked."""
    if snapshot is None or not snapshot.life.unsealed:
        return unchanged(Settled(0, None))
    freed = replace(snapshot.life, unsealed=False)
    join = None if freed.join is None else _judged(freed.join, now)
    loose = replace(snapshot, head=replace(snapshot.head, life=freed))
    if join is not None and join.state is JoinState.IMPOSSIBLE:
        return replace(join_changed(loose, join, now), before=snapshot)
    life = replace(freed, join=join)
    state = snapshot.state
    if isinstance(state, Waiting):
        state = admit(life, state.next, now, snapshot.head.flags)
    after = snapshot.to(state, life=life)
    fired = join != freed.join and not isinstance(state, Ended)
    owed = siblings(after, join) if join is not None and fired else ()
    return Change(Settled(0, join), snapshot, after, owed=owed)


def is_sealed(flow: Flow) -> bool:
    """One that was cancelled may have been open until then, so that is not said of it."""
    return flow.state not in (FlowState.OPEN, FlowState.CANCELLED)


def sealed(flow: Flow, now: Millis) -> Flow:
    return changed(replace(flow, state=FlowState.RUNNING), now)


def check_edge(edge: object) -> Edge:
    """The edge if it can be staged, as far as it can be told without the flow."""
    found = check_kind_of(edge, Edge, "edge")
    for id in (found.id, found.flow, found.upstream, found.downstream):
        check_kind_of(id, UUID, "an id of an edge")
    if found.upstream == found.downstream:
        raise SelfEdge("an execution cannot wait for itself")
    check_on(found.on, found.input)
    return found


def _judged(join: Join, now: Millis) -> Join:
    """A join whose edges are all there; of a flow that was cancelled too early some never come."""
    if join.n < join.needed:
        return replace(join, state=JoinState.IMPOSSIBLE, fired_at=now)
    return evaluate(join, now)


def _welcomed(flow: Flow, snapshot: Snapshot, now: Millis) -> Snapshot:
    """One that is held is no stray any more; if the flow was sealed meanwhile it is let go."""
    life, state = snapshot.life, snapshot.state
    if life.unsealed:
        life = replace(life, unsealed=flow.state is FlowState.OPEN)
        if isinstance(state, Waiting):
            state = admit(life, state.next, now, snapshot.head.flags)
    return snapshot.to(state, life=life, flags=snapshot.head.flags | Flags.FLOW)


def _holding(flow: Flow, downstream: Snapshot) -> Snapshot:
    """Only sealed joins are judged: whoever waits for somebody also waits for the seal."""
    if flow.state is not FlowState.OPEN or isinstance(downstream.state, Ended):
        return downstream
    life = replace(downstream.life, unsealed=True)
    return replace(downstream, head=replace(downstream.head, life=life))


def _gated(downstream: Snapshot, edge: Edge, upstream: Snapshot, now: Millis) -> "Change[Settled]":
    join = downstream.life.join or Join()
    if join.state is not JoinState.PENDING and join.n:
        raise InvalidGraph("the join of the downstream has fired")
    join = replace(
        join,
        n=join.n + 1,
        inputs=join.inputs or edge.input is not None,
        state=JoinState.PENDING,
        fired_at=None,
    )
    settled: tuple[tuple[UUID, Outcome], ...] = ()
    if isinstance(upstream.state, Ended):
        join = count(join, edge.on, upstream.state.outcome)
        settled = ((edge.id, upstream.state.outcome),)
    if not downstream.life.unsealed:
        join = evaluate(join, now)
    if join.state is not JoinState.PENDING:
        return replace(join_changed(downstream, join, now), settled=settled)
    life = replace(downstream.life, join=join)
    state = downstream.state
    if isinstance(state, Waiting | Ready):
        state = admit(life, state.next, now, downstream.head.flags)
    after = downstream.to(state, life=life)
    return Change(Settled(0, join), downstream, after, settled=settled)
