"""Clean-ups together with what else a handler may use: tries of steps, races, hooks, asyncio, and
workers that stop."""

import asyncio

import pytest

from flowfabric import Cancelled, Context, Fixed, RunFailed
from flowfabric.fabric import Fabric
from flowfabric.worker.api.hooks import AttemptEnd
from tests.worker.bench import Bench, Log, working
from tests.worker.test_cancelling import cancelled


@pytest.mark.parametrize("registered", [False, True])
async def test_a_cleanup_step_with_long_pauses_gives_the_slot_back(
    bench: Bench, registered: bool
) -> None:
    """As a step of the handler's own clean-up, or as a compensation."""
    log, broken = Log(), True

    @bench.fabric.step(retries=5, backoff=Fixed(delay="20s"))
    async def refund() -> None:
        log.append("tries")
        if broken:
            raise OSError("no network")

    @bench.fabric.task(on_cancel="cleanup", cleanup_timeout="10m")
    async def order(ctx: Context) -> None:
        await ctx.compensate(log.note, "first")
        if registered:
            await ctx.compensate(refund)
        try:
            await ctx.sleep("1d")
        except Cancelled:
            if not registered:
                await refund()

    run = await order.submit()
    await bench.work()
    await run.cancel()
    for tries in (1, 2):
        await bench.work()
        assert log == ["tries"] * tries
        await bench.pass_time(20_000)
    broken = False
    await bench.work()
    assert log == ["tries", "tries", "tries", "first"]
    await cancelled(run)


async def test_compensations_with_long_pauses_run_after_a_failure(bench: Bench) -> None:
    log, broken = Log(), True

    @bench.fabric.step(retries=5, backoff=Fixed(delay="20s"))
    async def refund() -> None:
        log.append("tries")
        if broken:
            raise OSError("no network")

    @bench.fabric.task(cleanup_timeout="10m")
    async def order(ctx: Context) -> None:
        await ctx.compensate(log.note, "first")
        await ctx.compensate(refund)
        raise ValueError("no money")

    run = await order.submit()
    await bench.work()
    assert log == ["tries"]
    broken = False
    await bench.pass_time(20_000)
    await bench.work()
    assert log == ["tries", "tries", "first"]
    with pytest.raises(RunFailed, match="no money"):
        await run.result()


async def test_a_cancel_between_two_tries_of_a_step_begins_no_other(bench: Bench) -> None:
    log = Log()

    @bench.fabric.step(retries=5, backoff=Fixed(delay="1h"))
    async def charge() -> None:
        log.append("tries")
        raise OSError("no network")

    @bench.fabric.task()
    async def order(ctx: Context) -> None:
        await ctx.compensate(log.note, "undo")
        try:
            await charge()
        except Cancelled:
            await ctx.step(log.note, "cleans up")
            raise

    run = await order.submit()
    await bench.work()
    await run.cancel()
    await bench.work()
    assert log == ["tries", "cleans up", "undo"]
    await cancelled(run)


async def test_a_race_of_the_cleanup_waits_as_any_other(bench: Bench) -> None:
    log = Log()

    @bench.fabric.task(on_cancel="cleanup", cleanup_timeout="1m")
    async def order(ctx: Context) -> None:
        try:
            await ctx.race(paid=ctx.wait_for_signal("paid"), late=ctx.sleep("1d"))
        except Cancelled:
            name, _ = await ctx.race(told=ctx.wait_for_signal("told"), late=ctx.sleep("5s"))
            await ctx.step(log.note, name)

    run = await order.submit()
    await bench.work()
    await run.cancel()
    await bench.work()
    await bench.pass_time(5_000)
    await bench.work()
    assert log == ["late"]
    await cancelled(run)


async def test_hooks_get_the_reason_after_a_cleanup(bench: Bench) -> None:
    ends: list[AttemptEnd] = []
    bench.fabric.on_attempt_end(ends.append)

    @bench.fabric.task(on_cancel="cleanup")
    async def order(ctx: Context) -> None:
        await ctx.sleep("1d")

    run = await order.submit()
    await bench.work()
    await run.cancel("changed my mind")
    await bench.work()
    await cancelled(run)
    assert [(end.outcome, end.message) for end in ends] == [("cancelled", "changed my mind")]


async def test_a_worker_that_stops_leaves_the_rest_of_a_cleanup_to_another(
    fabric: Fabric,
) -> None:
    log, began, cleaning, go = Log(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    @fabric.task(on_cancel="cleanup", cleanup_timeout="5m")
    async def order(ctx: Context) -> None:
        await ctx.compensate(log.note, "undo")
        try:
            began.set()
            await asyncio.sleep(60)
        except Cancelled:
            await ctx.step(log.note, "one")
            cleaning.set()
            await go.wait()
            await ctx.step(log.note, "two")
            raise

    async with working(fabric):
        run = await order.submit()
        await began.wait()
        await run.cancel()
        await cleaning.wait()
    assert log == ["one"]
    go.set()
    async with working(fabric):
        await cancelled(run)
    assert log == ["one", "two", "undo"]


async def test_groups_and_timeouts_of_asyncio_work_in_a_cleanup(fabric: Fabric) -> None:
    log, began = Log(), asyncio.Event()

    @fabric.task(on_cancel="cleanup", cleanup_timeout="5m")
    async def order(ctx: Context) -> None:
        try:
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(60))
                began.set()
        except Cancelled:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await asyncio.sleep(60)
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
            await ctx.step(log.note, "cleans up")
            raise

    async with working(fabric):
        run = await order.submit()
        await began.wait()
        await run.cancel()
        await cancelled(run)
    assert log == ["cleans up"]
