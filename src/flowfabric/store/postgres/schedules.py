"""Schedules: rows with a version, a next moment and a document."""

from flowfabric.core.base import document
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.schedule import Schedule
from flowfabric.store.postgres.session import Part
from flowfabric.store.readable import read_document, readable_documents


class Scheduling(Part):
    async def schedules(self, after: str, limit: int) -> list[Schedule]:
        return await self._read("schedules", after, limit)

    async def schedule(self, name: str) -> Schedule | None:
        rows = await self._session.fetch(self._session.sweep, "named_schedule", name)
        return read_document(Schedule, "schedule", rows[0]) if rows else None

    async def due_schedules(self, now: Millis, limit: int) -> list[Schedule]:
        return await self._read("due_schedules", now, limit)

    async def next_schedule(self) -> Millis | None:
        session = self._session
        ((moment,),) = await session.fetch(session.sweep, "next_schedule")
        return None if moment is None else Millis(moment)

    async def put_schedule(self, schedule: Schedule, expected: int | None) -> bool:
        session = self._session
        values = (schedule.name, schedule.version, schedule.next_at, document.write(schedule))
        if expected is None:
            return bool(await session.fetch(session.sweep, "new_schedule", *values))
        return bool(await session.fetch(session.sweep, "changed_schedule", *values, expected))

    async def drop_schedule(self, name: str) -> bool:
        session = self._session
        return bool(await session.fetch(session.sweep, "dropped_schedule", name))

    async def _read(self, name: str, *values: object) -> list[Schedule]:
        session = self._session
        rows = await session.fetch(session.sweep, name, *values)
        return readable_documents(Schedule, "schedule", rows)
