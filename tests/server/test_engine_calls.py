"""`POST /v1/engine` of a whole server: what the Python SDK calls."""

import asyncio
from typing import Any
from uuid import UUID

import httpx
import pytest

from flowfabric.remote.wire import (
    CALLS_PATH,
    MEDIA_TYPE,
    CallRequest,
    RemoteCall,
    StillOpen,
    read_reply,
    write_request,
)
from flowfabric.server.context import ServerContext
from tests.kit.http import create, error_of

pytestmark = pytest.mark.rules


async def _wait_for(http: httpx.AsyncClient, id: str) -> httpx.Response:
    call = RemoteCall(UUID(int=7), "views.wait", {"id": id})
    body = write_request(CallRequest([call], patience=20.0))
    return await http.post(CALLS_PATH, content=body, headers={"content-type": MEDIA_TYPE})


async def test_a_draining_server_does_not_wait_with_its_clients(
    http: httpx.AsyncClient, context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ask another server, or the next one. Otherwise every drain would take its whole time."""
    id = await create(http)
    begun = asyncio.Event()

    async def wait(**arguments: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(context.engine.views, "wait", wait)
    waiting = asyncio.ensure_future(_wait_for(http, id))
    await begun.wait()
    context.draining.set()
    async with asyncio.timeout(60):
        reply = await waiting
    assert read_reply(reply.content).answers == [StillOpen()]
    refused = await _wait_for(http, id)
    assert error_of(refused, 503)["code"] == "unavailable"
    assert refused.headers["retry-after"] == "1"
