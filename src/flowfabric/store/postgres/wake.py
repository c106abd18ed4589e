"""Hints to other processes and from them, by NOTIFY and LISTEN."""

import asyncio
import secrets
from contextlib import suppress
from functools import partial

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.store.hints import Hints
from flowfabric.store.postgres.dialer import Connection, Dialer
from flowfabric.store.postgres.link import Link

GAP_SECONDS = 0.005
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0


class Notices:
    """Passes hints on to other processes, at most one per 5 ms. One of the connections for work
    listens as well: it is in use all the time, so that one which fell silent is noticed."""

    def __init__(self, dialer: Dialer, link: Link, channel: str) -> None:
        self._dialer = dialer
        self._link = link
        self._channel = channel
        self._origin = secrets.token_hex(8)
        self.hints = Hints(listen=self._start, tell=self._tell)
        self._pending = asyncio.Event()
        self._ear: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        self.hints.wake()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._ear is not None:
            self._ear.remove_termination_listener(self._ended)

    def _tell(self) -> None:
        if not self._dialer.pooled and not self._closed:
            self._pending.set()
            self._start()

    def _start(self) -> None:
        if self._task is None and not self._dialer.pooled and not self._closed:
            self._task = asyncio.create_task(self._run(), name="flowfabric-hints")

    async def _run(self) -> None:
        """Keeps listening. What was missed before it listens is found by one look: all wake up."""
        pause = FIRST_PAUSE
        while True:
            with suppress(FlowFabricError):
                ear = await self._link.run(self._listen)
                self.hints.wake()
                pause = FIRST_PAUSE
                await self._talk(ear)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    async def _listen(self, connection: Connection, repeated: bool) -> Connection:
        await connection.add_listener(self._channel, self._heard)
        connection.add_termination_listener(self._ended)
        self._ear = connection
        return connection

    async def _talk(self, ear: Connection) -> None:
        """Sends what is pending until the connection that listens breaks."""
        notify = partial(_notify, self._dialer.queries["hint"], self._channel, self._origin)
        while not ear.is_closed():
            await self._pending.wait()
            self._pending.clear()
            if not ear.is_closed():
                await self._link.run(notify)
                await asyncio.sleep(GAP_SECONDS)

    def _ended(self, connection: object) -> None:
        self._pending.set()

    def _heard(self, connection: object, pid: int, channel: str, origin: object) -> None:
        if origin != self._origin:
            self.hints.wake()


async def _notify(
    query: str, channel: str, origin: str, connection: Connection, repeated: bool
) -> None:
    await connection.execute(query, channel, origin)
