"""`flowfabric waitpoints …`"""

import asyncio
from typing import Annotated

import typer
from msgspec import Struct

from flowfabric.cli import waiting
from flowfabric.cli.connect import connect
from flowfabric.cli.options import AsJson, Debug, Url
from flowfabric.cli.output import Screen
from flowfabric.cli.values import STDIN, read_source
from flowfabric.core.execution.lease import AlreadySatisfied

app = typer.Typer(
    help="Look at what waits for the outside world, and hand out tokens.", no_args_is_help=True
)

Target = Annotated[
    str,
    typer.Argument(metavar="RUN", show_default=False, help="A run's id, or RUN/WAITPOINT."),
]
Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]", show_default=False, help="Which waitpoint, if more than one is open."
    ),
]


class Bounds(Struct, frozen=True, kw_only=True):
    """What a token is bound to."""

    approver: str | None
    decisions: tuple[str, ...]
    expires: str | None
    single_use: bool


@app.command(name="list")
def list_waitpoints(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", show_default=False, help="Only of this run."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=waiting.MOST, help="At most so many.")
    ] = 50,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List what is waited for, the longest waiting first. Tokens are never shown."""
    asyncio.run(_list(url, run, limit, Screen(as_json)))


@app.command()
def token(  # noqa: PLR0913 - the options are the interface
    run: Target,
    name: Name = None,
    approver: Annotated[
        str | None, typer.Option("--approver", show_default=False, help="Only for this one.")
    ] = None,
    decision: Annotated[
        list[str] | None,
        typer.Option("--decision", show_default=False, help="Only for this, repeatable."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", show_default=False, help="Only for 2h, 3d, …")
    ] = None,
    single_use: Annotated[bool, typer.Option("--single-use", help="Only for one signal.")] = False,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print a token that lets whoever has it answer, and nothing else on stdout."""
    bounds = Bounds(
        approver=approver,
        decisions=tuple(decision or ()),
        expires=expires,
        single_use=single_use,
    )
    asyncio.run(_token(url, run, name, bounds, Screen(as_json)))


@app.command()
def revoke(
    run: Target,
    name: Name = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", show_default=False, help="Only this bound token; - reads it from stdin."
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Take tokens back: every one issued so far, or a bound one."""
    if token == STDIN:
        token = read_source(STDIN, "the token").strip()
    asyncio.run(_revoke(url, run, name, token, Screen(as_json)))


@app.command()
def close(
    run: Target,
    name: Name = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; the run and its history are told.")
    ] = "closed",
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Close a waitpoint for good: it accepts no signal any more, and is not opened again.

    A run that waits at it goes on: an approval is not approved, any other wait raises WaitClosed.
    """
    asyncio.run(_close(url, run, name, reason, Screen(as_json)))


async def _list(url: str | None, run: str | None, limit: int, screen: Screen) -> None:
    async with connect(url) as fabric:
        found = await fabric.waitpoints(run, limit=limit)
    if screen.as_json:
        for item in found:
            screen.document(waiting.told(item))
    elif found:
        screen.table(waiting.COLUMNS, [waiting.row(item) for item in found])
    else:
        screen.note("nothing waits" if run is None else f"{run} waits for nothing from outside")


async def _token(
    url: str | None, run: str, name: str | None, bounds: Bounds, screen: Screen
) -> None:
    async with connect(url) as fabric:
        item = await waiting.find(fabric, run, name)
        address = f"{item.execution}/{item.id}"
        token = await fabric.waitpoint_token(
            address,
            approver=bounds.approver,
            decisions=bounds.decisions,
            expires=bounds.expires,
            single_use=bounds.single_use,
        )
    if screen.as_json:
        screen.document({"id": address, "name": item.key, "token": token.reveal()})
        return
    screen.line(token.reveal())
    screen.note(f"this token is a secret: whoever has it may answer {item.key!r} at {address}")


async def _revoke(
    url: str | None, run: str, name: str | None, token: str | None, screen: Screen
) -> None:
    async with connect(url) as fabric:
        item = await waiting.find(fabric, run, name)
        await fabric.revoke_tokens(f"{item.execution}/{item.id}", token=token)
    what = "every token" if token is None else "one token"
    answer = {"id": f"{item.execution}/{item.id}", "name": item.key, "all": token is None}
    _tell(screen, answer, f"revoked {what} of {item.key!r} of {item.execution}")


async def _close(url: str | None, run: str, name: str | None, reason: str, screen: Screen) -> None:
    async with connect(url) as fabric:
        item = await waiting.find(fabric, run, name)
        engine = await fabric.engine()
        answer = await engine.suspensions.close_waitpoint(item.execution, item.id, reason=reason)
    closed = not isinstance(answer, AlreadySatisfied)
    told = {
        "id": f"{item.execution}/{item.id}",
        "name": item.key,
        "closed": closed,
        "reason": reason,
    }
    word = "closed" if closed else "was closed before:"
    _tell(screen, told, f"{word} {item.key!r} of {item.execution}")


def _tell(screen: Screen, answer: dict[str, object], words: str) -> None:
    if screen.as_json:
        screen.document(answer)
    else:
        screen.line(words)
