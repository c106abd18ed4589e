"""Limits on SQLite: the plans, many who wait, and databases of the release before."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.limit.lane import Lane, LaneState
from flowfabric.core.limit.quota import Use
from flowfabric.core.limit.release import Release
from flowfabric.store.clock import ManualClock
from flowfabric.store.rows.execution import COLUMNS, StateTable
from flowfabric.store.rows.record import LANES, QUOTAS
from flowfabric.store.sql import load_migrations, load_queries
from flowfabric.store.sqlite import open_sqlite
from flowfabric.store.sqlite.schema import _statements
from tests.store.limit_bench import Bench, freed, move, queue, uuid_of
from tests.store.sqlite_bench import plan

CROWD = 100_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "limits.db")


@pytest.fixture
async def bench(path: str, clock: ManualClock) -> AsyncIterator[Bench]:
    store = await open_sqlite(path, clock=clock)
    await store.migrate()
    yield Bench(store, clock)
    await store.close()


def steps(path: str, name: str, **named: object) -> int:
    """How much work a query is, in steps of the database's machine."""
    connection = sqlite3.connect(path)
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    connection.set_progress_handler(tick, 10)
    connection.execute(load_queries("sqlite")[name], named).fetchall()
    connection.close()
    return count * 10


OPEN = {"closed": "[]", "draining": "[]"}
"""No route is passed over."""


def crowd(path: str) -> None:
    """A hundred thousand who wait in one queue, copies of the one that is there."""
    connection = sqlite3.connect(path)
    names = ", ".join(name for name in COLUMNS[StateTable.PARKED] if name != "id")
    with connection:
        connection.execute(
            "with recursive n (n) as (select 1 union all select n + 1 from n limit ?) "
            f"insert into parked (id, {names}) select randomblob(16), {names} "
            "from n cross join (select * from parked limit 1)",
            (CROWD,),
        )
    connection.close()


async def test_a_crowd_costs_no_more_than_one_who_waits(bench: Bench, path: str) -> None:
    """A hundred thousand in one queue are passed over, not read."""
    await bench.quota("a", concurrency=1)
    first = await bench.one({"a": "x"})
    asked: dict[str, dict[str, object]] = {
        "crowds": {"after": 0, "limit": 500},
        "waiting_in": {"queue": queue(a="x"), "limit": 10},
        "lines": {"quota": "a", "limit": 100, **OPEN},
        "lines_among": {"quota": "a", "queues": f"[{queue(a='x')}]", "limit": 100, **OPEN},
        "line_candidates": {"queue": queue(a="x"), "limit": 10, **OPEN},
        "idle_queues": {"limit": 100},
        "ahead_of": {"queue": queue(a="x"), "rank": 1 << 62, "id": b"", "limit": 10},
        "held_queues": {"quotas": '["a"]'},
        "held_by_key": {"used": '[["a", "x"]]'},
    }
    before = {name: steps(path, name, **values) for name, values in asked.items()}
    crowd(path)
    for name, values in asked.items():
        assert steps(path, name, **values) <= before[name] + 1000, name
    (found,) = await bench.store.crowds(0, 9)
    assert (found.queue, found.uses) == (queue(a="x"), (Use(quota="a", key="x"),))
    (counted,) = await bench.store.queue_counts("a", 9)
    assert (counted.waiting, counted.held) == (CROWD, 0)
    through = await bench.through(first, versions={"a": 1})
    assert through is not None
    assert through == {uuid_of(first)}


