"""Bringing a database up to date, and refusing one from the future."""

import sqlite3
from collections.abc import Iterator

from flowfabric.core.base.errors import SchemaTooNew
from flowfabric.store.sql import load_migrations, load_queries
from flowfabric.store.sqlite.session import SqliteSession

_STRICT_SINCE = (3, 37, 0)


def migrate(session: SqliteSession) -> int:
    """Runs in one transaction, which no other process can enter meanwhile."""
    migrations, connection = load_migrations("sqlite"), session.connection
    for number in range(check_version(connection), len(migrations)):
        for statement in _statements(migrations[number]):
            connection.execute(statement)
    if _recorded(connection) != len(migrations):
        value = str(len(migrations)).encode()
        connection.execute(load_queries("sqlite")["new_version"], {"value": value})
    return len(migrations)


def check_version(connection: sqlite3.Connection) -> int:
    """The version of the schema; `SchemaTooNew` when a newer release has written it."""
    version = version_of(connection)
    if version > (known := len(load_migrations("sqlite"))):
        raise SchemaTooNew(f"the database has schema version {version}, this release knows {known}")
    return version


def version_of(connection: sqlite3.Connection) -> int:
    """The version of the schema, 0 without one. `pragma user_version` is the application's, whose
    tables may be in the same file; but an earlier checkout kept the version there."""
    tables = {name for (name,) in connection.execute(load_queries("sqlite")["own_tables"])}
    if "execution" not in tables:
        return 0
    recorded = _recorded(connection) if "meta" in tables else None
    if recorded is None:
        return int(connection.execute("pragma user_version").fetchone()[0])
    return recorded


def _recorded(connection: sqlite3.Connection) -> int | None:
    row = connection.execute(load_queries("sqlite")["schema_version"]).fetchone()
    return None if row is None else int(row[0])


def _statements(text: str) -> Iterator[str]:
    """One by one: the driver's own way to run a script commits first."""
    if sqlite3.sqlite_version_info < _STRICT_SINCE:
        text = text.replace(") strict, without rowid;", ") without rowid;")
        text = text.replace(") strict;", ");")
    statement = ""
    for line in text.splitlines(keepends=True):
        if not statement and not line.strip():
            continue
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
