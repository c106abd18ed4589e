"""HTTP/1.1 with limits on the head of a request, and answers in a single write.

The parser keeps a head until it is complete, however long that takes and however large it grows.
Here a head has a size and a time; so has a connection on which no request begins. Bodies have
their limits by route (`server.http.request_limits`); what comes with a chunked body and is none of
it has one here, and so has the rest of a body whose request is answered already.

uvicorn writes the head of an answer when it starts, and the body when it comes, which is two calls
of the system and two packets for every small answer; here they go together.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flowfabric.server.http.asgi import SECURITY_HEADERS
from flowfabric.server.http.wire import encode

MAX_HEAD = 64 * 1024
HEAD_TIME = 30.0
"""Seconds for the head of a request."""

LINGER_TIME = 10.0
"""Seconds in which a client may send the rest of a body whose request is answered already: to close
at once could cut the answer off."""


class Refusal(NamedTuple):
    """An answer to what never became a request."""

    status: int
    error: str
    code: str

    @property
    def answer(self) -> bytes:
        body = encode({"error": self.error, "code": self.code, "details": {}})
        head = [
            (b"connection", b"close"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *SECURITY_HEADERS,
        ]
        lines = b"".join(b"%s: %s\r\n" % each for each in head)
        status = b"%d %s" % (self.status, HTTPStatus(self.status).phrase.encode())
        return b"HTTP/1.1 %s\r\n%s\r\n%s" % (status, lines, body)


MALFORMED = Refusal(400, "the request is not valid HTTP", "malformed_request")
TRUNCATED = Refusal(400, "the request ended before it was complete", "truncated_request")
TOO_SLOW = Refusal(408, "the request did not arrive in time", "request_timeout")
TOO_MANY = Refusal(503, "the server has too many connections", "too_many_connections")
TOO_LARGE = Refusal(431, f"the head of a request has at most {MAX_HEAD} bytes", "head_too_large")

AT_ONCE = 64 * 1024
"""Bytes that are written without waiting for more, so that the transport can say that the client
is too slow for them."""


class GatheredWrites:
    """A transport that writes what was written in one turn of the event loop at its end. It stays
    open while `lingers` says so. What it does not know itself, the transport under it does."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        lingers: Callable[[], bool] = lambda: False,
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._lingers = lingers
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
        if not self._lingers():
            self._transport.close()

    def _flush(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    most_connections: int | None = None
    """Those beyond are refused; None means no limit."""
    head_time = HEAD_TIME
    linger_time = LINGER_TIME
    _head = 0
    """How much of a head that is not complete was read."""
    _fields = 0
    """The size of what is known of that head."""
    _reads_head = True
    _around_body = 0
    """How much was read of chunk extensions and trailers since the last byte of a body."""
    _requests = 0
    _why = MALFORMED
    _lingers = False
    """Whether the connection ends as soon as the client has sent the rest of a body."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        gathered = GatheredWrites(transport, self.loop, self._linger)
        super().connection_made(cast("asyncio.Transport", gathered))
        if self.most_connections is not None and len(self.connections) > self.most_connections:
            self._refuse(TOO_MANY)
            return
        self._after(self.timeout_keep_alive, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stay()
        self._lingers = True  # there is nothing left to wait for
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._requests
        self._around_body += len(data)
        super().data_received(data)
        if not self._reads_head:
            if self._around_body > MAX_HEAD:
                self._refuse(TOO_LARGE)
            return
        if self._requests != before:
            return  # what may follow a request in the same piece counts with the next one
        if not self._head:
            self._after(self.head_time, self._too_slow)
        self._head += len(data)
        if self._head > MAX_HEAD:
            self._refuse(TOO_LARGE)

    def eof_received(self) -> None:
        """The client sends nothing more; the answer to what is complete may still be under way."""
        if self._head or not self._reads_head:
            self._refuse(TRUNCATED)

    def on_message_begin(self) -> None:
        if self._lingers:
            raise ValueError  # the client was told that the connection ends: nothing is carried out
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._grow(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._reads_head:
            return  # a trailer: no route reads one, and they would be kept
        self._grow(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stay()
        super().on_headers_complete()  # which refuses a target that is no path
        self._reads_head, self._fields, self._around_body = False, 0, 0

    def on_body(self, body: bytes) -> None:
        self._around_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stay()
        super().on_message_complete()
        self._reads_head, self._head = True, 0
        self._requests += 1
        if self._lingers:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self._reads_head:
            self._after(self.linger_time, self._end)

    def send_400_response(self, msg: str) -> None:
        """What the parser, or a callback above, has refused."""
        self._refuse(self._why)

    def _unsupported_upgrade_warning(self) -> None:
        """A client may ask for any protocol; it is answered in this one."""

    def _grow(self, size: int) -> None:
        self._fields += size
        if self._fields > MAX_HEAD:
            self._why = TOO_LARGE
            raise ValueError  # the parser stops, and asks for the answer

    def _linger(self) -> bool:
        """Whether the connection stays although it is to be closed: the request is answered, and
        its client still sends the body. To close now would reset the connection, and the client
        would lose the answer."""
        if self._lingers or self._reads_head or not self._is_answered():
            return False
        self._lingers = True
        self._after(self.linger_time, self._end)
        return True

    def _is_answered(self) -> bool:
        return self.cycle is not None and self.cycle.response_complete

    def _end(self) -> None:
        self._lingers = True
        self.transport.close()

    def _too_slow(self) -> None:
        if self._head:
            self._refuse(TOO_SLOW)
        else:  # no request has begun
            self.transport.close()

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._stay()
        self._timer = self.loop.call_later(seconds, act)

    def _stay(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, why: Refusal) -> None:
        """Ends the connection; says why unless that would get into another answer."""
        self._stay()
        if self.transport.is_closing():
            return
        if self._may_answer():
            self.transport.write(why.answer)
        self._end()

    def _may_answer(self) -> bool:
        if self._reads_head:
            return self.cycle is None or self.cycle.response_complete
        return not (self.cycle.response_started or self.pipeline)
