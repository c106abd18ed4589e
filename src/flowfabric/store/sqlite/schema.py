"""Bringing a database up to date, and refusing one from the future."""

import sqlite3
from collections.abc import Iterator

from flowfabric.core.base.errors import SchemaTooNew
from flowfabric.store.sql import load_migrations
from flowfabric.store.sqlite.session import SqliteSession

_STRICT_SINCE = (3, 37, 0)


def migrate(session: SqliteSession) -> int:
    """Runs in one transaction, which no other process can enter meanwhile."""
    migrations = load_migrations("sqlite")
    for number in range(check_version(session.connection), len(migrations)):
        for statement in _statements(migrations[number]):
            session.connection.execute(statement)
        session.connection.execute(f"pragma user_version = {number + 1}")
    return len(migrations)


def check_version(connection: sqlite3.Connection) -> int:
    """The version of the schema; `SchemaTooNew` when a newer release has written it."""
    version = int(connection.execute("pragma user_version").fetchone()[0])
    if version > (known := len(load_migrations("sqlite"))):
        raise SchemaTooNew(f"the database has schema version {version}, this release knows {known}")
    return version


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
