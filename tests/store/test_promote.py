"""Everything moves from one store to another, and can be worked on there."""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from flowfabric.core.base.errors import Contention, Corruption, Invalid, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Duplicate, Submission
from flowfabric.store import layout
from flowfabric.store.clock import ManualClock, SystemClock
from flowfabric.store.layout import TableLayout, load_layout, read_layout
from flowfabric.store.open import open_store
from flowfabric.store.promote import Promoted, PromotionOptions, promote
from flowfabric.store.sql import load_migrations
from tests.kit.lab import TTL, W2, Lab
from tests.kit.moving import World, fill, seen
from tests.kit.signalling import deliver
from tests.kit.situations import take

pytestmark = pytest.mark.long

FORCE = PromotionOptions(force=True)


class Killed(BaseException):
    """The process is gone, in the middle of whatever it did."""


@asynccontextmanager
async def opened(url: str, clock: ManualClock) -> AsyncIterator[Lab]:
    lab = await Lab.open(await open_store(url, clock=clock), clock)
    try:
        yield lab
    finally:
        await lab.engine.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def source(tmp_path: Path, clock: ManualClock) -> tuple[str, World]:
    """A file with something of every kind, which no process uses."""
    url = f"sqlite:///{tmp_path / 'source.db'}"
    async with opened(url, clock) as lab:
        return url, await fill(lab)


@pytest.fixture
def target(fresh_database: Callable[..., str]) -> str:
    return fresh_database()


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for dialect in ("sqlite", "postgres"):
        monkeypatch.setattr(f"flowfabric.store.{dialect}.copy.PAGE_ROWS", 2)
        monkeypatch.setattr(f"flowfabric.store.{dialect}.copy.MOST", 2, raising=False)
        monkeypatch.setattr(f"flowfabric.store.{dialect}.copy.FEWEST", 2, raising=False)


def rows_of(moved: Promoted) -> dict[str, int]:
    return {table.name: table.rows for table in moved.tables}


def digests(moved: Promoted) -> dict[str, str]:
    """Of what belongs to the runs; a store has a clock of its own."""
    return {table.name: table.digest for table in moved.tables if table.name != "meta"}


# -- everything arrives


async def test_every_situation_arrives_as_it_was(
    source: tuple[str, World], target: str, clock: ManualClock
) -> None:
    url, world = source
    async with opened(url, clock) as lab:
        before = await seen(lab, world)
        sent = (await lab.engine.events.read(after=0)).events
    moved = await promote(url, target)
    assert rows_of(moved)["execution"] == len(world.situations) + 10
    async with opened(target, clock) as lab:
        assert await seen(lab, world) == before
        assert (await lab.engine.events.read(after=0)).events == sent


async def test_every_table_is_moved(source: tuple[str, World], target: str) -> None:
    """Also one that was added yesterday: what the world of these tests leaves empty has a row that
    is made of its columns."""
    with sqlite3.connect(source[0].removeprefix("sqlite:///")) as database:
        found = database.execute("select name from sqlite_master where type = 'table'")
        tables = {name for (name,) in found if not name.startswith("sqlite_")}
        for table in load_layout():
            if not database.execute(f"select 1 from {table.name}").fetchone():
                add_made_up_row(database, table)
    database.close()
    moved = await promote(source[0], target)
    assert rows_of(moved).keys() == tables
    assert [name for name, rows in rows_of(moved).items() if not rows] == []


def add_made_up_row(database: sqlite3.Connection, table: TableLayout) -> None:
    made_up = {"text": "x", "bytea": b"{}", "uuid": b"\x01" * 16}
    row = [made_up.get(column.type, 1) for column in table.columns]
    marks = ", ".join("?" * len(row))
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    database.execute(f"insert into {table.name} ({names}) values ({marks})", row)


async def test_there_and_back_again_nothing_has_changed(
    source: tuple[str, World], target: str, tmp_path: Path, small_pages: None
) -> None:
    there = await promote(source[0], target)
    back = await promote(target, f"sqlite:///{tmp_path / 'back.db'}")
    assert digests(back) == digests(there)
    with sqlite3.connect(tmp_path / "back.db") as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    database.close()


