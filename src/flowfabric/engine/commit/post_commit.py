"""What follows a commit: subscribers hear what has changed. Everything here is a hint; what a crash
leaves undone is found by the sweep or at the poll floor."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol
from uuid import UUID

from msgspec import Struct

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
    Start,
    Suspended,
    Waiting,
)
from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.outbox import OutboxEntry
from flowfabric.engine.commit.observer import watching
from flowfabric.store.contract import Store
from flowfabric.store.hints import Topic

_LIMITS = int(Flags.LIMITS)


class Commit(Struct, frozen=True, kw_only=True):
    """What has changed. `ready`: there is work to claim; `ended` and `ended_flows` are over;
    `owed` is new in the outboxes of flows; members that are `settled` have ended and left no edge
    open, and a flow is `unfinished` if a member goes on after that; `limited` wait for limits or
    have given room back; `unleased` lost their lease or gave it up; `signalled`: a run has received
    a signal while it runs; `closed` have ended an attempt and go on, and `framed` have appended to
    their output streams; something is due at `due_at`, the earliest moment;
    `reopened`: a lane or a worker has changed, so that other work can be claimed."""

    ready: bool = False
    ended: tuple[UUID, ...] = ()
    ended_flows: tuple[Flow, ...] = ()
    owed: tuple[OutboxEntry, ...] = ()
    settled: frozenset[UUID] = frozenset()
    unfinished: frozenset[UUID] = frozenset()
    limited: tuple[Execution, ...] = ()
    unleased: tuple[UUID, ...] = ()
    signalled: bool = False
    closed: tuple[UUID, ...] = ()
    framed: tuple[UUID, ...] = ()
    due_at: Millis | None = None
    reopened: bool = False

    @property
    def topics(self) -> Topic:
        """What other tasks and processes get a hint of."""
        topics = Topic.WORK if self.ready else Topic(0)
        if self.ended or self.ended_flows:
            topics |= Topic.ENDINGS
        if self.closed or self.framed:
            topics |= Topic.FRAMES
        return topics | Topic.SIGNALS if self.signalled else topics


class Subscriber(Protocol):
    def committed(self, commit: Commit) -> None:
        """Acts on what has changed, without waiting for anything."""


class PostCommit:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, *subscribers: Subscriber) -> None:
        """They hear of every commit of this process from now on, in this order."""
        self._subscribers += subscribers

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers = tuple(each for each in self._subscribers if each is not subscriber)

    def publish(self, commit: Commit) -> None:
        for subscriber in self._subscribers:
            subscriber.committed(commit)
        if topics := commit.topics:
            self._store.hints.send(topics)

    def due(self, at: Millis) -> None:
        self.publish(Commit(due_at=at))

    def claimable(self) -> None:
        self.publish(Commit(reopened=True))

    def framed(self, uuids: Iterable[UUID]) -> None:
        self.publish(Commit(framed=tuple(uuids)))

    def created(self, snapshots: Iterable[Snapshot]) -> None:
        found = tuple(snapshots)
        if (seen := watching()) is not None:
            seen.created(found)
        due = [*map(_due_at, found), *(snapshot.deadline_at for snapshot in found)]
        limited = (each.execution for each in found if _waits_for_limits(each))
        self.publish(
            Commit(
                ready=any(isinstance(each.state, Ready) for each in found),
                limited=tuple(limited),
                due_at=_earliest(due),
            )
        )

    def applied(
        self,
        changes: Sequence[Change[Any]],
        settled: frozenset[UUID] = frozenset(),
        unfinished: frozenset[UUID] = frozenset(),
    ) -> None:
        if (seen := watching()) is not None:
            seen.applied(changes)
        moves = [
            (change.before, change.after)
            for change in changes
            if change.before is not None and change.after is not None
        ]
        ready, ended, due = False, list[UUID](), list[Millis | None]()
        for _, after in moves:
            match after.state:
                case Ready() | Lost():
                    ready = True
                case Ended():
                    ended.append(after.execution.uuid)
                case _:
                    due += [_due_at(after), after.alarm_at]
        self.publish(
            Commit(
                ready=ready,
                ended=tuple(ended),
                owed=tuple(entry for change in changes for entry in change.outbox),
                settled=settled,
                unfinished=unfinished,
                limited=tuple(after.execution for before, after in moves if _frees(before, after)),
                unleased=tuple(
                    after.execution.uuid for before, after in moves if _unleases(before, after)
                ),
                signalled=any(
                    change.signals and change.after and isinstance(change.after.state, Active)
                    for change in changes
                ),
                closed=tuple(
                    after.execution.uuid for before, after in moves if _closes(before, after)
                ),
                due_at=_earliest(due),
            )
        )


def _earliest(moments: Iterable[Millis | None]) -> Millis | None:
    return min((at for at in moments if at is not None), default=None)


def _due_at(snapshot: Snapshot) -> Millis | None:
    match snapshot.state:
        case Waiting(due_at=at) | Suspended(due_at=at):
            return at
        case _:
            return None


def _frees(before: Snapshot, after: Snapshot) -> bool:
    """Whether a slot was given back, or one more waits for a slot."""
    if not int(before.head.flags) & _LIMITS or isinstance(after.state, Ready | Lost | Active):
        return False
    return isinstance(before.state, Ready | Lost | Active) or _waits_for_limits(after)


def _waits_for_limits(snapshot: Snapshot) -> bool:
    return isinstance(snapshot.state, Waiting) and snapshot.state.gate is Gate.LIMIT


def _unleases(before: Snapshot, after: Snapshot) -> bool:
    return isinstance(before.state, Active) and not isinstance(after.state, Active)


def _closes(before: Snapshot, after: Snapshot) -> bool:
    """Whether an attempt has ended, but not the run: its output stream is closed."""
    match after.state:
        case Lost():
            return isinstance(before.state, Active)
        case Waiting(next=next) | Ready(next=next):
            return isinstance(before.state, Active) and next.start is Start.RETRY
        case _:
            return False
