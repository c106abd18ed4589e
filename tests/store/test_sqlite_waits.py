"""Waits on SQLite: the plans."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric.store.sql import load_queries
from flowfabric.store.sqlite import open_sqlite


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[str]:
    path = str(tmp_path / "waits.db")
    store = await open_sqlite(path)
    await store.migrate()
    yield path
    await store.close()


def plan(path: str, name: str, *values: object, **named: object) -> str:
    connection = sqlite3.connect(path)
    query = "explain query plan " + load_queries("sqlite")[name]
    text = "\n".join(row[3] for row in connection.execute(query, named or values))
    connection.close()
    return text


async def test_what_is_recalled_is_read_by_key(path: str) -> None:
    text = plan(path, "needed", 1, b"", b"", 0)
    assert "SEARCH w USING PRIMARY KEY (id=? AND waitpoint=?)" in text
    assert "SEARCH m USING PRIMARY KEY (id=? AND mark=?)" in text
    assert "SEARCH s USING INDEX signal_waitpoint (id=? AND waitpoint=? AND number>?)" in text


async def test_signals_are_read_and_counted_by_key(path: str) -> None:
    given = {"id": b"", "after": 0, "limit": 9}
    text = plan(path, "signals_of", **given)
    assert "USING PRIMARY KEY (id=? AND number>?)" in text
    counted = plan(path, "signals_counted", suspension=b"", **given)
    assert "USING INDEX signal_suspension (id=? AND suspension=? AND number>?)" in counted
    assert "TEMP B-TREE" not in text + counted
    assert "PRIMARY KEY (id=? AND number=?)" in plan(path, "counted_signals", b"", b"", 1)


async def test_the_suspended_are_read_in_the_order_of_their_index(path: str) -> None:
    text = plan(path, "suspended_executions", since=0, id=b"", namespace="a", limit=9)
    assert "parked_since" in text
    assert "TEMP B-TREE" not in text


@pytest.mark.parametrize("name", ["trimmed_waitpoints", "trimmed_signals", "trimmed_marks"])
async def test_what_belongs_to_the_trimmed_is_found_by_key(path: str, name: str) -> None:
    assert "SEARCH" in plan(path, name, b"")
