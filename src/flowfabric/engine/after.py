"""What happens after a commit: wake whoever waits. Everything here is a hint; what a crash
leaves undone is found by the sweep or by the poll floor."""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from flowfabric.core.change import Change
from flowfabric.core.execution import Ended, Lost, Ready, Snapshot, Suspended
from flowfabric.core.execution import Waiting as Parked
from flowfabric.core.time import Millis
from flowfabric.engine.waiting import Waiting
from flowfabric.store.contract import Store


class After:
    def __init__(self, store: Store, waiting: Waiting) -> None:
        self._store = store
        self._waiting = waiting
        self.due: Callable[[Millis], None] = lambda at: None
        """Told when something becomes due, so that the sweep of this process is there in time."""

    def created(self, snapshots: Iterable[Snapshot]) -> None:
        lanes = set()
        for snapshot in snapshots:
            lanes.add(snapshot.execution.route.lane)
            match snapshot.state:
                case Parked(due_at=int() as at):
                    self.due(at)
                case _:
                    pass
            if snapshot.deadline_at is not None:
                self.due(snapshot.deadline_at)
        if lanes:
            self._store.hint(frozenset(lanes))

    def applied(self, changes: Iterable[Change[Any]]) -> None:
        lanes, ended = set(), list[UUID]()
        for change in changes:
            match change.after:
                case Snapshot(state=Ready() | Lost(), execution=execution):
                    lanes.add(execution.route.lane)
                case Snapshot(state=Ended(), execution=execution):
                    ended.append(execution.uuid)
                case Snapshot(state=Parked(due_at=int() as at) | Suspended(due_at=int() as at)):
                    self.due(at)
                case _:
                    pass
            if change.alarm is not None:
                self.due(change.alarm)
        if ended:
            self._waiting.ended(ended)
        if lanes or ended:
            self._store.hint(frozenset(lanes))
