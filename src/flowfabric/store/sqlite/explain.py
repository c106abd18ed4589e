"""Who is where: what an explanation names."""

from uuid import UUID

from flowfabric.core.base.pages import MAX_COUNTED
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Gate, Route
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
from flowfabric.store.sqlite.claim import routes_for
from flowfabric.store.sqlite.reads import numbers, route_numbers
from flowfabric.store.sqlite.session import SqliteSession, read_uuid


def executions_in(session: SqliteSession, place: Place, limit: int) -> list[UUID]:
    values: dict[str, object]
    match place:
        case InQueue(queue):
            name, values = "waiting_in", {"queue": queue}
        case HoldingSlots(queues):
            name, values = "slot_holders", {"queues": numbers(queues)}
        case ReadySlots(routes, (rank, uuid)):
            session.learn_routes()
            known = numbers(route_numbers(session, routes))
            name, values = "slots_in", {"routes": known, "rank": rank, "id": uuid.bytes}
        case RunningIn(lane):
            session.learn_routes()
            found = (number for number, _ in routes_for(session, [lane], None))
            name, values = "running_in_lane", {"routes": numbers(found)}
    return [read_uuid(id) for (id,) in session.rows(name, {**values, "limit": limit})]


def routes(session: SqliteSession) -> list[Route]:
    session.learn_routes()
    return list(session.names.routes.values())


def depths(session: SqliteSession, limit: int) -> list[RouteDepth]:
    session.learn_routes()
    return [
        RouteDepth.of(
            session.names.routes[number],
            waiting,
            running,
            None if lowest is None else read_uuid(lowest),
            None if first is None else (read_uuid(first), Millis(created_at)),
        )
        for number, waiting, running, lowest, first, created_at in session.rows(
            "route_depths", {"limit": limit}
        )
    ]


def lane_counts(session: SqliteSession, lane: str, namespace: str | None) -> LaneCounts:
    session.learn_routes()
    routes = dict(routes_for(session, [lane], namespace))
    values = {"routes": numbers(routes), "most": MAX_COUNTED}
    return LaneCounts(
        tuple(
            WaitCount(None if gate is None else Gate(gate), queue, min(count, MAX_COUNTED))
            for gate, queue, count in session.rows("wait_counts", values)
            if count
        ),
        {routes[number]: count for number, count in session.rows("ready_routes", values)},
    )
