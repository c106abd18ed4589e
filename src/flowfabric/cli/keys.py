"""`flowfabric keys …`"""

import asyncio
import secrets
from typing import Annotated

import typer

from flowfabric.cli.connect import connect
from flowfabric.cli.format import local
from flowfabric.cli.json import Document, iso
from flowfabric.cli.options import AsJson, Debug, Url
from flowfabric.cli.output import Screen
from flowfabric.cli.values import read_source
from flowfabric.core.base.time import Millis, parse_span
from flowfabric.core.wait.keyring import AlreadySeeded, Noop, kid_of

app = typer.Typer(
    help="The keys that sign waitpoint tokens. Secrets are never shown.", no_args_is_help=True
)

Kid = Annotated[
    str | None,
    typer.Option("--kid", show_default=False, help="What the key is called; told from its secret."),
]
SecretFile = Annotated[
    str | None,
    typer.Option(
        "--secret-file",
        show_default=False,
        help="The secret as hex digits, - reads stdin; without it one is made.",
    ),
]

COLUMNS = ("kid", "state", "verifies until")


@app.command(name="list")
def list_keys(url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the keys by their ids: the current one, and those that still verify."""
    asyncio.run(_list(url, Screen(as_json)))


@app.command()
def seed(
    kid: Kid = None,
    secret_file: SecretFile = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Install the first key. Never replaces one: that is `rotate`."""
    asyncio.run(_seed(url, kid, secret_file, Screen(as_json)))


@app.command()
def rotate(
    kid: Kid = None,
    secret_file: SecretFile = None,
    grace: Annotated[
        str, typer.Option("--grace", help="How long tokens of the previous key stay valid.")
    ] = "1d",
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Sign with a new key from now on; other processes follow within a second."""
    span = parse_span(grace, "--grace")
    asyncio.run(_rotate(url, kid, secret_file, span, Screen(as_json)))


async def _list(url: str | None, screen: Screen) -> None:
    async with connect(url) as fabric:
        kids = await (await fabric.engine()).keys.kids()
    found: list[tuple[str, str, Millis | None]] = []
    if kids.current_kid is not None:
        found.append((kids.current_kid, "current", None))
    found += [(kid, "verifying", until) for kid, until in kids.verifying]
    if screen.as_json:
        for kid, state, until in found:
            told = None if until is None else iso(until)
            screen.document({"kid": kid, "state": state, "until": told})
    elif found:
        screen.table(COLUMNS, [[kid, state, local(until)] for kid, state, until in found])
    else:
        screen.note("no keys: one is made when the first run waits, or by flowfabric keys seed")


async def _seed(url: str | None, kid: str | None, file: str | None, screen: Screen) -> None:
    kid, secret = _key(kid, file)
    async with connect(url) as fabric:
        answer = await (await fabric.engine()).keys.seed(kid, secret)
    if isinstance(answer, AlreadySeeded):
        same = "with this secret" if answer.same_secret else "with another secret"
        told: Document = {"kid": kid, "seeded": False, "same_secret": answer.same_secret}
        _tell(screen, told, f"{kid} is there already, {same}")
    else:
        _tell(screen, {"kid": kid, "seeded": True}, f"seeded {kid}")


async def _rotate(
    url: str | None, kid: str | None, file: str | None, grace: Millis, screen: Screen
) -> None:
    kid, secret = _key(kid, file)
    async with connect(url) as fabric:
        answer = await (await fabric.engine()).keys.rotate(kid, secret, grace=grace)
    if isinstance(answer, Noop):
        _tell(screen, {"kid": kid, "rotated": False}, f"{kid} is current already")
        return
    told = {
        "kid": kid,
        "rotated": True,
        "previous": answer.previous,
        "collected": answer.collected,
    }
    before = "" if answer.previous is None else f" (before: {answer.previous})"
    _tell(screen, told, f"rotated to {kid}{before}")


def _key(kid: str | None, file: str | None) -> tuple[str, str]:
    """Kid and secret. A secret is never an argument: a process list would show it."""
    secret = secrets.token_hex(32) if file is None else read_source(file, "the secret").strip()
    return kid or kid_of(secret), secret


def _tell(screen: Screen, told: Document, words: str) -> None:
    if screen.as_json:
        screen.document(told)
    else:
        screen.line(words)
