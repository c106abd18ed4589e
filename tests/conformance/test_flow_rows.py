"""What is kept of flows: the flow itself, edges, members, chores; written whole or not at all."""

import itertools
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core import document
from flowfabric.core.attempt import complete
from flowfabric.core.change import Change
from flowfabric.core.chore import Chore, ChoreKind
from flowfabric.core.execution import Active, Flags, Snapshot
from flowfabric.core.flow import (
    Cancellation,
    CancelPolicy,
    Flow,
    FlowChange,
    FlowState,
    Parent,
    changed,
)
from flowfabric.core.ids import ExecutionId, new_uuid7
from flowfabric.core.join import Edge, EdgeState, On
from flowfabric.core.lease import Owner, fence_of
from flowfabric.core.outcome import Outcome
from flowfabric.core.submission import Submission, create
from flowfabric.core.time import Millis
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import ClaimCall, EdgeQuery, Store
from tests.lab import TTL, W1

numbers = itertools.count(1)


class Bench:
    """A store, and flows with members made by the core's own rules."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock

    @property
    def now(self) -> Millis:
        return self.clock.now()

    def fresh(self) -> UUID:
        return new_uuid7(self.now, next(numbers))

    async def flow(self, **members: Any) -> Flow:
        given = {"id": self.fresh(), "kind": "graph", "created_at": self.now, **members}
        flow = Flow(**given)
        assert await self.store.apply_flow(FlowChange(None, flow))
        return flow

    async def member(self, flow: Flow, **members: Any) -> Snapshot:
        (snapshot,) = await self.members(flow, 1, **members)
        return snapshot

    async def members(self, flow: Flow, count: int, **members: Any) -> list[Snapshot]:
        """Members in the order of ids, as they were submitted."""
        made = [self.creation(flow, **members) for _ in range(count)]
        for start in range(0, count, 500):
            batch = made[start : start + 500]
            assert not any(await self.store.submit(batch, self.now))
        return [creation.snapshot for creation in made]

    def creation(self, flow: Flow, **members: Any) -> Any:
        uuid = self.fresh()
        given = {"kind": "job", "flow": flow.id, "id": ExecutionId.member(flow.id, uuid), **members}
        creation = create(Submission(**given), uuid, self.now)
        head = creation.snapshot.head
        head = replace(head, flags=head.flags | Flags.FLOW)
        return replace(creation, snapshot=replace(creation.snapshot, head=head))

    async def running(self, flow: Flow, **members: Any) -> Snapshot:
        """A fresh member, claimed; nothing else may be waiting."""
        await self.members(flow, 1, **members)
        return await self.claim()

    async def claim(self) -> Snapshot:
        call = ClaimCall(self.fresh(), W1, frozenset(), (), None, 1, TTL)
        (taken,) = await self.store.claim(call, self.now)
        return taken.snapshot

    async def ended(self, flow: Flow, **members: Any) -> Snapshot:
        change = completion(await self.running(flow, **members), self.now)
        await self.write(change)
        return after(change)

    async def write(self, *changes: Change[Any]) -> None:
        assert await self.store.apply(changes) == {uuid_of(after(change)) for change in changes}

    async def apply(self, before: Flow, **members: Any) -> bool:
        """The next version of a flow, with what is written along."""
        change = FlowChange(before, changed(before, self.now), **members)
        return await self.store.apply_flow(change)

    async def load(self, flow: Flow) -> Flow | None:
        return (await self.store.flows([flow.id])).get(flow.id)

    async def chores(self, flow: Flow) -> list[Chore]:
        return await self.store.chores(flow.id, 1000)


@pytest.fixture
async def bench(store: Store, clock: ManualClock) -> AsyncIterator[Bench]:
    await store.migrate()
    yield Bench(store, clock)
    await store.close()


def after(change: Change[Any]) -> Snapshot:
    assert change.after is not None
    return change.after


def uuid_of(snapshot: Snapshot) -> UUID:
    return snapshot.execution.uuid


def completion(snapshot: Snapshot, now: Millis) -> Change[Any]:
    assert isinstance(snapshot.state, Active)
    owner = Owner.of(fence_of(snapshot, snapshot.state.lease))
    return complete(snapshot, owner, now, b"done")


def touch(snapshot: Snapshot, **written: Any) -> Change[None]:
    """Changes nothing of the execution itself but its version."""
    return Change(None, snapshot, snapshot.to(snapshot.state), **written)


def edge(flow: Flow, id: int, upstream: UUID, downstream: UUID, **members: Any) -> Edge:
    given = {"created_at": Millis(5), **members}
    return Edge(id=UUID(int=id), flow=flow.id, upstream=upstream, downstream=downstream, **given)


def chore(flow: Flow, number: int, kind: ChoreKind = ChoreKind.CANCEL) -> Chore:
    return Chore(flow.id, flow.id, number, kind)


A, B, C = UUID(int=101), UUID(int=102), UUID(int=103)


# -- round trips


async def test_a_flow_is_remembered_whole(bench: Bench) -> None:
    full = await bench.flow(
        version=3,
        kind="naïve 鍵",
        namespace="Ω",
        state=FlowState.CANCELLED,
        revision=7,
        nodes=4,
        edges=3,
        ended={"success": 2, "spared": 1},
        mutated_at=Millis(8),
        ended_at=Millis(9),
        cancel=Cancellation(Millis(3), "weil\x00", CancelPolicy.PENDING),
        parent=Parent("run", "signal"),
        graph="blake2b:1",
        tags={"team": "ü", "": ""},
    )
    bare = await bench.flow()
    assert await bench.store.flows([full.id, bare.id, A]) == {full.id: full, bare.id: bare}
    assert await bench.store.flows([]) == {}


async def test_what_a_newer_release_wrote_into_a_flow_survives(bench: Bench) -> None:
    flow = await bench.flow()
    members = {**document.to_members(flow), "novel": {"deep": [1]}, "other": None}
    newer = document.from_members(Flow, members)
    assert await bench.store.apply_flow(FlowChange(flow, replace(newer, version=2)))
    read = await bench.load(flow)
    assert read is not None
    assert read.unknown == {"novel": {"deep": [1]}, "other": None}
    assert await bench.apply(read)
    assert document.to_members((await bench.load(flow)) or flow)["novel"] == {"deep": [1]}


async def test_an_edge_is_remembered_whole(bench: Bench) -> None:
    flow = await bench.flow()
    full = edge(flow, 1, A, B, on=On.ANY_END, input="naïve.鍵")
    bare = replace(edge(flow, 2, A, C), created_at=Millis(0))
    assert await bench.apply(flow, edges=(full, bare))
    assert await bench.store.edges(EdgeQuery(flow=flow.id)) == [EdgeState(full), EdgeState(bare)]


async def test_a_chore_is_remembered_whole(bench: Bench) -> None:
    flow = await bench.flow()
    owed = [
        Chore(flow.id, A, 1, kind, outcome, spared)
        for kind in ChoreKind
        for outcome, spared in [(None, False), (Outcome(kind - 1), True)]
    ]
    owed = [replace(item, number=number) for number, item in enumerate(owed)]
    assert await bench.apply(flow, owed=tuple(reversed(owed)))
    assert await bench.chores(flow) == owed
    assert await bench.store.chores(flow.id, 3) == owed[:3]
    assert await bench.store.chores(A, 3) == []
