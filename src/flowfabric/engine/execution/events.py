"""Events: read them, and follow them."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.numbers import check_limit, check_whole
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.execution.event import Family, StoredEvent
from flowfabric.core.execution.event_filter import (
    MAX_CURSOR,
    EventBatch,
    EventFilter,
    check_filter,
    check_wanted_events,
    gap_between,
    parse_cursor,
)
from flowfabric.engine.commit.background import begun
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.execution.event_tail import EventTail
from flowfabric.store.queries import NEWEST, EventPage, EventQuery

FIRST_PAUSE = 0.2
MAX_PAUSE = 5.0
"""Seconds between two tries of a follower while the store does not answer."""

log = logging.getLogger("flowfabric.events")


class Events(Service):
    """`engine.events`"""

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        self._tail = EventTail(context.store)
        self._closed = False

    async def read(
        self,
        *,
        after: int = 0,
        limit: int = MAX_PAGE,
        execution: str | None = None,
        namespace: str | None = None,
        family: Family | None = None,
        tag: tuple[str, str] | None = None,
    ) -> EventPage:
        """Events after a cursor, oldest first. The page's cursor continues after every event that
        was read, whether or not it passed the filter."""
        wanted = check_filter(namespace, _one(family), tag)
        query = _query(wanted, after, limit, execution)
        if not query.limit:
            return EventPage((), query.after)
        return await self._read(query, wanted, _key(execution))

    async def batch(self, wanted: EventFilter, after: int, limit: int = MAX_PAGE) -> EventBatch:
        """The next events of a reader that must know if some were deleted before it came."""
        checked = check_wanted_events(wanted)
        return await self._batch(_query(checked, after, check_whole(limit, "limit", 1)), checked)

    async def tail(self) -> int:
        """The cursor after the last event: only later events follow."""
        return (await self._context.store.events(EventQuery(after=NEWEST))).cursor

    async def position(self, cursor: str) -> int:
        """The number in the text of a cursor; an empty one is the tail. Invalid for a text that is
        not a cursor, and for a cursor of another store, as far as that can be seen."""
        given = parse_cursor(cursor)
        tail = await self.tail()
        if given is not None and given > tail:
            raise Invalid("this cursor is beyond the last event: it comes from another store")
        return tail if given is None else given

    def subscribe(
        self,
        *,
        after: int | None = None,
        execution: str | None = None,
        namespace: str | None = None,
        family: Family | None = None,
        tag: tuple[str, str] | None = None,
    ) -> AsyncGenerator[StoredEvent, None]:
        """Every matching event after the cursor, as it is committed, each once and in order.
        Without a cursor, it starts with this call, not with the first iteration. Resume with the
        `seq` of the last event seen. It outlives a store that does not answer for a while."""
        wanted = check_filter(namespace, _one(family), tag)
        query = _query(wanted, 0 if after is None else after, MAX_PAGE, execution)
        begin = None if after is not None else self._begin()
        return _events_of(self._batches(query, wanted, begin, _key(execution)))

    def follow(
        self,
        wanted: EventFilter,
        *,
        after: int | None = None,
        limit: int = 100,
    ) -> AsyncGenerator[EventBatch, None]:
        """The same in batches, each with its cursor and a gap, if there is one. A batch is also
        given when everything in it was left out by the filter, so that its cursor can be kept.
        At most `limit` events are in memory: the next batch is read when it is asked for."""
        checked = check_wanted_events(wanted)
        query = _query(checked, 0 if after is None else after, check_whole(limit, "limit", 1))
        begin = None if after is not None else self._begin()
        return self._batches(query, checked, begin)

    async def close(self) -> None:
        """Ends what follows the events; the store is about to be closed."""
        self._closed = True
        await self._tail.close()

    def _begin(self) -> "asyncio.Future[int]":
        """The cursor of now, requested at once although it is awaited later."""
        try:
            return begun(self.tail())
        except RuntimeError:
            raise Invalid("a subscription without a cursor needs a running event loop") from None

    async def _batches(
        self,
        query: EventQuery,
        wanted: EventFilter,
        begin: "asyncio.Future[int] | None",
        key: ExecutionId | None = None,
    ) -> AsyncGenerator[EventBatch, None]:
        cursor = query.after if begin is None else await begin
        patience = Patience(lambda: self._closed)
        while True:
            moves = self._tail.moves
            try:
                batch = self._shared(query, wanted, cursor, key) or await self._batch(
                    replace(query, after=cursor), wanted, key
                )
            except Unavailable as error:
                await patience.wait(error)
                continue
            patience.restore()
            if batch.cursor == cursor:
                await self._tail.wait(moves)
            else:
                cursor = batch.cursor
                yield batch

    def _shared(
        self, query: EventQuery, wanted: EventFilter, cursor: int, key: ExecutionId | None
    ) -> EventBatch | None:
        """The next events of a reader that follows closely, without asking the store. Tags are not
        part of an event: only the store knows them."""
        page = None if query.tag is not None else self._tail.page_after(cursor)
        return None if page is None else page.part(wanted, cursor, query.limit, key)

    async def _batch(
        self, query: EventQuery, wanted: EventFilter, key: ExecutionId | None = None
    ) -> EventBatch:
        after = query.after
        page = await self._read(query, wanted, key)
        if page.cursor == after:
            return EventBatch((), after)
        # Asked after the events were read: what is deleted from now on was seen.
        forgotten = await self._context.store.forgotten_event()
        return EventBatch(page.events, page.cursor, gap_between(after, page.cursor, forgotten))

    async def _read(
        self, query: EventQuery, wanted: EventFilter, key: ExecutionId | None
    ) -> EventPage:
        page = await self._context.store.events(query)
        events = tuple(
            event for event in page.events if wanted.wants(event) and key in (None, event.id)
        )
        return EventPage(events, page.cursor)


class Patience:
    """How a follower waits for a store that does not answer."""

    def __init__(self, closed: Callable[[], bool]) -> None:
        self._closed = closed
        self._pause = FIRST_PAUSE

    async def wait(self, error: Unavailable) -> None:
        """Raises the error if the store is not coming back."""
        if self._closed():
            raise error
        if self._pause == FIRST_PAUSE:
            log.warning("a reader of events waits for the store: %s", error)
        await asyncio.sleep(self._pause)
        self._pause = min(MAX_PAUSE, self._pause * 2)

    def restore(self) -> None:
        self._pause = FIRST_PAUSE


async def _events_of(
    batches: AsyncGenerator[EventBatch, None],
) -> AsyncGenerator[StoredEvent, None]:
    async with aclosing(batches):
        async for batch in batches:
            for event in batch.events:
                yield event


def _key(execution: str | None) -> ExecutionId | None:
    return None if execution is None else ExecutionId(execution)


def _one(family: Family | None) -> Iterable[Family]:
    return () if family is None else (family,)


def _query(wanted: EventFilter, after: int, limit: int, execution: str | None = None) -> EventQuery:
    return EventQuery(
        after=check_whole(after, "cursor", 0, MAX_CURSOR),
        limit=check_limit(limit, MAX_PAGE),
        uuid=None if (key := _key(execution)) is None else key.uuid,
        namespace=wanted.namespace,
        kinds=wanted.kinds,
        tag=wanted.tag,
    )