async def test_every_question_has_its_index(bench: Bench, path: str) -> None:
    number = {"queue": 5, "limit": 9}
    text = plan(path, "line_candidates", **number, **OPEN) + plan(path, "waiting_in", **number)
    assert text.count("parked_queue (queue=?)") == 2
    text += plan(path, "ahead_of", rank=5, id=b"", **number)
    crowds = plan(path, "crowds", after=0, limit=9)
    assert "queue_id (id=?)" in crowds
    assert crowds.count("parked_queue (queue>?)") == 2
    text += plan(path, "lines", quota="a", limit=9, **OPEN)
    assert "queue_turn (quota=?)" in text
    text += plan(path, "begun_executions", route=1, now=1, workers='["w"]', limit=9, suspects=0)
    text += plan(path, "begun_candidates_of_route", route=1, now=1, limit=9)
    assert text.count("ready_begun (route=?)") == 2
    text += plan(path, "attached_budgets")
    text += plan(path, "forgotten_admissions", "a", 5)
    assert "admission_at (quota=? AND at<?)" in text
    text += plan(path, "admissions", quota="a", key="", since=5)
    text += plan(path, "trimmed_ledgers", b"")
    text += plan(path, "gone_budget_ledgers", "a")
    text += plan(path, "trimmed_charges", now=5, limit=9)
    assert "TEMP B-TREE" not in text
    for table in ("parked", "ready", "ledger", "reservation", "charge", "admission"):
        assert f"SCAN {table}" not in text
    held = plan(path, "held_queues", quotas="[]")
    assert held.count("ready_queue (queue>?)") == held.count("lease_queue (queue>?)") == 2
    assert "SEARCH q USING PRIMARY KEY (quota=? AND id=?)" in held
    held = plan(path, "held_by_key", used="[]")
    assert "SEARCH q USING INDEX queue_key (quota=? AND key=?)" in held
    assert "lane_limited" in plan(path, "limited_lanes")


async def test_of_two_releases_and_a_cancel_each_moves_what_it_finds(bench: Bench) -> None:
    """Two processes decide on the same standing; a candidate is cancelled meanwhile."""
    await bench.quota("a", concurrency=1)
    first, second = await bench.submit(2, {"a": "x"})
    other = await open_sqlite(bench.store.path, clock=bench.clock)  # type: ignore[attr-defined]
    decided = Release(versions={"a": 1}, moves=[move(first), move(second)])
    answers = await asyncio.gather(
        bench.store.release(decided),
        other.release(decided),
        bench.store.apply([bench.cancelling(second)]),
    )
    through = [answer for answer in answers[:2] if answer is not None]
    assert len(through) == 1
    assert uuid_of(first) in through[0]
    assert (uuid_of(second) in through[0]) == (answers[2] == set())
    assert (await bench.store.records.get(QUOTAS, ["a"]))["a"].version == 2
    await other.close()


# -- databases of the release before


def database_before(path: str, now: Millis) -> None:
    """One leased, one ready, one delayed, in a lane that is paused."""
    connection = sqlite3.connect(path, isolation_level=None)
    for migration in load_migrations("sqlite")[:9]:
        for statement in _statements(migration):
            connection.execute(statement)
    connection.execute("pragma user_version = 9")
    rests: dict[str, tuple[object, ...]] = {
        "lease": (b"c" * 16, 1, 5, now + 9, None, None),
        "ready": (1, None, 0, None, None),
        "parked": (None, 4, 9, None, None),
    }
    for number, (table, rest) in enumerate(rests.items()):
        id = bytes([number]) * 16
        connection.execute("insert into execution values (?, 5, 1, null, null, null, x'')", (id,))
        row = (id, 1, 1, 7, 0, 0, 0, None, *rest)
        connection.execute(f"insert into {table} values ({', '.join('?' * len(row))})", row)
    connection.execute("insert into route values (1, 'default', 'slow', 'job', '')")
    connection.execute("insert into worker values (1, 'w1', 'w1-a', null, null)")
    connection.execute("insert into lane values ('slow', 1), ('open', 0)")
    connection.close()


async def test_a_database_of_the_release_before_keeps_everything(
    path: str, clock: ManualClock
) -> None:
    """Rows of every state and paused lanes are there after the migration, and go on."""
    database_before(path, clock.now())
    store = await open_sqlite(path, clock=clock)
    assert await store.migrate() == len(load_migrations("sqlite"))
    bench = Bench(store, clock)
    lanes = {lane.name: lane for lane in await store.records.page(LANES)}
    slow = lanes["slow"]
    assert (slow.state, slow.name) == (LaneState.PAUSED, "slow")
    assert lanes["open"].state is LaneState.OPEN
    assert await bench.claim() == []
    leased = await store.held_leases("w1-a", 9)
    assert [lease.expires_at for lease in leased] == [clock.now() + 9]
    assert await store.records.put(LANES, Lane(name="slow", concurrency=1), slow.version)
    assert await bench.claim() == []
    assert await store.records.put(LANES, Lane(name="slow", concurrency=2), slow.version + 1)
    assert len(await bench.claim()) == 1
    assert await store.records.put(LANES, Lane(name="open", concurrency=2), lanes["open"].version)
    limited = await bench.one({"a": ""}, lane="slow")
    assert await bench.through(limited) is not None
    assert await bench.load(limited) == freed(limited)
    await store.close()
