"""Waits on Postgres: lost replies, statements that are not sent, and the plans."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution import operator
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import Flags, Snapshot
from flowfabric.core.wait.model import DedupRecord, Needs, ReceivedSignal, Signal, Waitpoint
from flowfabric.store.postgres.dialer import FREE, PINNED, Connection
from flowfabric.store.rows.record import KEYRING, ONLY, SealedKeyring
from tests.kit.postgres import Databases
from tests.kit.snapshots import after
from tests.store.postgres_bench import Bench, lose_reply, opened, plan, statements, uuid_of

HERE, FIRST = UUID(int=1), UUID(int=11)


@pytest.fixture
def database(new_database: str) -> str:
    return new_database


def signalled(snapshot: Snapshot, id: int, *, number: int = 1, **written: Any) -> Change[object]:
    """A signal that leaves nothing in the execution's own row to tell it from another."""
    signal = Signal(number, UUID(int=id), HERE, "wp", "go", Millis(5))
    flags = snapshot.head.flags | Flags.WAITPOINTS
    new = snapshot.to(snapshot.state, flags=flags)
    return Change(None, snapshot, new, signals=(ReceivedSignal(signal),), **written)


# -- replies lost after the commit


async def test_a_lost_reply_to_a_signal_is_recognised(bench: Bench) -> None:
    one, two = await bench.submit_many(2)
    waitpoint = Waitpoint(HERE, one.execution.uuid, "wp", Millis(5), "k1")
    records = (DedupRecord(b"k", None, b"1"), DedupRecord(b"l"), DedupRecord(b"k", Millis(9), b"2"))
    changes = [
        signalled(one, 1, waitpoints=(waitpoint,), dedup=records, counted=((1, FIRST),)),
        signalled(two, 2),
    ]
    lose_reply(bench.store.session.apply)
    assert await bench.store.apply(changes) == {uuid_of(change) for change in changes}
    (heard,) = await bench.store.signals(one.execution.uuid)
    assert heard == replace(changes[0].signals[0], suspension=FIRST)
    ask = Needs(one.execution.uuid, (HERE,), (b"k", b"l"))
    (memory,) = await bench.store.load_needs([ask])
    assert memory.waitpoints == {HERE: waitpoint}
    assert list(memory.dedup.values()) == [records[2], records[1]]


async def test_a_waitpoint_that_was_there_does_not_hide_ones_own_change(bench: Bench) -> None:
    snapshot = await bench.submit()
    earlier = Waitpoint(HERE, snapshot.execution.uuid, "earlier", Millis(5), "k1")
    made = await bench.apply(signalled(snapshot, 1, waitpoints=(earlier,)))
    lose_reply(bench.store.session.apply)
    again = signalled(made, 2, number=2, waitpoints=(replace(earlier, key="again"),))
    assert await bench.store.apply([again]) == {uuid_of(again)}


async def test_a_rivals_signal_is_not_taken_for_ones_own(bench: Bench) -> None:
    """Both were decided on the same version and leave the same state row."""
    mine, other = await bench.submit_many(2)
    rival = signalled(mine, 1)
    await bench.apply(rival)
    refused = signalled(mine, 2)
    assert after(refused) == after(rival)
    lose_reply(bench.store.session.apply)
    assert await bench.store.apply([refused, signalled(other, 3)]) == {other.execution.uuid}
    assert await bench.store.signals(mine.execution.uuid) == list(rival.signals)


async def test_a_rivals_dedup_record_is_not_taken_for_ones_own(bench: Bench) -> None:
    snapshot = await bench.submit()
    first = replace(signalled(snapshot, 1, dedup=(DedupRecord(b"k", None, b"1"),)), signals=())
    second = replace(first, dedup=(DedupRecord(b"k", None, b"2"),))
    await bench.apply(first)
    lose_reply(bench.store.session.apply)
    assert await bench.store.apply([second]) == set()


async def test_a_lost_reply_to_new_keys_is_recognised(bench: Bench) -> None:
    link, records = bench.store.session.record, bench.store.records
    for version in range(2):
        lose_reply(link)
        assert await records.put(KEYRING, SealedKeyring(b"mine %d" % version), version)
    mine = {ONLY: SealedKeyring(b"mine 1", 2)}
    assert await records.get(KEYRING, [ONLY]) == mine
    for stale in range(2):
        lose_reply(link)
        assert not await records.put(KEYRING, SealedKeyring(b"late"), stale)
    assert await records.get(KEYRING, [ONLY]) == mine


async def test_a_lost_reply_to_a_recall_is_asked_again(bench: Bench) -> None:
    change = signalled(await bench.submit(), 1)
    await bench.apply(change)
    lose_reply(bench.store.session.load)
    (memory,) = await bench.store.load_needs([Needs(uuid_of(change), buffered=((HERE, 0),))])
    assert memory.signals == list(change.signals)


# -- only what there is to write is sent


async def test_a_change_without_waits_sends_nothing_for_them(bench: Bench) -> None:
    change = operator.change_priority(await bench.submit(), bench.now, 5)
    assert await statements(bench, bench.apply(change)) == [
        "state_versions", "gone_ready", "new_ready", "new_events",
    ]  # fmt: skip


async def test_a_signal_is_one_statement_more_for_each_table(bench: Bench) -> None:
    change = signalled(await bench.submit(), 1, dedup=(DedupRecord(b"k"),))
    assert await statements(bench, bench.apply(change)) == [
        "state_versions", "gone_ready", "new_ready", "new_signals", "new_dedup_records",
    ]  # fmt: skip


