"""`flowfabric tokens …`"""

from typing import Annotated

from typer import Argument, Option, Typer

from flowfabric.cli.command import command
from flowfabric.cli.format import local
from flowfabric.cli.json import Document, document
from flowfabric.cli.output import Cells, Screen
from flowfabric.cli.parse import read_optional_span, user_name
from flowfabric.cli.table import Table, pages
from flowfabric.core.access.token import AccessScope, TokenInfo, TokenState
from flowfabric.core.base.time import parse_span
from flowfabric.engine.access.tokens import IssuedToken
from flowfabric.engine.engine import Engine

app = Typer(
    help="Manage the access tokens of the server. A token is shown once, when it is made.",
    no_args_is_help=True,
)

Name = Annotated[str, Argument(metavar="NAME", help="The token, such as ci-deploy.")]
Names = Annotated[list[str], Argument(metavar="NAME", help="One or more tokens.")]
Scopes = Annotated[
    list[AccessScope], Option("--scope", help="What the token allows; may be repeated.")
]
Namespaces = Annotated[
    list[str] | None,
    Option("--namespace", help="Only what is in this namespace; may be repeated. Default: all."),
]
Expires = Annotated[str | None, Option(help="After how long it ends, such as 30d. Default: never.")]
Extended = Annotated[
    str | None, Option("--expires", help="After how long it ends. Default: when it would have.")
]
By = Annotated[str | None, Option(help="Who decides; by default the user who is logged in.")]


def _row(token: TokenInfo) -> Cells:
    return [
        ("name", token.name),
        ("state", token.state),
        ("scopes", " ".join(token.scopes)),
        ("namespaces", "all" if token.namespaces is None else " ".join(token.namespaces)),
        ("ends in", f"…{token.last_four}"),
        ("expires", local(token.expires_at)),
        ("created", local(token.created_at)),
        ("by", token.created_by),
    ]


def _fields(token: TokenInfo) -> Cells:
    return [
        *_row(token),
        ("rotated", local(token.rotated_at)),
        ("rotated by", token.rotated_by),
        ("earlier secret until", local(token.grace_until)),
        ("revoked", local(token.revoked_at)),
        ("revoked by", token.revoked_by),
    ]


TOKEN = Table[TokenInfo](
    row=_row,
    fields=_fields,
    empty="no tokens: flowfabric tokens create makes one",
)


@command(app)
async def create(
    engine: Engine,
    screen: Screen,
    name: Name,
    scope: Scopes,
    namespace: Namespaces = None,
    expires: Expires = None,
    by: By = None,
) -> None:
    """Create a token and print it, alone on stdout. It cannot be shown again."""
    lifetime = read_optional_span(expires, "--expires")
    seen = namespace or None
    made = await engine.tokens.create(
        name, scope, namespaces=seen, expires=lifetime, by=user_name(by)
    )
    _show_secret(screen, made)


@command(app, "list")
async def list_tokens(engine: Engine, screen: Screen) -> None:
    """List the tokens: what they allow, until when, and who made them."""
    found = pages(lambda after, limit: engine.tokens.list(after=after, limit=limit), _name)
    await TOKEN.list(screen, found)


@command(app)
async def show(engine: Engine, screen: Screen, name: Name) -> None:
    """Show a token, never its secret."""
    TOKEN.show(screen, await engine.tokens.get(name))


@command(app)
async def revoke(engine: Engine, screen: Screen, names: Names, by: By = None) -> None:
    """Revoke tokens. Servers refuse them within three seconds."""
    for name in names:
        before = await engine.tokens.get(name)
        token = await engine.tokens.revoke(name, by=user_name(by))
        again = before.state is TokenState.REVOKED
        words = f"{name} was revoked already" if again else f"revoked {name}"
        screen.answer({**document(token), "changed": not again}, words)


@command(app)
async def rotate(
    engine: Engine,
    screen: Screen,
    name: Name,
    grace: Annotated[str, Option(help="How long the earlier secret stays valid.")] = "1d",
    expires: Extended = None,
    by: By = None,
) -> None:
    """Give a token a new secret and print it, alone on stdout."""
    span, lifetime = parse_span(grace, "--grace"), read_optional_span(expires, "--expires")
    made = await engine.tokens.rotate(name, grace=span, expires=lifetime, by=user_name(by))
    _show_secret(screen, made)


def _show_secret(screen: Screen, made: IssuedToken) -> None:
    text = made.secret.reveal()
    found: Document = {**document(made.info), "token": text}
    screen.answer(found, text, f"{made.info.name}: keep it safe, it is not shown again")


def _name(token: TokenInfo) -> str:
    return token.name
