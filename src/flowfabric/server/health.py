"""`/healthz` and `/readyz`: whether the process lives, and whether it should be sent requests.

Both are public and say nothing about runs. A process that drains is alive but not ready, so that a
load balancer turns away from it before it stops.
"""

import logging
from importlib.metadata import version
from typing import Any

from litestar import Request, Response, get
from msgspec import UNSET, Struct, UnsetType

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.engine.engine import Engine
from flowfabric.server.context import context_of
from flowfabric.server.http.errors import ErrorBody, refusals
from flowfabric.server.http.wire import respond

log = logging.getLogger("flowfabric.server")


class Health(Struct):
    status: str


class Readiness(Struct):
    """`status` is `ready`, `draining`, `store_unavailable` or `not_sweeping`; all but the first are
    errors with it as their `code`."""

    status: str
    version: str
    store: str
    schema_version: int | None
    sweeping: bool
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    details: dict[str, str] | UnsetType = UNSET


@get("/healthz", responses=refusals(500))
async def healthz(request: Request[Any, Any, Any]) -> Response[Health]:
    """200 if the store answers, else 500."""
    if await _answers(context_of(request).engine):
        return respond(Health("ok"))
    body = ErrorBody(error="the store does not answer", code="unavailable", retryable=True)
    return respond(body, 500)


@get("/readyz")
async def readyz(request: Request[Any, Any, Any]) -> Response[Readiness]:
    """200 if this process should be sent requests, else 503 with the reason."""
    context = context_of(request)
    engine = context.engine
    status = "ready"
    if context.draining.is_set():
        status = "draining"
    elif not await _answers(engine):
        status = "store_unavailable"
    elif not engine.sweep.is_running:
        status = "not_sweeping"
    body = Readiness(
        status=status,
        version=version("flowfabric"),
        store=engine.store.name,
        schema_version=engine.schema_version,
        sweeping=engine.sweep.is_running,
    )
    if status == "ready":
        return respond(body)
    body.error, body.code, body.details = f"not ready: {status}", status, {}
    return respond(body, 503)


async def _answers(engine: Engine) -> bool:
    try:
        await engine.ping()
    except FlowFabricError as error:
        log.warning("a probe found that the store does not answer: %s", error)
        return False
    return True


HANDLERS = [healthz, readyz]
