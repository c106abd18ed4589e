"""The gateway: what happens to every request before a route is found, and to every answer.

It finds the caller, counts the request against the caller's rate, turns foreign web pages away from
a server without tokens, gives the request an id, answers preflights, adds the security headers, and
writes one log line. HEAD is asked of the routes as GET, and only the head of the answer is sent. A
token that is not valid is refused here, whatever the path; a request without a token goes on, and
the guard of its route refuses it unless the route is public.
"""

import logging
import random
import re
import time
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from litestar import Litestar
from litestar.exceptions import HTTPException
from litestar.utils import normalize_path

from flowfabric.core.access.token import ANONYMOUS, Identity
from flowfabric.core.base.errors import (
    FlowFabricError,
    InvalidCredentials,
    Overloaded,
    Unauthenticated,
)
from flowfabric.engine.access.actor import acting_as
from flowfabric.engine.commit.observer import watching
from flowfabric.engine.commit.trace import carrying
from flowfabric.server.caller.access import CALLER
from flowfabric.server.caller.rate import RateLimiter, caller_key
from flowfabric.server.caller.web_pages import check_page
from flowfabric.server.context import ServerContext
from flowfabric.server.http.asgi import (
    CONTEXT,
    REQUEST_ID,
    SECURITY_HEADERS,
    App,
    Message,
    Receive,
    Scope,
    Send,
)
from flowfabric.server.http.errors import answer_to, error_headers
from flowfabric.server.http.paths import check_path, hide_slashes, shown_path
from flowfabric.server.http.wire import IGNORED, encode

log = logging.getLogger("flowfabric.server.access")

_GIVEN_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_random = random.Random().getrandbits  # noqa: S311 - ids of requests
_PROBES = frozenset({"/healthz", "/readyz"})
"""They answer every prober: a token that one sends is not looked at."""
_UNLIMITED = _PROBES | {"/metrics"}
"""Nor are their requests counted, or those of a scraper."""


