"""`flowfabric quotas …`"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import typer
from msgspec.structs import replace

from flowfabric.cli.connect import connect
from flowfabric.cli.errors import Code
from flowfabric.cli.format import local, span
from flowfabric.cli.json import Document, document, plain
from flowfabric.cli.options import AsJson, Debug, RunId, Url
from flowfabric.cli.output import Screen
from flowfabric.cli.parse import NONE, rate_text
from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.limit.check_admission import (
    Admission,
    Admitted,
    ConcurrencyExceeded,
    RateExceeded,
)
from flowfabric.core.limit.quota import OF_TASK, Quota, Rate, parse_rate
from flowfabric.engine.engine import Engine
from flowfabric.engine.limit.quotas import MAX_KEYS, QuotaStatus

app = typer.Typer(
    help="Look at quotas and set them: how much runs at once, how much starts in a span of time.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The quota.")]
Names = Annotated[
    list[str], typer.Argument(metavar="NAME...", show_default=False, help="One or more quotas.")
]
Cap = Annotated[
    int | None,
    typer.Option(
        "--concurrency", min=0, show_default=False, help="How many may run at once; 0: any number."
    ),
]
CapPerKey = Annotated[
    int | None,
    typer.Option(
        "--concurrency-per-key", min=0, show_default=False, help="The same, for each key."
    ),
]
RateOption = Annotated[
    str | None,
    typer.Option(
        "--rate",
        show_default=False,
        help="How many may start in a span of time: 100/m, 5/30s, '100/m smooth' to spread them; "
        "none: any number.",
    ),
]
RatePerKey = Annotated[
    str | None,
    typer.Option("--rate-per-key", show_default=False, help="The same, for each key."),
]

COLUMNS = ("name", "concurrency", "per key", "rate", "per key", "running", "admitted", "waiting")
KEY_COLUMNS = ("key", "running", "admitted", "waiting", "next start")

_PAGE = 1000


@app.command(name="list")
def list_quotas(url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the quotas by name, with their limits and how full they are."""
    asyncio.run(_list(url, Screen(as_json)))


