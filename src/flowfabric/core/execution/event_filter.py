"""Which events a reader wants, and where it stands: filters, cursors and gaps."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Iterable, Iterator

from msgspec import Struct

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.numbers import check_iterable, check_kind_of, check_word
from flowfabric.core.base.text import check_namespace, check_tag, check_text
from flowfabric.core.execution.event import EventKind, Family, StoredEvent, belongs_to, kinds_of

MAX_CURSOR = (1 << 63) - 1

_EVENTS = b"\x02"
"""The first byte of a cursor says what it counts: 2 is the number of an event."""


class EventFilter(Struct, frozen=True, kw_only=True):
    """All that is set must match. An event of a run without the tag, or of no run at all, never
    matches a tag. No families means every event, also those of no family."""

    namespace: str | None = None
    families: tuple[Family, ...] = ()
    tag: tuple[str, str] | None = None

    @property
    def kinds(self) -> frozenset[EventKind] | None:
        """The kinds a store looks for; None for all."""
        if not self.families:
            return None
        return frozenset().union(*(kinds_of(family) for family in self.families))

    def wants(self, event: StoredEvent) -> bool:
        """Whether an event of these kinds is one of the families."""
        return not self.families or any(belongs_to(event, each) for each in self.families)


EVERY_EVENT = EventFilter()


class EventGap(Struct, frozen=True):
    """Events with a number above `after` and up to `until` may be missing: retention has deleted
    some of them before they were read."""

    after: int
    until: int


class EventBatch(Struct, frozen=True):
    """The next events of a reader, and the cursor that continues after them, which has passed the
    events that the filter leaves out as well. With a `gap`, some were deleted unread."""

    events: tuple[StoredEvent, ...]
    cursor: int
    gap: EventGap | None = None

    def in_order(self) -> Iterator[StoredEvent | EventGap]:
        """The events and the gap, each where its cursor stands. Retention deletes run by run, so
        events of other runs are left inside the gap: they come before it, or a reader that
        continues after the gap would miss them."""
        gap = self.gap
        for event in self.events:
            if gap is not None and event.seq > gap.until:
                yield gap
                gap = None
            yield event
        if gap is not None:
            yield gap


def check_filter(
    namespace: object = None, families: object = (), tag: object = None
) -> EventFilter:
    """A filter from outside."""
    return EventFilter(
        namespace=None if namespace is None else check_namespace(namespace),
        families=check_families(families),
        tag=None if tag is None else check_tag(tag),
    )


def check_wanted_events(value: object) -> EventFilter:
    """The same, of one that was put together by a caller."""
    given = check_kind_of(value, EventFilter, "filter")
    return check_filter(given.namespace, given.families, given.tag)


def check_families(value: object) -> tuple[Family, ...]:
    """Families, each once and in a fixed order."""
    given: Iterable[object] = check_iterable(value, "families")  # type: ignore[arg-type]
    wanted = {check_word(each, Family, "a family of events") for each in given}
    return tuple(family for family in Family if family in wanted)


def gap_between(after: int, cursor: int, forgotten: int) -> EventGap | None:
    """What may be missing of the events read from `after` up to `cursor`, when all that retention
    has deleted so far has numbers up to `forgotten`."""
    return EventGap(after, min(cursor, forgotten)) if after < min(cursor, forgotten) else None


def encode_cursor(seq: int) -> str:
    """A cursor as text, which clients keep as it is.

    >>> encode_cursor(7)
    'AgAAAAAAAAAH'
    """
    return urlsafe_b64encode(_EVENTS + seq.to_bytes(8, "big")).decode()


def parse_cursor(text: object) -> int | None:
    """The number in a cursor; None for an empty one, which means from now on. Invalid for anything
    that `encode_cursor` did not write."""
    given = check_text(text, "cursor")
    if not given:
        return None
    try:
        data = urlsafe_b64decode(given.encode("ascii"))
    except (Error, ValueError):
        data = b""
    seq = int.from_bytes(data[1:], "big")
    if seq > MAX_CURSOR or encode_cursor(seq) != given:
        raise Invalid(f"{given[:80]!r} is not a cursor of events")
    return seq


def parse_handled(text: object) -> int:
    """The number in a cursor that is acknowledged. An empty one names no event: from now on would
    be past everything that others are still handling."""
    seq = parse_cursor(text)
    if seq is None:
        raise Invalid("an empty cursor acknowledges nothing: give the cursor of what was read")
    return seq
