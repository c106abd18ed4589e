"""Queues forgotten on Postgres while somebody comes to wait in them."""

import asyncio

from flowfabric.core.limit.release import release
from flowfabric.store.queries import InQueue
from tests.store import limit_bench, postgres_bench
from tests.store.limit_bench import queue, uses_of
from tests.store.postgres_bench import until_waiting


async def test_a_queue_trimmed_while_a_run_arrives_gives_no_slot_away(database: str) -> None:
    """I-27: who trims has seen nobody, who releases has seen the row: one of them must notice"""
    async with postgres_bench.opened(database) as inner:
        bench = limit_bench.Bench(inner.store, inner.clock)
        await bench.quota("a", concurrency=3)
        await bench.store.put_queues([(queue(a="k"), uses_of(a="k"))])
        raw = await inner.raw()
        transaction = raw.transaction(isolation="repeatable_read")
        await transaction.start()
        await raw.execute("select from flowfabric.parked")  # the moment this transaction sees
        await bench.submit(1, {"a": "k"})
        decided = release(await bench.standing("a"), bench.now, 9)
        trimmed = inner.store.session.queries["trimmed_queues"]
        assert await raw.fetch(trimmed, ["a"], [queue(a="k")])
        racing = asyncio.ensure_future(bench.store.release(decided))
        await until_waiting(await inner.raw())
        await transaction.commit()
        assert await racing is None
        assert len(await bench.store.executions_in(InQueue(queue(a="k")), 9)) == 1
