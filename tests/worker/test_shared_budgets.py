"""Budgets shared by a tree of runs: children, sub-flows and the nodes of a flow."""

from flowfabric import Context
from tests.worker.bench import Bench
from tests.worker.flows import work


async def test_what_a_run_starts_spends_of_its_budgets(bench: Bench) -> None:
    """I-25: each once, and of its own as well"""
    fabric = bench.fabric

    @fabric.task()
    async def leaf(ctx: Context, n: int) -> int:
        await ctx.spend(tokens=n)
        return n

    @fabric.task(budgets=["team"])
    async def root(ctx: Context) -> int:
        await ctx.submit(leaf, 5)
        await ctx.submit(leaf.with_options(budgets=["own", "team"]), 7)
        return sum(await ctx.map(leaf, [1, 2, 3]))

    for name in ("team", "own"):
        await fabric.budget(name, tokens=100)
    run = await root.submit()
    await work(bench)
    assert await run.result(60) == 6
    assert (await fabric.budget_status("team")).used == {"tokens": 18}
    assert (await fabric.budget_status("own")).used == {"tokens": 7}


async def test_the_nodes_of_a_flow_spend_of_its_budgets(bench: Bench) -> None:
    """F-07: attached when the flow is declared"""
    fabric = bench.fabric

    @fabric.task()
    async def leaf(ctx: Context, n: int) -> int:
        await ctx.spend(tokens=n)
        return n

    await fabric.budget("nightly", tokens=10)
    async with fabric.flow("nightly", budgets=["nightly"]) as flow:
        first = flow.add(leaf, 4)
        flow.add(leaf, 6, after=first, name="second")
    await work(bench)
    assert await flow.result(60) == 6
    assert (await fabric.budget_status("nightly")).used == {"tokens": 10}
