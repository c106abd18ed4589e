"""HTTP/1.1 with limits on the head of a request, and answers in a single write.

The parser keeps a head until it is complete, however long that takes and however large it grows.
Here a head has a size and a time; so has a connection on which no request begins. Bodies have
their limits by route (`server.limits`).

uvicorn writes the head of an answer when it starts, and the body when it comes, which is two calls
of the system and two packets for every small answer; here they go together.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 64 * 1024
HEAD_TIME = 30.0
"""Seconds for the head of a request."""

_REFUSAL = b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


AT_ONCE = 64 * 1024
"""Bytes that are written without waiting for more, so that the transport can say that the client
is too slow for them."""


class GatheredWrites:
    """A transport that writes what was written in one turn of the event loop at its end. What it
    does not know itself, the transport under it does."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size >= AT_ONCE:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    head_time = HEAD_TIME
    _head = 0
    """How much of a head that is not complete was read."""
    _reads_head = True
    _requests = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        gathered = GatheredWrites(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", gathered))
        self._end_after(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stay()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._requests
        super().data_received(data)
        if not self._reads_head or self._requests != before:
            return  # what may follow a request in the same piece counts with the next one
        if not self._head:
            self._end_after(self.head_time)
        self._head += len(data)
        if self._head > MAX_HEAD:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_headers_complete(self) -> None:
        self._stay()
        self._reads_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._reads_head, self._head = True, 0
        self._requests += 1

    def _end_after(self, seconds: float) -> None:
        self._stay()
        self._timer = self.loop.call_later(seconds, self._refuse, b"408 Request Timeout")

    def _stay(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: bytes) -> None:
        """Ends the connection; says why if a request has begun and no other is being answered."""
        self._stay()
        if self.transport.is_closing():
            return
        if self._head and (self.cycle is None or self.cycle.response_complete):
            self.transport.write(_REFUSAL % status)
        self.transport.close()
