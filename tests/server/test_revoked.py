"""A token that ends while its request is open: streams end, and a long poll hands nothing out."""

from typing import Any

import httpx
import pytest

from flowfabric.engine.engine import Engine
from flowfabric.server.context import ServerContext
from flowfabric.server.http import sse
from flowfabric.server.options import ServerOptions
from flowfabric.server.run import Server
from flowfabric.store.clock import ManualClock
from tests.kit.lab import Lab
from tests.server.listening import Events, listening

pytestmark = pytest.mark.rules


async def issue(engine: Engine, *scopes: str, expires: str | None = None) -> str:
    made = await engine.tokens.create("caller", scopes, expires=expires)
    return made.secret.reveal()


async def test_a_server_stays_closed_when_its_last_token_has_ended(
    engine: Engine, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def open_to_all() -> bool:
        server = await Server.open(engine, ServerOptions(), [])
        return await server._context.authentication.identify(None) is not None

    assert await open_to_all()
    await issue(engine, "read", expires="1h")
    assert not await open_to_all()
    clock.advance(3_600_001)
    assert not await open_to_all()
    assert "every access token was revoked or has expired" in caplog.text
    await issue(engine, "read")
    await engine.tokens.revoke("caller")
    assert not await open_to_all()


async def test_a_stream_ends_with_its_token(
    engine: Engine, context: ServerContext, lab: Lab
) -> None:
    token = await issue(engine, "read")
    async with (
        listening(context) as address,
        Events.open(f"{address}/v1/events/stream", token=token) as events,
    ):
        claim = await lab.running()
        await events.next("claimed")
        await engine.tokens.revoke("caller")
        await lab.complete(claim)
        assert (await events.next("error"))["code"] == "credentials_revoked"


@pytest.mark.parametrize("path", ["/v1/events/stream", "/v1/changes/stream"])
async def test_an_idle_stream_ends_with_its_token(
    engine: Engine,
    context: ServerContext,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT", 0.05)
    token = await issue(engine, "read", expires="1h")
    async with (
        listening(context) as address,
        Events.open(f"{address}{path}", token=token) as events,
    ):
        clock.advance(3_600_001)
        found = await events.next()
        while found.get("code") is None:  # that something changed
            found = await events.next()
    assert found["code"] == "credentials_expired"


async def test_hints_end_with_their_token(engine: Engine, context: ServerContext) -> None:
    token = await issue(engine, "work")
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        listening(context) as address,
        httpx.AsyncClient(headers=headers) as http,
        http.stream("GET", f"{address}/v1/engine/hints") as reply,
    ):
        await engine.tokens.revoke("caller")
        engine.hints.send()
        assert await reply.aread() == b""


async def test_a_long_poll_of_a_revoked_token_gets_nothing(
    engine: Engine, context: ServerContext, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, claim = await issue(engine, "work"), engine.claims.claim
    id = await lab.submit()

    async def revoked_meanwhile(*args: Any, **more: Any) -> Any:
        await engine.tokens.revoke("caller")
        return await claim(*args, **more)

    monkeypatch.setattr(engine.claims, "claim", revoked_meanwhile)
    headers = {"Authorization": f"Bearer {token}"}
    async with listening(context) as address, httpx.AsyncClient(headers=headers) as http:
        body = {"worker_id": "w", "worker_instance_id": "w-1", "wait_ms": 1000}
        reply = await http.post(f"{address}/v1/work/claim", json=body)
    assert (reply.status_code, reply.json()["code"]) == (401, "credentials_revoked")
    assert await engine.views.state(id) == "waiting"
