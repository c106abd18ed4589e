"""Which budgets apply to an execution, and their current state."""

import asyncio
from collections.abc import Iterable, Mapping
from uuid import UUID

from flowfabric.core.execution.model import Execution, Snapshot
from flowfabric.core.limit.budget import Budget, Scope, chain, current
from flowfabric.engine.context import EngineContext, Service
from flowfabric.store.queries import LedgerNeeds

REFRESH = 1.0
"""Seconds until a budget of a namespace, flow or run made by another process is seen."""


class KnownBudgets(Service):
    """`attached` are the budgets that apply without being named, by scope and its id."""

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        self.attached: dict[tuple[str, str], list[str]] = {}
        self._refreshed_at: float | None = None
        self._refreshing = asyncio.Lock()

    async def names_of(self, execution: Execution) -> tuple[str, ...]:
        """Every budget that applies to an execution."""
        await self.refresh()
        return self.named(execution)

    def named(self, execution: Execution) -> tuple[str, ...]:
        """The same, as of the last refresh."""
        names = dict.fromkeys(execution.rules.budget_ids)
        for scope in _scopes(execution):
            names.update(dict.fromkeys(self.attached.get(scope, ())))
        return tuple(names)

    def forget_attached(self) -> None:
        """Forgets which budgets apply without being named, so that the next call reads them
        again."""
        self._refreshed_at = None

    async def budgets(self, names: tuple[str, ...]) -> dict[str, Budget]:
        """The budgets of these names and all their parents, in their current state."""
        found = (await self._context.store.ledger(LedgerNeeds(budgets=names))).budgets
        now = self._now()
        return {name: current(budget, now) for name, budget in found.items()}

    async def not_limited_by(self, name: str, snapshots: Iterable[Snapshot]) -> list[UUID]:
        """Those of these executions to which neither a budget nor one of its children applies."""
        await self.refresh()
        named = {each.execution.uuid: self.named(each.execution) for each in snapshots}
        wanted = tuple(dict.fromkeys(each for names in named.values() for each in names))
        known = await self.budgets(wanted) if wanted else {}
        return [uuid for uuid, names in named.items() if not _is_part_of(known, names, name)]

    @property
    def unnamed(self) -> bool:
        """Whether a budget may apply to executions that do not name it, or is not known yet."""
        now, at = asyncio.get_running_loop().time(), self._refreshed_at
        stale = at is None or now - at >= REFRESH
        return stale or bool(self.attached) or self._refreshing.locked()

    async def refresh(self) -> None:
        """Callers wait for the refresh: an unknown budget would admit everything."""
        async with self._refreshing:
            now = asyncio.get_running_loop().time()
            if self._refreshed_at is not None and now - self._refreshed_at < REFRESH:
                return
            self._refreshed_at = now
            try:
                attached = await self._context.store.attached()
            except BaseException:
                self._refreshed_at = None
                raise
            self.attached = {}
            for scope, id, name in attached:
                self.attached.setdefault((scope, id), []).append(name)


def _is_part_of(known: Mapping[str, Budget], names: Iterable[str], whole: str) -> bool:
    """Whether one of these budgets is, or is part of, the whole."""
    found = chain(known, [each for each in names if each in known])
    return any(budget.name == whole for budget in found)


def _scopes(execution: Execution) -> list[tuple[str, str]]:
    found = [(Scope.NAMESPACE, execution.route.namespace), (Scope.RUN, str(execution.id))]
    if execution.flow is not None:
        found.append((Scope.FLOW, str(execution.flow)))
    return [(str(scope), id) for scope, id in found]