async def test_large_rows_travel_in_small_pages(
    tmp_path: Path, target: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'large.db'}"
    async with opened(url, clock) as lab:
        for _ in range(12):
            await lab.submit(payload=os.urandom(1 << 20))
    pages: list[int] = []

    def progress(what: str, done: int, total: int) -> None:
        if what == "copying execution":
            pages.append(done)

    await promote(url, target, PromotionOptions(progress=progress))
    assert pages == [4, 8, 12]  # 4 MiB are a page


# -- and can be worked on


async def test_a_suspended_run_is_signalled_with_its_old_token(
    source: tuple[str, World], target: str, clock: ManualClock
) -> None:
    url, world = source
    await promote(url, target)
    async with opened(target, clock) as lab:
        assert await lab.state(world.suspended) is PublicState.SUSPENDED
        await deliver(lab, world.suspended, world.ticket)
        assert await lab.state(world.suspended) is PublicState.WAITING
        claims = await lab.claim(W2, limit=100)
        (again,) = [claim for claim in claims if claim.id == world.suspended]
        await lab.complete(again, b"done")
        assert await lab.engine.views.result(world.suspended) == b"done"


async def test_a_leased_run_expires_at_the_target_and_is_continued(
    source: tuple[str, World], target: str, clock: ManualClock
) -> None:
    url, world = source
    await promote(url, target)
    async with opened(target, clock) as lab:
        assert (await lab.vector(world.leased)).ownership == "leased"
        await lab.pass_time(TTL)
        claims = await lab.claim(W2, limit=100)
        (again,) = [claim for claim in claims if claim.id == world.leased]
        assert again.epoch == 2
        await lab.complete(again)
        assert await lab.state(world.leased) is PublicState.COMPLETED


async def test_keys_cursors_and_flows_continue_where_they_were(
    source: tuple[str, World], target: str, clock: ManualClock
) -> None:
    url, world = source
    async with opened(url, clock) as lab:
        cursor = (await lab.engine.events.read(after=0)).cursor
    await promote(url, target)
    async with opened(target, clock) as lab:
        again = Submission(kind="job", key="order-7", namespace="shop", lane="b")
        assert isinstance(await lab.engine.executions.submit(again), Duplicate)
        for name in ("b", "c"):
            await lab.complete(await take(lab, world.members[name]))
        fresh = (await lab.engine.events.read(after=cursor)).events
        assert fresh[0].seq > cursor
        assert {event.id for event in fresh} == {world.members["b"], world.members["c"]}


async def test_numbers_of_events_that_were_deleted_are_not_given_again(
    source: tuple[str, World], target: str, tmp_path: Path, clock: ManualClock
) -> None:
    """A reader that has seen event 900 would miss another one with that number."""
    path = source[0].removeprefix("sqlite:///")
    with sqlite3.connect(path) as database:
        database.execute("delete from event")
        database.execute("update sqlite_sequence set seq = 900 where name = 'event'")
    database.close()
    back = f"sqlite:///{tmp_path / 'back.db'}"
    await promote(source[0], target)
    await promote(target, back)
    for url in (target, back):
        async with opened(url, clock) as lab:
            claim = await take(lab, await lab.submit())
            assert (await lab.events(claim.id))[0].seq > 900


# -- killed in the middle


async def copied_until(killed_at: int, url: str, target: str, doing: str = "copying") -> int:
    """Promotes until so many pages were copied (or checked); returns how many were."""
    pages = 0

    def progress(what: str, done: int, total: int) -> None:
        nonlocal pages
        pages += what.startswith(doing)
        if pages == killed_at:
            raise Killed

    with suppress(Killed):
        await promote(url, target, PromotionOptions(progress=progress))
    return pages


