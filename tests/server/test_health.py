"""Probes: alive, ready, and why not."""

import asyncio

import httpx

from flowfabric.core.base.errors import Unavailable
from flowfabric.engine.engine import Engine
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext
from tests.kit.http import error_of


def client(engine: Engine, *, is_open: bool = True) -> tuple[httpx.AsyncClient, ServerContext]:
    context = ServerContext(engine, Authentication(engine, is_open=is_open))
    transport = httpx.ASGITransport(create_app(context))
    return httpx.AsyncClient(transport=transport, base_url="http://server"), context


async def test_healthz_is_public(engine: Engine) -> None:
    http, _ = client(engine, is_open=False)
    async with http:
        reply = await http.get("/healthz")
        assert (reply.status_code, reply.json()) == (200, {"status": "ok"})
        assert (await http.get("/v1/counts")).status_code == 401


async def test_probes_do_not_look_at_a_token(engine: Engine) -> None:
    """server-sdk.md 1.7: /healthz is always unauthenticated."""
    http, _ = client(engine, is_open=False)
    async with http:
        for header in ("Bearer nonsense", "Basic abc", ""):
            reply = await http.get("/healthz", headers={"Authorization": header})
            assert reply.status_code == 200
        wrong = await http.get("/v1/counts", headers={"Authorization": "Bearer nonsense"})
        assert wrong.status_code == 401
    http, _ = client(engine)
    async with http:
        assert (await http.post("/healthz")).status_code == 405


async def test_readyz_says_why_not(engine: Engine) -> None:
    http, context = client(engine)
    async with http:
        refused = error_of(await http.get("/readyz"), 503)
        assert (refused["status"], refused["code"]) == ("not_sweeping", "not_sweeping")
        engine.sweep.start()
        ready = await http.get("/readyz")
        assert ready.status_code == 200
        assert ready.json()["schema_version"] == engine.schema_version
        context.draining.set()
        drained = await http.get("/readyz")
        assert (drained.status_code, drained.json()["status"]) == (503, "draining")
        await asyncio.sleep(0)


async def test_a_store_that_does_not_answer(engine: Engine) -> None:
    async def fail(lane: str) -> None:
        raise Unavailable("no connection")

    engine.lanes.get = fail  # type: ignore[method-assign, assignment]
    http, _ = client(engine)
    async with http:
        reply = await http.get("/healthz")
        assert (reply.status_code, reply.json()["code"]) == (500, "unavailable")
        assert (await http.get("/readyz")).json()["status"] == "store_unavailable"


async def test_a_caller_without_a_token_is_refused_before_its_body_is_looked_at(
    engine: Engine,
) -> None:
    """server-sdk.md 1.6: every request needs the token, whatever its size."""
    http, _ = client(engine, is_open=False)
    async with http:
        for path in ("/v1/budgets", "/v1/executions/x/replay", "/v1/nothing"):
            assert (await http.post(path, content=b" " * 70_000)).status_code == 401
        signal = await http.post("/v1/executions/x/signal", content=b" " * 300_000)
        assert signal.status_code == 401
