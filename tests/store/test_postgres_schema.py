"""The schema: made from nothing, described, refused when newer; and the plans it is made for."""

import asyncio
import re
import secrets
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest

from flowfabric import Fabric
from flowfabric.core.base.errors import Corruption, Invalid, SchemaTooNew, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import FOREVER
from flowfabric.core.execution.sweep_filter import EVERY_RUN
from flowfabric.store.clock import ManualClock
from flowfabric.store.postgres import open_postgres
from flowfabric.store.postgres.dialer import FREE, PINNED, Connection
from flowfabric.store.postgres.due import LARGE
from flowfabric.store.postgres.low_water import HIGHEST, LOWEST
from flowfabric.store.rows.execution import COLUMNS, EVENT, EXECUTION, SNAPSHOT, STEP
from flowfabric.store.sql import load_migrations
from tests.docs.pages import ROOT
from tests.kit.postgres import Databases
from tests.store.postgres_bench import W1, Bench, opened, plan, renewal

SNAPSHOT_FILE = files("flowfabric.store.postgres") / "schema.snapshot.sql"


@pytest.fixture
def database(new_database: str) -> str:
    return new_database


# -- migrations


async def test_migrating_from_nothing_gives_the_snapshot(bench: Bench) -> None:
    assert await bench.store.schema_text() == SNAPSHOT_FILE.read_text("utf-8")


async def test_migrating_again_changes_nothing(bench: Bench) -> None:
    assert await bench.store.migrate() == len(load_migrations("postgres"))


async def test_many_processes_may_migrate_at_once(fresh_database: Callable[..., str]) -> None:
    url = fresh_database()
    stores = [await open_postgres(url, clock=ManualClock()) for _ in range(5)]
    versions = await asyncio.gather(*(store.migrate() for store in stores))
    assert set(versions) == {len(load_migrations("postgres"))}
    known = await asyncio.gather(*(store.identity() for store in stores))
    assert len(set(known)) == 1
    assert len(known[0].secret) == 32
    assert repr(known[0].secret) not in repr(known[0])
    for store in stores:
        await store.close()


async def test_a_database_of_a_newer_release_is_refused(bench: Bench) -> None:
    raw = await bench.raw()
    await raw.execute("update flowfabric.meta set value = '99' where key = 'version'")
    with pytest.raises(SchemaTooNew, match="99"):
        await bench.store.migrate()


async def test_a_role_with_the_rights_of_the_guide_works_and_another_is_told_where_they_are(
    bench: Bench,
) -> None:
    page = (ROOT / "docs" / "guide" / "operations.md").read_text("utf-8")
    grants = re.findall(r"```sql\n(grant usage.*?)```", page, re.DOTALL)[0]
    role = f"app_{secrets.token_hex(8)}"
    raw = await bench.raw()
    await raw.execute(f"create role {role}")
    url = f"{bench.url}{'&' if '?' in bench.url else '?'}role={role}"
    try:
        with pytest.raises(Unavailable, match="rights that a role needs are in the guide"):
            await Fabric(url).engine()
        await raw.execute(grants.replace("to app;", f"to {role};"))
        async with Fabric(url) as fabric:
            run = await fabric.task(every="1h", rate="100/s")(double).submit(21)
            await (await fabric.worker()).run_until_idle()
            await (await fabric.engine()).sweep.once()
            assert await run.result() == 42
    finally:
        await raw.execute(f"drop owned by {role}; drop role {role}")


async def double(number: int = 0) -> int:
    return 2 * number


async def test_two_schemas_of_one_database_are_strangers(bench: Bench) -> None:
    other = await open_postgres(bench.url, clock=bench.clock, schema="second")
    await other.migrate()
    creation = bench.creation()
    assert await other.submit([creation], bench.now) == [None]
    assert await bench.claim() == []
    assert len(await other.claim(bench.call(), bench.now)) == 1
    text = await other.schema_text()
    assert text.replace("second.", "flowfabric.") == SNAPSHOT_FILE.read_text("utf-8")
    await other.close()


async def test_a_schema_made_by_another_process_is_used(fresh_database: Callable[..., str]) -> None:
    async with opened(fresh_database()) as bench:
        await (await bench.raw()).execute("create schema flowfabric")
        await bench.store.migrate()
        await bench.submit()


@pytest.mark.parametrize("schema", ["", "a b", "Big", 'x"y', "a.b", "1st", "x" * 60])
async def test_a_schema_has_a_plain_name(bench: Bench, schema: str) -> None:
    with pytest.raises(Invalid):
        await open_postgres(bench.url, schema=schema)


async def test_a_secret_that_was_deleted_is_made_again_or_reported(bench: Bench) -> None:
    first = (await bench.store.identity()).secret
    raw = await bench.raw()
    await raw.execute("delete from flowfabric.meta where key = 'secret'")
    assert (await bench.store.identity()).secret != first
    await raw.execute(
        """create rule forget as on insert to flowfabric.meta do instead nothing;
        delete from flowfabric.meta where key = 'secret'"""
    )
    with pytest.raises(Corruption):
        await bench.store.identity()


