"""`/v1/budgets`: create, read, count usage, reset.

A budget of these routes is a budget of the engine whose name is the text of its uuid. The words
that say what it is for and what happens at its limits are kept as labels.
"""

from typing import Any

from litestar import Request, Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import Struct

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import MAX_SPAN, Millis
from flowfabric.core.limit.budget import Budget, Limit, OnHard, OnSoft
from flowfabric.core.limit.spend import AlreadyApplied, Created, HardBreach, SoftBreach
from flowfabric.server.caller.access import needs
from flowfabric.server.http.errors import BODIES, CHANGES, READS
from flowfabric.server.http.parameters import find_limit, shared_engine
from flowfabric.server.http.wire import (
    U64,
    Now,
    Tagged,
    UuidText,
    fit,
    optional_uuid,
    respond,
)

ADVISORY = "advisory"
BudgetPath = FromPath[UuidText]


class CreateBudget(Struct, kw_only=True):
    """`dimensions`, `hard_limits` and `soft_limits` belong together by position; 0 means no
    limit."""

    scope_type: str
    scope_id: str
    enforcement_mode: str
    on_hard_limit: str
    on_soft_limit: str
    reset_interval_ms: U64
    dimensions: list[str]
    hard_limits: list[U64]
    soft_limits: list[U64]
    budget_id: UuidText | None = None
    now: Now = None


class BudgetIdentity(Struct):
    budget_id: str


class CreateBudgetAnswer(Tagged):
    Created: BudgetIdentity | None = None
    AlreadySatisfied: BudgetIdentity | None = None


@post(
    "/v1/budgets",
    opt=needs("operate"),
    operation_id="create_budget",
    tags=["budgets"],
    responses=BODIES
    | {200: ResponseSpec(CreateBudgetAnswer, generate_examples=False, description="It existed.")},
)
async def create_budget(
    request: Request[Any, Any, Any], data: JSONBody[CreateBudget]
) -> Response[CreateBudgetAnswer]:
    """Creates a budget; one that exists stays as it is."""
    engine = shared_engine(request)
    id = str(optional_uuid(data.budget_id, "budget_id") or engine.suspensions.new_id())
    answer = await engine.budgets.create(read_budget(data, id))
    if isinstance(answer, Created):
        return respond(CreateBudgetAnswer(Created=BudgetIdentity(id)), 201)
    return respond(CreateBudgetAnswer(AlreadySatisfied=BudgetIdentity(id)))


def read_budget(data: CreateBudget, id: str) -> Budget:
    if not len(data.dimensions) == len(data.hard_limits) == len(data.soft_limits):
        raise Invalid("dimensions, hard_limits and soft_limits must have the same length")
    if len(set(data.dimensions)) != len(data.dimensions):
        raise Invalid("a dimension is named twice")
    return Budget(
        name=id,
        limits=_limits(data),
        on_hard=_on_hard(data),
        on_soft=OnSoft.APPROVE if data.on_soft_limit == OnSoft.APPROVE else OnSoft.WARN,
        every=Millis(fit(data.reset_interval_ms, "reset_interval_ms", MAX_SPAN)) or None,
        labels={
            "scope_type": data.scope_type,
            "scope_id": data.scope_id,
            "enforcement_mode": data.enforcement_mode,
            "on_hard_limit": data.on_hard_limit,
            "on_soft_limit": data.on_soft_limit,
        },
    )


def _limits(data: CreateBudget) -> dict[str, Limit]:
    return {
        name: Limit(hard=fit(hard, "hard_limits"), soft=fit(soft, "soft_limits"))
        for name, hard, soft in zip(
            data.dimensions, data.hard_limits, data.soft_limits, strict=True
        )
    }


def _on_hard(data: CreateBudget) -> OnHard:
    """The engine's action of that name, otherwise refusing. A limit that only warns has to be
    called advisory as well, since clients of the original rely on the refusal."""
    known = {str(action): action for action in OnHard}
    action = known.get(data.on_hard_limit, OnHard.REFUSE)
    advisory = data.enforcement_mode == ADVISORY
    return OnHard.REFUSE if action is OnHard.WARN and not advisory else action


class BudgetStatus(Struct, kw_only=True):
    """Moments are decimal text, as clients of the original read them."""

    budget_id: str
    scope_type: str
    scope_id: str
    enforcement_mode: str
    usage: dict[str, int]
    hard_limits: dict[str, int]
    soft_limits: dict[str, int]
    breach_count: int
    soft_breach_count: int
    last_breach_at: str | None
    last_breach_dim: str | None
    next_reset_at: str | None
    created_at: str | None


