"""Taking work."""

import asyncio
import secrets
from functools import partial
from typing import Any
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.store.contract import ClaimCall, Suspects, Taken
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import Part, Session
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


class Claiming(Part):
    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._special: set[tuple[str, ...]] = set()
        """What was asked for when a lane drained or had a concurrency."""
        self._suspects = True
        self._queries = {
            kind: {
                name: session.queries[name].replace(_MARK, mark)
                for name in ("taken_leases", "taken_leases_by_lane", "waiting_routes")
            }
            for kind, mark in _MARKED.items()
        }

    async def claim(self, call: ClaimCall, now: Millis) -> list[Taken]:
        await self._session.book.need_workers([call.worker])
        return await self._session.claim.run(partial(self._claim, call, now))

    def suspects_seen(self) -> bool:
        return self._suspects

    async def _claim(
        self, call: ClaimCall, now: Millis, connection: Connection, repeated: bool
    ) -> list[Taken]:
        book = self._session.book
        taken: list[Taken] = []
        if repeated or call.repeated:
            query = self._session.queries["leases_by_claim"]
            rows = await connection.fetch(query, call.id, now)
            taken, _ = await self._read(connection, call, now, rows)
        left = MAX_ROUNDS
        while left and (room := call.limit - len(taken)) > 0:
            left -= 1
            # Work of a route that was just added may be better than all that is known; only the
            # last round takes what it can.
            known = book.newest_route if left else MAX_NUMBER
            rows, newest, more = await self._take(connection, call, now, room, known)
            found, damaged = await self._read(connection, call, now, rows)
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
        self, connection: Connection, call: ClaimCall, now: Millis, room: int, known: int
    ) -> tuple[list[Any], int, bool]:
        """The rows taken, the newest route, and whether there were more candidates than looked
        at (others may have locked those in front), or a lane others were taking from."""
        candidates = room + room // 2 + 16
        values = (
            await self._routes(connection, call, now, candidates),
            now,
            call.worker.id,
            candidates,
            room,
            call.id,
            self._session.book.names.worker_numbers[call.worker],
            call.ttl,
            known,
        )
        rows: list[Any] = []
        missed = False
        if call.lanes not in self._special:
            rows = await connection.fetch(self._queries[call.suspects]["taken_leases"], *values)
        if not rows or rows[0][_SPECIAL]:
            rows = await self._take_by_lane(connection, call, values)
            missed = rows[0][_MISSED]
        first = rows[0]
        self._suspects = first[_SUSPECTS]
        taken = [] if first[0] is None else rows
        return taken, first[_NEWEST] or 0, missed or first[_CANDIDATES] == candidates

    async def _take_by_lane(
        self, connection: Connection, call: ClaimCall, values: tuple[Any, ...]
    ) -> list[Any]:
        """Where lanes drain or have a concurrency. From one with a concurrency only one process
        takes at a time; the others try again."""
        query = self._queries[call.suspects]["taken_leases_by_lane"]
        rows = await connection.fetch(query, *values)
        if len(self._special) > MAX_REMEMBERED:
            self._special.clear()
        if rows[0][_SPECIAL]:
            self._special.add(call.lanes)
        else:
            self._special.discard(call.lanes)
        tries = 1
        while rows[0][0] is None and rows[0][_MISSED] and tries < MAX_TRIES:
            await asyncio.sleep(secrets.randbelow(1000) / 1_000_000 * min(tries, 5))
            rows = await connection.fetch(query, *values)
            tries += 1
        return rows

    async def _routes(
        self, connection: Connection, call: ClaimCall, now: Millis, candidates: int
    ) -> list[int]:
        """The routes the first `candidates` rows are in, and perhaps others."""
        routes = self._session.book.suiting(call)
        if len(routes) <= MERGED_ROUTES:
            return routes
        values = (routes, now, call.worker.id, candidates)
        query = self._queries[call.suspects]["waiting_routes"]
        rows = await connection.fetch(query, *values)
        return [number for (number,) in rows]

    async def _read(
        self, connection: Connection, call: ClaimCall, now: Millis, rows: list[Any]
    ) -> tuple[list[Taken], bool]:
        """What was taken, and whether some of it cannot be read: that goes back, set aside."""
        damaged: list[UUID] = []
        snapshots = await self._session.readable(
            connection, rows, lambda row: damaged.append(row[0])
        )
        if damaged:
            query = self._session.queries["returned_leases"]
            await connection.fetch(query, damaged, call.id, now + SET_ASIDE)
        payloads = {row[0]: row[_PAYLOAD] for row in rows}
        return [Taken(each, payloads[each.execution.uuid]) for each in snapshots], bool(damaged)


def _order(taken: Taken) -> tuple[int, int]:
    return taken.snapshot.head.rank, taken.snapshot.execution.uuid.int
