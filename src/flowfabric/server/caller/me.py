"""Who the caller is: a page asks this before it offers anything to click."""

from importlib.metadata import version
from typing import Any

from litestar import Request, Response, get
from msgspec import Struct

from flowfabric.core.access.token import ANONYMOUS
from flowfabric.server.caller.access import caller_of
from flowfabric.server.context import engine_of
from flowfabric.server.http.wire import respond


class CallerAnswer(Struct):
    """`namespaces` is null for a caller that sees all. `open`: the server asks for no token."""

    name: str
    scopes: list[str]
    namespaces: list[str] | None
    open: bool
    version: str
    store: str


@get("/v1/me", security=[{"token": []}])
async def me(request: Request[Any, Any, Any]) -> Response[CallerAnswer]:
    """The name, scopes and namespaces of the caller; any valid token may ask."""
    caller = caller_of(request)
    seen = None if caller.namespaces is None else sorted(caller.namespaces)
    return respond(
        CallerAnswer(
            name=caller.name,
            scopes=sorted(str(scope) for scope in caller.scopes),
            namespaces=seen,
            open=caller == ANONYMOUS,
            version=version("flowfabric"),
            store=engine_of(request).store.name,
        )
    )


HANDLERS = [me]
