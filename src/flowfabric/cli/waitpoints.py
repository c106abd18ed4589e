"""`flowfabric waitpoints …`: what runs wait for, and the tokens that answer it."""

import shlex
from collections.abc import Sequence
from typing import Annotated

from typer import Argument, Option, Typer

from flowfabric.cli.command import command
from flowfabric.cli.errors import CommandError, ExitCode
from flowfabric.cli.format import local, pretty, shortened
from flowfabric.cli.output import Cells, Screen
from flowfabric.cli.parse import STDIN, read_source
from flowfabric.cli.table import Table
from flowfabric.core.base.ids import parse_uuid
from flowfabric.core.base.redact import without_secrets
from flowfabric.core.execution.lease import AlreadySatisfied
from flowfabric.core.wait.waitpoint import OpenWaitpoint
from flowfabric.engine.engine import Engine
from flowfabric.fabric import Fabric
from flowfabric.worker.api.signals import open_waitpoints, waitpoints_of

app = Typer(
    help="Inspect what runs wait for from outside, and issue tokens to answer it.",
    no_args_is_help=True,
)

DIGEST = 12
MOST = 1000

Target = Annotated[str, Argument(metavar="RUN", help="A run's id, or RUN/WAITPOINT.")]
Name = Annotated[str | None, Argument(metavar="NAME", help="Which one, if several are open.")]


def _row(item: OpenWaitpoint) -> Cells:
    terms = item.terms
    return [
        ("run", item.execution),
        ("name", item.key),
        ("state", item.state),
        ("waits for", ", ".join(item.required_signal_names) or "any signal"),
        ("since", local(item.activated_at or item.created_at)),
        ("expires", local(item.expires_at)),
        ("approvers", "" if terms is None else ", ".join(terms.approvers) or "anyone"),
        ("about", _about(item)),
    ]


def _about(item: OpenWaitpoint) -> str:
    """What is to be approved; of a value that is not stored, its digest."""
    digest = item.terms.about if item.terms else None
    if item.terms is None or item.terms.value is None:
        return "" if digest is None else f"digest {digest[:DIGEST]}"
    return shortened(item.about)


def _fields(item: OpenWaitpoint) -> Cells:
    terms = item.terms
    value = "" if terms is None or terms.value is None else pretty(item.about)
    digest = "" if terms is None else terms.about or ""
    return [
        *(cell for cell in _row(item) if cell[0] != "about"),
        ("id", str(item.id)),
        ("about", value or ("not stored: it is too large, or old" if digest else "")),
        ("digest", digest),
    ]


WAITPOINT = Table[OpenWaitpoint](row=_row, fields=_fields, empty="nothing waits")
"""There is no token in its document, only what tells tokens apart."""


@command(app, "list")
async def list_waitpoints(
    engine: Engine,
    screen: Screen,
    run: Annotated[str | None, Argument(metavar="RUN", help="Only of this run.")] = None,
    limit: Annotated[int, Option(min=1, max=MOST, help="At most this many.")] = 50,
) -> None:
    """List what runs wait for, the longest waiting first. Tokens are never shown."""
    found = await open_waitpoints(engine, run, limit)
    WAITPOINT.lines(screen, found, run and f"{run} waits for nothing from outside")


@command(app)
async def show(fabric: Fabric, screen: Screen, run: Target, name: Name = None) -> None:
    """Show one open waitpoint: of an approval, exactly what is to be approved."""
    item = await find(fabric, run, name)
    WAITPOINT.show(screen, item)
    if not screen.as_json:
        for answer in how_to_answer(item):
            screen.note(f"answer with: {answer}")


