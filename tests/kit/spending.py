"""Short words for tests of budgets: a budget of tokens, what was spent of it, who may start."""

from typing import Any

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.limit.budget import Budget, Limit
from flowfabric.core.limit.spend import Created
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import Lab

TEAM = {"budget_ids": ["team"]}


def tokens(hard: int | None = 10, soft: int | None = None, **members: Any) -> Budget:
    """A budget of tokens called team, unless it says otherwise."""
    given = {"name": "team", "limits": {"tokens": Limit(hard=hard, soft=soft)}, **members}
    return Budget(**given)


async def make(lab: Lab, hard: int | None = 10, soft: int | None = None, **members: Any) -> None:
    budget = tokens(hard, soft, **members)
    assert await lab.engine.budgets.create(budget) == Created(budget.name)


async def spend(lab: Lab, number: int, budget: str = "team", **options: Any) -> Any:
    return await lab.engine.budgets.spend(budget, {"tokens": number}, **options)


async def report(lab: Lab, claim: Any, number: int, **options: Any) -> Any:
    return await lab.engine.budgets.report(claim, {"tokens": number}, **options)


async def used(lab: Lab, *names: str) -> list[int]:
    """How many tokens were spent of each."""
    return [(await lab.engine.budgets.get(name)).used.get("tokens", 0) for name in names]


async def reserved(lab: Lab, *names: str) -> list[int]:
    return [(await lab.engine.budgets.get(name)).reserved.get("tokens", 0) for name in names]


async def settled(lab: Lab) -> None:
    """What the engine does by itself after its commits is done."""
    await lab.engine.claims.drain()
    await lab.engine._limits.drain()


async def claimed(lab: Lab, limit: int = 10) -> list[Claim]:
    await settled(lab)
    claims = await lab.claim(limit=limit)
    await settled(lab)
    return claims


async def spent_out(lab: Lab, **members: Any) -> ExecutionId:
    """A run that was turned away, for its budget (of 10 tokens) is spent."""
    await make(lab, **members)
    await spend(lab, 10)
    id = await lab.submit(policy=TEAM)
    assert await claimed(lab) == []
    return id
