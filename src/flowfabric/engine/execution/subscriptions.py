"""Named subscriptions: durable readers of events that several processes share."""

from flowfabric.core.base.errors import Contention, NotFound
from flowfabric.core.base.numbers import check_whole
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.text import check_worker
from flowfabric.core.base.time import Millis, Span, check_span
from flowfabric.core.execution import subscription as rules
from flowfabric.core.execution.event_filter import (
    EVERY_EVENT,
    MAX_CURSOR,
    EventBatch,
    EventFilter,
    check_wanted_events,
)
from flowfabric.core.execution.subscription import CursorMoved, HeldElsewhere, Subscription
from flowfabric.engine.commit.records import change, find, listed
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.execution.events import Events
from flowfabric.store.rows.record import SUBSCRIPTIONS

LEASE = Millis(30_000)
MAX_LEASE = 86_400_000
ROUNDS = 10
"""How often events are read again because the cursor has moved meanwhile."""


class Subscriptions(Service):
    """`engine.subscriptions`"""

    def __init__(self, context: EngineContext, events: Events) -> None:
        super().__init__(context)
        self._events = events

    async def create(
        self, name: str, wanted: EventFilter = EVERY_EVENT, *, after: int | None = None
    ) -> Subscription:
        """A subscription that begins after a cursor, or with the next event. One that exists with
        the same filter stays where it is; Invalid if it has another filter."""
        asked = rules.check_name(name)
        checked = check_wanted_events(wanted)
        cursor = (
            await self._events.tail()
            if after is None
            else check_whole(after, "cursor", 0, MAX_CURSOR)
        )
        changed = await change(
            self._context.store,
            SUBSCRIPTIONS,
            asked,
            lambda old, now: (rules.begin(old, now, asked, checked, cursor), None),
        )
        return rules.known(changed.after, asked)

    async def get(self, name: str) -> Subscription:
        asked = rules.check_name(name)
        return rules.known(await find(self._context.store, SUBSCRIPTIONS, asked), asked)

    async def list(
        self, *, namespace: str | None = None, after: str = "", limit: int = 100
    ) -> "list[Subscription]":
        """Subscriptions by name, after a cursor; only those of one namespace, if given."""
        return await listed(self._context.store, SUBSCRIPTIONS, after, limit, namespace)

    async def delete(self, name: str) -> None:
        if not await self._context.store.records.drop(SUBSCRIPTIONS, rules.check_name(name)):
            raise NotFound("subscription", name)

    async def read(
        self, name: str, *, holder: str, limit: int = 100, lease: Span = LEASE
    ) -> EventBatch | HeldElsewhere:
        """The next events for `holder`, which has the subscription for the time of `lease` and gets
        the same ones again until it acknowledges them. Reading again extends that time. A batch
        without events and without a gap holds nothing."""
        asked, who = rules.check_name(name), check_worker(holder, "holder")
        most, span = (
            check_whole(limit, "limit", 1, MAX_PAGE),
            check_span(lease, "lease", 1, MAX_LEASE),
        )
        for _ in range(ROUNDS):
            held = await self.get(asked)
            if (elsewhere := rules.held_elsewhere(held, self._now(), who)) is not None:
                return elsewhere
            batch = await self._next(held, most)
            if not batch.events and batch.gap is None and not self._is_worth_saving(held, batch):
                return batch
            taken = await self._take(held, who, span, batch)
            if not isinstance(taken, CursorMoved):
                return taken
        raise Contention(f"the cursor of subscription {asked!r} keeps moving; try again")

    async def ack(self, name: str, cursor: int) -> Subscription:
        """Everything up to this cursor, of a batch that was read, is handled. A lower one than
        before changes nothing; Invalid for one that was never read."""
        asked = rules.check_name(name)
        seq = check_whole(cursor, "cursor", 0, MAX_CURSOR)
        changed = await change(
            self._context.store,
            SUBSCRIPTIONS,
            asked,
            lambda old, now: (rules.acknowledge(old, now, asked, seq), None),
        )
        return rules.known(changed.after, asked)

    async def release(self, name: str, *, holder: str) -> None:
        """Lets others read at once what `holder` has not acknowledged."""
        asked, who = rules.check_name(name), check_worker(holder, "holder")
        await change(
            self._context.store,
            SUBSCRIPTIONS,
            asked,
            lambda old, now: (rules.give_up(old, asked, who), None),
        )

    async def _next(self, held: Subscription, limit: int) -> EventBatch:
        """The next batch that says anything; pages of which the filter leaves nothing are passed,
        up to a bounded number at a time."""
        batch = EventBatch((), held.cursor)
        for _ in range(ROUNDS):
            found = await self._events.batch(held.filter, batch.cursor, limit)
            if found.events or found.gap is not None or found.cursor == batch.cursor:
                return found
            batch = found
        return batch

    def _is_worth_saving(self, held: Subscription, batch: EventBatch) -> bool:
        return rules.is_worth_saving(batch.cursor - held.cursor, held.saved_at, self._now())

    async def _take(
        self, held: Subscription, holder: str, lease: Millis, batch: EventBatch
    ) -> EventBatch | HeldElsewhere | CursorMoved:
        changed = await change(
            self._context.store,
            SUBSCRIPTIONS,
            held.name,
            lambda old, now: rules.take(old, now, held, holder, lease, batch),
        )
        return changed.outcome
