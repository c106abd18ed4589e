"""What tests of the rows of every store begin with."""

import itertools
from uuid import UUID

from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store

_numbers = itertools.count(1)


class StoreBench:
    """A store, a clock that stands still, and ids in order."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock

    @property
    def now(self) -> Millis:
        return self.clock.now()

    def fresh(self) -> UUID:
        return new_uuid7(self.now, next(_numbers))
