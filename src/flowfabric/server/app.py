"""The application: all routes, put together. A noun is one file and one line here.

The routes of FlowFabric 0.15, which its clients rely on word for word, have files of their own:
executions, flows, waitpoints, workers, budgets, quotas, keys and streams. What this server has
beside them for the same nouns is in search, graphs, decisions, suspended, the reads of workers and
the settings of limits.
"""

from functools import cache

from litestar import Litestar
from litestar.exceptions import HTTPException

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.server import health, metrics
from flowfabric.server.caller import me
from flowfabric.server.context import ServerContext
from flowfabric.server.dashboard import changes, overview
from flowfabric.server.dashboard import files as dashboard
from flowfabric.server.execution import (
    bulk,
    events,
    executions,
    schedules,
    search,
    streams,
    webhooks,
)
from flowfabric.server.flow import flows, graphs
from flowfabric.server.http import errors
from flowfabric.server.http.asgi import App
from flowfabric.server.http.gateway import Gateway
from flowfabric.server.http.methods import options_of
from flowfabric.server.http.request_limits import RequestLimits
from flowfabric.server.http.shared_answers import SharedAnswers
from flowfabric.server.http.wire import Body, BodyError
from flowfabric.server.limit import budgets, lanes, quotas
from flowfabric.server.limit import settings as limit_settings
from flowfabric.server.openapi import OPENAPI, describe, openapi_document
from flowfabric.server.remote import engine_calls
from flowfabric.server.wait import approvals, decisions, keys, suspended, waitpoints
from flowfabric.server.worker import reads as worker_reads
from flowfabric.server.worker import work, workers

HANDLERS = [
    openapi_document,
    *describe("health", health.HANDLERS),
    *describe("metrics", metrics.HANDLERS),
    *describe("executions", executions.HANDLERS),
    *describe("search", search.HANDLERS),
    *describe("graphs", graphs.HANDLERS),
    *describe("lanes", lanes.HANDLERS),
    *describe("schedules", schedules.HANDLERS),
    *describe("overview", overview.HANDLERS),
    *describe("approvals", approvals.HANDLERS),
    *describe("streams", streams.HANDLERS),
    *describe("events", events.HANDLERS),
    *describe("events", webhooks.HANDLERS),
    *describe("waitpoints", waitpoints.HANDLERS),
    *describe("waitpoints", suspended.HANDLERS),
    *describe("workers", workers.HANDLERS),
    *describe("flows", flows.HANDLERS),
    *describe("budgets", budgets.HANDLERS),
    *describe("quotas", quotas.HANDLERS),
    *describe("keys", keys.HANDLERS),
    *describe("work", work.HANDLERS),
    *describe("executions", bulk.HANDLERS),
    *describe("events", changes.HANDLERS),
    *dashboard.HANDLERS,
    *describe("waitpoints", decisions.HANDLERS),
    *describe("limits", limit_settings.HANDLERS),
    *describe("me", me.HANDLERS),
    *describe("workers", worker_reads.HANDLERS),
    *describe("engine", engine_calls.HANDLERS),
]


def create_app(context: ServerContext) -> App:
    """The ASGI application of one server process."""
    return Gateway(_routes(), context)


@cache
def _routes() -> Litestar:
    """The routes, which know no server: the gateway gives each request the context of its own. To
    prepare them takes a fifth of a second, so all servers of a process share them."""
    return Litestar(
        [*options_of(HANDLERS), *HANDLERS],  # of two handlers for OPTIONS the first one counts
        dto=Body,
        return_dto=None,
        middleware=[RequestLimits, SharedAnswers],
        exception_handlers={
            BodyError: errors.on_body_error,
            errors.BodyTooLarge: errors.on_too_large,
            errors.BodyTooSlow: errors.on_too_slow,
            FlowFabricError: errors.on_engine_error,
            HTTPException: errors.on_http_error,
            TimeoutError: errors.on_timeout,
            Exception: errors.on_fault,
        },
        openapi_config=OPENAPI,
        logging_config=None,
    )
