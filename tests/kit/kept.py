"""What is kept from test to test, because making it takes longer than a test: one database, emptied
in between, and the connections to it with all they have prepared.

A database is used again only if it is as it was made. Nobody else may be connected, and its tables,
indexes and functions must be the very ones. Otherwise the next test gets a new copy.
"""

import asyncio
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from flowfabric.store.postgres.address import read_address
from flowfabric.store.postgres.dialer import Connection, Dialer
from flowfabric.store.sqlite.connection import connect
from tests.kit.postgres import Databases

MOST_USES = 300
"""Deleted rows make a database slower; then a copy is faster."""
LEAVING_SECONDS = 1.0
"""A session of the server ends a little after its connection was closed."""

_OTHERS = """
select pid from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
"""

# Whatever changes a table, an index, a view or a sequence writes its row in pg_class again.
_MADE_OF = """
select
    (select md5(string_agg(oid || ' ' || xmin, ',' order by oid)) from pg_class where oid >= 16384),
    (select md5(string_agg(oid || ' ' || xmin, ',' order by oid)) from pg_proc where oid >= 16384),
    (select md5(string_agg(oid || ' ' || xmin, ',' order by oid)) from pg_namespace),
    (select count(*) from pg_trigger),
    (select count(*) from pg_db_role_setting)
"""


class Shelf:
    """Connections that stores of earlier tests have closed. They belong to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.dsn: str | None = None
        self._kinds: dict[Connection, str] = {}
        self._waiting: dict[str, list[Connection]] = defaultdict(list)

    def take(self, dsn: str, settings: Mapping[str, str]) -> Connection | None:
        if dsn != self.dsn or asyncio.get_running_loop() is not self.loop:
            return None
        waiting = self._waiting[repr(settings)]
        while waiting:
            connection = waiting.pop()
            if not connection.is_closed():
                return connection
        return None

    def adopt(self, dsn: str, settings: Mapping[str, str], connection: Connection) -> None:
        """From now on it comes here when it is closed."""
        if dsn == self.dsn and asyncio.get_running_loop() is self.loop:
            self._kinds[connection] = repr(settings)
            connection.__class__ = _Kept
            _shelves[connection] = self

    async def put(self, connection: Connection) -> bool:
        """Whether it was taken in."""
        kind = self._kinds.get(connection)
        if kind is None or connection.is_closed() or asyncio.get_running_loop() is not self.loop:
            return False
        if connection not in self._waiting[kind]:
            await connection.reset(timeout=LEAVING_SECONDS)
            self._waiting[kind].append(connection)
        return True

    @property
    def pids(self) -> set[int]:
        everybody = [connection for waiting in self._waiting.values() for connection in waiting]
        return {each.get_server_pid() for each in everybody if not each.is_closed()}

    def clear(self) -> None:
        for connection in self._kinds:
            connection.terminate()
            _shelves.pop(connection, None)
        self._kinds.clear()
        self._waiting.clear()
        self.dsn = None


_shelves: dict[Connection, Shelf] = {}


class _Kept(Connection):
    __slots__ = ()

    async def close(self, *, timeout: float | None = None) -> None:
        shelf = _shelves.get(self)
        try:
            if shelf is None or not await shelf.put(self):
                await super().close(timeout=timeout)
        except BaseException:
            self.terminate()
            raise


@contextmanager
def kept_connections(shelf: Shelf) -> Iterator[None]:
    """Stores look on the shelf before they dial."""
    honest = Dialer.dial

    async def dial(self: Dialer, settings: Mapping[str, str]) -> Connection:
        if self.pooled or self.address.pooler is not None:
            return await honest(self, settings)
        found = shelf.take(self.address.dsn, settings)
        if found is None:
            found = await honest(self, settings)
            shelf.adopt(self.address.dsn, settings, found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dialer, "dial", dial)
        yield


class KeptDatabase:
    """`take()` gives the URL of a database as its template is, to one test at a time."""

    def __init__(self, databases: Databases, template: str, shelf: Shelf) -> None:
        self._databases = databases
        self._template = template
        self._shelf = shelf
        self._admin: psycopg.Connection[Any] | None = None
        self._url = ""
        self._uses = 0
        self._renewal = sql.Composed([])
        self._made_of: Any = None

    def take(self) -> str:
        if self._admin is not None and not self._renewed(self._admin):
            self.discard()
        if self._admin is None:
            self._make()
        self._uses += 1
        return self._url

    def discard(self) -> None:
        """The next test gets another one."""
        self._shelf.clear()
        if self._admin is not None:
            self._admin.close()
            self._databases.discard(self._url)
        self._admin, self._uses = None, 0

    def _make(self) -> None:
        self._url = self._databases.create(template=self._template)
        self._shelf.dsn = read_address(self._url).dsn
        self._admin = psycopg.connect(self._url, autocommit=True, options="-c lock_timeout=1s")
        self._renewal = _renewal(self._admin)
        self._made_of = self._admin.execute(_MADE_OF).fetchall()

    def _renewed(self, admin: psycopg.Connection[Any]) -> bool:
        try:
            if self._uses >= MOST_USES or not self._alone(admin):
                return False
            admin.execute(self._renewal)
            return bool(admin.execute(_MADE_OF).fetchall() == self._made_of)
        except psycopg.Error:
            return False

    def _alone(self, admin: psycopg.Connection[Any]) -> bool:
        until = time.monotonic() + LEAVING_SECONDS
        while (others := {pid for (pid,) in admin.execute(_OTHERS)}) != self._shelf.pids:
            if time.monotonic() > until or not others > self._shelf.pids:
                return False
            time.sleep(0.002)
        return True


def _renewal(admin: psycopg.Connection[Any]) -> sql.Composed:
    """Statements that bring the rows back to what they are now. With few rows, deleting is much
    faster than truncating."""
    steps: list[sql.Composable] = []
    tables = admin.execute("select tablename from pg_tables where schemaname = 'flowfabric'")
    for table in [sql.Identifier("flowfabric", name) for (name,) in tables.fetchall()]:
        steps.append(sql.SQL("delete from {}").format(table))
        for row in admin.execute(sql.SQL("select * from {}").format(table)).fetchall():
            values = sql.SQL(", ").join(map(sql.Literal, row))
            steps.append(sql.SQL("insert into {} values ({})").format(table, values))
    sequences = admin.execute("select sequencename from pg_sequences")
    for name in [f"flowfabric.{name}" for (name,) in sequences.fetchall()]:
        steps.append(sql.SQL("select setval({}, 1, false)").format(sql.Literal(name)))
    return sql.SQL(";").join(steps)


def connect_hastily(path: str, synchronous: str) -> sqlite3.Connection:
    """Nobody pulls the plug: the disk is not waited for."""
    connection = connect(path, synchronous)
    connection.execute("pragma synchronous = off")
    return connection
