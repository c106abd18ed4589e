"""Limits on Postgres: plans, locks, lost replies, and databases of the release before."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.limit.at_submission import at_submission
from flowfabric.core.limit.budget import Budget
from flowfabric.core.limit.lane import Lane, LaneState
from flowfabric.core.limit.quota import Quota, Rate, Use, queue_of
from flowfabric.core.limit.release import Release, StartsBack, release
from flowfabric.core.limit.spend import BudgetLedger, Expense, spend
from flowfabric.store.postgres import PostgresStore, open_postgres
from flowfabric.store.postgres.dialer import FREE, PINNED, Connection
from flowfabric.store.postgres.limits import FEW_SLOTS
from flowfabric.store.postgres.submit import admitted_values
from flowfabric.store.queries import InQueue, LedgerNeeds, LinesRequest, ServedLines
from flowfabric.store.rows.record import LANES, QUOTAS
from flowfabric.store.sql import load_migrations
from tests.kit.limiting import known_quota
from tests.kit.postgres import Databases
from tests.store import limit_bench, postgres_bench
from tests.store.limit_bench import candidate, queue, uses_of, uuid_of, uuids
from tests.store.postgres_bench import lose_reply, plan, until_waiting, wait_for_locks

MINUTE = Millis(60_000)


class Bench(limit_bench.Bench):
    """A Postgres store, executions that need room in quotas, and connections beside the store's."""

    store: PostgresStore

    def __init__(self, inner: postgres_bench.Bench) -> None:
        super().__init__(inner.store, inner.clock)
        self.raw = inner.raw
        self.other_store = inner.other_store


@pytest.fixture
def database(new_database: str) -> str:
    return new_database


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async with postgres_bench.opened(database) as inner:
        yield Bench(inner)


# -- plans

QUEUES = 1000
WAITING = 100_000


@pytest.fixture(scope="module")
def crowded_template(databases: Databases, migrated_template: str) -> str:
    """Two quotas with a thousand queues each, and very many who wait in them; made once."""
    url = databases.create(template=migrated_template)

    async def fill() -> None:
        async with postgres_bench.opened(url) as inner:
            bench = Bench(inner)
            await bench.quota("all", concurrency=50, concurrency_per_key=2)
            await bench.quota("each", concurrency_per_key=2, rate_per_key=Rate(9, MINUTE))
            await bench.running({"each": "0"})
            await bench.running({"all": "0"})
            await crowd(bench, await inner.raw())

    asyncio.run(fill())
    return url


async def crowd(bench: Bench, raw: Connection) -> None:
    uses = [(Use(quota=name, key=str(i)),) for name in ("all", "each") for i in range(QUEUES)]
    queues = [(queue_of(found), found) for found in uses]
    await bench.store.put_queues(queues)
    numbers = [number for number, _ in queues]
    await raw.execute(
        f"""
        insert into flowfabric.execution (id, created_at, route, payload)
        select gen_random_uuid(), n, 1, '\\x00' from generate_series(1, {WAITING}) n
        """
    )
    await raw.execute(
        f"""
        insert into flowfabric.parked (id, version, epoch, rank, flags, attempt, start, gate, queue)
        select id, 1, 0, created_at, 8, 0, 0, 8, ($1::bigint[])[1 + created_at % {len(numbers)}]
        from flowfabric.execution where payload = '\\x00'
        """,
        numbers,
    )
    await raw.execute("analyze")


@pytest.fixture
async def crowded(
    crowded_template: str, fresh_database: Callable[..., str]
) -> AsyncIterator[Bench]:
    async with postgres_bench.opened(fresh_database(template=crowded_template)) as inner:
        yield Bench(inner)


def most_read(steps: str) -> int:
    """The most rows any step gave at once."""
    counted = [line.split("rows=")[1] for line in steps.splitlines() if "rows=" in line]
    return max(int(float(rest.split()[0])) for rest in counted)


async def test_a_standing_touches_only_the_queues_it_is_asked_for(crowded: Bench) -> None:
    asked = [queue(each=str(i)) for i in range(5)]
    for name in ("each", "all"):
        some: tuple[Any, ...] = (name, asked, [], [], crowded.now, FEW_SLOTS, 100, 16)
        steps = await plan(crowded.store, PINNED, "quota_view", *some)
        assert "Seq Scan" not in steps
        assert most_read(steps) <= 5 * 16 + 5 + 5 + 5 + 10
    assert "using queue_key on queue" in steps
    assert "using admission_pkey on admission" in steps


