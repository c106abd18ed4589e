"""`/v1/work/renew`: one heartbeat for all leases of a worker."""

import asyncio
from typing import Any

from litestar import Request, Response, post
from litestar.params import JSONBody

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.server.caller.access import caller_of, needs
from flowfabric.server.context import context_of
from flowfabric.server.http.errors import answer_to
from flowfabric.server.http.wire import respond
from flowfabric.server.worker.work.answers import RenewedLease, RenewedLeases
from flowfabric.server.worker.work.bodies import LeaseToRenew, RenewLeases
from flowfabric.server.worker.work.described import describe_cleanup
from flowfabric.server.worker.work.lease import present_lease

RENEW_BODY = 1 << 20
TOO_MANY = 429


@post("/v1/work/renew", status_code=200, opt=needs("work", body=RENEW_BODY))
async def renew_leases(
    request: Request[Any, Any, Any], data: JSONBody[RenewLeases]
) -> Response[RenewedLeases]:
    """Renews each lease, or says why it is lost. The answer also says which runs are being
    cancelled, so that the worker stops. If the store does not say about one of them, the whole
    request is refused with 503: no lease is called lost that may not be."""
    context = context_of(request)
    answers = await asyncio.gather(*(_renewed(request, each, data) for each in data.leases))
    held = [ExecutionId(each.execution_id).uuid for each in answers if each.error is None]
    asked = await context.engine.views.cleanups(held)
    for each in answers:
        if each.error is None:
            found = asked.get(ExecutionId(each.execution_id).uuid)
            each.cancel_requested = describe_cleanup(found)
    return respond(RenewedLeases(answers))


async def _renewed(
    request: Request[Any, Any, Any], data: LeaseToRenew, wanted: RenewLeases
) -> RenewedLease:
    id, context = data.execution_id or "", context_of(request)
    ttl = None if wanted.lease_ms is None else Millis(wanted.lease_ms)
    try:
        lease = await present_lease(context, caller_of(request), data, data.execution_id)
        id = lease.id
        renewed = await context.engine.attempts.renew(lease.owned, ttl, record=wanted.record)
        return RenewedLease(id, 200, renewed.expires_at)
    except FlowFabricError as error:
        status, body = answer_to(error)
        if status >= 500 or status == TOO_MANY:
            raise
        return RenewedLease(id, status, error=body)


HANDLERS = [renew_leases]
