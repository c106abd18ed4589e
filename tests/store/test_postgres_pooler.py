"""Through a pooler that hands the server's sessions around between transactions: correct, if
slower. The pooler here is a small one of our own, so that nothing has to be installed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from flowfabric.core.execution import operator
from flowfabric.core.execution.lease import Owner
from flowfabric.store.clock import ManualClock
from flowfabric.store.postgres import PostgresStore, open_postgres
from flowfabric.store.postgres.dialer import PINNED
from flowfabric.store.queries import EventQuery
from tests.kit.postgres import Databases, database_name
from tests.store.postgres_bench import (
    Bench,
    lose_reply,
    migrated_template,
    opened,
    progress,
    renewal,
    uuids,
)

SSL_REQUEST = b"\x04\xd2\x16\x2f"
READY, ERROR, IDLE = b"Z", b"E", b"I"


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
        parts = urlsplit(self._url)
        folder = parse_qs(parts.query).get("host", [""])[0]
        port = parts.port or 5432
        if folder.startswith("/"):
            streams = await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{port}")
        else:
            streams = await asyncio.open_connection(parts.hostname or folder, port)
        server = Server(*streams)
        name = database_name(self._url).encode()
        user = (parts.username or "postgres").encode()
        body = b"\x00\x03\x00\x00user\x00" + user + b"\x00database\x00" + name + b"\x00\x00"
        server.writer.write(_size(body) + body)
        self._greeting = b""
        while (message := await _message(server.reader))[:1] != READY:
            assert message[:1] != ERROR, message
            if message[:1] == b"S":
                self._greeting += message
        return server

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        while (body := await _body(reader)) == SSL_REQUEST:
            writer.write(b"N")
        if self._strict and b"plan_cache_mode" in body:
            text = b"SFATAL\0C08P01\0Munsupported startup parameter: jit\0\0"
            writer.write(ERROR + _size(text) + text)
            await writer.drain()
            return False
        ok = b"R" + b"\0\0\0\x08" + b"\0\0\0\0"
        key = b"K" + b"\0\0\0\x0c" + b"\x7f\xff\xff\xff" + b"\0\0\0\x01"
        writer.write(ok + self._greeting + key + READY + b"\0\0\0\x05" + IDLE)
        await writer.drain()
        return True

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            message = await _message(reader)
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
                server.writer.write(await _message(reader))

        pump = asyncio.create_task(inwards())
        try:
            while True:
                message = await _message(server.reader)
                writer.write(message)
                if message[:1] == READY and message[-1:] == IDLE:
                    return
        finally:
            pump.cancel()
            await asyncio.wait([pump])


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


async def _body(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size - 4)


def _size(body: bytes) -> bytes:
    return (len(body) + 4).to_bytes(4, "big")


@pytest.fixture
def database(databases: Databases, fresh_database: Callable[..., str]) -> str:
    return fresh_database(template=migrated_template(databases))


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


@pytest.mark.parametrize("strict", [True, False])
async def test_everything_works_through_a_transaction_pooler(database: str, strict: bool) -> None:
    async with pooled(database, strict=strict) as (pooler, url), opened(url) as bench:
        assert bench.store.session.dialer.pooled
        assert await bench.store.migrate() > 0
        held = await bench.running(key="k", tags={"a.b": "c"})
        assert await bench.store.renew([renewal(held)], bench.now)
        assert await bench.store.write_progress([progress(held, 5)], bench.now)
        other, *_ = await bench.submit_many(3)
        cancel = operator.cancel(other, bench.now, Owner(source="operator_override"), "")
        await asyncio.gather(
            bench.store.end([bench.completion(held)], bench.now),
            bench.apply(cancel),
            bench.submit_many(5),
            bench.store.counts(None, None),
            bench.store.due(bench.now, 9),
        )
        assert len(await bench.claim(99)) == 7
        assert len((await bench.store.events(EventQuery())).events) == 10
        assert len(set(pooler.turns)) == 2


async def test_a_lost_reply_is_recognised_through_a_pooler_too(database: str) -> None:
    async with pooled(database, strict=False) as (_, url), opened(url) as bench:
        held = await bench.running()
        lose_reply(bench.store.session.end)
        ended = await bench.store.end([bench.completion(held)], bench.now)
        assert ended == set(uuids([held]))


async def test_hints_stay_in_the_process_without_a_listener(database: str) -> None:
    async with pooled(database, strict=False) as (_, url), opened(url) as bench:
        waiting = asyncio.create_task(bench.store.hints.wait(30.0))
        await asyncio.wait([waiting], timeout=0)
        bench.store.hints.send()
        assert await waiting
        assert not await bench.store.hints.wait(0.0)


async def test_the_url_has_the_last_word_about_a_pooler(database: str) -> None:
    async def is_pooled(url: str) -> bool:
        store: PostgresStore = await open_postgres(url, clock=ManualClock())
        await store.close()
        return store.session.dialer.pooled

    sign = "&" if "?" in database else "?"
    assert not await is_pooled(database)
    assert await is_pooled(f"{database}{sign}pooler=transaction")
    async with pooled(database, strict=False) as (_, url):
        assert await is_pooled(url)
        assert not await is_pooled(f"{url}?pooler=session")


async def test_a_pooler_that_keeps_sessions_together_gets_its_settings_later(
    database: str,
) -> None:
    async with (
        pooled(database, strict=True, sessions=1) as (_, url),
        opened(f"{url}?pooler=session") as bench,
    ):
        await bench.ended()
        connection = await bench.store.session.dialer.dial(PINNED)
        assert await connection.fetchval("show plan_cache_mode") == "force_generic_plan"
        await connection.close()


async def test_a_told_pooler_works_without_one(database: str) -> None:
    sign = "&" if "?" in database else "?"
    async with opened(f"{database}{sign}pooler=transaction") as bench:
        assert isinstance(bench, Bench)
        await bench.ended()
