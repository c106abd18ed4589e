"""Starts that rates have counted, of runs that went back before they began."""

import asyncio
import logging
from collections.abc import Iterable

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.limit.release import starts_back
from flowfabric.engine.context import EngineContext, Service
from flowfabric.store.rows.record import QUOTAS

log = logging.getLogger("flowfabric.limits")


class UnbegunStarts(Service):
    """Noted by the commit that takes a run back, and taken out of the windows before the next look
    at a quota."""

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        self._noted: list[Snapshot] = []
        self._taking_back = asyncio.Lock()

    def note(self, snapshots: Iterable[Snapshot]) -> None:
        """These executions, as they were before, did not begin."""
        self._noted += [snapshot for snapshot in snapshots if snapshot.execution.uses]

    async def take_back(self) -> None:
        """No rate counts any more what was noted before this call."""
        async with self._taking_back:
            noted, self._noted = self._noted, []
            if not noted:
                return
            names = {use.quota for snapshot in noted for use in snapshot.execution.uses}
            store = self._context.store
            try:
                quotas = await store.records.get(QUOTAS, list(names))
                starts = [(each.execution.uses, each.admitted_at) for each in noted]
                if back := starts_back(starts, quotas, self._now()):
                    await store.take_starts_back(back)
            except FlowFabricError as error:
                log.warning(
                    "%s starts stay counted until their window is over: %s", len(noted), error
                )
