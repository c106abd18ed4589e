"""What follows a commit: subscribers hear what has changed. Everything here is a hint; what a crash
leaves undone is found by the sweep or at the poll floor."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.time import Millis, earliest
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.code import ReleasedToCode
from flowfabric.core.execution.model import (
    WITH_SLOT,
    Active,
    Ended,
    Execution,
    Flags,
    Lost,
    Ready,
    Snapshot,
    Start,
    Suspended,
    Waiting,
)
from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.outbox import OutboxEntry
from flowfabric.core.limit.at_submission import waits_at_limit
from flowfabric.core.limit.unclaimable import counted_start
from flowfabric.engine.commit.observer import watching
from flowfabric.store.contract import Store
from flowfabric.store.hints import NOTHING, Topic, Topics

_LIMITS = int(Flags.LIMITS)


class Commit(Struct, frozen=True, kw_only=True):
    """What has changed. `created` are new; `ready`: there is work to claim, `ready_here`: for
    workers of this process first, others find it a second later; `ended` and `ended_flows` are
    over; `owed` is new in the outboxes of flows; members that are `settled` have ended and left no
    edge open, and a flow is `unfinished` if a member goes on after that; `limited` have given
    room back, of those `unbegun` (as they were before) had been admitted and not begun, `queued`
    have come to wait for limits without having had a slot, and `freed` have
    ended and given a slot back for sure, by a statement that was sent after so many `looks` at
    lines; `unleased` lost their lease or gave it up; `signalled`:
    a run has received a signal while it runs; `closed` have ended an attempt and go on, and
    `framed` have appended to their output streams; something is due at `due_at`, the earliest
    moment;
    `reopened`: a lane or a worker has changed, so that other work can be claimed."""

    created: tuple[Snapshot, ...] = ()
    ready: bool = False
    ready_here: bool = False
    ended: tuple[UUID, ...] = ()
    ended_flows: tuple[Flow, ...] = ()
    owed: tuple[OutboxEntry, ...] = ()
    settled: frozenset[UUID] = frozenset()
    unfinished: frozenset[UUID] = frozenset()
    limited: tuple[Execution, ...] = ()
    unbegun: tuple[Snapshot, ...] = ()
    queued: tuple[Execution, ...] = ()
    freed: tuple[Execution, ...] = ()
    looks: int = 0
    unleased: tuple[UUID, ...] = ()
    signalled: bool = False
    closed: tuple[UUID, ...] = ()
    framed: tuple[UUID, ...] = ()
    due_at: Millis | None = None
    reopened: bool = False

    @property
    def topics(self) -> Topics:
        """What other tasks and processes get a hint of."""
        topics: Topics = Topic.WORK if self.ready else NOTHING
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
        """Calls these after every commit of this process from now on, in this order."""
        self._subscribers += subscribers

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers = tuple(each for each in self._subscribers if each is not subscriber)

    def publish(self, commit: Commit) -> None:
        for subscriber in self._subscribers:
            subscriber.committed(commit)
        if commit.ready_here:
            self._store.hints.wake(Topic.WORK)
        if topics := commit.topics:
            self._store.hints.send(topics)

    def due(self, at: Millis) -> None:
        self.publish(Commit(due_at=at))

    def claimable(self) -> None:
        self.publish(Commit(reopened=True))

    def framed(self, uuids: Iterable[UUID]) -> None:
        self.publish(Commit(framed=tuple(uuids)))

    def created(self, snapshots: Iterable[Snapshot], full: Collection[int] = ()) -> None:
        """New runs; the lines of those in `full`, by the numbers of their ids, need no look."""
        found = tuple(snapshots)
        watching().created(found)
        waiting = [each for each in found if not isinstance(each.state, Ready)]
        is_any_ready = len(waiting) < len(found)
        if full:
            waiting = [each for each in waiting if each.execution.uuid.int not in full]
        due = [*map(_due_at, waiting), *[each.deadline_at for each in found]]
        self.publish(
            Commit(
                created=found,
                ready=is_any_ready,
                queued=tuple([each.execution for each in waiting if waits_at_limit(each)]),
                due_at=earliest(due),
            )
        )

    def applied(
        self,
        changes: Sequence[Change[Any]],
        settled: frozenset[UUID] = frozenset(),
        unfinished: frozenset[UUID] = frozenset(),
        looks: int | None = None,
    ) -> None:
        """With `looks`, the runs that have ended have ended now, and not before a reply was lost
        (see `Commit.freed`)."""
        watching().applied(changes)
        found = _Effects()
        for change in changes:
            found.add(change)
        self.publish(found.commit(settled, unfinished, looks))


class _Effects:
    """What changes have done, collected in one pass: every ending goes through here."""

    def __init__(self) -> None:
        self._ready = self._ready_here = self._signalled = False
        self._ended: list[UUID] = []
        self._owed: list[OutboxEntry] = []
        self._limited: list[Execution] = []
        self._unbegun: list[Snapshot] = []
        self._queued: list[Execution] = []
        self._freed: list[Execution] = []
        self._unleased: list[UUID] = []
        self._closed: list[UUID] = []
        self._due: list[Millis | None] = []

    def add(self, change: Change[Any]) -> None:
        before, after = change.before, change.after
        self._owed += change.outbox
        if before is None or after is None:
            return
        uuid, state = after.execution.uuid, after.state
        if isinstance(before.state, Active) and not isinstance(state, Active):
            self._unleased.append(uuid)
        if int(before.head.flags) & _LIMITS:
            self._add_limited(before, after)
        match state:
            case Ended():
                self._ended.append(uuid)
            case Ready() if isinstance(change.outcome, ReleasedToCode):
                self._ready_here = True
            case Ready() | Lost():
                self._ready = True
            case _:
                self._due += [_due_at(after), after.alarm_at]
                self._signalled |= bool(change.signals) and isinstance(state, Active)
        if not isinstance(state, Ended) and _closes(before, after):
            self._closed.append(uuid)

    def _add_limited(self, before: Snapshot, after: Snapshot) -> None:
        """One with limits that gave a slot back, or waits for one."""
        if isinstance(before.state, WITH_SLOT):
            if isinstance(after.state, Ended):
                self._freed.append(after.execution)
            elif not isinstance(after.state, WITH_SLOT):
                self._limited.append(after.execution)
                if counted_start(before) and after.head.epoch == before.head.epoch:
                    self._unbegun.append(before)
        elif waits_at_limit(after):
            self._queued.append(after.execution)

    def commit(
        self, settled: frozenset[UUID], unfinished: frozenset[UUID], looks: int | None
    ) -> Commit:
        if looks is None:
            self._limited += self._freed
            self._freed.clear()
        return Commit(
            ready=self._ready,
            ready_here=self._ready_here,
            ended=tuple(self._ended),
            owed=tuple(self._owed),
            settled=settled,
            unfinished=unfinished,
            limited=tuple(self._limited),
            unbegun=tuple(self._unbegun),
            queued=tuple(self._queued),
            freed=tuple(self._freed),
            looks=looks or 0,
            unleased=tuple(self._unleased),
            signalled=self._signalled,
            closed=tuple(self._closed),
            due_at=earliest(self._due),
        )


def _due_at(snapshot: Snapshot) -> Millis | None:
    match snapshot.state:
        case Waiting(due_at=at) | Suspended(due_at=at):
            return at
        case _:
            return None


def _closes(before: Snapshot, after: Snapshot) -> bool:
    """Whether an attempt has ended, but not the run: its output stream is closed."""
    match after.state:
        case Lost():
            return isinstance(before.state, Active)
        case Waiting(next=next) | Ready(next=next):
            return isinstance(before.state, Active) and next.start is Start.RETRY
        case _:
            return False
