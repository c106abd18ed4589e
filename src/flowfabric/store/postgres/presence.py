"""The worker registry: one row per worker process."""

from flowfabric.core import document
from flowfabric.core.registry import Presence
from flowfabric.core.time import Millis
from flowfabric.store.postgres.session import Part


class Registry(Part):
    async def presence(self, namespace: str, instance: str) -> Presence | None:
        found = await self._read("presence", namespace, instance)
        return found[0] if found else None

    async def presences(self, namespace: str, after: str, limit: int) -> list[Presence]:
        return await self._read("presences", namespace, after, limit)

    async def put_presence(self, presence: Presence, fresh: bool) -> bool:
        session = self._session
        doc = document.write(presence)
        values = (presence.namespace, presence.instance, presence.expires_at, doc)
        name = "new_presence" if fresh else "changed_presence"
        return bool(await session.fetch(session.sweep, name, *values))

    async def drop_presence(self, namespace: str, instance: str) -> bool:
        session = self._session
        return bool(await session.fetch(session.sweep, "dropped_presence", namespace, instance))

    async def drop_lapsed_presences(self, now: Millis) -> int:
        session = self._session
        return len(await session.fetch(session.sweep, "lapsed_presences", now))

    async def _read(self, name: str, *values: object) -> list[Presence]:
        session = self._session
        rows = await session.fetch(session.sweep, name, *values)
        return [document.read(Presence, bytes(doc)) for (doc,) in rows]