async def test_a_request_for_nothing_asks_no_store(bench: Bench) -> None:
    lose_reply(bench.store.session.load)
    await bench.store.load_needs([Needs(bench.fresh())])
    assert bench.store.session.load.seam is not None
    bench.store.session.load.seam = None


# -- plans

EXECUTIONS, SIGNALS = 2_000, 20_000


@pytest.fixture(scope="module")
def crowded_template(databases: Databases, migrated_template: str) -> str:
    """Many executions with a few signals each, and one with very many; made once."""
    url = databases.create(template=migrated_template)

    async def fill() -> None:
        async with opened(url) as bench:
            await bench.submit()
            await crowd(await bench.raw())

    asyncio.run(fill())
    return url


async def crowd(raw: Connection) -> None:
    await raw.execute(
        f"""
        insert into flowfabric.execution (id, created_at, route, payload)
        select md5(n::text)::uuid, n, 1, '\\x00' from generate_series(1, {EXECUTIONS}) n;
        insert into flowfabric.parked
            (id, version, epoch, rank, flags, attempt, start, gate, since, note)
        select id, 1, 1, 0, 16, 0, 4, 20, created_at, '\\x00'
        from flowfabric.execution where payload = '\\x00';
        insert into flowfabric.waitpoint (id, waitpoint, doc)
        select id, md5(n::text)::uuid, '\\x00' from flowfabric.parked, generate_series(1, 10) n;
        insert into flowfabric.dedup_record (id, key, doc)
        select id, decode(md5(n::text), 'hex'), '\\x00'
        from flowfabric.parked, generate_series(1, 10) n;
        insert into flowfabric.signal (id, number, waitpoint, suspension, doc)
        select id, n, md5((n % 10)::text)::uuid, md5((n % 5)::text)::uuid, '\\x00'
        from flowfabric.parked, generate_series(1, 10) n;
        insert into flowfabric.signal (id, number, waitpoint, suspension, doc)
        select md5('1')::uuid, n, md5((n % 100)::text)::uuid, md5((n % 100)::text)::uuid, '\\x00'
        from generate_series(11, {SIGNALS}) n;
        """
    )
    await raw.execute("analyze")


UUIDS = [UUID(int=number) for number in range(500)]
COUNT = [1] * len(UUIDS)
DOCS = [b"x"] * len(UUIDS)


async def test_what_is_recalled_is_read_by_key(filled: Bench) -> None:
    values = (UUIDS, UUIDS, UUIDS, DOCS, UUIDS, UUIDS, COUNT, COUNT, UUIDS, UUIDS, UUIDS)
    steps = await plan(filled.store, PINNED, "needed", *values)
    assert "Index Cond: ((id = a.id) AND (waitpoint = a.waitpoint))" in steps
    assert "Index Cond: ((id = a_1.id) AND (key = a_1.key))" in steps
    assert "Index Cond: ((id = a_2.id) AND " in steps


async def test_what_is_buffered_is_read_without_the_rest(
    fresh_database: Callable[..., str], crowded_template: str
) -> None:
    async with opened(fresh_database(template=crowded_template)) as bench:
        values = (UUIDS, UUIDS, UUIDS, DOCS, UUIDS, UUIDS, COUNT, COUNT, UUIDS, UUIDS, UUIDS)
        steps = await plan(bench.store, PINNED, "needed", *values)
        assert "Index Scan using signal_waitpoint on signal" in steps
        steps = await plan(bench.store, PINNED, "signals_counted", UUIDS[0], 0, 100, UUIDS[0])
        assert "Index Scan using signal_suspension on signal" in steps


async def test_signals_are_read_in_the_order_of_an_index(filled: Bench) -> None:
    steps = await plan(filled.store, PINNED, "signals_of", UUIDS[0], 0, 100)
    assert "Index Scan using signal_pkey on signal" in steps
    counted = await plan(filled.store, PINNED, "signals_counted", UUIDS[0], 0, 100, UUIDS[0])
    assert "Index Cond: ((id = " in counted
    for word in ("Sort", "Seq Scan"):
        assert word not in steps + counted


async def test_signals_are_counted_by_key(filled: Bench) -> None:
    steps = await plan(filled.store, PINNED, "counted_signals", UUIDS, COUNT, UUIDS)
    assert "Index Scan using signal_pkey on signal" in steps
    assert "Index Cond: ((id = c.id) AND (number = c.number))" in steps
    assert "Tid Scan on signal" in steps


@pytest.mark.parametrize("name", ["gone_parked", "gone_lease", "gone_done", "trimmed_signals"])
async def test_rows_that_go_are_found_by_key(filled: Bench, name: str) -> None:
    steps = await plan(filled.store, PINNED, name, UUIDS)
    assert "_pkey on " in steps
    assert "Index Cond: (id = ANY (" in steps


async def test_the_suspended_are_read_in_the_order_of_their_index(
    fresh_database: Callable[..., str], crowded_template: str
) -> None:
    async with opened(fresh_database(template=crowded_template)) as bench:
        for values in ((None, None, None, 100), (5, UUIDS[0], "default", 100)):
            steps = await plan(bench.store, FREE, "suspended_executions", *values)
            assert "using parked_since on parked" in steps
            assert "Seq Scan on parked" not in steps
            assert "Seq Scan on execution" not in steps
