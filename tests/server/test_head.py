"""HEAD is answered wherever GET is: the same status and the same headers, without the body."""

import asyncio

import httpx
import pytest

from flowfabric.engine.engine import Engine
from flowfabric.server.context import ServerContext
from tests.kit.http import client_as
from tests.server.listening import listening

_OF_ONE_ANSWER = {"x-request-id", "date"}


@pytest.mark.parametrize(
    "path",
    [
        "/healthz",
        "/readyz",
        "/v1/capabilities",
        "/v1/executions?partition=1",
        "/v1/executions?partition=x",
        "/v1/executions/00000000-0000-0000-0000-000000000000/state",
        "/v1/executions/malformed",
        "/no/such/route",
    ],
)
async def test_head_has_the_status_and_the_headers_of_get(
    context: ServerContext, path: str
) -> None:
    async with listening(context) as url, httpx.AsyncClient(base_url=url) as http:
        get = await http.get(path)
        head = await http.head(path)
        again = await http.get("/healthz")
    assert head.status_code == get.status_code
    assert head.content == b""
    assert head.headers.keys() == get.headers.keys()
    assert {**head.headers, **dict.fromkeys(_OF_ONE_ANSWER)} == {
        **get.headers,
        **dict.fromkeys(_OF_ONE_ANSWER),
    }
    assert again.json() == {"status": "ok"}, "the connection serves the next request"


async def test_head_of_a_stream_that_never_ends_is_answered(context: ServerContext) -> None:
    async with listening(context) as url, httpx.AsyncClient(base_url=url) as http:
        async with asyncio.timeout(60):
            head = await http.head("/v1/events/stream")
            again = await http.get("/healthz")
    assert head.status_code == 200
    assert head.headers["content-type"].startswith("text/event-stream")
    assert again.status_code == 200


async def test_head_needs_what_get_needs(http: httpx.AsyncClient) -> None:
    """A route without GET has no HEAD either, and `Allow` names HEAD where there is one."""
    post_only = await http.head("/v1/flows/00000000-0000-0000-0000-000000000000/cancel")
    assert post_only.status_code == 405
    assert "HEAD" not in post_only.headers["allow"]
    readable = await http.delete("/v1/executions")
    assert readable.status_code == 405
    assert {"GET", "HEAD", "POST"} <= set(readable.headers["allow"].split(", "))


async def test_options_names_head(http: httpx.AsyncClient) -> None:
    options = await http.options("/healthz")
    assert "HEAD" in options.headers["allow"]


async def test_options_names_every_method_of_the_path(http: httpx.AsyncClient) -> None:
    nothing = "00000000-0000-0000-0000-000000000000"
    for path, methods in [
        ("/v1/executions", {"GET", "HEAD", "POST"}),
        ("/v1/quotas", {"GET", "HEAD", "POST"}),
        (f"/v1/budgets/{nothing}", {"GET", "HEAD", "PUT", "DELETE"}),
        (f"/v1/executions/{nothing}/cancel", {"POST"}),
        ("/", {"GET", "HEAD"}),
    ]:
        options = await http.options(path)
        assert options.status_code == 204
        assert set(options.headers["allow"].split(", ")) == {*methods, "OPTIONS"}, path


async def test_options_tells_a_caller_without_a_token_only_of_public_paths(
    engine: Engine,
) -> None:
    async with client_as(engine, None) as stranger:
        assert (await stranger.options("/v1/executions")).status_code == 401
        assert (await stranger.options("/no/such/route")).status_code == 401
        assert (await stranger.options("/healthz")).status_code == 204
