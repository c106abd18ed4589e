"""What happens after a commit: wake whoever waits. Everything here is a hint; what a crash
leaves undone is found by the sweep or by the poll floor."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Execution,
    Flags,
    Gate,
    Lost,
    Ready,
    Snapshot,
    Suspended,
)
from flowfabric.core.execution.model import Waiting as Parked
from flowfabric.core.flow.outbox import OutboxEntry
from flowfabric.engine.commit.watcher import Waiting
from flowfabric.store.contract import Store

_LIMITS = int(Flags.LIMITS)


async def _nothing(flow: UUID) -> None: ...


class PostCommit:
    def __init__(self, store: Store, waiting: Waiting) -> None:
        self._store = store
        self._waiting = waiting
        self.due: Callable[[Millis], None] = lambda at: None
        """Told when something becomes due, so that the sweep of this process is there in time."""
        self.owed: Callable[[Iterable[OutboxEntry]], None] = lambda entries: None
        """Told what is owed to flows now."""
        self.settle: Callable[[UUID], Awaitable[None]] = _nothing
        """Does everything that is owed to a flow."""
        self.limited: Callable[[Iterable[Execution]], None] = lambda executions: None
        """Told who waits for limits, and who has given room back."""
        self.claimable: Callable[[], None] = lambda: None
        """Told that a lane or a worker has changed, so that other work can be taken now."""
        self.let_go: Callable[[Iterable[UUID]], None] = lambda uuids: None
        """Told which executions nobody holds a lease of any more."""

    def created(self, snapshots: Iterable[Snapshot]) -> None:
        work, limited = False, list[Execution]()
        for snapshot in snapshots:
            work = True
            match snapshot.state:
                case Parked(due_at=int() as at):
                    self.due(at)
                case Parked(gate=Gate.LIMIT):
                    limited.append(snapshot.execution)
                case _:
                    pass
            if snapshot.deadline_at is not None:
                self.due(snapshot.deadline_at)
        if work:
            self._store.hints.send()
        if limited:
            self.limited(limited)

    def applied(self, changes: Sequence[Change[Any]]) -> None:
        work, ended = False, list[UUID]()
        owed = list[OutboxEntry]()
        moves = [
            (change.before, change.after)
            for change in changes
            if change.before is not None and change.after is not None
        ]
        for change in changes:
            owed += change.outbox
        for _, after in moves:
            match after.state:
                case Ready() | Lost():
                    work = True
                case Ended():
                    ended.append(after.execution.uuid)
                case _:
                    self._watch(after)
        if ended:
            self._waiting.ended(ended)
        if owed:
            self.owed(owed)
        self._tell_limits(moves)
        if work or ended:
            self._store.hints.send()

    def _tell_limits(self, moves: list[tuple[Snapshot, Snapshot]]) -> None:
        limited = [after.execution for before, after in moves if _makes_room(before, after)]
        idle = [after.execution.uuid for before, after in moves if _lets_go(before, after)]
        if limited:
            self.limited(limited)
        if idle:
            self.let_go(idle)

    def _watch(self, snapshot: Snapshot) -> None:
        """Tells the sweep when something about a parked execution becomes due."""
        match snapshot.state:
            case Parked(due_at=int() as at) | Suspended(due_at=int() as at):
                self.due(at)
            case _:
                pass
        if snapshot.alarm_at is not None:
            self.due(snapshot.alarm_at)


def _makes_room(before: Snapshot, after: Snapshot) -> bool:
    """Whether a slot was given back, or somebody came to wait for one."""
    if not int(before.head.flags) & _LIMITS or isinstance(after.state, Ready | Lost | Active):
        return False
    return isinstance(before.state, Ready | Lost | Active) or _waits_for_limits(after)


def _waits_for_limits(snapshot: Snapshot) -> bool:
    return isinstance(snapshot.state, Parked) and snapshot.state.gate is Gate.LIMIT


def _lets_go(before: Snapshot, after: Snapshot) -> bool:
    return isinstance(before.state, Active) and not isinstance(after.state, Active)
