"""Files that are no database, schemas, trouble with the disk, and what callers are told of it."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    Corruption,
    Invalid,
    SchemaTooNew,
    StoreFull,
    StoreReadOnly,
    Unavailable,
)
from flowfabric.core.base.time import Millis
from flowfabric.store.clock import ManualClock
from flowfabric.store.sql import load_migrations
from flowfabric.store.sqlite import SqliteStore, connection, open_sqlite, runner, wal
from flowfabric.store.sqlite.session import SqliteSession
from tests.store.sqlite_bench import Bench, uuids

OBJECTS = "select sql from sqlite_schema where sql is not null and name not like 'sqlite_%'"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "work.db")


@pytest.fixture
async def store(path: str) -> AsyncIterator[SqliteStore]:
    store = await open_sqlite(path)
    await store.migrate()
    yield store
    await store.close()


@pytest.fixture
def bench(store: SqliteStore) -> Bench:
    return Bench(store, ManualClock())


# -- the schema


async def test_migrating_from_zero_gives_the_snapshot(store: SqliteStore, path: str) -> None:
    with sqlite3.connect(path) as database:
        found = [f"{sql};" for (sql,) in database.execute(OBJECTS + " order by rowid")]
    database.close()
    snapshot = files("flowfabric.store.sqlite").joinpath("schema.snapshot.sql").read_text("utf-8")
    assert "\n\n".join(found) + "\n" == snapshot


async def test_migrating_again_changes_nothing(store: SqliteStore, path: str) -> None:
    version = await store.migrate()
    other = await open_sqlite(path)
    assert await other.migrate() == version
    await other.close()


async def test_a_newer_schema_is_refused(store: SqliteStore, path: str) -> None:
    version = await store.migrate()
    newer = "update meta set value = ? where key = 'version'"
    store.writer.session.connection.execute(newer, (str(version + 1).encode(),))
    with pytest.raises(SchemaTooNew):
        await store.migrate()
    with pytest.raises(SchemaTooNew):
        await open_sqlite(path)


async def test_the_user_version_of_a_file_is_the_applications(path: str) -> None:
    with closing(sqlite3.connect(path)) as application:
        application.execute("create table orders (id integer primary key)")
        application.execute("pragma user_version = 3")
        for version in (3, 2, 99):  # its own migrations go on
            application.execute(f"pragma user_version = {version}")
            store = await open_sqlite(path)
            assert await store.migrate() == len(load_migrations("sqlite"))
            await store.close()
            assert application.execute("pragma user_version").fetchone() == (version,)


async def test_a_file_of_an_earlier_checkout_has_its_version_there(
    store: SqliteStore, path: str
) -> None:
    version = await store.migrate()
    database = store.writer.session.connection
    database.execute("delete from meta where key = 'version'")
    database.execute(f"pragma user_version = {version}")
    for _ in range(2):
        other = await open_sqlite(path)
        assert await other.migrate() == version
        await other.close()
        database.execute("pragma user_version = 0")  # looked at once


async def test_without_migration_nothing_works_and_the_text_says_why(path: str) -> None:
    store = await open_sqlite(path)
    with pytest.raises(Unavailable, match="no such table"):
        await store.load([Bench(store, ManualClock()).uuid()])
    await store.close()


async def test_an_old_library_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "OLDEST", (99, 0, 0))
    with pytest.raises(Unavailable, match="SQLite 99"):
        await open_sqlite(path)


# -- paths


async def test_paths_where_no_database_can_live_are_refused(tmp_path: Path) -> None:
    for path in ("", "a\0b", str(tmp_path), str(tmp_path / "missing" / "work.db")):
        with pytest.raises(Unavailable):
            await open_sqlite(path)
    assert not (tmp_path / "missing").exists()


async def test_a_path_that_the_system_refuses_is_unavailable(tmp_path: Path) -> None:
    for path in (tmp_path / f"{'long' * 100}.db", tmp_path / ("long" * 100) / "work.db"):
        with pytest.raises(Unavailable, match="cannot be reached: File name too long"):
            await open_sqlite(str(path))


async def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(connection, "_MOUNTS", mounts)
    with pytest.raises(Unavailable, match="network file system"):
        await open_sqlite(str(tmp_path / "work.db"))


async def test_a_file_that_is_no_database_is_refused(path: str) -> None:
    Path(path).write_bytes(b"this is a text and not a database at all" * 100)
    with pytest.raises(Unavailable, match="not a database"):
        await open_sqlite(path)
    assert b"this is a text" in Path(path).read_bytes()


async def test_an_unknown_way_to_synchronize_is_refused(path: str) -> None:
    with pytest.raises(Invalid):
        await open_sqlite(path, synchronous="off; drop table execution")


AS_NOBODY = """
import asyncio, os, sys
from flowfabric.core.base.errors import Unavailable
from flowfabric.store.sqlite import open_sqlite

