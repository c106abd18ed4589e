"""Reading flows: one or a page of them, their members, edges, joins and results."""

from collections.abc import Mapping
from contextlib import suppress
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError, Invalid, NotFound
from flowfabric.core.base.ids import ANYWHERE, ExecutionId, flow_partition, parse_uuid
from flowfabric.core.base.numbers import (
    Seconds,
    check_flag,
    check_limit,
    check_names,
    check_seconds,
    check_word,
)
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.text import check_kind, check_namespace, check_tag
from flowfabric.core.base.time import Millis, check_moment
from flowfabric.core.execution.model import (
    Ended,
    Flags,
    Ready,
    Snapshot,
    Waiting,
)
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.status import PublicState, public_state
from flowfabric.core.flow.cancel import is_orphan
from flowfabric.core.flow.join import Edge, EdgeState, Join
from flowfabric.core.flow.model import Flow, FlowState, count_outbox, known
from flowfabric.core.flow.outbox import is_spared
from flowfabric.core.flow.status import PublicFlowState, public_flow_state
from flowfabric.engine.commit.batch import Batcher
from flowfabric.engine.commit.records import find
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.flow.passing import counting_edges, passed_results
from flowfabric.engine.flow.resolver import FlowResolver
from flowfabric.engine.flow.walks import PAGE, edge_pages, load_all, member_pages, whole
from flowfabric.store.queries import EdgeQuery, FlowQuery, MembersOf
from flowfabric.store.rows.record import FLOWS

MAX_ENTRIES = 100_000


class Member(Struct, frozen=True):
    """A member as the graph shows it; `name` is what it is called in the flow. `spared`: it lost a
    race and was cancelled for that, which is not a failure."""

    id: ExecutionId
    name: str
    kind: str
    state: PublicState
    join: Join | None = None
    spared: bool = False


class FlowGraph(Struct, frozen=True):
    flow: Flow
    members: tuple[Member, ...]
    edges: tuple[EdgeState, ...]


class FlowDescription(Struct, frozen=True):
    """A flow, and how many of its members are in which state now."""

    flow: Flow
    states: Mapping[PublicState, int]

    @property
    def public_flow_state(self) -> PublicFlowState:
        return public_flow_state(self.flow, self.states)


