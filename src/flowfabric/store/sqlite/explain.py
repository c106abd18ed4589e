"""Who is where: what an explanation names."""

from collections.abc import Sequence
from uuid import UUID

from flowfabric.core.execution.model import Route
from flowfabric.store.sqlite.claim import routes_for
from flowfabric.store.sqlite.reads import numbers, route_numbers
from flowfabric.store.sqlite.session import Session, read_uuid

MOST = 100_000
"""Where counting stops."""


def holding(session: Session, queues: Sequence[int], limit: int) -> list[UUID]:
    rows = session.rows("slot_holders", {"queues": numbers(queues), "limit": limit})
    return [read_uuid(id) for (id,) in rows]


def running_in(session: Session, lane: str, limit: int) -> list[UUID]:
    session.learn_routes()
    routes = numbers(number for number, _ in routes_for(session, [lane], None))
    rows = session.rows("running_in_lane", {"routes": routes, "limit": limit})
    return [read_uuid(id) for (id,) in rows]


def routes(session: Session) -> list[Route]:
    session.learn_routes()
    return list(session.names.routes.values())


def slots_in(session: Session, routes: Sequence[Route], limit: int) -> list[UUID]:
    session.learn_routes()
    values = {"routes": numbers(route_numbers(session, routes)), "limit": limit}
    return [read_uuid(id) for (id,) in session.rows("slots_in", values)]


def ready_routes(session: Session, lane: str, namespace: str | None) -> dict[Route, int]:
    session.learn_routes()
    routes = dict(routes_for(session, [lane], namespace))
    values = {"routes": numbers(routes), "most": MOST}
    return {routes[number]: count for number, count in session.rows("ready_routes", values)}
