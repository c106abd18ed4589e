"""How SQLite and Postgres look for records: by an index, never by reading a table."""

import re
from typing import Any
from uuid import UUID

import pytest

from flowfabric.store.contract import Store
from flowfabric.store.postgres.dialer import PINNED
from flowfabric.store.postgres.store import PostgresStore
from flowfabric.store.rows.record import (
    AUDIT,
    BUDGETS,
    FLOWS,
    LANES,
    PRESENCES,
    QUOTAS,
    SCHEDULES,
    TOKENS,
    RecordKind,
)
from flowfabric.store.sqlite.store import SqliteStore

Kind = RecordKind[Any, Any]
KINDS = (SCHEDULES, PRESENCES, QUOTAS, LANES, BUDGETS, FLOWS, TOKENS, AUDIT)

SCAN = r"Seq Scan|SCAN (?!given|CONSTANT ROW)"
"""How a plan says that it reads a whole table."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.table)
async def test_every_question_has_its_index(store: Store, kind: Kind) -> None:
    await store.migrate()
    key = (UUID(int=5),) if kind is FLOWS else ("a",) * len(kind.key)
    row = (*key, 1, *(None for _ in kind.columns), b"")
    asked: dict[str, tuple[Any, ...]] = {
        "records": key if store.name == "sqlite" else tuple([part] for part in key),
        "changed_record": (*row, 1),
        "dropped_record": (*key, None),
    }
    if kind is not FLOWS:
        asked["record_page"] = (9, *key)
    if kind.due is not None and kind is not PRESENCES:  # few, and rewritten with every heartbeat
        asked |= {"due_records": (5, 9), "next_due_record": ()}
    for name, values in asked.items():
        text = await plan(store, name, kind, values)
        assert not re.search(SCAN, text), text
    await store.close()


async def plan(store: Store, name: str, kind: Kind, values: tuple[Any, ...]) -> str:
    """How the database answers a question about records."""
    if isinstance(store, SqliteStore):
        query = store.reader.session.records.fill(name, kind)
        plain = [value.bytes if isinstance(value, UUID) else value for value in values]
        rows = store.reader.session.connection.execute(f"explain query plan {query}", plain)
        return "\n".join(row[3] for row in rows)
    assert isinstance(store, PostgresStore)
    query = store.session.records.fill(name, kind)
    connection = await store.session.dialer.dial(PINNED)
    found = await connection.fetch(f"explain (costs off) {query}", *values)
    await connection.close()
    return "\n".join(line for (line,) in found)
