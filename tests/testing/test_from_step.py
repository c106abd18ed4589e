"""Forks, replays from a step and changed histories, in the harness."""

from typing import Any

import pytest

from flowfabric import Context, Fabric, NotFound, PublicState, RunFailed
from flowfabric.testing import Harness


class Shop:
    """An order of three steps and a wait; some steps may be broken."""

    def __init__(self, fabric: Fabric) -> None:
        self.ran: list[str] = []
        self.broken: set[str] = set()

        @fabric.task()
        async def order(ctx: Context, number: int) -> list[Any]:
            reserved = await ctx.step(self.reserve, number)
            charged = await ctx.step(self.charge, number)
            await ctx.sleep("1d")
            paid = await ctx.wait_for_signal("paid", timeout="2d")
            return [reserved, charged, paid]

        self.order = order

    async def reserve(self, number: int) -> str:
        return self._act("reserve", number)

    async def charge(self, number: int) -> str:
        return self._act("charge", number)

    def _act(self, name: str, number: int) -> str:
        self.ran.append(name)
        if name in self.broken:
            raise ValueError(name)
        return f"{name} {number}"


@pytest.fixture
def shop(fabric: Fabric) -> Shop:
    return Shop(fabric)


async def test_a_fork_runs_from_the_chosen_step(
    fabric: Fabric, harness: Harness, shop: Shop
) -> None:
    run = await shop.order.submit(1)
    await harness.run_until(waits_for="paid")
    fork = await run.fork(from_step="charge", arguments={"number": 2})
    at_the_wait = await run.fork(from_step="signal:paid")
    for each, value in ((run, "a"), (fork, "b"), (at_the_wait, "c")):
        await fabric.signal(each, "paid", value)
    assert await run.result() == ["reserve 1", "charge 1", "a"]
    assert await fork.result() == ["reserve 1", "charge 2", "b"]
    assert await at_the_wait.result() == ["reserve 1", "charge 1", "c"]
    assert shop.ran == ["reserve", "charge", "charge"]


async def test_a_replay_keeps_the_steps_before_the_chosen_one(
    fabric: Fabric, harness: Harness, shop: Shop
) -> None:
    shop.broken = {"charge"}
    run = await shop.order.submit(1)
    with pytest.raises(RunFailed):
        await run.result()
    with pytest.raises(NotFound, match=r"no step 'ship' among the recorded ones \(.*reserve\)"):
        await run.replay(from_step="ship")
    shop.broken = set()
    await run.replay(from_step="charge")
    await harness.run_until(waits_for="paid")
    await fabric.signal(run, "paid", "late")
    assert await run.result() == ["reserve 1", "charge 1", "late"]
    assert shop.ran == ["reserve", "charge", "charge"]


async def test_an_operator_supplies_the_result_of_a_step(
    fabric: Fabric, harness: Harness, shop: Shop
) -> None:
    shop.broken = {"charge"}
    run = await shop.order.submit(1)
    with pytest.raises(RunFailed):
        await run.result()
    engine = await fabric.engine()
    await engine.steps.skip(run.id, "charge", b'"by hand"', by="ada", reason="paid in cash")
    await run.replay()
    await harness.run_until(waits_for="paid")
    assert harness.state(run) is PublicState.SUSPENDED
    await fabric.signal(run, "paid", "yes")
    assert await run.result() == ["reserve 1", "by hand", "yes"]
    assert shop.ran == ["reserve", "charge"]
