"""Server-sent events: one long answer that a client can resume with `Last-Event-ID`.

A slow client holds back the source: the next item is taken only when the last one is on its way,
so a connection keeps one item in memory. A comment every 15 seconds keeps proxies from closing an
idle connection and finds out clients that are gone. A draining server ends the stream; clients
connect again, elsewhere. A stream whose token was revoked or has expired ends with an error.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from anyio import CancelScope
from litestar import Request
from litestar.response import Stream
from msgspec import Struct

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.engine.commit.observer import followed
from flowfabric.server.caller.access import check_again
from flowfabric.server.context import ServerContext, context_of
from flowfabric.server.http.errors import answer_to
from flowfabric.server.http.wire import encode

HEARTBEAT = 15.0
RETRY = b"retry: 2000\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class ServerEvent(Struct, frozen=True):
    """One item. `id` is the cursor that continues after it."""

    event: str
    data: object
    id: str | None = None

    def encode(self) -> bytes:
        head = "" if self.id is None else f"id: {self.id}\n"
        return f"{head}event: {self.event}\ndata: ".encode() + encode(self.data) + b"\n\n"


Source = AsyncGenerator[ServerEvent, None]


def last_event_id(request: Request[Any, Any, Any]) -> str | None:
    """Where a client that connects again stopped."""
    return request.headers.get("last-event-id") or None


def event_stream(request: Request[Any, Any, Any], source: Source) -> Stream:
    items = _measured(_items(source, context_of(request), partial(check_again, request)))
    return Stream(items, media_type="text/event-stream", headers=_HEADERS)


async def _measured(items: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    with followed("sse"):
        async with aclosing(items):
            async for item in items:
                yield item


async def _items(
    source: Source, context: ServerContext, check: Callable[[], Awaitable[None]]
) -> AsyncGenerator[bytes, None]:
    yield RETRY
    draining = asyncio.ensure_future(context.draining.wait())
    coming: asyncio.Future[ServerEvent] | None = None
    try:
        while not draining.done():
            coming = coming or asyncio.ensure_future(anext(source))
            waiting: set[asyncio.Future[Any]] = {coming, draining}
            await asyncio.wait(waiting, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
            await check()
            if not coming.done():
                yield b": still here\n\n"
                continue
            done, coming = coming, None
            yield done.result().encode()
    except StopAsyncIteration:
        pass
    except FlowFabricError as error:  # the answer has begun: its status cannot say it any more
        yield ServerEvent("error", answer_to(error)[1]).encode()
    finally:
        draining.cancel()
        with CancelScope(shield=True):  # a client that is gone cancels this again and again
            await _close(source, coming)


async def _close(source: Source, coming: asyncio.Future[ServerEvent] | None) -> None:
    """Ends the source; a generator that runs cannot be closed, so what is awaited goes first."""
    if coming is not None:
        coming.cancel()
        await asyncio.wait([coming])
    await source.aclose()
