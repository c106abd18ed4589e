"""The options commands share, each written once."""

from typing import Annotated

import typer

from flowfabric.cli.errors import AS_JSON, DEBUG
from flowfabric.fabric import URL_VARIABLE


def _remember_debug(ctx: typer.Context, value: bool) -> bool:
    ctx.meta[DEBUG] = value
    return value


def _remember_json(ctx: typer.Context, value: bool) -> bool:
    ctx.meta[AS_JSON] = value
    return value


Debug = Annotated[
    bool, typer.Option("--debug", callback=_remember_debug, help="Show the traceback of an error.")
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json", callback=_remember_json, help="One JSON document, or one per line for lists."
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar=URL_VARIABLE,
        show_default=False,
        help="The store: sqlite:///work.db or postgresql://user@host/database.",
    ),
]
AppUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        show_default=False,
        help="Another store than the one the application names.",
    ),
]
App = Annotated[
    str,
    typer.Argument(metavar="APP", show_default=False, help="Your Fabric, as app.module:fabric."),
]
RunId = Annotated[str, typer.Argument(metavar="ID", show_default=False, help="{fp:86}:01a1e105-…")]
RunIds = Annotated[
    list[str],
    typer.Argument(metavar="ID...", show_default=False, help="One or more; - reads stdin."),
]
Timeout = Annotated[
    str | None,
    typer.Option("--timeout", show_default=False, help="Stop waiting after 30s, 5m, …"),
]
