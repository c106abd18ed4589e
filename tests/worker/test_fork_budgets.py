"""Runs that go back to a step inside a block with a reserved budget."""

import pytest

from flowfabric import Context, RunFailed
from tests.worker.bench import Bench


@pytest.mark.parametrize("way", ["fork", "replay"])
async def test_what_is_done_again_in_a_reserved_block_is_counted_again(
    bench: Bench, way: str
) -> None:
    """The block was settled after the chosen step, though it begins before it."""
    await bench.fabric.budget("team", tokens=100)
    ran: list[str] = []

    @bench.fabric.step(name="act")
    async def act(word: str) -> None:
        ran.append(word)

    async def branch(ctx: Context, word: str) -> None:
        await ctx.step(act, word)

    @bench.fabric.task(budgets=["team"])
    async def job(ctx: Context) -> None:
        async with ctx.reserve(tokens=50) as reserved:
            await ctx.step(act, "first")
            await ctx.gather(branch(ctx, "inside"))
            reserved.settle(tokens=10)
        await ctx.gather(branch(ctx, "after"))

    run = await job.submit()
    await bench.work_through(run)
    for chosen, again, used in (
        ("act", 3, 20),
        ("0/act", 2, 30),
        ("1/act", 1, 30),
        ("reserve", 3, 40),
    ):
        ran.clear()
        if way == "fork":
            await bench.work_through(await run.fork(chosen))
        else:
            await run.replay(chosen)
            await bench.work_through(run)
        budget = await bench.fabric.budget_status("team")
        assert (chosen, len(ran), budget.used["tokens"]) == (chosen, again, used)
        assert budget.reserved.get("tokens", 0) == 0


@pytest.mark.parametrize("chosen", ["act", "charge"])
async def test_a_fork_does_not_ask_again_what_was_approved_for_a_block(
    bench: Bench, chosen: str
) -> None:
    await bench.fabric.budget("team", tokens=5, on_hard="suspend")

    broken = [True]

    async def act() -> None: ...

    async def charge() -> None:
        if broken:
            raise ValueError("charge")

    @bench.fabric.task(budgets=["team"])
    async def job(ctx: Context) -> None:
        async with ctx.reserve(tokens=10):
            await ctx.step(act)
            await ctx.step(charge)

    run = await job.submit()
    await bench.work()
    await bench.fabric.budget("team", tokens=100, on_hard="suspend")
    (asked,) = await bench.fabric.waitpoints(run)
    await bench.fabric.approve(f"{run.id}/{asked.id}", approver="ada")
    await bench.work()
    with pytest.raises(RunFailed):
        await run.result(60)
    broken.clear()
    fork = await run.fork(chosen)
    await bench.work_through(fork)
    await fork.result(60)
