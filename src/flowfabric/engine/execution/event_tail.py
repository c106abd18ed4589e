"""The end of the events, read once for all readers of this process that have read everything."""

import asyncio
import logging

from msgspec import Struct

from flowfabric.core.base.errors import FlowFabricError, Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.event import StoredEvent
from flowfabric.core.execution.event_filter import EventBatch, EventFilter, gap_between
from flowfabric.engine.commit.background import Background
from flowfabric.store.contract import Store
from flowfabric.store.queries import NEWEST, EventQuery

POLL_FLOOR = 1.0
"""How often the store is asked when no hint comes, in seconds."""
PAUSE = 0.005
"""Between two looks: under load, every commit sends a hint."""
SHARED = 1000
"""Most events that are kept for readers that follow closely."""

log = logging.getLogger("flowfabric.events")


class TailPage(Struct, frozen=True):
    """All events after `after` and up to `cursor`. `forgotten` was read after them."""

    after: int
    events: tuple[StoredEvent, ...]
    cursor: int
    forgotten: int

    def part(
        self, wanted: EventFilter, after: int, limit: int, key: ExecutionId | None
    ) -> EventBatch:
        """What a reader without a tag would have read from the store itself."""
        found = [
            event
            for event in self.events
            if event.seq > after
            and wanted.namespace in (None, event.namespace)
            and key in (None, event.id)
            and wanted.wants(event)
        ][:limit]
        cursor = found[-1].seq if len(found) == limit else self.cursor
        return EventBatch(tuple(found), cursor, gap_between(after, cursor, self.forgotten))


class EventTail:
    """Readers wait here for the next event. However many they are, the store is asked once, and the
    newest events are read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest = -1
        self._page: TailPage | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._background = Background("looking for events", log)
        self._closed = False
        self.moves = 0
        """How often there was something new. Note it before reading and give it to `wait`."""

    def page_after(self, cursor: int) -> TailPage | None:
        """The newest events, if they are the next ones after this cursor."""
        page = self._page
        return page if page is not None and page.after <= cursor < page.cursor else None

    async def wait(self, moves: int) -> None:
        """Returns when there may be more events than `moves` ago, or the store cannot say so.
        Raises Unavailable when the engine is closed."""
        if self._closed:
            raise Unavailable("the engine is closed")
        if self.moves != moves:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        if not self._background:
            self._background.start(self._watch)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)

    async def close(self) -> None:
        self._closed = True
        await self._background.cancel()
        self._wake()

    async def _watch(self) -> None:
        """Looks until no reader waits, beginning with where the events end now."""
        try:
            newest = (await self._store.events(EventQuery(after=NEWEST))).cursor
            if newest != self._newest:
                self._newest, self._page = newest, None
                self._wake()
            while self._waiting:
                seen = self._store.hints.count
                if not await self._look():
                    await asyncio.sleep(PAUSE)
                    await self._store.hints.wait(POLL_FLOOR, seen)
        except FlowFabricError:
            pass  # readers see it for themselves, and the next one that waits looks again
        finally:
            self._wake()

    async def _look(self) -> bool:
        """Whether there was something new."""
        after = self._newest
        found = await self._store.events(EventQuery(after=after, limit=SHARED))
        if found.cursor == after:
            return False
        forgotten = await self._store.forgotten_event()
        self._page = TailPage(after, found.events, found.cursor, forgotten)
        self._newest = found.cursor
        self._wake()
        return True

    def _wake(self) -> None:
        self.moves += 1
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
