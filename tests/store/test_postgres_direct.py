"""Changes that one statement writes: what waits becomes ready or ends. Rivals, locks, lost replies,
batches of several kinds, and the plans."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.model import (
    Flags,
    Gate,
    Next,
    Outcome,
    Ready,
    Snapshot,
    Start,
    Waiting,
)
from flowfabric.core.flow.graph import NewFlow
from flowfabric.core.flow.model import Flow, FlowChange, changed
from flowfabric.core.flow.outbox import OutboxEntry, OutboxKind
from flowfabric.store.postgres.dialer import PINNED
from flowfabric.store.queries import EventQuery, FlowQuery, MembersOf
from flowfabric.store.sql import load_queries
from tests.kit.snapshots import after
from tests.store import postgres_bench
from tests.store.flow_bench import A, B, Bench, cancelled, edge, outbox_entry, touch, uuid_of
from tests.store.postgres_bench import listen, lose_reply, until_waiting

FIRST = Next(Start.INITIAL, 0)
WAITING = Waiting(Gate.DEPENDENCIES, FIRST)
READY = Ready(FIRST)


@pytest.fixture
def bench(server: postgres_bench.Bench) -> Bench:
    return Bench(server.store, server.clock)


class Parked:
    """Members that wait, each for one edge."""

    def __init__(self, bench: Bench, flow: Flow, members: list[Snapshot]) -> None:
        self.bench = bench
        self.flow = flow
        self.members = members

    def promoted(self, n: int) -> Change[None]:
        """Becomes ready: settles its edge and owes something."""
        member = self.members[n]
        owed = OutboxEntry(
            self.flow.id, uuid_of(member), member.head.version + 1, OutboxKind.SIBLINGS
        )
        settled = ((UUID(int=n + 1), Outcome.SUCCESS),)
        return touch(member, READY, settled=settled, owed=(owed,))

    def skipped(self, n: int) -> Change[Any]:
        change = self.bench.ending(self.members[n], Outcome.SKIPPED)
        return replace(change, settled=((UUID(int=n + 1), Outcome.FAILED),))

    async def outcomes(self) -> list[Outcome | None]:
        return [found.outcome for found in await self.bench.edges(self.flow)]

    async def owing(self) -> list[tuple[UUID, OutboxKind]]:
        return [(entry.id, entry.kind) for entry in await self.bench.outbox(self.flow)]

    async def told(self, n: int) -> list[EventKind]:
        uuid = uuid_of(self.members[n])
        return [e.kind for e in (await self.bench.store.events(EventQuery(uuid=uuid))).events]

    async def is_untouched(self, n: int) -> bool:
        """Nothing that a change of this member would have written is there."""
        owing = {id for id, _ in await self.owing()}
        edges = await self.outcomes()
        return (
            edges[n] is None and uuid_of(self.members[n]) not in owing and await self.told(n) == []
        )


async def parked(bench: Bench, count: int) -> Parked:
    flow = await bench.flow()
    members = await bench.members(flow, count)
    edges = [edge(flow, n + 1, A, uuid_of(member)) for n, member in enumerate(members)]
    assert await bench.apply(flow, edges=tuple(edges))
    changes = [touch(member, WAITING) for member in members]
    await bench.write(*changes)
    return Parked(bench, flow, [after(change) for change in changes])


async def test_what_waits_becomes_ready_or_ends_in_one_statement(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    """With everything that the general way writes, and nothing is left where it was."""
    there = await parked(bench, 3)
    (idle,) = await bench.members(there.flow, 1)
    changes = [there.promoted(0), there.skipped(1), cancelled(idle, bench.now)]
    sent: list[str] = []
    await listen(server, sent)
    await bench.write(*changes)
    await asyncio.sleep(0)
    assert [name for name in sent if name] == ["readied_directly", "ended_directly"]
    for change in changes:
        uuid = uuid_of(after(change))
        assert (await bench.store.load([uuid]))[uuid] == after(change)
    assert await there.outcomes() == [Outcome.SUCCESS, Outcome.FAILED, None]
    assert set(await there.owing()) == {
        (uuid_of(there.members[0]), OutboxKind.SIBLINGS),
        (uuid_of(there.members[1]), OutboxKind.ENDED),
        (uuid_of(idle), OutboxKind.ENDED),
    }
    assert [await there.told(n) for n in range(3)] == [[], [EventKind.SKIPPED], []]
    claimed = await bench.claim()
    assert claimed.execution == there.members[0].execution


@pytest.mark.parametrize(
    "shape",
    [
        [(1, 1)],
        [(1, 1), (1, 1)],
        [(1, 0), (1, 0)],
        [(0, 0), (1, 1)],
        [(2, 1), (0, 1)],
        [(0, 2), (2, 0)],
        [(1, 2), (1, 0)],
        [(1, 1), (1, 2), (1, 1)],
    ],
    ids=str,
)
async def test_endings_with_any_number_of_events_and_outbox_entries(
    server: postgres_bench.Bench, bench: Bench, shape: list[tuple[int, int]]
) -> None:
    """Ids that are those of the endings are sent once: only if there is one for each, in order. A
    run of no flow owes nothing."""
    there = await parked(bench, len(shape))
    changes = []
    for member, (events, entries) in zip(there.members, shape, strict=True):
        ending = cancelled(member if entries else await server.submit(), bench.now)
        told = tuple([replace(ending.events[0], detail={"n": n}) for n in range(events)])
        own = ending.outbox[:1]
        more = tuple([replace(each, kind=OutboxKind.SIBLINGS) for each in own * (entries - 1)])
        changes.append(replace(ending, events=told, owed=more))
    sent: list[str] = []
    await listen(server, sent)
    await bench.write(*changes)
    await asyncio.sleep(0)
    assert [name for name in sent if name] == ["ended_directly"]
    owed = [entry for change in changes for entry in change.outbox]
    assert sorted(await bench.outbox(there.flow), key=repr) == sorted(owed, key=repr)
    for change in changes:
        uuid = uuid_of(after(change))
        found = (await bench.store.events(EventQuery(uuid=uuid))).events
        assert [each.detail for each in found] == [each.detail for each in change.events]
        assert (await bench.store.load([uuid]))[uuid] == after(change)


async def test_what_takes_more_goes_the_general_way(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    """One with a deadline, and one that comes to wait, beside one that becomes ready."""
    there = await parked(bench, 1)
    (timed,) = await bench.members(there.flow, 1, deadline_at=bench.now + 500)
    assert timed.head.flags & Flags.DEADLINE
    (other,) = await bench.members(there.flow, 1)
    sent: list[str] = []
    await listen(server, sent)
    changes = [cancelled(timed, bench.now), there.promoted(0), touch(other, WAITING)]
    await bench.write(*changes)
    await asyncio.sleep(0)
    assert sent.count("readied_directly") == sent.count("state_versions") == 1
    assert "ended_directly" not in sent
    assert await bench.store.due(Millis(bench.now + 1000), 9) == []
    loaded = await bench.store.load([uuid_of(after(change)) for change in changes])
    assert [loaded[uuid_of(after(change))] for change in changes] == [*map(after, changes)]


async def test_one_that_moved_is_refused_and_its_neighbours_are_written(bench: Bench) -> None:
    """A rival between the load and the change: nothing of the change is written, in any kind."""
    there = await parked(bench, 4)
    await bench.write(*(touch(there.members[n]) for n in (0, 2)))
    changes = [there.promoted(0), there.promoted(1), there.skipped(2), there.skipped(3)]
    written = {uuid_of(there.members[n]) for n in (1, 3)}
    assert await bench.store.apply(changes) == written
    assert await there.is_untouched(0)
    assert await there.is_untouched(2)
    assert await there.outcomes() == [None, Outcome.SUCCESS, None, Outcome.FAILED]
    assert {id for id, _ in await there.owing()} == written
    assert await bench.store.apply(changes) == set()


@pytest.mark.parametrize("commits", [True, False])
async def test_a_caller_that_waited_for_a_rival_writes_only_if_the_rival_wrote_nothing(
    server: postgres_bench.Bench, bench: Bench, commits: bool
) -> None:
    """The rival settles the same edges; those who wait for it have old eyes."""
    there = await parked(bench, 2)
    raw, watcher, other = await server.raw(), await server.raw(), await server.other_store()
    transaction = raw.transaction()
    await transaction.start()
    for table in ("parked", "edge"):
        column = "id" if table == "parked" else "downstream"
        action = "delete from" if table == "parked" else "update"
        change = "" if table == "parked" else " set outcome = 1"
        await raw.execute(
            f"{action} flowfabric.{table}{change} where {column} = any($1)",
            [uuid_of(member) for member in there.members],
        )
    tasks = [
        asyncio.create_task(server.store.apply([there.promoted(0)])),
        asyncio.create_task(other.apply([there.skipped(1)])),
    ]
    await until_waiting(watcher, 2)
    await (transaction.commit() if commits else transaction.rollback())
    answers = [await task for task in tasks]
    if commits:
        assert answers == [set(), set()]
        assert await there.outcomes() == [Outcome(1), Outcome(1)]
        assert await there.owing() == []
    else:
        assert answers == [{uuid_of(member)} for member in there.members]
        assert await there.outcomes() == [Outcome.SUCCESS, Outcome.FAILED]


async def test_lost_replies_are_recognised_and_rivals_are_not(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    there = await parked(bench, 4)
    link = server.store.session.apply
    lose_reply(link)
    first = {uuid_of(there.members[0])}
    assert await bench.store.apply([there.promoted(0)]) == first
    lose_reply(link)
    assert await bench.store.apply([there.skipped(1)]) == {uuid_of(there.members[1])}
    assert await there.told(1) == [EventKind.SKIPPED], "once"
    assert len(await there.owing()) == 2
    # A rival has left the very same state row, but settled another edge.
    second = edge(there.flow, 9, A, uuid_of(there.members[2]))
    assert await bench.apply(await bench.load(there.flow), edges=(second,))
    rival = replace(there.promoted(2), settled=((second.id, Outcome.SUCCESS),))
    await bench.write(rival)
    lose_reply(link)
    mine = [there.promoted(2), there.promoted(3)]
    assert await bench.store.apply(mine) == {uuid_of(there.members[3])}
    assert (await there.outcomes())[2] is None


async def test_a_guilty_one_keeps_no_neighbour_of_any_kind_from_being_written(
    bench: Bench,
) -> None:
    there = await parked(bench, 5)
    changes = [there.promoted(0), there.promoted(1), there.skipped(2), there.skipped(3)]
    for n in (1, 2):
        broken = after(changes[n])
        changes[n] = replace(changes[n], after=replace(broken, head=replace(broken.head, epoch=-1)))
    changes.append(touch(there.members[4]))
    with pytest.raises(Invalid, match="epoch"):
        await bench.store.apply(changes)
    loaded = await bench.store.load([uuid_of(member) for member in there.members])
    for n, member in enumerate(there.members):
        expected = member if n in (1, 2) else after(changes[n])
        assert loaded[uuid_of(member)] == expected
    assert await there.is_untouched(1)
    assert await there.is_untouched(2)


async def test_rivals_in_any_order_and_way_do_not_block_each_other(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    """One promotes, one ends, one changes the same fifty in the general way: each is written by
    exactly one of them."""
    other, third = await server.other_store(), await server.other_store()
    for _ in range(3):
        there = await parked(bench, 50)
        back = range(49, -1, -1)
        answers = await asyncio.gather(
            server.store.apply([there.promoted(n) for n in range(50)]),
            other.apply([there.skipped(n) for n in back]),
            third.apply([touch(there.members[n]) for n in back]),
        )
        assert sum(map(len, answers)) == 50
        assert set().union(*answers) == {uuid_of(member) for member in there.members}
        settled = [outcome for outcome in await there.outcomes() if outcome is not None]
        assert len(settled) == len(answers[0]) + len(answers[1]) == len(await there.owing())


async def test_both_find_everything_by_key_and_compare_no_list_with_another(
    server: postgres_bench.Bench,
) -> None:
    """Plans as they are made while the tables are empty: they stay."""
    for name, tables in (("readied_directly", ["parked"]), ("ended_directly", ["ready", "parked"])):
        connection = await server.store.session.dialer.dial(PINNED)
        query = load_queries("postgres")[name]
        await connection.execute(f"prepare {name} as {query}")
        highest = 33 if name == "readied_directly" else 35
        given = ", ".join(["'{}'"] * highest)
        rows = await connection.fetch(f"explain (costs off) execute {name} ({given})")
        await connection.close()
        steps = "\n".join(line for (line,) in rows)
        for table in (*tables, "edge"):
            assert f"Tid Scan on {table}" in steps
        assert "Index Cond: ((flow = c.flow) AND (id = c.id))" in steps
        assert steps.count("hashed SubPlan") == 3
        assert "Seq Scan" not in steps


# -- flows


async def test_new_flows_are_one_statement_with_their_edges_tags_and_members(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    """A lost reply is recognised, a rival's flow is not, even if it is equal."""
    sent: list[str] = []
    await listen(server, sent, certainly=True)
    flow = Flow(id=bench.fresh(), kind="graph", created_at=bench.now, tags={"a.b": "1", "a.c": "2"})
    member = bench.creation(flow)
    new = NewFlow(flow, (edge(flow, 1, A, B), edge(flow, 2, A, B)), (member,))
    lose_reply(server.store.session.submit)
    assert await bench.store.lay_flows([new], bench.now) == {flow.id}
    assert await bench.load(flow) == flow
    assert await bench.store.flow_page(FlowQuery(tag=("a.c", "2"))) == [flow]
    assert len(await bench.edges(flow)) == 2
    lose_reply(server.store.session.submit)
    assert await bench.store.lay_flows([new], bench.now) == set()
    found = await bench.store.snapshots(MembersOf(flow.id))
    assert found == [member.snapshot]
    await asyncio.sleep(0)
    assert [name for name in sent if name] == ["laid_flows"], "until its connection was lost"


