"""The machine on every store.

`FLOWFABRIC_MACHINE_EXAMPLES` asks for so many examples on each instead of the usual few, and for
longer ones.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from psycopg import sql

from flowfabric.store.clock import Clock
from flowfabric.store.contract import Store
from flowfabric.store.open import open_store
from flowfabric.store.sqlite.store import open_sqlite
from tests.machine.machine import Machine
from tests.machine.play import Bench

USUAL = {"sqlite": 60, "postgres": 30}
ASKED = os.environ.get("FLOWFABRIC_MACHINE_EXAMPLES")

settings.register_profile(
    "machine",
    stateful_step_count=40 if ASKED is None else 80,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


class SqliteBench:
    """A fresh file for every example; its stores have no threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = 0
        self._reader: tuple[Path, sqlite3.Connection | None] = (folder, None)

    async def clean(self) -> None:
        self.close()
        for file in self._folder.glob(f"{self._files}.db*"):
            file.unlink()
        self._files += 1

    async def open(self, clock: Clock) -> Store:
        # Nobody pulls the plug here: without waiting for the disk it is several times faster.
        return await open_sqlite(str(self.path), clock=clock, inline=True, synchronous="NORMAL")

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


async def _migrate(url: str) -> None:
    store = await open_store(url)
    await store.migrate()
    await store.close()


def play(bench: Bench, examples: int) -> None:
    machine = type("MachineOnThisBench", (Machine,), {"bench": bench})
    profile = settings.get_profile("machine")
    asked = examples if ASKED is None else int(ASKED)
    run_state_machine_as_test(machine, settings=settings(profile, max_examples=asked))


@pytest.mark.timeout(600 if ASKED is None else 0)
def test_the_machine_finds_nothing_on_sqlite(tmp_path: Path) -> None:
    with closing(SqliteBench(tmp_path)) as bench:
        play(bench, USUAL["sqlite"])


@pytest.mark.timeout(600 if ASKED is None else 0)
def test_the_machine_finds_nothing_on_postgres(fresh_database: Callable[..., str]) -> None:
    with closing(PostgresBench(fresh_database())) as bench:
        play(bench, USUAL["postgres"])
