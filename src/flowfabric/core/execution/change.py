"""A change: what a rule decided. It is written only if the versions it was decided on are
current."""

from typing import Generic, Never, TypeVar, cast
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import Event
from flowfabric.core.execution.model import (
    Active,
    Attempt,
    Ended,
    Flags,
    Outcome,
    Ready,
    Snapshot,
    Suspended,
    Waiting,
)
from flowfabric.core.execution.step import Step
from flowfabric.core.flow.outbox import OutboxEntry, outbox_of, turned
from flowfabric.core.wait.model import DedupRecord, ReceivedSignal, Waitpoint

# What an execution may own although its end is written without a load: outbox entries notify its
# flows, the removed row is the slot it gives back, and reservations are released after the commit.
# Open waitpoints are part of the life; only one that runs out has an alarm to remove, and so has
# the timer that a revocation has kept.
# Plain numbers, because flags are slow and every ending is tested.
_MORE = ~int(Flags.FLOW | Flags.LIMITS | Flags.BUDGETS | Flags.SUSPECT | Flags.WAITPOINTS)
_WAITPOINTS = int(Flags.WAITPOINTS)

T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)


class Change(Struct, Generic[T_co], frozen=True, gc=False):
    """The new value of one execution, its history, and the answer for the caller.

    `before` is what the rule decided on (None: the execution does not exist yet); the store writes
    only if that version is current. `after` is None if there is nothing to write. An `outcome` that
    is an error is raised after the change was applied.

    `steps` are recorded, unless they are already; `forgotten` ones are deleted before.
    `waitpoints` and `signals` are new ones; `counted` are the numbers of earlier signals that a
    suspension has now used; `dedup` records replace those of the same key. `settled` are edges into
    a member of a flow with how their upstream ended (None: open again); `owed` is what the flow is
    owed besides its ending.
    """

    outcome: T_co | FlowFabricError
    before: Snapshot | None = None
    after: Snapshot | None = None
    events: tuple[Event, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    steps: tuple[Step, ...] = ()
    forgotten: tuple[Step, ...] = ()
    waitpoints: tuple[Waitpoint, ...] = ()
    signals: tuple[ReceivedSignal, ...] = ()
    counted: tuple[tuple[int, UUID], ...] = ()
    dedup: tuple[DedupRecord, ...] = ()
    settled: tuple[tuple[UUID, Outcome | None], ...] = ()
    owed: tuple[OutboxEntry, ...] = ()

    def answering(self, outcome: "U | FlowFabricError") -> "Change[U]":
        """The same change with another answer."""
        return cast("Change[U]", replace(self, outcome=outcome))

    @property
    def outbox(self) -> tuple[OutboxEntry, ...]:
        """Everything that is owed to flows after this change."""
        after = self.after
        if after is None:
            return self.owed
        life = after.head.life
        if after.execution.flow is None and not life.flows and not life.awaited_by:
            return self.owed  # most changes
        return self.owed + outbox_of(self.before, after)

    @property
    def alarm(self) -> Millis | None:
        """The alarm after this change."""
        return None if self.after is None else self.after.alarm_at

    @property
    def plain_end(self) -> bool:
        """Whether the ending touches only the lease and the flow outbox: one statement, no load.

        A refusal is not a plain end: a lease that looks expired to its holder may have been
        renewed.
        """
        return (
            not isinstance(self.outcome, FlowFabricError)
            and self.before is not None
            and self.after is not None
            and isinstance(self.before.state, Active)
            and isinstance(self.after.state, Ended)
            and not int(self.before.head.flags) & _MORE
            and not (int(self.before.head.flags) & _WAITPOINTS and self.before.alarm_at)
            and ((lost := self.before.head.life.lapsed) is None or lost.times_out_at is None)
            and not self.attempts
            and not self.steps
            and not self.forgotten
            and not self.owed
            and not self.dedup
        )

    @property
    def plain_release(self) -> bool:
        """Whether the change only moves what waits to another gate or makes it ready, beside edges
        and outbox: it can be written with the endings it counts, in one statement."""
        before, after = self.before, self.after
        return (
            before is not None
            and after is not None
            and isinstance(before.state, Waiting | Suspended)
            and isinstance(after.state, Ready | Waiting | Suspended)
            and after.alarm_at == before.alarm_at
            and not (self.events or self.attempts or self.steps or self.forgotten)
            and not (self.waitpoints or self.signals or self.counted or self.dedup)
        )


def unchanged(outcome: T) -> Change[T]:
    """A change that writes nothing and only answers."""
    return Change(outcome=outcome)


def refused(change: "Change[object]", error: FlowFabricError) -> "Change[Never]":
    """A change that is written although the caller gets an error (an expired lease)."""
    return change.answering(error)


def fold(first: "Change[object]", second: "Change[object]") -> "Change[object]":
    """Two changes of one execution as one write; the second was decided on the first's result."""
    if second.after is None:
        return replace(first, outcome=second.outcome)
    if first.after is None:
        return second
    return Change(
        outcome=second.outcome,
        before=first.before,
        after=second.after,
        events=first.events + second.events,
        attempts=first.attempts + second.attempts,
        steps=first.steps + second.steps,
        forgotten=first.forgotten + second.forgotten,
        waitpoints=first.waitpoints + second.waitpoints,
        signals=first.signals + second.signals,
        counted=first.counted + second.counted,
        dedup=first.dedup + second.dedup,
        settled=first.settled + second.settled,
        owed=first.owed + second.owed + _between(first, second),
    )


def _between(first: "Change[object]", second: "Change[object]") -> tuple[OutboxEntry, ...]:
    """What is owed only between the two: an execution that ended and was replayed owes both."""
    if not (turned(first.before, first.after) and turned(second.before, second.after)):
        return ()
    return outbox_of(first.before, first.after) + outbox_of(second.before, second.after)
