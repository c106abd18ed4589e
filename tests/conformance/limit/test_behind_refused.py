"""Work behind such that its budget refuses is found at once."""

import pytest

from flowfabric.core.execution.status import PublicState
from flowfabric.core.limit.budget import Budget, Limit
from flowfabric.store.hints import Topics
from tests.kit.lab import W1, Lab

BUDGETED = {"budget_ids": ["team"]}


@pytest.fixture
async def spent(lab: Lab) -> Lab:
    """A lab with a budget that is spent, and seven who want some of it."""
    await lab.engine.budgets.create(Budget(name="team", limits={"tokens": Limit(hard=1)}))
    await lab.engine.budgets.spend("team", {"tokens": 1})
    for _ in range(7):
        await lab.submit("refused", policy=BUDGETED)
    return lab


async def test_a_claim_goes_past_those_their_budget_refuses(spent: Lab) -> None:
    """C-T85: a claim of one finds the first that may run, however many are refused before it."""
    free = await spent.submit("free")
    assert (await spent.claim_one()).id == free
    assert not await spent.claim()


@pytest.mark.inside
async def test_no_run_waits_for_a_poll_behind_them(
    spent: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T85: one who waits for work does not pause while there may be some behind the refused."""
    monkeypatch.setattr("flowfabric.engine.execution.claim_calls.MAX_REFUSED", 2)
    store, pauses = spent.engine.store, list[bool]()
    wait = store.hints.wait

    async def paused(timeout: float, since: int, topics: Topics) -> bool:
        pauses.append(since == store.hints.count)
        return await wait(timeout, since, topics)

    monkeypatch.setattr(store.hints, "wait", paused)
    free = await spent.submit("free")
    (claim,) = await spent.engine.claims.claim(W1, max_wait=30)
    assert claim.id == free
    assert pauses
    assert not any(pauses)
    assert await spent.state(free) is PublicState.ACTIVE
