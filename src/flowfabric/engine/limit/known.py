"""Which quotas and budgets exist: a run that names one that does not is refused.

A limit that was seen once is assumed to exist. One that is deleted later limits nothing, so that no
run waits for it forever.
"""

from collections.abc import Iterable
from operator import attrgetter

from flowfabric.core.base.errors import NotFound
from flowfabric.core.execution.policy import Policy
from flowfabric.core.limit.quota import OF_TASK
from flowfabric.store.contract import Store
from flowfabric.store.queries import LedgerNeeds
from flowfabric.store.rows.record import QUOTAS

REMEMBERED = 10_000
_QUOTA = attrgetter("quota")


class KnownLimits:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.quotas: set[str] = set()
        self.budgets: set[str] = set()

    def known(self, policy: Policy) -> bool:
        """Whether all quotas and budgets of a policy are known to exist."""
        quotas, budgets = policy.quotas, policy.budget_ids
        if len(quotas) == 1 and not budgets:  # most runs with limits
            return quotas[0].quota in self.quotas
        return self.quotas.issuperset(map(_QUOTA, quotas)) and self.budgets.issuperset(budgets)

    async def check(self, policy: Policy, *, declared: bool = True) -> None:
        """Raises NotFound for the first quota or budget of a policy that does not exist. Without
        `declared` quotas that tasks declare for themselves need not exist yet."""
        if self.known(policy):
            return
        new_budgets = [name for name in policy.budget_ids if name not in self.budgets]
        new_quotas = [
            use.quota
            for use in policy.quotas
            if use.quota not in self.quotas and (declared or not use.quota.startswith(OF_TASK))
        ]
        if new_quotas:
            _note(self.quotas, await self._store.records.get(QUOTAS, new_quotas))
            _demand("quota", new_quotas, self.quotas)
        if new_budgets:
            found = await self._store.ledger(LedgerNeeds(budgets=tuple(new_budgets)))
            _note(self.budgets, found.budgets)
            _demand("budget", new_budgets, self.budgets)


def _note(known: set[str], found: Iterable[str]) -> None:
    if len(known) > REMEMBERED:
        known.clear()
    known.update(found)


def _demand(what: str, names: Iterable[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            raise NotFound(what, name)
