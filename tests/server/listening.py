"""A server on a loopback port that drains at the end, and a client of server-sent events."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from flowfabric.server.app import create_app
from flowfabric.server.context import ServerContext
from tests.kit.http_server import serving


@asynccontextmanager
async def listening(context: ServerContext) -> AsyncIterator[str]:
    """The address of a server that serves this context; it drains when the block ends."""
    async with serving(create_app(context)) as address:
        try:
            yield address
        finally:
            context.draining.set()


class Events:
    """One connection of server-sent events."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.last_id: str | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls, url: str, *, last_id: str | None = None, token: str | None = None
    ) -> AsyncIterator["Events"]:
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        async with (
            httpx.AsyncClient(timeout=30) as http,
            http.stream("GET", url, headers=headers) as reply,
        ):
            assert reply.status_code == 200, await reply.aread()
            assert reply.headers["content-type"].startswith("text/event-stream")
            yield cls(reply.aiter_lines())

    async def next(self, expected: str | None = None) -> Any:
        """The data of the next event; its name must be the expected one."""
        name, data = "", ""
        async for line in self._lines:
            field, _, value = line.partition(": ")
            match field:
                case "id":
                    self.last_id = value
                case "event":
                    name = value
                case "data":
                    data = value
                case "" if name:
                    assert expected in (None, name), f"{name}: {data}"
                    return msgspec.json.decode(data)
                case _:
                    pass
        raise AssertionError("the stream has ended")
