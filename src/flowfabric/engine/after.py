"""What happens after a commit: wake whoever waits. Everything here is a hint; what a crash
leaves undone is found by the sweep or by the poll floor."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from flowfabric.core.change import Change
from flowfabric.core.execution import Ended, Lost, Ready, Snapshot
from flowfabric.engine.waiting import Waiting
from flowfabric.store.contract import Store


class After:
    def __init__(self, store: Store, waiting: Waiting) -> None:
        self._store = store
        self._waiting = waiting

    def applied(self, changes: Iterable[Change[Any]]) -> None:
        lanes, ended = set(), list[UUID]()
        for change in changes:
            match change.after:
                case Snapshot(state=Ready() | Lost(), execution=execution):
                    lanes.add(execution.route.lane)
                case Snapshot(state=Ended(), execution=execution):
                    ended.append(execution.uuid)
                case _:
                    pass
        if ended:
            self._waiting.ended(ended)
        if lanes or ended:
            self._store.hint(frozenset(lanes))
