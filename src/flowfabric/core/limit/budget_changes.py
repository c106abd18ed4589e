"""Changes of budgets themselves: create, define, grant, reset, delete."""

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.time import Millis
from flowfabric.core.limit.budget import (
    MAX_AMOUNT,
    MAX_DEPTH,
    Budget,
    begin,
    chain,
    check_budget,
    current,
    following_reset,
    new_period,
)
from flowfabric.core.limit.spend import (
    BudgetLedger,
    Created,
    Expense,
    Known,
    Reset,
    Spent,
    plus,
    remember,
    repeated,
)


def turn_over(ledger: BudgetLedger, now: Millis) -> None:
    """Moves every budget into the period of `now`, before any decision."""
    for budget in list(ledger.budgets.values()):
        if (turned := current(budget, now)) is not budget:
            ledger.put(turned)


def reset(ledger: BudgetLedger, name: str, now: Millis) -> Reset:
    """Starts a new period. The next reset is one interval from now, or at the next time of the
    calendar."""
    budget = ledger.budgets.get(name)
    if budget is None:
        raise NotFound("budget", name)
    fresh = new_period(current(budget, now), now)
    if fresh.every is not None:
        fresh = replace(fresh, next_reset_at=Millis(now + fresh.every))
    ledger.put(fresh)
    return Reset(fresh.next_reset_at)


def create(ledger: BudgetLedger, budget: Budget, now: Millis) -> Created | Known:
    """Creates a budget; an existing one stays as it is."""
    check_budget(budget)
    if budget.name in ledger.budgets:
        return Known(budget.name)
    if budget.parent is not None:
        _check_depth(ledger, budget)
        _count_part(ledger, budget.parent, 1)
    ledger.put(begin(budget, now))
    return Created(budget.name)


def define(ledger: BudgetLedger, budget: Budget, now: Millis) -> Created | Known:
    """Creates a budget, or gives an existing one a new definition; what was spent stays."""
    old = ledger.budgets.get(budget.name)
    if old is None:
        return create(ledger, budget, now)
    check_budget(budget)
    if budget.parent != old.parent:
        raise Invalid(f"budget {budget.name!r} cannot get another parent")
    ledger.put(_redefined(old, budget, now))
    return Known(budget.name)


def grant(
    ledger: BudgetLedger, name: str, dimension: str, amount: int, now: Millis, key: str
) -> int:
    """Raises a soft limit until the next reset, as an approval does, and returns it. The same key
    grants once."""
    budget = ledger.budgets.get(name)
    if budget is None:
        raise NotFound("budget", name)
    if budget.soft(dimension) is None:
        raise Invalid(f"budget {name!r} has no soft limit of {dimension}")
    if repeated(ledger, Expense((name,), {}, key=key), now) is None:
        granted = plus(budget.granted, {dimension: amount})
        if granted[dimension] > MAX_AMOUNT:
            raise Invalid(f"budget {name!r} cannot grant that many {dimension}")
        budget = replace(budget, granted=granted, updated_at=now)
        ledger.put(budget)
        remember(ledger, Expense((name,), {}, key=key), Spent(), now)
    return budget.soft(dimension) or 0


def remove(ledger: BudgetLedger, name: str) -> bool:
    """Deletes a budget, which then limits nothing; False if there was none."""
    budget = ledger.budgets.get(name)
    if budget is None:
        return False
    if budget.parts:
        raise Invalid(f"budget {name!r} has child budgets: delete them first")
    if budget.parent is not None:
        _count_part(ledger, budget.parent, -1)
    ledger.remove(name)
    return True


def _redefined(old: Budget, new: Budget, now: Millis) -> Budget:
    same_times = (old.every, old.cron, old.timezone) == (new.every, new.cron, new.timezone)
    kept = replace(
        old,
        scope=new.scope,
        scope_id=new.scope_id,
        limits=new.limits,
        on_hard=new.on_hard,
        on_soft=new.on_soft,
        every=new.every,
        cron=new.cron,
        timezone=new.timezone,
        labels=new.labels,
        updated_at=now,
    )
    if same_times:
        return kept
    return replace(kept, next_reset_at=following_reset(replace(kept, next_reset_at=None), now))


def _count_part(ledger: BudgetLedger, parent: str, more: int) -> None:
    """Counts the children of a parent, so that a parent with children is not deleted."""
    budget = ledger.budgets[parent]
    ledger.put(replace(budget, parts=budget.parts + more))


def _check_depth(ledger: BudgetLedger, budget: Budget) -> None:
    upper = chain(ledger.budgets, [budget.parent or ""])
    if len(upper) >= MAX_DEPTH:
        raise Invalid(f"budgets are nested at most {MAX_DEPTH} deep")