async def test_the_view_and_the_tables_have_the_shared_columns(bench: Bench) -> None:
    raw = await bench.raw()

    async def columns(table: str) -> list[str]:
        query = """select column_name from information_schema.columns
            where table_schema = 'flowfabric' and table_name = $1 order by ordinal_position"""
        return [name for (name,) in await raw.fetch(query, table)]

    assert await columns("snapshot") == list(SNAPSHOT)
    for place, names in COLUMNS.items():
        assert set(await columns(place)) == set(names)
    assert set(await columns("execution")) == set(EXECUTION)
    assert set(await columns("event")) == {"seq", "namespace", *EVENT}
    assert set(await columns("step")) == set(STEP)


async def test_an_old_server_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowfabric.store.postgres.dialer.OLDEST_SERVER", 99)
    with pytest.raises(Unavailable, match="99 or later"):
        await open_postgres(bench.url)


# -- plans

ROWS = 100_000


@pytest.fixture(scope="module")
def crowded_template(databases: Databases, migrated_template: str) -> str:
    """A database with very many executions, made once."""
    url = databases.create(template=migrated_template)

    async def fill() -> None:
        async with opened(url) as bench:
            await bench.running(lane="one")
            await bench.submit(lane="two")
            await crowd(await bench.raw())

    asyncio.run(fill())
    return url


async def crowd(raw: Connection) -> None:
    """Half of them ready, a quarter each parked and done, and events of all."""
    await raw.execute(
        f"""
        insert into flowfabric.execution (id, created_at, route, payload)
        select gen_random_uuid(), 1600000000000 + n, 1 + n % 2, '\\x00'
        from generate_series(1, {ROWS}) n;
        insert into flowfabric.ready
            (id, version, epoch, rank, flags, attempt, start, route, held_until)
        select id, 1, 0, created_at, 0, 0, 0, route, 0
        from flowfabric.execution where payload = '\\x00' and created_at % 4 < 2;
        insert into flowfabric.parked
            (id, version, epoch, rank, flags, attempt, start, gate, due_at)
        select id, 1, 0, created_at, 0, 0, 0, 4, created_at
        from flowfabric.execution where payload = '\\x00' and created_at % 4 = 2;
        insert into flowfabric.done
            (id, version, epoch, rank, flags, attempt, start, outcome, ended_at)
        select id, 1, 0, created_at, 0, 0, 0, 0, created_at
        from flowfabric.execution where payload = '\\x00' and created_at % 4 = 3;
        insert into flowfabric.event (id, at, kind, epoch)
        select id, created_at, 1, 1 from flowfabric.execution;
        """
    )
    await raw.execute("analyze")


async def test_a_claim_reads_the_index_in_its_order(crowded: Bench) -> None:
    numbers = list(crowded.store.session.book.names.routes) or [1, 2]
    calls = ([crowded.fresh()], [1], [30_000])
    ranges = ([LOWEST] * len(numbers), [HIGHEST] * len(numbers), False)
    values = (numbers, crowded.now, ["w1"], 26, 10, *calls, 2**31 - 1, [0], *ranges)
    steps = await plan(crowded.store, PINNED, "taken_leases", *values)
    assert "Index Scan using ready_rank on ready" in steps
    assert "Tid Scan on ready" in steps
    assert "Seq Scan on ready" not in steps
    assert "Seq Scan on execution" not in steps
    assert "Index Scan using execution_pkey" in steps


async def test_a_claim_is_in_order_however_many_wait(crowded: Bench) -> None:
    taken = await crowded.claim(20)
    ranks = [snapshot.head.rank for snapshot in taken]
    assert ranks == sorted(ranks)
    assert ranks[0] == 1_600_000_000_001 - (1_600_000_000_001 % 4 == 2)
    assert len(ranks) == 20


async def test_what_is_due_is_found_by_its_indexes(crowded: Bench) -> None:
    values = (*EVERY_RUN.values, crowded.now, 100, True)
    steps = await plan(crowded.store, FREE, "due_executions", *values)
    assert "parked_due_at" in steps
    assert "Seq Scan on parked" not in steps
    steps = await plan(crowded.store, FREE, "next_due_moment", crowded.now, True)
    assert "Seq Scan on parked" not in steps