@app.command()
def show(name: Name, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show a quota: who runs, who waits, by key, and when the next start is allowed."""
    asyncio.run(_show(url, name, Screen(as_json)))


@app.command(name="set")
def set_quota(
    name: Name,
    rate: RateOption = None,
    concurrency: Cap = None,
    rate_per_key: RatePerKey = None,
    concurrency_per_key: CapPerKey = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make a quota, or change the limits that are given. Whoever has room now starts at once.

    The limits of a task are those in its code again when the next worker starts.
    """
    given = {
        "concurrency": concurrency,
        "rate": rate,
        "concurrency_per_key": concurrency_per_key,
        "rate_per_key": rate_per_key,
    }
    asyncio.run(_set(url, name, given, Screen(as_json)))


@app.command()
def delete(names: Names, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Delete quotas: whoever waits for one no longer has to."""
    asyncio.run(_delete(url, names, Screen(as_json)))


@app.command()
def check(
    name: Name, run: RunId, url: Url = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Ask a quota for one run that waits for it; if there is room, the run takes it at once.

    The exit code is 0 when the run has its room and 1 when it has to wait.
    """
    asyncio.run(_check(url, name, run, Screen(as_json)))


async def _list(url: str | None, screen: Screen) -> None:
    rows: list[list[str]] = []
    async with connect(url) as fabric:
        engine = await fabric.engine()
        async for quota in _all(engine):
            status = await engine.quotas.status(quota.name)
            if screen.as_json:
                screen.document(_document(status))
            rows.append(_row(status))
    if screen.as_json:
        return
    screen.table(COLUMNS, rows)
    if not rows:
        screen.note("no quotas: a task declares one, or flowfabric quotas set")


async def _show(url: str | None, name: str, screen: Screen) -> None:
    async with connect(url) as fabric:
        status = await (await fabric.engine()).quotas.status(name)
    if screen.as_json:
        screen.document(_document(status))
        return
    screen.fields([(name, value) for name, value in _fields(status) if value])
    if status.admitted or status.waiting:
        screen.line("")
        opens = status.key_opens_at
        rows = [
            [key or "(no key)", *map(str, counts), local(opens.get(key))]
            for key, counts in _by_key(status).items()
        ]
        screen.table(KEY_COLUMNS, rows)
    if _capped(status):
        screen.note(f"only the first {MAX_KEYS} lines are counted")


async def _set(
    url: str | None, name: str, given: dict[str, int | str | None], screen: Screen
) -> None:
    changes = {key: _limit(value, key) for key, value in given.items() if value is not None}
    if not changes:
        raise Invalid("no limit is given: --rate, --concurrency, or one of them per key")
    async with connect(url) as fabric:
        engine = await fabric.engine()
        try:
            old = await engine.quotas.get(name)
        except NotFound:
            old = Quota(name=name)
        await engine.quotas.define(replace(old, **changes))
        new = await engine.quotas.get(name)
    if screen.as_json:
        screen.document(document(new))
    else:
        screen.line(f"{new.name}: {_limits(new)}")
    if name.startswith(OF_TASK):
        screen.note("the next worker that has this task sets the limits of its code again")


async def _delete(url: str | None, names: list[str], screen: Screen) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        for name in names:
            if not await engine.quotas.delete(name):
                raise NotFound("quota", name)
            if screen.as_json:
                screen.document({"name": name, "deleted": True})
            else:
                screen.line(f"deleted {name}")


async def _check(url: str | None, name: str, run: str, screen: Screen) -> None:
    async with connect(url) as fabric:
        answer = await (await fabric.engine()).quotas.check_admission(name, run)
    word, text = _answer(answer)
    if screen.as_json:
        screen.document({"answer": word, **document(answer)})
    else:
        screen.line(text)
    if not isinstance(answer, Admitted):
        raise typer.Exit(Code.FAILED)


def _answer(answer: Admission) -> tuple[str, str]:
    match answer:
        case Admitted(already=already):
            return "admitted", "admitted before" if already else "admitted"
        case RateExceeded(quota=quota, retry_after=millis):
            return "rate_exceeded", f"the rate of {quota} is used up: retry after {span(millis)}"
        case ConcurrencyExceeded(quota=quota, cap=cap, taken=taken):
            return "concurrency_exceeded", f"{quota} has no free slot: {taken} of {cap} are taken"


async def _all(engine: Engine) -> AsyncIterator[Quota]:
    after = ""
    while page := await engine.quotas.list(after=after, limit=_PAGE):
        for quota in page:
            yield quota
        after = page[-1].name


def _limit(value: int | str, name: str) -> int | Rate | None:
    if isinstance(value, int):
        return value or None
    return None if value == NONE else parse_rate(value, f"--{name.replace('_', '-')}")


def _by_key(status: QuotaStatus) -> dict[str, tuple[int, int, int]]:
    """Running, admitted and waiting of each key. Those who use other quotas beside stand in other
    lines."""
    found: dict[str, tuple[int, int, int]] = {}
    for line in status.keys:
        for use in line.uses:
            if use.quota == status.quota.name:
                runs, held, waits = found.get(use.key, (0, 0, 0))
                counts = (runs + line.running, held + line.held, waits + line.waiting)
                found[use.key] = counts
    return dict(sorted(found.items()))


def _document(status: QuotaStatus) -> Document:
    return {
        **document(status.quota),
        "running": status.running,
        "admitted": status.admitted,
        "waiting": status.waiting,
        "keys": [
            {
                "key": key,
                "running": runs,
                "admitted": held,
                "waiting": waits,
                "opens_at": plain("opens_at", status.key_opens_at.get(key)),
            }
            for key, (runs, held, waits) in _by_key(status).items()
        ],
        "capped": _capped(status),
        "opens_at": plain("opens_at", status.opens_at),
    }


def _capped(status: QuotaStatus) -> bool:
    return len(status.keys) >= MAX_KEYS


def _row(status: QuotaStatus) -> list[str]:
    quota, more = status.quota, "+" if _capped(status) else ""
    return [
        quota.name,
        _cap(quota.concurrency),
        _cap(quota.concurrency_per_key),
        rate_text(quota.rate),
        rate_text(quota.rate_per_key),
        f"{status.running}{more}",
        f"{status.admitted}{more}",
        f"{status.waiting}{more}",
    ]


def _fields(status: QuotaStatus) -> list[tuple[str, str]]:
    quota, more = status.quota, "+" if _capped(status) else ""
    of = "" if quota.concurrency is None else f" of {quota.concurrency}"
    has_rate = quota.rate is not None
    return [
        ("name", quota.name),
        ("limits", _limits(quota)),
        ("running", f"{status.running}{more}"),
        ("admitted", f"{status.admitted}{more}{of}"),
        ("waiting", f"{status.waiting}{more}"),
        ("next start", (local(status.opens_at) or "the rate allows it now"))
        if has_rate
        else ("", ""),
        ("created", local(quota.created_at)),
        ("changed", local(quota.updated_at)),
    ]


def _limits(quota: Quota) -> str:
    found = [
        ("{} at once", _cap(quota.concurrency)),
        ("{} at once per key", _cap(quota.concurrency_per_key)),
        ("{}", rate_text(quota.rate)),
        ("{} per key", rate_text(quota.rate_per_key)),
    ]
    return ", ".join(words.format(value) for words, value in found if value)


def _cap(cap: int | None) -> str:
    return "" if cap is None else str(cap)
