"""`flowfabric quotas …`"""

from collections.abc import AsyncIterator
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace
from typer import Argument, Option, Typer

from flowfabric.cli.command import RunId, command
from flowfabric.cli.errors import ExitCode
from flowfabric.cli.format import local, optional, rate_text, span
from flowfabric.cli.json import Document, document, plain
from flowfabric.cli.output import Cells, Screen
from flowfabric.cli.parse import NONE
from flowfabric.cli.table import Table, pages
from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.time import Millis
from flowfabric.core.limit.check_admission import (
    Admission,
    Admitted,
    ConcurrencyExceeded,
    RateExceeded,
)
from flowfabric.core.limit.quota import OF_TASK, Quota, Rate, parse_rate
from flowfabric.engine.engine import Engine
from flowfabric.engine.limit.quotas import MAX_KEYS, QuotaStatus

app = Typer(
    help="Inspect and set quotas: how many runs at once, how many starts in a period.",
    no_args_is_help=True,
)

Name = Annotated[str, Argument(metavar="NAME", help="The quota.")]
Names = Annotated[list[str], Argument(metavar="NAME", help="One or more quotas.")]


class KeyUse(Struct, frozen=True):
    """How much of a quota the runs of one key use."""

    key: str
    running: int = 0
    admitted: int = 0
    waiting: int = 0
    opens_at: Millis | None = None


def _row(status: QuotaStatus) -> Cells:
    quota, more = status.quota, "+" if _capped(status) else ""
    return [
        ("name", quota.name),
        ("concurrency", optional(quota.concurrency)),
        ("per key", optional(quota.concurrency_per_key)),
        ("rate", rate_text(quota.rate)),
        ("per key", rate_text(quota.rate_per_key)),
        ("running", f"{status.running}{more}"),
        ("admitted", f"{status.admitted}{more}"),
        ("waiting", f"{status.waiting}{more}"),
    ]


def _fields(status: QuotaStatus) -> Cells:
    quota, more = status.quota, "+" if _capped(status) else ""
    of = "" if quota.concurrency is None else f" of {quota.concurrency}"
    opens = local(status.opens_at) or "the rate allows it now"
    return [
        ("name", quota.name),
        ("limits", _limits(quota)),
        ("running", f"{status.running}{more}"),
        ("admitted", f"{status.admitted}{more}{of}"),
        ("waiting", f"{status.waiting}{more}"),
        ("next start", "" if quota.rate is None else opens),
        ("created", local(quota.created_at)),
        ("changed", local(quota.updated_at)),
    ]


def _limits(quota: Quota) -> str:
    found = [
        ("{} at once", optional(quota.concurrency)),
        ("{} at once per key", optional(quota.concurrency_per_key)),
        ("{}", rate_text(quota.rate)),
        ("{} per key", rate_text(quota.rate_per_key)),
    ]
    return ", ".join(words.format(value) for words, value in found if value) or "no limit"


def _document(status: QuotaStatus) -> Document:
    return {
        **document(status.quota),
        "running": status.running,
        "admitted": status.admitted,
        "waiting": status.waiting,
        "keys": [document(use) for use in _by_key(status)],
        "capped": _capped(status),
        "opens_at": plain("opens_at", status.opens_at),
    }


def _by_key(status: QuotaStatus) -> list[KeyUse]:
    """Runs that use other quotas as well are counted in lines of their own; a key has one sum."""
    found: dict[str, KeyUse] = {}
    for line in status.keys:
        for key in [use.key for use in line.uses if use.quota == status.quota.name]:
            old = found.get(key) or KeyUse(key, opens_at=status.key_opens_at.get(key))
            found[key] = replace(
                old,
                running=old.running + line.running,
                admitted=old.admitted + line.held,
                waiting=old.waiting + line.waiting,
            )
    return [found[key] for key in sorted(found)]


def _capped(status: QuotaStatus) -> bool:
    return len(status.keys) >= MAX_KEYS


QUOTA = Table[QuotaStatus](
    row=_row,
    fields=_fields,
    json=_document,
    empty="no quotas: a task declares one, or flowfabric quotas set",
)
KEY_USE = Table[KeyUse](
    row=lambda use: [
        ("key", use.key or "(no key)"),
        ("running", str(use.running)),
        ("admitted", str(use.admitted)),
        ("waiting", str(use.waiting)),
        ("next start", local(use.opens_at)),
    ]
)


