"""An agent that asks a person before it continues: "continue for 5 more?"

The agent may exceed the soft limit of its budget, but not silently: the run waits for an approval,
without a worker. A yes raises the limit; a no ends the run.

    python examples/soft_limit.py
"""

import asyncio
import tempfile
from pathlib import Path

from flowfabric import BudgetExceeded, Context, Fabric, Run

store = Path(tempfile.mkdtemp()) / "agent.db"
fabric = Fabric(f"sqlite:///{store}")


async def think(n: int) -> str:
    """Stands for a call of a language model."""
    return f"thought {n}"


@fabric.task(budgets=["agent"])
async def agent(ctx: Context) -> str:
    thoughts: list[str] = []
    try:
        while True:
            await ctx.spend(calls=1)
            thoughts.append(await ctx.step(think, len(thoughts) + 1))
    except BudgetExceeded as error:
        return f"stopped after {thoughts[-1]}: {error.detail}"


async def answer(run: Run[str], *, yes: bool) -> None:
    """What the approver sees and answers."""
    async for event in run.follow():
        if event.kind.name == "SUSPENDED" and (asked := await fabric.waitpoints(run)):
            break
    budget = await fabric.budget_status("agent")
    more = budget.limits["calls"].more
    print(f"{budget.used['calls']} of {budget.soft('calls')} calls: continue for {more} more?")
    print("  ada says", "yes" if yes else "no")
    decide = fabric.approve if yes else fabric.reject
    await decide(f"{run.id}/{asked[0].id}", approver="ada")


async def main() -> None:
    async with fabric:
        await fabric.budget("agent", soft={"calls": 5}, more={"calls": 5}, on_soft="approve")
        worker = await fabric.worker()
        working = asyncio.create_task(worker.run())
        run = await agent.submit()
        await answer(run, yes=True)
        await answer(run, yes=False)
        print(await run.result())
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
