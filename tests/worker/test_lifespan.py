"""The lifespan of a worker: start-up before the first run, shutdown after the last one."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flowfabric import (
    AttemptEnd,
    Context,
    Fabric,
    Invalid,
    Invocation,
    NextCall,
    StartupFailed,
    SyncContext,
    WorkerOptions,
    testing,
)
from tests.worker.bench import Bench, Log, until, working

pytestmark = pytest.mark.rules


async def test_it_spans_the_runs_of_a_worker(fabric: Fabric, log: Log) -> None:
    @fabric.lifespan
    @asynccontextmanager
    async def lifespan(given: Fabric) -> AsyncIterator[dict[str, str]]:
        assert given is fabric
        log.note("up")
        async with asyncio.timeout(60):  # must be left in the task that entered it
            yield {"db": "pool"}
        log.note("down")

    @fabric.task()
    async def job(ctx: Context) -> Any:
        return log.note(f"async {ctx.lifespan['db']}")

    @fabric.task()
    def plain(ctx: SyncContext) -> Any:
        return log.note(f"plain {ctx.lifespan['db']}")

    async with working(fabric, ttl="30s"):
        assert await (await job.submit()).result(60) == "async pool"
        assert await (await plain.submit()).result(60) == "plain pool"
    assert log == ["up", "async pool", "plain pool", "down"]


async def test_hooks_have_its_value_too(bench: Bench, log: Log) -> None:
    @bench.fabric.lifespan
    async def lifespan(fabric: Fabric) -> AsyncIterator[int]:
        yield 7

    @bench.fabric.middleware
    async def look(call: Invocation, next: NextCall) -> Any:
        log.note(call.lifespan)
        return await next(call)

    @bench.fabric.task(on_success=lambda end: log.note(end.lifespan))
    async def job() -> None: ...

    await job.submit()
    await bench.work()
    assert log == [7, 7]


async def test_without_one_there_is_nothing(bench: Bench, log: Log) -> None:
    @bench.fabric.task(on_success=lambda end: log.note(end.lifespan))
    async def job(ctx: Context) -> bool:
        return ctx.lifespan is None

    run = await job.submit()
    await bench.work()
    assert await run.result() is True
    assert log == [None]


async def test_it_can_be_given_to_the_fabric(store_url: str, log: Log) -> None:
    @asynccontextmanager
    async def lifespan(fabric: Fabric) -> AsyncIterator[None]:
        log.note("up")
        yield
        log.note("down")

    async with Fabric(store_url, lifespan=lifespan) as fabric:
        async with working(fabric):
            await until(lambda: log)
        with pytest.raises(Invalid, match="has a lifespan already"):
            fabric.lifespan(lifespan)
    assert log == ["up", "down"]


async def test_a_failing_start_up_stops_the_worker(fabric: Fabric, log: Log) -> None:
    @fabric.lifespan
    async def lifespan(fabric: Fabric) -> AsyncIterator[None]:
        if not log:
            raise ConnectionError("no database")
        yield

    @fabric.task()
    async def job() -> None:
        log.note("called")

    run = await job.submit()
    worker = await fabric.worker()
    with pytest.raises(StartupFailed) as raised:
        await worker.run()
    assert str(raised.value) == (
        "startup_failed: the lifespan failed before it yielded, so the worker did not start: "
        "ConnectionError: no database"
    )
    assert isinstance(raised.value.__cause__, ConnectionError)
    assert not log
    assert (await run.state()).value == "waiting"
    engine = await fabric.engine()
    assert await engine.workers.list(namespace=None) == [], "it was never there"


async def test_what_returns_no_context_manager_is_refused(fabric: Fabric) -> None:
    async def lifespan(fabric: Fabric) -> None: ...

    with pytest.raises(Invalid, match="must yield once"):
        fabric.lifespan(lifespan)  # type: ignore[type-var]
    fabric.lifespan(lambda fabric: 7)  # type: ignore[type-var]
    worker = await fabric.worker()
    with pytest.raises(StartupFailed, match="must return an async context manager, not int"):
        await worker.run()
    with pytest.raises(Invalid, match="a lifespan must be a function, not int"):
        Fabric("sqlite://:memory:", lifespan=7)  # type: ignore[arg-type]


async def test_a_failing_shutdown_is_logged(
    fabric: Fabric, caplog: pytest.LogCaptureFixture
) -> None:
    @fabric.lifespan
    async def lifespan(fabric: Fabric) -> AsyncIterator[None]:
        yield
        raise ConnectionError("cannot say goodbye")

    @fabric.task()
    async def job() -> int:
        return 1

    async with working(fabric):
        assert await (await job.submit()).result(60) == 1
    assert "the lifespan failed while the worker shut down" in caplog.text
    assert "cannot say goodbye" in caplog.text


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_worker_can_be_stopped_while_it_starts(fabric: Fabric, log: Log, how: str) -> None:
    starting = asyncio.Event()

    @fabric.lifespan
    async def lifespan(fabric: Fabric) -> AsyncIterator[None]:
        try:
            starting.set()
            await asyncio.sleep(60)
            yield
        finally:
            log.note("undone")

    worker = await fabric.worker()
    running = asyncio.create_task(worker.run())
    await starting.wait()
    if how == "stop":
        worker.stop()
        await asyncio.wait_for(running, 60)
    else:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 60)
    assert log == ["undone"]


async def test_runs_are_handed_back_before_it_ends(
    fabric: Fabric, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.worker")

    @fabric.lifespan
    async def lifespan(fabric: Fabric) -> AsyncIterator[None]:
        yield
        log.note("down")

    @fabric.on_attempt_end
    async def told(end: AttemptEnd) -> None:
        log.note(end.outcome)

    @fabric.task()
    async def job() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            log.note("stopped")

    worker = await fabric.worker(WorkerOptions(ttl="30s"))
    running = asyncio.create_task(worker.run())
    await job.submit()
    await until(lambda: any(active.handling for active in worker.active.values()))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert log[-2:] == ["handed_back", "down"]


async def test_it_ends_whole_when_the_block_of_its_fabric_does(store_url: str, log: Log) -> None:
    """As after Ctrl-C: the shutdown is not cut short, and it can still use the fabric."""

    async def lifespan(given: Fabric) -> AsyncIterator[None]:
        yield
        log.note("leaving")
        for _ in range(100):
            await asyncio.sleep(0)
        assert await given.lanes.list() == []
        log.note("left")

    async with Fabric(store_url, lifespan=lifespan) as fabric:
        worker = await fabric.worker()
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.is_running)
    assert log == ["leaving", "left"]
    await asyncio.wait_for(running, 60)


async def test_a_start_up_is_undone_before_its_fabric_is_closed(store_url: str, log: Log) -> None:
    async def lifespan(given: Fabric) -> AsyncIterator[None]:
        try:
            log.note("starting")
            await asyncio.sleep(60)
            yield
        finally:
            log.note(await given.lanes.list())

    async with Fabric(store_url, lifespan=lifespan) as fabric:
        running = asyncio.create_task((await fabric.worker()).run())
        await until(lambda: log)
    assert log == ["starting", []]
    await asyncio.wait_for(running, 60)


async def test_it_may_close_its_fabric(store_url: str, log: Log) -> None:
    async def lifespan(given: Fabric) -> AsyncIterator[None]:
        yield
        await given.close()
        log.note("closed")

    fabric = Fabric(store_url, lifespan=lifespan)
    worker = await fabric.worker()
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.is_running)
    worker.stop()
    await asyncio.wait_for(running, 60)
    assert log == ["closed"]


async def test_a_harness_has_one_lifespan_through_all_crashes(log: Log) -> None:
    fabric = Fabric("sqlite://:memory:")

    @fabric.lifespan
    async def lifespan(fabric: Fabric) -> AsyncIterator[str]:
        log.note("up")
        yield "value"
        log.note("down")

    @fabric.task()
    async def job(ctx: Context) -> Any:
        await ctx.step(log.note, "step")
        return ctx.lifespan

    async with testing.harness(fabric) as harness:
        run = await job.submit()
        assert log == []
        await harness.run_until(step="note")
        await harness.crash()
        assert await harness.result(run) == "value"
    assert log == ["up", "step", "down"]
