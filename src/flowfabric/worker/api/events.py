"""`fabric.events` and `fabric.subscriptions`: what happens, as it happens."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from flowfabric.core.base.time import optional_datetime, parse_span, to_datetime
from flowfabric.core.execution.event import Family
from flowfabric.core.execution.event_filter import (
    EventFilter,
    EventGap,
    check_filter,
    encode_cursor,
    parse_cursor,
    parse_handled,
)
from flowfabric.core.execution.event_views import EventView, GapView, gap_view, view
from flowfabric.core.execution.subscription import HeldElsewhere, Subscription
from flowfabric.engine.commit.background import begun
from flowfabric.worker.api.blocking import Block, blocking, has_loop
from flowfabric.worker.api.client import Client
from flowfabric.worker.api.listing import Tag, one_tag
from flowfabric.worker.api.options import Span
from flowfabric.worker.api.registries import all_pages


class SubscriptionInfo(Struct, frozen=True, kw_only=True):
    """A named subscription. `cursor` is how far it is acknowledged; `holder` reads it until
    `held_until`."""

    name: str
    namespace: str | None
    families: tuple[Family, ...]
    tag: tuple[str, str] | None
    cursor: str
    holder: str | None
    held_until: datetime | None
    created_at: datetime


class NextEvents(Struct, frozen=True, kw_only=True):
    """The next events of a subscription, and the cursor to acknowledge once they are handled. With
    a `gap`, some before or between them were deleted unread. `held_by` names the process that reads
    the subscription now, if it is another one; then there are no events."""

    events: tuple[EventView, ...] = ()
    cursor: str = ""
    gap: GapView | None = None
    held_by: str | None = None


class EventsApi:
    """`fabric.events`"""

    def __init__(self, client: Client) -> None:
        self._client = client

    def events(
        self,
        cursor: str = "",
        *,
        namespace: str | None = None,
        families: Iterable[Family | str] = (),
        tag: Tag | None = None,
    ) -> AsyncGenerator[EventView | GapView, None]:
        """Events as they happen, after a cursor or, without one, from this call on: those of a
        namespace, of these families (none: all), of runs with a tag. Continue later with the
        `cursor` of the last one. A GapView says that events were deleted before they were read."""
        wanted = check_filter(namespace, families, None if tag is None else one_tag(tag))
        parse_cursor(cursor)  # a malformed one is refused here, not at the first iteration
        return self._events(wanted, cursor, self._begin(cursor))

    def _begin(self, cursor: str) -> "asyncio.Task[int] | None":
        """The position of the cursor, requested at once where a loop runs, so that what happens
        before the first iteration is not missed."""
        return begun(self._position(cursor)) if has_loop() else None

    async def _position(self, cursor: str) -> int:
        return await (await self._client.engine()).events.position(cursor)

    async def _events(
        self, wanted: EventFilter, cursor: str, begin: "asyncio.Task[int] | None"
    ) -> AsyncGenerator[EventView | GapView, None]:
        after = await (begin or self._position(cursor))
        engine = await self._client.engine()
        async for batch in engine.events.follow(wanted, after=after):
            for each in batch.in_order():
                yield gap_view(each) if isinstance(each, EventGap) else view(each, wanted.families)


class SubscriptionsApi:
    """`fabric.subscriptions`: durable readers of events that several processes share."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(
        self,
        name: str,
        *,
        namespace: str | None = None,
        families: Iterable[Family | str] = (),
        tag: Tag | None = None,
        cursor: str = "",
    ) -> SubscriptionInfo:
        """A subscription that begins after a cursor or, without one, now. One that exists with the
        same filter stays where it is."""
        wanted = check_filter(namespace, families, None if tag is None else one_tag(tag))
        engine = await self._client.engine()
        after = await engine.events.position(cursor)
        return subscription_info(await engine.subscriptions.create(name, wanted, after=after))

    async def get(self, name: str) -> SubscriptionInfo:
        """The subscription with this name. Raises NotFound if there is none."""
        return subscription_info(await (await self._client.engine()).subscriptions.get(name))

    async def delete(self, name: str) -> None:
        await (await self._client.engine()).subscriptions.delete(name)

    async def read(
        self, name: str, *, holder: str, limit: int = 100, lease: Span = 30
    ) -> NextEvents:
        """The next events for `holder`, which has the subscription for the time of `lease` and gets
        the same ones again until it acknowledges them."""
        engine = await self._client.engine()
        found = await engine.subscriptions.read(
            name, holder=holder, limit=limit, lease=parse_span(lease, "lease")
        )
        if isinstance(found, HeldElsewhere):
            return NextEvents(held_by=found.holder)
        return NextEvents(
            events=tuple(view(event) for event in found.events),
            cursor=encode_cursor(found.cursor),
            gap=None if found.gap is None else gap_view(found.gap),
        )

    async def ack(self, name: str, cursor: str) -> SubscriptionInfo:
        """Everything up to this cursor is handled. An older one changes nothing; Invalid for one
        that was never read, and for an empty one."""
        seq = parse_handled(cursor)
        engine = await self._client.engine()
        return subscription_info(await engine.subscriptions.ack(name, seq))

    async def release(self, name: str, *, holder: str) -> None:
        """Lets others read at once what `holder` has not acknowledged."""
        await (await self._client.engine()).subscriptions.release(name, holder=holder)

    async def list(
        self, *, namespace: str | None = None, limit: int | None = None
    ) -> list[SubscriptionInfo]:
        """Subscriptions by name; only those of one namespace, if given."""
        subscriptions = (await self._client.engine()).subscriptions

        def page(after: str | None, size: int) -> Awaitable[Sequence[Subscription]]:
            return subscriptions.list(namespace=namespace, after=after or "", limit=size)

        found = await all_pages(page, lambda each: each.name, limit)
        return [subscription_info(each) for each in found]

    list_sync, get_sync, create_sync = blocking(list), blocking(get), blocking(create)
    read_sync, ack_sync = blocking(read), blocking(ack)
    release_sync, delete_sync = blocking(release), blocking(delete)

    def _blocking(self) -> tuple[Any, Block]:
        return self, self._client.block_on


def subscription_info(found: Subscription) -> SubscriptionInfo:
    return SubscriptionInfo(
        name=found.name,
        namespace=found.namespace,
        families=found.families,
        tag=found.tag,
        cursor=encode_cursor(found.cursor),
        holder=found.holder,
        held_until=None if found.holder is None else optional_datetime(found.held_until),
        created_at=to_datetime(found.created_at),
    )
