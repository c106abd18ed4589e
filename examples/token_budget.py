"""Five calls of a language model that share a budget of tokens with a hard limit.

A call cannot know its cost in advance, so it first reserves an estimate, which no other call can
spend. Afterwards it settles what it used, and the rest is free again. Calls that do not fit are
refused before they cost anything.

    python examples/token_budget.py
"""

import asyncio
import tempfile
from pathlib import Path

from flowfabric import BudgetExceeded, Context, Fabric

store = Path(tempfile.mkdtemp()) / "tokens.db"
fabric = Fabric(f"sqlite:///{store}")

QUESTIONS = ["Why?", "How?", "When?", "Where?", "Who?"]
ESTIMATE = 3_000


class Model:
    """Stands for a language model with concurrent callers: it answers when every caller has asked
    or was refused."""

    def __init__(self, callers: int) -> None:
        self.barrier = asyncio.Barrier(callers)
        self.tokens = 0

    async def answer(self, question: str) -> int:
        await self.barrier.wait()
        self.tokens += 2_400
        return 2_400


model = Model(len(QUESTIONS))


# -- our task


@fabric.task(budgets=["team"])
async def ask(ctx: Context, question: str, estimate: int = ESTIMATE) -> str:
    try:
        async with ctx.reserve(tokens=estimate) as reserved:
            used = await ctx.step(model.answer, question)
            reserved.settle(tokens=used)
    except BudgetExceeded as error:
        await model.barrier.wait()
        return f"refused, {error.detail}"
    return f"answered for {used} tokens"


async def report() -> None:
    budget = await fabric.budget_status("team")
    used, reserved = budget.used["tokens"], budget.reserved.get("tokens", 0)
    print(f"  {used} of {budget.hard('tokens')} tokens are used, {reserved} reserved")
    print(f"  the model has counted {model.tokens}")


# -- everything together


async def main() -> None:
    async with fabric:
        await fabric.budget("team", tokens=10_000)
        worker = await fabric.worker()
        working = asyncio.create_task(worker.run())

        print("five at once:")
        runs = await ask.submit_many(QUESTIONS)
        for line in sorted([await run.result() for run in runs]):
            print(f"  {line}")
        await report()

        print("two more, one after the other:")
        model.barrier = asyncio.Barrier(1)
        for estimate in (2_500, 1_000):
            run = await ask.submit("What?", estimate)
            print(f"  {await run.result()}")
        await report()

        print("the rest is spent elsewhere, and nothing starts any more:")
        await fabric.spend("team", tokens=400)
        run = await ask.submit("And now?")
        async for event in run.follow():
            if event.kind.name == "TURNED_AWAY":
                print(f"  {(await run.describe()).blocking_detail}")
                break
        await fabric.budget("team", tokens=20_000)
        print(f"  with a higher limit: {await run.result()}")

        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
