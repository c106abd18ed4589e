"""Wake-ups: hints that something happened. Losing every one costs at most the poll floor."""

import asyncio
import secrets
from contextlib import suppress
from functools import partial

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.store.postgres.dialer import Connection, Dialer
from flowfabric.store.postgres.link import Link

GAP_SECONDS = 0.005
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0


class Wakes:
    """Hints go to waiters of this process at once, and to other processes by NOTIFY, at most one
    per 5 ms. One of the connections for work listens as well: it is in use all the time, so that
    one which fell silent is noticed."""

    def __init__(self, dialer: Dialer, link: Link, channel: str) -> None:
        self._dialer = dialer
        self._link = link
        self._channel = channel
        self._origin = secrets.token_hex(8)
        self._waiters: set[asyncio.Future[None]] = set()
        self.count = 0
        self._pending = asyncio.Event()
        self._ear: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def hint(self) -> None:
        self.wake()
        if not self._dialer.pooled and not self._closed:
            self._pending.set()
            self._start()

    async def wait(self, timeout: float, since: int | None) -> bool:
        self._start()
        if since is not None and since != self.count:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter
            return True
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)

    async def close(self) -> None:
        self._closed = True
        self.wake()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._ear is not None:
            self._ear.remove_termination_listener(self._ended)

    def wake(self) -> None:
        self.count += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _start(self) -> None:
        if self._task is None and not self._dialer.pooled and not self._closed:
            self._task = asyncio.create_task(self._run(), name="flowfabric-wakes")

    async def _run(self) -> None:
        """Keeps listening; whoever may have missed something meanwhile looks once."""
        pause = FIRST_PAUSE
        while True:
            with suppress(FlowFabricError):
                ear = await self._link.run(self._listen)
                self.wake()
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
        tell = partial(_tell, self._dialer.queries["hint"], self._channel, self._origin)
        while not ear.is_closed():
            await self._pending.wait()
            self._pending.clear()
            if not ear.is_closed():
                await self._link.run(tell)
                await asyncio.sleep(GAP_SECONDS)

    def _ended(self, connection: object) -> None:
        self._pending.set()

    def _heard(self, connection: object, pid: int, channel: str, origin: object) -> None:
        if origin != self._origin:
            self.wake()


async def _tell(
    query: str, channel: str, origin: str, connection: Connection, repeated: bool
) -> None:
    await connection.execute(query, channel, origin)
