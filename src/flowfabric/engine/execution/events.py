"""Events: read them, and follow them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.numbers import check_limit, check_whole
from flowfabric.core.base.text import check_tag, check_text
from flowfabric.core.execution.event import EventKind, Family, StoredEvent, kinds_of
from flowfabric.engine.context import Service
from flowfabric.store.queries import NEWEST, EventPage, EventQuery

POLL_FLOOR = 1.0
MAX_PAGE = 1000
MAX_CURSOR = (1 << 63) - 1


class Events(Service):
    """`engine.events`"""

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
        query = _query(after, limit, execution, namespace, family, tag)
        if not query.limit:
            return EventPage((), query.after)
        return await self._read(query, execution, family)

    async def tail(self) -> int:
        """The cursor after the last event: only later events follow."""
        return (await self._context.store.events(EventQuery(after=NEWEST))).cursor

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
        `seq` of the last event seen."""
        query = _query(0 if after is None else after, MAX_PAGE, execution, namespace, family, tag)
        begin = None if after is not None else self._begin()
        return self._follow(query, begin, execution, family)

    def _begin(self) -> "asyncio.Future[int]":
        """The cursor of now, requested at once although it is awaited later."""
        try:
            begin = asyncio.ensure_future(self.tail())
        except RuntimeError:
            raise Invalid("a subscription without a cursor needs a running event loop") from None
        begin.add_done_callback(lambda done: done.cancelled() or done.exception())
        return begin

    async def _follow(
        self,
        query: EventQuery,
        begin: "asyncio.Future[int] | None",
        execution: str | None,
        family: Family | None,
    ) -> AsyncGenerator[StoredEvent, None]:
        cursor = query.after if begin is None else await begin
        while True:
            seen = self._context.store.hints.count
            page = await self._read(replace(query, after=cursor), execution, family)
            for event in page.events:
                yield event
            if page.cursor == cursor:
                with suppress(TimeoutError):
                    await self._context.store.hints.wait(POLL_FLOOR, seen)
            cursor = page.cursor

    async def _read(
        self, query: EventQuery, execution: str | None, family: Family | None
    ) -> EventPage:
        key = None if execution is None else ExecutionId(execution)
        page = await self._context.store.events(query)
        events = tuple(
            event for event in page.events if _belongs(event, family) and key in (None, event.id)
        )
        return EventPage(events, page.cursor)


def _query(
    after: int,
    limit: int,
    execution: str | None,
    namespace: str | None,
    family: Family | None,
    tag: tuple[str, str] | None,
) -> EventQuery:
    kinds: frozenset[EventKind] | None = None if family is None else kinds_of(_family(family))
    return EventQuery(
        after=check_whole(after, "cursor", 0, MAX_CURSOR),
        limit=check_limit(limit, MAX_PAGE),
        uuid=None if execution is None else ExecutionId(execution).uuid,
        namespace=None if namespace is None else check_text(namespace, "namespace"),
        kinds=kinds,
        tag=None if tag is None else check_tag(tag),
    )


def _family(word: object) -> Family:
    text = check_text(word, "family")
    try:
        return Family(text)
    except ValueError:
        raise Invalid(f"{text[:80]!r} is no family of events") from None


def _belongs(event: StoredEvent, family: Family | None) -> bool:
    match family:
        case Family.LEASE:
            return event.lease is not None
        case Family.COMPLETION:
            return event.completion is not None
        case Family.SIGNAL:
            return event.kind is EventKind.SIGNALLED
        case Family.OPERATOR:
            return event.operator is not None
        case None:
            return True
