"""What a step raises that is no `Exception`, wherever the step is called: it fails the step, and
harms neither the worker nor other runs (server-sdk.md 3.4, 7.15)."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import Context, Fail, RunFailed, SyncContext
from tests.worker.bench import Bench

pytestmark = pytest.mark.rules

PANICS: list[BaseException] = [SystemExit(3), KeyboardInterrupt(), BaseException("odd")]
SELF_CANCELLED = "RuntimeError: the step cancelled itself: CancelledError"


def function(error: BaseException, *, is_async: bool) -> Callable[[], Any]:
    def plain() -> None:
        raise error

    async def coroutine() -> None:
        raise error

    return coroutine if is_async else plain


def words(error: BaseException) -> str:
    text = type(error).__name__ + (f": {error}" if str(error) else "")
    return f"handler panicked: {text}"


async def message_of(bench: Bench, run: Any) -> str:
    await bench.work()
    with pytest.raises(RunFailed) as raised:
        await run.result(60)
    return str(raised.value.message)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("error", PANICS, ids=repr)
async def test_a_step_that_panics_fails_the_handler(
    bench: Bench, error: BaseException, is_async: bool
) -> None:
    step = function(error, is_async=is_async)

    @bench.fabric.task
    async def job(ctx: Context) -> None:
        await ctx.step(step)

    @bench.fabric.task
    def plain_job(ctx: SyncContext) -> None:
        ctx.step(step)

    for task in (job, plain_job):
        assert await message_of(bench, await task.submit()) == words(error)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("error", PANICS, ids=repr)
async def test_a_branch_that_panics_does_not_wait_for_the_others(
    bench: Bench, error: BaseException, is_async: bool
) -> None:
    step = function(error, is_async=is_async)

    @bench.fabric.task
    async def gathers(ctx: Context) -> None:
        await ctx.gather(ctx.step(step), ctx.sleep("1d"))

    @bench.fabric.task
    async def races(ctx: Context) -> None:
        await ctx.race(ctx.step(step), ctx.sleep("1d"))

    for task in (gathers, races):
        assert await message_of(bench, await task.submit()) == words(error)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("error", [*PANICS, asyncio.CancelledError()], ids=repr)
async def test_a_compensation_that_panics_keeps_the_run_from_nothing(
    bench: Bench, error: BaseException, is_async: bool
) -> None:
    step = function(error, is_async=is_async)
    undone: list[int] = []

    @bench.fabric.task
    async def job(ctx: Context) -> None:
        await ctx.compensate(undone.append, 1)
        await ctx.compensate(step)
        raise Fail("for good")

    assert await message_of(bench, await job.submit()) == "Fail: for good"
    assert undone == [1]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_step_that_cancels_itself_has_failed(bench: Bench, is_async: bool) -> None:
    """Nothing has cancelled its handler, which may go on."""
    step = function(asyncio.CancelledError(), is_async=is_async)

    @bench.fabric.task
    async def job(ctx: Context) -> str:
        try:
            await ctx.step(step)
        except RuntimeError as error:
            return str(error)
        return "not reached"

    @bench.fabric.task
    async def gathers(ctx: Context) -> None:
        await ctx.gather(ctx.step(step), ctx.sleep("1d"))

    @bench.fabric.task
    async def races(ctx: Context) -> None:
        await ctx.race(ctx.step(step), ctx.sleep("1d"))

    run = await job.submit()
    await bench.work()
    assert await run.result() == "the step cancelled itself"
    for task in (gathers, races):
        assert await message_of(bench, await task.submit()) == SELF_CANCELLED


async def test_a_step_that_is_cancelled_by_its_handler_is_cancelled(bench: Bench) -> None:
    async def slow() -> None:
        await asyncio.Event().wait()

    @bench.fabric.task
    async def job(ctx: Context) -> str:
        step = asyncio.ensure_future(ctx.step(slow))
        await asyncio.sleep(0)
        step.cancel()
        try:
            await step
        except asyncio.CancelledError:
            return "cancelled"
        return "not reached"

    run = await job.submit()
    await bench.work()
    assert await run.result() == "cancelled"
