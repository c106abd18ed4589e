"""What becomes of budgets themselves: made, given another definition, raised, reset, deleted."""

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


def turn_over(books: BudgetLedger, now: Millis) -> None:
    """Brings every budget into the period of `now`, before anything is decided on it."""
    for budget in list(books.budgets.values()):
        if (turned := current(budget, now)) is not budget:
            books.put(turned)


def reset(books: BudgetLedger, name: str, now: Millis) -> Reset:
    """Begins a new period. The rhythm of scheduled resets stays."""
    budget = books.budgets.get(name)
    if budget is None:
        raise NotFound("budget", name)
    books.put(new_period(current(budget, now), now))
    return Reset(books.budgets[name].next_reset_at)


def create(books: BudgetLedger, budget: Budget, now: Millis) -> Created | Known:
    """A new budget. One that is there stays as it is."""
    check_budget(budget)
    if budget.name in books.budgets:
        return Known(budget.name)
    if budget.parent is not None:
        _check_depth(books, budget)
        _count_part(books, budget.parent, 1)
    books.put(begin(budget, now))
    return Created(budget.name)


def define(books: BudgetLedger, budget: Budget, now: Millis) -> Created | Known:
    """A budget as it should be: new, or with a new definition and what was spent so far."""
    old = books.budgets.get(budget.name)
    if old is None:
        return create(books, budget, now)
    check_budget(budget)
    if budget.parent != old.parent:
        raise Invalid(f"budget {budget.name!r} cannot become part of another one")
    books.put(_redefined(old, budget, now))
    return Known(budget.name)


def grant(
    books: BudgetLedger, name: str, dimension: str, amount: int, now: Millis, key: str
) -> int:
    """Allows more until the next reset, as an approval of a soft limit does; the soft limit now.
    The same key grants once."""
    budget = books.budgets.get(name)
    if budget is None:
        raise NotFound("budget", name)
    if budget.soft(dimension) is None:
        raise Invalid(f"budget {name!r} has no soft limit of {dimension}")
    if repeated(books, Expense((name,), {}, key=key), now) is None:
        granted = plus(budget.granted, {dimension: amount})
        if granted[dimension] > MAX_AMOUNT:
            raise Invalid(f"budget {name!r} cannot grant that many {dimension}")
        budget = replace(budget, granted=granted, updated_at=now)
        books.put(budget)
        remember(books, Expense((name,), {}, key=key), Spent(), now)
    return budget.soft(dimension) or 0


def remove(books: BudgetLedger, name: str) -> bool:
    """Deletes a budget; False when there was none. Whoever was limited by it no longer is."""
    budget = books.budgets.get(name)
    if budget is None:
        return False
    if budget.parts:
        raise Invalid(f"other budgets are part of {name!r}: delete them first")
    if budget.parent is not None:
        _count_part(books, budget.parent, -1)
    books.remove(name)
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
        updated_at=now,
    )
    if same_times:
        return kept
    return replace(kept, next_reset_at=following_reset(replace(kept, next_reset_at=None), now))


def _count_part(books: BudgetLedger, parent: str, more: int) -> None:
    """The parent knows how many are part of it, so that it is not deleted below a new one."""
    budget = books.budgets[parent]
    books.put(replace(budget, parts=budget.parts + more))


def _check_depth(books: BudgetLedger, budget: Budget) -> None:
    upper = chain(books.budgets, [budget.parent or ""])
    if len(upper) >= MAX_DEPTH:
        raise Invalid(f"budgets are nested at most {MAX_DEPTH} deep")
