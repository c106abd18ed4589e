"""The worker registry: one row per worker process, and the leases workers hold."""

from collections.abc import Sequence
from uuid import UUID

from flowfabric.core.base import document
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import FOREVER, HeldLease, Presence
from flowfabric.store.postgres.session import Session, same
from flowfabric.store.queries import Holding
from flowfabric.store.readable import read_document, readable_documents
from flowfabric.store.rows.worker import read_held, read_holding, stamp_of


async def presence(session: Session, namespace: str, instance: str) -> Presence | None:
    rows = await session.fetch(session.sweep, "presence", namespace, instance)
    return read_document(Presence, "worker", rows[0]) if rows else None


async def presences(
    session: Session, namespace: str | None, after: tuple[str, str], limit: int
) -> list[Presence]:
    return await _read(session, "presences", namespace, *after, limit)


async def marked_presences(session: Session, limit: int) -> list[Presence]:
    return await _read(session, "marked_presences", FOREVER, limit)


async def put_presence(session: Session, presence: Presence, old: Presence | None) -> bool:
    doc = document.write(presence)
    values = (presence.namespace, presence.instance, presence.kept_until, doc)
    if old is None:
        return bool(await session.fetch(session.sweep, "new_presence", *values))
    stamp = stamp_of(old)
    return bool(await session.fetch(session.sweep, "changed_presence", *values, stamp))


async def drop_presence(session: Session, old: Presence) -> bool:
    values = (old.namespace, old.instance, stamp_of(old))
    return bool(await session.fetch(session.sweep, "dropped_presence", *values))


async def drop_lapsed_presences(session: Session, now: Millis) -> list[tuple[str, str]]:
    rows = await session.fetch(session.sweep, "lapsed_presences", now)
    return [(namespace, instance) for namespace, instance in rows]


async def held_leases(
    session: Session,
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


async def held_counts(session: Session, instances: Sequence[str]) -> list[Holding]:
    rows = await session.fetch(session.report, "held_counts", list(instances))
    return [read_holding(row) for row in rows]


async def _read(session: Session, name: str, *values: object) -> list[Presence]:
    rows = await session.fetch(session.sweep, name, *values)
    return readable_documents(Presence, "worker", rows)
