"""Named subscriptions: a durable cursor over events that several processes share.

One process at a time holds a subscription. It reads events after the cursor, handles them, and
acknowledges how far it has come. What was read and not acknowledged is read again, by the same
process or by the next holder: at least once, in order, never skipped.
"""

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.document import Document
from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.text import MAX_NAME, check_text
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import Family
from flowfabric.core.execution.event_filter import EventBatch, EventFilter

SAVE_EVERY = Millis(60_000)
SAVE_AFTER = 1000
"""A cursor that passed only events of no interest is saved after so long, or so many."""


class Subscription(Document, frozen=True, kw_only=True, omit_defaults=True):
    """`cursor` is how far the events are acknowledged, `read_to` how far they were ever read.
    `holder` has the subscription until `held_until`. `saved_at` is when the cursor was written."""

    name: str
    namespace: str | None = None
    families: tuple[Family, ...] = ()
    tag: tuple[str, str] | None = None
    cursor: int = 0
    read_to: int = 0
    holder: str | None = None
    held_until: Millis = Millis(0)
    created_at: Millis = Millis(0)
    saved_at: Millis = Millis(0)
    version: int = 0

    @property
    def filter(self) -> EventFilter:
        return EventFilter(namespace=self.namespace, families=self.families, tag=self.tag)


class HeldElsewhere(Struct, frozen=True):
    """Another process reads the subscription, at least until then unless it gives it up."""

    holder: str
    until: Millis


class CursorMoved(Struct, frozen=True):
    """The cursor has moved since the events were read: read again."""


def check_name(value: object, what: str = "subscription") -> str:
    """The name of a subscription or webhook: 1 to 256 bytes of printable text."""
    text = check_text(value, f"the name of a {what}", limit=MAX_NAME)
    if not text or not text.isprintable():
        raise Invalid(f"the name of a {what} must be printable and not empty")
    return text


def known(found: Subscription | None, name: str) -> Subscription:
    if found is None:
        raise NotFound("subscription", name)
    return found


def begin(
    old: Subscription | None, now: Millis, name: str, wanted: EventFilter, cursor: int
) -> Subscription:
    """A new subscription. One that exists with the same filter stays as it is; what it reads
    cannot be changed, because its cursor has passed events by the old filter."""
    if old is not None:
        if old.filter != wanted:
            raise Invalid(f"subscription {name!r} exists with another filter; delete it first")
        return old
    return Subscription(
        name=name,
        namespace=wanted.namespace,
        families=wanted.families,
        tag=wanted.tag,
        cursor=cursor,
        read_to=cursor,
        created_at=now,
        saved_at=now,
    )


def held_elsewhere(held: Subscription, now: Millis, holder: str) -> HeldElsewhere | None:
    if held.holder in (None, holder) or held.held_until <= now:
        return None
    return HeldElsewhere(held.holder or "", held.held_until)


def is_worth_saving(moved: int, since: Millis, now: Millis) -> bool:
    """Whether a cursor must be written that has moved so far past events of no interest, and was
    last written at `since`. If it never were, those events would look like a gap once retention
    deletes them."""
    return moved >= SAVE_AFTER or (moved > 0 and now - since >= SAVE_EVERY)


def take(
    old: Subscription | None,
    now: Millis,
    read_from: Subscription,
    holder: str,
    lease: Millis,
    batch: EventBatch,
) -> tuple[Subscription, EventBatch | HeldElsewhere | CursorMoved]:
    """Gives what was read to one holder, if the cursor is still where it was read from. A batch
    without events needs no acknowledgement."""
    held = known(old, read_from.name)
    if (elsewhere := held_elsewhere(held, now, holder)) is not None:
        return held, elsewhere
    if held.cursor != read_from.cursor or held.created_at != read_from.created_at:
        return held, CursorMoved()
    read_to = max(held.read_to, batch.cursor)
    if not batch.events and batch.gap is None:
        return replace(held, cursor=batch.cursor, read_to=read_to, saved_at=now), batch
    until = Millis(now + lease)
    return replace(held, holder=holder, held_until=until, read_to=read_to), batch


def acknowledge(old: Subscription | None, now: Millis, name: str, cursor: int) -> Subscription:
    """The cursor only moves forward, and never past what was read. A process that lost the
    subscription meanwhile may still say what it has handled."""
    held = known(old, name)
    if cursor > held.read_to:
        raise Invalid(f"subscription {name!r} was never read up to this cursor")
    if cursor <= held.cursor:
        return held
    return replace(held, cursor=cursor, saved_at=now)


def give_up(old: Subscription | None, name: str, holder: str) -> Subscription:
    held = known(old, name)
    return replace(held, holder=None, held_until=Millis(0)) if held.holder == holder else held