async def main():
    # Everything is imported before root's rights, and with them its files, are given up.
    await (await open_sqlite(":memory:")).close()
    if os.getuid() == 0:
        os.setuid(65534)
    for path in sys.argv[1:]:
        try:
            store = await open_sqlite(path)
            await store.migrate()
        except Unavailable as error:
            print(error)

asyncio.run(main())
"""

READ_ONLY = (
    "store_read_only: {path}: attempt to write a readonly database; let this user write the file, "
    "and {folder} for the log beside it"
)
RIGHTS = [
    (0o444, 0o555, READ_ONLY),
    (0o666, 0o555, READ_ONLY),
    (0o444, 0o777, READ_ONLY),
    (0o666, 0o000, "unavailable: {path} cannot be reached: Permission denied"),
]


def test_missing_rights_are_told_with_what_to_do() -> None:
    # Not in the directory of the test, which only its owner can enter; and not as root, for whom
    # no file is read-only.
    root = Path(os.path.realpath(subprocess.check_output(["mktemp", "-d"], text=True).strip()))
    root.chmod(0o755)
    databases = [root / str(number) / "work.db" for number in range(len(RIGHTS))]
    try:
        for database, (file, directory, _) in zip(databases, RIGHTS, strict=True):
            database.parent.mkdir()
            sqlite3.connect(database).execute("create table t (a)").connection.close()
            database.chmod(file)
            database.parent.chmod(directory)
        command = [sys.executable, "-c", AS_NOBODY, *map(str, databases)]
        told = subprocess.check_output(command, text=True, timeout=30).splitlines()
        assert told == [
            said.format(path=database, folder=database.parent)
            for database, (_, _, said) in zip(databases, RIGHTS, strict=True)
        ]
    finally:
        for folder in root.iterdir():
            folder.chmod(0o755)
        shutil.rmtree(root)


# -- trouble later on


async def test_a_database_that_becomes_read_only_is_told(bench: Bench) -> None:
    uuid = await bench.submit()
    bench.store.writer.session.connection.execute("pragma query_only = on")
    with pytest.raises(StoreReadOnly):
        await bench.submit()
    bench.store.writer.session.connection.execute("pragma query_only = off")
    assert await bench.load(uuid) is not None
    await bench.submit()


async def test_a_full_disk_is_told_and_nothing_is_lost(bench: Bench) -> None:
    made = await bench.submit_many(10)
    database = bench.store.writer.session.connection
    (pages,) = database.execute("pragma page_count").fetchone()
    database.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(StoreFull):
        await bench.submit(payload=b"x" * 1_000_000)
    database.execute("pragma max_page_count = 1000000")
    await bench.submit(payload=b"x" * 1_000_000)
    assert len(await bench.store.load(made)) == 10


async def test_a_file_locked_for_too_long_is_told(
    bench: Bench, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = sqlite3.connect(path, isolation_level=None)
    rival.execute("begin immediate")
    monkeypatch.setattr(runner, "PATIENCE", 0.05)
    with pytest.raises(Unavailable, match="locked"):
        await bench.submit()
    assert await bench.store.counts(None, None) is not None
    rival.execute("rollback")
    rival.close()
    await bench.submit()


async def test_a_damaged_file_is_told(bench: Bench, path: str) -> None:
    await bench.submit_many(500)
    await bench.store.close()
    data = bytearray(Path(path).read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 200] = b"\xa5" * 200
    Path(path).write_bytes(data)
    with pytest.raises(Corruption, match=r"work\.db"):
        await open_sqlite(path)


# -- a file that is gone


async def test_a_deleted_file_is_told_by_the_next_call(bench: Bench, path: str) -> None:
    """Nothing is acknowledged that went into a file without a name."""
    uuid = await bench.submit()
    Path(path).unlink()
    with pytest.raises(Unavailable, match=r"work\.db was deleted while"):
        await bench.submit()
    with pytest.raises(Unavailable, match="was deleted while"):
        await bench.store.load([uuid])


async def test_a_file_that_goes_while_it_is_written_is_told(bench: Bench, path: str) -> None:
    def write(session: SqliteSession) -> None:
        session.connection.execute("insert into meta (key, value) values ('k', x'00')")
        Path(path).unlink()

    with pytest.raises(Unavailable, match="was deleted while"):
        await bench.store.writer.run(write)


async def test_a_replaced_file_is_told_by_the_next_call(bench: Bench, path: str) -> None:
    await bench.submit()
    copy = Path(f"{path}.restored")
    copy.write_bytes(Path(path).read_bytes())
    copy.rename(path)
    with pytest.raises(Unavailable, match=r"work\.db was replaced while"):
        await bench.submit()


async def test_a_file_that_was_only_away_is_used_again(bench: Bench, path: str) -> None:
    away = Path(path).rename(f"{path}.away")
    with pytest.raises(Unavailable):
        await bench.submit()
    away.rename(path)
    await bench.submit()


async def test_a_log_that_was_deleted_is_told(bench: Bench, path: str) -> None:
    """The latest commits are only there."""
    await bench.submit()
    Path(f"{path}-wal").unlink()
    with pytest.raises(Unavailable, match=r"work\.db-wal was deleted while"):
        await bench.submit()


async def test_calls_after_close_are_refused(bench: Bench) -> None:
    await bench.store.close()
    with pytest.raises(Unavailable, match="closed"):
        await bench.submit()
    await bench.store.close()


async def test_closing_finishes_what_is_under_way_and_leaves_one_file(
    bench: Bench, path: str
) -> None:
    calls = [asyncio.create_task(bench.submit()) for _ in range(20)]
    await asyncio.sleep(0)
    await bench.store.close()
    assert len(set(await asyncio.gather(*calls))) == 20
    assert os.listdir(Path(path).parent) == ["work.db"]


async def test_a_close_that_was_cancelled_can_be_repeated(bench: Bench, path: str) -> None:
    await bench.submit()
    closing = asyncio.create_task(bench.store.close())
    await asyncio.sleep(0)  # it waits for its threads
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await bench.store.close()
    assert os.listdir(Path(path).parent) == ["work.db"]


async def test_a_forked_process_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getpid()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: pid + 1)
        with pytest.raises(Unavailable, match="forked"):
            await bench.submit()


# -- neighbours


async def test_a_guilty_call_fails_alone(bench: Bench) -> None:
    """Many calls share a transaction; one of them brings a number no column holds."""
    good = [bench.creation() for _ in range(5)]
    odd = bench.creation()
    head = replace(odd.snapshot.head, version=0)
    guilty = replace(odd, snapshot=replace(odd.snapshot, head=head))
    calls = [bench.store.submit([item], bench.now) for item in (*good[:2], guilty, *good[2:])]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(answer, Invalid) for answer in answers] == [False, False, True, *[False] * 3]
    assert len(await bench.store.load([item.snapshot.execution.uuid for item in good])) == 5
    assert await bench.load(odd.snapshot.execution.uuid) is None


@pytest.mark.parametrize("position", [0, 3, 6])
async def test_the_neighbours_of_a_guilty_item_are_written(bench: Bench, position: int) -> None:
    items = [bench.creation(lane=f"lane-{number}") for number in range(7)]
    execution = replace(items[position].snapshot.execution, created_at=Millis(1 << 70))
    snapshot = replace(items[position].snapshot, execution=execution)
    items[position] = replace(items[position], snapshot=snapshot)
    with pytest.raises(Invalid, match="too large"):
        await bench.store.submit(items, bench.now)
    found = await bench.store.load([item.snapshot.execution.uuid for item in items])
    assert len(found) == 6
    assert execution.uuid not in found
    assert len(await bench.claim(limit=10)) == 6


async def test_names_of_a_transaction_that_failed_are_forgotten(bench: Bench, path: str) -> None:
    bad = bench.creation("bad", lane="bad")
    head = replace(bad.snapshot.head, epoch=-1)
    guilty = replace(bad, snapshot=replace(bad.snapshot, head=head))
    with pytest.raises(Invalid):
        await bench.store.submit([guilty], bench.now)
    other = Bench(await open_sqlite(path), bench.clock, seed=2)
    theirs = await other.submit("theirs", lane="theirs")
    await other.store.close()
    mine = await bench.submit("bad", lane="bad")
    assert (await bench.loaded(theirs)).execution.route.lane == "theirs"
    assert uuids(await bench.claim(lanes=("theirs",))) == [theirs]
    assert uuids(await bench.claim(lanes=("bad",))) == [mine]


async def test_a_row_that_cannot_be_read_hides_no_other(bench: Bench) -> None:
    bad = [await bench.submit(priority=9, payload=b"bad") for _ in range(3)]
    good = await bench.submit_many(2)
    database = bench.store.writer.session.connection
    database.executemany(
        "update ready set life = x'21' where id = ?", [(uuid.bytes,) for uuid in bad]
    )
    with pytest.raises(Corruption):
        await bench.store.load(bad[:1])
    assert set(uuids(await bench.claim(limit=1) + await bench.claim(limit=9))) == set(good)
    assert await bench.claim() == []


# -- the log


async def test_the_log_does_not_grow_without_end(
    bench: Bench, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never copied, it would have more than 160 megabytes at the end."""
    monkeypatch.setattr(wal, "PAGES", 200)
    monkeypatch.setattr(wal, "LONG", 1000)
    sizes = []
    for _ in range(150):
        await bench.submit_many(100, payload=b"x" * 200)
        sizes.append(os.stat(f"{path}-wal").st_size)
    assert max(sizes) < 80 << 20


