"""Growing a flow member by member and edge by edge: each step writes what a declaration of the same
graph would have written, and the rules of joins do the rest.

Until a flow is sealed its new members are held, so that no join fires before all its edges are
there.
"""

from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    AlreadyInFlow,
    Invalid,
    InvalidGraph,
    NotInFlow,
    SelfEdge,
)
from flowfabric.core.base.ids import ANYWHERE, ExecutionId, flow_partition, is_home
from flowfabric.core.base.numbers import check_kind_of, check_whole
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.lease import present
from flowfabric.core.execution.model import Ended, Flags, Snapshot, Waiting
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.submission import Creation
from flowfabric.core.flow.graph import admitted, check_on, check_policy
from flowfabric.core.flow.join import (
    AllOf,
    Edge,
    Join,
    JoinPolicy,
    JoinState,
    Quorum,
    count,
    remember_last,
    satisfies,
)
from flowfabric.core.flow.model import Flow, FlowChange, FlowState, changed, counted_as, open_flow
from flowfabric.core.flow.outbox import OutboxEntry, OutboxKind
from flowfabric.core.flow.progress import rejoined, stand


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


class Applied(Struct, frozen=True):
    """`unsatisfied` edges into the downstream that were applied are still to be satisfied."""

    unsatisfied: int


MAX_UPSTREAMS = 2**31 - 1
"""The most upstreams that a join can ask for before it has any."""

MAX_STRAY = Millis(60_000)
"""How long an execution that is held for a flow may take to become a member of it."""


def held(creation: Creation) -> Creation:
    """A creation that waits to become a member of its flow, and then for the seal. That is a second
    write, and the sweep cancels it if it never comes: nothing else would let it go."""
    snapshot = creation.snapshot
    made_at = snapshot.execution.created_at
    life = replace(snapshot.life, unsealed=True)
    snapshot = admitted(replace(snapshot, head=replace(snapshot.head, life=life)), made_at)
    if isinstance(snapshot.state, Waiting):
        state = replace(snapshot.state, due_at=Millis(made_at + MAX_STRAY))
        snapshot = replace(snapshot, state=state)
    return replace(creation, snapshot=snapshot)


def check_home(flow: UUID, id: ExecutionId) -> None:
    """Before the store is asked: only an execution made for the flow can join it. An id without its
    partition is judged when the execution was loaded."""
    if id.partition_index not in (ANYWHERE, flow_partition(flow)):
        raise Invalid("partition mismatch: the run was not created for this flow")


def join(
    flow: Flow, now: Millis, snapshot: Snapshot | None, id: ExecutionId
) -> tuple[FlowChange | None, Added | AlreadyMember]:
    """Makes an execution a member, in any state; one that has ended is counted at once."""
    snapshot = present(snapshot, id)
    id, home = snapshot.execution.id, snapshot.execution.flow
    check_home(flow.id, id)
    if home not in (None, flow.id) and not is_home(home):
        if snapshot.head.flags & Flags.FLOW:
            raise AlreadyInFlow(home)
        raise Invalid("partition mismatch: the run was not created for this flow")
    if home == flow.id and snapshot.head.flags & Flags.FLOW:
        return None, AlreadyMember(id, flow.nodes)
    ended = dict(flow.ended)
    if isinstance(snapshot.state, Ended):
        name = counted_as(snapshot)
        ended[name] = ended.get(name, 0) + 1
    # No stray any more; it stays held only as long as its flow waits for the seal.
    unsealed = snapshot.life.unsealed and flow.state is FlowState.OPEN and not flow.eager
    life = replace(snapshot.life, unsealed=unsealed)
    member = stand(snapshot, now, life, flags=snapshot.head.flags | Flags.FLOW)
    member = replace(member, execution=replace(member.execution, flow=flow.id))
    grown = changed(flow, now, nodes=flow.nodes + 1, revision=flow.revision + 1, ended=ended)
    # Counted here: `outbox_of` sees no ending in a change that only sets the flag.
    change = FlowChange(flow, grown, changes=(Change(None, snapshot, member),))
    return change, Added(id, grown.nodes)


def stage(
    flow: Flow, now: Millis, edge: Edge, upstream: Snapshot, downstream: Snapshot
) -> tuple[FlowChange, Staged]:
    """Adds an edge and gates the downstream in one change; if the upstream has ended already it is
    settled at once. A downstream that has ended stays so, and waits for the edge if it is replayed.
    That both ends are members and the graph stays acyclic was looked at before."""
    join = _open_join(flow, downstream)
    join = replace(join, n=join.n + 1, inputs=join.inputs or edge.input is not None)
    settled: tuple[tuple[UUID, Outcome], ...] = ()
    if isinstance(upstream.state, Ended):
        join = count(join, edge.on, upstream.state.outcome)
        if satisfies(edge.on, upstream.state.outcome):
            join = remember_last(join, (edge,))
        settled = ((edge.id, upstream.state.outcome),)
    # Only sealed joins are judged: what waits for an upstream also waits for the seal.
    unsealed = downstream.life.unsealed or (flow.state is FlowState.OPEN and not flow.eager)
    life = replace(downstream.life, join=join, unsealed=unsealed, newest_edge=edge.id)
    gated = rejoined(downstream, now, life)
    grown = changed(flow, now, edges=flow.edges + 1, revision=flow.revision + 1)
    change = FlowChange(
        flow, grown, (edge,), changes=(replace(gated, settled=settled),), guards=(upstream,)
    )
    return change, Staged(edge.id, grown.revision)


