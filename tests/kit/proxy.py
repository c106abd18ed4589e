"""A small TCP proxy before Postgres that loses packets, cuts connections and refuses them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.kit.postgres import database_name
from tests.kit.postgres_wire import (
    ERROR,
    READY,
    SSL_REQUEST,
    dial,
    read_body,
    read_message,
    with_size,
)

STATEMENTS = (b"Q", b"E")
"""A simple query, and the execution of a prepared one."""


class Passage:
    """One connection through the proxy. What comes while it is `silent` is lost."""

    def __init__(self, proxy: "Proxy", client: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.silent = False
        self.replies = 0

    def cut(self) -> None:
        self.client.close()
        if self.server is not None:
            self.server.close()


class Proxy:
    def __init__(self, url: str) -> None:
        self._url = url
        self.passages: set[Passage] = set()
        self.dialled = 0
        self.statements = 0
        self.refuses = False
        self.dying = 0
        """So many of the next connections are cut at their first statement."""
        self.freeze_after: int | None = None
        """After so many more replies of any connection, all that are open fall silent."""
        self.frozen = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def black_hole(self) -> None:
        """What is under way on open connections vanishes, without a reset; new ones work."""
        for passage in self.passages:
            passage.silent = True
        self.frozen.set()

    def cut(self) -> None:
        for passage in list(self.passages):
            passage.cut()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        passage = Passage(self, writer)
        self.passages.add(passage)
        try:
            await self._pass(passage, reader)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.passages.discard(passage)
            self._tasks.discard(task)
            passage.cut()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _pass(self, passage: Passage, reader: asyncio.StreamReader) -> None:
        while (body := await read_body(reader)) == SSL_REQUEST:
            passage.client.write(b"N")
        self.dialled += 1
        if self.refuses:
            text = b"SFATAL\0C53300\0Msorry, too many clients already\0\0"
            passage.client.write(ERROR + with_size(text))
            await passage.client.drain()
            return
        dies, self.dying = self.dying > 0, max(0, self.dying - 1)
        answers, passage.server = await dial(self._url)
        passage.server.write(with_size(body))
        back = asyncio.create_task(self._back(passage, answers))
        try:
            await self._forth(passage, reader, dies)
        finally:
            back.cancel()
            with suppress(asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
                await back

    async def _forth(self, passage: Passage, reader: asyncio.StreamReader, dies: bool) -> None:
        assert passage.server is not None
        while True:
            message = await read_message(reader)
            if dies and message[:1] in (*STATEMENTS, b"P"):
                return
            self.statements += message[:1] in STATEMENTS
            if not passage.silent:
                passage.server.write(message)

    async def _back(self, passage: Passage, answers: asyncio.StreamReader) -> None:
        try:
            while True:
                message = await read_message(answers)
                if not passage.silent:
                    passage.client.write(message)
                if message[:1] == READY and self.freeze_after is not None:
                    self.freeze_after -= 1
                    if self.freeze_after <= 0:
                        self.freeze_after = None
                        self.black_hole()
        except (asyncio.IncompleteReadError, OSError):
            if not passage.silent:
                passage.client.close()


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """The proxy before the database at `url`, and the URL that leads through it."""
    proxy = Proxy(url)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, f"postgresql://postgres@127.0.0.1:{port}/{database_name(url)}"
    finally:
        server.close()
        await proxy.close()
