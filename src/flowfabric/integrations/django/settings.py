"""What a Django project says about FlowFabric in its settings, and the store that follows from it.

    FLOWFABRIC = {"database": "default"}

| key | meaning |
|---|---|
| `database` | the alias of the database that keeps the runs; "default" without it |
| `store` | the URL of another store instead, such as `postgresql://…` |
| `app` | the project's own Fabric, as `shop.work:fabric`; that of this package without it |
"""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.connection import ConnectionDoesNotExist
from msgspec import Struct

SETTING = "FLOWFABRIC"
_KEYS = ("app", "database", "store")

_PASSED_ON = (
    "krbsrvname",
    "passfile",
    "service",
    "servicefile",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslpassword",
    "sslrootcert",
    "target_session_attrs",
)
"""Options of a Postgres connection that say where to connect and how to be trusted."""


class ProjectSettings(Struct, frozen=True):
    """The setting, checked."""

    app: str | None = None
    database: str | None = None
    store: str | None = None

    @property
    def alias(self) -> str | None:
        """The alias of the database that keeps the runs; None if another store does."""
        return None if self.store else self.database or DEFAULT_DB_ALIAS


def read_settings() -> ProjectSettings:
    """The setting of the project. Raises ImproperlyConfigured."""
    given = getattr(settings, SETTING, None)
    if given is None:
        return ProjectSettings()
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"{SETTING} must be a dict, not {type(given).__name__}")
    if unknown := [str(key) for key in given if key not in _KEYS]:
        raise ImproperlyConfigured(
            f"{SETTING} has no {', '.join(map(repr, sorted(unknown)))} (known: {', '.join(_KEYS)})"
        )
    for key, value in given.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise ImproperlyConfigured(f"{SETTING}[{key!r}] must be a text that is not empty")
    found = ProjectSettings(**given)
    if found.store and found.database:
        raise ImproperlyConfigured(f"{SETTING} has both 'store' and 'database'; give one of them")
    if found.app and not all(found.app.partition(":")):
        raise ImproperlyConfigured(
            f"{SETTING}['app'] is {found.app!r}; write module:fabric, such as shop.work:fabric"
        )
    return found


def store_url() -> str:
    """The URL of the store that the settings name. It follows a test database that Django's test
    runner creates. Raises ImproperlyConfigured."""
    found = read_settings()
    if found.store:
        return found.store
    alias = found.alias or DEFAULT_DB_ALIAS
    try:
        wrapper = connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(connections) or "none"
        raise ImproperlyConfigured(
            f"{SETTING}['database'] is {alias!r}, which is not in DATABASES (known: {known})"
        ) from None
    match wrapper.vendor:
        case "sqlite":
            return _sqlite_url(alias, wrapper.settings_dict)
        case "postgresql":
            return _postgres_url(wrapper.settings_dict)
        case _:
            raise ImproperlyConfigured(
                f"runs are kept in SQLite or Postgres, but DATABASES[{alias!r}] uses"
                f" {wrapper.settings_dict['ENGINE']}; give {SETTING}['store'] the URL of a store"
            )


def _sqlite_url(alias: str, given: Mapping[str, Any]) -> str:
    name = os.fspath(given["NAME"])
    if is_in_memory(name):
        raise ImproperlyConfigured(
            f"DATABASES[{alias!r}] is in memory, where a worker cannot read it; use a file, and in"
            f" tests that run workers give DATABASES[{alias!r}]['TEST']['NAME'] a file"
        )
    return f"sqlite:///{quote(os.path.abspath(name))}"


def is_in_memory(name: object) -> bool:
    """Whether a NAME of a SQLite database is that of one in memory."""
    text = str(name)
    return text == ":memory:" or (text.startswith("file:") and "mode=memory" in text)


def _postgres_url(given: Mapping[str, Any]) -> str:
    options = given.get("OPTIONS") or {}
    host, port = str(given.get("HOST") or ""), str(given.get("PORT") or "")
    user = quote(str(given.get("USER") or ""), safe="")
    password = quote(str(given.get("PASSWORD") or ""), safe="")
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    query = {name: str(options[name]) for name in _PASSED_ON if options.get(name)}
    if host.startswith(("/", "@")):  # the folder of a socket
        query |= {"host": host} | ({"port": port} if port else {})
        place = ""
    else:
        shown = f"[{host}]" if ":" in host else host
        place = f"{shown}:{port}" if port else shown
    name = quote(str(given.get("NAME") or ""), safe="")
    return f"postgresql://{login}{place}/{name}" + (f"?{urlencode(query)}" if query else "")
