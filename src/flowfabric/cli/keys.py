"""`flowfabric keys …`"""

import secrets
from typing import Annotated

from msgspec import Struct
from typer import Option, Typer

from flowfabric.cli.command import command
from flowfabric.cli.format import local
from flowfabric.cli.output import Screen
from flowfabric.cli.parse import read_source, user_name
from flowfabric.cli.table import Table
from flowfabric.core.base.time import Millis, parse_span
from flowfabric.core.wait.keyring import AlreadySeeded, Noop, kid_of
from flowfabric.engine.engine import Engine

app = Typer(
    help="Manage the keys that sign waitpoint tokens. Secrets are never shown.",
    no_args_is_help=True,
)

Kid = Annotated[str | None, Option(help="The id of the key; by default derived from its secret.")]
SecretFile = Annotated[
    str | None,
    Option(help="A file with the secret as hex digits, - for stdin; by default one is made."),
]


class KnownKey(Struct, frozen=True):
    kid: str
    state: str
    until: Millis | None = None


KEY = Table[KnownKey](
    row=lambda key: [
        ("kid", key.kid),
        ("state", key.state),
        ("verifies until", local(key.until)),
    ],
    empty="no keys: one is made when the first run waits, or by flowfabric keys seed",
)


@command(app, "list")
async def list_keys(engine: Engine, screen: Screen) -> None:
    """List the keys by their ids: the current one, and those that still verify."""
    kids = await engine.keys.kids()
    current = [] if kids.current_kid is None else [KnownKey(kids.current_kid, "current")]
    verifying = [KnownKey(kid, "verifying", until) for kid, until in kids.verifying]
    KEY.lines(screen, [*current, *verifying])


@command(app)
async def seed(
    engine: Engine, screen: Screen, kid: Kid = None, secret_file: SecretFile = None
) -> None:
    """Install the first key. It never replaces a key: `rotate` does."""
    kid, secret = _key(kid, secret_file)
    answer = await engine.keys.seed(kid, secret, by=user_name(None))
    if isinstance(answer, AlreadySeeded):
        same = "with this secret" if answer.same_secret else "with another secret"
        known = {"kid": kid, "seeded": False, "same_secret": answer.same_secret}
        screen.answer(known, f"{kid} exists already, {same}")
    else:
        screen.answer({"kid": kid, "seeded": True}, f"seeded {kid}")


@command(app)
async def rotate(
    engine: Engine,
    screen: Screen,
    kid: Kid = None,
    secret_file: SecretFile = None,
    grace: Annotated[str, Option(help="How long tokens of the previous key stay valid.")] = "1d",
) -> None:
    """Sign with a new key from now on; other processes follow within a second."""
    span = parse_span(grace, "--grace")
    kid, secret = _key(kid, secret_file)
    answer = await engine.keys.rotate(kid, secret, grace=span, by=user_name(None))
    if isinstance(answer, Noop):
        screen.answer({"kid": kid, "rotated": False}, f"{kid} is the current key already")
        return
    before = "" if answer.previous is None else f" (before: {answer.previous})"
    rest = {"previous": answer.previous, "collected": answer.collected}
    screen.answer({"kid": kid, "rotated": True, **rest}, f"rotated to {kid}{before}")


def _key(kid: str | None, file: str | None) -> tuple[str, str]:
    """Kid and secret. A secret is never an argument: a process list would show it."""
    secret = secrets.token_hex(32) if file is None else read_source(file, "the secret").strip()
    return kid or kid_of(secret), secret
