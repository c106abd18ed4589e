"""Events after a cursor.

Numbers are drawn before a transaction commits, so a lower one can become visible later. A
reader notes the last number drawn, lets those who may have drawn one so far finish, and only
then reads up to that number.
"""

import asyncio
from operator import itemgetter
from typing import Any

from flowfabric.core.base.errors import Unavailable
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import PostgresSession, same
from flowfabric.store.queries import NEWEST, EventPage, EventQuery
from flowfabric.store.readable import readable
from flowfabric.store.rows.execution import read_event

PATIENCE_SECONDS = 1.0
"""How long a reader waits for writers before it comes back with nothing."""

WINDOW = 20_000
"""Most numbers one call with a filter looks at: one that matches nothing would read everything."""

_ROUTE, _WORKER = 8, 6


async def events(session: PostgresSession, query: EventQuery) -> EventPage:
    if query.after == NEWEST:
        return EventPage((), await _newest(session))
    last = await _settle(session, query.after)
    if last is None or last <= query.after:
        return EventPage((), query.after, settled=last is not None)
    if query.uuid is None and (query.kinds, query.namespace, query.tag) != (None, None, None):
        last = min(last, query.after + WINDOW)

    async def work(connection: Connection, repeated: bool) -> EventPage:
        return await _read(session, connection, query, last)

    return await session.load.run(work)


async def forgotten_event(session: PostgresSession) -> int:
    ((seq,),) = await session.fetch(session.load, "forgotten_event")
    return int(seq)


async def _newest(session: PostgresSession) -> int:
    for _ in range(10):
        last = await _settle(session, -1)
        if last is not None:
            return last
    raise Unavailable("a transaction that writes events has been open for too long; try again")


async def _settle(session: PostgresSession, after: int) -> int | None:
    """The number up to which every event is there to be read; None when that takes long."""
    ((last, writers),) = await session.fetch(session.load, "event_writers", session.learned.settled)
    if last <= after:
        return int(last)
    if not writers:
        session.learned.settled = max(session.learned.settled, last)
        return int(last)
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + PATIENCE_SECONDS
    pause = 0.0005
    while loop.time() < give_up_at:
        ((open_writers,),) = await session.fetch(session.load, "open_writers", writers)
        if not open_writers:
            session.learned.settled = max(session.learned.settled, last)
            return int(last)
        await asyncio.sleep(pause)
        pause = min(0.02, pause * 2)
    return None


async def _read(
    session: PostgresSession, connection: Connection, query: EventQuery, last: int
) -> EventPage:
    tag, value = query.tag or (None, None)
    kinds = None if query.kinds is None else [int(kind) for kind in query.kinds]
    values = (query.after, last, kinds, query.namespace, tag, value, query.limit)
    queries, book = session.queries, session.book
    if query.uuid is None:
        rows: list[Any] = await connection.fetch(queries["events_after"], *values)
    else:
        rows = await connection.fetch(queries["events_of"], *values, query.uuid)
    newest = max((row[_ROUTE] or 0 for row in rows), default=0)
    worker = max((row[_WORKER] or 0 for row in rows), default=0)
    await book.learn(connection, newest, worker)
    events = readable(rows, lambda row: read_event(row, book.names, same), "event", itemgetter(0))
    return EventPage(tuple(events), rows[-1][0] if len(rows) == query.limit else last)
