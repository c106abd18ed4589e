"""Keeps a worker in the registry: registers it, renews the entry, and removes it in the end."""

import asyncio
import logging
from collections.abc import Callable

from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError, Invalid
from flowfabric.core.execution.registry import NotRegistered, Presence
from flowfabric.engine.engine import Engine

log = logging.getLogger("flowfabric.worker")


class PresenceKeeper:
    """The entry of one worker. The registry is advisory: its errors never stop a worker."""

    def __init__(self, engine: Engine, presence: Presence, running: Callable[[], int]) -> None:
        self._engine = engine
        self._presence = presence
        self._running = running
        self._task: asyncio.Task[None] | None = None
        self._refusal = ""

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name="flowfabric-presence")

    async def stop(self) -> None:
        """Removes the entry, so that the worker counts as gone at once."""
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
            log.debug("removing the registry entry failed; it expires: %s", error)

    async def _keep(self) -> None:
        registered = False
        while True:
            try:
                if not (registered and await self._renewed()):
                    await self._register()
                registered = True
                self._refusal = ""
            except Invalid as error:
                self._refused(str(error))
            except FlowFabricError as error:
                log.debug("updating the registry entry failed; retrying: %s", error)
            except Exception:
                log.exception(
                    "updating the registry entry failed; retrying, this worker may be unlisted"
                )
            await asyncio.sleep(self._presence.ttl / 3000)

    async def _renewed(self) -> bool:
        """False if the registry has no entry of this worker any more."""
        me = self._presence
        answer = await self._engine.workers.heartbeat(
            me.instance, namespace=me.namespace, running=self._running(), worker=me.worker
        )
        return not isinstance(answer, NotRegistered)

    async def _register(self) -> None:
        await self._engine.workers.register(replace(self._presence, running=self._running()))

    def _refused(self, reason: str) -> None:
        """Logs a refusal once, not at every heartbeat."""
        if reason != self._refusal:
            log.warning("the registry refuses this worker; it works without an entry: %s", reason)
        self._refusal = reason
