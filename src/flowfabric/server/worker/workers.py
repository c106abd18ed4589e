"""`/v1/workers`: a worker asks for work."""

from typing import Any

from litestar import Request, Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import Struct

from flowfabric.core.base.ids import partition_key
from flowfabric.server.caller.access import caller_of, needs
from flowfabric.server.context import engine_of
from flowfabric.server.execution.executions import check_grant_ttl, grantee
from flowfabric.server.http.errors import BODIES
from flowfabric.server.http.parameters import visible_namespace
from flowfabric.server.http.wire import U64, Lane, empty, respond


class AskForGrant(Struct, kw_only=True):
    """`namespace` limits what is granted; a caller of several, but not all, has to name one."""

    lane_id: Lane
    worker_instance_id: str
    grant_ttl_ms: U64
    capabilities: list[str] = []
    namespace: str | None = None


class ClaimGrant(Struct):
    """A grant that the worker redeems before it expires."""

    execution_id: str
    partition_key: str
    grant_key: str
    expires_at_ms: int


@post(
    "/v1/workers/{worker_id:str}/claim",
    status_code=200,
    opt=needs("work"),
    operation_id="claim_for_worker",
    tags=["workers"],
    responses=BODIES
    | {204: ResponseSpec(None, generate_examples=False, description="There is no work.")},
)
async def claim_for_worker(
    request: Request[Any, Any, Any], worker_id: FromPath[str], data: JSONBody[AskForGrant]
) -> Response[ClaimGrant]:
    """Grants the best waiting execution of a lane to a worker; 204 if there is none."""
    granted = await engine_of(request).grants.find_and_issue(
        grantee(worker_id, data.worker_instance_id),
        lane=data.lane_id,
        capabilities=data.capabilities,
        ttl=check_grant_ttl(data.grant_ttl_ms),
        namespace=visible_namespace(caller_of(request), data.namespace),
    )
    if granted is None:
        return empty()
    place = partition_key("fp", granted.id.partition_index)
    return respond(ClaimGrant(str(granted.id), place, granted.key, granted.expires_at))


HANDLERS = [claim_for_worker]
