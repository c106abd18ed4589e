"""Budgets and quotas as operators look for them. All namespaces share them, so that a caller that
is limited to some sees none."""

from typing import Any

from litestar import Request, Response, get
from litestar.params import FromPath
from msgspec.structs import replace

from flowfabric.core.limit.budget import Budget
from flowfabric.engine.limit.quotas import QuotaStatus
from flowfabric.server.access import caller_of, check_everywhere, needs
from flowfabric.server.context import engine_of
from flowfabric.server.documents import document
from flowfabric.server.parameters import Cursor, PageLimit
from flowfabric.server.wire import respond

SHOWN_KEYS = 100


@get("/v1/budgets", opt=needs("read"))
async def list_budgets(
    request: Request[Any, Any, Any], cursor: Cursor = None, limit: PageLimit = 100
) -> Response[dict[str, Any]]:
    """Budgets by name, with their limits and what is spent."""
    check_everywhere(caller_of(request))
    found = await engine_of(request).budgets.list(after=cursor or "", limit=limit)
    more = found[-1].name if len(found) == limit else None
    return respond({"budgets": [_budget(each) for each in found], "next_cursor": more})


@get("/v1/quotas", opt=needs("read"))
async def list_quotas(
    request: Request[Any, Any, Any], cursor: Cursor = None, limit: PageLimit = 100
) -> Response[dict[str, Any]]:
    """Quotas by name, with their limits; how full one is says `/v1/quotas/{name}`."""
    check_everywhere(caller_of(request))
    found = await engine_of(request).quotas.list(after=cursor or "", limit=limit)
    more = found[-1].name if len(found) == limit else None
    return respond({"quotas": [document(each) for each in found], "next_cursor": more})


@get("/v1/quotas/{name:str}", opt=needs("read"))
async def quota_status(
    request: Request[Any, Any, Any], name: FromPath[str]
) -> Response[dict[str, Any]]:
    """How full a quota is, altogether and for its fullest keys."""
    check_everywhere(caller_of(request))
    return respond(_status(await engine_of(request).quotas.status(name)))


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
    shown = replace(status, keys=tuple(keys[:SHOWN_KEYS]))
    return {**document(shown), "key_count": len(keys)}


HANDLERS = [list_budgets, list_quotas, quota_status]
