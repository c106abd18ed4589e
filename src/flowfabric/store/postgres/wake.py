"""Wake-ups: hints that something happened. Losing every one costs at most the poll floor."""

import asyncio
import secrets
from contextlib import suppress

import asyncpg

from flowfabric.store.postgres.link import FREE, Connection, Dialer

GAP_SECONDS = 0.005
PING_SECONDS = 30.0
_TROUBLE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


class Wakes:
    """Hints go to waiters of this process at once, and to other processes by NOTIFY, at most one
    per 5 ms, on a connection that does nothing else and also listens."""

    def __init__(self, dialer: Dialer, channel: str) -> None:
        self._dialer = dialer
        self._channel = channel
        self._origin = secrets.token_hex(8)
        self._waiters: set[asyncio.Future[None]] = set()
        self.count = 0
        self._pending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def hint(self) -> None:
        self._wake()
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
        self._wake()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _wake(self) -> None:
        self.count += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _start(self) -> None:
        if self._task is None and not self._dialer.pooled and not self._closed:
            self._task = asyncio.create_task(self._run(), name="flowfabric-wakes")

    async def _run(self) -> None:
        """Keeps a connection; whoever may have missed something meanwhile looks once."""
        pause = 0.05
        while True:
            with suppress(*_TROUBLE):
                connection = await self._dialer.dial(FREE)
                try:
                    await connection.add_listener(self._channel, self._heard)
                    self._wake()
                    pause = 0.05
                    await self._talk(connection)
                finally:
                    connection.terminate()
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 2)

    async def _talk(self, connection: Connection) -> None:
        """Sends what is pending until the connection breaks."""
        connection.add_termination_listener(lambda _: self._pending.set())
        query = self._dialer.queries["hint"]
        while not connection.is_closed():
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await self._pending.wait()
            except TimeoutError:
                await connection.fetchval(self._dialer.queries["served_by"], timeout=PING_SECONDS)
                continue
            self._pending.clear()
            await connection.execute(query, self._channel, self._origin)
            await asyncio.sleep(GAP_SECONDS)

    def _heard(self, connection: object, pid: int, channel: str, origin: object) -> None:
        if origin != self._origin:
            self._wake()
