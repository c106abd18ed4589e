"""Crashes in the harness: what was recorded is not done again, what was not is."""

from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import Context, Fabric, RunFailed, SyncContext
from flowfabric.testing import Harness, Stuck


class Shop:
    """Two tasks that do the same, one of them in a thread, and a ledger of what they did."""

    def __init__(self, fabric: Fabric) -> None:
        self.ledger: list[str] = []

        @fabric.task()
        async def order(ctx: Context) -> list[str]:
            return [
                await ctx.step(self.reserve),
                await ctx.step(self.charge),
                await ctx.step(self.ship),
            ]

        @fabric.task()
        def plain_order(ctx: SyncContext) -> list[str]:
            return [ctx.step(self.reserve), ctx.step(self.charge), ctx.step(self.ship)]

        self.tasks: dict[str, Any] = {"coroutine": order, "thread": plain_order}

    def write(self, word: str) -> str:
        self.ledger.append(word)
        return word

    def reserve(self) -> str:
        return self.write("reserve")

    def charge(self) -> str:
        return self.write("charge")

    async def ship(self) -> str:
        return self.write("ship")


MODES = pytest.mark.parametrize("mode", ["coroutine", "thread"])


@pytest.fixture
def shop(fabric: Fabric) -> Shop:
    return Shop(fabric)


@MODES
@pytest.mark.parametrize("step", ["reserve", "charge", "ship"])
async def test_a_crash_after_a_step_repeats_nothing(
    shop: Shop, harness: Harness, mode: str, step: str
) -> None:
    run = await shop.tasks[mode].submit()
    await harness.run_until(step=step)
    await harness.crash()
    assert await run.result() == shop.ledger == ["reserve", "charge", "ship"]
    harness.assert_attempts(run, 2)
    harness.assert_steps(run, ["reserve", "charge", "ship"])


@MODES
async def test_a_crash_before_the_record_repeats_that_one_step(
    shop: Shop, harness: Harness, mode: str
) -> None:
    run = await shop.tasks[mode].submit()
    await harness.run_until(unrecorded="charge")
    harness.assert_steps(run, ["reserve"])
    await harness.crash()
    await harness.result(run)
    assert shop.ledger == ["reserve", "charge", "charge", "ship"]


@MODES
async def test_a_handler_that_was_held_goes_on_without_a_crash(
    shop: Shop, harness: Harness, mode: str
) -> None:
    run = await shop.tasks[mode].submit()
    await harness.run_until(step="reserve")
    assert shop.ledger == ["reserve"]
    await harness.run_until(step="charge")
    assert shop.ledger == ["reserve", "charge"]
    await harness.run_until_idle()
    harness.assert_completed(run)
    harness.assert_attempts(run, 1)


async def test_the_clock_jumps_on_the_way_to_a_step(fabric: Fabric, harness: Harness) -> None:
    @fabric.task()
    async def job(ctx: Context) -> str:
        await ctx.sleep("30d")
        return await ctx.step(str.upper, "done")

    run = await job.submit()
    await harness.run_until(step="upper")
    await harness.crash()
    assert await run.result() == "DONE"


async def test_crashing_too_often_fails_the_run(shop: Shop, harness: Harness) -> None:
    run = await shop.tasks["coroutine"].submit()

    async def crash_again_and_again() -> None:
        for _ in range(10_000):
            await harness.run_until(unrecorded="charge")
            await harness.crash()

    with pytest.raises(Stuck, match="every run has ended"):
        await crash_again_and_again()
    with pytest.raises(RunFailed, match="max_reclaims_exceeded"):
        await run.result()


async def test_without_a_handler_there_is_nothing_to_crash(
    fabric: Fabric, harness: Harness
) -> None:
    with pytest.raises(Stuck, match="use run_until"):
        await harness.crash()


async def test_a_crash_takes_everything_along_that_runs(fabric: Fabric, harness: Harness) -> None:
    attempts: list[int] = []

    def noted(ctx: Context) -> Callable[[], int]:
        def note() -> int:
            attempts.append(ctx.info.attempt)
            return ctx.info.attempt

        return note

    @fabric.task()
    async def child(ctx: Context) -> int:
        return await ctx.step(noted(ctx))

    @fabric.task()
    async def parent(ctx: Context) -> int:
        return await (await ctx.submit(child)).result() + ctx.info.attempt

    run = await parent.submit()
    await harness.run_until(unrecorded="note")
    await harness.crash()
    assert await run.result() == 4
    assert attempts == [1, 2]
