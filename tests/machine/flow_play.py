"""One flow, two engines on its database, and the reference.

The first engine's process is mortal: when its fuse is lit it dies at the n-th write, before or
after it was written, and a fresh one takes its place. Clients repeat what they could not hear the
answer of. Stores of both yield at random, so that two who settle the same flow really meet.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid5

from flowfabric.core.base.errors import (
    Corruption,
    FlowFabricError,
    FlowTerminal,
    InvalidGraph,
    NotActive,
    RetryExhausted,
    Unavailable,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Ended, Failure, WorkerIdentity
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.graph import Graph, GraphEdge, GraphNode, member_id
from flowfabric.core.flow.join import AllOf, AnyOf, Edge, JoinPolicy, On, Quorum, Rest
from flowfabric.core.flow.model import CancelPolicy, Parent
from flowfabric.engine.commit import retry
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.flow import declarations, dispatch, downstreams, resolver, walks
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.queries import EdgeQuery
from tests.machine.benches import Bench
from tests.machine.flow_checks import Checks
from tests.machine.flow_model import Book, Child, Member, Rule
from tests.machine.rivals import Call, Wrapper

FLOW = UUID(int=0xF10)
WRITES = frozenset(
    {
        "submit",
        "claim",
        "end",
        "end_and_claim",
        "apply",
        "apply_flow",
        "lay_flows",
        "count_flows",
    }
)
READS = frozenset(
    {"load", "owing", "edges", "unsettled", "snapshots", "page", "load_needs", "owed_flows"}
)
RECORD_WRITES = frozenset({"put", "drop", "expire"})
WORKER = WorkerIdentity("w", "w-1")
ALL = AllOf()
MOST_SWEEPS = 30
PER_PAGE = 3
NEVER = 10**9


class Mortal(Wrapper):
    """A store of a process that dies when its fuse has burnt down."""

    writes = WRITES
    reads = READS

    def __init__(self, inner: Store, jitter: random.Random) -> None:
        super().__init__(inner)
        self.fuse = 0
        self.heard = True
        self.dead = False
        self._chance = jitter

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name in self.writes or name in self.reads:
            return partial(self._call, found, name in self.writes)
        return found

    async def on_record(self, name: str, call: Call, *args: Any, **named: Any) -> Any:
        return await self._call(call, name in RECORD_WRITES, *args, **named)

    async def _call(
        self, call: Callable[..., Awaitable[Any]], writes: bool, *args: Any, **named: Any
    ) -> Any:
        for _ in range(self._chance.choice((0, 0, 1, 3))):
            await asyncio.sleep(0)
        if self.dead:
            raise Unavailable("the process is dead")
        if writes and self.fuse:
            self.fuse -= 1
            if not self.fuse:
                self.dead = True
                if self.heard:
                    await call(*args, **named)
                raise Unavailable("the process dies")
        return await call(*args, **named)


class Following:
    """A worker that takes what follows a run in its flow."""

    def __init__(self) -> None:
        self.begun: list[Claim] = []

    def accepts(self, upstream: UUID, kind: str) -> Callable[[Claim, Millis], bool]:
        return self._begin

    def _begin(self, claim: Claim, now: Millis) -> bool:
        self.begun.append(claim)
        return True

    async def complete(self, claim: Claim, engine: Engine) -> object:
        with engine.followed_by(
            self,
            WORKER,
            lanes=("default",),
            capabilities=(),
            kinds=frozenset({"job"}),
            ttl=Millis(700),
            namespace=None,
        ):
            return await engine.attempts.complete(claim, b"done")


@dataclass(frozen=True)
class Wish:
    """A member to be. `late`: submitted on its own and joined later, so nobody holds it."""

    key: str
    join: JoinPolicy = ALL
    delay: int | None = None
    deadline: int | None = None
    retries: int = 0
    late: bool = False

    @property
    def uuid(self) -> UUID:
        return self.id.uuid

    @property
    def id(self) -> ExecutionId:
        return member_id(FLOW, self.key)

    @property
    def rule(self) -> Rule:
        match self.join:
            case AllOf():
                return Rule()
            case AnyOf(rest=rest):
                return Rule(1, rest is Rest.CANCEL)
            case Quorum(k=k, rest=rest):
                return Rule(k, rest is Rest.CANCEL)

    def submission(self, now: int, *, alone: bool = True) -> Submission:
        """`alone`: with the id that a declaration would give it."""
        backoff = {"type": "fixed", "delay_ms": 500}
        retry = {"max_retries": self.retries, "backoff": backoff}
        return Submission(
            kind="job",
            id=self.id if alone else None,
            flow=FLOW if alone else None,
            policy={"max_replay_count": 1000, "max_reclaim_count": 1000, "retry_policy": retry},
            delay_until=None if self.delay is None else Millis(now + self.delay),
            deadline_at=None if self.deadline is None else Millis(now + self.deadline),
        )


@dataclass(frozen=True)
class Wanted:
    """An edge to be."""

    number: int
    up: Wish
    down: Wish
    on: On = On.SUCCESS

    @property
    def edge(self) -> Edge:
        return Edge(
            id=uuid5(FLOW, f"edge {self.number}"),
            flow=FLOW,
            upstream=self.up.uuid,
            downstream=self.down.uuid,
            on=self.on,
        )


@dataclass
class FlowPlay:
    bench: Bench
    seed: int
    clock: ManualClock = field(default_factory=ManualClock)
    book: Book = field(default_factory=Book)
    holdings: list[Claim] = field(default_factory=list)
    hearing: asyncio.Lock = field(default_factory=asyncio.Lock)
    idle: bool = False

    async def begin(self) -> None:
        await self.bench.clean()
        self.grave = asyncio.Lock()
        self.jitter = random.Random(self.seed)
        self.plain = await self.bench.open(self.clock)
        await self.plain.migrate()
        self.other = await self._engine(Mortal(await self.bench.open(self.clock), self.jitter))
        self.checks = Checks(self.plain, FLOW, self.book)
        await self._start()

    async def _start(self) -> None:
        self.mortal = Mortal(await self.bench.open(self.clock), self.jitter)
        self.engine = await self._engine(self.mortal)
        self.tune(idle=self.idle)

    async def _engine(self, store: Mortal) -> Engine:
        return await Engine.open(store.store, jitter=random.Random(0), migrate=False)

    async def end(self) -> None:
        for engine in (self.engine, self.other):
            await engine.close()
        await self.plain.close()

    # -- dying

    def light(self, fuse: int, *, heard: bool) -> None:
        self.mortal.fuse, self.mortal.heard = fuse, heard

    async def bury(self, dead: Mortal) -> None:
        """The dead process's tasks end one after the other; a fresh process begins."""
        async with self.grave:
            if dead is self.mortal:
                await self.engine.close()
                await self._start()

    async def insist(self, call: Callable[[Engine], Coroutine[Any, Any, object]]) -> object:
        """Repeats a call until it was answered; a refusal is the answer."""
        while True:
            mortal = self.mortal
            try:
                return await call(self.engine)
            except Unavailable:
                assert mortal.dead, "a store that works is not available"
                await self.bury(mortal)
            except (Corruption, RetryExhausted):
                raise
            except FlowFabricError as refusal:
                return refusal

    def tune(self, *, idle: bool) -> None:
        """Whether the first process settles after its commits or leaves everything to the sweep."""
        self.idle, mine = idle, self.engine._dispatcher
        for method in ("kick", "committed"):
            vars(mine).pop(method, None)
            if idle:
                vars(mine)[method] = _nobody

    # -- building

    async def declare(self, wishes: list[Wish], links: list[Wanted]) -> None:
        now = int(self.clock.now())
        nodes = tuple(
            GraphNode(one.key, one.submission(now, alone=False), one.join) for one in wishes
        )
        wires = tuple(GraphEdge(one.up.key, one.down.key, one.on) for one in links)
        self.book.sealed = True
        self.book.members.update({one.uuid: Member(one.uuid, one.rule) for one in wishes})
        answer = await self.insist(
            lambda engine: engine.flows.declare("test", Graph(nodes, wires), id=FLOW)
        )
        assert not isinstance(answer, FlowFabricError), answer
        ends = {(one.up.uuid, one.down.uuid, one.on) for one in links}
        for state in await self.plain.edges(EdgeQuery(flow=FLOW)):
            edge = state.edge
            assert (edge.upstream, edge.downstream, edge.on) in ends
            self.book.link(edge.id, edge.upstream, edge.downstream, str(edge.on))

    async def create(self) -> None:
        await self.insist(lambda engine: engine.flows.create("test", id=FLOW))

    async def add(self, wish: Wish) -> bool:
        """Whether it is a member now."""
        member = Member(wish.uuid, held=not (wish.late or self.book.sealed))
        given = wish.submission(int(self.clock.now()))
        if wish.late:
            await self.insist(lambda engine: engine.executions.submit(given))
            answer = await self.insist(lambda engine: engine.flows.join(FLOW, wish.id))
        else:
            answer = await self.insist(lambda engine: engine.flows.add(FLOW, given))
        if isinstance(answer, FlowFabricError):
            assert isinstance(answer, FlowTerminal), answer
            return False
        self.book.members[wish.uuid] = member
        await self._catch_up(wish.uuid)
        if wish.join != AllOf():
            return await self.set_join(wish)
        return True

    async def _catch_up(self, uuid: UUID) -> None:
        """One that ended before it joined is known from now on."""
        snapshot = (await self.plain.load([uuid]))[uuid]
        await self.checks.hear()
        member = self.book.members[uuid]
        if isinstance(snapshot.state, Ended) and member.ended is None:
            member.tale.append(snapshot.state.outcome.name.lower())

    async def set_join(self, wish: Wish) -> bool:
        answer = await self.insist(lambda engine: engine.flows.set_join(FLOW, wish.id, wish.join))
        if isinstance(answer, FlowFabricError):
            assert isinstance(answer, FlowTerminal), answer
        else:
            self.book.members[wish.uuid].rule = wish.rule
        return True

    async def stage(self, wanted: Wanted) -> None:
        if not {wanted.up.uuid, wanted.down.uuid} <= self.book.members.keys():
            return
        await self.checks.hear()
        down = (await self.plain.load([wanted.down.uuid]))[wanted.down.uuid]
        begun = down.attempts_made > 0 or isinstance(down.state, Ended)
        edge, book = wanted.edge, self.book
        book.link(edge.id, edge.upstream, edge.downstream, str(edge.on), under_way=begun)
        answer = await self.insist(lambda engine: engine.flows.stage(edge))
        if isinstance(answer, FlowFabricError):
            assert isinstance(answer, FlowTerminal | InvalidGraph), answer
            if not await self.plain.edges(EdgeQuery(flow=FLOW, ids=(edge.id,))):
                del book.wires[edge.id]

    async def seal(self) -> None:
        """A quorum that lost an upstream on the way is refused, and the flow stays open."""
        answer = await self.insist(lambda engine: engine.flows.seal(FLOW))
        if isinstance(answer, FlowFabricError):
            assert isinstance(answer, FlowTerminal | InvalidGraph), answer
            if isinstance(answer, FlowTerminal):
                return
            await self.cancel_flow(CancelPolicy.ALL, wait=True)
        else:
            self.book.sealed = True

    # -- working

    async def claim(self, limit: int, ttl: int) -> None:
        answer = await self.insist(
            lambda engine: engine.claims.claim(WORKER, limit=limit, ttl=Millis(ttl))
        )
        assert isinstance(answer, list), answer
        await self.checks.hear()
        for claim in answer:
            self.holdings.append(claim)
            self._may_run(claim)

    def _may_run(self, claim: Claim) -> None:
        member = self.book.members.get(claim.uuid)
        if member is None:
            return  # it has not joined the flow yet
        free = self.book.sealed or self.book.cancel is not None
        assert free or not member.held, f"{claim.id} runs before the flow is sealed"
        early = not (self.book.may_run(claim.uuid) or member.overtaken)
        assert not early, f"{claim.id} runs before its join allows it"

    async def work(self, pick: int, how: str) -> None:
        """The owner of a lease ends its attempt in some way, if it still owns it, and goes on with
        what follows."""
        if not self.holdings:
            return
        claim, following = self.holdings.pop(pick % len(self.holdings)), Following()
        await self.insist(partial(_deed, claim, how, Millis(self.clock.now() + 700), following))
        async with self.hearing:
            await self.checks.hear()
        for each in following.begun:
            self.holdings.append(each)
            self._may_run(each)

    async def start_flow(self, pick: int) -> None:
        """A member that runs starts a flow of its own, whose part waits for longer than we play."""
        claim = self.holdings[pick % len(self.holdings)] if self.holdings else None
        member = None if claim is None else self.book.members.get(claim.uuid)
        if claim is None or member is None:
            return
        await self.checks.hear()
        flow, since = uuid5(claim.uuid, f"flow {len(self.book.children)}"), len(member.tale)
        later = Submission(kind="part", delay_until=Millis(self.clock.now() + NEVER))
        graph, parent = Graph((GraphNode("part", later),)), Parent(str(claim.id), "flow")
        answer = await self.insist(
            lambda engine: engine.flows.declare("child", graph, id=flow, parent=parent)
        )
        if isinstance(answer, FlowFabricError):
            assert isinstance(answer, NotActive), answer
        else:
            self.book.children[flow] = Child(member, since)

    async def revoke(self, pick: int) -> None:
        if self.holdings:
            claim = self.holdings[pick % len(self.holdings)]
            await self.insist(lambda engine: engine.claims.revoke(claim.id, reason="too slow"))

    # -- steering

    async def cancel(self, uuid: UUID) -> None:
        self.book.members[uuid].asked = True
        id = ExecutionId.member(FLOW, uuid)
        await self.insist(lambda engine: engine.executions.cancel(id, reason="by hand"))

    async def cancel_flow(self, policy: CancelPolicy, *, wait: bool) -> None:
        answer = await self.insist(
            lambda engine: engine.flows.cancel(FLOW, policy=policy, reason="the flow", wait=wait)
        )
        if isinstance(answer, FlowFabricError):
            assert isinstance(answer, FlowTerminal), answer
        elif self.book.cancel is None:
            self.book.cancel = str(policy)

    async def replay(self, uuid: UUID) -> None:
        id = ExecutionId.member(FLOW, uuid)
        await self.insist(lambda engine: engine.executions.replay(id))

    async def replay_flow(self) -> None:
        await self.insist(lambda engine: engine.flows.replay(FLOW))

    # -- coming to rest

    async def sweep(self, *, both: bool = False) -> None:
        """The sweep of one process, or of two at once."""
        others = [self.other_sweeps()] if both else []
        await asyncio.gather(self.insist(lambda engine: engine.sweep.once()), *others)

    async def other_sweeps(self) -> None:
        await self.other.sweep.once()

    async def settle(self) -> None:
        """Nothing is owed any more, and everything that holds then is checked."""
        self.light(0, heard=True)
        if self.mortal.dead:
            await self.bury(self.mortal)
        await asyncio.gather(self.engine._dispatcher.drain(), self.other._dispatcher.drain())
        for _ in range(MOST_SWEEPS):
            await self.sweep(both=True)
            if not await self.plain.owed_flows(1):
                break
        await self.checks.quiet()


