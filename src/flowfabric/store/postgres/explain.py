"""Who is where: what an explanation names."""

from functools import partial
from typing import Any
from uuid import UUID

from flowfabric.core.base.pages import MAX_COUNTED
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Gate, Route
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import PostgresSession
from flowfabric.store.queries import (
    HoldingSlots,
    InQueue,
    LaneCounts,
    Place,
    ReadySlots,
    RouteDepth,
    RunningIn,
    WaitCount,
)


async def executions_in(session: PostgresSession, place: Place, limit: int) -> list[UUID]:
    values: tuple[Any, ...]
    match place:
        case InQueue(queue):
            link, name, values = session.limit, "waiting_in", (queue,)
        case HoldingSlots(queues):
            link, name, values = session.report, "slot_holders", (list(queues),)
        case ReadySlots(routes, after):
            known = session.book.names.route_numbers
            numbers = [known[route] for route in routes if route in known]
            link, name, values = session.report, "slots_in", (numbers, *after)
        case RunningIn(lane):
            link, name, values = session.report, "running_in_lane", (lane,)
    return [uuid for (uuid,) in await session.fetch(link, name, *values, limit)]


async def routes(session: PostgresSession) -> list[Route]:
    await session.report.run(partial(_learn, session))
    return list(session.book.names.routes.values())


async def depths(session: PostgresSession, limit: int) -> list[RouteDepth]:
    rows = await session.fetch(session.report, "route_depths", limit)
    return [
        RouteDepth.of(
            Route(place, lane, kind, tuple(tokens.split(",")) if tokens else ()),
            waiting,
            running,
            lowest,
            None if first is None else (first, Millis(created_at)),
        )
        for place, lane, kind, tokens, waiting, running, lowest, first, created_at in rows
    ]


async def lane_counts(session: PostgresSession, lane: str, namespace: str | None) -> LaneCounts:
    waiting = await session.fetch(session.report, "wait_counts", lane, namespace, MAX_COUNTED)
    ready = await session.fetch(session.report, "ready_routes", lane, namespace, MAX_COUNTED)
    return LaneCounts(
        tuple(
            WaitCount(None if gate is None else Gate(gate), queue, count)
            for gate, queue, count in waiting
            if count
        ),
        {
            Route(place, lane, kind, tuple(tokens.split(",")) if tokens else ()): count
            for place, kind, tokens, count in ready
        },
    )


async def _learn(session: PostgresSession, connection: Connection, repeated: bool) -> None:
    newest = await connection.fetchval(session.queries["newest_route"])
    await session.book.learn(connection, newest or 0)
