"""Reading events after a cursor."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from flowfabric.core.execution.event import StoredEvent
from flowfabric.store.queries import NEWEST, EventPage, EventQuery
from flowfabric.store.readable import readable
from flowfabric.store.rows import execution as rows
from flowfabric.store.sqlite.claim import routes_for
from flowfabric.store.sqlite.reads import numbers
from flowfabric.store.sqlite.session import SqliteSession, read_uuid

WINDOW = 10_000
"""Most events one call looks at."""


def events(session: SqliteSession, query: EventQuery) -> EventPage:
    if query.after == NEWEST:
        return EventPage((), _last_event(session))
    values = _filter(session, query)
    one = query.uuid is not None
    found = session.rows(_EVENTS[one], values)
    read = tuple(readable(found, lambda row: _read(session, row), "event", itemgetter(0)))
    if len(found) == query.limit and found:
        return EventPage(read, found[-1][0])
    row = session.row(_LAST[one], values)
    if row is not None and row[0] is not None:
        return EventPage(read, row[0])
    return EventPage(read, query.after if one else max(query.after, _last_event(session)))


def _last_event(session: SqliteSession) -> int:
    """The number of the last event that was written, also if it was deleted since."""
    row = session.row("last_event")
    return 0 if row is None else int(row[0])


def forgotten_event(session: SqliteSession) -> int:
    row = session.row("forgotten_event")
    return 0 if row is None else int(row[0])


_EVENTS = {False: "events_after", True: "events_of"}
_LAST = {False: "last_window_event", True: "last_window_event_of"}


def _filter(session: SqliteSession, query: EventQuery) -> dict[str, object]:
    routes = None
    if query.namespace is not None:
        session.learn_routes()
        routes = [number for number, _ in routes_for(session, (), query.namespace)]
    key, value = query.tag or (None, None)
    return {
        "after": query.after,
        "id": None if query.uuid is None else query.uuid.bytes,
        "routes": numbers(routes),
        "namespace": query.namespace,
        "kinds": numbers(query.kinds),
        "tag_key": key,
        "tag_value": value,
        "limit": query.limit,
        "window": max(WINDOW, query.limit),
    }


def _read(session: SqliteSession, row: Sequence[Any]) -> StoredEvent:
    try:
        return rows.read_event(row, session.names, read_uuid)
    except KeyError:
        # Another process has interned a name since.
        session.learn()
        return rows.read_event(row, session.names, read_uuid)
