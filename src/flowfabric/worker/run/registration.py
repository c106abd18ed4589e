"""Keeps a worker in the registry: registers, says that it is there, signs off."""

import asyncio
import logging
from collections.abc import Callable

from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError, Invalid
from flowfabric.core.execution.registry import NotRegistered, Presence
from flowfabric.engine.engine import Engine

log = logging.getLogger("flowfabric.worker")


class PresenceKeeper:
    """The registry is advisory: trouble with it never stops the work."""

    def __init__(self, engine: Engine, presence: Presence, running: Callable[[], int]) -> None:
        self._engine = engine
        self._presence = presence
        self._running = running
        self._task: asyncio.Task[None] | None = None
        self._refusal = ""

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name="flowfabric-presence")

    async def stop(self) -> None:
        """Signs off, so that nobody waits for a worker that left."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        me = self._presence
        try:
            await self._engine.workers.deregister(
                me.instance, namespace=me.namespace, worker=me.worker
            )
        except FlowFabricError as error:
            log.debug("could not sign off: %s", error)

    async def _keep(self) -> None:
        here = False
        while True:
            try:
                here = await self._say(here)
                self._refusal = ""
            except Invalid as error:
                self._refused(str(error))
            except FlowFabricError as error:
                log.debug("the registry does not answer: %s", error)
            except Exception:
                log.exception("the registry stumbled; this worker may not be listed")
            await asyncio.sleep(self._presence.ttl / 3000)

    async def _say(self, here: bool) -> bool:
        me, workers = self._presence, self._engine.workers
        running = self._running()
        if here:
            answer = await workers.heartbeat(
                me.instance, namespace=me.namespace, running=running, worker=me.worker
            )
            if not isinstance(answer, NotRegistered):
                return True
        await workers.register(replace(me, running=running))
        return True

    def _refused(self, reason: str) -> None:
        """Said once: it will be so again and again."""
        if reason != self._refusal:
            log.warning("the registry refuses this worker, which works on unlisted: %s", reason)
        self._refusal = reason
