"""The store at a glance: counts, failures, what this server can do."""

from typing import Any

from litestar import Request, Response, get
from litestar.params import FromQuery

from flowfabric.core.base.time import Millis
from flowfabric.engine.execution.described import Failures
from flowfabric.engine.service_calls import Capabilities
from flowfabric.server.caller.access import caller_of, needs
from flowfabric.server.context import context_of, engine_of
from flowfabric.server.dashboard.overview_reader import OverviewAnswer
from flowfabric.server.http.documents import document
from flowfabric.server.http.parameters import Namespace, visible_namespace
from flowfabric.server.http.shown import shown
from flowfabric.server.http.wire import respond
from flowfabric.store.queries import Counts


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


HANDLERS = [capabilities, overview, counts, failures]
