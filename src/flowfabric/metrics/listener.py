"""`/metrics` on an address of its own: a few lines of HTTP, for processes without a web server."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from flowfabric.core.base.errors import Invalid
from flowfabric.metrics.exposition import CONTENT_TYPE, HasEngine, render, render_for_one
from flowfabric.metrics.recorder import enable

log = logging.getLogger("flowfabric.metrics")

PATIENCE = 10.0
"""Seconds a client has to send its request, and to take the answer."""
LONGEST_LINE = 8192
MOST_HEADERS = 100

Render = Callable[[], Awaitable[bytes]]


@asynccontextmanager
async def serve(address: str, fabric: HasEngine | None = None) -> AsyncIterator[str]:
    """Answers `GET /metrics` at `host:port` while the block runs; port 0 is any free one. Yields
    the URL. With a fabric, its process also shows the figures of the store while it sweeps, so that
    one of many workers does."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise Invalid(f"an address has a host and a port, such as 127.0.0.1:9100, not {address!r}")

    async def of_worker() -> bytes:
        return await render() if fabric is None else await render_for_one(await fabric.engine())

    async with listening(host.strip("[]"), int(port), of_worker) as url:
        yield url


@asynccontextmanager
async def listening(
    host: str, port: int, render: Render, *, shared: bool = False
) -> AsyncIterator[str]:
    """The same for any text. `shared`: other processes listen on the same port."""
    enable()
    try:
        server = await asyncio.start_server(
            lambda reader, writer: _serve(reader, writer, render),
            host,
            port,
            limit=LONGEST_LINE,
            reuse_port=True if shared else None,
        )
    except OSError as error:
        raise Invalid(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    async with server:
        yield _url(server.sockets[0])


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, render: Render
) -> None:
    """One request for each connection."""
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(await _answer(reader, render))
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # a client that is slow, gone, or does not speak HTTP
    except Exception:
        log.exception("a scrape failed")
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader, render: Render) -> bytes:
    words = (await reader.readuntil(b"\n")).split()
    for _ in range(MOST_HEADERS):
        if not (await reader.readuntil(b"\n")).strip():
            break
    else:
        return _reply(b"431 Request Header Fields Too Large")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return _reply(b"400 Bad Request")
    method, path = words[0], words[1].partition(b"?")[0]
    if path != b"/metrics":
        return _reply(b"404 Not Found")
    if method not in (b"GET", b"HEAD"):
        return _reply(b"405 Method Not Allowed")
    return _reply(b"200 OK", await render(), shown=method == b"GET")


def _reply(status: bytes, body: bytes = b"", *, shown: bool = True) -> bytes:
    head = (
        f"Content-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return b"HTTP/1.1 " + status + b"\r\n" + head.encode() + (body if shown else b"")