# -- wake-ups


async def test_a_hint_wakes_waiting_callers(bench: Bench) -> None:
    waiting = [asyncio.create_task(bench.store.hints.wait(60)) for _ in range(3)]
    await asyncio.sleep(0)
    bench.store.hints.send()
    assert await asyncio.gather(*waiting) == [True] * 3


async def test_a_hint_since_the_last_look_is_not_missed(bench: Bench) -> None:
    seen = bench.store.hints.count
    bench.store.hints.send()
    assert await bench.store.hints.wait(60, seen)
    assert not await bench.store.hints.wait(0, bench.store.hints.count)
    assert not await bench.store.hints.wait(0)


async def test_the_store_itself_wakes_no_caller(bench: Bench) -> None:
    waiting = asyncio.create_task(bench.store.hints.wait(0.2))
    await asyncio.sleep(0)
    await bench.submit()
    assert not await waiting


async def test_a_commit_of_another_connection_wakes(bench: Bench, path: str) -> None:
    other = await open_sqlite(path)
    waiting = asyncio.create_task(other.hints.wait(60))
    await other.identity()
    await bench.submit()
    assert await waiting
    await other.close()


async def test_without_threads_the_next_one_who_waits_sees_other_commits(
    bench: Bench, path: str
) -> None:
    other = await open_sqlite(path, inline=True)
    await other.identity()
    await bench.submit()
    assert await other.hints.wait(60)
    await other.close()


async def test_a_file_that_is_empty_again_gives_the_disk_back(bench: Bench, path: str) -> None:
    def fill(session: SqliteSession) -> None:
        session.connection.execute(
            "with recursive n (i) as (select 1 union all select i + 1 from n where i < 3000)"
            " insert into meta (key, value) select 'k' || i, randomblob(8000) from n"
        )

    await bench.store.writer.run(fill)
    await bench.store.writer.run(lambda session: session.connection.execute("delete from meta"))
    assert Path(path).stat().st_size + Path(f"{path}-wal").stat().st_size > 20_000_000
    for _ in range(3):
        await bench.store.trim(Millis(0), bench.now, 500)
    await bench.store.close()
    assert Path(path).stat().st_size < 8_000_000
