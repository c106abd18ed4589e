"""A TCP proxy before Postgres whose network can lie. It runs in a thread of its own.

* `cut` closes every open connection.
* `silence` makes the open connections go silent without a reset, as a firewall or a failover does;
  new ones work.
* `refuse` closes new connections, too, until it is called with False.
"""

import asyncio
import socket
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

BUFFER = 65536


class _Connection:
    """One connection of a client, with the one to the server that belongs to it."""

    def __init__(self, task: "asyncio.Task[None]") -> None:
        self.task = task
        self.silent = False


class Proxy:
    def __init__(self, server_socket: str) -> None:
        self._target = server_socket
        self._open: set[_Connection] = set()
        self._refusing = False
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._call(self._listen())

    def cut(self) -> None:
        self._call(self._cut())

    def silence(self) -> None:
        self._call(self._silence())

    def refuse(self, refusing: bool) -> None:
        self._refusing = refusing
        if refusing:
            self.cut()

    def close(self) -> None:
        self.refuse(True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._socket.close()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        await asyncio.start_server(self._serve, sock=self._socket)

    async def _cut(self) -> None:
        tasks = [connection.task for connection in self._open]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _silence(self) -> None:
        for connection in self._open:
            connection.silent = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(task)
        self._open.add(connection)
        try:
            with suppress(OSError, asyncio.CancelledError):
                if not self._refusing:
                    await self._join(connection, reader, writer)
        finally:
            writer.transport.abort()
            self._open.discard(connection)

    async def _join(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        answers, server = await asyncio.open_unix_connection(self._target)
        ways = [
            asyncio.create_task(_pump(connection, reader, server)),
            asyncio.create_task(_pump(connection, answers, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            server.transport.abort()


async def _pump(
    connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while data := await reader.read(BUFFER):
        if connection.silent:
            await asyncio.Event().wait()  # until the connection is cut
        writer.write(data)
        await writer.drain()