@pytest.mark.parametrize("name", ["listed_executions", "listed_executions_newest_first"])
async def test_a_page_reads_the_index_in_its_order_and_stops(crowded: Bench, name: str) -> None:
    nothing = (None,) * 11
    values: tuple[Any, ...] = (*nothing, None, None, [], [], 101, None)
    steps = await plan(crowded.store, FREE, name, *values)
    assert "using execution_created_at on execution" in steps
    assert "Presorted Key: execution.created_at" in steps  # those of one moment are sorted by id
    assert "->  Sort" not in steps
    for table in ("execution", "ready", "parked", "done"):
        assert f"Seq Scan on {table}" not in steps
    filtered = (None,) * 6 + (
        "crowd",
        "default",
        "one",
        None,
        None,
        True,
        True,
        [4],
        [0],
        101,
        None,
    )
    steps = await plan(crowded.store, FREE, name, *filtered)
    assert "using execution_created_at on execution" in steps


async def test_a_page_of_failures_reads_its_index_in_order_and_stops(crowded: Bench) -> None:
    raw = await crowded.raw()
    await raw.execute("update flowfabric.done set outcome = 1 where ended_at % 8 = 3")
    await raw.execute("analyze flowfabric.done")
    for last in ((None, None), (crowded.now, crowded.fresh())):
        steps = await plan(crowded.store, FREE, "failed_executions", 0, *last, 100)
        assert "using done_failed on done" in steps
        for table in ("execution", "done"):
            assert f"Seq Scan on {table}" not in steps


async def test_counts_and_trims_do_not_read_all_that_ended(crowded: Bench) -> None:
    steps = await plan(crowded.store, FREE, "state_counts", None, None, 100_001, [1, 2, 3, 4], 9)
    assert "using done_outcome on done" in steps
    for unread_from in (0, crowded.now, FOREVER):
        values = (*EVERY_RUN.values, 0, 0, 500, unread_from)
        steps = await plan(crowded.store, FREE, "trimmable_executions", *values)
        assert "Seq Scan on done" not in steps
    assert "done_trim_at" in steps


async def test_loads_and_endings_read_by_key(crowded: Bench) -> None:
    ids = [crowded.fresh() for _ in range(100)]
    steps = await plan(crowded.store, PINNED, "snapshots", ids)
    assert "Seq Scan" not in steps
    none: tuple[list[Any], ...] = ([],) * 13
    row = ([ids[0]], [1], [1], [ids[0]], [2], [None], [0], [5], [None], [5], [10], [None])
    for name, more in (("ended_plainly", ()), ("ended_leases", none)):
        steps = await plan(crowded.store, PINNED, name, *row, crowded.now, *more)
        assert "Index Scan using lease_pkey on lease" in steps


async def test_events_are_read_in_the_order_of_their_key(crowded: Bench) -> None:
    nothing = (None, None, None, None)
    steps = await plan(crowded.store, PINNED, "events_after", 10, 10**6, *nothing, 100)
    assert "using event_pkey on event" in steps
    uuid = (await crowded.store.held_leases(W1.instance, 1))[0].id.uuid
    steps = await plan(crowded.store, PINNED, "events_of", 0, 10**6, *nothing, 100, uuid)
    assert "using event_id on event" in steps
    steps = await plan(crowded.store, FREE, "trimmed_registry_events", crowded.now, 100)
    assert "using event_registry on event" in steps


async def test_a_renewal_touches_no_index(bench: Bench) -> None:
    held = await bench.running()
    for _ in range(20):
        bench.clock.advance(1)
        await bench.store.renew([renewal(held)], bench.now)
    await bench.store.close()
    raw = await bench.raw()
    await raw.execute("select pg_stat_force_next_flush()")
    query = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'lease'"
    updates, hot = 0, 0
    while updates < 20:
        updates, hot = await raw.fetchrow(query)  # type: ignore[misc]
    assert hot == updates


async def test_tables_that_are_empty_again_give_the_disk_back(bench: Bench) -> None:
    raw = await bench.raw()
    await raw.execute(FLOOD)
    await raw.execute("delete from flowfabric.event")
    assert await raw.fetchval(SIZE) > LARGE
    await bench.store.trim(Millis(0), bench.now, 500)
    assert await raw.fetchval(SIZE) < 100_000
    # What is not empty stays.
    await raw.execute(FLOOD)
    await bench.store.trim(Millis(0), bench.now, 500)
    assert await raw.fetchval("select count(*) from flowfabric.event") == 100_000


async def test_giving_the_disk_back_waits_for_no_lock(bench: Bench) -> None:
    raw, other = await bench.raw(), await bench.raw()
    await raw.execute(FLOOD)
    await raw.execute("delete from flowfabric.event")
    async with other.transaction():
        await other.execute(FLOOD.replace("100000", "1"))
        async with asyncio.timeout(5):
            await bench.store.trim(Millis(0), bench.now, 500)
    assert await raw.fetchval("select count(*) from flowfabric.event") == 1


SIZE = "select pg_total_relation_size('flowfabric.event')"
FLOOD = """
    insert into flowfabric.event (id, at, kind, epoch, attempt)
    select gen_random_uuid(), 1, 1, 1, 0 from generate_series(1, 100000)
"""
