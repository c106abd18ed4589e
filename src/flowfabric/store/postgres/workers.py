"""The worker registry: one row per worker process, and the leases workers hold."""

from collections.abc import Sequence
from uuid import UUID

from flowfabric.core.base import document
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import FOREVER, HeldLease, Presence
from flowfabric.store.contract_workers import Holding
from flowfabric.store.postgres.session import Part, same
from flowfabric.store.readable import read_document, readable_documents
from flowfabric.store.rows.worker import read_held, read_holding, stamp_of


class WorkerRows(Part):
    async def presence(self, namespace: str, instance: str) -> Presence | None:
        rows = await self._session.fetch(self._session.sweep, "presence", namespace, instance)
        return read_document(Presence, "worker", rows[0]) if rows else None

    async def presences(
        self, namespace: str | None, after: tuple[str, str], limit: int
    ) -> list[Presence]:
        return await self._read("presences", namespace, *after, limit)

    async def marked_presences(self, limit: int) -> list[Presence]:
        return await self._read("marked_presences", FOREVER, limit)

    async def put_presence(self, presence: Presence, old: Presence | None) -> bool:
        session = self._session
        doc = document.write(presence)
        values = (presence.namespace, presence.instance, presence.kept_until, doc)
        if old is None:
            return bool(await session.fetch(session.sweep, "new_presence", *values))
        stamp = stamp_of(old)
        return bool(await session.fetch(session.sweep, "changed_presence", *values, stamp))

    async def drop_presence(self, old: Presence) -> bool:
        session = self._session
        values = (old.namespace, old.instance, stamp_of(old))
        return bool(await session.fetch(session.sweep, "dropped_presence", *values))

    async def drop_lapsed_presences(self, now: Millis) -> list[tuple[str, str]]:
        session = self._session
        rows = await session.fetch(session.sweep, "lapsed_presences", now)
        return [(namespace, instance) for namespace, instance in rows]

    async def held_leases(
        self,
        instance: str,
        worker: str | None,
        namespace: str | None,
        after: UUID | None,
        limit: int,
    ) -> list[HeldLease]:
        session = self._session
        values = (instance, worker, namespace, after, limit)
        rows = await session.fetch(session.report, "held_leases", *values)
        return [read_held(row, same) for row in rows]

    async def held_counts(self, instances: Sequence[str]) -> list[Holding]:
        session = self._session
        rows = await session.fetch(session.report, "held_counts", list(instances))
        return [read_holding(row) for row in rows]

    async def _read(self, name: str, *values: object) -> list[Presence]:
        session = self._session
        rows = await session.fetch(session.sweep, name, *values)
        return readable_documents(Presence, "worker", rows)
