"""`flowfabric budgets …`"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

import typer

from flowfabric.cli import budget_setting as setting
from flowfabric.cli.budget_format import COLUMNS, DIMENSIONS, dimension_rows, fields, row
from flowfabric.cli.connect import connect
from flowfabric.cli.format import local
from flowfabric.cli.json import Document, document, plain
from flowfabric.cli.options import AsJson, Debug, RunId, Url
from flowfabric.cli.output import Screen
from flowfabric.cli.parse import amounts_text, read_amounts
from flowfabric.cli.values import usage
from flowfabric.core.base.errors import BudgetExceeded, NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.limit.budget import Budget
from flowfabric.core.limit.spend import AlreadyApplied, HardBreach, SoftBreach
from flowfabric.engine.engine import Engine

app = typer.Typer(
    help="Look at budgets, set their limits, and correct what was spent of them.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The budget.")]
Names = Annotated[
    list[str], typer.Argument(metavar="NAME...", show_default=False, help="One or more budgets.")
]
AmountWords = Annotated[
    list[str],
    typer.Argument(metavar="AMOUNT...", show_default=False, help="As tokens=500 calls=1."),
]
Key = Annotated[
    str | None, typer.Option("--key", show_default=False, help="The same key counts once.")
]

_PAGE = 1000


@app.command(name="list")
def list_budgets(url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the budgets by name, and how much of them is spent."""
    asyncio.run(_list(url, Screen(as_json)))


