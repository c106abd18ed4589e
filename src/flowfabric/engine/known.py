"""Which quotas and budgets exist: whoever names one that does not is refused.

What was seen once is taken to be there. One that is deleted later limits nothing, so that nobody
waits for it for ever.
"""

from collections.abc import Iterable

from flowfabric.core.errors import NotFound
from flowfabric.core.policy import Policy
from flowfabric.store.contract import Store
from flowfabric.store.limits import BookAsk

REMEMBERED = 10_000


class Known:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.quotas: set[str] = set()
        self.budgets: set[str] = set()

    async def check(self, policy: Policy) -> None:
        """Raises NotFound for the first quota or budget of a policy that does not exist."""
        await self.check_names([use.quota for use in policy.quotas], policy.budget_ids)

    async def check_names(self, quotas: Iterable[str], budgets: Iterable[str]) -> None:
        new_quotas = [name for name in quotas if name not in self.quotas]
        new_budgets = [name for name in budgets if name not in self.budgets]
        if new_quotas:
            _note(self.quotas, await self._store.quotas(new_quotas))
            _demand("quota", new_quotas, self.quotas)
        if new_budgets:
            found = await self._store.books(BookAsk(budgets=tuple(new_budgets)))
            _note(self.budgets, found.budgets)
            _demand("budget", new_budgets, self.budgets)


def _note(known: set[str], found: Iterable[str]) -> None:
    if len(known) > REMEMBERED:
        known.clear()
    known.update(found)


def _demand(what: str, names: Iterable[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            raise NotFound(what, repr(name))