async def test_lines_of_keys_read_as_many_as_there_are_slots(crowded: Bench) -> None:
    quota = (await crowded.store.records.get(QUOTAS, ["each"]))["each"]
    assert await crowded.store.records.put(QUOTAS, replace(quota, rate_per_key=None), quota.version)
    asked = [queue(each=str(i)) for i in range(50)]
    values: tuple[Any, ...] = ("each", asked, [], [], crowded.now, 500)
    given = *values, [2] * 50, quota.version + 1
    steps = await plan(crowded.store, PINNED, "served_lines", *given)
    for slots in ("ready_queue on ready r", "lease_queue on lease l"):
        assert f"{slots} (never executed)" in steps
    counted = *values, [None] * 50, None
    steps = await plan(crowded.store, PINNED, "served_lines", *counted)
    assert "Seq Scan" not in steps
    assert most_read(steps) <= 50 * 2
    assert "using queue_key on queue" in steps
    assert "Tid Scan on parked" in steps
    served = await crowded.serve("each", *asked, most=500)
    assert served is not None
    assert served.moved == 50 * 2 - 1  # one is running


async def test_a_standing_of_all_queues_walks_them_by_turn_and_stops(crowded: Bench) -> None:
    every: tuple[Any, ...] = ("all", None, [], [], crowded.now, FEW_SLOTS, 20, 3)
    steps = await plan(crowded.store, PINNED, "quota_view", *every)
    assert "using queue_turn on queue" in steps
    assert "using parked_queue on parked" in steps
    assert "Seq Scan" not in steps
    assert most_read(steps) <= 20 * 3 + 20 + 1 + 2


async def test_slots_are_counted_the_same_either_way(crowded: Bench) -> None:
    """From the slots there are, or queue by queue when these are too many."""
    session = crowded.store.session
    values: tuple[Any, ...] = ("all", None, [], [], crowded.now)
    held = []
    for most in (FEW_SLOTS, 1, 0):
        rows = await session.fetch(session.limit, "quota_view", *values, most, 3, 1)
        held.append([(row[3], row[4]) for row in rows if row[0] == 3 and row[4]])
    assert held == [[(queue(all="0"), 1)]] * 3


async def test_a_submission_asks_each_line_by_the_index_whether_a_run_waits(
    crowded: Bench,
) -> None:
    creations = [crowded.creation({"each": str(i)}) for i in range(20)]
    snapshots = [creation.snapshot for creation in creations]
    lines = {queue(each=str(i)): 1 for i in range(20)}
    given = at_submission(snapshots, crowded.now, {"each": known_quota(1, lines)}, ())
    book = crowded.store.session.book
    await book.need_routes({snapshot.execution.route for snapshot in snapshots})
    values = admitted_values(creations, given, crowded.now, book.names)
    for settings in (PINNED, FREE):
        steps = await plan(crowded.store, settings, "admitted_executions", *values)
        assert "using parked_queue on parked" in steps
        assert most_read(steps) <= 20


async def test_crowds_go_from_queue_to_queue(crowded: Bench) -> None:
    steps = await plan(crowded.store, PINNED, "crowds", -1, 10)
    assert "Seq Scan" not in steps
    assert most_read(steps) <= 10
    found = await crowded.store.crowds(-1, 3 * QUEUES)
    assert len(found) == 2 * QUEUES
    assert [crowd.queue for crowd in found] == sorted(crowd.queue for crowd in found)


async def test_a_release_reads_by_key(crowded: Bench) -> None:
    standing = await crowded.standing("each", lines=100, depth=5)
    decided = release(standing, crowded.now, 100)
    assert len(decided.moves) == 100
    columns = list(zip(*sorted((m.uuid, m.version, m.at) for m in decided.moves), strict=True))
    values = (
        ["each"], [1], *columns[:2],
        *zip(*((*place, turn) for place, turn in decided.turns.items()), strict=True),
        *zip(*((*noted, count) for noted, count in decided.admissions.items()), strict=True),
        ["each"], [0], columns[2],
    )  # fmt: skip
    steps = await plan(crowded.store, PINNED, "released", *map(_sendable, values))
    assert "Seq Scan" not in steps
    assert "using parked_pkey on parked" in steps
    assert "Tid Scan on parked" in steps
    assert "using execution_pkey on execution" in steps
    assert most_read(steps) <= 100


