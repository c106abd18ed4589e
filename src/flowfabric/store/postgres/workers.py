"""The leases workers hold."""

from collections.abc import Sequence
from uuid import UUID

from flowfabric.core.execution.registry import HeldLease
from flowfabric.store.postgres.session import PostgresSession, same
from flowfabric.store.queries import Holding
from flowfabric.store.rows.worker import read_held, read_holding


async def held_leases(
    session: PostgresSession,
    instance: str,
    limit: int,
    *,
    worker: str | None = None,
    namespace: str | None = None,
    after: UUID | None = None,
) -> list[HeldLease]:
    values = (instance, worker, namespace, after, limit)
    rows = await session.fetch(session.report, "held_leases", *values)
    return [read_held(row, same) for row in rows]


async def held_counts(session: PostgresSession, instances: Sequence[str]) -> list[Holding]:
    rows = await session.fetch(session.report, "held_counts", list(instances))
    return [read_holding(row) for row in rows]
