"""What every noun of the engine is made of."""

import random
from contextlib import suppress
from typing import TypeVar
from uuid import UUID

from msgspec import Struct

from flowfabric.core.change import Change
from flowfabric.core.check import check_whole
from flowfabric.core.errors import StoreFull, StoreReadOnly
from flowfabric.core.execution import RANK_STEP, Flags, Snapshot
from flowfabric.core.ids import ExecutionId
from flowfabric.core.time import MAX_SPAN, NO_TIME, Millis
from flowfabric.core.waits import Ask, Memory
from flowfabric.engine.after import After
from flowfabric.engine.arrivals import Arrivals
from flowfabric.engine.catalogue import Catalogue
from flowfabric.engine.decisions import Asking, Decisions, Recalling, Rule
from flowfabric.engine.ids import Ids
from flowfabric.engine.keys import Ring
from flowfabric.engine.waiting import Waiting
from flowfabric.store.contract import Store

T = TypeVar("T")


class Options(Struct, frozen=True, kw_only=True):
    """How an engine behaves. Every process of a deployment should use the same.

    `retention` is how long an ended execution is kept; `reclaim_grace` how long a lost one waits
    before another worker may take it. `waitpoint_secret` (64 hex digits) becomes the first key
    that signs waitpoint tokens; without one the engine makes its own when it first needs one,
    unless `make_keys` is False. With `aging` whoever waits that long is worth one more point of
    priority, so that urgent work cannot keep other work waiting for ever; without it priority
    always comes first.
    """

    retention: Millis = Millis(7 * 86_400_000)
    aging: Millis | None = None
    reclaim_grace: Millis = NO_TIME
    waitpoint_secret: str | None = None
    make_keys: bool = True

    def __post_init__(self) -> None:
        if self.aging is not None:
            check_whole(self.aging, "aging in milliseconds", 1, MAX_SPAN)

    @property
    def rank_step(self) -> int:
        return RANK_STEP if self.aging is None else self.aging

    def __repr__(self) -> str:
        return f"Options(retention={self.retention}, reclaim_grace={self.reclaim_grace})"


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
    identity: str
    chance: random.Random
    ring: Ring
    catalogue: Catalogue


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

    async def _let_in(self) -> None:
        """Before many executions are looked at: those that the application's own transactions
        have submitted since are shown like all others. A store that can only be read shows the
        rest."""
        with suppress(StoreReadOnly, StoreFull):
            await self._parts.arrivals.admit()

    async def _decide(self, id: str, rule: Rule[T], held: Snapshot | None = None) -> T:
        key = ExecutionId(id)

        def exactly(snapshot: Snapshot | None, now: Millis) -> Change[T]:
            return rule(_exactly(snapshot, key), now)

        return await self._parts.decisions.decide(key.uuid, exactly, held)

    async def _recalling(
        self, id: str, rule: Recalling[T], ask: Asking, held: Snapshot | None = None
    ) -> T:
        """As `_decide`, for a rule that must remember more than the execution itself."""
        key = ExecutionId(id)

        def exactly(snapshot: Snapshot | None, now: Millis, memory: Memory) -> Change[T]:
            return rule(_exactly(snapshot, key), now, memory)

        def asked(snapshot: Snapshot | None) -> Ask | None:
            found = _exactly(snapshot, key)
            # Without the flag there is nothing to remember, and nobody need look.
            return ask(found) if found and found.head.flags & Flags.WAITPOINTS else None

        return await self._parts.decisions.recalling(key.uuid, exactly, asked, held)


def _exactly(snapshot: Snapshot | None, id: ExecutionId) -> Snapshot | None:
    """An id with the right uuid in another partition names nothing."""
    return snapshot if snapshot is not None and snapshot.execution.id == id else None