def _open_join(flow: Flow, downstream: Snapshot) -> Join:
    """The join of a downstream that takes one more edge. A flow that is never sealed judges its
    joins by the edges there are, so one that asks for all of them may be satisfied too early, and
    is open again; one that has become impossible stays so."""
    join = downstream.life.join or Join()
    fired = join.n > 0 and join.state is not JoinState.PENDING
    if fired and not (flow.eager and isinstance(join.policy, AllOf)):
        raise InvalidGraph(f"the join of {downstream.run} has fired, so it takes no more edges")
    if fired and join.state is JoinState.IMPOSSIBLE:
        return join
    return replace(join, state=JoinState.PENDING, fired_at=None)


def member_of(flow: Flow, found: Snapshot | None, id: UUID) -> Snapshot:
    """The execution of that id if it is a member of the flow."""
    if found is None or found.execution.flow != flow.id or not found.head.flags & Flags.FLOW:
        raise NotInFlow(f"run {id} is not a member of flow {flow.id}")
    return found


def pass_result(flow: Flow, now: Millis, edge: Edge, downstream: Snapshot | None) -> FlowChange:
    """The flow with `edge`, which was staged without an input, passing the result of its upstream
    as `edge.input`. A downstream that has begun keeps the input that it began with."""
    downstream = member_of(flow, downstream, edge.downstream)
    if downstream.attempts_made:
        plain = replace(edge, input=None, late=False)
        return FlowChange(flow, flow, guards=(downstream,), applied=(plain,))
    join = downstream.life.join or Join()
    if join.inputs:
        return FlowChange(flow, flow, guards=(downstream,), applied=(edge,))
    life = replace(downstream.life, join=replace(join, inputs=True))
    change: Change[object] = Change(None, downstream, stand(downstream, now, life))
    return FlowChange(flow, flow, changes=(change,), applied=(edge,))


def check_k(policy: object) -> None:
    """Before the store is asked: a quorum of none, or of more than can ever be counted."""
    if isinstance(policy, Quorum):
        check_whole(policy.k, "k", 1, MAX_UPSTREAMS)


def set_policy(
    flow: Flow, now: Millis, downstream: Snapshot | None, id: UUID, policy: JoinPolicy
) -> FlowChange | None:
    """Says when the downstream runs, before its first edge; None when that was said before."""
    try:
        check_policy(policy, MAX_UPSTREAMS, "edge group")
    except InvalidGraph as error:  # nothing of the graph is wrong, only the argument
        raise Invalid(error.detail) from None
    downstream = member_of(flow, downstream, id)
    join = downstream.life.join
    if join is not None and join.n:
        raise Invalid("edge_group_policy_already_fixed: the first edge is there")
    if join is not None and join.policy == policy:
        return None
    life = replace(downstream.life, join=Join(policy=policy))
    change: Change[object] = Change(None, downstream, stand(downstream, now, life))
    return FlowChange(flow, changed(flow, now), changes=(change,))


def check_seal(snapshot: Snapshot) -> None:
    """A join that its edges can never satisfy is refused when the flow is sealed. One without any
    edge waits for nothing."""
    join = snapshot.life.join
    if join is not None and join.n:
        check_policy(join.policy, join.n, str(snapshot.execution.id))


def is_sealed(flow: Flow) -> bool:
    """A cancelled flow may have been open until then, so that is not said of it."""
    return flow.state not in (FlowState.OPEN, FlowState.CANCELLED)


def seal(flow: Flow, now: Millis) -> FlowChange:
    """The graph is complete; the members are owed to be let go."""
    after = changed(replace(open_flow(flow), state=FlowState.RUNNING), now)
    release = OutboxEntry(flow.id, flow.id, after.version, OutboxKind.RELEASE)
    return FlowChange(flow, after, owed=(release,))


def is_released(snapshot: Snapshot, *, closed: bool) -> bool:
    """Whether a member is owed to be let go: it is held, or it waits for edges that cannot come,
    since its flow is `closed`."""
    join = snapshot.life.join
    lacks = join is not None and join.lacks_edges and isinstance(snapshot.state, Waiting)
    return snapshot.life.unsealed or (closed and lacks)


def unseal(snapshot: Snapshot | None, now: Millis, *, closed: bool) -> "Change[object]":
    """Lets a member of a sealed or `closed` flow go: its join is judged, then the other gates are
    asked. A closed flow takes no edges, so a join that lacks some is impossible."""
    if snapshot is None or not is_released(snapshot, closed=closed):
        return unchanged(None)
    join = snapshot.life.join
    if closed and join is not None and join.lacks_edges:
        join = replace(join, state=JoinState.IMPOSSIBLE, fired_at=now)
    return rejoined(snapshot, now, replace(snapshot.life, join=join, unsealed=False))


def check_edge(edge: object) -> Edge:
    """The edge if it can be staged, as far as that shows without the flow. One that passes data
    under an empty name passes none."""
    found = check_kind_of(edge, Edge, "edge")
    for id in (found.id, found.flow, found.upstream, found.downstream):
        check_kind_of(id, UUID, "an id of an edge")
    if found.upstream == found.downstream:
        raise SelfEdge("a run cannot wait for itself")
    check_on(found.on, found.input)
    return replace(found, input=found.input or None)
