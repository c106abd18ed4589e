"""Random lives of one execution: rules played one after the other on what the last one wrote."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from msgspec import Struct

from flowfabric.core.base.errors import FlowFabricError, NotEligible
from flowfabric.core.base.time import NO_TIME, Millis
from flowfabric.core.execution import attempt, grant, lease, operator, reclaim
from flowfabric.core.execution.attempts import inline_attempts
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.event import Event
from flowfabric.core.execution.grant import Grantee
from flowfabric.core.execution.lease import Owner, Taking, fence_of
from flowfabric.core.execution.model import (
    Active,
    Attempt,
    Failure,
    Flags,
    Lost,
    Ready,
    Snapshot,
)
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.takeover import end_lost
from tests.kit.lab import TTL, W1, W2
from tests.kit.snapshots import NOW, OPERATOR, after, fresh

POLICY: dict[str, Any] = {
    "retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 40}},
    "timeout_policy": {"attempt_timeout_ms": 50_000},
    "max_replay_count": 3,
    "max_reclaim_count": 4,
}


def running(snapshot: Snapshot | None = None, now: Millis = NOW, **members: Any) -> Snapshot:
    """The execution, taken by a worker; a fresh one if none is given."""
    return after(take(snapshot or fresh(**members), now))


def take(snapshot: Snapshot, now: Millis) -> Change[Any]:
    if not isinstance(snapshot.state, Ready | Lost):
        raise NotEligible
    if snapshot.head.flags & Flags.SPENT:
        return end_lost(snapshot, now, snapshot.state.next.attempt - 1)
    lease_id = UUID(int=snapshot.head.epoch + 1)
    return lease.take(snapshot, now, snapshot.state.next, Taking(lease_id, W1, TTL))


_GRANTEE = Grantee(W2.id, frozenset(), Millis(10_000))

Deed = Callable[[Snapshot, Millis, Owner], Change[Any]]


def _reclaim(snapshot: Snapshot, now: Millis, owner: Owner) -> Change[Any]:
    return reclaim.reclaim(snapshot, now, Taking(UUID(int=1 << 64 | now), W2, TTL))


def _step(now: Millis) -> Step:
    return Step(0, now - NOW, "sleep", now - NOW, b"")


BY_OWNERS: dict[str, Deed] = {
    "complete": lambda held, now, owner: attempt.complete(held, now, owner, b"done"),
    "fail": lambda held, now, owner: attempt.fail(held, now, owner, Failure("boom")),
    "fail for good": lambda held, now, owner: attempt.fail(
        held, now, owner, Failure("boom", "permanent")
    ),
    "delay": lambda held, now, owner: attempt.delay(
        held, now, owner, Millis(now + 50), step=_step(now)
    ),
    "hand back": attempt.hand_back,
    "renew": lambda held, now, owner: lease.renew(held, now, owner, TTL),
    "cancel owned": lambda held, now, owner: operator.cancel_owned(held, now, owner, "enough"),
}
DEEDS: dict[str, Deed] = {
    **BY_OWNERS,
    "take": lambda held, now, owner: take(held, now),
    "grant": lambda held, now, owner: grant.issue_grant(held, now, _GRANTEE),
    "reclaim grant": lambda held, now, owner: reclaim.issue_reclaim_grant(held, now, _GRANTEE),
    "reclaim": _reclaim,
    "revoke": lambda held, now, owner: lease.revoke(held, now, reason="enough"),
    "mark": lambda held, now, owner: lease.mark_expired(held, now),
    "due": lambda held, now, owner: operator.due(held, now, 0.5, NO_TIME, UUID(int=7)),
    "cancel": lambda held, now, owner: operator.cancel(held, now, OPERATOR, "enough"),
    "replay": lambda held, now, owner: operator.replay(held, now),
    "block": lambda held, now, owner: operator.block(held, now, "paused_by_operator"),
    "unblock": lambda held, now, owner: operator.unblock(held, now),
    "priority": lambda held, now, owner: operator.change_priority(held, now, 7),
}


class Act(Struct, frozen=True):
    """What is done, how much later, and by whom: 0 is the current owner, 1 the one before, …"""

    deed: str
    pause: int
    whose: int


# Claims, rescues and replays more often: most of a life would be spent waiting for one.
_ACTS = [
    Act(deed, pause, whose)
    for deed in [*DEEDS, "take", "take", "take", "reclaim", "replay"]
    for pause in (0, 1, 60, TTL)
    for whose in (0, 0, 0, 1, 2)
]
lives = st.lists(st.sampled_from(_ACTS), min_size=20, max_size=60)


class Turn(Struct, frozen=True):
    """One act that was answered, and what it was decided on."""

    act: Act
    owner: Owner
    now: Millis
    before: Snapshot
    change: Change[Any]


def play(life: list[Act]) -> Iterator[Turn]:
    """The life of an execution under POLICY; what was refused without a change is left out."""
    now, snapshot = NOW, fresh(policy=POLICY)
    owners = [Owner(UUID(int=0), 0, UUID(int=0))]
    for act in life:
        now = Millis(now + act.pause)
        owner = owners[max(0, len(owners) - 1 - act.whose)]
        try:
            change = DEEDS[act.deed](snapshot, now, owner)
        except FlowFabricError:
            continue
        yield Turn(act, owner, now, snapshot, change)
        snapshot = change.after or snapshot
        if isinstance(snapshot.state, Active):
            current = Owner.of(fence_of(snapshot, snapshot.state.lease))
            owners += [current] if current != owners[-1] else []


class Book:
    """One execution as a store keeps it: what stands, and what was written beside it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.events: list[Event] = []
        self.attempts: dict[int, Attempt] = {}
        self.steps: list[Step] = []

    def write(self, change: Change[Any]) -> None:
        if change.after is None:
            return
        assert change.before == self.snapshot
        self.snapshot = change.after
        self.events += change.events
        self.attempts |= {record.index: record for record in change.attempts}
        self.steps += change.steps

    def known(self) -> dict[int, Attempt]:
        """Every attempt as a reader sees it: history first, then what is in hand."""
        return {record.index: record for record in inline_attempts(self.snapshot)} | self.attempts

    def all(self) -> tuple[Any, ...]:
        return self.snapshot, self.events, self.attempts, self.steps
