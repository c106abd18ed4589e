"""Commands about the installation: `migrate` and `version`."""

import asyncio
import platform
import sqlite3
from importlib.metadata import version as installed
from typing import Annotated

from typer import Context, Exit, Option

from flowfabric.cli.command import AsJson, DatabaseUrl, Debug, check_url
from flowfabric.cli.errors import AS_JSON, CommandError, ExitCode
from flowfabric.cli.output import Screen
from flowfabric.remote.connection import is_server
from flowfabric.store.open import open_store, shown_url


def migrate(url: DatabaseUrl = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Bring the schema of a store up to date; a SQLite file that does not exist is made.

    Workers do this when they start; the command is for deployments that migrate first.
    """
    address = check_url(url)
    if is_server(address):
        text = "a schema is brought up to date in its database: give --url of the database"
        raise CommandError(text, ExitCode.USAGE, "needs_database")
    number, shown = asyncio.run(_migrate(address)), shown_url(address)
    Screen(as_json).answer(
        {"url": shown, "version": number}, f"{shown} is at schema version {number}"
    )


async def _migrate(url: str) -> int:
    store = await open_store(url)
    try:
        return await store.migrate()
    finally:
        await store.close()


def _show_version(ctx: Context, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        version(as_json=bool(ctx.meta.get(AS_JSON)))
        raise Exit


ShowVersion = Annotated[
    bool,
    Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
]


def version(as_json: AsJson = False, debug: Debug = False) -> None:
    """Show the versions of FlowFabric, Python and SQLite."""
    versions = {
        "version": installed("flowfabric"),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    words = "flowfabric {version} (Python {python}, SQLite {sqlite})".format(**versions)
    Screen(as_json).answer(versions, words)
