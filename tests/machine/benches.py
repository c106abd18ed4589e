"""Where the machines find their databases, and stores that do one thing wrong."""

import asyncio
import shutil
import sqlite3
from pathlib import Path
from typing import Protocol
from unittest.mock import patch
from uuid import UUID

import psycopg
from psycopg import sql

from flowfabric.store.clock import Clock
from flowfabric.store.contract import Store
from flowfabric.store.open import open_store
from flowfabric.store.sqlite import runners
from flowfabric.store.sqlite.store import open_sqlite
from tests.kit.kept import connect_hastily
from tests.machine.rivals import Wrapper


class Bench(Protocol):
    """Where a play finds its database."""

    async def clean(self) -> None:
        """The database is empty again (or another one)."""

    async def open(self, clock: Clock) -> Store:
        """A store on the database, as one process would open it."""

    async def alarms(self) -> dict[UUID, int]:
        """What stands in the table of deadlines."""


class SqliteBench:
    """A fresh file for every example; its stores have no threads and wait for no disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._empty = folder / "empty.db"
        asyncio.run(_migrate(f"sqlite:///{self._empty}"))
        self._files = 0
        self._reader: tuple[Path, sqlite3.Connection | None] = (folder, None)

    async def clean(self) -> None:
        self.close()
        for file in self._folder.glob(f"{self._files}.db*"):
            file.unlink()
        self._files += 1
        shutil.copyfile(self._empty, self.path)

    async def open(self, clock: Clock) -> Store:
        with patch.object(runners, "connect", connect_hastily):
            return await open_sqlite(str(self.path), clock=clock, inline=True)

    async def alarms(self) -> dict[UUID, int]:
        rows = self._connection().execute("select id, at from deadline").fetchall()
        return {UUID(bytes=id): at for id, at in rows}

    def _connection(self) -> sqlite3.Connection:
        known, connection = self._reader
        if known != self.path or connection is None:
            self.close()
            connection = sqlite3.connect(self.path)
            self._reader = (self.path, connection)
        return connection

    def close(self) -> None:
        known, connection = self._reader
        if connection is not None:
            connection.close()
        self._reader = (known, None)

    @property
    def path(self) -> Path:
        return self._folder / f"{self._files}.db"


class PostgresBench:
    """One database, emptied before every example."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._admin = psycopg.connect(url, autocommit=True)
        asyncio.run(_migrate(url))
        self._empty = self._delete_all()

    async def clean(self) -> None:
        self._admin.execute(self._empty)

    async def open(self, clock: Clock) -> Store:
        return await open_store(self._url, clock=clock)

    async def alarms(self) -> dict[UUID, int]:
        return dict(self._admin.execute("select id, at from flowfabric.deadline").fetchall())

    def close(self) -> None:
        self._admin.close()

    def _delete_all(self) -> sql.Composed:
        """With few rows this is much faster than truncating. What belongs to the schema stays; what
        is known of the clock goes, because every example begins at the same moment."""
        found = self._admin.execute(
            "select tablename from pg_tables where schemaname = 'flowfabric'"
        ).fetchall()
        tables = [sql.Identifier("flowfabric", name) for (name,) in found if name != "meta"]
        deletes = [sql.SQL("delete from {}").format(table) for table in tables]
        clock = sql.SQL("delete from flowfabric.meta where key = 'clock'")
        return sql.SQL(";").join([*deletes, clock])


class Fault(Wrapper):
    """A store that does one thing wrong."""

    def __init__(self, inner: Store, path: Path) -> None:
        super().__init__(inner)
        self.path = path


class FaultyBench(SqliteBench):
    """Every store it opens has the fault."""

    def __init__(self, folder: Path, fault: type[Fault]) -> None:
        super().__init__(folder)
        self._fault = fault

    async def open(self, clock: Clock) -> Store:
        return self._fault(await super().open(clock), self.path).store


async def _migrate(url: str) -> None:
    store = await open_store(url)
    await store.migrate()
    await store.close()