async def test_endings_are_counted_in_one_statement_and_once(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    """Of a flow that moved nothing is counted: its outbox stay, and none comes."""
    flows = [await bench.flow() for _ in range(3)]
    for flow in flows:
        assert await bench.apply(flow, owed=(outbox_entry(flow, 1), outbox_entry(flow, 2)))
    counts = [_counting(await bench.load(flow), bench.now) for flow in flows]
    assert await bench.apply(await bench.load(flows[1]))
    sent: list[str] = []
    await listen(server, sent)
    assert await bench.store.count_flows(counts) == {flows[0].id, flows[2].id}
    await asyncio.sleep(0)
    assert [name for name in sent if name] == ["counted_flows"]
    kinds = [[one.kind for one in await bench.outbox(flow)] for flow in flows]
    assert kinds == [[OutboxKind.TELL], [OutboxKind.CANCEL] * 2, [OutboxKind.TELL]]
    assert await bench.load(flows[0]) == counts[0].after
    assert await bench.store.count_flows(counts) == set()


async def test_of_two_who_count_the_same_endings_one_does(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    """The second waits for the first, and finds another version with old eyes."""
    flow = await bench.flow()
    assert await bench.apply(flow, owed=(outbox_entry(flow, 1),))
    counting = [_counting(await bench.load(flow), bench.now)]
    raw, watcher, other = await server.raw(), await server.raw(), await server.other_store()
    transaction = raw.transaction()
    await transaction.start()
    await raw.execute("select from flowfabric.flow for update")
    tasks = [asyncio.create_task(store.count_flows(counting)) for store in (server.store, other)]
    await until_waiting(watcher, 2)
    await transaction.rollback()
    assert sorted([len(await task) for task in tasks]) == [0, 1]
    assert [one.kind for one in await bench.outbox(flow)] == [OutboxKind.TELL]


def _counting(flow: Flow, now: Millis) -> FlowChange:
    done = (outbox_entry(flow, 1), outbox_entry(flow, 2))
    owed = (outbox_entry(flow, 3, OutboxKind.TELL),)
    return FlowChange(flow, changed(flow, now), done=done, owed=owed)
