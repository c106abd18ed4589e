"""A real HTTP server on the loopback address, in the event loop of the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from flowfabric.server.http.asgi import App


@asynccontextmanager
async def serving(app: App, http: Any = "auto") -> AsyncIterator[str]:
    """The address of a server for this application, by this protocol."""
    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off", ws="none", http=http)
    server = uvicorn.Server(config)
    ready, startup = asyncio.Event(), server.startup

    async def start(*args: object, **kwargs: object) -> None:
        await startup(*args, **kwargs)  # type: ignore[arg-type]
        ready.set()

    server.startup = start  # type: ignore[method-assign]
    task = asyncio.create_task(server.serve())
    await ready.wait()
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        await task
