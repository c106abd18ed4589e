"""The database's clock, followed from here."""

import asyncio
from contextlib import suppress

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.store.clock import OffsetClock
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.link import Link

SAMPLES = 5
EVERY_SECONDS = 5.0


class ClockKeeper:
    """Asks the database for the time when the store is opened, and every few seconds unless the
    sweep has."""

    def __init__(self, clock: OffsetClock, query: str) -> None:
        self._clock = clock
        self._query = query
        self._task: asyncio.Task[None] | None = None

    async def sample(self, connection: Connection, repeated: bool = False) -> None:
        sent = self._clock.steady()
        theirs = await connection.fetchval(self._query)
        self._clock.sample(sent, self._clock.steady(), theirs)

    def start(self, link: Link) -> None:
        self._task = asyncio.create_task(self._follow(link), name="flowfabric-clock")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _follow(self, link: Link) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            if self._clock.steady() - self._clock.sampled_at < EVERY_SECONDS:
                continue  # the sweep has asked, with its own question
            with suppress(FlowFabricError):
                await link.run(self.sample)
