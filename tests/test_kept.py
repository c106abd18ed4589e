"""What is kept from test to test is as it was made, whatever a test left behind."""

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from flowfabric.core.execution.submission import Submission
from flowfabric.engine.engine import Engine
from flowfabric.store.clock import ManualClock
from flowfabric.store.open import open_store
from flowfabric.store.postgres.dialer import Connection
from tests.kit.kept import KeptDatabase, Shelf, kept_connections
from tests.kit.postgres import Databases, database_name


@pytest.fixture
def kept(
    databases: Databases, migrated_template: str, lasting_loop: asyncio.AbstractEventLoop
) -> Iterator[KeptDatabase]:
    """One of its own, so that what is done to it meets no other test."""
    shelf = Shelf(lasting_loop)
    kept = KeptDatabase(databases, migrated_template, shelf)
    with kept_connections(shelf):
        yield kept
    kept.discard()


async def rows(url: str) -> list[tuple[object, ...]]:
    """Everything that tells whether a database was used."""
    connection = await asyncpg.connect(url)
    try:
        names = await connection.fetch(
            "select tablename from pg_tables where schemaname = 'flowfabric' order by 1"
        )
        counts = [
            (name, await connection.fetchval(f"select count(*) from flowfabric.{name}"))
            for (name,) in names
        ]
        meta = await connection.fetch("select * from flowfabric.meta order by key")
        last = await connection.fetchval("select last_value from flowfabric.event_seq_seq")
        return [*counts, *(tuple(row) for row in meta), ("last", last)]
    finally:
        await connection.close()


async def used(url: str) -> set[int]:
    """The sessions of the server that served an engine and what it did."""
    store = await open_store(url, clock=ManualClock())
    engine = await Engine.open(store)
    await engine.executions.submit(Submission(kind="job"))
    connection = await asyncpg.connect(url)
    query = "select pid from pg_stat_activity where datname = $1"
    pids = {pid for (pid,) in await connection.fetch(query, database_name(url))}
    await connection.execute("update flowfabric.meta set value = '77' where key = 'version'")
    await connection.close()
    await engine.close()
    return pids


async def test_it_is_used_again_as_if_it_were_new(kept: KeptDatabase) -> None:
    url = kept.take()
    new = await rows(url)
    pids = await used(url)
    assert await rows(url) != new
    assert kept.take() == url
    assert await rows(url) == new
    # Beside the one that looks after it, some sessions are those of the test before.
    assert len(pids & await used(url)) > 1


async def test_what_a_session_held_is_let_go(kept: KeptDatabase) -> None:
    url = kept.take()
    store = await open_store(url, clock=ManualClock())
    session = store.session  # type: ignore[attr-defined]
    await session.load.run(_hold)
    assert await _locks(url) == 1
    await store.close()
    assert await _locks(url) == 0
    assert kept.take() == url


async def _hold(connection: Connection, repeated: bool) -> None:
    await connection.execute("select pg_advisory_lock(7); listen news; set enable_sort = off")


async def _locks(url: str) -> int:
    connection = await asyncpg.connect(url)
    query = "select count(*) from pg_locks where locktype = 'advisory' and objid = 7"
    try:
        return int(await connection.fetchval(query))
    finally:
        await connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "create table orders (id int)",
        "alter table flowfabric.meta add column more int",
        "drop index flowfabric.route_lane",
        "create schema other",
        "create or replace function flowfabric.more() returns int return 1",
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()",
    ],
)
async def test_one_that_was_changed_is_never_used_again(kept: KeptDatabase, statement: str) -> None:
    url = kept.take()
    new = await rows(url)
    await used(url)
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()
    other = kept.take()
    assert other != url
    assert await rows(other) == new


async def test_a_database_with_a_connection_left_open_is_not_used_again(
    kept: KeptDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.kit.kept.LEAVING_SECONDS", 0.01)
    url = kept.take()
    new = await rows(url)
    left = await asyncpg.connect(url)
    await left.execute("begin; lock table flowfabric.execution")
    other = kept.take()
    assert other != url
    assert await rows(other) == new
    left.terminate()