async def test_starts_are_taken_back_without_reading_the_whole_log(crowded: Bench) -> None:
    """C-T95: the log of a rate has as many rows as its window has starts"""
    raw = await crowded.raw()
    await raw.execute(
        "insert into flowfabric.admission (quota, key, at, count)"
        " select 'each', '=1', n, 1 + n % 2 from generate_series(1, 20000) n"
    )
    values = (["each"], ["=1"], [10_001], [4])
    steps = await plan(crowded.store, PINNED, "taken_back_starts", *values)
    assert "using admission_pkey on admission" in steps
    assert most_read(steps) <= 4
    await crowded.store.take_starts_back([StartsBack("each", "=1", Millis(10_001), 4)])
    log = "select at, count from flowfabric.admission where at between 10000 and 10004 order by at"
    assert [tuple(row) for row in await raw.fetch(log)] == [(10_000, 1), (10_003, 1), (10_004, 1)]


def _sendable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


async def test_who_is_before_and_who_waits_is_read_from_the_index(crowded: Bench) -> None:
    number = queue(all="1")
    uuid = (await crowded.store.executions_in(InQueue(number), 1))[0]
    for name, values in {
        "waiting_in": (number, 5),
        "ahead_of": (number, 10**15, uuid, 7),
    }.items():
        steps = await plan(crowded.store, FREE, name, *values)
        assert "using parked_queue on parked" in steps
        assert most_read(steps) <= 7


async def test_a_draining_lane_does_not_read_what_has_not_begun(crowded: Bench) -> None:
    raw = await crowded.raw()
    await raw.execute(
        """insert into flowfabric.ready
            (id, version, epoch, rank, flags, attempt, start, route, held_until)
        select id, 1, 0, rank, 0, 0, 0, 1, 0 from flowfabric.parked limit 5000"""
    )
    await crowded.store.records.put(LANES, Lane(name="default", state=LaneState.DRAINING), 0)
    values = ([1], crowded.now, ["w1"], 26, 10, [crowded.fresh()], [1], [30_000], 2**31 - 1, [0])
    steps = await plan(crowded.store, PINNED, "taken_leases_by_lane", *values)
    assert "using ready_begun on ready" in steps
    assert most_read(steps) <= 26
    assert await crowded.claim() == []


# -- locks


async def test_of_two_releases_at_once_one_is_told_to_look_again(bench: Bench) -> None:
    """The second waits for the first, and nothing of it is written: no move, turn or admission."""
    await bench.quota("a", concurrency=3, rate=Rate(9, MINUTE))
    await bench.quota("b", concurrency=3)
    waiting = await bench.submit(5, {"a": "k", "b": ""})
    standing = await bench.standing("a")
    first, second = release(standing, bench.now, 2), release(standing, bench.now, 3)
    raw, other = await bench.raw(), await bench.other_store()
    for store in (bench.store, other):
        await store.session.limit.run(wait_for_locks)
    transaction = raw.transaction()
    await transaction.start()
    await raw.execute("select from flowfabric.quota where name = 'b' for update")
    racing = [asyncio.ensure_future(bench.store.release(first))]
    await until_waiting(await bench.raw())
    racing.append(asyncio.ensure_future(other.release(second)))
    await until_waiting(await bench.raw(), 2)
    await transaction.rollback()
    through, refused = await asyncio.gather(*racing)
    assert through is not None
    assert through == set(uuids(waiting[:2]))
    assert refused is None
    after = await bench.standing("a")
    assert [count for _, count in after.held] == [2]
    assert after.admitted == {("a", ""): [(bench.now, 2)]}
    assert [quota.version for quota in after.quotas.values()] == [2, 2]


