"""Code that no longer asks for what is recorded, and results that cannot be recorded."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import (
    Context,
    Fixed,
    Run,
    RunFailed,
)
from tests.worker.bench import Bench, Log


async def boom(message: str = "boom") -> None:
    raise ValueError(message)


# -- code that changed


def versions(bench: Bench, *bodies: Callable[[Context], Awaitable[Any]]) -> Any:
    """A task that fails after the first body and continues with the next one, as after a deploy."""

    @bench.fabric.task(name="job", retries=1, backoff=Fixed(delay=0))
    async def job(ctx: Context) -> Any:
        found = await bodies[ctx.info.attempt - 1](ctx)
        if ctx.info.first:
            raise ValueError("deploy")
        return found

    return job


async def blocked_by(bench: Bench, run: Run[Any]) -> str:
    """Why the run is blocked by code."""
    assert (await run.state()).value == "waiting"
    reason = (await bench.engine.explain(run.id)).main
    assert reason.code == "blocked_by_code"
    return reason.text


async def a() -> str:
    return "a"


async def b() -> str:
    return "b"


async def c() -> str:
    return "c"


async def number() -> int:
    return 1


async def steps_abc(ctx: Context) -> None:
    await ctx.step(a)
    await ctx.step(b)
    await ctx.step(c)


async def renamed(ctx: Context) -> None:
    await ctx.step(a)
    await ctx.step(number)
    await ctx.step(c)


async def removed_first(ctx: Context) -> None:
    await ctx.step(b)
    await ctx.step(c)


async def removed_last(ctx: Context) -> None:
    await ctx.step(a)
    await ctx.step(b)


async def removed_all(ctx: Context) -> None: ...


async def inserted(ctx: Context) -> None:
    await ctx.step(a)
    await ctx.sleep(0)
    await ctx.step(b)
    await ctx.step(c)


async def reordered(ctx: Context) -> None:
    await ctx.step(b)
    await ctx.step(a)
    await ctx.step(c)


async def gathered(ctx: Context) -> None:
    async def branch() -> None:
        await ctx.step(a)
        await ctx.step(b)

    await ctx.gather(branch())
    await ctx.step(c)


CHANGES = [
    (renamed, r"step 1 was recorded as 'b' \(call 1\) but the code now asks for 'number'"),
    (removed_first, r"step 0 was recorded as 'a' \(call 1\) but the code now asks for 'b'"),
    (removed_last, r"step 2, 'c' \(call 1\), is recorded but the code no longer asks for it"),
    (removed_all, r"step 0, 'a' \(call 1\), is recorded but the code no longer asks for it"),
    (inserted, r"step 1 was recorded as 'b' \(call 1\) but the code now asks for 'sleep'"),
    (reordered, r"step 0 was recorded as 'a' \(call 1\) but the code now asks for 'b'"),
    (gathered, r"step 0 was recorded as 'a' \(call 1\) but the code now asks for 'c'"),
]


@pytest.mark.parametrize(
    ("change", "told"), CHANGES, ids=lambda item: getattr(item, "__name__", "")
)
async def test_code_that_asks_for_other_steps_blocks_the_run_and_says_which(
    bench: Bench, change: Any, told: str
) -> None:
    run = await versions(bench, steps_abc, change).submit()
    await bench.work()
    assert re.search(told, await blocked_by(bench, run))
    assert (await run.describe()).attempts_made == 2
    recorded = [name for name in await bench.step_names(run) if "/" not in name]
    assert recorded == ["a", "b", "c"]


async def test_a_step_that_moved_into_a_gap_is_seen(bench: Bench, log: Log) -> None:
    """The first of two steps failed when the second one was recorded."""
    recorded = asyncio.Event()

    async def boom_after() -> None:
        await recorded.wait()
        await boom()

    async def to_the_end(step: Awaitable[Any]) -> None:
        await step
        recorded.set()

    async def before(ctx: Context) -> None:
        first, second = ctx.step(boom_after), ctx.step(log.later, "second")
        await ctx.gather(first, to_the_end(second))

    async def after(ctx: Context) -> None:
        await ctx.step(log.later, "second")

    run = await versions(bench, before, after).submit()
    await bench.work()
    told = r"'Log.later' \(call 1\) was recorded as step 1 but .* as step 0"
    assert re.search(told, await blocked_by(bench, run))
    assert log == ["second"]


async def test_a_change_cannot_be_swallowed(bench: Bench, log: Log) -> None:
    async def before(ctx: Context) -> None:
        await ctx.step(log.later, "before")

    async def after(ctx: Context) -> None:
        for word in ("x", "y"):
            try:
                await ctx.step(asyncio.sleep, 0)
            except Exception:
                log.note(word)

    run = await versions(bench, before, after).submit()
    await bench.work()
    assert "step 0 was recorded as" in await blocked_by(bench, run)
    assert log == ["before", "x", "y"]


async def test_a_change_cannot_be_hidden_behind_another_error(bench: Bench) -> None:
    async def before(ctx: Context) -> None:
        await ctx.step(a)

    async def after(ctx: Context) -> None:
        try:
            await ctx.step(b)
        except Exception as error:
            raise ValueError("something else") from error

    run = await versions(bench, before, after).submit()
    await bench.work()
    assert "step 0 was recorded as 'a'" in await blocked_by(bench, run)


async def test_a_recorded_value_that_no_longer_fits_says_so(bench: Bench) -> None:
    async def before(ctx: Context) -> None:
        await ctx.step(step_before)

    async def after(ctx: Context) -> None:
        await ctx.step(step_after)

    run = await versions(bench, before, after).submit()
    await bench.work()
    told = r"what 'x' \(call 1\) recorded no longer fits: Expected"
    assert re.search(told, await blocked_by(bench, run))


async def step_before() -> str:
    return "text"


async def step_after() -> int:
    return 1


step_before.__qualname__ = step_after.__qualname__ = "x"


async def test_new_steps_at_the_end_are_no_change(bench: Bench) -> None:
    async def before(ctx: Context) -> None:
        await ctx.step(a)

    async def after(ctx: Context) -> list[str]:
        return [await ctx.step(a), await ctx.step(b)]

    run = await versions(bench, before, after).submit()
    await bench.work()
    assert await run.result() == ["a", "b"]


# -- what cannot be recorded


@pytest.mark.parametrize("retries", [0, 3])
async def test_a_result_that_cannot_be_recorded_fails_the_run_by_name(
    bench: Bench, retries: int
) -> None:
    def opaque() -> Any:
        return object()

    @bench.fabric.task(retries=retries)
    async def job(ctx: Context) -> None:
        await ctx.step(opaque)

    run = await job.submit()
    assert await bench.work() == 1
    with pytest.raises(RunFailed, match=r"opaque.*cannot be recorded: object") as caught:
        await run.result()
    assert caught.value.category == "permanent"
    assert await bench.steps(run) == []


async def test_a_result_that_is_not_what_the_step_promises_is_not_recorded(bench: Bench) -> None:
    def liar() -> int:
        return "text"  # type: ignore[return-value]

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.step(liar)

    run = await job.submit()
    await bench.work()
    with pytest.raises(RunFailed, match=r"liar.*cannot be recorded: Expected `int`"):
        await run.result()
    assert await bench.steps(run) == []


async def test_a_result_that_is_too_large_is_refused_with_the_name_of_its_step(
    bench: Bench,
) -> None:
    @bench.fabric.step(name="large")
    def large() -> str:
        return "x" * (1 << 20)

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.step(large)

    run = await job.submit()
    await bench.work()
    with pytest.raises(RunFailed, match="PayloadTooLarge: the record of step 'large' has 10486"):
        await run.result()
