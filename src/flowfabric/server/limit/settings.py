"""Budgets and quotas as operators list, read, change and delete them. All namespaces share them, so
that a caller that is limited to some sees and changes none."""

from typing import Any

from litestar import Request, Response, delete, get, put
from litestar.params import FromPath, JSONBody
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import NotFound
from flowfabric.core.limit.budget import Budget
from flowfabric.core.limit.quota import Quota
from flowfabric.engine.limit.quotas import QuotaStatus
from flowfabric.server.caller.access import needs
from flowfabric.server.http.documents import document, respond_page
from flowfabric.server.http.parameters import Cursor, PageLimit, find_limit, shared_engine
from flowfabric.server.http.shown import also, by_name, page, shown
from flowfabric.server.http.wire import UuidText, canonical_uuid, respond
from flowfabric.server.limit.budgets import (
    BudgetPath,
    BudgetStatus,
    CreateBudget,
    budget_status,
    read_budget,
)
from flowfabric.server.limit.quotas import CreateQuota, read_quota

SHOWN_KEYS = 100
QuotaPath = FromPath[UuidText]


# -- budgets


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
    found = await shared_engine(request).budgets.list(after=cursor or "", limit=limit)
    return respond_page("budgets", found, limit, lambda last: last.name, _budget)


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


class DefineBudget(CreateBudget, kw_only=True, forbid_unknown_fields=True):
    """The whole definition. `budget_id` may repeat the one of the path."""


@put("/v1/budgets/{id:str}", opt=needs("operate"))
async def put_budget(
    request: Request[Any, Any, Any], id: BudgetPath, data: JSONBody[DefineBudget]
) -> Response[BudgetStatus]:
    """Gives a budget another definition, or creates it; what was spent stays."""
    name, engine = find_limit(request, id, "budget_id", data.budget_id)
    await engine.budgets.define(read_budget(data, name))
    return respond(budget_status(await engine.budgets.get(name)))


@delete("/v1/budgets/{id:str}", opt=needs("operate"), status_code=204)
async def delete_budget(request: Request[Any, Any, Any], id: BudgetPath) -> None:
    """Deletes a budget; what waits for it may start."""
    name, engine = find_limit(request, id, "budget_id")
    if not await engine.budgets.delete(name):
        raise NotFound("budget", name)


# -- quotas


@get("/v1/quotas", opt=needs("read", shows=page("quotas", shown(Quota))))
async def list_quotas(
    request: Request[Any, Any, Any], cursor: Cursor = None, limit: PageLimit = 100
) -> Response[dict[str, Any]]:
    """Quotas by name, with their limits; how full one is says `/v1/quotas/{name}`."""
    found = await shared_engine(request).quotas.list(after=cursor or "", limit=limit)
    return respond_page("quotas", found, limit, lambda last: last.name)


@get("/v1/quotas/{name:str}", opt=needs("read", shows=also(QuotaStatus, key_count=int)))
async def quota_status(
    request: Request[Any, Any, Any], name: FromPath[str]
) -> Response[dict[str, Any]]:
    """How full a quota is, altogether and for its fullest keys."""
    quotas = shared_engine(request).quotas
    try:
        found = await quotas.status(name)
    except NotFound:
        found = await quotas.status(canonical_uuid(name))
    keys = sorted(found.keys, key=lambda count: (-count.waiting, -count.held))
    fullest = replace(found, keys=tuple(keys[:SHOWN_KEYS]))
    return respond({**document(fullest), "key_count": len(keys)})


class DefineQuota(CreateQuota, kw_only=True, forbid_unknown_fields=True):
    """All its limits. `quota_policy_id` may repeat the one of the path."""


@put("/v1/quotas/{name:str}", opt=needs("operate", shows=shown(Quota)))
async def put_quota(
    request: Request[Any, Any, Any], name: QuotaPath, data: JSONBody[DefineQuota]
) -> Response[dict[str, Any]]:
    """Gives a quota other limits, or creates it; what runs goes on."""
    id, engine = find_limit(request, name, "quota_policy_id", data.quota_policy_id)
    await engine.quotas.define(read_quota(data, id))
    return respond(document(await engine.quotas.get(id)))


@delete("/v1/quotas/{name:str}", opt=needs("operate"), status_code=204)
async def delete_quota(request: Request[Any, Any, Any], name: QuotaPath) -> None:
    """Deletes a quota; what waits for it may start."""
    id, engine = find_limit(request, name, "quota_policy_id")
    if not await engine.quotas.delete(id):
        raise NotFound("quota", id)


HANDLERS = [
    list_budgets,
    put_budget,
    delete_budget,
    list_quotas,
    quota_status,
    put_quota,
    delete_quota,
]
