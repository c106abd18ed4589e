"""`flowfabric budgets …`"""

from collections.abc import AsyncIterator
from typing import Annotated

from msgspec.structs import replace
from typer import Argument, Option, Typer

from flowfabric.cli.command import NAMES_RUNS, RunId, command
from flowfabric.cli.errors import usage
from flowfabric.cli.format import amounts_text, exact_span, local, optional, times
from flowfabric.cli.json import Document, document, plain
from flowfabric.cli.output import Cells, Screen
from flowfabric.cli.parse import NONE, read_amounts, read_limits
from flowfabric.cli.table import Table, pages
from flowfabric.core.base.errors import NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import parse_span
from flowfabric.core.limit.budget import Budget, Limit, OnHard, OnSoft, Scope
from flowfabric.core.limit.spend import AlreadyApplied, HardBreach, SoftBreach
from flowfabric.engine.engine import Engine
from flowfabric.worker.api.limits import exceeded

app = Typer(
    help="Inspect budgets, set their limits, and correct what was spent.",
    no_args_is_help=True,
)

_LIMIT = "DIMENSION=NUMBER"

Name = Annotated[str, Argument(metavar="NAME", help="The budget.")]
Names = Annotated[list[str], Argument(metavar="NAME", help="One or more budgets.")]
Amounts = Annotated[list[str], Argument(metavar="AMOUNT", help="As tokens=500 calls=1.")]
Key = Annotated[str | None, Option(help="The same key is counted once.")]
Hard = Annotated[
    list[str] | None,
    Option(
        metavar=_LIMIT,
        help="A limit that is never passed, as tokens=100000; repeatable; tokens=none removes it.",
    ),
]
Soft = Annotated[
    list[str] | None,
    Option(metavar=_LIMIT, help="A limit that may be passed with a warning, as tokens=80000."),
]
More = Annotated[
    list[str] | None,
    Option(metavar=_LIMIT, help="What an approval adds to the soft limit, as tokens=5000."),
]
Parent = Annotated[
    str | None,
    Option(help="The budget it is part of; what is spent counts there too. Only for a new budget."),
]
ScopeOption = Annotated[
    Scope | None,
    Option(
        metavar="SCOPE",
        help=f"What it belongs to: {', '.join(Scope)}. One of a namespace, flow or run limits "
        "every run in it.",
    ),
]
ScopeId = Annotated[
    str | None, Option(help="Which one: the name of the namespace, the id of the flow or run.")
]
Every = Annotated[str | None, Option(help="Resets every 1h, 1d, …; none: only by hand.")]
Cron = Annotated[str | None, Option(help="Resets at these times: '0 0 * * *'.")]
Timezone = Annotated[str | None, Option(help="The time zone of --cron; by default UTC.")]
OnHardOption = Annotated[
    OnHard | None,
    Option(metavar="ACTION", help=f"What happens at the hard limit: {', '.join(OnHard)}."),
]
OnSoftOption = Annotated[
    OnSoft | None,
    Option(metavar="ACTION", help=f"What happens at the soft limit: {', '.join(OnSoft)}."),
]

_HARD = {
    OnHard.REFUSE: "refuses what does not fit, and nothing starts once it is spent",
    OnHard.CANCEL_PENDING: "refuses, and cancels what the flow has not started",
    OnHard.SUSPEND: "refuses, and the run waits for a human",
    OnHard.WARN: "only warns",
}
_SOFT = {OnSoft.WARN: "only warns", OnSoft.APPROVE: "the run waits for a human"}


def _row(budget: Budget) -> Cells:
    return [
        ("name", budget.name),
        ("part of", budget.parent or ""),
        ("spent", _spent(budget)),
        ("next reset", local(budget.next_reset_at)),
    ]


def _fields(budget: Budget) -> Cells:
    has_hard = any(limit.hard is not None for limit in budget.limits.values())
    has_soft = any(limit.soft is not None for limit in budget.limits.values())
    return [
        ("belongs to", f"{budget.scope} {budget.scope_id}".strip() if budget.scope else ""),
        ("at the hard limit", _HARD[budget.on_hard] if has_hard else ""),
        ("at the soft limit", _SOFT[budget.on_soft] if has_soft else ""),
        ("resets", _rhythm(budget)),
        ("next reset", local(budget.next_reset_at)),
        ("last reset", local(budget.reset_at)),
        ("refused", _refusals(budget)),
        ("soft limit passed", times(budget.soft_breaches)),
    ]


def _spent(budget: Budget) -> str:
    return ", ".join(_spent_of(budget, name) for name in _dimensions(budget))


