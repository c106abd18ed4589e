"""When the slot of a run is free again: at the commit of its end, unless something is left."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from uuid import UUID

from flowfabric.engine.commit.post_commit import Commit
from flowfabric.worker.run.active import ActiveRun
from flowfabric.worker.run.hooks import WorkerHooks
from flowfabric.worker.run.probation import is_suspect
from flowfabric.worker.run.slots import Slots


class SlotReturns:
    """Gives the slots of a worker back, each once. `newest` has the runs of the worker; `freed` is
    set when there is a free slot."""

    def __init__(
        self,
        newest: Mapping[UUID, ActiveRun],
        hooks: WorkerHooks,
        slots: Slots,
        freed: asyncio.Event,
    ) -> None:
        self._newest = newest
        self._hooks = hooks
        self._slots = slots
        self._freed = freed

    def committed(self, commit: Commit) -> None:
        """Frees the slots of runs whose ends are durable before their tasks have noticed: the claim
        that fills them is on its way while other handlers run."""
        for uuid in commit.unleased:
            active = self._newest.get(uuid)
            if active is not None and active.reporting and self.is_over(active):
                self.free(active)

    def free(self, active: ActiveRun) -> None:
        if active.has_slot:
            active.has_slot = False
            self._slots.give(active.claim.kind)
            self._freed.set()

    def pass_on(self, active: ActiveRun, next: str) -> None:
        """As `free`, where a run of the `next` kind takes the slot at once. Another run of a task
        with a limit of its own may still begin then, in another slot."""
        kind, active.has_slot = active.claim.kind, False
        self._slots.give(kind)
        if next != kind and self._slots.limits(kind):
            self._freed.set()

    def free_after_thread(self, active: ActiveRun) -> None:
        """The slot stays taken until the thread of a plain function has ended."""
        loop = asyncio.get_running_loop()
        if active.thread is not None:
            active.thread.add_done_callback(lambda _: self._free_from_thread(loop, active))

    def _free_from_thread(self, loop: asyncio.AbstractEventLoop, active: ActiveRun) -> None:
        with suppress(RuntimeError):  # the loop is closed: the slot is not needed
            loop.call_soon_threadsafe(self.free, active)

    def is_over(self, active: ActiveRun) -> bool:
        """Whether nothing is left to do for a run whose end is durable."""
        busy = active.lingers or self._hooks.has_listeners(active.handler)
        return not busy and not is_suspect(active.claim)