@command(app)
async def token(
    fabric: Fabric,
    screen: Screen,
    run: Target,
    name: Name = None,
    approver: Annotated[str | None, Option(help="Only for this approver.")] = None,
    decision: Annotated[list[str] | None, Option(help="Only this decision; repeatable.")] = None,
    expires: Annotated[str | None, Option(help="Only for the next 2h, 3d, …")] = None,
    single_use: Annotated[bool, Option("--single-use", help="Only for one signal.")] = False,
) -> None:
    """Print a token that allows its bearer to answer, and nothing else on stdout."""
    item = await find(fabric, run, name)
    made = await fabric.waitpoint_token(
        address(item),
        approver=approver,
        decisions=tuple(decision or ()),
        expires=expires,
        single_use=single_use,
    )
    answer = {"id": address(item), "name": item.key, "token": made.reveal()}
    note = f"this token is a secret: its bearer may answer {item.key!r} at {address(item)}"
    screen.answer(answer, made.reveal(), note)


@command(app)
async def revoke(
    fabric: Fabric,
    screen: Screen,
    run: Target,
    name: Name = None,
    token: Annotated[str | None, Option(help="Only this bound token; - reads stdin.")] = None,
) -> None:
    """Revoke tokens: every one issued so far, or a bound one."""
    if token == STDIN:
        token = read_source(STDIN, "the token").strip()
    item = await find(fabric, run, name)
    await fabric.revoke_tokens(address(item), token=token)
    what = "every token" if token is None else "one token"
    answer = {"id": address(item), "name": item.key, "all": token is None}
    screen.answer(answer, f"revoked {what} of {item.key!r} of {item.execution}")


@command(app)
async def close(
    fabric: Fabric,
    engine: Engine,
    screen: Screen,
    run: Target,
    name: Name = None,
    reason: Annotated[str, Option(help="Why; the run sees it, and its events keep it.")] = "closed",
) -> None:
    """Close a waitpoint for good: it accepts no more signals and is not opened again.

    A run that waits at it continues: an approval is not approved, other waits raise WaitClosed.
    """
    item = await find(fabric, run, name)
    ended = await engine.suspensions.close_waitpoint(item.execution, item.id, reason=reason)
    closed = not isinstance(ended, AlreadySatisfied)
    answer = {"id": address(item), "name": item.key, "closed": closed, "reason": reason}
    word = "closed" if closed else "was closed before:"
    screen.answer(answer, f"{word} {item.key!r} of {item.execution}")


async def find(
    fabric: Fabric, run: str, name: str | None, *, approval: bool = False
) -> OpenWaitpoint:
    """The one open waitpoint, or approval, that these words name. `run` may be `run/waitpoint`;
    without a name there must be only one. Of several with the same name the one that is waited
    at counts."""
    id, slash, waitpoint = run.partition("/")
    found = await waitpoints_of(await fabric.engine(), id)
    if approval:
        found = [item for item in found if is_approval(item)]
    what = "approval" if approval else "waitpoint"
    if slash:
        target = parse_uuid(waitpoint, "waitpoint")
        return _only([item for item in found if item.id == target], id, waitpoint, what)
    named = [item for item in found if name is None or item.key == name]
    active = [item for item in named if item.state == "active"]
    return _only(active or named, id, name, what)


def _only(found: Sequence[OpenWaitpoint], run: str, name: str | None, what: str) -> OpenWaitpoint:
    if len(found) == 1:
        return found[0]
    if found and name is None:
        names = ", ".join(sorted({item.key for item in found}))
        raise CommandError(f"{run} has several open {what}s, name one: {names}", ExitCode.USAGE)
    if found:
        ids = ", ".join(f"{run}/{item.id}" for item in found)
        text = f"several {what}s are called {name!r}, name one: {ids}"
        raise CommandError(text, ExitCode.USAGE)
    which = "" if name is None else f" {without_secrets(name)!r}"
    raise CommandError(f"{run} has no open {what}{which}", ExitCode.NOT_FOUND, "not_found")


def address(item: OpenWaitpoint) -> str:
    return f"{item.execution.uuid}/{item.id}"


def is_approval(item: OpenWaitpoint) -> bool:
    return item.terms is not None and bool(item.terms.decisions)


def how_to_answer(item: OpenWaitpoint) -> list[str]:
    """The commands that answer it."""
    where = f"{item.execution.uuid} {shlex.quote(item.key)}"
    if is_approval(item):
        return [f"flowfabric {verb} {where} --as APPROVER" for verb in ("approve", "reject")]
    return [f"flowfabric signal {where} JSON"]
