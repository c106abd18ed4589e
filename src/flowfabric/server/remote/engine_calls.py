"""`POST /v1/engine`: operations of the engine for the Python SDK, many in one request.

What `Fabric("http://…")` and its workers speak; `server.remote.operations` answers. Programs in
other languages use the routes by noun. Scopes and namespaces are checked for each call on its own.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from litestar import Request, Response, get, post
from litestar.response import Stream

from flowfabric.core.access.token import Identity
from flowfabric.core.base.errors import (
    Forbidden,
    MissingCredentials,
    Unauthenticated,
    Unavailable,
)
from flowfabric.remote.wire import CALLS_PATH, HINTS_PATH, MEDIA_TYPE
from flowfabric.server.caller.access import check_again, known_caller
from flowfabric.server.context import ServerContext, context_of
from flowfabric.server.remote.operations import check_listener

CALLS_BODY = 16 << 20


@post(
    CALLS_PATH,
    opt={"body": CALLS_BODY, "raw": True, "long": True},
    status_code=200,
    include_in_schema=False,
)
async def engine_calls(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Answers each call on its own; only a body that is not a list of calls is refused."""
    context = context_of(request)
    caller = _caller(request)
    if context.draining.is_set():
        raise Unavailable("the server is draining")
    reply = await context.operations.answer(caller, await request.body())
    return Response(reply, media_type=MEDIA_TYPE)


@get(HINTS_PATH, opt={"long": True}, include_in_schema=False)
async def engine_hints(request: Request[Any, Any, Any]) -> Stream:
    """One byte for each hint that something may have happened, as long as the client stays."""
    context, caller = context_of(request), _caller(request)
    check_listener(caller)  # before the answer begins
    source = context.operations.hints(caller)
    hints = _hints(request, source, context)
    return Stream(hints, media_type="application/octet-stream")


async def _hints(
    request: Request[Any, Any, Any], source: AsyncIterator[bytes], context: ServerContext
) -> AsyncIterator[bytes]:
    draining = asyncio.ensure_future(context.draining.wait())
    try:
        while not draining.done():
            coming = asyncio.ensure_future(anext(source))
            waiting: set[asyncio.Future[Any]] = {coming, draining}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                return
            await check_again(request)
            yield coming.result()
    except (Unauthenticated, Forbidden):
        return  # a client that connects again learns why
    finally:
        draining.cancel()


def _caller(request: Request[Any, Any, Any]) -> Identity:
    caller = known_caller(request)
    if caller is None:
        raise MissingCredentials("missing or invalid Authorization header")
    return caller


HANDLERS = [engine_calls, engine_hints]
