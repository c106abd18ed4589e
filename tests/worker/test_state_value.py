"""`ctx.set_state` and `run.state_value`: what a run shows of itself."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from msgspec import Struct

from flowfabric import Context, ExecutionId, Fabric, Fixed, Invalid, NotFound, Run, SyncContext
from flowfabric.core.base.errors import PayloadTooLarge
from flowfabric.testing import harness
from tests.worker.bench import Bench, working


class Stage(Struct):
    name: str
    done: list[int]


async def test_a_value_is_visible_while_the_run_is_active_and_afterwards(bench: Bench) -> None:
    shown, go_on = asyncio.Event(), asyncio.Event()

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.set_state(Stage("first", [1]))
        shown.set()
        await go_on.wait()
        await ctx.set_state(Stage("last", [1, 2]))

    run = await job.submit()
    assert await run.state_value() is None
    async with working(bench.fabric):
        await shown.wait()
        assert await run.state_value() == {"name": "first", "done": [1]}
        go_on.set()
        await run.result()
    assert await run.state_value(Stage) == Stage("last", [1, 2])


async def test_a_handler_that_runs_again_does_not_go_back(bench: Bench) -> None:
    seen: list[Any] = []

    @bench.fabric.task(retries=1, backoff=Fixed(delay=0))
    async def job(ctx: Context) -> None:
        run = await bench.fabric.run(ctx.info.id)

        async def look() -> None:
            seen.append(await run.state_value())

        await ctx.set_state("begun")
        await ctx.step(look)
        await ctx.set_state("looked")
        seen.append(await run.state_value())
        await ctx.sleep("1h")
        seen.append(await run.state_value())
        await ctx.set_state("slept")
        if ctx.info.first:
            raise ValueError
        seen.append(await run.state_value())

    run = await job.submit()
    await bench.work()
    assert seen == ["begun", "looked"]
    await bench.pass_time(3_600_000)
    await bench.work()
    # After the sleep and again in the second attempt, the value is never "begun".
    assert seen == ["begun", "looked", "looked", "looked", "slept", "slept", "slept"]
    await run.result()


async def test_branches_keep_their_own_order(bench: Bench) -> None:
    seen: list[Any] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        async def part() -> None:
            await ctx.set_state("in a branch")
            await ctx.sleep("1h")
            await ctx.set_state("after its sleep")

        await ctx.set_state("before")
        await ctx.gather(part())
        seen.append(await (await bench.fabric.run(ctx.info.id)).state_value())

    run = await job.submit()
    await bench.work()
    assert await run.state_value() == "in a branch"
    await bench.pass_time(3_600_000)
    await bench.work()
    assert seen == ["after its sleep"]


async def test_a_plain_function_and_a_step_set_it_as_well(bench: Bench) -> None:
    @bench.fabric.task()
    def plain(ctx: SyncContext) -> None:
        ctx.set_state({"from": "thread"})

    @bench.fabric.task()
    async def stepping(ctx: Context) -> None:
        async def long() -> None:
            await ctx.set_state({"from": "step"})

        await ctx.step(long)

    runs = [await plain.submit(), await stepping.submit()]
    await bench.work()
    assert [await run.state_value() for run in runs] == [{"from": "thread"}, {"from": "step"}]


async def test_what_cannot_be_shown_is_refused_where_it_is_called(bench: Bench) -> None:
    refused: list[str] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        for value in (object(), float("nan"), "x" * 300_000):
            try:
                await ctx.set_state(value)
            except (Invalid, PayloadTooLarge) as error:
                refused.append(type(error).__name__)
        await ctx.set_state(None)

    run = await job.submit()
    await bench.work()
    await run.result()
    assert refused == ["Invalid", "Invalid", "PayloadTooLarge"]
    assert await run.state_value() is None
    missing = Run[None](bench.fabric._client, ExecutionId.of(0, UUID(int=7 << 76)))
    with pytest.raises(NotFound, match="run"):
        await missing.state_value()


async def test_it_works_in_the_test_kit() -> None:
    fabric = Fabric("sqlite://:memory:")

    @fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.set_state({"waits": True})
        await ctx.wait_for_signal("go")
        await ctx.set_state({"waits": False})

    async with harness(fabric) as kit:
        run = await job.submit()
        await kit.run_until(waits_for="go")
        assert await run.state_value() == {"waits": True}
        await fabric.signal(run.id, "go")
        await kit.run_until_idle()
        assert await run.state_value() == {"waits": False}
