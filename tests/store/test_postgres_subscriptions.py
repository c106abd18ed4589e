"""Subscriptions where commits overlap, replies are lost and connections break.

§8.3, §12 F-63; I-43, I-45.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, RegistryEvent, StoredEvent
from flowfabric.core.execution.event_filter import EventBatch, EventFilter
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.submission import Submission, Submitted
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution import event_tail
from flowfabric.engine.execution import events as following
from flowfabric.store.open import open_store
from flowfabric.store.rows.record import PRESENCES
from tests.kit.proxy import Proxy, proxied
from tests.store.postgres_bench import Bench, lose_reply

LATE = """insert into flowfabric.event (id, at, kind, epoch, detail, namespace)
    values ('00000000-0000-0000-0000-000000000000', 0, 60, 0,
        convert_to('{"worker": "w", "instance": "' || $1 || '"}', 'UTF8'), $1)"""
"""A worker of the namespace $1 registers, as another process would write it."""


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    engine = await Engine.open(await open_store(database))
    yield engine
    await engine.close()


async def end_one(engine: Engine, namespace: str = "default") -> str:
    made = await engine.executions.submit(Submission(kind="job", namespace=namespace))
    assert isinstance(made, Submitted)
    await engine.executions.cancel(made.id, reason="r")
    return made.id


def event(namespace: str = "n") -> RegistryEvent:
    detail = {"worker": "w", "instance": "i"}
    return RegistryEvent(namespace, Millis(1), EventKind.WORKER_REGISTERED, detail)


# -- commits that overlap


async def test_a_follower_waits_for_a_rival_that_commits_late(bench: Bench, engine: Engine) -> None:
    """F-63, C-T136: the lower number comes first, although it is committed last"""
    slow = await bench.raw()
    async with aclosing(engine.events.follow(EventFilter(), after=0)) as stream:
        transaction = slow.transaction()
        await transaction.start()
        await slow.execute(LATE, "late")
        id = await end_one(engine)
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.wait([reading], timeout=0.1)
        assert not reading.done(), "the later number is not shown before the earlier one"
        await transaction.commit()
        async with asyncio.timeout(60):
            batch = await reading
    assert [each.id for each in batch.events] == [None, id]


async def test_a_rival_that_rolls_back_leaves_no_gap(bench: Bench, engine: Engine) -> None:
    slow = await bench.raw()
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute(LATE, "never")
    id = await end_one(engine)
    await transaction.rollback()
    batch = await engine.events.batch(EventFilter(), 0)
    assert ([each.id for each in batch.events], batch.gap) == ([id], None)


async def test_late_commits_of_two_tenants_reach_only_their_own(
    bench: Bench, engine: Engine
) -> None:
    """I-43, I-45, C-T135: with rivals that hold numbers in between"""
    rivals = [await bench.raw() for _ in range(4)]
    transactions = [each.transaction() for each in rivals]
    for number, (rival, transaction) in enumerate(zip(rivals, transactions, strict=True)):
        await transaction.start()
        await rival.execute(LATE, f"n{number % 2}")
        await end_one(engine, f"n{number % 2}")
    seen: dict[str, list[StoredEvent]] = {"n0": [], "n1": []}

    async def follow(namespace: str) -> None:
        wanted = EventFilter(namespace=namespace)
        async with aclosing(engine.events.follow(wanted, after=0, limit=1)) as stream:
            while len(seen[namespace]) < 4:
                seen[namespace] += (await anext(stream)).events

    following = [asyncio.ensure_future(follow(each)) for each in seen]
    for transaction in reversed(transactions):
        await asyncio.wait(following, timeout=0.05)
        await transaction.commit()
    async with asyncio.timeout(60):
        await asyncio.gather(*following)
    for namespace, found in seen.items():
        assert {each.namespace for each in found} == {namespace}
        assert [each.seq for each in found] == sorted({each.seq for each in found})


async def test_a_trim_beside_a_reader_is_a_gap_or_unseen(bench: Bench, engine: Engine) -> None:
    """F-65: what is deleted between two pages is never silently missing"""
    ids = [await end_one(engine) for _ in range(4)]
    first = await engine.events.batch(EventFilter(), 0, 2)
    assert ([each.id for each in first.events], first.gap) == (ids[:2], None)
    now = engine.now()
    assert await engine.store.trim(Millis(now + 1), Millis(now + 1), 100) == 4
    left = await end_one(engine)
    second = await engine.events.batch(EventFilter(), first.cursor, 2)
    assert [each.id for each in second.events] == [left]
    assert second.gap is not None
    assert second.gap.after == first.cursor


async def test_a_filter_that_matches_nothing_reads_a_bounded_part(
    bench: Bench, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower of something rare passes everything else, piece by piece"""
    monkeypatch.setattr("flowfabric.store.postgres.events.WINDOW", 3)
    for _ in range(10):
        await end_one(engine)
    rare = await end_one(engine, "rare")
    wanted = EventFilter(namespace="rare")
    first = await engine.events.batch(wanted, 0)
    assert (first.events, first.cursor) == ((), 3)
    seen: list[Any] = []
    async with aclosing(engine.events.follow(wanted, after=0)) as stream:
        async with asyncio.timeout(60):
            while not seen:
                seen += [each.id for each in (await anext(stream)).events]
    assert seen == [rare]
    await engine.subscriptions.create("s", wanted, after=0)
    batch = await engine.subscriptions.read("s", holder="a")
    assert isinstance(batch, EventBatch)
    assert [each.id for each in batch.events] == [rare]


