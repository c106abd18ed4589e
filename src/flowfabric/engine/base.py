"""What every noun of the engine is made of."""

import random
from typing import TypeVar
from uuid import UUID

from msgspec import Struct

from flowfabric.core.change import Change
from flowfabric.core.execution import Snapshot
from flowfabric.core.ids import ExecutionId
from flowfabric.core.time import NO_TIME, Millis
from flowfabric.engine.after import After
from flowfabric.engine.arrivals import Arrivals
from flowfabric.engine.decisions import Decisions, Rule
from flowfabric.engine.ids import Ids
from flowfabric.engine.waiting import Waiting
from flowfabric.store.contract import Store

T = TypeVar("T")


class Options(Struct, frozen=True, kw_only=True):
    """How an engine behaves. Every process of a deployment should use the same.

    `retention` is how long an ended execution is kept; `reclaim_grace` how long a lost one waits
    before another worker may take it.
    """

    retention: Millis = Millis(7 * 86_400_000)
    reclaim_grace: Millis = NO_TIME


class Parts(Struct):
    """What the nouns share."""

    store: Store
    arrivals: Arrivals
    decisions: Decisions
    waiting: Waiting
    after: After
    ids: Ids
    options: Options
    secret: bytes
    chance: random.Random


class Noun:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def _now(self) -> Millis:
        return self._parts.store.clock.now()

    def _fresh(self) -> UUID:
        return self._parts.ids.fresh(self._now())

    def _luck(self) -> float:
        return self._parts.chance.random()

    async def _load(self, id: str) -> Snapshot | None:
        """The execution, None if there is none of that very id (partition included)."""
        key = ExecutionId(id)
        found = await self._parts.arrivals.load([key.uuid])
        return _exactly(found.get(key.uuid), key)

    async def _decide(self, id: str, rule: Rule[T], held: Snapshot | None = None) -> T:
        key = ExecutionId(id)

        def exactly(snapshot: Snapshot | None, now: Millis) -> Change[T]:
            return rule(_exactly(snapshot, key), now)

        return await self._parts.decisions.decide(key.uuid, exactly, held)


def _exactly(snapshot: Snapshot | None, id: ExecutionId) -> Snapshot | None:
    """An id with the right uuid in another partition names nothing."""
    return snapshot if snapshot is not None and snapshot.execution.id == id else None
