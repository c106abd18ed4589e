"""Changing and deleting the budgets and quotas of `/v1/budgets` and `/v1/quotas`. All namespaces
share them, so that a caller that is limited to some changes none."""

from typing import Any

from litestar import Request, Response, delete, put
from litestar.params import FromPath, JSONBody

from flowfabric.core.base.errors import NotFound
from flowfabric.core.limit.quota import Quota
from flowfabric.server.access import caller_of, check_everywhere, needs
from flowfabric.server.budgets import (
    BudgetPath,
    BudgetStatus,
    CreateBudget,
    budget_status,
    read_budget,
)
from flowfabric.server.context import engine_of
from flowfabric.server.documents import document
from flowfabric.server.quotas import CreateQuota, read_quota
from flowfabric.server.shown import shown
from flowfabric.server.wire import UuidText, read_uuid_text, respond, same_uuid

QuotaPath = FromPath[UuidText]


class DefineBudget(CreateBudget, kw_only=True, forbid_unknown_fields=True):
    """The whole definition. `budget_id` may repeat the one of the path."""


class DefineQuota(CreateQuota, kw_only=True, forbid_unknown_fields=True):
    """All its limits. `quota_policy_id` may repeat the one of the path."""


@put("/v1/budgets/{id:str}", opt=needs("operate"))
async def put_budget(
    request: Request[Any, Any, Any], id: BudgetPath, data: JSONBody[DefineBudget]
) -> Response[BudgetStatus]:
    """Gives a budget another definition, or creates it; what was spent stays."""
    key = read_uuid_text(id, "budget_id")
    same_uuid(key, data.budget_id, "budget_id")
    check_everywhere(caller_of(request))
    budgets = engine_of(request).budgets
    await budgets.define(read_budget(data, str(key)))
    return respond(budget_status(await budgets.get(str(key))))


@delete("/v1/budgets/{id:str}", opt=needs("operate"), status_code=204)
async def delete_budget(request: Request[Any, Any, Any], id: BudgetPath) -> None:
    """Deletes a budget; what waits for it may start."""
    name = str(read_uuid_text(id, "budget_id"))
    check_everywhere(caller_of(request))
    if not await engine_of(request).budgets.delete(name):
        raise NotFound("budget", name)


@put("/v1/quotas/{name:str}", opt=needs("operate", shows=shown(Quota)))
async def put_quota(
    request: Request[Any, Any, Any], name: QuotaPath, data: JSONBody[DefineQuota]
) -> Response[dict[str, Any]]:
    """Gives a quota other limits, or creates it; what runs goes on."""
    key = read_uuid_text(name, "quota_policy_id")
    same_uuid(key, data.quota_policy_id, "quota_policy_id")
    check_everywhere(caller_of(request))
    quotas = engine_of(request).quotas
    await quotas.define(read_quota(data, str(key)))
    return respond(document(await quotas.get(str(key))))


@delete("/v1/quotas/{name:str}", opt=needs("operate"), status_code=204)
async def delete_quota(request: Request[Any, Any, Any], name: QuotaPath) -> None:
    """Deletes a quota; what waits for it may start."""
    id = str(read_uuid_text(name, "quota_policy_id"))
    check_everywhere(caller_of(request))
    if not await engine_of(request).quotas.delete(id):
        raise NotFound("quota", id)


HANDLERS = [put_budget, delete_budget, put_quota, delete_quota]
