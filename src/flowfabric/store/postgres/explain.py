"""Who is where: what an explanation names."""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from flowfabric.core.execution.model import Route
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.names import NameBook
from flowfabric.store.postgres.session import Session

MOST = 100_000
"""Where counting stops."""


async def holding(session: Session, queues: Sequence[int], limit: int) -> list[UUID]:
    rows = await session.fetch(session.report, "slot_holders", list(queues), limit)
    return [uuid for (uuid,) in rows]


async def running_in(session: Session, lane: str, limit: int) -> list[UUID]:
    rows = await session.fetch(session.report, "running_in_lane", lane, limit)
    return [uuid for (uuid,) in rows]


async def routes(session: Session) -> list[Route]:
    ((newest,),) = await session.fetch(session.report, "newest_route")
    await session.report.run(partial(_learn, session.book, newest or 0))
    return list(session.book.names.routes.values())


async def slots_in(session: Session, routes: Sequence[Route], limit: int) -> list[UUID]:
    known = session.book.names.route_numbers
    numbers = [known[route] for route in routes if route in known]
    rows = await session.fetch(session.report, "slots_in", numbers, limit)
    return [uuid for (uuid,) in rows]


async def ready_routes(session: Session, lane: str, namespace: str | None) -> dict[Route, int]:
    rows = await session.fetch(session.report, "ready_routes", lane, namespace, MOST)
    return {
        Route(place, lane, kind, tuple(tokens.split(",")) if tokens else ()): count
        for place, kind, tokens, count in rows
    }


async def _learn(book: NameBook, newest: int, connection: Connection, repeated: bool) -> None:
    await book.know(connection, newest)
