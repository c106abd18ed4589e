"""Reading executions one by one."""

from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Attempt, Snapshot
from flowfabric.core.execution.step import Step
from flowfabric.store.contract import Detail, Progress
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import Part
from flowfabric.store.readable import named
from flowfabric.store.rows.execution import SNAPSHOT, read_attempt

_WIDTH = len(SNAPSHOT)


class Reading(Part):
    async def load(self, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        return await self._session.load.run(partial(self._load, uuids))

    async def ended(self, uuids: Sequence[UUID]) -> set[UUID]:
        session = self._session
        rows = await session.fetch(session.load, "ended_executions", list(uuids))
        return {uuid for (uuid,) in rows}

    async def detail(self, uuid: UUID) -> Detail | None:
        return await self._session.load.run(partial(self._detail, uuid))

    async def attempts(self, uuid: UUID) -> list[Attempt]:
        rows = await self._session.fetch(self._session.load, "attempts_of", uuid)
        return [named("an attempt of", uuid, partial(read_attempt, doc)) for (doc,) in rows]

    async def steps(self, asked: Sequence[tuple[UUID, int]]) -> list[list[Step]]:
        found: list[list[Step]] = [[] for _ in asked]
        uuids = [uuid for uuid, _ in asked]
        generations = [generation for _, generation in asked]
        link = self._session.load
        for at, *row in await self._session.fetch(link, "steps_of", uuids, generations):
            found[at - 1].append(Step(*row))
        return found

    async def set_tags(self, uuid: UUID, tags: Mapping[str, str], now: Millis) -> bool:
        session = self._session
        keys = sorted(tags)
        values = [tags[key] for key in keys]
        return bool(await session.fetch(session.apply, "tagged_execution", uuid, keys, values, now))

    async def _load(
        self, uuids: Sequence[UUID], connection: Connection, repeated: bool
    ) -> dict[UUID, Snapshot]:
        rows = await connection.fetch(self._session.queries["snapshots"], uuids)
        found = await self._session.read(connection, rows)
        return {snapshot.execution.uuid: snapshot for snapshot in found}

    async def _detail(self, uuid: UUID, connection: Connection, repeated: bool) -> Detail | None:
        row = await connection.fetchrow(self._session.queries["details"], uuid)
        if row is None:
            return None
        (snapshot,) = await self._session.read(connection, [row])
        payload, keys, values, attempt, percent, message, touched_at = row[_WIDTH:]
        return Detail(
            snapshot=snapshot,
            payload=payload,
            tags=dict(zip(keys, values, strict=True)),
            progress=None if attempt is None else Progress(percent, message),
            progress_of=attempt,
            touched_at=touched_at,
        )