@command(app, "list")
async def list_quotas(engine: Engine, screen: Screen) -> None:
    """List the quotas by name, with their limits and how full they are."""
    await QUOTA.list(screen, _statuses(engine))


async def _statuses(engine: Engine) -> AsyncIterator[QuotaStatus]:
    async for quota in pages(
        lambda after, limit: engine.quotas.list(after=after or "", limit=limit),
        lambda quota: quota.name,
    ):
        yield await engine.quotas.status(quota.name)


@command(app)
async def show(engine: Engine, screen: Screen, name: Name) -> None:
    """Show a quota: how many runs have a slot or wait, by key, and when the next may start."""
    status = await engine.quotas.status(name)
    QUOTA.show(screen, status)
    if screen.as_json:
        return
    if status.admitted or status.waiting:
        KEY_USE.below(screen, _by_key(status))
    if _capped(status):
        screen.note(f"only the first {MAX_KEYS} lines are counted")


@command(app, "set")
async def set_quota(
    engine: Engine,
    screen: Screen,
    name: Name,
    rate: Annotated[
        str | None,
        Option(
            help="How many may start in a period: 100/m, 5/30s, '100/m smooth' to spread "
            "them; none: any number."
        ),
    ] = None,
    concurrency: Annotated[
        int | None, Option(min=0, help="How many run at once; 0: any number.")
    ] = None,
    rate_per_key: Annotated[str | None, Option(help="The same for each key.")] = None,
    concurrency_per_key: Annotated[int | None, Option(min=0, help="The same for each key.")] = None,
) -> None:
    """Make a quota, or change the limits that are given. Runs that have room now start at once.

    The next worker that has a task sets the limits of its code again.
    """
    given: dict[str, int | str | None] = {
        "concurrency": concurrency,
        "rate": rate,
        "concurrency_per_key": concurrency_per_key,
        "rate_per_key": rate_per_key,
    }
    changes = {key: _limit(value, key) for key, value in given.items() if value is not None}
    if not changes:
        raise Invalid("no limit is given: --rate, --concurrency, or one of them per key")
    try:
        old = await engine.quotas.get(name)
    except NotFound:
        old = Quota(name=name)
    await engine.quotas.define(replace(old, **changes))
    new = await engine.quotas.get(name)
    screen.answer(document(new), f"{new.name}: {_limits(new)}")
    if name.startswith(OF_TASK):
        screen.note("the next worker that has this task sets the limits of its code again")


def _limit(value: int | str, name: str) -> int | Rate | None:
    if isinstance(value, int):
        return value or None
    return None if value == NONE else parse_rate(value, f"--{name.replace('_', '-')}")


@command(app)
async def delete(engine: Engine, screen: Screen, names: Names) -> None:
    """Delete quotas; runs no longer wait for them."""
    for name in names:
        if not await engine.quotas.delete(name):
            raise NotFound("quota", name)
        screen.answer({"name": name, "deleted": True}, f"deleted {name}")


@command(app)
async def check(engine: Engine, screen: Screen, name: Name, run: RunId) -> ExitCode:
    """Ask a quota to admit one run that waits for it; if there is room, the run takes it.

    The exit code is 0 if the run is admitted and 1 if it has to wait.
    """
    answer = await engine.quotas.check_admission(name, run)
    word, text = _words(answer)
    screen.answer({"answer": word, **document(answer)}, text)
    return ExitCode.OK if isinstance(answer, Admitted) else ExitCode.FAILED


@command(app)
async def release(engine: Engine, screen: Screen, name: Name, run: RunId) -> None:
    """Give back the room of a run that a quota has admitted and no worker has started.

    The run returns to its line after a few seconds.
    """
    answer = await engine.quotas.release_admission(name, run)
    screen.answer(document(answer), f"{answer.id} has no room in {name}")


def _words(answer: Admission) -> tuple[str, str]:
    match answer:
        case Admitted(already=already):
            return "admitted", "admitted before" if already else "admitted"
        case RateExceeded(quota=quota, retry_after=millis):
            return "rate_exceeded", f"the rate of {quota} is used up: retry after {span(millis)}"
        case ConcurrencyExceeded(quota=quota, cap=cap, taken=taken):
            return "concurrency_exceeded", f"{quota} has no free slot: {taken} of {cap} are taken"