async def test_a_line_that_gets_a_slot_while_it_is_tidied_away_stays(bench: Bench) -> None:
    """The run is admitted while the tidying waits for the quota: a slot of a line without a row is
    not counted, so that a line of the same key with another quota would take it again."""
    quota = await bench.quota("a", concurrency_per_key=1)
    await bench.store.put_queues([(queue(a="k"), uses_of(a="k"))])
    run = await bench.one()
    raw = await bench.raw()
    await bench.store.session.sweep.run(wait_for_locks)
    transaction = raw.transaction()
    await transaction.start()
    await raw.execute("update flowfabric.quota set version = version + 1")
    tidying = asyncio.ensure_future(bench.store.trim_limits(bench.now, bench.now, 9))
    await until_waiting(await bench.raw())
    await raw.execute(
        "update flowfabric.ready set queue = $1 where id = $2", queue(a="k"), uuid_of(run)
    )
    await transaction.commit()
    assert await tidying == 0
    assert await bench.slots(a="k") == 1
    assert await bench.version("a") == quota.version + 1


async def test_two_processes_that_serve_a_line_at_once_admit_no_more_than_it_has_room(
    bench: Bench,
) -> None:
    """The second begins before the first has committed and waits for its lock: it looks again."""
    await bench.quota("a", concurrency_per_key=2)
    waiting = await bench.submit(5, {"a": "x"})
    raw, other = await bench.raw(), await bench.other_store()
    for store in (bench.store, other):
        await store.session.limit.run(wait_for_locks)
    transaction = raw.transaction()
    await transaction.start()
    await raw.execute("select from flowfabric.quota for update")
    ask = LinesRequest("a", {queue(a="x"): None}, None, bench.now, 99)
    racing = [asyncio.ensure_future(bench.store.serve(ask))]
    await until_waiting(await bench.raw())
    racing.append(asyncio.ensure_future(other.serve(ask)))
    await until_waiting(await bench.raw(), 2)
    await transaction.rollback()
    first, second = await asyncio.gather(*racing)
    assert isinstance(first, ServedLines)
    assert isinstance(second, ServedLines)
    assert (first.moved, second.moved) == (2, 0)
    assert second.version == first.version + 1
    assert second.room == {queue(a="x"): 0}
    assert len(await bench.ready(*waiting)) == 2


async def test_a_submission_waits_for_no_release(bench: Bench) -> None:
    """Its runs wait in their line if another session has the quota locked."""
    quota = await bench.quota("a", concurrency_per_key=2)
    creation = bench.creation({"a": "x"})
    known = {"a": known_quota(quota.version, {queue(a="x"): 2})}
    given = at_submission([creation.snapshot], bench.now, known, ())
    raw = await bench.raw()
    transaction = raw.transaction()
    await transaction.start()
    await raw.execute("select from flowfabric.quota for update")
    answer = await bench.store.submit_and_admit([creation], given, bench.now)
    await transaction.rollback()
    assert answer == ([None], False)
    assert await bench.load(creation.snapshot) == creation.snapshot


async def test_a_submission_whose_reply_was_lost_creates_its_runs_once(bench: Bench) -> None:
    quota = await bench.quota("a", concurrency_per_key=2)
    creation = bench.creation({"a": "x"})
    known = {"a": known_quota(quota.version, {queue(a="x"): 2})}
    given = at_submission([creation.snapshot], bench.now, known, ())
    lose_reply(bench.store.session.submit)
    existing, stood = await bench.store.submit_and_admit([creation], given, bench.now)
    assert (existing, stood) == ([None], False)
    assert len(await bench.ready(creation.snapshot)) == 1


async def test_a_run_cancelled_while_it_is_admitted_is_not_admitted(bench: Bench) -> None:
    """The release waits for the cancel and finds the row gone; the others go through."""
    await bench.quota("a", concurrency=9)
    waiting = await bench.submit(3, {"a": "k"})
    decided = release(await bench.standing("a"), bench.now, 9)
    raw = await bench.raw()
    transaction = raw.transaction()
    await transaction.start()
    gone = uuid_of(waiting[1])
    await raw.execute("delete from flowfabric.parked where id = $1", gone)
    racing = asyncio.ensure_future(bench.store.release(decided))
    await until_waiting(await bench.raw())
    await transaction.commit()
    through = await racing
    assert through is not None
    assert through == {uuid_of(waiting[0]), uuid_of(waiting[2])}


