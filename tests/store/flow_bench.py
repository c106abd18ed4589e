"""What tests of flow rows share: flows and members made by the core's own rules, on any store."""

from typing import Any
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import complete
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.ending import end
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import Flags, Outcome, Snapshot, Source, State
from flowfabric.core.execution.operator import cancel
from flowfabric.core.execution.submission import Creation, Submission, create
from flowfabric.core.flow.join import Edge, EdgeState
from flowfabric.core.flow.model import Flow, FlowChange, changed
from flowfabric.core.flow.outbox import OutboxEntry, OutboxKind
from flowfabric.core.wait.model import Needs
from flowfabric.store.queries import ClaimCall, EdgeQuery
from flowfabric.store.rows.record import FLOWS
from tests.kit.lab import TTL, W1
from tests.kit.snapshots import after, owner_of
from tests.kit.store_bench import StoreBench


class Bench(StoreBench):
    """A store, and flows with members made by the core's own rules."""

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

    def creation(self, flow: Flow, *, flagged: bool = True, **members: Any) -> Creation:
        uuid = self.fresh()
        given = {"kind": "job", "flow": flow.id, "id": ExecutionId.member(flow.id, uuid), **members}
        creation = create(Submission(**given), uuid, self.now)
        head = creation.snapshot.head
        head = replace(head, flags=head.flags | (Flags.FLOW if flagged else Flags.NONE))
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

    def ending(self, snapshot: Snapshot, outcome: Outcome) -> Change[Any]:
        """An ending of its own making, of one that never ran."""
        change = end(snapshot, self.now, outcome, EventKind.SKIPPED, snapshot.life, "because")
        return replace(change, outcome=None)

    async def write(self, *changes: Change[Any]) -> None:
        assert await self.store.apply(changes) == {uuid_of(after(change)) for change in changes}

    async def apply(self, before: Flow, **members: Any) -> bool:
        """The next version of a flow, with what is written along."""
        change = FlowChange(before, changed(before, self.now), **members)
        return await self.store.apply_flow(change)

    async def load(self, flow: Flow) -> Flow:
        return (await self.store.records.get(FLOWS, [flow.id]))[flow.id]

    async def edges(self, flow: Flow, **filters: Any) -> list[EdgeState]:
        return await self.store.edges(EdgeQuery(flow=flow.id, **filters))

    async def load_needs(self, execution: UUID, **asked: Any) -> dict[UUID, EdgeState]:
        (memory,) = await self.store.load_needs([Needs(execution, **asked)])
        return memory.edges

    async def outbox(self, flow: Flow) -> list[OutboxEntry]:
        return list((await self.store.owing([flow.id], 1000)).entries)


def uuid_of(snapshot: Snapshot) -> UUID:
    return snapshot.execution.uuid


def completion(snapshot: Snapshot, now: Millis) -> Change[Any]:
    return complete(snapshot, now, owner_of(snapshot), b"done")


def touch(snapshot: Snapshot, state: State | None = None, **written: Any) -> Change[None]:
    """Changes nothing of the execution itself but its version, or only its state."""
    return Change(None, snapshot, snapshot.to(state or snapshot.state), **written)


def edge(flow: Flow, id: int, upstream: UUID, downstream: UUID, **members: Any) -> Edge:
    given = {"created_at": Millis(5), **members}
    return Edge(id=UUID(int=id), flow=flow.id, upstream=upstream, downstream=downstream, **given)


def outbox_entry(flow: Flow, number: int, kind: OutboxKind = OutboxKind.CANCEL) -> OutboxEntry:
    return OutboxEntry(flow.id, flow.id, number, kind)


A, B, C = UUID(int=101), UUID(int=102), UUID(int=103)


def cancelled(
    snapshot: Snapshot,
    now: Millis,
    reason: str = "over",
    source: str = Source.OPERATOR,
    **options: Any,
) -> Change[Any]:
    return cancel(snapshot, now, Owner(source=source), reason, **options)
