"""`ctx.race` with a step: the run keeps its worker, and what comes meanwhile still wins."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flowfabric import Context, PublicState, WaitTimeout
from flowfabric.core.base.time import Millis
from tests.worker.bench import Bench, working

HOUR = 3_600_000


class Slow:
    """A step that runs until it is stopped."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.stopped = asyncio.Event()

    async def run(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()


@asynccontextmanager
async def beside(bench: Bench, slow: Slow, **options: Any) -> AsyncIterator[None]:
    """The worker works, and a step of its run has begun; after the block it ends by itself."""
    work = asyncio.create_task(bench.work(**options))
    async with asyncio.timeout(60):
        await slow.began.wait()
        yield
        await work
    assert slow.stopped.is_set()


async def test_a_signal_wins_over_a_step_that_runs(bench: Bench) -> None:
    slow = Slow()

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return list(await ctx.race(slow=ctx.step(slow.run), go=ctx.wait_for_signal("go", int)))

    run = await job.submit()
    async with beside(bench, slow):
        assert await run.state() is PublicState.ACTIVE
        await bench.fabric.signal(run, "go", 5)
    assert await run.result() == ["go", 5]
    assert (await run.describe()).attempts_made == 1


async def test_a_signal_that_is_there_wins_over_a_step(bench: Bench) -> None:
    slow = Slow()

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return list(await ctx.race(slow=ctx.step(slow.run), go=ctx.wait_for_signal("go", int)))

    run = await job.submit()
    await bench.fabric.signal(run, "go", 5)
    async with beside(bench, slow):
        pass
    assert await run.result() == ["go", 5]


async def test_an_approval_and_a_callback_win_over_a_step_that_runs(bench: Bench) -> None:
    slow, slower = Slow(), Slow()
    tokens: list[tuple[str, str]] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        first = await ctx.race(slow=ctx.step(slow.run), allowed=ctx.approval("refund"))
        callback = await ctx.callback("paid")
        tokens.append((callback.id, callback.token.reveal()))
        second = await ctx.race(slow=ctx.step(slower.run), paid=callback.result(int))
        return [first.name, *second]

    run = await job.submit()
    work = asyncio.create_task(bench.work())
    async with asyncio.timeout(60):
        await slow.began.wait()
        while not await bench.fabric.waitpoints(run.id):  # noqa: ASYNC110 - opened beside the step
            await asyncio.sleep(0)
        await bench.fabric.approve(run, "refund", approver="ann")
        await slower.began.wait()
        await bench.fabric.signal(tokens[0][0], token=tokens[0][1], payload=7)
        await work
    assert await run.result() == ["allowed", "paid", 7]


async def test_a_child_run_wins_over_a_step_that_runs(bench: Bench) -> None:
    slow, done = Slow(), asyncio.Event()

    @bench.fabric.task()
    async def child() -> int:
        await done.wait()
        return 7

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        run = await ctx.submit(child)
        return list(await ctx.race(slow=ctx.step(slow.run), child=run))

    run = await job.submit()
    async with working(bench.fabric), asyncio.timeout(60):
        await slow.began.wait()
        done.set()
        assert await run.result() == ["child", 7]
    assert slow.stopped.is_set()


@pytest.mark.parametrize("how", ["sleep", "timeout"])
async def test_time_wins_over_a_step_that_runs(bench: Bench, how: str) -> None:
    slow = Slow()

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        if how == "sleep":
            return (await ctx.race(slow=ctx.step(slow.run), late=ctx.sleep("1h"))).name
        wait = ctx.wait_for_signal("go", timeout="1h")
        try:
            await ctx.race(slow=ctx.step(slow.run), go=wait)
        except WaitTimeout:
            return "late"
        return ""

    run = await job.submit()
    async with beside(bench, slow, ttl=Millis(3 * HOUR)):
        bench.clock.advance(HOUR)
        bench.engine.store.hints.wake()
    assert await run.result() == "late"


async def test_a_step_wins_over_waits_and_they_are_over(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def quick() -> int:
            return 3

        callback = await ctx.callback("paid")
        won = await ctx.race(
            paid=callback.result(), allowed=ctx.approval("refund"), quick=ctx.step(quick)
        )
        await ctx.sleep("1h")
        return list(won)

    run = await job.submit()
    await bench.work()
    assert await run.state() is PublicState.DELAYED
    assert await bench.fabric.waitpoints(run.id) == []
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == ["quick", 3]


async def test_a_race_beside_a_step_of_the_same_handler(bench: Bench) -> None:
    """The step is no branch of the race: the race is won while it runs, and it goes on."""
    began, done = asyncio.Event(), asyncio.Event()

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def slow() -> str:
            began.set()
            await done.wait()
            return "done"

        async def racing() -> list[Any]:
            won = await ctx.race(go=ctx.wait_for_signal("go"), late=ctx.sleep("1h"))
            done.set()
            return list(won)

        return list(await ctx.gather(ctx.step(slow), racing()))

    run = await job.submit()
    work = asyncio.create_task(bench.work())
    async with asyncio.timeout(60):
        await began.wait()
        await bench.fabric.signal(run, "go", 1)
        await work
    assert await run.result() == ["done", ["go", 1]]
