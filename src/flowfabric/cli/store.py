"""Commands about the installation: `migrate` and `version`."""

import asyncio
import platform
import sqlite3
from importlib.metadata import version as installed

from flowfabric.cli.connect import check_url
from flowfabric.cli.options import AsJson, Debug, Url
from flowfabric.cli.output import Screen, redact
from flowfabric.store.open import open_store


def migrate(url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Bring a store's schema up to date, making the database if it is a new file.

    Workers do it by themselves when they start; this is for deployments that do it first.
    """
    screen, address = Screen(as_json), check_url(url)
    number = asyncio.run(_migrate(address))
    if as_json:
        screen.document({"url": redact(address), "version": number})
    else:
        screen.line(f"{redact(address)} is at schema version {number}")


async def _migrate(url: str) -> int:
    store = await open_store(url)
    try:
        return await store.migrate()
    finally:
        await store.close()


def version(as_json: AsJson = False, debug: Debug = False) -> None:
    """Show the versions of FlowFabric and of what it runs on."""
    screen = Screen(as_json)
    versions = {
        "version": installed("flowfabric"),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    if as_json:
        screen.document(versions)
    else:
        screen.line("flowfabric {version} (Python {python}, SQLite {sqlite})".format(**versions))
