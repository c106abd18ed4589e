"""Changes of versioned records: load, decide, write; again when a rival was faster."""

from collections.abc import Callable, Sequence
from typing import Generic, Literal, TypeVar

from msgspec import Struct

from flowfabric.core.base.numbers import check_limit
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.text import check_namespace, check_text
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import RegistryEvent
from flowfabric.engine.commit.retry import RACE_LOST, RaceLost, retry
from flowfabric.store.contract import Store
from flowfabric.store.rows.record import K, RecordKind, V

T = TypeVar("T")


RecordRule = Callable[[V | None, Millis], tuple[V | None, T]]
"""Decides on a record (None: there is none) and the moment: how it should be (None: gone), and what
to answer. The record as it was changes nothing."""

RecordEvents = Callable[[V | None, V | None, Millis], Sequence[RegistryEvent]]
"""The events of a record that was changed so, which are written with it."""


class RecordChange(Struct, Generic[V, T], frozen=True):
    """A record before and after, as it is stored, and what the rule answered."""

    before: V | None
    after: V | None
    outcome: T

    @property
    def written(self) -> bool:
        return self.before != self.after


async def find(store: Store, kind: RecordKind[K, V], key: K) -> V | None:
    """One record, None if there is none."""
    return (await store.records.get(kind, [key])).get(key)


async def listed(
    store: Store,
    kind: RecordKind[str, V],
    after: object,
    limit: object,
    namespace: object = None,
) -> list[V]:
    """Records by name, after a cursor; only those of one namespace, if given."""
    most, cursor = check_limit(limit, MAX_PAGE), check_text(after, "cursor")
    where = {} if namespace is None else {"namespace": check_namespace(namespace)}
    return await store.records.page(kind, cursor, most, where) if most else []


async def change(
    store: Store,
    kind: RecordKind[K, V],
    key: K,
    rule: RecordRule[V, T],
    known: V | None = None,
    events: RecordEvents[V] = lambda before, after, now: (),
) -> RecordChange[V, T]:
    """What the rule decided, once it is durable. The first round decides on the `known` record, if
    there is one; only what is stored refuses, so a rule that changes nothing of it is asked once
    more."""

    async def round(number: int) -> RecordChange[V, T] | Literal[RaceLost.RACE_LOST]:
        supposed = number == 0 and known is not None
        before = known if supposed else await find(store, kind, key)
        now = store.clock.now()
        after, outcome = rule(before, now)
        if after == before and supposed:
            return RACE_LOST
        if after == before:
            return RecordChange(before, before, outcome)
        expected = 0 if before is None else before.version
        noted = events(before, after, now)
        if after is None:
            written = await store.records.drop(kind, key, expected, noted)
        else:
            after = kind.numbered(after, expected)
            written = await store.records.put(kind, after, expected, noted)
        return RecordChange(before, after, outcome) if written else RACE_LOST

    return await retry(round, kind.title(key))