@app.command()
def show(name: Name, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show a budget: used, reserved and limits of each dimension, resets and breaches."""
    asyncio.run(_show(url, name, Screen(as_json)))


@app.command(name="set")
def set_budget(  # noqa: PLR0913 - the options are the interface
    name: Name,
    hard: setting.Hard = None,
    soft: setting.Soft = None,
    more: setting.More = None,
    parent: setting.Parent = None,
    scope: setting.ScopeOption = None,
    scope_id: setting.ScopeId = None,
    every: setting.Every = None,
    cron: setting.Cron = None,
    timezone: setting.Timezone = None,
    on_hard: setting.OnHardOption = None,
    on_soft: setting.OnSoftOption = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make a budget, or change what is given; what was spent and the rest stay.

    Code that calls fabric.budget gives it the definition of the code again.
    """
    given = setting.Given(
        **setting.read_given(hard, soft, more),
        parent=parent,
        scope=scope,
        scope_id=scope_id,
        every=every,
        cron=cron,
        timezone=timezone,
        on_hard=on_hard,
        on_soft=on_soft,
    )
    asyncio.run(_set(url, name, given, Screen(as_json)))


@app.command()
def spend(
    name: Name,
    amounts: AmountWords,
    key: Key = None,
    run: Annotated[
        str | None,
        typer.Option("--run", show_default=False, help="Note it for this run: see release."),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Count an amount, for the budget and all it is part of; refused whole if it does not fit."""
    found = read_amounts(amounts, "an amount")
    asyncio.run(_spend(url, name, found, key, run, Screen(as_json)))


@app.command()
def grant(
    name: Name,
    amounts: AmountWords,
    key: Key = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Raise soft limits until the next reset, as an approval does."""
    found = read_amounts(amounts, "an amount")
    asyncio.run(_grant(url, name, found, key, Screen(as_json)))


@app.command()
def reset(names: Names, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Begin a new period now: nothing is spent of it. Scheduled resets keep their times."""
    asyncio.run(_each(url, names, _reset, Screen(as_json)))


@app.command()
def release(
    name: Name, run: RunId, url: Url = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Take back what a run has spent of a budget since its last reset."""
    asyncio.run(_release(url, name, ExecutionId(run), Screen(as_json)))


@app.command()
def delete(names: Names, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Delete budgets: whoever one has limited no longer is."""
    asyncio.run(_each(url, names, _delete, Screen(as_json)))


async def _list(url: str | None, screen: Screen) -> None:
    rows: list[list[str]] = []
    async with connect(url) as fabric:
        async for budget in _all(await fabric.engine()):
            if screen.as_json:
                screen.document(_document(budget))
            rows.append(row(budget))
    if screen.as_json:
        return
    screen.table(COLUMNS, rows)
    if not rows:
        screen.note("no budgets: make one with fabric.budget or flowfabric budgets set")


async def _show(url: str | None, name: str, screen: Screen) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        budget = await engine.budgets.get(name)
        parts = [each.name async for each in _all(engine) if each.parent == budget.name]
    if screen.as_json:
        screen.document({**_document(budget), "parts": parts})
        return
    screen.fields(fields(budget, parts))
    if rows := dimension_rows(budget):
        screen.line("")
        screen.table(DIMENSIONS, rows)


async def _set(url: str | None, name: str, given: setting.Given, screen: Screen) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        try:
            old = await engine.budgets.get(name)
        except NotFound:
            old = None
        new = setting.changed(old or Budget(name=name), given)
        if not new.limits and old is None:
            raise usage("a new budget needs a limit, as --hard tokens=1000")
        if old is not None and given.nothing:
            raise usage("nothing is given that could be changed")
        await engine.budgets.define(new)
        stored = await engine.budgets.get(name)
    word = "made" if old is None else "changed"
    _tell(screen, _document(stored), f"{word} {name}: {row(stored)[2] or 'no limits'}")


async def _spend(
    url: str | None,
    name: str,
    amounts: dict[str, int],
    key: str | None,
    run: str | None,
    screen: Screen,
) -> None:
    async with connect(url) as fabric:
        budgets = (await fabric.engine()).budgets
        answer = await budgets.spend(name, amounts, execution=run, key=key)
    repeated = isinstance(answer, AlreadyApplied)
    outcome = answer.outcome if isinstance(answer, AlreadyApplied) else answer
    if isinstance(outcome, HardBreach):
        wanted = amounts.get(outcome.dimension, 0)
        raise BudgetExceeded(outcome.budget, outcome.dimension, outcome.used, outcome.limit, wanted)
    told = {"name": name, "counted": {} if repeated else amounts, "repeated": repeated}
    word = "counted before: " if repeated else "counted "
    _tell(screen, told, f"{word}{amounts_text(amounts)}")
    if isinstance(outcome, SoftBreach) and not repeated:
        screen.note(
            f"budget {outcome.budget} is above a limit that does not refuse: "
            f"{outcome.used} of {outcome.limit} {outcome.dimension}"
        )


async def _grant(
    url: str | None, name: str, amounts: dict[str, int], key: str | None, screen: Screen
) -> None:
    async with connect(url) as fabric:
        budgets = (await fabric.engine()).budgets
        for dimension, amount in amounts.items():
            once = None if key is None else f"{key}:{dimension}"
            soft = await budgets.grant(name, dimension, amount, key=once)
            told = {"name": name, "dimension": dimension, "soft": soft}
            _tell(screen, told, f"{name}: the soft limit of {dimension} is {soft} now")


async def _release(url: str | None, name: str, run: ExecutionId, screen: Screen) -> None:
    async with connect(url) as fabric:
        back = await (await fabric.engine()).budgets.release(name, run)
    words = f"took back {amounts_text(back)}" if back else f"nothing of {name} to take back"
    _tell(screen, {"name": name, "id": str(run), "released": back}, words)


Deed = Callable[[Engine, str], Awaitable[tuple[Document, str]]]


async def _each(url: str | None, names: list[str], deed: Deed, screen: Screen) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        for name in names:
            _tell(screen, *await deed(engine, name))


async def _reset(engine: Engine, name: str) -> tuple[Document, str]:
    next_at = (await engine.budgets.reset(name)).next_reset_at
    later = "" if next_at is None else f", next {local(next_at)}"
    return {"name": name, "next_reset_at": plain("next_reset_at", next_at)}, f"reset {name}{later}"


async def _delete(engine: Engine, name: str) -> tuple[Document, str]:
    if not await engine.budgets.delete(name):
        raise NotFound("budget", name)
    return {"name": name, "deleted": True}, f"deleted {name}"


async def _all(engine: Engine) -> AsyncIterator[Budget]:
    after = ""
    while page := await engine.budgets.list(after=after, limit=_PAGE):
        for budget in page:
            yield budget
        after = page[-1].name


def _document(budget: Budget) -> Document:
    told = document(budget)
    told.pop("version")
    return told


def _tell(screen: Screen, told: Document, words: str) -> None:
    if screen.as_json:
        screen.document(told)
    else:
        screen.line(words)