# -- replies that are lost


@pytest.mark.parametrize("deed", ["new", "changed", "dropped"])
async def test_a_lost_reply_writes_one_event(bench: Bench, deed: str) -> None:
    """I-41: the row and its event are one commit, and known again afterwards"""
    records = bench.store.records
    made = Presence(worker="w", instance="i", namespace="n", version=7)
    if deed != "new":
        assert await records.put(PRESENCES, made, 0)
    lose_reply(bench.store.session.record)
    if deed == "dropped":
        await records.drop(PRESENCES, made.key, 7, [event()])
        assert await records.get(PRESENCES, [made.key]) == {}
    else:
        assert await records.put(PRESENCES, made, 0 if deed == "new" else 7, [event()])
    raw = await bench.raw()
    assert await raw.fetchval("select count(*) from flowfabric.event") == 1


async def test_a_refused_write_leaves_no_event(bench: Bench) -> None:
    records = bench.store.records
    made = Presence(worker="w", instance="i", version=7)
    assert await records.put(PRESENCES, made, 0, [event()])
    assert not await records.put(PRESENCES, made, 0, [event()])
    assert not await records.put(PRESENCES, made, 6, [event()])
    assert not await records.drop(PRESENCES, made.key, 6, [event()])
    raw = await bench.raw()
    assert await raw.fetchval("select count(*) from flowfabric.event") == 1


# -- connections that break


async def collect(stream: Any, count: int) -> list[str]:
    return [str((await anext(stream)).id) for _ in range(count)]


@pytest.mark.parametrize("trouble", [Proxy.cut, Proxy.black_hole], ids=["cut", "silent"])
async def test_a_subscription_survives_its_connection(
    database: str, engine: Engine, trouble: Callable[[Proxy], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.3, C-T136: it goes on from its position, without loss and without a repeat"""
    monkeypatch.setattr(following, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(event_tail, "POLL_FLOOR", 0.05)
    monkeypatch.setattr("flowfabric.store.postgres.link.WORK_SECONDS", 0.2)
    monkeypatch.setattr("flowfabric.store.postgres.link.QUESTION_SECONDS", 0.2)
    async with proxied(database) as (proxy, url):
        reader = await Engine.open(await open_store(url))
        try:
            async with aclosing(reader.events.subscribe(after=0)) as stream:
                made = [await end_one(engine) for _ in range(2)]
                async with asyncio.timeout(60):
                    assert await collect(stream, 2) == made
                waiting = asyncio.ensure_future(collect(stream, 3))
                await asyncio.wait([waiting], timeout=0.05)
                trouble(proxy)
                later = [await end_one(engine) for _ in range(3)]
                async with asyncio.timeout(30):
                    assert await waiting == later
        finally:
            await reader.close()


async def test_a_subscription_restarts_from_its_cursor(database: str, engine: Engine) -> None:
    """I-43: in another process, after this one has ended"""
    made = [await end_one(engine) for _ in range(4)]
    first = await Engine.open(await open_store(database))
    async with aclosing(first.events.subscribe(after=0)) as stream:
        seen = [await anext(stream) for _ in range(2)]
    await first.close()
    second = await Engine.open(await open_store(database))
    async with aclosing(second.events.subscribe(after=seen[-1].seq)) as stream:
        seen += [await anext(stream) for _ in range(2)]
    await second.close()
    assert [each.id for each in seen] == made
