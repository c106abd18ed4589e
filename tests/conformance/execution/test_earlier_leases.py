"""Reservations of leases that are gone, before the sweep has seen that they are."""

import pytest

from flowfabric.core.limit.budget import Budget, Limit
from flowfabric.core.limit.spend import BudgetLedger, HardBreach, Reserved, Spent
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.queries import LedgerNeeds
from tests.kit.lab import W2, Lab

BUDGETED = {"budget_ids": ["team"]}


async def taken_over(lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Claim:
    """An execution whose first worker has set everything aside and is gone; another process has
    found that out and nobody has given anything back."""
    await lab.engine.budgets.create(Budget(name="team", limits={"tokens": Limit(hard=10)}))
    first = await lab.running(policy=BUDGETED)
    assert isinstance(await lab.engine.budgets.reserve(first, {"tokens": 10}), Reserved)

    honest = second_lab.engine.store.ledger

    async def none_stale(needs: LedgerNeeds) -> BudgetLedger:
        return BudgetLedger() if needs.stale else await honest(needs)

    monkeypatch.setattr(second_lab.engine.store, "ledger", none_stale)
    await second_lab.lose(first)
    again = await second_lab.claim_one(W2)
    assert (await lab.engine.budgets.get("team")).reserved == {"tokens": 10}
    return again


async def test_a_takeover_is_not_refused_for_what_the_dead_worker_set_aside(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-42: reserving and spending see what is left without it; it is given back once."""
    budgets = second_lab.engine.budgets
    again = await taken_over(lab, second_lab, monkeypatch)
    assert isinstance(await budgets.reserve(again, {"tokens": 8}), Reserved)
    assert (await budgets.get("team")).reserved == {"tokens": 8}
    assert isinstance(await budgets.reserve(again, {"tokens": 3}), HardBreach)
    assert await budgets.report(again, {"tokens": 2}) == Spent()
    monkeypatch.undo()
    await second_lab.engine.sweep.once()
    found = await budgets.get("team")
    assert (found.used, found.reserved) == ({"tokens": 2}, {"tokens": 8})


async def test_spending_after_a_takeover(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-42: the same for spending; the dead one's own late report changes nothing of it."""
    again = await taken_over(lab, second_lab, monkeypatch)
    assert await second_lab.engine.budgets.report(again, {"tokens": 10}) == Spent()
    found = await second_lab.engine.budgets.get("team")
    assert (found.used, found.reserved) == ({"tokens": 10}, {})
