"""Through a pooler that hands the server's sessions around between transactions: correct, if
slower."""

import asyncio

import pytest

from flowfabric.core.execution import operator
from flowfabric.core.execution.lease import Owner
from flowfabric.store.clock import ManualClock
from flowfabric.store.postgres import PostgresStore, open_postgres
from flowfabric.store.postgres.dialer import PINNED
from flowfabric.store.queries import EventQuery
from tests.kit.pooler import pooled
from tests.store.postgres_bench import (
    Bench,
    lose_reply,
    opened,
    progress,
    renewal,
    uuids,
)


@pytest.mark.parametrize("strict", [True, False])
async def test_everything_works_through_a_transaction_pooler(database: str, strict: bool) -> None:
    async with pooled(database, strict=strict) as (pooler, url), opened(url) as bench:
        assert bench.store.session.dialer.pooled
        assert await bench.store.migrate() > 0
        held = await bench.running(key="k", tags={"a.b": "c"})
        assert await bench.store.renew([renewal(held)], bench.now)
        assert await bench.store.write_progress([progress(held, 5)], bench.now)
        other, *_ = await bench.submit_many(3)
        cancel = operator.cancel(other, bench.now, Owner(source="operator_override"), "")
        await asyncio.gather(
            bench.store.end([bench.completion(held)], bench.now),
            bench.apply(cancel),
            bench.submit_many(5),
            bench.store.counts(None, None),
            bench.store.due(bench.now, 9),
        )
        assert len(await bench.claim(99)) == 7
        assert len((await bench.store.events(EventQuery())).events) == 10
        assert len(set(pooler.turns)) == 2


async def test_a_lost_reply_is_recognised_through_a_pooler_too(database: str) -> None:
    async with pooled(database, strict=False) as (_, url), opened(url) as bench:
        held = await bench.running()
        lose_reply(bench.store.session.end)
        ended = await bench.store.end([bench.completion(held)], bench.now)
        assert ended == set(uuids([held]))


async def test_hints_stay_in_the_process_without_a_listener(database: str) -> None:
    async with pooled(database, strict=False) as (_, url), opened(url) as bench:
        waiting = asyncio.create_task(bench.store.hints.wait(30.0))
        await asyncio.wait([waiting], timeout=0)
        bench.store.hints.send()
        assert await waiting
        assert not await bench.store.hints.wait(0.0)


async def test_the_url_has_the_last_word_about_a_pooler(database: str) -> None:
    async def is_pooled(url: str) -> bool:
        store: PostgresStore = await open_postgres(url, clock=ManualClock())
        await store.close()
        return store.session.dialer.pooled

    sign = "&" if "?" in database else "?"
    assert not await is_pooled(database)
    assert await is_pooled(f"{database}{sign}pooler=transaction")
    async with pooled(database, strict=False) as (_, url):
        assert await is_pooled(url)
        assert not await is_pooled(f"{url}?pooler=session")


async def test_a_pooler_that_keeps_sessions_together_gets_its_settings_later(
    database: str,
) -> None:
    async with (
        pooled(database, strict=True, sessions=1) as (_, url),
        opened(f"{url}?pooler=session") as bench,
    ):
        await bench.ended()
        connection = await bench.store.session.dialer.dial(PINNED)
        assert await connection.fetchval("show plan_cache_mode") == "force_generic_plan"
        await connection.close()


async def test_a_told_pooler_works_without_one(database: str) -> None:
    sign = "&" if "?" in database else "?"
    async with opened(f"{database}{sign}pooler=transaction") as bench:
        assert isinstance(bench, Bench)
        await bench.ended()
