"""One task per process that notices changes, for all who follow them (`changes` beside it)."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from uuid import UUID

from msgspec import Struct, field

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.execution.event import StoredEvent
from flowfabric.engine.engine import Engine
from flowfabric.server.dashboard.overview_reader import OverviewReader

PACE = 1.0
"""Seconds between two reads."""
FLOOR = 5.0
"""Seconds after which the store is read without a hint: hints may be lost."""
NAMED = 200
"""Most executions that one change names."""


class ChangeNotice(Struct):
    """Something changed. `executions` are those that it was about; more unless `complete`."""

    executions: list[UUID] = field(default_factory=list)
    complete: bool = True


class Follower:
    """Collects what changed until its connection takes it."""

    def __init__(self, place: str | None) -> None:
        self.place = place
        self._executions: set[UUID] = set()
        self._complete = True
        self._news = asyncio.Event()

    def tell(self, events: Sequence[StoredEvent]) -> None:
        seen = [event for event in events if self.place in (None, event.namespace)]
        if not seen and self.place is not None:
            return
        for event in seen:
            if event.id is not None and len(self._executions) < NAMED:
                self._executions.add(event.id.uuid)
            else:
                self._complete = False
        # Without an event it is something that is no execution: a lane, a worker, a schedule.
        self._complete = self._complete and bool(seen)
        self._news.set()

    async def next(self) -> ChangeNotice:
        await self._news.wait()
        self._news.clear()
        notice = ChangeNotice(sorted(self._executions), self._complete)
        self._executions, self._complete = set(), True
        return notice


class ChangeFeed:
    """One per server process; it reads while there are followers."""

    def __init__(self) -> None:
        self.overviews = OverviewReader()
        self.overviews.on_news(self._take)
        self._followers: set[Follower] = set()
        self._told = False
        self._reading: asyncio.Task[None] | None = None

    @property
    def is_reading(self) -> bool:
        return self._reading is not None and not self._reading.done()

    @contextmanager
    def follow(self, engine: Engine, place: str | None) -> Iterator[Follower]:
        follower = Follower(place)
        self._followers.add(follower)
        if self._reading is None or self._reading.done() or self._reading.cancelling():
            self._reading = asyncio.create_task(self._read(engine))
        try:
            yield follower
        finally:
            self._followers.discard(follower)
            if not self._followers:
                self._reading.cancel()

    def _take(self, events: Sequence[StoredEvent]) -> None:
        if events:
            self._tell(events)

    def _tell(self, events: Sequence[StoredEvent]) -> None:
        self._told = True
        for follower in self._followers:
            follower.tell(events)

    async def _read(self, engine: Engine) -> None:
        hints, hinted = engine.store.hints, True
        while True:
            seen, self._told = hints.count, False
            with suppress(FlowFabricError):  # a store that is away: the pages notice it themselves
                await self.overviews.news(engine)
            if hinted and not self._told:
                self._tell(())
            await asyncio.sleep(PACE)
            hinted = await hints.wait(FLOOR, since=seen)
