"""Versioned records of every kind."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from flowfabric.core.base.time import Millis
from flowfabric.store.contract import NO_FILTER
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import PostgresSession, columns
from flowfabric.store.rows.record import K, RecordKind, Row, V


async def get(session: PostgresSession, kind: RecordKind[K, V], keys: Sequence[K]) -> dict[K, V]:
    if not keys:
        return {}
    wanted = columns([kind.parts(key) for key in dict.fromkeys(keys)], len(kind.key))
    query = session.records.fill("records", kind)
    return kind.by_key(await session.ask(session.record, query, *wanted))


async def page(
    session: PostgresSession,
    kind: RecordKind[K, V],
    after: K | None = None,
    limit: int | None = None,
    where: Mapping[str, object] = NO_FILTER,
) -> list[V]:
    first = kind.first_page if after is None else kind.parts(after)
    query = session.records.fill("record_page", kind, tuple(where))
    values = (limit, *first, *where.values())
    return kind.readable(await session.ask(session.record, query, *values))


async def put(session: PostgresSession, kind: RecordKind[K, V], value: V, expected: int) -> bool:
    row = kind.row(kind.numbered(value, expected))
    return await session.record.run(partial(_put, session, kind, row, expected))


async def drop(
    session: PostgresSession, kind: RecordKind[K, V], key: K, expected: int | None = None
) -> bool:
    parts = kind.parts(key)
    return await session.record.run(partial(_drop, session, kind, parts, expected))


async def due(session: PostgresSession, kind: RecordKind[K, V], now: Millis, limit: int) -> list[V]:
    query = session.records.fill("due_records", kind)
    return kind.readable(await session.ask(session.sweep, query, now, limit))


async def next_due(session: PostgresSession, kind: RecordKind[K, V]) -> Millis | None:
    query = session.records.fill("next_due_record", kind)
    ((moment,),) = await session.ask(session.sweep, query)
    return None if moment is None else Millis(moment)


async def expire(session: PostgresSession, kind: RecordKind[K, V], now: Millis) -> list[K]:
    query = session.records.fill("expired_records", kind)
    return [kind.key_in(row) for row in await session.ask(session.sweep, query, now)]


async def _put(
    session: PostgresSession,
    kind: RecordKind[Any, Any],
    row: Row,
    expected: int,
    connection: Connection,
    repeated: bool,
) -> bool:
    fill = session.records.fill
    if expected:
        written = await connection.fetch(fill("changed_record", kind), *row, expected)
    else:
        written = await connection.fetch(fill("new_record", kind), *row)
    if written or not repeated:
        return bool(written)
    # Refused, unless it is this very row that was written before the reply was lost.
    width = len(kind.key)
    key = columns([row[:width]], width)
    found = await connection.fetch(fill("records", kind), *key)
    return [tuple(known) for known in found] == [(*row[: width + 1], row[-1])]


async def _drop(
    session: PostgresSession,
    kind: RecordKind[Any, Any],
    parts: Row,
    expected: int | None,
    connection: Connection,
    repeated: bool,
) -> bool:
    records = session.records
    async with connection.transaction():
        if not await connection.fetch(records.fill("dropped_record", kind), *parts, expected):
            return False
        for query in records.owned(kind):
            await connection.execute(query, *parts)
    return True
