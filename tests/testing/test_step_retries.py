"""Retries of steps in the harness: short pauses are left out, the clock jumps over long ones."""

from typing import Any

import pytest

from flowfabric import Context, Fabric, Fixed, SyncContext
from flowfabric.testing import Harness

MODES = pytest.mark.parametrize("mode", ["coroutine", "thread"])


class Bank:
    """Answers at the fourth call; remembers when it was called."""

    def __init__(self, fabric: Fabric, harness: Harness, mode: str, delay: str) -> None:
        self.calls: list[int] = []
        self._clock = harness.clock
        step = fabric.step(retries=3, backoff=Fixed(delay=delay))(self.charge)

        @fabric.task()
        async def order(ctx: Context) -> str:
            return str(await ctx.step(step))

        @fabric.task()
        def plain_order(ctx: SyncContext) -> str:
            return str(ctx.step(step))

        self.task: Any = order if mode == "coroutine" else plain_order

    def charge(self) -> str:
        self.calls.append(self._clock.now())
        if len(self.calls) < 4:
            raise ConnectionError("no answer")
        return "paid"


@MODES
async def test_the_clock_jumps_over_long_pauses(
    fabric: Fabric, harness: Harness, mode: str
) -> None:
    bank, began = Bank(fabric, harness, mode, "1h"), harness.clock.now()
    assert await harness.run(bank.task) == "paid"
    assert [at - began for at in bank.calls] == [0, 3_600_000, 7_200_000, 10_800_000]


@MODES
async def test_short_pauses_are_left_out(fabric: Fabric, harness: Harness, mode: str) -> None:
    bank, began = Bank(fabric, harness, mode, "4s"), harness.clock.now()
    assert await harness.run(bank.task) == "paid"
    assert bank.calls == [began] * 4


@MODES
async def test_a_test_can_look_between_two_tries(
    fabric: Fabric, harness: Harness, mode: str
) -> None:
    bank = Bank(fabric, harness, mode, "1h")
    run = await bank.task.submit()
    await harness.run_until_idle()
    assert (len(bank.calls), harness.state(run)) == (1, "delayed")
    await harness.advance("59m")
    assert len(bank.calls) == 1
    await harness.advance("1m")
    assert len(bank.calls) == 2
    await harness.run_until_done(run)
    harness.assert_completed(run)
    harness.assert_attempts(run, 1)
    harness.assert_steps(run, ["Bank.charge"])


@MODES
@pytest.mark.parametrize("delay", ["4s", "1h"])
async def test_a_crash_forgets_no_try(
    fabric: Fabric, harness: Harness, mode: str, delay: str
) -> None:
    bank = Bank(fabric, harness, mode, delay)
    run = await bank.task.submit()
    await harness.run_until(unrecorded="charge")  # the fourth try has succeeded
    await harness.crash()
    bank.calls.pop()
    assert await run.result() == "paid"
    assert len(bank.calls) == 4
    harness.assert_attempts(run, 2)
