"""From a URL to an open Fabric."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from flowfabric.cli.errors import Code, CommandError
from flowfabric.fabric import URL_VARIABLE, Fabric
from flowfabric.store.open import sqlite_path


@asynccontextmanager
async def connect(url: str | None) -> AsyncIterator[Fabric]:
    """An open Fabric on a store that exists, closed afterwards."""
    address = check_url(url)
    check_exists(address)
    async with Fabric(address) as fabric:
        yield fabric


def check_url(url: str | None) -> str:
    if not url:
        raise CommandError(f"no store: give --url or set {URL_VARIABLE}", Code.USAGE, "no_store")
    return url


def check_exists(url: str) -> None:
    """Looking at runs must not make a new database out of a mistyped path."""
    if not url.startswith("sqlite://"):
        return
    path = sqlite_path(url)
    if path != ":memory:" and not Path(path).exists():
        text = f"there is no database at {path}; `flowfabric migrate --url {url}` makes one"
        raise CommandError(text, Code.UNAVAILABLE, "no_database")