class FlowViews(Service):
    """`engine.flow_views`"""

    def __init__(self, context: EngineContext, resolver: FlowResolver) -> None:
        super().__init__(context)
        self._resolver = resolver
        self._ended: Batcher[tuple[UUID, ...], dict[UUID, Snapshot]] = Batcher(
            "results", self._flush_ended
        )

    async def get(self, id: UUID | str) -> Flow | None:
        """The flow with every ending counted, also those that are still in its outbox."""
        key = parse_uuid(id, "flow")
        return (await self._counted([key])).get(key)

    async def describe(self, id: UUID) -> FlowDescription | None:
        flow = await self.get(id)
        if flow is None:
            return None
        counts = (await self._context.store.counts(flow=flow.id)).by_state
        return FlowDescription(flow, {state: counts[state] for state in PublicState})

    async def wait(self, id: UUID, timeout: Seconds | None = None) -> Flow:
        """The flow once all its members have ended; TimeoutError after `timeout` seconds."""
        key = parse_uuid(id, "flow")
        span = None if timeout is None else check_seconds(timeout, "timeout")
        try:
            return await self._context.flow_watcher.wait(key, key, span)
        except TimeoutError:
            flow = known(await self.get(key), key)
            if flow.ended_at is None:
                raise TimeoutError(f"flow {id} has not ended in time, it is {flow.state}") from None
            return flow

    async def is_orphan(self, flow: UUID) -> bool:
        """Whether a flow was cancelled because the run that started it ended without success, or
        was deleted since; what is owed to it is done first."""
        key = parse_uuid(flow, "flow")
        await self._resolver.resolve(key)
        found = await find(self._context.store, FLOWS, key)
        return found is None or is_orphan(found)

    async def page(
        self,
        *,
        namespace: str | None = None,
        kind: str | None = None,
        states: tuple[FlowState | str, ...] = (),
        tag: tuple[str, str] | None = None,
        after: tuple[Millis, UUID] | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[Flow]:
        """Flows by (created_at, id); the cursor is that pair of the last one seen. Every ending is
        counted, as by `get`."""
        wanted = check_limit(limit, MAX_PAGE)
        query = FlowQuery(
            namespace=None if namespace is None else check_namespace(namespace),
            kind=None if kind is None else check_kind(kind),
            states=tuple(
                check_word(each, FlowState, "state") for each in check_names(states, "states")
            ),
            tag=None if tag is None else check_tag(tag),
            after=None if after is None else _cursor(after),
            limit=wanted,
            newest_first=check_flag(newest_first, "newest_first"),
        )
        if not wanted:
            return []
        await self._count_ended()
        found = await self._context.store.flow_page(query)
        counted = await self._counted([flow.id for flow in found])
        return [counted.get(flow.id, flow) for flow in found]

    async def members(
        self, id: UUID, *, after: ExecutionId | None = None, limit: int = 100
    ) -> list[Member]:
        """Members by id."""
        wanted = check_limit(limit, MAX_PAGE)
        cursor = None if after is None else ExecutionId(after).uuid
        key = parse_uuid(id, "flow")
        found = (
            await self._context.store.snapshots(MembersOf(key, after=cursor, limit=wanted))
            if wanted
            else []
        )
        return [_member(snapshot) for snapshot in found]

    async def groups(self, id: UUID, *, limit: int | None = None) -> dict[ExecutionId, Join]:
        """The joins of a flow, by the execution that waits. All of them, unless a `limit` is given:
        then those of its first so many members."""
        if limit is not None:
            first = await self.members(id, limit=limit)
            return {each.id: each.join for each in first if each.join is not None}
        found: dict[ExecutionId, Join] = {}
        async for page in member_pages(self._context.store, parse_uuid(id, "flow")):
            for member in page:
                if member.life.join is not None:
                    found[member.execution.id] = member.life.join
        return found

    async def edges(
        self,
        id: UUID,
        *,
        upstream: str | None = None,
        downstream: str | None = None,
        after: UUID | None = None,
        limit: int | None = None,
    ) -> list[EdgeState]:
        """Edges of a flow by id; those that leave or enter one execution. All of them, unless a
        `limit` is given; the cursor is the id of the last one seen."""
        key = parse_uuid(id, "flow")
        query = EdgeQuery(
            flow=key,
            upstreams=None if upstream is None else _here(upstream, key),
            downstreams=None if downstream is None else _here(downstream, key),
            after=None if after is None else parse_uuid(after, "cursor"),
        )
        if limit is None:
            return await self._all_edges(query)
        wanted = check_limit(limit, MAX_PAGE)
        return await self._context.store.edges(replace(query, limit=wanted)) if wanted else []

    async def edge(self, flow: UUID, edge: UUID) -> Edge | None:
        query = EdgeQuery(flow=parse_uuid(flow, "flow"), ids=(parse_uuid(edge, "edge"),))
        found = await self._context.store.edges(query)
        return found[0].edge if found else None

    async def flow_of(self, id: str) -> UUID | None:
        """The flow an execution is a member of."""
        snapshot = await self._load(id)
        member = snapshot is not None and bool(snapshot.head.flags & Flags.FLOW)
        return snapshot.execution.flow if snapshot is not None and member else None

    async def graph(self, id: UUID) -> FlowGraph:
        """The whole flow: members with their states, edges with how they were settled."""
        flow = await self.get(id)
        if flow is None:
            raise NotFound("flow", id)
        members, edges = await whole(self._context.store, flow.id)
        return FlowGraph(flow, tuple(map(_member, members.values())), tuple(edges))

    async def eligibility(self, id: str) -> str:
        """Why an execution may run or may not, as far as its dependencies go, in one word:
        `not_found`, `impossible` (it was skipped), `not_runnable` (a worker has it, it is suspended
        or has ended otherwise), `blocked_by_dependencies` or `eligible`."""
        snapshot = await self._load(id)
        if snapshot is None:
            return "not_found"
        join, state = snapshot.life.join, snapshot.state
        if isinstance(state, Ended) and state.outcome is Outcome.SKIPPED:
            return "impossible"  # its join; the same change has skipped it
        if not isinstance(state, Ready | Waiting):
            return "not_runnable"
        if snapshot.life.unsealed or (join is not None and join.is_open):
            return "blocked_by_dependencies"
        return "eligible"

    async def inputs(self, snapshot: Snapshot) -> dict[str, bytes | None]:
        """The results of upstreams, by the parameter of the member that takes them; None if the
        upstream has no result. Of several for one parameter, the first with a result counts."""
        flow, join = snapshot.execution.flow, snapshot.life.join
        if flow is None or join is None or not join.inputs:
            return {}
        query = EdgeQuery(flow=flow, downstreams=(snapshot.execution.uuid,))
        wanted = [each for each in await self._all_edges(query) if each.edge.input is not None]
        upstreams = await self._ended.put(tuple(each.edge.upstream for each in wanted))
        passed = await passed_results(snapshot, wanted, upstreams, self._context.store.attempts)
        given: dict[str, bytes | None] = {}
        for edge in counting_edges(join, wanted, passed):
            name = edge.input or ""
            if given.get(name) is None:
                end = passed.get(edge.upstream)
                given[name] = None if end is None else end.result
        return given

    async def results(self, uuids: list[UUID]) -> dict[UUID, bytes | None]:
        """The results of executions that succeeded; None for those that did not."""
        keys = [parse_uuid(uuid, "execution") for uuid in check_names(uuids, "executions")]
        found: dict[UUID, bytes | None] = {}
        for uuid, snapshot in (await self._ended.put(tuple(keys))).items():
            match snapshot.state:
                case Ended(outcome=Outcome.SUCCESS, result=result):
                    found[uuid] = result
                case _:
                    found[uuid] = None
        return found

    async def skipped(self, uuids: list[UUID]) -> set[UUID]:
        """Which of these executions were skipped."""
        found = await load_all(self._context.store, uuids)
        return {
            uuid
            for uuid, each in found.items()
            if isinstance(each.state, Ended) and each.state.outcome is Outcome.SKIPPED
        }

    async def _count_ended(self) -> None:
        """Flows that are over are found as such, also right after their last ending. One that
        cannot be counted now is left to the sweep."""
        with suppress(FlowFabricError):
            if owed := await self._context.store.owed_flows(PAGE):
                await self._resolver.count(owed, everything=False)

    async def _counted(self, ids: list[UUID]) -> dict[UUID, Flow]:
        """Flows with the endings that are still in their outboxes."""
        if not ids:
            return {}
        seen = await self._context.store.owing(ids, MAX_ENTRIES)
        found = dict(seen.flows)
        for id, owed in seen.by_flow().items():
            if (flow := found.get(id)) is not None:
                counted = count_outbox(flow, flow.mutated_at, tuple(owed)).after
                found[id] = replace(counted, version=flow.version)
        return found

    async def _flush_ended(
        self, asked: list[tuple[UUID, ...]]
    ) -> list[dict[UUID, Snapshot] | Exception]:
        """Members for many callers by one load; one that cannot be read fails its caller alone."""
        try:
            loaded = await load_all(self._context.store, list({id for ids in asked for id in ids}))
        except FlowFabricError as error:
            if len(asked) == 1:
                return [error]
            return [each for one in asked for each in await self._flush_ended([one])]
        return [{id: loaded[id] for id in ids if id in loaded} for ids in asked]

    async def _all_edges(self, query: EdgeQuery) -> list[EdgeState]:
        pages = edge_pages(self._context.store, query)
        return [state async for page in pages for state in page]


def _member(snapshot: Snapshot) -> Member:
    execution = snapshot.execution
    return Member(
        id=execution.id,
        name=execution.facts.member or execution.kind,
        kind=execution.kind,
        state=public_state(snapshot),
        join=snapshot.life.join,
        spared=is_spared(snapshot),
    )


def _here(id: str, flow: UUID) -> tuple[UUID, ...]:
    """The execution, if it can be a member: with another partition the id is of another one."""
    found = ExecutionId(id)
    return (found.uuid,) if found.partition_index in (ANYWHERE, flow_partition(flow)) else ()


def _cursor(after: object) -> tuple[Millis, UUID]:
    if not isinstance(after, tuple) or len(after) != 2:
        raise Invalid("a cursor of flows must be a pair of time and id")
    return check_moment(after[0], "cursor"), parse_uuid(after[1], "cursor")
