"""Long polls: work that is worth doing only as long as its client waits and the server stays."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar import Request

from flowfabric.server.context import context_of

T = TypeVar("T")


async def while_wanted(
    request: Request[Any, Any, Any], work: Coroutine[Any, Any, T]
) -> tuple[asyncio.Future[T], bool]:
    """The work as it ended, and whether the client is gone. It is cancelled when the client goes
    away, and when the server begins to stop."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    draining = asyncio.ensure_future(context_of(request).draining.wait())
    try:
        await asyncio.wait({working, gone, draining}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
        return working, gone.done()
    finally:
        for task in (working, gone, draining):
            task.cancel()


async def _disconnected(request: Request[Any, Any, Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
