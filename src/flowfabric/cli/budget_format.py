"""Budgets as words for people."""

from flowfabric.cli.format import local
from flowfabric.cli.parse import span_text
from flowfabric.core.limit.budget import Budget, OnHard, OnSoft

COLUMNS = ("name", "part of", "spent", "next reset")
DIMENSIONS = ("dimension", "used", "", "reserved", "left", "soft", "hard", "beyond")

_HARD = {
    OnHard.REFUSE: "refuses what does not fit, and nothing starts once it is spent",
    OnHard.CANCEL_PENDING: "refuses, and cancels what the flow has not started",
    OnHard.SUSPEND: "refuses, and the run waits for a human",
    OnHard.WARN: "only warns",
}
_SOFT = {OnSoft.WARN: "only warns", OnSoft.APPROVE: "the run waits for a human"}


def row(budget: Budget) -> list[str]:
    spent = ", ".join(_spent(budget, name) for name in dimensions(budget))
    return [budget.name, budget.parent or "", spent, local(budget.next_reset_at)]


def dimensions(budget: Budget) -> list[str]:
    """Those with limits first, then whatever else was counted."""
    return list(dict.fromkeys([*sorted(budget.limits), *budget.used, *budget.reserved]))


def dimension_rows(budget: Budget) -> list[list[str]]:
    return [_dimension(budget, name) for name in dimensions(budget)]


def fields(budget: Budget, parts: list[str]) -> list[tuple[str, str]]:
    has_hard = any(limit.hard is not None for limit in budget.limits.values())
    has_soft = any(limit.soft is not None for limit in budget.limits.values())
    found = [
        ("name", budget.name),
        ("part of", budget.parent or ""),
        ("parts", ", ".join(parts)),
        ("belongs to", f"{budget.scope} {budget.scope_id}".strip() if budget.scope else ""),
        ("at the hard limit", _HARD[budget.on_hard] if has_hard else ""),
        ("at the soft limit", _SOFT[budget.on_soft] if has_soft else ""),
        ("begins anew", _rhythm(budget)),
        ("next reset", local(budget.next_reset_at)),
        ("last reset", local(budget.reset_at)),
        ("refused", _breaches(budget)),
        ("soft limit passed", _times(budget.soft_breaches)),
    ]
    return [(name, value) for name, value in found if value]


def _dimension(budget: Budget, name: str) -> list[str]:
    used, hard, soft = budget.used.get(name, 0), budget.hard(name), budget.soft(name)
    limit = hard if hard is not None else soft
    granted = budget.granted.get(name, 0)
    return [
        name,
        str(used),
        _percent(used, limit),
        str(budget.reserved.get(name, 0)),
        "" if hard is None else str(max(0, hard - budget.taken(name))),
        "" if soft is None else f"{soft} ({granted} granted)" if granted else str(soft),
        "" if hard is None else str(hard),
        str(budget.overrun[name]) if name in budget.overrun else "",
    ]


def _spent(budget: Budget, name: str) -> str:
    used, hard = budget.used.get(name, 0), budget.hard(name)
    limit = hard if hard is not None else budget.soft(name)
    if limit is None:
        return f"{used} {name}"
    return f"{used} of {limit} {name} ({_percent(used, limit)})"


def _percent(used: int, limit: int | None) -> str:
    """Rounded down: 100 % is all of it."""
    return "" if not limit else f"{100 * used // limit} %"


def _rhythm(budget: Budget) -> str:
    if budget.cron is not None:
        return f"{budget.cron} ({budget.timezone})"
    return "never by itself" if budget.every is None else f"every {span_text(budget.every)}"


def _breaches(budget: Budget) -> str:
    if not budget.breaches:
        return ""
    when = local(budget.breached_at)
    last = f", last {when} for {budget.breached_dimension}" if when else ""
    return f"{_times(budget.breaches)}{last}"


def _times(count: int) -> str:
    return "" if not count else "once" if count == 1 else f"{count} times"
