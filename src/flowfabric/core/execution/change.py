"""A change: what a rule decided, to be written only if nothing moved meanwhile."""

from typing import Generic, Never, TypeVar
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import Event
from flowfabric.core.execution.model import Active, Attempt, Ended, Flags, Outcome, Snapshot
from flowfabric.core.execution.step import Step
from flowfabric.core.flow.outbox import OutboxEntry, outbox_of, turned
from flowfabric.core.wait.model import DedupRecord, ReceivedSignal, Waitpoint

# What an execution may own although its end is written unseen: flows are told by outbox entries, a
# slot is given back by the very row that goes, reservations are let go after the commit.
# Numbers, since flags are slow and every ending is asked.
_MORE = ~int(Flags.FLOW | Flags.LIMITS | Flags.BUDGETS | Flags.SUSPECT)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Change(Struct, Generic[T_co], frozen=True, gc=False):
    """The new value of one execution, its history, and the answer for the caller.

    `before` is what the rule decided on (None: the execution does not exist yet); the store
    writes only while that very version stands. `after` is None when nothing is to be written.
    An `outcome` that is an error is raised after the change was applied.

    `waitpoints` are new ones, `signals` newly accepted ones; `counted` are signals (by number)
    accepted earlier that a suspension has used up now; `dedup` replace records of the same key.
    `settled` are edges into a member of a flow with how their upstream ended (None: not settled
    after all), `owed` what is to be done for the flow besides its ending.
    """

    outcome: T_co | FlowFabricError
    before: Snapshot | None = None
    after: Snapshot | None = None
    events: tuple[Event, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    steps: tuple[Step, ...] = ()
    waitpoints: tuple[Waitpoint, ...] = ()
    signals: tuple[ReceivedSignal, ...] = ()
    counted: tuple[tuple[int, UUID], ...] = ()
    dedup: tuple[DedupRecord, ...] = ()
    settled: tuple[tuple[UUID, Outcome | None], ...] = ()
    owed: tuple[OutboxEntry, ...] = ()

    @property
    def outbox(self) -> tuple[OutboxEntry, ...]:
        """All that is owed to flows after this change."""
        return self.owed + outbox_of(self.before, self.after)

    @property
    def alarm(self) -> Millis | None:
        """The alarm that stands after this change."""
        return None if self.after is None else self.after.alarm_at

    @property
    def plain_end(self) -> bool:
        """Whether the ending touches nothing but the lease, and what it owes to a flow: one
        statement, no load.

        A refusal is none: a lease that looks expired to its holder may have been renewed.
        """
        return (
            not isinstance(self.outcome, FlowFabricError)
            and self.before is not None
            and self.after is not None
            and isinstance(self.before.state, Active)
            and isinstance(self.after.state, Ended)
            and not int(self.before.head.flags) & _MORE
            and not self.attempts
            and not self.steps
            and not self.owed
        )


def unchanged(outcome: T) -> Change[T]:
    """Nothing to write, only an answer."""
    return Change(outcome=outcome)


def refused(change: "Change[object]", error: FlowFabricError) -> "Change[Never]":
    """The change is written although the caller gets an error (a lease found expired)."""
    return Change(error, change.before, change.after, change.events, change.attempts)


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
        waitpoints=first.waitpoints + second.waitpoints,
        signals=first.signals + second.signals,
        counted=first.counted + second.counted,
        dedup=first.dedup + second.dedup,
        settled=first.settled + second.settled,
        owed=first.owed + second.owed + _between(first, second),
    )


def _between(first: "Change[object]", second: "Change[object]") -> tuple[OutboxEntry, ...]:
    """What only shows between the two: one that ended and was replayed owes both."""
    if not (turned(first.before, first.after) and turned(second.before, second.after)):
        return ()
    return outbox_of(first.before, first.after) + outbox_of(second.before, second.after)
