"""Runs that end in the application's transaction, their workers, and what crashes around it."""

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from flowfabric import Context, Fabric
from flowfabric.core.base.time import Millis
from flowfabric.store.clock import ManualClock, SystemClock
from flowfabric.store.queries import Query, Renewal
from flowfabric.worker.run.heartbeat import Heartbeat
from flowfabric.worker.run.lease import Loss, WorkerLease
from tests.kit.connections import libraries
from tests.worker.bench import AGAIN, TTL, Bench, until, working
from tests.worker.test_transactions import double

pytestmark = pytest.mark.inside

ROOT = Path(__file__).parents[2]


async def test_a_caller_that_waits_for_the_result_gets_it_soon(
    fabric: Fabric, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.engine.commit.watcher.POLL_FLOOR", 60)

    @fabric.task()
    async def job(ctx: Context) -> Any:
        await may_go.wait()
        async with libraries(store_url)[0]() as connection:
            await ctx.complete_in(connection, "done")

    may_go = asyncio.Event()
    async with working(fabric):
        run = await job.submit()
        waiting = asyncio.create_task(run.result(60))
        engine = await fabric.engine()
        await until(lambda: run.id.uuid in engine._context.watcher.waiting)
        may_go.set()
        assert await waiting == "done"


async def test_a_worker_that_stops_leaves_a_completed_run_alone(
    fabric: Fabric, store_url: str
) -> None:
    @fabric.task(**AGAIN)
    async def job(ctx: Context) -> Any:
        async with libraries(store_url)[0]() as connection:
            await ctx.complete_in(connection, "done")
        committed.set()
        await asyncio.Event().wait()

    committed = asyncio.Event()
    async with working(fabric):
        run = await job.submit()
        await asyncio.wait_for(committed.wait(), 60)
    assert await run.result(60) == "done"
    assert len(await run.attempts()) == 1


async def test_a_lease_that_ends_in_a_transaction_is_not_renewed() -> None:
    """The row is locked until the transaction ends, and one renewal renews them all."""
    asked: list[list[Renewal]] = []

    class Store:
        clock = SystemClock()

        async def renew(self, renewals: list[Renewal], now: Millis) -> dict[Any, Any]:
            asked.append(renewals)
            return {}

        async def load(self, uuids: list[Any]) -> dict[Any, Any]:
            raise AssertionError("not looked at either")

    async with Fabric("sqlite://:memory:") as fabric:
        await fabric.task()(double).submit(1)
        worker = await fabric.worker()
        engine = await fabric.engine()
        (claim,) = await engine.claims.claim(worker.identity)
    lost: list[Any] = []
    store: Any = Store()

    async def opened() -> Any:
        return store

    heartbeat = Heartbeat(
        opened,
        ttl=TTL,
        on_cancelled=lambda key, notice: None,
        on_lost=lambda *loss: lost.append(loss),
        spare=store,
    )
    heartbeat.hold(WorkerLease(claim, age=3.0))
    heartbeat.rest((claim.uuid, claim.epoch))
    heartbeat.rest((claim.uuid, 99))
    await heartbeat._renew(store)
    await heartbeat._look(store)
    assert asked == []
    heartbeat.hold(WorkerLease(claim, age=TTL / 1000))
    heartbeat._give_up_stale()  # its time runs nevertheless
    await asyncio.sleep(0)
    assert lost == [((claim.uuid, claim.epoch), Loss.UNRENEWED)]
    heartbeat._loop.close()


# -- crashes

SCRIPT = """
    import asyncio, os, sys
    from flowfabric import Context, Fabric
    from tests.kit.connections import libraries

    url, when = sys.argv[1:]
    fabric = Fabric(url)

    @fabric.task()
    async def job(ctx: Context) -> str:
        async with libraries(url)[0]() as connection:
            await ctx.complete_in(connection, "of the process that died")
            if when == "before":
                os._exit(9)
        os._exit(9)

    async def main() -> None:
        await job.submit()
        await (await fabric.worker()).run_until_idle()

    asyncio.run(main())
"""


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_around_the_commit(store_url: str, when: str) -> None:
    code = textwrap.dedent(SCRIPT)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, store_url, when),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )
    _, told = await process.communicate()
    assert process.returncode == 9, told.decode()
    clock = ManualClock(SystemClock().now())
    async with Fabric(store_url, clock=clock) as fabric:
        bench = Bench(fabric, await fabric.engine(), clock)

        @fabric.task()
        async def job() -> str:
            return "of the next worker"

        (info,) = (await bench.engine.views.list(Query())).items
        run = await fabric.run(info.id)
        await bench.lose()
        await bench.work()
        ended_by = {"before": "of the next worker", "after": "of the process that died"}
        assert await run.result() == ended_by[when]
