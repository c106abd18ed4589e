"""Claims while a transaction stays open: dead rows at the head of `ready` are skipped, and nothing
that can be claimed is missed."""

import asyncio
import random
import re

import pytest
from asyncpg.transaction import Transaction

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.rank import RANK_STEP
from flowfabric.core.execution.submission import Submission, create
from flowfabric.store.postgres import PostgresStore, low_water
from flowfabric.store.postgres.dialer import PINNED, Connection, turn_into
from flowfabric.store.postgres.low_water import (
    ASK_EVERY,
    FEW_DEAD,
    HIGHEST,
    LATE,
    LEARN_EVERY,
    LOOK_AROUND_EVERY,
    LOOK_EVERY,
    LOWEST,
    OPEN_BLOCKS,
    SHARE,
    Look,
    LowWaterMarks,
    Ranges,
)
from tests.store.postgres_bench import Bench, uuids

NOW = Millis(1_700_000_000_000)
LOOKED = Look(0.001, 10, FEW_DEAD)


@pytest.fixture
def skipping(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench that does not stop to skip because there are few dead rows."""
    monkeypatch.setattr(low_water, "FEW_DEAD", 0)
    return bench


def marks_of(store: PostgresStore) -> LowWaterMarks:
    return store.session.learned.low_water


def is_engaged(found: LowWaterMarks) -> bool:
    return found.engaged


async def engaged(bench: Bench) -> LowWaterMarks:
    """The store skips what was claimed before; nothing waits."""
    found = marks_of(bench.store)
    found.engage(bench.now)
    for _ in range(3):
        await bench.submit_many(20, priority=1)
        bench.clock.advance(LATE + 1)
        assert len(await bench.claim(99)) == 20
    assert found.skipped.routes
    return found


async def stay_open(connection: Connection) -> Transaction:
    """A transaction that keeps the server from removing rows that are deleted from now on."""
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await connection.execute("select count(*) from pg_class")
    return transaction


async def submit_late(bench: Bench, store: PostgresStore, age: int, priority: int = 1) -> Snapshot:
    """Another process commits an execution that was made so many milliseconds ago."""
    made_at = Millis(bench.now - age)
    creation = create(Submission(kind="job", priority=priority), bench.fresh(), made_at)
    assert await store.submit([creation], bench.now) == [None]
    return creation.snapshot


# -- what is found


async def test_a_higher_priority_of_another_process_comes_first(skipping: Bench) -> None:
    await engaged(skipping)
    other = await skipping.other_store()
    plain = await skipping.submit(priority=1)
    skipping.clock.advance(1)
    high = await submit_late(skipping, other, 0, priority=9)
    low = await submit_late(skipping, other, 50_000, priority=0)
    assert uuids(await skipping.claim(9)) == uuids([high, plain, low])


async def test_a_row_behind_the_mark_is_found_within_the_interval(skipping: Bench) -> None:
    await engaged(skipping)
    other = await skipping.other_store()
    skipping.clock.advance(LOOK_EVERY)
    await skipping.claim()
    late = await submit_late(skipping, other, 2 * LATE)
    new = await skipping.submit(priority=1)
    assert uuids(await skipping.claim()) == uuids([new])
    assert await skipping.claim() == []
    skipping.clock.advance(LOOK_EVERY)
    assert uuids(await skipping.claim()) == uuids([late])


async def test_a_row_that_is_committed_a_little_late_is_found_at_once(skipping: Bench) -> None:
    await engaged(skipping)
    other = await skipping.other_store()
    new = await skipping.submit(priority=1)
    late = await submit_late(skipping, other, LATE - 1)
    assert uuids(await skipping.claim(2)) == uuids([late, new])


async def test_a_held_row_stays_in_front_of_the_mark(skipping: Bench) -> None:
    """What a claim may not take is no reason to skip it later."""
    found = await engaged(skipping)
    held = await skipping.submit(priority=1)
    raw = await skipping.raw()
    until = skipping.now + 10 * LATE
    await raw.execute("update flowfabric.ready set held_until = $1, held_for = 'w9'", until)
    for _ in range(3):
        skipping.clock.advance(LATE + 1)
        new = await skipping.submit(priority=1)
        assert uuids(await skipping.claim(9)) == uuids([new])
    skipping.clock.advance(10 * LATE)
    found.engage(skipping.now)  # no look behind the marks now
    assert uuids(await skipping.claim(9)) == uuids([held])


@pytest.mark.parametrize("seed", range(5))
async def test_with_a_look_before_each_claim_the_order_is_exact(skipping: Bench, seed: int) -> None:
    """Against the order of ranks: executions of any age and priority, submitted through several
    connections, claims of any size."""
    chance = random.Random(seed)
    await stay_open(await skipping.raw())
    await engaged(skipping)
    stores = [skipping.store, await skipping.other_store(), await skipping.other_store()]
    waiting: list[Snapshot] = []
    for _ in range(60):
        for _ in range(chance.randrange(4)):
            age, priority = chance.choice((0, 0, 0, 50, 500, 5000)), chance.choice((0, 1, 1, 9))
            waiting.append(await submit_late(skipping, chance.choice(stores), age, priority))
        skipping.clock.advance(LOOK_EVERY)
        taken = await skipping.claim(chance.randrange(1, 4))
        waiting.sort(key=lambda each: (each.head.rank, each.execution.uuid))
        expected, waiting = waiting[: len(taken)], waiting[len(taken) :]
        assert uuids(taken) == uuids(expected)
        assert taken or not waiting


# -- when rows are skipped


async def test_without_dead_rows_every_claim_looks_at_everything(bench: Bench) -> None:
    found = marks_of(bench.store)
    for _ in range(3):
        await bench.submit_many(20)
        assert len(await bench.claim(99)) == 20
        bench.clock.advance(ASK_EVERY)
    assert not found.engaged
    assert found.ranges([1, 2]) == Ranges([1, 2], [LOWEST] * 2, [HIGHEST] * 2)


async def test_an_open_transaction_makes_claims_skip_until_it_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_water, "SLOW", 0.0)
    found = marks_of(bench.store)
    old = await bench.raw()
    transaction = await stay_open(old)
    for _ in range(8):
        await bench.submit_many(500)
        bench.clock.advance(LATE)
        assert len(await bench.claim(500)) == 500
    async with asyncio.timeout(30):  # the server counts once a second
        while not is_engaged(found):
            await bench.claim()
            bench.clock.advance(ASK_EVERY)
    new = await bench.submit()
    assert uuids(await bench.claim(9)) == uuids([new])
    assert found.skipped.routes
    await transaction.rollback()
    await old.execute("vacuum flowfabric.ready")
    async with asyncio.timeout(30):
        while is_engaged(found):
            bench.clock.advance(LOOK_AROUND_EVERY)
            await bench.claim()
    assert not found.skipped.routes


def test_claims_that_read_much_more_than_they_find_skip() -> None:
    found = LowWaterMarks()
    assert not found.wonders(NOW, 0.0)
    assert found.wonders(NOW, 1.0)
    found.walked(NOW, 0, 0)
    assert not found.wonders(Millis(NOW + 1), 1.0)
    found.walked(Millis(NOW + ASK_EVERY), 20_000, 1500)
    assert not found.engaged
    found.walked(Millis(NOW + 60_000), 900_000, 1600)  # that is not lately
    assert not found.engaged
    found.walked(Millis(NOW + 60_000 + ASK_EVERY), 911_001, 1700)
    assert found.engaged


def test_the_marks_follow_the_first_row_of_each_priority() -> None:
    found = LowWaterMarks()
    found.engage(NOW)
    begin = -5 * RANK_STEP
    ranges = found.ranges([7])
    assert ranges == Ranges([7], [LOWEST], [HIGHEST])
    found.learn(ranges, [begin + NOW - 5000], NOW)
    mark = begin + NOW - 5000
    assert found.ranges([7]) == Ranges([7, 7], [LOWEST, mark], [begin, HIGHEST])
    found.learn(found.ranges([7]), [None, None], NOW)
    mark = begin + NOW - LATE
    assert found.ranges([7]) == Ranges([7, 7], [LOWEST, mark], [begin, HIGHEST])
    found.looked(NOW, 5, LOOKED, [(7, begin + 1)])
    assert found.skipped == Ranges([7], [begin], [begin + 1])


def test_marks_of_a_route_are_moved_now_and_then() -> None:
    found = LowWaterMarks()
    assert not found.learns([7], NOW)
    found.engage(NOW)
    assert found.learns([7], NOW)
    found.learn(found.ranges([7]), [None], NOW)
    soon, later = Millis(NOW + LEARN_EVERY - 1), Millis(NOW + LEARN_EVERY)
    assert [found.learns([7], at) for at in (NOW, soon, later)] == [False, False, True]
    assert found.learns([7, 8], NOW)  # of one of them nothing is known
    assert found.learns([7], Millis(NOW - 1))  # the clock was set back
    found.disengage()
    found.engage(NOW)
    assert found.learns([7], NOW)


def test_the_whole_table_is_looked_through_as_often_as_its_cost_allows() -> None:
    found = LowWaterMarks()
    found.engage(NOW)
    assert found.due(NOW) is None
    assert found.due(Millis(NOW + LOOK_AROUND_EVERY)) == 0
    found.looked(NOW, 0, Look(0.5, 99, FEW_DEAD), [])
    pause = 500 * SHARE
    later = Millis(NOW + pause - 1)
    assert found.due(later) == 99 - OPEN_BLOCKS
    found.looked(later, 99 - OPEN_BLOCKS, LOOKED, [])
    assert found.due(Millis(NOW + pause)) == 0
    assert found.due(Millis(NOW - 1)) == 0  # the clock was set back
    found.looked(NOW, 0, Look(0.5, 99, FEW_DEAD - 1), [])
    assert not found.engaged


# -- what else dead rows must not slow down


@pytest.mark.parametrize(
    "name",
    [
        "ended_and_claimed",
        "ended_in_chains",
        "ended_leases",
        "ended_plainly",
        "ended_with_downstreams",
        "held_directly",
        "progress_writes",
        "renewed_leases",
        "suspended_directly",
    ],
)
async def test_leases_are_found_by_id_when_the_server_believes_there_are_none(
    bench: Bench, name: str
) -> None:
    raw = await bench.raw()
    await bench.submit()
    await bench.claim()
    await raw.execute("delete from flowfabric.lease; analyze flowfabric.lease")
    await raw.execute(turn_into(PINNED))
    query = bench.store.session.queries[name]
    values = max(int(number) for number in re.findall(r"\$(\d+)", query))
    await raw.execute(f"prepare asked as {query}")
    rows = await raw.fetch(f"explain execute asked ({', '.join(['null'] * values)})")
    by_id = re.compile(r"Index Cond: \(id = ANY \(ARRAY\[[gn]\.id\]\)\)")
    assert any(by_id.search(line) for (line,) in rows)
