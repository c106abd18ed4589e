"""Taking work."""

import asyncio
import secrets
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import PostgresSession
from flowfabric.store.queries import ClaimCall, Suspects, Taken
from flowfabric.store.readable import SET_ASIDE
from flowfabric.store.rows.execution import SNAPSHOT

MERGED_ROUTES = 64
"""So many routes are merged as they are; of more, only those that can have one of the best."""

MAX_ROUNDS = 4
MAX_NUMBER = 2**31 - 1
"""Above every route there can be."""

MAX_TRIES = 30
"""How often a lane with a concurrency is tried while others take from it."""
MAX_REMEMBERED = 1000

_PAYLOAD = len(SNAPSHOT)
_NEWEST, _CANDIDATES, _SUSPECTS, _SPECIAL, _MISSED = range(_PAYLOAD + 1, _PAYLOAD + 6)

_MARK = "(q.flags & 64) is not null"
_MARKED = {
    Suspects.ANY: _MARK,
    Suspects.NONE: "(q.flags & 64) = 0",
    Suspects.ONLY: "(q.flags & 64) <> 0",
}
"""The part of the statements that tells suspects from others. It is text, so that each kind of call
has a plan of its own: there is an index of suspects alone."""


@lru_cache(maxsize=64)
def _marked(query: str, suspects: Suspects) -> str:
    return query.replace(_MARK, _MARKED[suspects])


async def claim(session: PostgresSession, call: ClaimCall, now: Millis) -> list[Taken]:
    await session.book.need_workers([call.worker])
    return await session.claim.run(partial(_claim, session, call, now))


async def _claim(
    session: PostgresSession, call: ClaimCall, now: Millis, connection: Connection, repeated: bool
) -> list[Taken]:
    book = session.book
    taken: list[Taken] = []
    if repeated or call.repeated:
        query = session.queries["leases_by_claim"]
        rows = await connection.fetch(query, call.id, now)
        taken, _ = await _read(session, connection, call, now, rows)
    left = MAX_ROUNDS
    while left and (room := call.limit - len(taken)) > 0:
        left -= 1
        # Work of a route that was just added may be better than all that is known; only the
        # last round takes what it can.
        known = book.newest_route if left else MAX_NUMBER
        rows, newest, more = await _take(session, connection, call, now, room, known)
        found, damaged = await _read(session, connection, call, now, rows)
        taken += found
        if newest > known:
            await book.know(connection, newest)
        elif damaged:
            left += 1  # each is set aside, so this comes to an end
        elif len(rows) == room or not more:
            break
    taken.sort(key=_order)
    return taken


async def _take(
    session: PostgresSession,
    connection: Connection,
    call: ClaimCall,
    now: Millis,
    room: int,
    known: int,
) -> tuple[list[Any], int, bool]:
    """The rows taken, the newest route, and whether there were more candidates than looked
    at (others may have locked those in front), or a lane others were taking from."""
    candidates = room + room // 2 + 16
    values = (
        await _routes(session, connection, call, now, candidates),
        now,
        call.worker.id,
        candidates,
        room,
        call.id,
        session.book.names.worker_numbers[call.worker],
        call.ttl,
        known,
    )
    rows: list[Any] = []
    missed = False
    if call.lanes not in session.learned.special:
        rows = await connection.fetch(
            _marked(session.queries["taken_leases"], call.suspects), *values
        )
    if not rows or rows[0][_SPECIAL]:
        rows = await _take_by_lane(session, connection, call, values)
        missed = rows[0][_MISSED]
    first = rows[0]
    session.learned.suspects = first[_SUSPECTS]
    taken = [] if first[0] is None else rows
    return taken, first[_NEWEST] or 0, missed or first[_CANDIDATES] == candidates


async def _take_by_lane(
    session: PostgresSession, connection: Connection, call: ClaimCall, values: tuple[Any, ...]
) -> list[Any]:
    """Where lanes drain or have a concurrency. From one with a concurrency only one process
    takes at a time; the others try again."""
    query = _marked(session.queries["taken_leases_by_lane"], call.suspects)
    rows = await connection.fetch(query, *values)
    if len(session.learned.special) > MAX_REMEMBERED:
        session.learned.special.clear()
    if rows[0][_SPECIAL]:
        session.learned.special.add(call.lanes)
    else:
        session.learned.special.discard(call.lanes)
    tries = 1
    while rows[0][0] is None and rows[0][_MISSED] and tries < MAX_TRIES:
        await asyncio.sleep(secrets.randbelow(1000) / 1_000_000 * min(tries, 5))
        rows = await connection.fetch(query, *values)
        tries += 1
    return rows


async def _routes(
    session: PostgresSession, connection: Connection, call: ClaimCall, now: Millis, candidates: int
) -> list[int]:
    """The routes the first `candidates` rows are in, and perhaps others."""
    routes = session.book.suiting(call)
    if len(routes) <= MERGED_ROUTES:
        return routes
    values = (routes, now, call.worker.id, candidates)
    query = _marked(session.queries["waiting_routes"], call.suspects)
    rows = await connection.fetch(query, *values)
    return [number for (number,) in rows]


async def _read(
    session: PostgresSession, connection: Connection, call: ClaimCall, now: Millis, rows: list[Any]
) -> tuple[list[Taken], bool]:
    """What was taken, and whether some of it cannot be read: that goes back, set aside."""
    damaged: list[UUID] = []
    snapshots = await session.readable(connection, rows, lambda row: damaged.append(row[0]))
    if damaged:
        query = session.queries["returned_leases"]
        await connection.fetch(query, damaged, call.id, now + SET_ASIDE)
    payloads = {row[0]: row[_PAYLOAD] for row in rows}
    return [Taken(each, payloads[each.execution.uuid]) for each in snapshots], bool(damaged)


def _order(taken: Taken) -> tuple[int, int]:
    return taken.snapshot.head.rank, taken.snapshot.execution.uuid.int
