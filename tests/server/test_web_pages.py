"""A server without tokens trusts the programs of its machine, not the pages that a browser shows
there: a page can send requests to 127.0.0.1, and by DNS rebinding even read what they answer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from flowfabric.core.access.token import AccessScope, Identity
from flowfabric.engine.engine import Engine
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.caller.cors import CorsPolicy
from flowfabric.server.caller.web_pages import is_own_name
from flowfabric.server.context import ServerContext
from flowfabric.server.options import ServerOptions
from tests.kit.http import EXECUTION, KnownCaller, error_of

pytestmark = pytest.mark.rules

HERE = "http://127.0.0.1:9090"
PAUSE = "/v1/lanes/default/pause"
EVIL = "https://evil.example"


@asynccontextmanager
async def at(
    engine: Engine,
    options: ServerOptions = ServerOptions(),  # noqa: B008 - frozen
    base_url: str = HERE,
    caller: Identity | None = None,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that it reaches at this address; open unless the caller is known."""
    known = Authentication(engine, is_open=True) if caller is None else KnownCaller(engine, caller)
    app = create_app(ServerContext(engine, known, options))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base_url) as http:
        yield http


@pytest.mark.parametrize("origin", [EVIL, "null", "http://127.0.0.1:8000", "https://127.0.0.1"])
async def test_a_foreign_page_changes_nothing(engine: Engine, origin: str) -> None:
    async with at(engine) as http:
        for path in (PAUSE, "/v1/engine"):
            error_of(await http.post(path, headers={"Origin": origin}), 403)
        plain = {"Origin": origin, "Content-Type": "text/plain"}
        error_of(await http.post("/v1/executions", content=b"{}", headers=plain), 403)
        lane = (await http.get("/v1/lanes/default")).json()
    assert lane["state"] != "paused"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9090", "127.0.0.1.evil.example."])
async def test_a_name_of_another_machine_reads_nothing(engine: Engine, host: str) -> None:
    async with at(engine) as http:
        for path in ("/v1/lanes", "/v1/executions/search", "/v1/me", "/metrics"):
            error_of(await http.get(path, headers={"Host": host}), 403)
        reply = await http.get("/healthz", headers={"Host": host})
    assert reply.status_code == 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1:9090", "localhost", "LocalHost:9090", "[::1]:9090", "app.localhost:1", "x"]
)
async def test_programs_and_own_pages_call(engine: Engine, host: str) -> None:
    headers = {"Host": host, "Origin": f"http://{host}"}
    async with at(engine) as http:
        assert (await http.post(PAUSE, headers=headers)).status_code == 200
        assert (await http.post(PAUSE, headers={"Host": host})).status_code == 200


async def test_listed_origins_and_the_public_url_call(engine: Engine) -> None:
    listed = ServerOptions(cors=CorsPolicy(frozenset({EVIL})))
    async with at(engine, listed) as http:
        assert (await http.post(PAUSE, headers={"Origin": EVIL})).status_code == 200
    public = ServerOptions(public_url="https://flows.example.com")
    async with at(engine, public) as http:
        for host in ("flows.example.com", "127.0.0.1:9090"):
            headers = {"Host": host, "Origin": "https://flows.example.com"}
            assert (await http.post(PAUSE, headers=headers)).status_code == 200


async def test_insecure_trusts_every_host_but_no_foreign_page(engine: Engine) -> None:
    async with at(engine, ServerOptions(insecure=True)) as http:
        named = {"Host": "flows.example.com"}
        assert (await http.post(PAUSE, headers=named)).status_code == 200
        error_of(await http.post(PAUSE, headers={**named, "Origin": EVIL}), 403)


async def test_a_token_is_proof_enough(engine: Engine) -> None:
    caller = Identity("ci", frozenset(AccessScope))
    async with at(engine, caller=caller) as http:
        headers = {"Host": "flows.example.com", "Origin": EVIL}
        reply = await http.post("/v1/executions", json=EXECUTION, headers=headers)
    assert reply.status_code == 201


async def test_metrics_behind_a_proxy_need_a_token(engine: Engine) -> None:
    app = create_app(ServerContext(engine, KnownCaller(engine, None)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HERE) as http:
        assert (await http.get("/metrics")).status_code == 200
        error_of(await http.get("/metrics", headers={"Host": "flows.example.com"}), 401)


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("", True),
        ("10.0.0.7:9090", True),
        ("[fe80::1]:80", True),
        ("host.docker.internal:9090", True),
        ("example.com", False),
        ("localhost.example.com", False),
        ("127.0.0.1.nip.io", False),
    ],
)
def test_names_of_this_machine(host: str, own: bool) -> None:
    assert is_own_name(host) is own