def _spent_of(budget: Budget, name: str) -> str:
    used, limit = budget.used.get(name, 0), _limit(budget, name)
    if limit is None:
        return f"{used} {name}"
    return f"{used} of {limit} {name} ({_percent(used, limit)})"


def _dimensions(budget: Budget) -> list[str]:
    """Those with limits first, then all others that were counted."""
    return list(dict.fromkeys([*sorted(budget.limits), *budget.used, *budget.reserved]))


def _limit(budget: Budget, name: str) -> int | None:
    hard = budget.hard(name)
    return budget.soft(name) if hard is None else hard


def _percent(used: int, limit: int | None) -> str:
    """Rounded down: 100 % is all of it."""
    return "" if not limit else f"{100 * used // limit} %"


def _rhythm(budget: Budget) -> str:
    if budget.cron is not None:
        return f"{budget.cron} ({budget.timezone})"
    return "only by hand" if budget.every is None else f"every {exact_span(budget.every)}"


def _refusals(budget: Budget) -> str:
    when = local(budget.breached_at) if budget.breaches else ""
    last = f", last {when} for {budget.breached_dimension}" if when else ""
    return f"{times(budget.breaches)}{last}"


def _dimension_row(item: tuple[Budget, str]) -> Cells:
    budget, name = item
    used, hard, soft = budget.used.get(name, 0), budget.hard(name), budget.soft(name)
    return [
        ("dimension", name),
        ("used", str(used)),
        ("", _percent(used, _limit(budget, name))),
        ("reserved", str(budget.reserved.get(name, 0))),
        ("left", "" if hard is None else str(max(0, hard - budget.taken(name)))),
        ("soft", _soft(soft, budget.granted.get(name, 0))),
        ("hard", optional(hard)),
        ("beyond", str(budget.overrun[name]) if name in budget.overrun else ""),
    ]


def _soft(soft: int | None, granted: int) -> str:
    return f"{soft} ({granted} granted)" if granted and soft is not None else optional(soft)


def _document(budget: Budget) -> Document:
    found = document(budget)
    found.pop("version")
    return found


BUDGET = Table[Budget](
    row=_row,
    json=_document,
    empty="no budgets: make one with fabric.budget or flowfabric budgets set",
)
DIMENSION = Table[tuple[Budget, str]](row=_dimension_row)


@command(app, "list")
async def list_budgets(engine: Engine, screen: Screen) -> None:
    """List the budgets by name, with how much of them is spent."""
    await BUDGET.list(screen, _all(engine))


def _all(engine: Engine) -> AsyncIterator[Budget]:
    return pages(
        lambda after, limit: engine.budgets.list(after=after or "", limit=limit),
        lambda budget: budget.name,
    )


@command(app)
async def show(engine: Engine, screen: Screen, name: Name) -> None:
    """Show a budget: used, reserved and limits of each dimension, resets and breaches."""
    budget = await engine.budgets.get(name)
    parts = [each.name async for each in _all(engine) if each.parent == budget.name]
    if screen.as_json:
        screen.document({**_document(budget), "parts": parts})
        return
    family = [("part of", budget.parent or ""), ("parts", ", ".join(parts))]
    screen.fields([("name", budget.name), *family, *_fields(budget)])
    DIMENSION.below(screen, [(budget, name) for name in _dimensions(budget)])


@command(app, "set")
async def set_budget(  # noqa: PLR0913 - the options are the interface
    engine: Engine,
    screen: Screen,
    name: Name,
    hard: Hard = None,
    soft: Soft = None,
    more: More = None,
    parent: Parent = None,
    scope: ScopeOption = None,
    scope_id: ScopeId = None,
    every: Every = None,
    cron: Cron = None,
    timezone: Timezone = None,
    on_hard: OnHardOption = None,
    on_soft: OnSoftOption = None,
) -> None:
    """Make a budget, or change what is given; what was spent stays.

    Code that calls fabric.budget sets the definition of the code again.
    """
    given = {
        "parent": parent,
        "scope": scope,
        "scope_id": scope_id,
        "timezone": timezone,
        "on_hard": on_hard,
        "on_soft": on_soft,
    }
    try:
        old = await engine.budgets.get(name)
    except NotFound:
        old = None
    base = old or Budget(name=name)
    changes: dict[str, object] = {
        field: value for field, value in given.items() if value is not None
    }
    changes |= _rhythm_given(every, cron)
    if hard or soft or more:
        changes["limits"] = _limits(base, hard, soft, more)
    new = replace(base, **changes)
    if not new.limits and old is None:
        raise usage("a new budget needs a limit, as --hard tokens=1000")
    if not changes:
        raise usage("give something to change, such as --hard tokens=1000")
    await engine.budgets.define(new)
    stored = await engine.budgets.get(name)
    word = "made" if old is None else "changed"
    screen.answer(_document(stored), f"{word} {name}: {_spent(stored) or 'no limits'}")