async def test_a_cancel_that_comes_second_finds_it_ready(bench: Bench) -> None:
    await bench.quota("a", concurrency=9)
    (waiting,) = await bench.submit(1, {"a": "k"})
    raw = await bench.raw()
    transaction = raw.transaction()
    await transaction.start()
    await raw.execute("select from flowfabric.quota for update")
    racing = asyncio.ensure_future(bench.through(waiting, versions={"a": 1}))
    await until_waiting(await bench.raw())
    await transaction.rollback()
    await racing
    assert await bench.store.apply([bench.cancelling(waiting)]) == set()
    await bench.write(bench.cancelling(await bench.load(waiting)))


async def test_two_processes_never_run_more_than_a_lane_allows(bench: Bench) -> None:
    """A claim that finds the lane taken from, or in somebody's hands, counts again."""
    await bench.store.records.put(LANES, Lane(name="slow", concurrency=2), 0)
    await bench.submit(6, lane="slow")
    other = Bench.__new__(Bench)
    limit_bench.Bench.__init__(other, await bench.other_store(), bench.clock)
    assert len(await bench.claim(1)) == 1
    raw = await bench.raw()
    transaction = raw.transaction()
    await transaction.start()
    await raw.execute("select from flowfabric.lane for update")
    racing = [asyncio.ensure_future(one.claim(2)) for one in (bench, other)]
    for _ in range(5):
        await raw.fetchval("select 1")  # they find it locked, and try again
    await transaction.rollback()
    taken = await asyncio.gather(*racing)
    assert sorted(len(found) for found in taken) == [0, 1]


async def test_lanes_with_a_concurrency_do_not_wait_for_each_other_in_a_ring(bench: Bench) -> None:
    """Many lanes, many claimers, every order; all is taken and no lane is overfull."""
    lanes = ["a", "b", "c"]
    for lane in lanes:
        await bench.store.records.put(LANES, Lane(name=lane, concurrency=4), 0)
        for kind in ("x", "y"):
            await bench.submit(4, lane=lane, kind=kind)
    other = Bench.__new__(Bench)
    limit_bench.Bench.__init__(other, await bench.other_store(), bench.clock)
    taken = await asyncio.gather(
        *(
            one.claim(3, lanes=tuple(given))
            for one in (bench, other)
            for given in (lanes, lanes[::-1], lanes[1:], lanes[:2])
        )
    )
    running = [snapshot.execution.route.lane for found in taken for snapshot in found]
    assert all(running.count(lane) <= 4 for lane in lanes)
    running += [s.execution.route.lane for s in await bench.claim(99)]
    assert sorted(running) == sorted(lanes * 4)


async def test_many_routes_of_a_full_lane_hide_no_run(bench: Bench) -> None:
    """More routes than are merged as they are, the best of them in a lane that is full."""
    await bench.store.records.put(LANES, Lane(name="slow", concurrency=1), 0)
    made = [bench.creation(lane="slow", kind=f"k{i}", priority=9) for i in range(70)]
    assert not any(await bench.store.submit(made, bench.now))
    (plain,) = await bench.submit(1)
    assert [s.execution.route.lane for s in await bench.claim(1)] == ["slow"]
    assert uuids(await bench.claim(1)) == [uuid_of(plain)]
    assert await bench.claim(1) == []


# -- lost replies


async def test_a_release_whose_reply_was_lost_is_told(bench: Bench) -> None:
    await bench.quota("a", concurrency=2)
    waiting = await bench.submit(3, {"a": "k"}, lane="slow")
    decided = release(await bench.standing("a"), bench.now, 9)
    lose_reply(bench.store.session.limit)
    through = await bench.store.release(decided)
    assert through is not None
    assert through == set(uuids(waiting[:2]))
    assert (await bench.store.records.get(QUOTAS, ["a"]))["a"].version == 2


async def test_a_refused_release_whose_reply_was_lost_stays_refused(bench: Bench) -> None:
    await bench.quota("a", concurrency=2)
    (waiting,) = await bench.submit(1, {"a": "k"})
    lose_reply(bench.store.session.limit)
    assert await bench.through(waiting, versions={"a": 7}) is None
    assert await bench.load(waiting) == waiting


