"""Server-sent events as such: comments while nothing happens, back-pressure, and an end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from flowfabric.core.base.errors import NotFound
from flowfabric.server.context import ServerContext
from flowfabric.server.http import sse
from flowfabric.server.http.sse import ServerEvent


async def allowed() -> None:
    """The token of the client is still valid."""


class Source:
    """Events that are taken one by one; `closed` once the reader is gone."""

    def __init__(self, *, idle: bool = False, error: Exception | None = None) -> None:
        self.taken = 0
        self.closed = False
        self._idle, self._error = idle, error

    async def events(self) -> AsyncGenerator[ServerEvent, None]:
        try:
            while True:
                if self._idle:
                    await asyncio.Event().wait()
                if self._error is not None:
                    raise self._error
                self.taken += 1
                yield ServerEvent("tick", {"n": self.taken}, str(self.taken))
        finally:
            self.closed = True


async def test_a_slow_client_holds_back_the_source(context: ServerContext) -> None:
    """One item in memory: the next one is taken when the one before was sent"""
    source = Source()
    async with aclosing(sse._items(source.events(), context, allowed)) as items:
        assert await anext(items) == sse.RETRY
        assert source.taken == 0
        for number in range(1, 4):
            sent = await anext(items)
            assert sent == f'id: {number}\nevent: tick\ndata: {{"n":{number}}}\n\n'.encode()
            await asyncio.sleep(0)  # however long it takes to send it
            assert source.taken == number
    assert source.closed


async def test_an_idle_stream_sends_comments(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep proxies from closing the connection, and find out clients that are gone"""
    monkeypatch.setattr(sse, "HEARTBEAT", 0.001)
    source = Source(idle=True)
    async with aclosing(sse._items(source.events(), context, allowed)) as items:
        await anext(items)
        for _ in range(2):
            assert (await anext(items)).startswith(b":")
    assert source.closed


async def test_a_draining_server_ends_the_stream(context: ServerContext) -> None:
    source = Source(idle=True)
    items = sse._items(source.events(), context, allowed)
    await anext(items)

    async def rest() -> list[bytes]:
        return [item async for item in items]

    waiting = asyncio.ensure_future(rest())
    await asyncio.sleep(0)
    context.draining.set()
    async with asyncio.timeout(60):
        assert all(item.startswith(b":") for item in await waiting)
    assert source.closed


async def test_an_error_is_the_last_event(context: ServerContext) -> None:
    source = Source(error=NotFound("execution", "x"))
    async with aclosing(sse._items(source.events(), context, allowed)) as items:
        (_, last) = [item async for item in items]
    assert last.startswith(b"event: error\n")
    assert b'"code":"not_found"' in last
