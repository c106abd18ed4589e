"""How far named readers of events (subscriptions and webhooks) have come, for the retention."""

from typing import TypeVar

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.subscription import Subscription
from flowfabric.core.execution.webhook import Webhook
from flowfabric.store.contract import Store
from flowfabric.store.queries import EventQuery
from flowfabric.store.rows.record import SUBSCRIPTIONS, WEBHOOKS, RecordKind

Reader = TypeVar("Reader", Subscription, Webhook)

PATIENCE = Millis(86_400_000)
"""How long after the end of a run its unread events keep it, whatever its retention."""
SKEW = Millis(60_000)
"""Events are numbered when they are written, a little after the moment that they tell."""
PAGE = 200


async def unread_from(store: Store, now: Millis) -> Millis | None:
    """Of runs that ended before this moment, named readers have read every event, or had the time
    to. None if there are no named readers."""
    cursors = [*await _cursors(store, SUBSCRIPTIONS), *await _cursors(store, WEBHOOKS)]
    if not cursors:
        return None
    first = await _first_after(store, min(cursors), now)
    return max(Millis(first - SKEW), Millis(now - PATIENCE))


async def _first_after(store: Store, cursor: int, now: Millis) -> Millis:
    """The moment of the first event after a cursor, now if there is none."""
    while True:
        page = await store.events(EventQuery(after=cursor, limit=1))
        if page.events:
            return page.events[0].at
        if not page.settled:  # there may be events that cannot be read yet
            return Millis(0)
        if page.cursor == cursor:
            return now
        cursor = page.cursor


async def _cursors(store: Store, kind: RecordKind[str, Reader]) -> list[int]:
    cursors: list[int] = []
    after = ""
    while page := await store.records.page(kind, after, PAGE):
        cursors += [reader.cursor for reader in page]
        after = page[-1].name
    return cursors
