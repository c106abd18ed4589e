"""What happens after a commit: wake whoever waits. Everything here is a hint; what a crash
leaves undone is found by the sweep or by the poll floor."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from uuid import UUID

from flowfabric.core.change import Change
from flowfabric.core.chore import Chore
from flowfabric.core.execution import Ended, Lost, Ready, Snapshot, Suspended
from flowfabric.core.execution import Waiting as Parked
from flowfabric.core.time import Millis
from flowfabric.engine.waiting import Waiting
from flowfabric.store.contract import Store


async def _nothing(flow: UUID) -> None: ...


class After:
    def __init__(self, store: Store, waiting: Waiting) -> None:
        self._store = store
        self._waiting = waiting
        self.due: Callable[[Millis], None] = lambda at: None
        """Told when something becomes due, so that the sweep of this process is there in time."""
        self.owed: Callable[[Iterable[Chore]], None] = lambda chores: None
        """Told what is owed to flows now."""
        self.settle: Callable[[UUID], Awaitable[None]] = _nothing
        """Does everything that is owed to a flow."""

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
        owed = list[Chore]()
        for change in changes:
            if change.after is None:
                continue
            match change.after.state:
                case Ready() | Lost():
                    lanes.add(change.after.execution.route.lane)
                case Ended():
                    ended.append(change.after.execution.uuid)
                case _:
                    self._watch(change.after)
            owed += change.chores
        if ended:
            self._waiting.ended(ended)
        if owed:
            self.owed(owed)
        if lanes or ended:
            self._store.hint(frozenset(lanes))

    def _watch(self, snapshot: Snapshot) -> None:
        """Tells the sweep when something about a parked execution becomes due."""
        match snapshot.state:
            case Parked(due_at=int() as at) | Suspended(due_at=int() as at):
                self.due(at)
            case _:
                pass
        if snapshot.alarm_at is not None:
            self.due(snapshot.alarm_at)
