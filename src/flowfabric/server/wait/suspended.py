"""What waits for the outside world: suspended executions, and their open waitpoints."""

import asyncio
from typing import Any

from litestar import Request, Response, get

from flowfabric.core.base.errors import NotFound
from flowfabric.core.wait.waitpoint import OpenWaitpoint
from flowfabric.engine.engine import Engine
from flowfabric.engine.wait.suspensions import SuspendedExecution, every_waitpoint
from flowfabric.server.caller.access import caller_of, needs
from flowfabric.server.context import engine_of
from flowfabric.server.http.documents import document, respond_page
from flowfabric.server.http.parameters import (
    Cursor,
    ListLimit,
    Namespace,
    PageLimit,
    moment_cursor,
    read_moment_cursor,
    visible_namespace,
)
from flowfabric.server.http.shown import also, page, shown
from flowfabric.server.http.wire import respond


@get("/v1/suspended", opt=needs("read", shows=page("executions", shown(SuspendedExecution))))
async def suspended(
    request: Request[Any, Any, Any],
    namespace: Namespace = None,
    cursor: Cursor = None,
    limit: ListLimit = 100,
) -> Response[dict[str, Any]]:
    """Suspended executions, the one that has waited longest first, with why they wait."""
    place = visible_namespace(caller_of(request), namespace)
    after = None if cursor is None else read_moment_cursor(cursor)
    found = await engine_of(request).suspensions.suspended(
        namespace=place, after=after, limit=limit
    )
    return respond_page("executions", found, limit, _cursor)


@get(
    "/v1/waitpoints",
    opt=needs(
        "read", shows=page("waitpoints", also(OpenWaitpoint, since=int, reason=str, kind=str))
    ),
)
async def waitpoints(
    request: Request[Any, Any, Any],
    namespace: Namespace = None,
    cursor: Cursor = None,
    limit: PageLimit = 100,
) -> Response[dict[str, Any]]:
    """The open waitpoints of suspended executions, page by page of executions, never with their
    tokens: what people may be asked to decide."""
    caller, engine = caller_of(request), engine_of(request)
    place = visible_namespace(caller, namespace)
    after = None if cursor is None else read_moment_cursor(cursor)
    found = await engine.suspensions.suspended(namespace=place, after=after, limit=limit)
    # Side by side, they share their statements.
    known = await asyncio.gather(*(_waitpoints(engine, each) for each in found))
    open = [
        {**document(waitpoint), "since": each.since, "reason": each.reason, "kind": each.kind}
        for each, waitpoints in zip(found, known, strict=True)
        for waitpoint in waitpoints
    ]
    more = _cursor(found[-1]) if len(found) == limit else None
    return respond({"waitpoints": open, "next_cursor": more})


async def _waitpoints(engine: Engine, suspended: SuspendedExecution) -> list[OpenWaitpoint]:
    try:
        return await every_waitpoint(engine.suspensions, suspended.id)
    except NotFound:  # deleted in this moment
        return []


def _cursor(each: SuspendedExecution) -> str:
    return moment_cursor(each.since, each.id)


HANDLERS = [suspended, waitpoints]
