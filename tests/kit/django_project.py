"""Django in the process of the tests: configured once, on another database for each test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import django
from django.conf import settings
from django.db import connections

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nowhere/db"}},
        INSTALLED_APPS=["flowfabric.integrations.django"],
        SECRET_KEY="for tests",
        USE_TZ=True,
    )
    django.setup()


def database_of(url: str) -> dict[str, Any]:
    """An entry of DATABASES for the database of a store."""
    if url.startswith("sqlite:///"):
        options = {"transaction_mode": "IMMEDIATE"}
        name = url.removeprefix("sqlite:///")
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options}
    parts = urlsplit(url)
    hosts = parse_qs(parts.query).get("host", [""])
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path[1:]),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or hosts[0],
        "PORT": str(parts.port or ""),
    }


@contextmanager
def on_database(entry: dict[str, Any], alias: str = "default") -> Iterator[None]:
    """Inside the block, the alias leads to this database."""
    before = connections.settings.get(alias)
    _put(alias, connections.configure_settings({"default": {}, alias: entry})[alias])
    try:
        yield
    finally:
        connections[alias].close()
        _put(alias, before)


def _put(alias: str, entry: Any) -> None:
    if entry is None:
        del connections.settings[alias], connections[alias]
        return
    connections.settings[alias] = entry
    connections[alias] = connections.create_connection(alias)
