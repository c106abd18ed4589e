"""The store at a glance: counts, failures, what waits for people, what this server can do."""

import asyncio
from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.params import FromQuery, QueryParameter

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.wait.waitpoint import OpenWaitpoint
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import MAX_EXPIRED_PAGE
from flowfabric.engine.execution.views import Failures
from flowfabric.engine.service_calls import Capabilities
from flowfabric.engine.wait.suspensions import SuspendedExecution
from flowfabric.server.caller.access import caller_of, needs
from flowfabric.server.context import context_of, engine_of
from flowfabric.server.dashboard.overview_reader import OverviewAnswer
from flowfabric.server.http.documents import document, plain, respond_page
from flowfabric.server.http.parameters import (
    Cursor,
    ListLimit,
    Namespace,
    PageLimit,
    shared_engine,
    visible_namespace,
)
from flowfabric.server.http.shown import also, page, shown
from flowfabric.server.http.wire import read_id, respond
from flowfabric.store.queries import Counts, ExpiredLease

MOMENT_DIGITS = 15
"""Of a moment in the year 9999."""


@get("/v1/capabilities", opt=needs("read"))
async def capabilities(request: Request[Any, Any, Any]) -> Response[Capabilities]:
    """The capability record: identity and flat booleans."""
    return respond(await engine_of(request).capabilities())


@get("/v1/overview", opt=needs("read"))
async def overview(
    request: Request[Any, Any, Any], namespace: Namespace = None
) -> Response[OverviewAnswer]:
    """What is going on, in one answer: computed at most once a second, however many ask. Counts
    end at 100,000; `capped` names those that do."""
    caller, engine = caller_of(request), engine_of(request)
    place = visible_namespace(caller, namespace)
    return respond(await context_of(request).overviews.read(engine, place))


@get("/v1/counts", opt=needs("read", shows=shown(Counts)))
async def counts(
    request: Request[Any, Any, Any],
    namespace: Namespace = None,
    lane: FromQuery[str | None] = None,
) -> Response[dict[str, Any]]:
    """How many executions are in each state; `capped` names those that are at least so many."""
    place = visible_namespace(caller_of(request), namespace)
    return respond(document(await engine_of(request).views.counts(namespace=place, lane=lane)))


@get("/v1/failures", opt=needs("read", shows=shown(Failures)))
async def failures(
    request: Request[Any, Any, Any],
    namespace: Namespace = None,
    kind: FromQuery[str | None] = None,
    since: FromQuery[int | None] = None,
) -> Response[dict[str, Any]]:
    """Failed executions, grouped by kind and error."""
    place = visible_namespace(caller_of(request), namespace)
    moment = None if since is None else Millis(since)
    found = await engine_of(request).views.failures(kind=kind, namespace=place, since=moment)
    return respond(document(found))


@get("/v1/suspended", opt=needs("read", shows=page("executions", shown(SuspendedExecution))))
async def suspended(
    request: Request[Any, Any, Any],
    namespace: Namespace = None,
    cursor: Cursor = None,
    limit: ListLimit = 100,
) -> Response[dict[str, Any]]:
    """Suspended executions, the one that has waited longest first, with why they wait."""
    place = visible_namespace(caller_of(request), namespace)
    after = None if cursor is None else _read_cursor(cursor)
    found = await engine_of(request).suspensions.suspended(
        namespace=place, after=after, limit=limit
    )
    return respond_page("executions", found, limit, _write_cursor)


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
    after = None if cursor is None else _read_cursor(cursor)
    found = await engine.suspensions.suspended(namespace=place, after=after, limit=limit)
    # Side by side, they share their statements.
    known = await asyncio.gather(*(_waitpoints(engine, each) for each in found))
    open = [
        {**document(waitpoint), "since": each.since, "reason": each.reason, "kind": each.kind}
        for each, waitpoints in zip(found, known, strict=True)
        for waitpoint in waitpoints
    ]
    more = _write_cursor(found[-1]) if len(found) == limit else None
    return respond({"waitpoints": open, "next_cursor": more})


async def _waitpoints(engine: Engine, suspended: SuspendedExecution) -> list[OpenWaitpoint]:
    try:
        return await engine.suspensions.waitpoints(suspended.id)
    except NotFound:  # deleted in this moment
        return []


LeaseLimit = Annotated[
    int, QueryParameter(ge=0, description="At most so many, up to 10,000; 0 for none")
]


@get("/v1/leases/expired", opt=needs("read", shows=page("leases", shown(ExpiredLease))))
async def expired_leases(
    request: Request[Any, Any, Any],
    namespace: Namespace = None,
    as_of: FromQuery[int | None] = None,
    cursor: Cursor = None,
    limit: LeaseLimit = 1000,
) -> Response[dict[str, Any]]:
    """Leases that ran out or were revoked and were not taken over yet, the earliest first, for a
    supervisor that reclaims; with `as_of` those that run out until that moment."""
    most = min(limit, MAX_EXPIRED_PAGE)
    found = await shared_engine(request).claims.expired(
        as_of=None if as_of is None else Millis(as_of),
        after=None if cursor is None else _read_cursor(cursor),
        limit=most,
        namespace=namespace,
    )
    return respond_page("leases", found, most, _lease_cursor, plain)


def _lease_cursor(each: ExpiredLease) -> str:
    return f"{each.expires_at}~{each.id}"


def _write_cursor(each: SuspendedExecution) -> str:
    return f"{each.since}~{each.id}"


def _read_cursor(text: str) -> tuple[Millis, ExecutionId]:
    moment, _, id = text.partition("~")
    if not moment.isdecimal() or len(moment) > MOMENT_DIGITS:
        raise Invalid(f"not a cursor: {text[:80]!r}")
    return Millis(int(moment)), read_id(id)


HANDLERS = [
    capabilities,
    overview,
    counts,
    failures,
    suspended,
    waitpoints,
    expired_leases,
]
