"""The machine on every store.

`FLOWFABRIC_MACHINE_EXAMPLES` asks for so many examples on each instead of the usual few, and for
longer ones.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

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

    async def clean(self) -> None:
        for file in self._folder.glob(f"{self._files}.db*"):
            file.unlink()
        self._files += 1

    async def open(self, clock: Clock) -> Store:
        # Nobody pulls the plug here: without waiting for the disk it is several times faster.
        return await open_sqlite(str(self.path), clock=clock, inline=True, synchronous="NORMAL")

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

    def close(self) -> None:
        self._admin.close()

    def _delete_all(self) -> sql.Composed:
        """With few rows this is much faster than truncating. What belongs to the schema stays."""
        found = self._admin.execute(
            "select tablename from pg_tables where schemaname = 'flowfabric'"
        ).fetchall()
        tables = [sql.Identifier("flowfabric", name) for (name,) in found if name != "meta"]
        return sql.SQL(";").join(sql.SQL("delete from {}").format(table) for table in tables)


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
    play(SqliteBench(tmp_path), USUAL["sqlite"])


@pytest.mark.timeout(600 if ASKED is None else 0)
def test_the_machine_finds_nothing_on_postgres(fresh_database: Callable[..., str]) -> None:
    bench = PostgresBench(fresh_database())
    try:
        play(bench, USUAL["postgres"])
    finally:
        bench.close()