async def test_a_release_whose_request_was_lost_may_be_that_of_a_rival(bench: Bench) -> None:
    """The rival has moved the version: the answer tells that it may be taken for this one."""
    quota = await bench.quota("a", concurrency_per_key=2)
    (waiting,) = await bench.submit(1, {"a": "k"})
    assert await bench.through(waiting, versions={"a": quota.version}) == {uuid_of(waiting)}
    lose_reply(bench.store.session.limit)
    looked = await bench.store.release(Release(versions={"a": quota.version}))
    assert looked is not None
    assert looked.repeated


@pytest.mark.parametrize("again", [False, True], ids=["alone", "others_went_on"])
async def test_a_spending_whose_reply_was_lost_counts_once(bench: Bench, again: bool) -> None:
    """Also when others have spent since: the transaction itself is asked for."""
    books = BudgetLedger()
    books.put(Budget(name="b"))
    lose_reply(bench.store.session.limit)
    assert await bench.store.post(books)
    other = await bench.other_store()

    async def charge(store: PostgresStore) -> bool:
        found = await store.ledger(LedgerNeeds(budgets=("b",)))
        spend(found, Expense(("b",), {"t": 5}), bench.now)
        return await store.post(found)

    found = await bench.store.ledger(LedgerNeeds(budgets=("b",)))
    spend(found, Expense(("b",), {"t": 5}), bench.now)

    async def cut(connection: Connection) -> None:
        bench.store.session.limit.seam = None
        if again:
            assert await charge(other)
        connection.terminate()
        raise ConnectionResetError("the reply was lost")

    bench.store.session.limit.seam = cut
    assert await bench.store.post(found)
    used = (await other.ledger(LedgerNeeds(budgets=("b",)))).budgets["b"].used
    assert used == {"t": 10 if again else 5}
    assert not await bench.store.post(found)


async def test_an_equal_spending_of_another_run_is_not_taken_for_its_own(bench: Bench) -> None:
    books = BudgetLedger()
    books.put(Budget(name="b"))
    assert await bench.store.post(books)
    found = await bench.store.ledger(LedgerNeeds(budgets=("b",)))
    spend(found, Expense(("b",), {"t": 5}), bench.now)
    assert await bench.store.post(found)
    lose_reply(bench.store.session.limit)
    assert not await bench.store.post(found)


async def test_settings_whose_reply_was_lost_are_written(bench: Bench) -> None:
    for value, expected in ((1, 0), (2, 1)):
        lose_reply(bench.store.session.record)
        assert await bench.store.records.put(QUOTAS, Quota(name="a", concurrency=value), expected)
        lose_reply(bench.store.session.record)
        assert await bench.store.records.put(LANES, Lane(name="a", concurrency=value), expected)
    lose_reply(bench.store.session.record)
    assert not await bench.store.records.put(QUOTAS, Quota(name="a", concurrency=9), 1)
    lose_reply(bench.store.session.record)
    assert not await bench.store.records.put(LANES, Lane(name="a", concurrency=9), 1)
    assert (await bench.store.records.get(QUOTAS, ["a"]))["a"].concurrency == 2
    assert (await bench.store.records.get(LANES, ["a"]))["a"].concurrency == 2


async def test_settings_whose_end_had_no_reply_are_gone_by_that_call(bench: Bench) -> None:
    """Design, rule 7: a removal that was done is no `False`, which callers hear as `NotFound`."""
    records = bench.store.records
    for expected in (1, None):
        await records.put(LANES, Lane(name="a", concurrency=1), 0)
        lose_reply(bench.store.session.record)
        assert await records.drop(LANES, "a", expected)
    lose_reply(bench.store.session.record)
    assert not await records.drop(LANES, "a")  # there was none


async def test_a_removal_by_a_rival_is_not_taken_for_ones_own(bench: Bench) -> None:
    link, rival = bench.store.session.record, await bench.other_store()
    await rival.records.put(LANES, Lane(name="a", concurrency=1), 0)

    async def removed_by_a_rival(connection: Connection) -> None:
        link.seam = None
        assert await rival.records.drop(LANES, "a", 1)
        connection.terminate()
        raise ConnectionResetError("the reply was lost")

    link.seam = removed_by_a_rival
    assert not await bench.store.records.drop(LANES, "a", 7)


