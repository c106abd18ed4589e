"""`/v1/quotas`: create a quota. Its name in the engine is the text of its uuid."""

from typing import Any

from litestar import Request, Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody
from msgspec import Struct

from flowfabric.core.base.numbers import MAX_COUNT
from flowfabric.core.base.time import MAX_SPAN, Millis
from flowfabric.core.limit.quota import Quota, Rate
from flowfabric.server.caller.access import needs
from flowfabric.server.http.errors import BODIES
from flowfabric.server.http.parameters import shared_engine
from flowfabric.server.http.wire import U64, Now, Tagged, UuidText, fit, optional_uuid, respond


class CreateQuota(Struct, kw_only=True):
    """0 means no limit; a window of 0 is a minute."""

    window_seconds: U64
    max_requests_per_window: U64
    max_concurrent: U64
    quota_policy_id: UuidText | None = None
    now: Now = None


class QuotaIdentity(Struct):
    quota_policy_id: str


class CreateQuotaAnswer(Tagged):
    Created: QuotaIdentity | None = None
    AlreadySatisfied: QuotaIdentity | None = None


@post(
    "/v1/quotas",
    opt=needs("operate"),
    operation_id="create_quota",
    tags=["quotas"],
    responses=BODIES
    | {200: ResponseSpec(CreateQuotaAnswer, generate_examples=False, description="It existed.")},
)
async def create_quota(
    request: Request[Any, Any, Any], data: JSONBody[CreateQuota]
) -> Response[CreateQuotaAnswer]:
    """Creates a quota; one that exists stays as it is."""
    engine = shared_engine(request)
    id = str(optional_uuid(data.quota_policy_id, "quota_policy_id") or engine.suspensions.new_id())
    if await engine.quotas.create(read_quota(data, id)):
        return respond(CreateQuotaAnswer(Created=QuotaIdentity(id)), 201)
    return respond(CreateQuotaAnswer(AlreadySatisfied=QuotaIdentity(id)))


def read_quota(data: CreateQuota, id: str) -> Quota:
    count = fit(data.max_requests_per_window, "max_requests_per_window", MAX_COUNT)
    window = fit(data.window_seconds, "window_seconds", MAX_SPAN // 1000)
    return Quota(
        name=id,
        concurrency=fit(data.max_concurrent, "max_concurrent", MAX_COUNT),
        rate=Rate(count, Millis(window * 1000)),
    )


HANDLERS = [create_quota]
