"""The code gate: runs that are blocked by code are released to workers with other code.

Runs with the same route for which the same code was tried wait in one queue, so one look at the
first of them decides for all. A process releases runs for its own workers only, which claim them
at once: a process whose code does not fit would release them and claim them first, again and again.
"""

import logging
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.code import (
    ReleasedToCode,
    fitting,
    is_blocked_by_code,
    release_to_code,
)
from flowfabric.core.execution.model import Gate, Snapshot, WorkerIdentity
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.versions import code_key
from flowfabric.engine.commit.decide import Decision
from flowfabric.engine.context import EngineContext, Service
from flowfabric.store.queries import Crowd, InQueue
from flowfabric.store.readable import load_readable

PAGE = 500

log = logging.getLogger("flowfabric.code")


class CodeGate(Service):
    """Shared by workers, by the registry and by the sweep, which looks for blocked runs."""

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        self._workers: dict[WorkerIdentity, Callable[[], Presence]] = {}

    def join(self, worker: WorkerIdentity, presence: Callable[[], Presence]) -> None:
        """Runs are released to this worker of this process from now on."""
        self._workers[worker] = presence

    def leave(self, worker: WorkerIdentity) -> None:
        """The worker claims nothing more."""
        self._workers.pop(worker, None)

    async def release(self) -> None:
        """Releases runs to the workers of this process. The sweep calls it while runs are
        blocked."""
        for presence in list(self._workers.values()):
            await self.release_to(presence())

    async def release_to(self, worker: Presence) -> int:
        """Releases runs that this worker can run with code that was not tried, of each queue no
        more than it has room for; returns how many."""
        try:
            return await self._release_to(replace(worker, seen_at=self._now()))
        except FlowFabricError as error:
            log.warning("releasing runs blocked by code failed; the sweep tries again: %s", error)
            return 0

    async def _release_to(self, worker: Presence) -> int:
        after, count = -1, 0
        while crowds := await self._context.store.crowds(after, PAGE):
            blocked = [crowd for crowd in crowds if crowd.gate is Gate.BLOCKED]
            found = await load_readable(self._context.store.load, [each.first for each in blocked])
            for crowd in blocked:
                if (first := found.get(crowd.first)) is not None:
                    count += await self._release(crowd, first, worker)
            after = crowds[-1].queue
            if len(crowds) < PAGE:
                break
        return count

    async def _release(self, crowd: Crowd, first: Snapshot, worker: Presence) -> int:
        if not is_blocked_by_code(first) or not fitting(first, [worker], self._now()):
            return 0
        fingerprint = worker.code[code_key(first.execution.route)]
        room = min(PAGE, max(1, worker.concurrency - worker.running))
        uuids = await self._context.store.executions_in(InQueue(crowd.queue), room)
        answers = await self._context.decisions.decide_all(
            [Decision(uuid, partial(_release, fingerprint=fingerprint)) for uuid in uuids]
        )
        count = sum(isinstance(answer, ReleasedToCode) for answer in answers)
        if count:
            kind = first.execution.kind
            log.info("%d runs of %s blocked by code released to %s", count, kind, worker.worker)
        return count


def _release(
    found: Snapshot | None, now: Millis, *, fingerprint: str
) -> Change[ReleasedToCode | None]:
    return release_to_code(found, now, fingerprint)
