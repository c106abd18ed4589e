"""Joins: when an execution that depends on others may run, and when it never will.

A join counts how its upstreams ended, each edge once. It is part of the execution's life, so the
version of the state row guards it: whatever the order of endings, it fires once.
"""

from collections.abc import Sequence
from enum import StrEnum
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import replace

from flowfabric.core.base.document import Document
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.outcome import Outcome


class On(StrEnum):
    """Which ending of the upstream satisfies an edge."""

    SUCCESS = "on_success"
    FAILURE = "on_failure"
    ANY_END = "on_any_end"


class Rest(StrEnum):
    """What becomes of upstreams that still run when the join has fired."""

    CANCEL = "cancel_remaining"
    LET_RUN = "let_run"


class AllOf(Struct, frozen=True, tag=True):
    """Runs when every upstream has ended as its edge asks; one that does not ends the hope."""


class AnyOf(Struct, frozen=True, tag=True):
    """Runs after the first upstream that ended as its edge asks."""

    rest: Rest = Rest.CANCEL


class Quorum(Struct, frozen=True, tag=True):
    """Runs after `k` upstreams that ended as their edges ask."""

    k: int
    rest: Rest = Rest.CANCEL


JoinPolicy = AllOf | AnyOf | Quorum


class JoinState(StrEnum):
    PENDING = "pending"
    SATISFIED = "satisfied"
    IMPOSSIBLE = "impossible"


class Edge(Struct, frozen=True, omit_defaults=True, gc=False):
    """One execution depends on another. `input` names the parameter of the downstream that gets the
    upstream's result (a path, where it is inside of one). It is written once, except that an edge
    which was staged without an input may get one when it is applied, which makes it `late`. It is
    `unapplied` as long as a client has staged it and not yet applied it by a second call; that
    client is told so, and nothing else depends on it."""

    id: UUID
    flow: UUID
    upstream: UUID
    downstream: UUID
    on: On = On.SUCCESS
    input: str | None = None
    created_at: Millis = Millis(0)
    late: bool = False
    unapplied: bool = False


class EdgeState(Struct, frozen=True, gc=False):
    """An edge, and how its upstream ended (None: not settled yet)."""

    edge: Edge
    outcome: Outcome | None = None

    @property
    def satisfied(self) -> bool:
        return self.outcome is not None and satisfies(self.edge.on, self.outcome)


class Join(Document, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The group of all edges into one execution. `inputs` says whether any of them passes data, and
    `last` is the edge that was the last one needed. It is kept for joins that pass data, and only
    where that edge was counted alone.

    `floors` are edges that a replay has opened again, with the version of their upstream at that
    moment: an ending from before it was counted already, and does not count a second time. `rounds`
    say the same by how often the upstream had been replayed when it last ended (-1: never ended),
    for readers who see an ended upstream and not the version of its ending.
    """

    policy: JoinPolicy = AllOf()
    n: int = 0
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    state: JoinState = JoinState.PENDING
    fired_at: Millis | None = None
    inputs: bool = False
    last: str | None = None
    floors: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)

    @property
    def needed(self) -> int:
        match self.policy:
            case AllOf():
                return self.n
            case AnyOf():
                return min(1, self.n)
            case Quorum(k=k):
                return min(k, self.n) if self.n == 0 else k

    @property
    def is_open(self) -> bool:
        """Whether its member waits for upstreams. Without any edge it waits for none, though the
        join has not fired."""
        return self.n > 0 and self.state is JoinState.PENDING

    @property
    def lacks_edges(self) -> bool:
        """Whether it asks for more upstreams than it has, and so waits for further edges."""
        return self.is_open and self.n < self.needed

    @property
    def running(self) -> int:
        return self.n - self.succeeded - self.failed - self.skipped

    @property
    def cancels_rest(self) -> bool:
        return not isinstance(self.policy, AllOf) and self.policy.rest is Rest.CANCEL


_FAILURES = frozenset({Outcome.FAILED, Outcome.EXPIRED})


def satisfies(on: On, outcome: Outcome) -> bool:
    match on:
        case On.SUCCESS:
            return outcome is Outcome.SUCCESS
        case On.FAILURE:
            return outcome in _FAILURES
        case On.ANY_END:
            return True


def count(join: Join, on: On, outcome: Outcome) -> Join:
    """The join after one more edge was settled; it does not fire here."""
    if satisfies(on, outcome):
        return replace(join, succeeded=join.succeeded + 1)
    if outcome is Outcome.SKIPPED:
        return replace(join, skipped=join.skipped + 1)
    return replace(join, failed=join.failed + 1)


def remember_last(join: Join, satisfied: Sequence[Edge]) -> Join:
    """The join after these edges were satisfied at once, and counted. One that had enough before
    keeps what it knows."""
    if not join.inputs or not satisfied or join.succeeded - len(satisfied) >= join.needed:
        return join
    return replace(join, last=satisfied[0].id.hex if len(satisfied) == 1 else None)


def evaluate(join: Join, now: Millis) -> Join:
    """The join, fired if that is decided now. One that has fired stays as it is, and one that
    asks for more edges than it has waits for them."""
    if join.state is not JoinState.PENDING or join.n < join.needed:
        return join
    if join.succeeded >= join.needed:
        return replace(join, state=JoinState.SATISFIED, fired_at=now)
    if join.failed + join.skipped > join.n - join.needed:
        return replace(join, state=JoinState.IMPOSSIBLE, fired_at=now)
    return join
