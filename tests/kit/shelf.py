"""Ledgers between two batches, kept as a store would keep them."""

from msgspec.structs import replace

from flowfabric.core.limit.budget import Budget
from flowfabric.core.limit.spend import BudgetLedger


class Shelf:
    """What a store keeps between batches, checked as a store would."""

    def __init__(self, books: BudgetLedger) -> None:
        self.kept = books

    def commit(self, books: BudgetLedger) -> BudgetLedger:
        kept = self.kept
        for name, version in books.changed.items():
            assert (kept.budgets[name].version if name in kept.budgets else 0) == version
            kept.budgets[name] = replace(books.budgets[name], version=version + 1)
        for key, ledger in books.new_ledgers.items():
            kept.ledgers.pop(key, None)
            if ledger is not None:
                kept.ledgers[key] = ledger
        kept.charges.update(books.new_charges)
        for id, reservation in books.new_reservations.items():
            assert reservation is not None or id in kept.reservations, "gone already"
            kept.reservations.pop(id, None)
            if reservation is not None:
                kept.reservations[id] = reservation
        return self.read()

    def read(self) -> BudgetLedger:
        kept = self.kept
        return BudgetLedger(
            dict(kept.budgets), dict(kept.ledgers), dict(kept.charges), dict(kept.reservations)
        )


def ledger_of(*budgets: Budget) -> BudgetLedger:
    return BudgetLedger(budgets={budget.name: budget for budget in budgets})


def used(ledger: BudgetLedger) -> dict[str, dict[str, int]]:
    return {name: budget.used for name, budget in ledger.budgets.items()}
