"""`/metrics`, for Prometheus.

It names lanes and tasks of all namespaces, so it is public only where nothing but this machine
reaches it: at a loopback address, under a name of this machine, which a proxy that others reach
replaces by theirs. Elsewhere it needs a token, or with `--metrics-listen` it has an address of its
own and is not found here.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from litestar import Request, Response, get
from litestar.exceptions import NotFoundException

from flowfabric.core.access.token import AccessScope
from flowfabric.metrics import CONTENT_TYPE, render
from flowfabric.metrics.listener import listening
from flowfabric.server.caller.access import caller_of
from flowfabric.server.caller.web_pages import is_own_name
from flowfabric.server.context import ServerContext, context_of

_WITHOUT_CHARSET = CONTENT_TYPE.removesuffix("; charset=utf-8")
"""Litestar adds it."""


@get("/metrics")
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The metrics of this server and its store, as text for Prometheus."""
    context = context_of(request)
    if context.options.metrics_listen is not None:
        raise NotFoundException
    if not (context.options.listen.is_loopback and is_own_name(request.headers.get("host", ""))):
        caller_of(request).require(AccessScope.READ, everywhere=True)
    body = await render(context.engine)
    return Response(body, media_type=_WITHOUT_CHARSET, headers={"Cache-Control": "no-store"})


@asynccontextmanager
async def metrics_beside(context: ServerContext) -> AsyncIterator[str | None]:
    """Serves the metrics on their own address, if they have one; yields its URL."""
    address = context.options.metrics_listen
    if address is None:
        yield None
        return

    async def all_metrics() -> bytes:
        return await render(context.engine)

    shared = context.options.processes > 1
    async with listening(address.host, address.port, all_metrics, shared=shared) as url:
        yield url


HANDLERS = [metrics]
