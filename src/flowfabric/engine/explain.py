"""Why an execution does not run, and what a whole lane waits for."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.text import check_lane, check_namespace
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.lease import present
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Execution,
    Failure,
    Gate,
    Lost,
    Ready,
    Snapshot,
    Suspended,
    Waiting,
)
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.status import PublicState
from flowfabric.core.explain.lane import AroundLane, Counted, LaneExplanation, explain_lane
from flowfabric.core.explain.limits import key_of, queues_of
from flowfabric.core.explain.reasons import Explanation, QueuePlace
from flowfabric.core.explain.run import NOTHING, Around, Upstream, explain, is_limited
from flowfabric.core.explain.state import flow_at
from flowfabric.core.explain.workers import NOTHING_RUNS, Running
from flowfabric.core.limit.lane import Lane
from flowfabric.core.limit.quota import Quota, Uses, queue_of
from flowfabric.core.limit.release import Key, QuotaView, Room, Window
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.limit.budget_gate import BudgetGate
from flowfabric.engine.limit.lanes import lane_of
from flowfabric.engine.limit.unclaimable import live_workers
from flowfabric.store.contract import Store
from flowfabric.store.queries import (
    Claimable,
    EdgeQuery,
    HoldingSlots,
    InQueue,
    MembersOf,
    QuotaViewRequest,
    RunningIn,
)
from flowfabric.store.readable import load_readable

MAX_DEPTH = 5
"""How far upstreams of upstreams are followed."""
MAX_UPSTREAMS = 10
"""How many of one execution are named."""
MAX_EXPLAINED = 50
"""How many executions one explanation looks into."""
MAX_AHEAD = 1000
MAX_CANDIDATES = 500
MAX_HOLDERS = 10
MAX_QUEUES = 100
MAX_LINES = 100_000
MAX_LOOKS = 1000
"""How many queues of a lane are asked for their names."""


class Explain(Service):
    """`engine.explain`"""

    def __init__(self, context: EngineContext, budget_gate: BudgetGate) -> None:
        super().__init__(context)
        self._budget_gate = budget_gate

    async def __call__(self, id: str) -> Explanation:
        """Everything that keeps an execution from running, beginning with what must change first.
        One that runs or has ended has a reason as well."""
        await self._let_in()  # entries of the inbox may be ahead of it
        snapshot = present(await self._load_settled(id), id)
        return await _RunLook(self._context.store, self._budget_gate, self._now()).explain(snapshot)

    async def lane(self, lane: str, namespace: str | None = None) -> LaneExplanation:
        """What the executions of a lane wait for, by reason; each number is exact up to 100,000."""
        name = check_lane(lane)
        place = None if namespace is None else check_namespace(namespace)
        await self._settle()
        return await _LaneLook(self._context.store, self._now()).explain(name, place)


class _RunLook:
    """One explanation of a run. It remembers which runs it looked at, so that none is explained
    twice and the tree of reasons ends."""

    def __init__(self, store: Store, budget_gate: BudgetGate, now: Millis) -> None:
        self._store = store
        self._budget_gate = budget_gate
        self._now = now
        self._seen: set[UUID] = set()
        self._workers: list[Presence] | None = None
        self._lanes: dict[str, Lane] = {}

    async def explain(self, snapshot: Snapshot, depth: int = 0) -> Explanation:
        self._seen.add(snapshot.execution.uuid)
        return explain(snapshot, await self._around(snapshot, depth))

    async def _around(self, snapshot: Snapshot, depth: int) -> Around:
        match snapshot.state:
            case Ended() | Active():
                return Around(now=self._now)
            case Suspended():
                return Around(now=self._now, members=await self._members(snapshot, depth))
            case Waiting():
                around = await self._before_claim(snapshot)
                return await self._at_gates(snapshot, snapshot.state, around, depth)
            case Ready() | Lost():
                around = await self._before_claim(snapshot)
                return await self._at_claim(snapshot, around)

    async def _before_claim(self, snapshot: Snapshot) -> Around:
        execution = snapshot.execution
        names = await self._budget_gate.known.names_of(execution)
        waited = snapshot.life.budget
        asked = names if waited is None else tuple(dict.fromkeys((waited, *names)))
        budgets = await self._budget_gate.known.budgets(asked) if asked else {}
        if self._workers is None:
            self._workers = await live_workers(self._store, self._now)
        return Around(
            now=self._now,
            lane=await self._lane(execution.route.lane),
            workers=self._workers,
            budgets=budgets,
            budget_names=names,
        )

    async def _at_gates(
        self, snapshot: Snapshot, state: Waiting, around: Around, depth: int
    ) -> Around:
        if state.gate is Gate.BACKOFF:
            failure = await self._last_failure(snapshot.execution)
            around = replace(around, failure=failure)
        join = snapshot.life.join
        if join is not None and join.is_open:
            around = replace(around, upstreams=await self._upstreams(snapshot, depth))
        if is_limited(snapshot):
            around = await self._at_limits(snapshot, state, around)
        return around

    async def _at_claim(self, snapshot: Snapshot, around: Around) -> Around:
        running = await running_of(self._store, around.lane)
        return replace(around, running=running, in_lane=await self._place(snapshot))

    async def _place(self, snapshot: Snapshot) -> QueuePlace:
        """Among the ready ones of its route, in the order of claims."""
        route, own = snapshot.execution.route, (snapshot.head.rank, snapshot.execution.uuid)
        found = await self._store.snapshots(
            Claimable(route.lane, route.namespace, self._now, MAX_CANDIDATES)
        )
        ranks = [(each.head.rank, each.execution.uuid) for each in found]
        ahead = sum(
            rank < own and each.execution.route == route
            for rank, each in zip(ranks, found, strict=True)
        )
        return QueuePlace(ahead, len(found) < MAX_CANDIDATES or own <= max(ranks))

    async def _lane(self, name: str) -> Lane:
        if name not in self._lanes:
            self._lanes[name] = await lane_of(self._store, name)
        return self._lanes[name]

    async def _last_failure(self, execution: Execution) -> Failure | None:
        attempts = await self._store.attempts(execution.uuid)
        failures = [attempt.failure for attempt in attempts if attempt.failure is not None]
        return failures[-1] if failures else None

    async def _upstreams(self, snapshot: Snapshot, depth: int) -> list[Upstream]:
        """Upstreams whose edge is not resolved, each with its own reasons up to MAX_DEPTH."""
        execution = snapshot.execution
        if execution.flow is None:
            return []
        query = EdgeQuery(
            flow=execution.flow,
            downstreams=(execution.uuid,),
            unsettled=True,
            limit=MAX_UPSTREAMS,
        )
        uuids = [state.edge.upstream for state in await self._store.edges(query)]
        return await self._around_each(
            (await load_readable(self._store.load, uuids)).values(), depth
        )

    async def _members(self, snapshot: Snapshot, depth: int) -> dict[str, Sequence[Upstream]]:
        """What is still to end in the flows it waits for."""
        flows = {point.key: flow_at(point.key) for point in snapshot.waits.active}
        return {
            key: await self._around_each(
                await self._store.snapshots(MembersOf(flow, limit=MAX_UPSTREAMS, living=True)),
                depth,
            )
            for key, flow in flows.items()
            if flow is not None
        }

    async def _around_each(self, found: Iterable[Snapshot], depth: int) -> list[Upstream]:
        return [
            Upstream(each, await self._deeper(each, depth + 1))
            for each in sorted(found, key=lambda each: each.execution.facts.member or "")
        ]

    async def _deeper(self, snapshot: Snapshot, depth: int) -> Explanation | None:
        enough = depth >= MAX_DEPTH or len(self._seen) >= MAX_EXPLAINED
        if enough or snapshot.execution.uuid in self._seen or isinstance(snapshot.state, Ended):
            return None
        return await self.explain(snapshot, depth)

    async def _at_limits(self, snapshot: Snapshot, state: Waiting, around: Around) -> Around:
        uses, uuid = snapshot.execution.uses, snapshot.execution.uuid
        queue = queue_of(uses)
        quotas = await quota_view(self._store, uses, self._now)
        if not quotas.lines:  # its line is empty: it does not wait at this gate yet
            quotas = await _view_without_line(self._store, uses, self._now)
        place = None
        if state.gate is Gate.LIMIT:
            ahead = await self._store.ahead_of(queue, snapshot.head.rank, uuid, MAX_AHEAD)
            place = QueuePlace(ahead, ahead < MAX_AHEAD)
        holders: dict[Key, Sequence[ExecutionId]] = {}
        for full in Room(quotas, self._now).full(uses):
            queues = queues_of(full, quotas)[:MAX_QUEUES]
            found = await self._store.executions_in(HoldingSlots(tuple(queues)), MAX_HOLDERS)
            holders[key_of(full)] = await _ids(self._store, found)
        return replace(around, quotas=quotas, holders=holders, in_queue=place)


class _LaneLook:
    """One explanation of a lane. It remembers what the numbers of queues stand for."""

    def __init__(self, store: Store, now: Millis) -> None:
        self._store = store
        self._now = now
        self._queues: dict[int, Uses] = {}
        self._rooms: dict[int, Room] = {}
        self._budgets: dict[int, str] = {}

    async def explain(self, name: str, namespace: str | None) -> LaneExplanation:
        store = self._store
        found = await store.lane_counts(name, namespace)
        counts = [
            Counted(each.gate, each.queue, each.count)
            for each in found.waiting
            if each.gate is not None
        ]
        public = (await store.counts(namespace, name)).by_state
        lane = await lane_of(store, name)
        await self._name_queues(counts)
        around = AroundLane(
            now=self._now,
            lane=lane,
            namespace=namespace,
            active=public.get(PublicState.ACTIVE, 0),
            suspended=public.get(PublicState.SUSPENDED, 0),
            running=await running_of(store, lane),
            ready=found.ready,
            workers=await live_workers(store, self._now) if found.ready else (),
            queues=self._queues,
            budgets=self._budgets,
            rooms=self._rooms,
        )
        return explain_lane(counts, around)

    async def _name_queues(self, counts: Sequence[Counted]) -> None:
        """Finds what the numbers of queues stand for, the fullest queue first. One look at a quota
        names all of its queues."""
        looks = 0
        for counted in sorted(counts, key=lambda each: -each.count):
            queue = counted.queue
            if counted.gate is Gate.BLOCKED:
                continue  # of runs that are blocked by code, which need no name
            if queue is None or queue in self._queues or looks == MAX_LOOKS:
                continue
            looks += 1
            first = await self._store.executions_in(InQueue(queue), 1)
            for snapshot in (await load_readable(self._store.load, first)).values():
                await self._name_queue(queue, snapshot)

    async def _name_queue(self, queue: int, snapshot: Snapshot) -> None:
        match snapshot.state:
            case Waiting(gate=Gate.BUDGET):
                self._budgets[queue] = snapshot.life.budget or ""
            case Waiting(gate=Gate.LIMIT):
                uses = snapshot.execution.uses
                quotas = await quota_view(self._store, uses, self._now, whole=True)
                room = Room(quotas, self._now)
                for line in quotas.lines:
                    self._queues[line.id] = line.uses
                    self._rooms[line.id] = room
                self._queues[queue], self._rooms[queue] = uses, room
            case _:
                pass  # it has moved on since


async def quota_view(store: Store, uses: Uses, now: Millis, *, whole: bool = False) -> QuotaView:
    """How full the quotas of these uses are (`whole`: with all their lines). A quota that was
    deleted knows no line, so the next one is asked."""
    queues = None if whole else (queue_of(uses),)
    for use in uses:
        ask = QuotaViewRequest(use.quota, queues, MAX_LINES if whole else 1, 1, now)
        found = await store.quota_view(ask)
        if found.lines:
            return found
    return NOTHING


async def _view_without_line(store: Store, uses: Uses, now: Millis) -> QuotaView:
    """How full the quotas of these uses are for one that does not wait for them yet."""
    quotas, admitted = dict[str, Quota](), dict[Key, Window]()
    held: dict[int, tuple[Uses, int]] = {}
    for use in uses:
        found = await store.quota_view(QuotaViewRequest(use.quota, (), 1, 1, now))
        quotas |= found.quotas
        admitted |= found.admitted
        counts = await store.queue_counts(use.quota, MAX_LINES)
        held |= {queue_of(count.uses): (count.uses, count.held) for count in counts}
    return QuotaView(quotas, (), list(held.values()), admitted)


async def running_of(store: Store, lane: Lane) -> Running:
    """Which executions run in a lane with a limit, counted up to that limit."""
    if lane.concurrency is None:
        return NOTHING_RUNS
    found = await store.executions_in(RunningIn(lane.name), lane.concurrency)
    return Running(len(found), await _ids(store, found[:MAX_HOLDERS]))


async def _ids(store: Store, uuids: Sequence[UUID]) -> list[ExecutionId]:
    """The ids of those that are still there."""
    found = await load_readable(store.load, uuids)
    return [found[uuid].execution.id for uuid in uuids if uuid in found]
