"""Versioned records of every kind."""

from collections.abc import Mapping, Sequence
from typing import Any

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import RegistryEvent
from flowfabric.store.contract import NO_FILTER
from flowfabric.store.rows.execution import registry_event_row
from flowfabric.store.rows.record import K, RecordKind, V
from flowfabric.store.sqlite.session import SqliteSession, plain

_ALL = -1


def get(session: SqliteSession, kind: RecordKind[K, V], keys: Sequence[K]) -> dict[K, V]:
    if not keys:
        return {}
    wanted = plain(kind.parts(key) for key in keys)
    return kind.by_key(session.given_to(session.records.fill("records", kind), wanted))


def page(
    session: SqliteSession,
    kind: RecordKind[K, V],
    after: K | None = None,
    limit: int | None = None,
    where: Mapping[str, object] = NO_FILTER,
) -> list[V]:
    most = _ALL if limit is None else limit
    first = kind.first_page if after is None else kind.parts(after)
    query = session.records.fill("record_page", kind, tuple(where))
    return kind.readable(session.connection.execute(query, (most, *first, *where.values())))


def put(
    session: SqliteSession,
    kind: RecordKind[K, V],
    value: V,
    expected: int,
    events: Sequence[RegistryEvent] = (),
) -> bool:
    (row,) = plain([kind.row(kind.numbered(value, expected))])
    if expected:
        written = _one(session, "changed_record", kind, *row, expected)
    else:
        written = _one(session, "new_record", kind, *row)
    return written and _note(session, events)


def drop(
    session: SqliteSession,
    kind: RecordKind[K, V],
    key: K,
    expected: int | None = None,
    events: Sequence[RegistryEvent] = (),
) -> bool:
    parts = kind.parts(key)
    if not _one(session, "dropped_record", kind, *parts, expected):
        return False
    for query in session.records.owned(kind):
        session.connection.execute(query, parts)
    return _note(session, events)


def due(session: SqliteSession, kind: RecordKind[K, V], now: Millis, limit: int) -> list[V]:
    query = session.records.fill("due_records", kind)
    return kind.readable(session.connection.execute(query, (now, limit)))


def next_due(session: SqliteSession, kind: RecordKind[K, V]) -> Millis | None:
    query = session.records.fill("next_due_record", kind)
    (moment,) = session.connection.execute(query).fetchone()
    return None if moment is None else Millis(moment)


def expire(session: SqliteSession, kind: RecordKind[K, V], now: Millis) -> list[K]:
    query = session.records.fill("expired_records", kind)
    rows = session.connection.execute(query, (now,)).fetchall()
    _note(session, kind.expiries(rows, now))
    return [kind.key_in(row[: len(kind.key)]) for row in rows]


def _note(session: SqliteSession, events: Sequence[RegistryEvent]) -> bool:
    """Writes what the change of a record is to be known by; always True."""
    session.each("registry_events", [registry_event_row(event) for event in events])
    return True


def _one(session: SqliteSession, name: str, kind: RecordKind[Any, Any], *values: object) -> bool:
    """Whether the statement has changed its row."""
    cursor = session.connection.execute(session.records.fill(name, kind), values)
    return cursor.fetchone() is not None
