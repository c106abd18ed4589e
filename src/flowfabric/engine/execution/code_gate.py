"""The code gate: runs that are blocked by code are released when workers with other code are alive.

Runs with the same route for which the same code was tried wait in one queue, so one look at the
first of them decides for all.
"""

import logging
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.code import fitting, is_blocked_by_code, release_to_code
from flowfabric.core.execution.model import Gate, Snapshot
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.versions import code_key
from flowfabric.engine.commit.decide import Decision
from flowfabric.engine.context import Service
from flowfabric.engine.limit.unclaimable import live_workers
from flowfabric.store.queries import Crowd, InQueue
from flowfabric.store.readable import load_readable

PAGE = 500

log = logging.getLogger("flowfabric.code")


class CodeGate(Service):
    """Shared by the sweep and by workers that run until nothing is left."""

    async def release_to(self, worker: Presence) -> int:
        """Releases every run that this worker can run with code that was not tried; returns how
        many. For a worker that need not be in the registry."""
        after, count, here = -1, 0, replace(worker, seen_at=self._now())
        while crowds := await self._context.store.crowds(after, PAGE):
            blocked = [crowd for crowd in crowds if crowd.gate is Gate.BLOCKED]
            found = await load_readable(self._context.store.load, [each.first for each in blocked])
            for crowd in blocked:
                if (first := found.get(crowd.first)) is not None:
                    count += await self._release(crowd, first, [here], PAGE)
            after = crowds[-1].queue
            if len(crowds) < PAGE:
                break
        return count

    async def look_at(self, crowds: Sequence[tuple[Crowd, Snapshot]]) -> None:
        """Releases runs of these queues to live workers, no more of a queue than the workers have
        room for: the workers whose code did not fit would claim the rest."""
        blocked = [pair for pair in crowds if is_blocked_by_code(pair[1])]
        if not blocked:
            return
        now = self._now()
        workers = await live_workers(self._context.store, now)
        for crowd, first in blocked:
            room = sum(
                max(0, each.concurrency - each.running) for each in fitting(first, workers, now)
            )
            try:
                await self._release(crowd, first, workers, min(PAGE, max(1, room)))
            except FlowFabricError as error:
                log.warning(
                    "releasing runs of %s that are blocked by code failed; the next sweep tries "
                    "again: %s",
                    first.execution.kind,
                    error,
                )

    async def _release(
        self, crowd: Crowd, first: Snapshot, workers: Sequence[Presence], limit: int
    ) -> int:
        kind, key = first.execution.kind, code_key(first.execution.route)
        able = fitting(first, workers, self._now())
        if not able:
            return 0
        rule = partial(_release, fingerprints=frozenset(each.code[key] for each in able))
        uuids = await self._context.store.executions_in(InQueue(crowd.queue), limit)
        answers = await self._context.decisions.decide_all([Decision(each, rule) for each in uuids])
        count = sum(answer is True for answer in answers)
        if count:
            log.info(
                "%d runs of %s that were blocked by code are released to worker %s",
                count,
                kind,
                able[0].worker,
            )
        return count


def _release(found: Snapshot | None, now: Millis, *, fingerprints: frozenset[str]) -> Change[bool]:
    return release_to_code(found, now, fingerprints)
