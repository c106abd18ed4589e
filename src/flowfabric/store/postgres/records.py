"""Versioned records of every kind."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import RegistryEvent
from flowfabric.store.contract import NO_FILTER
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import PostgresSession, columns
from flowfabric.store.rows.execution import registry_event_row
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


async def put(
    session: PostgresSession,
    kind: RecordKind[K, V],
    value: V,
    expected: int,
    events: Sequence[RegistryEvent] = (),
) -> bool:
    row = kind.row(kind.numbered(value, expected))
    work = partial(_put, session, kind, row, expected)
    if events:  # one statement needs no transaction
        work = partial(_put_noted, session, kind, row, expected, events)
    return await session.record.run(work)


async def drop(
    session: PostgresSession,
    kind: RecordKind[K, V],
    key: K,
    expected: int | None = None,
    events: Sequence[RegistryEvent] = (),
) -> bool:
    tried: list[str] = []
    work = partial(_drop, session, kind, kind.parts(key), expected, events, tried)
    return await session.record.run(work)


async def due(session: PostgresSession, kind: RecordKind[K, V], now: Millis, limit: int) -> list[V]:
    query = session.records.fill("due_records", kind)
    return kind.readable(await session.ask(session.sweep, query, now, limit))


async def next_due(session: PostgresSession, kind: RecordKind[K, V]) -> Millis | None:
    query = session.records.fill("next_due_record", kind)
    ((moment,),) = await session.ask(session.sweep, query)
    return None if moment is None else Millis(moment)


async def expire(session: PostgresSession, kind: RecordKind[K, V], now: Millis) -> list[K]:
    rows = await session.sweep.run(partial(_expire, session, kind, now))
    return [kind.key_in(row[: len(kind.key)]) for row in rows]


async def _expire(
    session: PostgresSession,
    kind: RecordKind[Any, Any],
    now: Millis,
    connection: Connection,
    repeated: bool,
) -> list[Row]:
    async with connection.transaction():
        found = await connection.fetch(session.records.fill("expired_records", kind), now)
        rows = [tuple(row) for row in found]
        await _note(session, connection, kind.expiries(rows, now))
    return rows


async def _note(
    session: PostgresSession, connection: Connection, events: Sequence[RegistryEvent]
) -> None:
    """Writes what the change of a record is to be known by, in its transaction."""
    if events:
        rows = columns([registry_event_row(event) for event in events], 4)
        await connection.execute(session.queries["registry_events"], *rows)


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
    return bool(written) or (repeated and await _is_there(session, kind, row, connection))


async def _put_noted(
    session: PostgresSession,
    kind: RecordKind[Any, Any],
    row: Row,
    expected: int,
    events: Sequence[RegistryEvent],
    connection: Connection,
    repeated: bool,
) -> bool:
    """As `_put`, with events. A row that was written before the reply was lost has them."""
    async with connection.transaction():
        written = await _put(session, kind, row, expected, connection, False)
        if written:
            await _note(session, connection, events)
    return written or (repeated and await _is_there(session, kind, row, connection))


async def _is_there(
    session: PostgresSession, kind: RecordKind[Any, Any], row: Row, connection: Connection
) -> bool:
    """Whether a row that was refused is this very one, written before the reply was lost."""
    width = len(kind.key)
    key = columns([row[:width]], width)
    found = await connection.fetch(session.records.fill("records", kind), *key)
    return [tuple(known) for known in found] == [(*row[: width + 1], row[-1])]


async def _drop(
    session: PostgresSession,
    kind: RecordKind[Any, Any],
    parts: Row,
    expected: int | None,
    events: Sequence[RegistryEvent],
    tried: list[str],
    connection: Connection,
    repeated: bool,
) -> bool:
    """`tried` are the transactions that may have done it, as in `budgets.post`: a record that is
    gone does not tell who dropped it."""
    records, queries = session.records, session.queries
    async with connection.transaction():
        if await connection.fetch(records.fill("dropped_record", kind), *parts, expected):
            for query in records.owned(kind):
                await connection.execute(query, *parts)
            await _note(session, connection, events)
            tried.append(await connection.fetchval(queries["this_transaction"]))
            return True
    return bool(tried) and await connection.fetchval(queries["committed"], tried)
