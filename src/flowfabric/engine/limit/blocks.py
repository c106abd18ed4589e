"""Blocks that end by themselves: the sweep asks now and then whether their cause is gone."""

import logging
from collections.abc import Sequence
from functools import partial
from uuid import UUID

from flowfabric.core.base.errors import Contention, FlowFabricError, NotFound
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import operator
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.status import Blocking
from flowfabric.core.limit.block import cause_of, is_gone
from flowfabric.core.limit.budget import spent
from flowfabric.engine.commit.decide import Decision
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.limit.budget_gate import BudgetGate
from flowfabric.engine.limit.unclaimable import live_workers
from flowfabric.store.readable import load_readable

log = logging.getLogger("flowfabric.limits")


class Blocks(Service):
    def __init__(self, context: EngineContext, budget_gate: BudgetGate) -> None:
        super().__init__(context)
        self._budget_gate = budget_gate

    async def look(self, uuids: Sequence[UUID]) -> None:
        """Unblocks those of these runs whose cause is gone. Another block that was set meanwhile
        stays."""
        found = await load_readable(self._context.store.load, uuids)
        causes = [(each, cause) for each in found.values() if (cause := cause_of(each))]
        workers: list[Presence] | None = []
        if any(cause is Blocking.CAPABLE_WORKER for _, cause in causes):
            workers = await self._workers()
        decisions = [
            Decision(each.execution.uuid, partial(_unblock, cause=cause))
            for each, cause in causes
            if await self._is_gone(each, cause, workers)
        ]
        answers = await self._context.decisions.decide_all(decisions)
        for decision, answer in zip(decisions, answers, strict=True):
            if isinstance(answer, Exception) and not isinstance(answer, Contention | NotFound):
                log.warning(
                    "unblocking run %s failed; the sweep tries again: %s", decision.uuid, answer
                )

    async def _workers(self) -> list[Presence] | None:
        try:
            return await live_workers(self._context.store, self._now())
        except FlowFabricError as error:
            log.warning("workers cannot be read; runs that wait for one may go: %s", error)
            return None

    async def _is_gone(
        self, snapshot: Snapshot, cause: Blocking, workers: list[Presence] | None
    ) -> bool:
        why = None
        if cause is Blocking.BUDGET:
            known = self._budget_gate.known
            try:
                names = await known.names_of(snapshot.execution)
                why = spent(await known.budgets(names), names) if names else None
            except FlowFabricError as error:
                log.warning(
                    "run %s stays blocked, since a budget of it cannot be read: %s",
                    snapshot.execution.uuid,
                    error,
                )
                return False
        return is_gone(snapshot, self._now(), spent=why, workers=workers)


def _unblock(found: Snapshot | None, now: Millis, *, cause: Blocking) -> Change[operator.Unblocked]:
    return operator.unblock(found, now, cause)
