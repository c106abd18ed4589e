"""Workers as operators look for them: which are there, what each holds, which leases ran out."""

from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.params import FromPath, FromQuery, QueryParameter

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import HeldLease, Presence
from flowfabric.engine.execution.claims import MAX_EXPIRED_PAGE
from flowfabric.server.caller.access import caller_of, needs
from flowfabric.server.context import engine_of
from flowfabric.server.http.documents import document, plain, respond_page
from flowfabric.server.http.parameters import (
    Cursor,
    Namespace,
    PageLimit,
    moment_cursor,
    read_moment_cursor,
    shared_engine,
    visible_namespace,
)
from flowfabric.server.http.shown import also, listing, page, shown
from flowfabric.server.http.wire import respond
from flowfabric.store.queries import ExpiredLease

LeaseLimit = Annotated[
    int, QueryParameter(ge=0, description="At most so many, up to 10,000; 0 for none")
]


@get(
    "/v1/workers",
    opt=needs("read", shows=page("workers", also(Presence, held=int, expires_at=int))),
)
async def list_workers(
    request: Request[Any, Any, Any],
    namespace: Namespace = None,
    lane: FromQuery[str | None] = None,
    kind: FromQuery[str | None] = None,
    cursor: Cursor = None,
    limit: PageLimit = MAX_PAGE,
) -> Response[dict[str, Any]]:
    """Live workers by namespace and instance, with what they hold according to the store."""
    caller, workers = caller_of(request), engine_of(request).workers
    place = visible_namespace(caller, namespace)
    after = None if cursor is None else _read_cursor(cursor)
    found = await workers.list(namespace=place, lane=lane, kind=kind, after=after, limit=limit)
    held = await workers.held(found)
    shown = [
        {**document(entry), "held": leases, "expires_at": entry.expires_at}
        for entry, leases in zip(found, held, strict=True)
    ]
    more = _write_cursor(found[-1]) if len(found) == limit else None
    return respond({"workers": shown, "next_cursor": more})


@get(
    "/v1/workers/{instance:str}/leases",
    opt=needs("read", shows=listing("leases", shown(HeldLease))),
)
async def worker_leases(
    request: Request[Any, Any, Any],
    instance: FromPath[str],
    namespace: Namespace = None,
    limit: PageLimit = 100,
) -> Response[dict[str, Any]]:
    """The leases of one worker instance."""
    caller = caller_of(request)
    place = visible_namespace(caller, namespace)
    found = await engine_of(request).workers.leases(instance, namespace=place, limit=limit)
    return respond({"leases": [document(lease) for lease in found]})


def _write_cursor(entry: Presence) -> str:
    """Both names may have any sign in them, so the length of the first one tells them apart."""
    namespace, instance = entry.key
    return f"{len(namespace)}~{namespace}{instance}"


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
        after=None if cursor is None else read_moment_cursor(cursor),
        limit=most,
        namespace=namespace,
    )
    return respond_page("leases", found, most, _lease_cursor, plain)


def _lease_cursor(each: ExpiredLease) -> str:
    return moment_cursor(each.expires_at, each.id)


def _read_cursor(text: str) -> tuple[str, str]:
    length, tilde, names = text.partition("~")
    if not (tilde and length.isascii() and length.isdigit() and len(length) < 4):
        raise Invalid(f"not a cursor: {text[:80]!r}")
    return names[: int(length)], names[int(length) :]


HANDLERS = [list_workers, worker_leases, expired_leases]