async def test_it_continues_wherever_it_was_killed(
    source: tuple[str, World], target: str, small_pages: None, clock: ManualClock
) -> None:
    url, world = source
    kills = 0
    while await copied_until(9, url, target) == 9:
        kills += 1
        assert kills < 30
        store = await open_store(target, clock=clock)
        with pytest.raises(Unavailable, match="has not finished"):
            await Lab.open(store, clock)
        await store.close()
    assert kills > 5
    assert (await promote(url, target)).already
    async with opened(target, clock) as lab:
        assert await lab.state(world.suspended) is PublicState.SUSPENDED


async def test_one_that_was_killed_while_it_checked_is_checked_again(
    source: tuple[str, World], target: str
) -> None:
    assert await copied_until(3, source[0], target, doing="checking") == 3
    moved = await promote(source[0], target)
    assert moved.resumed
    assert len(moved.tables) == len(load_layout())


async def test_a_process_killed_by_the_system_is_continued(
    source: tuple[str, World], target: str
) -> None:
    script = f"""
import asyncio, os, signal
from flowfabric.store.promote import PromotionOptions, promote
import flowfabric.store.sqlite.copy as copy
copy.PAGE_ROWS = 5
def progress(what, done, total):
    if what == "copying execution" and done >= 10:
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(promote({source[0]!r}, {target!r}, PromotionOptions(progress=progress)))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    assert await process.wait() == -signal.SIGKILL
    moved = await promote(source[0], target)
    assert moved.resumed
    assert not moved.already
    assert rows_of(moved)["execution"] > 20


async def test_a_source_that_changed_between_two_tries_is_noticed(
    source: tuple[str, World], target: str, small_pages: None, clock: ManualClock
) -> None:
    url, world = source
    await copied_until(40, url, target)
    async with opened(url, clock) as lab:
        await lab.engine.executions.cancel(world.situations["waiting"], reason="meanwhile")
    with pytest.raises(Corruption, match="--start-over"):
        await promote(url, target)
    moved = await promote(url, target, PromotionOptions(start_over=True))
    assert not moved.resumed
    async with opened(target, clock) as lab:
        assert await lab.state(world.situations["waiting"]) is PublicState.CANCELLED


async def test_a_row_that_changes_on_the_way_is_noticed(
    source: tuple[str, World], target: str
) -> None:
    def progress(what: str, done: int, total: int) -> None:
        """Blocks: the check of the next table begins after the write."""
        if what.startswith("checking"):
            with psycopg.connect(target, autocommit=True) as connection:
                connection.execute("update flowfabric.worker set instance = 'x'")

    with pytest.raises(Corruption, match="table worker has 1 rows"):
        await promote(source[0], target, PromotionOptions(progress=progress))


# -- refused


async def test_a_source_in_use_is_refused_until_it_is_forced(
    tmp_path: Path, target: str, fresh_database: Callable[..., str]
) -> None:
    clock = ManualClock(SystemClock().now())
    url = f"sqlite:///{tmp_path / 'busy.db'}"
    async with opened(url, clock) as lab:
        claim = await take(lab, await lab.submit(), W2)
    with pytest.raises(Contention, match=r"1 run is leased for up to \d+ s.*--force"):
        await promote(url, target)
    assert rows_of(await promote(url, target, FORCE))["lease"] == 1
    async with opened(target, clock) as lab:
        await lab.complete(claim)  # the fence is still the current one
        assert await lab.state(claim.id) is PublicState.COMPLETED


async def test_a_sweep_that_was_not_stopped_and_a_live_worker_are_named(
    tmp_path: Path, target: str
) -> None:
    clock = ManualClock(SystemClock().now())
    url = f"sqlite:///{tmp_path / 'busy.db'}"
    async with opened(url, clock) as lab:
        store, now = lab.engine.store, clock.now()
        await store.glance("sweep", "me", now, Millis(now + 60_000))
    with pytest.raises(Contention, match="has swept it a moment ago"):
        await promote(url, target)


async def test_a_source_cannot_be_written_meanwhile(source: tuple[str, World], target: str) -> None:
    path = source[0].removeprefix("sqlite:///")
    refused: list[str] = []

    def progress(what: str, done: int, total: int) -> None:
        if not refused:
            database = sqlite3.connect(path, timeout=0)
            with pytest.raises(sqlite3.OperationalError, match="locked") as error:
                database.execute("delete from execution")
            refused.append(str(error.value))
            database.close()

    await promote(source[0], target, PromotionOptions(progress=progress))
    assert refused


async def test_a_target_with_other_data_is_refused(
    source: tuple[str, World], target: str, tmp_path: Path, clock: ManualClock
) -> None:
    async with opened(target, clock) as lab:
        id = await lab.submit()
    with pytest.raises(Invalid, match="already has other data, in execution, ready"):
        await promote(source[0], target, FORCE)
    async with opened(target, clock) as lab:
        assert await lab.state(id) is PublicState.WAITING
    with pytest.raises(Invalid, match="the same store"):
        await promote(source[0], source[0])


async def test_a_target_that_was_only_looked_at_is_not_refused(
    source: tuple[str, World], target: str, clock: ManualClock
) -> None:
    async with opened(target, clock) as lab:
        assert await lab.claim() == []
    await promote(source[0], target)
    async with opened(target, clock) as lab, opened(source[0], clock) as old:
        secrets = [(await each.engine.store.identity()).secret for each in (lab, old)]
        assert secrets[0] == secrets[1]


async def test_rows_that_every_new_store_has_are_no_other_data(
    source: tuple[str, World], target: str, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    """Such as what a migration puts into a new table."""
    seed = "insert into {place}lane (name, version, state) values ('seed', 1, 0);"
    for dialect, place in (("sqlite", ""), ("postgres", "flowfabric.")):
        with_seed = (*load_migrations(dialect), seed.format(place=place))
        monkeypatch.setattr(
            f"flowfabric.store.{dialect}.schema.load_migrations", lambda *_, known=with_seed: known
        )
    await promote(source[0], target)
    async with opened(target, clock) as lab:
        assert set(await lab.engine.lanes.settings()) == {"seed", "slow"}
    second = f"{source[0]}-second"
    async with opened(second, clock) as lab:
        await lab.engine.lanes.pause("seed")
    with pytest.raises(Invalid, match="other data, in lane"):
        await promote(source[0], second)


async def test_a_target_of_another_promotion_is_refused(
    source: tuple[str, World], target: str, tmp_path: Path, clock: ManualClock, small_pages: None
) -> None:
    await copied_until(5, source[0], target)
    other = f"sqlite:///{tmp_path / 'other.db'}"
    async with opened(other, clock) as lab:
        await lab.submit()
    with pytest.raises(Invalid, match="unfinished promotion of another store"):
        await promote(other, target)


@pytest.mark.parametrize("url", ["sqlite://:memory:", "oracle://x/y", "work.db"])
async def test_what_is_no_store_is_refused(url: str, target: str) -> None:
    with pytest.raises(Invalid):
        await promote(url, target)


async def test_a_table_that_is_not_known_is_never_left_behind(
    source: tuple[str, World], target: str
) -> None:
    with sqlite3.connect(source[0].removeprefix("sqlite:///")) as database:
        database.execute("create table stranger (id integer primary key)")
    database.close()
    with pytest.raises(Unavailable, match=r"not moved: stranger\.id"):
        await promote(source[0], target)


async def test_a_damaged_row_is_named(source: tuple[str, World], target: str) -> None:
    with sqlite3.connect(source[0].removeprefix("sqlite:///")) as database:
        database.execute("insert into deadline (id, at) values (x'0102', 5)")
    database.close()
    with pytest.raises(Corruption, match=r"deadline .* id is not a uuid"):
        await promote(source[0], target)


# -- the layout


def test_a_new_table_is_moved_without_further_code() -> None:
    lines = layout.schema_snapshot().splitlines()
    new = ["table token.id uuid not null", "constraint token_pkey PRIMARY KEY (id)"]
    assert len(read_layout([*lines, *new])) == len(load_layout()) + 1


def test_a_table_without_a_key_or_with_a_strange_type_is_named() -> None:
    with pytest.raises(Corruption, match="token"):
        read_layout(["table token.id uuid not null"])
    with pytest.raises(Corruption, match=r"token\.at"):
        read_layout(["table token.at timestamp with time zone not null"])
