"""Taking work."""

from functools import partial
from typing import Any

from flowfabric.core.time import Millis
from flowfabric.store.contract import ClaimCall, Taken
from flowfabric.store.postgres.link import Connection
from flowfabric.store.postgres.session import Part
from flowfabric.store.rows import SNAPSHOT

MERGED_ROUTES = 64
"""So many routes are merged as they are; of more, only those that can have one of the best."""

MAX_ROUNDS = 4

_PAYLOAD = len(SNAPSHOT)
_NEWEST, _CANDIDATES, _CAPPED = _PAYLOAD + 1, _PAYLOAD + 2, _PAYLOAD + 3


class Claiming(Part):
    async def claim(self, call: ClaimCall, now: Millis) -> list[Taken]:
        await self._session.book.need_workers([call.worker])
        return await self._session.claim.run(partial(self._claim, call, now))

    async def _claim(
        self, call: ClaimCall, now: Millis, connection: Connection, repeated: bool
    ) -> list[Taken]:
        book = self._session.book
        taken: list[Taken] = []
        if repeated or call.repeated:
            query = self._session.queries["leases_by_claim"]
            taken = await self._read(connection, await connection.fetch(query, call.id, now))
        for _ in range(MAX_ROUNDS):
            room = call.limit - len(taken)
            if room <= 0:
                break
            rows, newest, more = await self._take(connection, call, now, room)
            taken += await self._read(connection, rows)
            if newest > book.newest_route:
                await book.know(connection, newest)
            elif len(rows) == room or not more:
                break
        taken.sort(key=_order)
        return taken

    async def _take(
        self, connection: Connection, call: ClaimCall, now: Millis, room: int
    ) -> tuple[list[Any], int, bool]:
        """The rows taken, the newest route, and whether there were more candidates than looked
        at (others may have locked those in front)."""
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
        )
        rows = await connection.fetch(self._session.queries["taken_leases"], *values)
        if rows[0][_CAPPED]:
            rows = await self._take_capped(connection, values, rows[0][_CAPPED])
        first = rows[0]
        taken = [] if first[0] is None else rows
        return taken, first[_NEWEST] or 0, first[_CANDIDATES] == candidates

    async def _take_capped(
        self, connection: Connection, values: tuple[Any, ...], lanes: list[str]
    ) -> list[Any]:
        """Some of the best are in lanes with a concurrency. Only one process at a time takes from
        such a lane; it counts after it has the lock."""
        queries = self._session.queries
        async with connection.transaction():
            locked = await connection.fetch(queries["locked_lanes"], lanes)
            names = [name for (name,) in locked]
            return await connection.fetch(queries["taken_capped_leases"], *values, names)

    async def _routes(
        self, connection: Connection, call: ClaimCall, now: Millis, candidates: int
    ) -> list[int]:
        """The routes the first `candidates` rows are in, and perhaps others."""
        routes = self._session.book.suiting(call)
        if len(routes) <= MERGED_ROUTES:
            return routes
        values = (routes, now, call.worker.id, candidates)
        rows = await connection.fetch(self._session.queries["waiting_routes"], *values)
        return [number for (number,) in rows]

    async def _read(self, connection: Connection, rows: list[Any]) -> list[Taken]:
        snapshots = await self._session.read(connection, rows)
        return [
            Taken(snapshot, row[_PAYLOAD]) for snapshot, row in zip(snapshots, rows, strict=True)
        ]


def _order(taken: Taken) -> tuple[int, int]:
    return taken.snapshot.head.rank, taken.snapshot.execution.uuid.int
