"""Flows on Postgres: lost replies, locks, statements that are not sent, and the plans."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import Outcome, Snapshot
from flowfabric.core.execution.sweep_filter import EVERY_RUN
from flowfabric.core.flow.join import EdgeState, Join, count
from flowfabric.core.flow.join import On as Ending
from flowfabric.core.flow.model import Flow, FlowChange, changed
from flowfabric.core.wait.model import Needs
from flowfabric.store.postgres.dialer import FREE, PINNED, Connection
from flowfabric.store.sql import load_queries
from tests.kit.postgres import Databases
from tests.kit.snapshots import after
from tests.store import postgres_bench
from tests.store.flow_bench import A, B, Bench, cancelled, edge, outbox_entry, touch, uuid_of
from tests.store.postgres_bench import lose_reply, opened, statements, until_waiting


@pytest.fixture
def database(new_database: str) -> str:
    return new_database


@pytest.fixture
def bench(server: postgres_bench.Bench) -> Bench:
    return Bench(server.store, server.clock)


# -- replies lost after the commit


async def test_a_lost_reply_to_a_change_of_a_flow_is_recognised(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    flow = Flow(id=bench.fresh(), created_at=bench.now)
    lose_reply(server.store.session.apply)
    assert await bench.store.apply_flow(FlowChange(None, flow, owed=(outbox_entry(flow, 1),)))
    (member,) = await bench.members(flow, 1)
    lose_reply(server.store.session.apply)
    written: dict[str, Any] = {"changes": (touch(member),), "done": (outbox_entry(flow, 1),)}
    assert await bench.apply(flow, edges=(edge(flow, 1, A, B),), **written)
    assert (await bench.load(flow)).version == 2
    assert await bench.edges(flow) == [EdgeState(edge(flow, 1, A, B))]
    assert await bench.outbox(flow) == []


async def test_a_rivals_equal_flow_is_not_taken_for_ones_own(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    """Both add an edge in the same millisecond and leave the same document."""
    flow = await bench.flow()
    assert await bench.apply(flow, edges=(edge(flow, 1, A, B),))
    lose_reply(server.store.session.apply)
    assert not await bench.apply(flow, edges=(edge(flow, 2, A, B),))
    assert len(await bench.edges(flow)) == 1


async def test_a_rivals_edge_is_not_taken_for_ones_own(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    """Two upstreams end alike: whichever is counted first leaves the same state row."""
    flow = await bench.flow()
    (member,) = await bench.members(flow, 1)
    edges = [edge(flow, n, A, uuid_of(member)) for n in (1, 2)]
    assert await bench.apply(flow, edges=tuple(edges))
    mine, rival = [_counted(member, item.id) for item in edges]
    assert after(mine) == after(rival)
    await bench.write(rival)
    lose_reply(server.store.session.apply)
    assert await bench.store.apply([mine]) == set()
    assert [found.outcome for found in await bench.edges(flow)] == [None, Outcome.SUCCESS]
    lose_reply(server.store.session.apply)
    second = _counted(after(rival), edges[0].id)
    assert await bench.store.apply([second]) == {uuid_of(member)}


def _counted(member: Snapshot, edge: UUID) -> Change[None]:
    join = count(member.life.join or Join(n=2), Ending.SUCCESS, Outcome.SUCCESS)
    life = replace(member.life, join=join)
    new = member.to(member.state, life=life)
    return Change(None, member, new, settled=((edge, Outcome.SUCCESS),))


async def test_a_lost_reply_to_an_ending_owes_it_once(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    flow = await bench.flow()
    change = cancelled(await bench.member(flow), bench.now)
    lose_reply(server.store.session.apply)
    await bench.write(change)
    assert len(await bench.outbox(flow)) == 1


# -- locks


async def test_a_guard_is_locked_while_the_flow_is_written(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    """A rival that moves a guard has to wait, and is refused nothing."""
    flow = await bench.flow()
    (guard,) = await bench.members(flow, 1)
    raw, watcher = await server.raw(), await server.raw()
    other = await server.other_store()
    for store in (server.store, other):
        await store.session.apply.run(postgres_bench.wait_for_locks)
    transaction = raw.transaction()
    await transaction.start()
    await raw.execute("lock table flowfabric.edge")
    writing = asyncio.create_task(bench.apply(flow, guards=(guard,), edges=(edge(flow, 1, A, B),)))
    await until_waiting(watcher)
    rival = asyncio.create_task(other.apply([touch(guard)]))
    await until_waiting(watcher, 2)
    await transaction.rollback()
    assert await writing
    assert await rival == {uuid_of(guard)}


async def test_changes_of_one_flow_in_any_order_of_members_do_not_block_each_other(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    flow = await bench.flow()
    members = await bench.members(flow, 50)
    other = await server.other_store()
    forth = FlowChange(flow, changed(flow, bench.now), guards=tuple(members))
    back = FlowChange(flow, changed(flow, bench.now), guards=tuple(reversed(members)))
    plain = [touch(member) for member in reversed(members)]
    answers = await asyncio.gather(
        bench.store.apply_flow(forth), other.apply_flow(back), server.store.apply(plain)
    )
    assert answers[2] == {uuid_of(member) for member in members}
    assert answers[:2].count(True) <= 1


# -- only what there is to write is sent


async def test_a_change_of_a_member_sends_nothing_for_its_flow(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    (member,) = await bench.members(await bench.flow(), 1)
    sent = await statements(server, bench.write(touch(member)))
    assert sent == ["state_versions", "gone_ready", "new_ready"]


async def test_an_ending_is_one_statement_more(server: postgres_bench.Bench, bench: Bench) -> None:
    (member,) = await bench.members(await bench.flow(), 1, deadline_at=bench.now + 500)
    sent = await statements(server, bench.write(cancelled(member, bench.now)))
    last = ["new_events", "gone_deadlines", "new_outbox"]
    assert sent == ["state_versions", "gone_ready", "new_done", *last]


async def test_a_change_of_a_flow_alone_is_one_statement(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    flow = await bench.flow(tags={"a": "1"})
    assert await statements(server, bench.apply(flow)) == ["changed_flow"]


async def test_a_request_for_no_edges_asks_no_store(
    server: postgres_bench.Bench, bench: Bench
) -> None:
    lose_reply(server.store.session.load)
    await bench.store.load_needs([Needs(bench.fresh())])
    assert await bench.edges(Flow(id=A), upstreams=()) == []
    assert server.store.session.load.seam is not None
    server.store.session.load.seam = None


# -- plans

FLOWS, SMALL, LARGE = 500, 20, 20_000


@pytest.fixture(scope="module")
def crowded_template(databases: Databases, migrated_template: str) -> str:
    """Many small flows and a large one whose first member leads to all the others; made once."""
    url = databases.create(template=migrated_template)

    async def fill() -> None:
        async with opened(url) as server:
            await server.submit()
            await crowd(await server.raw())

    asyncio.run(fill())
    return url


async def crowd(raw: Connection) -> None:
    await raw.execute(
        f"""
        insert into flowfabric.flow
            (id, stamp, version, namespace, kind, state, created_at, ended_at, doc)
        select md5('f' || n)::uuid, md5('f' || n)::uuid, 1, 'default', 'k', 'running', n,
            case n % 2 when 0 then n end, '\\x00'
        from generate_series(0, {FLOWS}) n;
        insert into flowfabric.flow_tag (id, key, value)
        select id, 'team', (created_at % 10)::text from flowfabric.flow;
        insert into flowfabric.execution (id, created_at, route, flow, payload)
        select md5(f || '.' || n)::uuid, n, 1, md5('f' || f)::uuid, '\\x00'
        from generate_series(1, {FLOWS}) f, generate_series(1, {SMALL}) n;
        insert into flowfabric.execution (id, created_at, route, flow, payload)
        select md5('0.' || n)::uuid, n, 1, md5('f0')::uuid, '\\x00'
        from generate_series(1, {LARGE}) n;
        insert into flowfabric.done
            (id, version, epoch, rank, flags, attempt, start, outcome, ended_at)
        select id, 1, 1, 0, 4, 0, 0, 0, created_at from flowfabric.execution
        where flow is not null;
        insert into flowfabric.edge (flow, id, upstream, downstream, outcome, doc)
        select flow, md5(flow::text || id)::uuid,
            case when created_at % 2 = 0 then md5('0.1') else md5(id || '.') end::uuid, id,
            case when created_at % 100 > 0 then 0 end, '\\x00'
        from flowfabric.execution where flow is not null;
        insert into flowfabric.flow_outbox (flow, id, number, kind, spared)
        select flow, id, n, 1, false
        from flowfabric.execution, generate_series(1, 3) n where flow is not null;
        """
    )
    await raw.execute("vacuum analyze")


async def plan(
    server: postgres_bench.Bench, settings: dict[str, str], name: str, *values: Any
) -> str:
    """How the server runs a query on a connection of the given kind: prepared, as the store does
    it, because a plan for every value is another one than a plan for these."""
    connection = await server.store.session.dialer.dial(settings)
    async with connection.transaction():
        await connection.execute(f"prepare probe as {load_queries('postgres')[name]}")
        given = ", ".join(map(literal, values))
        rows = await connection.fetch(f"explain (analyze, costs off) execute probe ({given})")
    await connection.close()
    return "\n".join(line for (line,) in rows)


def literal(value: Any) -> str:
    match value:
        case None:
            return "null"
        case list():
            return "'{" + ",".join(map(str, value)) + "}'"
        case _:
            return f"'{value}'"


UUIDS = [UUID(int=number) for number in range(500)]
ONES = [1] * len(UUIDS)
EDGES = (A, UUIDS[0], False, 500, UUIDS)


async def test_edges_are_found_by_the_index_made_for_them(filled: postgres_bench.Bench) -> None:
    for name, index, condition in (
        ("edges_by_id", "edge_pkey", "(id = a.id)"),
        ("edges_out", "edge_upstream", "(ROW(upstream, id) >= ROW(a.id, $2))"),
        ("unsettled_edges_out", "edge_upstream", "(ROW(upstream, id) >= ROW(a.id, $2))"),
        ("edges_in", "edge_downstream", "(ROW(downstream, id) >= ROW(a.id, $2))"),
    ):
        steps = await plan(filled, PINNED, name, *EDGES)
        assert f"using {index} on edge" in steps, name
        assert condition in steps, name
    steps = await plan(filled, PINNED, "unsettled_edges", UUIDS, UUIDS, UUIDS[0], 500, 500)
    assert "using edge_upstream on edge" in steps
    for table in ("execution", "parked", "lease", "ready", "done"):
        assert f" on {table} " in steps
    assert "Seq Scan" not in steps
    steps = await plan(filled, PINNED, "unsatisfied_edges_in", A, B, UUIDS[0], "x")
    assert "using edge_downstream on edge" in steps
    steps = await plan(filled, PINNED, "edges_of_flow", *EDGES[:4])
    assert "using edge_pkey on edge" in steps
    assert "Sort" not in steps


async def test_edges_are_settled_and_recalled_by_key(filled: postgres_bench.Bench) -> None:
    steps = await plan(filled, PINNED, "settled_edges", UUIDS, UUIDS, ONES)
    assert "Index Cond: ((flow = c.flow) AND (id = c.id))" in steps
    assert "Tid Scan on edge" in steps
    nothing: list[UUID] = []
    values = (*[nothing] * 8, UUIDS, UUIDS, UUIDS)
    steps = await plan(filled, PINNED, "needed", *values)
    assert "Index Scan using edge_pkey on edge" in steps
    assert "Index Scan using edge_downstream on edge" in steps


async def test_chores_are_found_by_key(filled: postgres_bench.Bench) -> None:
    steps = await plan(filled, PINNED, "gone_outbox", UUIDS, UUIDS, ONES, ONES)
    assert "(flow = c.flow) AND (id = c.id) AND (number = c.number) AND (kind = c.kind)" in steps
    assert "Tid Scan on flow_outbox" in steps
    steps = await plan(filled, PINNED, "owing_flows", UUIDS, 100, A)
    assert "using flow_outbox_pkey on flow_outbox" in steps
    assert "using edge_upstream on edge" in steps
    assert "using flow_pkey on flow" in steps
    assert "Sort" not in steps
    steps = await plan(filled, PINNED, "owed_flows", A, 100)
    assert "using flow_outbox_pkey on flow_outbox" in steps
    assert "Index Cond: (flow > o.flow)" in steps


async def test_members_are_read_in_the_order_of_their_index(filled: postgres_bench.Bench) -> None:
    for name in ("members", "living_members"):
        steps = await plan(filled, PINNED, name, A, B, 500)
        assert "using execution_flow on execution" in steps
        assert "Index Cond: ((flow = " in steps
        assert "Sort" not in steps
        assert ("done" in steps) == (name == "members")


async def test_of_a_large_flow_a_page_reads_no_more_than_it_must(
    crowded: postgres_bench.Bench,
) -> None:
    raw = await crowded.raw()
    flow, hub = await raw.fetchrow("select md5('f0')::uuid, md5('0.1')::uuid") or (A, B)
    steps = await plan(crowded, PINNED, "members", flow, UUIDS[0], 500)
    assert "execution_flow on execution e (actual" in steps
    assert "rows=20000" not in steps
    steps = await plan(crowded, PINNED, "unsettled_edges_out", flow, UUIDS[0], True, 500, [hub])
    assert "edge_upstream on edge t (actual" in steps  # those of the hub, settled ones included
    assert "rows=20000" not in steps
    steps = await plan(crowded, PINNED, "owed_flows", UUIDS[0], 10)
    assert "rows=20000" not in steps


async def test_members_are_counted_and_trimmed_by_their_flow(
    crowded: postgres_bench.Bench,
) -> None:
    raw = await crowded.raw()
    flow = await raw.fetchval("select md5('f7')::uuid")
    steps = await plan(crowded, FREE, "member_counts", flow)
    assert "execution_flow" in steps
    assert "Seq Scan on done" not in steps
    steps = await plan(crowded, FREE, "trimmable_members", *EVERY_RUN.values, 4, 4, 10)
    assert "flow_ended_at on flow" in steps
    assert "execution_flow" in steps
    assert "Seq Scan on done" not in steps
    steps = await plan(crowded, FREE, "trimmable_flows", *EVERY_RUN.values, 4, 10)
    assert "flow_ended_at on flow" in steps
    assert "Seq Scan on execution" not in steps
    steps = await plan(crowded, FREE, "trimmed_edges", [flow])
    assert "edge_downstream on edge" in steps


async def test_flows_are_listed_in_the_order_of_their_index(crowded: postgres_bench.Bench) -> None:
    for name in ("listed_flows", "listed_flows_newest_first"):
        values = (5, UUIDS[0], "default", None, ["running"], None, None, 10)
        steps = await plan(crowded, FREE, name, *values)
        assert "flow_created_at on flow" in steps
        assert "Sort" not in steps