async def test_limits_hold_through_a_pooler_too(database: str) -> None:
    """Nothing is pinned, and every call is a transaction of its own."""
    sign = "&" if "?" in database else "?"
    async with postgres_bench.opened(f"{database}{sign}pooler=transaction") as inner:
        bench = Bench(inner)
        assert bench.store.session.dialer.pooled
        await bench.quota("a", concurrency=3, rate_per_key=Rate(9, MINUTE))
        await bench.store.records.put(LANES, Lane(name="slow", concurrency=2), 0)
        await bench.submit(5, {"a": "k"}, lane="slow")
        decided = release(await bench.standing("a"), bench.now, 9)
        lose_reply(bench.store.session.limit)
        through = await bench.store.release(decided)
        assert through is not None
        assert len(through) == 3
        assert len(await bench.claim()) == 2
        assert await bench.claim() == []
        books = BudgetLedger()
        books.put(Budget(name="b", used={"t": 5}))
        lose_reply(bench.store.session.limit)
        assert await bench.store.post(books)
        assert not await bench.store.post(books)


# -- a database of the release before


async def test_a_database_of_the_release_before_is_migrated(
    fresh_database: Callable[..., str],
) -> None:
    """Whatever runs keeps running, a paused lane stays paused and says so."""
    url = fresh_database()
    async with postgres_bench.opened(url) as inner:
        raw = await inner.raw()
        await raw.execute("create schema flowfabric")
        for migration in load_migrations("postgres")[:9]:
            await raw.execute(migration)
        await raw.execute(
            """
            insert into flowfabric.meta (key, value) values ('version', '9');
            insert into flowfabric.route (number, namespace, lane, kind, capabilities)
            values (1, 'default', 'other', 'job', ''), (2, 'default', 'slow', 'job', '');
            insert into flowfabric.worker (number, id, instance) values (1, 'w1', 'w1-a');
            insert into flowfabric.lane (name, paused) values ('slow', true), ('other', false);
            insert into flowfabric.execution (id, created_at, route, payload)
            select gen_random_uuid(), n, 1 + n % 2, '' from generate_series(1, 4) n;
            insert into flowfabric.ready
                (id, version, epoch, rank, flags, attempt, start, route, held_until)
            select id, 1, 0, created_at, 0, 0, 0, route, 0
            from flowfabric.execution where created_at <= 2;
            insert into flowfabric.lease
                (id, version, epoch, rank, flags, attempt, start, claim, worker, started_at,
                expires_at)
            select id, 2, 1, created_at, 0, 0, 0, gen_random_uuid(), 1, 1, 9000000000000
            from flowfabric.execution where created_at > 2;
            """
        )
        assert await inner.store.migrate() == len(load_migrations("postgres"))
        bench = Bench(inner)
        assert await bench.store.records.page(LANES) == [
            Lane(name="other"),
            Lane(name="slow", state=LaneState.PAUSED, version=1),
        ]
        rows = await raw.fetch(
            """select l.route = e.route
            from flowfabric.lease l join flowfabric.execution e on e.id = l.id"""
        )
        assert [right for (right,) in rows] == [True, True]
        (claimed,) = await bench.claim()
        assert claimed.execution.route.lane == "other"
        assert await bench.store.records.put(LANES, Lane(name="other", concurrency=2), 0)
        assert await bench.store.records.put(LANES, Lane(name="slow", concurrency=2), 1)
        (claimed,) = await bench.claim()
        assert claimed.execution.route.lane == "slow"
        assert await bench.claim() == []
        fresh = await open_postgres(fresh_database(), clock=inner.clock)
        await fresh.migrate()
        assert await bench.store.schema_text() == await fresh.schema_text()
        await fresh.close()


async def test_what_an_empty_release_asks_for_is_nothing(bench: Bench) -> None:
    assert candidate(await bench.one()).starts
    through = await bench.through()
    assert through is not None
    assert through == set()
    await bench.store.put_queues([])
    assert (await bench.standing("never", ())).lines == []
    assert await bench.store.post(BudgetLedger())
    assert uses_of() == ()
