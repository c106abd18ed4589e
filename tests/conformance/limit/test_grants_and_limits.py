"""Grants, closed lanes and spent budgets."""

import pytest

from flowfabric.core.base.errors import NotEligible
from flowfabric.core.limit.budget import Budget, Limit
from tests.kit.lab import W1, Lab

TEAM = {"budget_ids": ["team"]}


async def spend_all(lab: Lab) -> None:
    await lab.engine.budgets.define(Budget(name="team", limits={"calls": Limit(hard=1)}))
    await lab.engine.budgets.spend("team", {"calls": 1})


@pytest.mark.parametrize("how", ["pause", "drain"])
async def test_a_search_passes_over_a_closed_lane_and_a_named_run_does_not(
    lab: Lab, how: str
) -> None:
    """C-T99: who names a run has decided about it."""
    id = await lab.submit()
    await getattr(lab.engine.lanes, how)("default")
    assert await lab.engine.grants.find_and_issue("w1", lane="default") is None
    await lab.engine.grants.issue(id, "w1")
    assert (await lab.engine.grants.claim(id, W1)).id == id


async def test_a_search_passes_over_spent_budgets(lab: Lab) -> None:
    """C-T105: the row stays as it is, and what is behind it is found."""
    await spend_all(lab)
    poor = await lab.submit(policy=TEAM)
    before = await lab.vector(poor)
    assert await lab.engine.grants.find_and_issue("w1", lane="default") is None
    rich = await lab.submit()
    found = await lab.engine.grants.find_and_issue("w1", lane="default")
    assert found is not None
    assert found.id == rich
    assert await lab.vector(poor) == before


async def test_a_named_run_is_asked_for_its_budgets_when_it_is_redeemed(lab: Lab) -> None:
    """C-T105: the grant is gone and the run waits for its budget; an operator takes it all the
    same."""
    await spend_all(lab)
    id = await lab.submit(policy=TEAM)
    await lab.engine.grants.issue(id, "w1")
    with pytest.raises(NotEligible, match="budget"):
        await lab.engine.grants.claim(id, W1)
    assert (await lab.engine.explain(id)).main.code == "budget_exhausted"
    await lab.engine.budgets.reset("team")
    await lab.engine._limits.drain()
    await lab.engine.budgets.spend("team", {"calls": 1})
    assert (await lab.engine.grants.take(id)).id == id
