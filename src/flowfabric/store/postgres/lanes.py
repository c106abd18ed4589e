"""Lanes: what was decided about them."""

from collections.abc import Sequence
from functools import partial

from flowfabric.core.limit.lane import Lane
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import Session
from flowfabric.store.rows.limit import Row, lane_row, read_lanes


async def lanes(session: Session, after: str | None, limit: int) -> list[str]:
    rows = await session.fetch(session.report, "lane_names", after, limit)
    return [lane for (lane,) in rows]


async def lane_settings(session: Session, names: Sequence[str] | None) -> dict[str, Lane]:
    asked = None if names is None else list(names)
    rows = await session.fetch(session.load, "lanes", asked)
    return read_lanes(rows, names)


async def put_lane(session: Session, lane: Lane, expected: int) -> bool:
    row = lane_row(lane, expected + 1)
    return await session.limit.run(partial(_put, session, row, expected))


async def _put(
    session: Session, row: Row, expected: int, connection: Connection, repeated: bool
) -> bool:
    queries = session.queries
    if await connection.fetch(queries["put_lane"], *row, expected):
        return True
    if not repeated:
        return False
    # Refused, unless it was written before the reply was lost.
    name, version, *_, doc = row
    found = await connection.fetch(queries["lanes"], [name])
    return [tuple(known) for known in found] == [(name, version, doc)]
