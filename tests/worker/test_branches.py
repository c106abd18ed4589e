"""Steps and sleeps side by side: places that do not depend on time, sleeps that cut nobody off."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import (
    Context,
    PublicState,
)
from flowfabric.worker.errors import Unwind
from tests.worker.bench import AGAIN, Bench, Log

# -- side by side


async def test_gather_gives_results_in_order(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return await ctx.gather(*(ctx.step(log.later, number) for number in range(20)))

    run = await job.submit()
    await bench.work()
    assert await run.result() == list(range(20))
    assert [step.occurrence for step in await bench.steps(run)] == list(range(20))


async def test_when_one_of_many_fails_its_error_is_raised_at_once(bench: Bench, log: Log) -> None:
    """What was recorded until then is not done again; what was under way is"""
    never = asyncio.Event()

    async def maybe(ctx: Context, word: str) -> str:
        if not ctx.info.first:
            return str(log.note(word))
        if word == "slow":
            await never.wait()
        if word == "bad":
            while not await bench.steps(run):  # noqa: ASYNC110 - until "a" is recorded
                await asyncio.sleep(0.01)
            raise ValueError(word)
        return str(log.note(word))

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> list[Any]:
        return list(
            await ctx.gather(*(ctx.step(maybe, ctx, word) for word in ("a", "bad", "slow")))
        )

    run = await job.submit()
    async with asyncio.timeout(60):
        assert await bench.work() == 2
    assert await run.result() == ["a", "bad", "slow"]
    assert log == ["a", "bad", "slow"]
    (first, _) = await run.attempts()
    assert first.failure is not None
    assert first.failure.message == "ValueError: bad"


@pytest.mark.parametrize("beside", ["sleep", "signal", "map", "nested"])
async def test_a_failure_does_not_wait_for_what_waits(bench: Bench, log: Log, beside: str) -> None:
    """Nothing of it is waited for later either: the handler goes on after the error"""

    @bench.fabric.task()
    async def late(number: int) -> int:
        return number

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        async def broken() -> None:
            await ctx.step(log.later, "step")
            raise ValueError("broken")

        waits: dict[str, Callable[[], Awaitable[Any]]] = {
            "sleep": lambda: ctx.sleep("1h"),
            "signal": lambda: ctx.wait_for_signal("go"),
            "map": lambda: ctx.map(late.with_options(delay="1h"), [1]),
            "nested": lambda: ctx.gather(ctx.sleep("1h"), ctx.wait_for_signal("go")),
        }
        try:
            await ctx.gather(waits[beside](), broken())
        except ValueError as error:
            return str(error)
        return "whole"

    run = await job.submit()
    await bench.work()
    assert (await run.result(60), log) == ("broken", ["step"])


async def test_a_branch_that_is_stopped_cleans_up_before_the_error_is_raised(
    bench: Bench, log: Log
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        async def broken() -> None:
            await asyncio.sleep(0)
            raise ValueError

        async def tidy() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                log.note("tidied")

        try:
            await ctx.gather(tidy(), broken())
        except ValueError:
            log.note("raised")
        return "over"

    run = await job.submit()
    await bench.work()
    assert (await run.result(60), log) == ("over", ["tidied", "raised"])


async def side_by_side_gather(ctx: Context, branches: list[Awaitable[Any]]) -> list[Any]:
    return await ctx.gather(*branches)


async def side_by_side_asyncio(ctx: Context, branches: list[Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*branches))


async def side_by_side_group(ctx: Context, branches: list[Any]) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch) for branch in branches]
    return [task.result() for task in tasks]


WAYS = [side_by_side_gather, side_by_side_asyncio, side_by_side_group]


@pytest.mark.parametrize("way", WAYS)
async def test_places_do_not_depend_on_which_branch_is_faster(bench: Bench, way: Any) -> None:
    """In the first run the last branch is the fastest; when everything is recorded, the first."""

    async def wait(branch: int, millis: int) -> str:
        await asyncio.sleep(millis / 1000)
        return f"first of {branch}"

    async def second(branch: int, before: str) -> str:
        return f"{before}, second of {branch}"

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> list[Any]:
        async def branch(number: int) -> str:
            found = await ctx.step(wait, number, 40 - 10 * number)
            return await ctx.step(second, number, found)

        found = await way(ctx, [branch(number) for number in range(4)])
        if ctx.info.first:
            raise ValueError
        return list(found)

    run = await job.submit()
    assert await bench.work() == 2
    assert await run.result() == [f"first of {n}, second of {n}" for n in range(4)]
    assert len(await bench.steps(run)) == 8


async def test_branches_within_branches(bench: Bench, log: Log) -> None:
    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> list[Any]:
        async def leaf(word: str) -> str:
            await ctx.step(asyncio.sleep, len(word) / 1000)
            return str(await ctx.step(log.later, word))

        async def branch(word: str) -> list[Any]:
            return list(await ctx.gather(leaf(word), leaf(2 * word)))

        found = list(await ctx.gather(branch("a"), branch("bb")))
        found.append(await ctx.step(log.later, "end"))
        if ctx.info.first:
            raise ValueError
        return found

    run = await job.submit()
    assert await bench.work() == 2
    assert await run.result() == [["a", "aa"], ["bb", "bbbb"], "end"]
    assert sorted(log) == ["a", "aa", "bb", "bbbb", "end"]
    names = set(await bench.step_names(run))
    assert {"0.0/Log.later", "1.1/Log.later", "Log.later"} <= names


async def test_what_a_handler_leaves_behind_can_do_nothing_any_more(bench: Bench, log: Log) -> None:
    left: list[asyncio.Task[Any]] = []
    go_on = asyncio.Event()

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        async def stray() -> None:
            await go_on.wait()
            await ctx.step(log.later, "stray")

        left.append(asyncio.create_task(stray()))
        await asyncio.sleep(0)
        return "over"

    run = await job.submit()
    await bench.work()
    go_on.set()
    with pytest.raises(Unwind):
        await left[0]
    assert (await run.result(), log, await bench.steps(run)) == ("over", [], [])


# -- sleeping beside other things


@pytest.mark.parametrize("way", WAYS)
async def test_a_sleep_beside_a_step_lets_the_step_finish_first(
    bench: Bench, log: Log, way: Any
) -> None:
    async def slow(word: str) -> str:
        await asyncio.sleep(0.02)
        return str(log.note(word))

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def nap() -> str:
            await ctx.sleep("1h")
            return str(await ctx.step(slow, "after"))

        async def work() -> str:
            await ctx.step(slow, "one")
            return str(await ctx.step(slow, "two"))

        return list(await way(ctx, [nap(), work()]))

    run = await job.submit()
    await bench.work()
    assert await run.state() is PublicState.DELAYED
    assert log == ["one", "two"]
    await bench.pass_time(3_600_000)
    await bench.work()
    assert await run.result() == ["after", "two"]
    assert log == ["one", "two", "after"]


async def test_of_several_sleeps_the_earliest_wakes_the_run(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def nap(hours: int) -> int:
            await ctx.sleep(f"{hours}h")
            return int(await ctx.step(log.later, hours))

        return list(await ctx.gather(nap(3), nap(1), ctx.sleep("2h")))

    run = await job.submit()
    await bench.work()
    for hour in (1, 2, 3):
        assert await bench.work() == 0, hour
        await bench.pass_time(3_600_000)
        assert await bench.work() == 1, hour
    assert await run.result() == [3, 1, None]
    assert log == [1, 3]


async def test_what_runs_beside_a_sleep_outside_of_steps_is_not_cut_off(bench: Bench) -> None:
    cut: list[str] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def careful() -> str:
            try:
                await asyncio.sleep(0.02)
            except BaseException as error:
                cut.append(repr(error))
                raise
            return "whole"

        return list(await ctx.gather(ctx.sleep("1h"), careful()))

    run = await job.submit()
    await bench.work()
    await bench.pass_time(3_600_000)
    await bench.work()
    assert (await run.result(), cut) == ([None, "whole"], [])


async def test_a_sleep_that_is_over_while_others_work_goes_on_at_once(bench: Bench) -> None:
    """It neither waits for the others nor takes the handler off its slot."""
    order: list[str] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        async def nap() -> None:
            await ctx.sleep("30ms")
            order.append("nap over")

        async def long() -> None:
            while not order:
                bench.clock.advance(30)
                await asyncio.sleep(0.02)
            order.append("work over")

        await ctx.gather(nap(), ctx.step(long))

    run = await job.submit()
    async with asyncio.timeout(60):
        assert await bench.work() == 1
    await run.result()
    assert order == ["nap over", "work over"]


@pytest.mark.parametrize("way", WAYS)
async def test_no_except_exception_can_swallow_a_sleep(bench: Bench, log: Log, way: Any) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        async def nap() -> None:
            try:
                await ctx.sleep("1h")
            except Exception:
                log.note("swallowed")

        try:
            async with asyncio.timeout(30):
                await way(ctx, [nap()])
        except Exception:
            log.note("swallowed")
        log.note("after")
        return "awake"

    run = await job.submit()
    await bench.work()
    assert (log, await run.state()) == ([], PublicState.DELAYED)
    await bench.pass_time(3_600_000)
    await bench.work()
    assert (await run.result(), log) == ("awake", ["after"])


async def test_a_handler_that_swallows_everything_still_sleeps(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        for word in ("a", "b"):
            with contextlib.suppress(BaseException):
                await ctx.sleep("1h")
                log.note(word)
        return "over"

    run = await job.submit()
    await bench.work_through(run)
    assert (await run.result(), log) == ("over", ["a", "a", "b"])


async def test_a_sleep_that_timed_out_is_not_a_sleep(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        async def busy() -> None:
            await asyncio.sleep(0.1)

        async def nap() -> str:
            try:
                async with asyncio.timeout(0.02):
                    await ctx.sleep("1h")
            except TimeoutError:
                return "given up"
            return "slept"

        return str((await ctx.gather(nap(), busy()))[0])

    run = await job.submit()
    assert await bench.work() == 1
    assert await run.result() == "given up"


async def test_cleaning_up_happens_before_the_slot_is_given_back(bench: Bench) -> None:
    states: list[PublicState] = []

    @bench.fabric.task()
    async def job(ctx: Context, id: str | None = None) -> None:
        try:
            await ctx.sleep("1h")
        finally:
            found = await bench.engine.views.state(ctx.info.id)
            assert found is not None
            states.append(found)

    run = await job.submit()
    await bench.work_through(run)
    assert states == [PublicState.ACTIVE] * 2
