"""Budgets and quotas as operators look for them. All namespaces share them, so that a caller that
is limited to some sees none."""

from typing import Any

from litestar import Request, Response, get
from litestar.params import FromPath
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import NotFound
from flowfabric.core.limit.budget import Budget
from flowfabric.core.limit.quota import Quota
from flowfabric.engine.limit.quotas import QuotaStatus
from flowfabric.server.access import caller_of, check_everywhere, needs
from flowfabric.server.context import engine_of
from flowfabric.server.documents import document, respond_page
from flowfabric.server.parameters import Cursor, PageLimit
from flowfabric.server.shown import also, by_name, page, shown
from flowfabric.server.wire import canonical_uuid, respond

SHOWN_KEYS = 100


class DimensionUse(Struct):
    """The limits of a dimension, and what is taken of it."""

    hard: int | None
    soft: int | None
    taken: int


@get(
    "/v1/budgets",
    opt=needs("read", shows=page("budgets", also(Budget, dimensions=by_name(shown(DimensionUse))))),
)
async def list_budgets(
    request: Request[Any, Any, Any], cursor: Cursor = None, limit: PageLimit = 100
) -> Response[dict[str, Any]]:
    """Budgets by name, with their limits and what is spent."""
    check_everywhere(caller_of(request))
    found = await engine_of(request).budgets.list(after=cursor or "", limit=limit)
    return respond_page("budgets", found, limit, lambda last: last.name, _budget)


@get("/v1/quotas", opt=needs("read", shows=page("quotas", shown(Quota))))
async def list_quotas(
    request: Request[Any, Any, Any], cursor: Cursor = None, limit: PageLimit = 100
) -> Response[dict[str, Any]]:
    """Quotas by name, with their limits; how full one is says `/v1/quotas/{name}`."""
    check_everywhere(caller_of(request))
    found = await engine_of(request).quotas.list(after=cursor or "", limit=limit)
    return respond_page("quotas", found, limit, lambda last: last.name)


@get("/v1/quotas/{name:str}", opt=needs("read", shows=also(QuotaStatus, key_count=int)))
async def quota_status(
    request: Request[Any, Any, Any], name: FromPath[str]
) -> Response[dict[str, Any]]:
    """How full a quota is, altogether and for its fullest keys."""
    check_everywhere(caller_of(request))
    quotas = engine_of(request).quotas
    try:
        found = await quotas.status(name)
    except NotFound:
        found = await quotas.status(canonical_uuid(name))
    return respond(_status(found))


def _budget(budget: Budget) -> dict[str, Any]:
    limits = {
        dimension: {
            "hard": limit.hard,
            "soft": budget.soft(dimension),
            "taken": budget.taken(dimension),
        }
        for dimension, limit in budget.limits.items()
    }
    return {**document(budget), "dimensions": limits}


def _status(status: QuotaStatus) -> dict[str, Any]:
    keys = sorted(status.keys, key=lambda count: (-count.waiting, -count.held))
    fullest = replace(status, keys=tuple(keys[:SHOWN_KEYS]))
    return {**document(fullest), "key_count": len(keys)}


HANDLERS = [list_budgets, list_quotas, quota_status]