class Gateway:
    """Wraps the application; lifespan messages pass through."""

    def __init__(self, app: Litestar, context: ServerContext) -> None:
        self._app: App = app
        self._routing = app.asgi_router.handle_routing
        self._context = context
        rate = context.options.rate_limit
        self._rates = None if rate is None else RateLimiter(rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        if method == "HEAD":
            # A copy: the server under us must know that the answer has no body.
            scope = {**scope, "method": "GET"}
        scope[CONTEXT] = self._context
        hide_slashes(scope)
        headers = dict(scope["headers"])
        cors = self._context.options.cors
        origin = _text(headers, b"origin")
        given = _text(headers, b"x-request-id")
        answering = _Answering(scope, send, method, given, cors.headers(origin))
        try:
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                asked = _text(headers, b"access-control-request-headers")
                method = _text(headers, b"access-control-request-method")
                await answering.preflight(cors.preflight(origin, method, asked))
                return
            caller = scope[CALLER] = await self._identify(scope, headers)
            self._count(scope, caller)
            check_path(scope)
            if caller is ANONYMOUS:
                self._check_page(scope, headers, origin)
            with (
                acting_as(None if caller is None else caller.name),
                carrying(_text(headers, b"traceparent")),
            ):
                await self._app(scope, receive, answering.send)
        except FlowFabricError as error:
            await answering.refuse(error)
        finally:
            self._find_route(scope)
            answering.tell()

    def _find_route(self, scope: Scope) -> None:
        """Says which route was asked for, where the request is refused before the routes see it, or
        by its method. Every route has OPTIONS."""
        if "path_template" in scope:
            return
        path = normalize_path(scope["path"].removeprefix(scope.get("root_path", "")))
        with suppress(HTTPException):
            *_, scope["path_template"] = self._routing(path=path, method="OPTIONS")

    async def _identify(self, scope: Scope, headers: dict[bytes, bytes]) -> Identity | None:
        if scope["path"] in _PROBES and scope["method"] == "GET":
            return None
        try:
            _check_one(scope, headers)
            return await self._context.authentication.identify(_text(headers, b"authorization"))
        except Unauthenticated:
            self._charge(scope, None)  # guessing has a rate as well, whatever the path
            raise

    def _check_page(self, scope: Scope, headers: dict[bytes, bytes], origin: str | None) -> None:
        ours = scope["server"][0] if scope.get("server") else None
        check_page(self._context.options, scope["method"], ours, _text(headers, b"host"), origin)

    def _count(self, scope: Scope, caller: Identity | None) -> None:
        if scope["path"] not in _UNLIMITED:
            self._charge(scope, caller)

    def _charge(self, scope: Scope, caller: Identity | None) -> None:
        if self._rates is None:
            return
        address = scope["client"][0] if scope.get("client") else None
        wait = self._rates.take(caller_key(caller, address), time.monotonic())
        if wait:
            raise Overloaded("too many requests from this caller", retry_after=wait)


def _check_one(scope: Scope, headers: dict[bytes, bytes]) -> None:
    """Refuses two `Authorization` headers: two readers would disagree about who is calling."""
    if len(headers) == len(scope["headers"]):
        return
    if sum(name == b"authorization" for name, _ in scope["headers"]) > 1:
        raise InvalidCredentials("send one Authorization header")


def _text(headers: dict[bytes, bytes], name: bytes) -> str | None:
    found = headers.get(name)
    return None if found is None else found.decode("latin-1")


def _allowing_head(header: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """The same header; `Allow` names HEAD beside GET, and all methods in one order."""
    name, value = header
    if name.lower() != b"allow":
        return header
    methods = set(value.split(b", "))
    return name, b", ".join(sorted(methods | ({b"HEAD"} if b"GET" in methods else set())))


class _Answering:
    """Sends the answer of one request and remembers what is logged of it."""

    def __init__(
        self, scope: Scope, send: Send, method: str, given: str | None, cors: dict[str, str]
    ) -> None:
        self._scope: Any = scope
        self._send = send
        self._method = method
        # Not a secret: a call of the system for each would cost more than it is worth.
        self._id = given if given and _GIVEN_ID.fullmatch(given) else f"{_random(64):016x}"
        self._cors = cors
        self._began = time.perf_counter()
        self._status = 0
        scope[REQUEST_ID] = self._id

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            if self._status == 405 or self._method == "OPTIONS":
                message["headers"] = [_allowing_head(each) for each in message["headers"]]
            message["headers"] = [*message["headers"], *SECURITY_HEADERS, *self._own_headers()]
        if self._method != "HEAD":
            await self._send(message)
        elif message["type"] == "http.response.start":
            # The end comes at once: a stream without an end then hears that its client has left.
            await self._send(message)
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse(self, error: FlowFabricError) -> None:
        status, body = answer_to(error)
        await self._whole(status, encode(body), error_headers(error))

    async def preflight(self, allowed: dict[str, str] | None) -> None:
        self._cors = allowed or {}
        await self._whole(403 if allowed is None else 204, b"", {})

    async def _whole(self, status: int, content: bytes, more: dict[str, str]) -> None:
        headers = [(b"content-length", str(len(content)).encode())]
        if content:
            headers.append((b"content-type", b"application/json"))
        headers += [(name.lower().encode(), value.encode()) for name, value in more.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": content, "more_body": False})

    def tell(self) -> None:
        """Measures and logs the request. A scrape is not measured, as in the original: it would
        change what it reads."""
        seconds = time.perf_counter() - self._began
        method, route = self._method, self._scope.get("path_template")
        if route != "/metrics" and (seen := watching()) is not None:
            seen.requested(method, route or None, self._status, seconds)
        if log.isEnabledFor(logging.INFO):
            path, took = route or shown_path(self._scope), seconds * 1000
            # Made here, because the logger would walk up the stack for the line that has called it.
            values = (method, path, self._status, took)
            text = "%s %s %d in %.1f ms"
            record = logging.LogRecord(log.name, logging.INFO, __file__, 0, text, values, None)
            caller = self._scope.get(CALLER)
            record.__dict__.update(
                request_id=self._id,
                caller=None if caller is None else caller.name,
                method=method,
                route=route or None,
                status=self._status,
                seconds=round(seconds, 6),
            )
            log.handle(record)

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        own = [(b"x-request-id", self._id.encode())]
        own += [(name.encode(), value.encode()) for name, value in self._cors.items()]
        if ignored := self._scope.get(IGNORED):
            # The names are the caller's: quoted, none of them can end the header.
            shown = ", ".join(quote(name[:80], safe="") for name in ignored[:20])
            own.append((b"flowfabric-ignored-fields", shown.encode()))
        return own
