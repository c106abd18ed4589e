"""Limits of a request: what its caller may do, the size of its body, and how long it may take.

The size is checked from `Content-Length` before the handler runs, and again while the body
arrives. A handler that reads no body has its body read and dropped, so that the limit holds there
as well. Handlers set their own with `opt=needs(…, body=1 << 20)`; a handler that waits on purpose
sets `long=True` (or `waits=True`, if it does so only when asked by `?wait=`), and only its body has
the deadline then. A compressed body is refused: its size
would say nothing about what it unpacks to.
"""

import asyncio
from typing import Any

from flowfabric.server.caller.access import check_scope
from flowfabric.server.context import ServerContext
from flowfabric.server.http.asgi import CONTEXT, App, Message, Receive
from flowfabric.server.http.errors import BodyTooLarge, BodyTooSlow
from flowfabric.server.http.parameters import check_query
from flowfabric.server.http.paths import show_slashes
from flowfabric.server.http.wire import EMPTY, BodyError

DEFAULT_BODY = 64 * 1024
_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class RequestLimits:
    """An ASGI middleware that runs when the route is known."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        show_slashes(scope)
        check_scope(scope)  # before the body is looked at
        handler: Any = scope["route_handler"]
        if scope["query_string"]:
            check_query(scope, handler)
        has_body = _may_have_body(scope)
        context: ServerContext = scope[CONTEXT]
        seconds = context.options.request_timeout / 1000
        body = _Arriving(receive, asyncio.get_running_loop().time() + seconds)
        try:
            async with asyncio.timeout(seconds) as deadline:
                if has_body:
                    receive = await _limited(scope, body, handler)
                else:
                    _check_headers(scope, handler)
                if takes_long(scope):
                    # Only what the handler does may take longer, not what it is sent.
                    deadline.reschedule(None)
                await self._app(scope, receive, send)
        except TimeoutError:
            if has_body and not body.whole:
                raise BodyTooSlow from None
            raise


def _may_have_body(scope: Any) -> bool:
    return scope["method"] in _WITH_BODY


def takes_long(scope: Any) -> bool:
    """Whether the handler waits on purpose: always, or because the query asks it to."""
    options = scope["route_handler"].opt
    return bool(options.get("long")) or ("waits" in options and b"wait=" in scope["query_string"])


async def _limited(scope: Any, receive: Receive, handler: Any) -> Receive:
    """The body, up to the limit of the route."""
    limit, route = _check_headers(scope, handler)
    counted = _counted(receive, limit, route)
    if "data" in handler.parsed_fn_signature.parameters:
        return _never_empty(counted, scope)
    if not handler.opt.get("raw"):
        await _drop_body(counted)
    return counted


def _check_headers(scope: Any, handler: Any) -> tuple[int, str]:
    """The limit of the route and its name; refuses a body that says of itself that it is larger."""
    limit: int = handler.opt.get("body", DEFAULT_BODY)
    route: str = scope.get("path_template", scope["path"])
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise BodyTooLarge(limit, route)
        if name == b"content-encoding" and value.lower() != b"identity" and _may_have_body(scope):
            raise BodyError(415, "send the body without a Content-Encoding")
    return limit, route


class _Arriving:
    """A body, which must be here by then; what comes after it (that the client leaves) has no
    deadline."""

    def __init__(self, receive: Receive, end: float) -> None:
        self._receive = receive
        self._end = end
        self.whole = False

    async def __call__(self) -> Message:
        if self.whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._end):
                message = await self._receive()
        except TimeoutError:
            raise BodyTooSlow from None
        self.whole = not message.get("more_body")
        return message


def _counted(receive: Receive, limit: int, route: str) -> Receive:
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        if message["type"] == "http.request":
            taken += len(message["body"])
            if taken > limit:
                raise BodyTooLarge(limit, route)
        return message

    return counted


def _never_empty(receive: Receive, scope: Any) -> Receive:
    """Litestar does not decode an empty body: a blank stands for it, and the scope says so."""
    empty = True

    async def read() -> Message:
        nonlocal empty
        message = await receive()
        if message["type"] == "http.request":
            empty = empty and not message["body"]
            if empty and not message.get("more_body"):
                scope[EMPTY] = True
                return {**message, "body": b" "}
        return message

    return read


async def _drop_body(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body"):
            return