class Still:
    """Chance that never makes anybody wait: what happens can be repeated."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


@contextmanager
def paged() -> Iterator[None]:
    """Small pages, so that few edges and outbox entries fill several; and no pauses."""
    query = partial(EdgeQuery, limit=PER_PAGE)
    with (
        patch.object(retry, "random", Still()),
        patch.object(resolver, "EdgeQuery", query),
        patch.object(resolver, "PAGE", PER_PAGE),
        patch.object(dispatch, "PAGE", PER_PAGE),
        patch.object(walks, "PAGE", PER_PAGE),
        patch.object(walks, "LIVING_PAGE", PER_PAGE),
        patch.object(downstreams, "FEW", 2),
        patch.object(declarations, "MAX_WHOLE", PER_PAGE),
    ):
        yield


def _deed(
    claim: Claim, how: str, later: Millis, following: Following, engine: Engine
) -> Coroutine[Any, Any, object]:
    attempts = engine.attempts
    match how:
        case "complete":
            return following.complete(claim, engine)
        case "fail":
            return attempts.fail(claim, Failure("boom"))
        case "fail for good":
            return attempts.fail(claim, Failure("boom", "permanent"))
        case "delay":
            return attempts.delay(claim, later)
        case "wait for children":
            return attempts.wait_children(claim)
        case _:
            return attempts.hand_back(claim)


def _nobody(owed: object) -> None:
    """Settles nothing: the sweep will."""
