"""What the gateway does to every request: ids, headers, unknown fields, preflights, rates."""

import httpx
import pytest

from flowfabric.core.limit.quota import parse_rate
from flowfabric.engine.engine import Engine
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.caller.cors import CorsPolicy
from flowfabric.server.context import ServerContext
from flowfabric.server.options import ServerOptions
from tests.kit.http import EXECUTION, create

pytestmark = pytest.mark.rules


def client(engine: Engine, options: ServerOptions, *, is_open: bool = True) -> httpx.AsyncClient:
    context = ServerContext(engine, Authentication(engine, is_open=is_open), options)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(context)), base_url="http://server"
    )


async def test_a_request_id_is_kept_or_made(http: httpx.AsyncClient) -> None:
    given = await http.get("/healthz", headers={"X-Request-Id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    odd = await http.get("/healthz", headers={"X-Request-Id": "a b\tc"})
    assert odd.headers["x-request-id"] not in ("", "a b\tc")


async def test_answers_carry_security_headers(http: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/nowhere", "/v1/executions/x/state"):
        headers = (await http.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


@pytest.mark.parametrize("name", ["policy_json", "a\r\nX-Evil: 1", "\x14", "ä", "x" * 500])
async def test_unknown_fields_are_named_safely(http: httpx.AsyncClient, name: str) -> None:
    reply = await http.post("/v1/executions", json={**EXECUTION, name: 1})
    assert reply.status_code == 201
    assert "x-evil" not in reply.headers
    shown = reply.headers["flowfabric-ignored-fields"]
    assert shown.isascii()
    assert shown.isprintable()
    strict = await http.post(
        "/v1/executions", json={**EXECUTION, name: 1}, headers={"Prefer": "handling=strict"}
    )
    assert strict.status_code == 422


async def test_only_listed_origins_may_call(engine: Engine) -> None:
    options = ServerOptions(cors=CorsPolicy(frozenset({"https://app.example.com"})))
    async with client(engine, options) as http:
        asked = {
            "Origin": "https://app.example.com",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type",
        }
        allowed = await http.options("/v1/executions", headers=asked)
        assert allowed.status_code == 204
        assert allowed.headers["access-control-allow-origin"] == "https://app.example.com"
        foreign = {**asked, "Origin": "https://evil.example.com"}
        refused = await http.options("/v1/executions", headers=foreign)
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers


async def test_cors_is_closed_by_default(http: httpx.AsyncClient) -> None:
    reply = await http.get("/healthz", headers={"Origin": "https://app.example.com"})
    assert "access-control-allow-origin" not in reply.headers


async def test_a_caller_beyond_its_rate_waits(engine: Engine) -> None:
    options = ServerOptions(rate_limit=parse_rate("3/h", "rate"))
    async with client(engine, options) as http:
        for _ in range(3):
            await create(http)
        refused = await http.post("/v1/executions", json=EXECUTION)
        assert (refused.status_code, refused.json()["retryable"]) == (429, True)
        assert int(refused.headers["retry-after"]) > 0
        assert (await http.get("/healthz")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/counts", "/metrics"])
async def test_guessing_tokens_has_a_rate(engine: Engine, path: str) -> None:
    options = ServerOptions(rate_limit=parse_rate("3/h", "rate"))
    wrong = {"Authorization": "Bearer ff_ci_guess"}
    async with client(engine, options, is_open=False) as http:
        found = [(await http.get(path, headers=wrong)).status_code for _ in range(5)]
    assert found == [401, 401, 401, 429, 429]


@pytest.mark.parametrize("header", ["Bearer of-another-server", "Basic YWRhOng=", ""])
async def test_a_server_without_tokens_refuses_no_header(
    http: httpx.AsyncClient, engine: Engine, header: str
) -> None:
    """1.6: where no token is set, everything is open. The first one that is made counts at once."""
    sent = {"Authorization": header}
    assert (await http.get("/v1/counts", headers=sent)).status_code == 200
    assert (await http.get("/v1/me", headers=sent)).json()["open"] is True
    made = await engine.tokens.create("ada", ["read"], by="test")
    mine = {"Authorization": f"Bearer {made.secret.reveal()}"}
    assert (await http.get("/v1/me", headers=mine)).json()["name"] == "ada"


@pytest.mark.parametrize("second", ["Bearer trusted-token-of-the-test", "Bearer other"])
async def test_two_authorization_headers_are_refused(engine: Engine, second: str) -> None:
    """1.6: a request carries one bearer token; which of two counts is a guess."""
    engine.tokens.trust("trusted-token-of-the-test")
    context = ServerContext(engine, Authentication(engine, is_open=False))
    good = ("Authorization", "Bearer trusted-token-of-the-test")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(context)), base_url="http://server"
    ) as http:
        path = "/v1/executions?partition=1"
        assert (await http.get(path, headers=[good])).status_code == 200
        assert (await http.get(path, headers=[good, ("X-A", "1"), ("X-A", "2")])).status_code == 200
        for both in ([good, ("Authorization", second)], [("authorization", second), good]):
            refused = await http.get(path, headers=both)
            assert refused.status_code == 401
            assert refused.json()["error"] == "missing or invalid Authorization header"
        assert (await http.get("/healthz", headers=both)).status_code == 200


async def test_a_request_is_one_record_of_the_log(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "flowfabric.server.access"):
        await http.get("/v1/executions/x/state", headers={"X-Request-Id": "abc-2"})
    (record,) = [each for each in caplog.records if each.name == "flowfabric.server.access"]
    assert record.getMessage().startswith("GET /v1/executions/{id}/state 400 in ")
    assert record.levelname == "INFO"
    found = vars(record)
    assert (found["request_id"], found["caller"]) == ("abc-2", "anonymous")
    assert 0 <= found["seconds"] < 60


@pytest.mark.parametrize(
    "path", ["/x%0aFORGED", "/x%0d%0aFORGED", "/x%1b[2JFORGED", "/x%E2%80%A8FORGED"]
)
async def test_no_caller_writes_lines_of_its_own_into_the_log(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    with caplog.at_level("INFO", "flowfabric.server.access"):
        assert (await http.get(path)).status_code == 404
    (record,) = [each for each in caplog.records if each.name == "flowfabric.server.access"]
    assert record.getMessage().isprintable()
    assert "FORGED 404 in " in record.getMessage()


async def test_a_log_without_such_lines_costs_no_record(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "flowfabric.server.access"):
        await http.get("/healthz")
    assert not [each for each in caplog.records if each.name == "flowfabric.server.access"]
