"""Plans on tables with very many rows: what runs all the time reads none from end to end."""

import asyncio
import sqlite3
from typing import Any
from uuid import UUID

import pytest

from bench.fill import fill
from flowfabric.store.postgres.dialer import FREE, PINNED
from flowfabric.store.sql import load_queries
from tests.kit.postgres import Databases
from tests.store import postgres_bench

WAITING = FINISHED = 20_000
LINES = 500
LATER = 1 << 50
FIRST = UUID(int=0)
BIG = ("execution", "done", "ready", "parked", "event")

NO_FILTER: dict[str, Any] = dict.fromkeys(("namespace", "tag_key", "tag_value"))
OLD = {"ended_before": 5, "now": 5, "limit": 9, **NO_FILTER}

SQLITE: dict[str, Any] = {
    "trimmable_executions": {**OLD, "unread_from": 9},
    "trimmable_members": OLD,
    "trimmable_flows": OLD,
    "due_executions": {"now": 5, "limit": 9, "leases": True, **NO_FILTER},
    "next_due_moment": (5, True),
    "crowds": {"after": 0, "limit": 9},
    "waiting_in": {"queue": 5, "limit": 9},
    "held_queues": {"quotas": '["filled"]'},
    "held_by_key": {"used": '[["filled", "filled-1"]]'},
    "idle_queues": {"limit": 9},
}

POSTGRES: dict[str, tuple[Any, ...]] = {
    "trimmable_executions": (FREE, None, None, None, 5, 5, 9, 9),
    "due_executions": (FREE, None, None, None, 5, 9, True),
    "next_due_moment": (FREE, LATER, True),
    "failed_executions": (FREE, 5, None, None, 9),
    "window_end": (FREE, None, None, None, None, 99),
    "window_end_newest_first": (FREE, None, None, None, None, 99),
    "candidates": (FREE, "filled", None, LATER, 9, None),
    "crowds": (PINNED, -1, 9),
    "snapshots": (PINNED, [FIRST]),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("full") / "full.db"
    asyncio.run(fill(f"sqlite:///{path}", WAITING, FINISHED, LINES))
    return str(path)


@pytest.fixture(scope="module")
def database(databases: Databases) -> str:
    url = databases.create()
    asyncio.run(fill(url, WAITING, FINISHED, LINES))
    return url


@pytest.mark.parametrize("name", SQLITE)
def test_no_statement_of_a_sweep_scans_a_table_on_sqlite(file: str, name: str) -> None:
    connection = sqlite3.connect(file)
    query = "explain query plan " + load_queries("sqlite")[name]
    steps = [row[3] for row in connection.execute(query, SQLITE[name])]
    connection.close()
    words = [step.split() for step in steps]
    assert not [each for each in words if each[0] == "SCAN" and each[1] in BIG], steps


@pytest.mark.parametrize("name", POSTGRES)
async def test_no_statement_of_a_sweep_or_list_scans_a_table_on_postgres(
    database: str, name: str
) -> None:
    settings, *values = POSTGRES[name]
    async with postgres_bench.opened(database) as bench:
        connection = await bench.store.session.dialer.dial(settings)
        query = load_queries("postgres")[name]
        rows = await connection.fetch(f"explain (costs off) {query}", *values)
        await connection.close()
    steps = "\n".join(line for (line,) in rows)
    for table in BIG:
        assert f"Seq Scan on {table}" not in steps, steps