def _rhythm_given(every: str | None, cron: str | None) -> dict[str, object]:
    """What changes about its resets."""
    if every is not None and cron is not None:
        raise usage("a budget resets by --every or by --cron, not by both")
    if cron is not None:
        return {"cron": cron, "every": None}
    if every is None:
        return {}
    return {"cron": None, "every": None if every == NONE else parse_span(every, "--every")}


def _limits(
    old: Budget, hard: list[str] | None, soft: list[str] | None, more: list[str] | None
) -> dict[str, Limit]:
    """The limits of a budget with those that were typed."""
    typed = {"hard": hard, "soft": soft, "more": more}
    given = {kind: read_limits(words, f"--{kind}") for kind, words in typed.items()}
    found: dict[str, Limit] = {}
    for name in {**old.limits, **given["hard"], **given["soft"], **given["more"]}:
        changes = {kind: limits[name] for kind, limits in given.items() if name in limits}
        limit = replace(old.limits.get(name) or Limit(), **changes)
        if limit.soft is None and changes.get("more") is not None:
            raise usage(f"--more of {name} needs a soft limit of {name}")
        if limit.soft is None:
            limit = replace(limit, more=None)
        if limit != Limit():
            found[name] = limit
    return found


@command(app)
async def spend(
    engine: Engine,
    screen: Screen,
    name: Name,
    amounts: Amounts,
    key: Key = None,
    run: Annotated[
        str | None, NAMES_RUNS, Option(help="The run that spent it, for `release`.")
    ] = None,
) -> None:
    """Count an amount in a budget and all it is part of; nothing is counted if it does not fit."""
    wanted = read_amounts(amounts, "an amount")
    if run is not None and await engine.views.state(run) is None:  # the engine does not ask
        raise NotFound("execution", run)
    answer = await engine.budgets.spend(name, wanted, execution=run, key=key)
    repeated = isinstance(answer, AlreadyApplied)
    outcome = answer.outcome if isinstance(answer, AlreadyApplied) else answer
    if isinstance(outcome, HardBreach):
        raise exceeded(outcome, wanted)
    counted = {"name": name, "counted": {} if repeated else wanted, "repeated": repeated}
    word = "counted before: " if repeated else "counted "
    screen.answer(counted, f"{word}{amounts_text(wanted)}")
    if isinstance(outcome, SoftBreach) and not repeated:
        screen.note(
            f"budget {outcome.budget} is above a limit that does not refuse: "
            f"{outcome.used} of {outcome.limit} {outcome.dimension}"
        )


@command(app)
async def grant(
    engine: Engine, screen: Screen, name: Name, amounts: Amounts, key: Key = None
) -> None:
    """Raise soft limits until the next reset, as an approval does."""
    for dimension, amount in read_amounts(amounts, "an amount").items():
        once = None if key is None else f"{key}:{dimension}"
        soft = await engine.budgets.grant(name, dimension, amount, key=once)
        granted = {"name": name, "dimension": dimension, "soft": soft}
        screen.answer(granted, f"{name}: the soft limit of {dimension} is {soft} now")


@command(app)
async def reset(engine: Engine, screen: Screen, names: Names) -> None:
    """Begin a new period now, with nothing spent. With --every, the next one is a whole interval
    away."""
    for name in names:
        next_at = (await engine.budgets.reset(name)).next_reset_at
        later = "" if next_at is None else f", next {local(next_at)}"
        done = {"name": name, "next_reset_at": plain("next_reset_at", next_at)}
        screen.answer(done, f"reset {name}{later}")


@command(app)
async def release(engine: Engine, screen: Screen, name: Name, run: RunId) -> None:
    """Take back what a run has spent of a budget since its last reset."""
    back = await engine.budgets.release(name, ExecutionId(run))
    words = f"took back {amounts_text(back)}" if back else f"nothing of {name} to take back"
    screen.answer({"name": name, "id": run, "released": back}, words)


@command(app)
async def delete(engine: Engine, screen: Screen, names: Names) -> None:
    """Delete budgets; they no longer limit any run."""
    for name in names:
        if not await engine.budgets.delete(name):
            raise NotFound("budget", name)
        screen.answer({"name": name, "deleted": True}, f"deleted {name}")
