"""Keeps a worker in the registry: registers, says that it is there, signs off."""

import asyncio
import logging
from collections.abc import Callable

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.registry import NotRegistered, Presence
from flowfabric.engine.engine import Engine

log = logging.getLogger("flowfabric.worker")


class PresenceKeeper:
    """The registry is advisory: trouble with it never stops the work."""

    def __init__(self, engine: Engine, presence: Presence, running: Callable[[], int]) -> None:
        self._engine = engine
        self._presence = presence
        self._running = running
        self._task: asyncio.Task[None] | None = None

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
            await self._engine.workers.deregister(me.instance, namespace=me.namespace)
        except FlowFabricError as error:
            log.debug("could not sign off: %s", error)

    async def _keep(self) -> None:
        here = False
        while True:
            try:
                here = await self._say(here)
            except FlowFabricError as error:
                log.debug("the registry does not answer: %s", error)
            await asyncio.sleep(self._presence.ttl / 3000)

    async def _say(self, here: bool) -> bool:
        me = self._presence
        if here:
            answer = await self._engine.workers.heartbeat(
                me.instance, namespace=me.namespace, running=self._running()
            )
            if not isinstance(answer, NotRegistered):
                return True
        await self._engine.workers.register(me)
        return True
