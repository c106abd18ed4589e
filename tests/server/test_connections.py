"""Connections as bad clients use them, against a real server: slow and endless heads and bodies,
compressed bodies, clients that go away, and a server that stops meanwhile."""

import asyncio
import gzip
import json
import logging
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState
from flowfabric.engine.engine import Engine
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext
from flowfabric.server.http.protocol import MAX_HEAD, GuardedProtocol
from flowfabric.server.options import ServerOptions
from flowfabric.server.run import connections_allowed
from tests.kit.http import EXECUTION, create, create_flow, error_of
from tests.kit.http_server import serving
from tests.kit.lab import Lab
from tests.server.listening import Events, listening

SOON = ServerOptions(request_timeout=Millis(150))
CHUNKED = b"POST /v1/engine HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
JSON = "Host: x\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def connection(
    address: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


@pytest.fixture
async def unhurried(engine: Engine) -> AsyncIterator[str]:
    """A server that gives requests all the time that they need on a busy machine."""
    context = ServerContext(engine, Authentication(engine, is_open=True))
    async with serving(create_app(context), http=GuardedProtocol) as address:
        yield address


@pytest.fixture
async def hasty(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A server that gives requests little time."""
    monkeypatch.setattr(GuardedProtocol, "head_time", 0.1)
    monkeypatch.setattr(GuardedProtocol, "linger_time", 0.1)
    context = ServerContext(engine, Authentication(engine, is_open=True), SOON)
    async with serving(create_app(context), http=GuardedProtocol) as address:
        yield address


@pytest.mark.parametrize(
    "path", ["/v1/executions", "/v1/executions/x/replay", "/v1/work/claim", "/v1/engine"]
)
async def test_a_body_that_does_not_come_ends_the_request(hasty: str, path: str) -> None:
    async with connection(hasty) as (reader, writer):
        writer.write(f"POST {path} HTTP/1.1\r\n{JSON}Content-Length: 100\r\n\r\n{{".encode())
        head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["code"] == "request_timeout"


@pytest.mark.parametrize("more", ["", "Connection: close\r\n"])
async def test_a_client_that_still_sends_gets_the_answer_to_a_large_body(
    engine: Engine, more: str
) -> None:
    """server-sdk.md 1.6: 413 is decided by the length alone, while the client sends the body; a
    connection that is closed then is reset, and the client never reads the answer."""
    context = ServerContext(engine, Authentication(engine, is_open=True))
    head = f"POST /v1/executions HTTP/1.1\r\n{JSON}{more}Content-Length: {8 << 20}\r\n\r\n"
    async with (
        serving(create_app(context), http=GuardedProtocol) as address,
        connection(address) as (reader, writer),
    ):
        writer.write(head.encode())
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 60)
        for _ in range(8):
            writer.write(b" " * (1 << 20))
            await asyncio.wait_for(writer.drain(), 60)
        assert b'"payload_too_large"' in await asyncio.wait_for(reader.read(), 60)


async def test_a_request_behind_a_refused_body_is_not_carried_out(lab: Lab) -> None:
    """The client was told that the connection ends: it sends the request again elsewhere."""
    engine, claim = lab.engine, await lab.running()
    await lab.complete(claim)
    context = ServerContext(engine, Authentication(engine, is_open=True))
    size = 2 << 20
    large = f"POST /v1/executions HTTP/1.1\r\n{JSON}Content-Length: {size}\r\n\r\n"
    other = f"POST /v1/executions/{claim.id}/replay HTTP/1.1\r\nHost: x\r\n\r\n"
    async with (
        serving(create_app(context), http=GuardedProtocol) as address,
        connection(address) as (reader, writer),
    ):
        writer.write(large.encode() + b" " * (size - 10))
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 60)
        writer.write(b" " * 10 + other.encode())
        assert b"HTTP/1.1" not in await asyncio.wait_for(reader.read(), 60)
        await asyncio.sleep(0.05)
    assert await lab.state(claim.id) is PublicState.COMPLETED


async def test_a_client_that_sends_an_endless_body_is_cut_off(hasty: str) -> None:
    head = f"POST /v1/executions HTTP/1.1\r\n{JSON}Content-Length: {8 << 20}\r\n\r\n"
    async with connection(hasty) as (reader, writer):
        writer.write(head.encode())
        assert b'"payload_too_large"' in await asyncio.wait_for(reader.read(), 60)


@pytest.mark.parametrize("sent", ["", f"{JSON}Content-Length: 100\r\n\r\n{{"])
async def test_a_request_that_is_cut_off_is_refused(unhurried: str, sent: str) -> None:
    async with connection(unhurried) as (reader, writer):
        writer.write(f"POST /v1/executions HTTP/1.1\r\n{sent}".encode())
        writer.write_eof()
        head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["code"] == "truncated_request"


async def test_a_head_that_does_not_end_ends_the_connection(hasty: str) -> None:
    async with connection(hasty) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert b" 408 " in await asyncio.wait_for(reader.read(), 60)


async def test_a_head_without_end_is_refused(unhurried: str) -> None:
    async with connection(unhurried) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Large: " + b"x" * MAX_HEAD)
        assert b" 431 " in await asyncio.wait_for(reader.read(), 60)


async def test_a_head_in_one_piece_has_the_same_limit(unhurried: str) -> None:
    fields = b"".join(b"x-%05d: %s\r\n" % (number, b"y" * 100) for number in range(700))
    async with connection(unhurried) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n")
        assert b" 431 " in await asyncio.wait_for(reader.read(), 60)


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"\x16\x03\x01\r\n\r\n", 400, "malformed_request"),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, "malformed_request"),
        (CHUNKED + b"\r\nzz\r\n", 400, "malformed_request"),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed_request"),
        (b"CONNECT x:1 HTTP/1.1\r\nContent-Length: 5\r\n\r\n12", 400, "malformed_request"),
        (b"GET / HTTP/1.1\r\nX-Large: " + b"x" * MAX_HEAD, 431, "head_too_large"),
        (b"GET /" + b"x" * MAX_HEAD + b" HTTP/1.1\r\n\r\n", 431, "head_too_large"),
    ],
)  # fmt: skip
async def test_what_is_no_request_is_refused_like_others(
    unhurried: str, sent: bytes, status: int, code: str
) -> None:
    await _is_refused(unhurried, sent, status, code)


async def test_a_target_that_is_no_path_ends_a_connection_that_was_used(unhurried: str) -> None:
    async with connection(unhurried) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b'{"status":"ok"}'), 60)
        writer.write(b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b'"malformed_request"' in await asyncio.wait_for(reader.read(), 60)


async def test_a_request_that_takes_too_long_is_refused_like_others(hasty: str) -> None:
    await _is_refused(hasty, b"GET / HTTP/1.1\r\nX-Slow: ", 408, "request_timeout")


async def _is_refused(address: str, sent: bytes, status: int, code: str) -> None:
    async with connection(address) as (reader, writer):
        writer.write(sent)
        head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nx-content-type-options: nosniff" in head
    assert json.loads(body)["code"] == code
    assert json.loads(body)["error"]


@pytest.mark.parametrize("around", [b"0\r\n" + b"x: y\r\n" * 20_000, b"5;" + b"e" * 100_000])
async def test_trailers_and_extensions_without_end_end_the_connection(
    hasty: str, around: bytes
) -> None:
    async with connection(hasty) as (reader, writer):
        head = f"POST /v1/executions HTTP/1.1\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode() + around)
        await _closed(reader)


async def test_connections_beyond_the_limit_are_refused(
    unhurried: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedProtocol, "most_connections", 1)
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with connection(unhurried) as (reader, writer):
        writer.write(request)
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 60)
        async with connection(unhurried) as (refused, _):
            answer = await asyncio.wait_for(refused.read(), 60)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"too_many_connections"' in answer
        writer.write(request)
        await asyncio.wait_for(reader.readuntil(b"HTTP/1.1 200 "), 60)


def test_connections_leave_files_for_the_store() -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < connections_allowed() < resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= files


async def test_trailers_are_not_headers(unhurried: str) -> None:
    """Headers decide who calls and what a body is; they end with the head."""
    body = json.dumps(EXECUTION).encode()
    async with connection(unhurried) as (reader, writer):
        head = f"POST /v1/executions HTTP/1.1\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n"
        chunks = b"%x\r\n%s\r\n0\r\nAuthorization: Bearer x\r\n\r\n" % (len(body), body)
        writer.write(head.encode() + chunks)
        assert b" 201 " in await asyncio.wait_for(reader.readline(), 60)


@pytest.mark.parametrize("path", ["/v1/executions", "/nowhere"])
async def test_the_rest_of_a_refused_body_is_not_read_for_ever(hasty: str, path: str) -> None:
    async with connection(hasty) as (reader, writer):
        more = "Content-Encoding: gzip\r\nContent-Length: 1000\r\n"
        writer.write(f"POST {path} HTTP/1.1\r\n{JSON}{more}\r\n{{".encode())
        assert b"HTTP/1.1 4" in await asyncio.wait_for(reader.readline(), 60)
        await _closed(reader)


async def test_a_connection_goes_on_after_a_refused_body(unhurried: str) -> None:
    request = f"POST /nowhere HTTP/1.1\r\n{JSON}Content-Length: 4\r\n\r\n".encode()
    async with connection(unhurried) as (reader, writer):
        writer.write(request)
        assert b" 404 " in await asyncio.wait_for(reader.readline(), 60)
        writer.write(b"1234GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b'{"status":"ok"}'), 60)


async def _closed(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):  # what was sent after the end
        await asyncio.wait_for(reader.read(), 60)


async def test_requests_in_a_row_are_answered(unhurried: str) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with connection(unhurried) as (reader, writer):
        writer.write(request * 2 + request[:9])
        writer.write(request[9:])
        for _ in range(3):
            assert b" 200 " in await asyncio.wait_for(reader.readline(), 60)
            await reader.readuntil(b'{"status":"ok"}')


@pytest.mark.parametrize("kind", ["application/json", "application/octet-stream"])
@pytest.mark.parametrize("path", ["/v1/executions", "/v1/executions/x/replay"])
async def test_a_compressed_body_is_refused(http: httpx.AsyncClient, path: str, kind: str) -> None:
    headers = {"Content-Type": kind, "Content-Encoding": "gzip"}
    packed = gzip.compress(json.dumps(EXECUTION).encode())
    reply = await http.post(path, content=packed, headers=headers)
    assert error_of(reply, 415)["code"] == "unsupported_media_type"


async def test_a_tag_that_stands_twice_is_refused(http: httpx.AsyncClient) -> None:
    id = await create(http)
    headers = {"Content-Type": "application/json"}
    body = b'{"a.b": "1", "a.b": "2"}'
    reply = await http.put(f"/v1/executions/{id}/tags", content=body, headers=headers)
    assert "duplicate" in error_of(reply, 422)["details"]["reason"]
    assert (await http.get(f"/v1/executions/{id}/tags")).json() == {}


async def test_the_result_of_an_empty_body_is_empty(http: httpx.AsyncClient) -> None:
    id = await create(http)
    worker = {"worker_id": "w", "worker_instance_id": "w-1"}
    (claim,) = (await http.post("/v1/work/claim", json=worker)).json()["claims"]
    headers = {"Content-Type": "application/octet-stream", "FlowFabric-Handle": claim["handle"]}
    await http.post(f"/v1/work/{id}/complete", content=b"", headers=headers)
    assert (await http.get(f"/v1/executions/{id}/result")).content == b""


# -- clients that go away, and a server that stops


async def _long_polls(http: httpx.AsyncClient) -> list[str]:
    id, flow = await create(http), await create_flow(http)
    return [
        f"/v1/executions/{id}/wait?wait=30s",
        f"/v1/flows/{flow}/wait?wait=30s",
        f"/v1/executions/{id}/attempts/0/stream/tail?block_ms=30000",
    ]


async def test_long_polls_end_when_the_server_stops(
    http: httpx.AsyncClient, context: ServerContext
) -> None:
    polls = [asyncio.ensure_future(http.get(path)) for path in await _long_polls(http)]
    await asyncio.wait(polls, timeout=0.2)
    assert not any(poll.done() for poll in polls[::2])
    context.draining.set()
    found = [(await asyncio.wait_for(poll, 60)).status_code for poll in polls]
    assert (found[0], found[2]) == (202, 200)


async def test_a_reader_that_is_gone_leaves_its_place(
    http: httpx.AsyncClient, context: ServerContext
) -> None:
    path = (await _long_polls(http))[2]
    async with listening(context) as address, connection(address) as (_, writer):
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await _until(lambda: context.stream_readers == 1)
        writer.close()
        await _until(lambda: context.stream_readers == 0)


async def _until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not check():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("leaves", [True, False])
async def test_an_idle_stream_ends_quietly(
    http: httpx.AsyncClient,
    context: ServerContext,
    caplog: pytest.LogCaptureFixture,
    leaves: bool,
) -> None:
    """When its client goes away, and when the server stops: then with a proper last chunk."""
    id = await create(http)
    before = asyncio.all_tasks()
    with caplog.at_level(logging.ERROR):
        async with listening(context) as address:
            for path in ("/v1/events/stream", f"/v1/executions/{id}/stream"):
                async with Events.open(f"{address}{path}") as stream:
                    if not leaves:
                        context.draining.set()
                        with pytest.raises(AssertionError, match="the stream has ended"):
                            await stream.next()
        await _until(lambda: asyncio.all_tasks() <= before)
    assert not caplog.records
