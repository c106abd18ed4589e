"""A small pooler before Postgres that hands the server's sessions around between transactions, so
that nothing has to be installed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.kit.postgres import database_name
from tests.kit.postgres_wire import (
    ERROR,
    IDLE,
    READY,
    SSL_REQUEST,
    dial,
    read_body,
    read_message,
    with_size,
)


class Server(NamedTuple):
    """A session of the real server, greeted and idle."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Pooler:
    """Gives a session of the server to a client for one transaction at a time."""

    def __init__(self, url: str, *, strict: bool) -> None:
        self._url = url
        self._strict = strict
        self._idle: asyncio.Queue[Server] = asyncio.Queue()
        self._greeting = b""
        self._tasks: set[asyncio.Task[None]] = set()
        self.turns: list[int] = []

    async def start(self, sessions: int) -> None:
        for _ in range(sessions):
            await self._idle.put(await self._dial())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if await self._greet(reader, writer):
                await self._forward(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        while not self._idle.empty():
            server = self._idle.get_nowait()
            server.writer.close()
            await server.writer.wait_closed()

    async def _dial(self) -> Server:
        server = Server(*await dial(self._url))
        name = database_name(self._url).encode()
        user = (urlsplit(self._url).username or "postgres").encode()
        body = b"\x00\x03\x00\x00user\x00" + user + b"\x00database\x00" + name + b"\x00\x00"
        server.writer.write(with_size(body))
        self._greeting = b""
        while (message := await read_message(server.reader))[:1] != READY:
            assert message[:1] != ERROR, message
            if message[:1] == b"S":
                self._greeting += message
        return server

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        while (body := await read_body(reader)) == SSL_REQUEST:
            writer.write(b"N")
        if self._strict and b"plan_cache_mode" in body:
            text = b"SFATAL\0C08P01\0Munsupported startup parameter: jit\0\0"
            writer.write(ERROR + with_size(text))
            await writer.drain()
            return False
        ok = b"R" + b"\0\0\0\x08" + b"\0\0\0\0"
        key = b"K" + b"\0\0\0\x0c" + b"\x7f\xff\xff\xff" + b"\0\0\0\x01"
        writer.write(ok + self._greeting + key + READY + b"\0\0\0\x05" + IDLE)
        await writer.drain()
        return True

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            message = await read_message(reader)
            if message[:1] == b"X":
                return
            server = await self._idle.get()
            self.turns.append(id(server))
            try:
                server.writer.write(message)
                await self._transaction(server, reader, writer)
            finally:
                await self._idle.put(server)

    async def _transaction(
        self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Both directions until the server is idle outside a transaction."""

        async def inwards() -> None:
            while True:
                server.writer.write(await read_message(reader))

        pump = asyncio.create_task(inwards())
        try:
            while True:
                message = await read_message(server.reader)
                writer.write(message)
                if message[:1] == READY and message[-1:] == IDLE:
                    return
        finally:
            pump.cancel()
            await asyncio.wait([pump])


@asynccontextmanager
async def pooled(url: str, *, strict: bool, sessions: int = 2) -> AsyncIterator[tuple[Pooler, str]]:
    pooler = Pooler(url, strict=strict)
    await pooler.start(sessions)
    server = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield pooler, f"postgresql://postgres@127.0.0.1:{port}/{database_name(url)}"
    finally:
        server.close()
        await pooler.close()