@get(
    "/v1/budgets/{id:str}",
    opt=needs("read"),
    operation_id="get_budget",
    tags=["budgets"],
    responses=READS,
)
async def get_budget(request: Request[Any, Any, Any], id: BudgetPath) -> Response[BudgetStatus]:
    """A budget with its limits and what was spent from it."""
    name, engine = find_limit(request, id, "budget_id")
    return respond(budget_status(await engine.budgets.get(name)))


def budget_status(budget: Budget) -> BudgetStatus:
    labels = budget.labels
    spent = dict.fromkeys(budget.limits if budget.resets else (), 0) | budget.used
    return BudgetStatus(
        budget_id=budget.name,
        scope_type=labels.get("scope_type", str(budget.scope or "")),
        scope_id=labels.get("scope_id", budget.scope_id),
        enforcement_mode=labels.get("enforcement_mode", "strict" if budget.strict else ADVISORY),
        usage=spent,
        hard_limits={name: limit.hard or 0 for name, limit in budget.limits.items()},
        soft_limits={name: limit.soft or 0 for name, limit in budget.limits.items()},
        breach_count=budget.breaches,
        soft_breach_count=budget.soft_breaches,
        last_breach_at=_text(budget.breached_at),
        last_breach_dim=budget.breached_dimension,
        next_reset_at=_text(budget.next_reset_at),
        created_at=_text(budget.created_at),
    )


def _text(moment: int | None) -> str | None:
    return None if moment is None else str(moment)


class ReportUsage(Struct, kw_only=True):
    """With a `dedup_key` the amounts count once, for a day."""

    dimensions: dict[str, U64]
    dedup_key: str | None = None
    now: Now = None


class SoftLimitExceeded(Struct):
    dimension: str
    current_usage: int
    soft_limit: int


class HardLimitReached(Struct):
    dimension: str
    current_usage: int
    hard_limit: int


class UsageAnswer(Tagged):
    SoftBreach: SoftLimitExceeded | None = None
    HardBreach: HardLimitReached | None = None


@post(
    "/v1/budgets/{id:str}/usage",
    status_code=200,
    opt=needs("work"),
    operation_id="report_budget_usage",
    tags=["budgets"],
    responses=BODIES,
)
async def report_usage(
    request: Request[Any, Any, Any], id: BudgetPath, data: JSONBody[ReportUsage]
) -> Response[UsageAnswer | str]:
    """Counts amounts, or none of them: `"Ok"`, `"AlreadyApplied"`, `SoftBreach` (counted) or
    `HardBreach` (not counted)."""
    name, engine = find_limit(request, id, "budget_id")
    if not data.dimensions:
        await engine.budgets.get(name)
        return respond("Ok")
    amounts = {each: fit(amount, "dimensions") for each, amount in data.dimensions.items()}
    answer = await engine.budgets.spend(name, amounts, key=data.dedup_key or None)
    match answer:
        case AlreadyApplied():
            return respond("AlreadyApplied")
        case SoftBreach(dimension=dimension, used=used, limit=limit):
            return respond(UsageAnswer(SoftBreach=SoftLimitExceeded(dimension, used, limit)))
        case HardBreach(dimension=dimension, used=used, limit=limit):
            return respond(UsageAnswer(HardBreach=HardLimitReached(dimension, used, limit)))
        case _:
            return respond("Ok")


class NextReset(Struct):
    next_reset_at: int


class ResetAnswer(Tagged):
    Reset: NextReset | None = None


@post(
    "/v1/budgets/{id:str}/reset",
    status_code=200,
    opt=needs("operate"),
    operation_id="reset_budget",
    tags=["budgets"],
    responses=CHANGES,
)
async def reset_budget(request: Request[Any, Any, Any], id: BudgetPath) -> Response[ResetAnswer]:
    """Starts a new period. `next_reset_at` is 0 if the budget does not reset by itself."""
    name, engine = find_limit(request, id, "budget_id")
    answer = await engine.budgets.reset(name)
    return respond(ResetAnswer(Reset=NextReset(answer.next_reset_at or 0)))


HANDLERS = [create_budget, get_budget, report_usage, reset_budget]
