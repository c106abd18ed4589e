"""The gates before `ready`, in one fixed order: an execution waits at the first closed gate.

held (unsealed, blocked) → dependencies → not before → budget → limits → ready. The gates that were
not reached yet are stored in the execution's life, so passing one gate checks the rest.

The limits gate is the last, and only `release` opens it: every execution that uses a quota waits
there, if only for a moment, unless it is admitted when it is created (`core/limit/at_submission`).
Budgets are checked after the claim: an execution that was sent back
waits at the budget gate until the budget has room again.
"""

from collections.abc import Iterator

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import (
    EMPTY_LIFE,
    Flags,
    Gate,
    Life,
    Next,
    Ready,
    Snapshot,
    Waiting,
)
from flowfabric.core.execution.status import Blocking
from flowfabric.core.flow.join import JoinState

DELAYS = frozenset({Gate.DELAY, Gate.BACKOFF, Gate.RESUME_DELAY, Gate.WORKER_DELAY})
"""The gates that time alone opens."""

LOOK_AGAIN = Millis(5_000)
"""How often it is asked whether the cause of a block is gone."""

_CAUSES = frozenset({Blocking.BUDGET, Blocking.QUOTA, Blocking.CAPABLE_WORKER})

# A plain number, because flags are slow and every submission is tested.
_LIMITS = int(Flags.LIMITS)


def admit(life: Life, next: Next, now: Millis, flags: Flags) -> Waiting | Ready:
    """The state at `now` of an execution that wants to run."""
    if life is EMPTY_LIFE:  # most executions: nothing has happened to it yet
        return Waiting(gate=Gate.LIMIT, next=next) if int(flags) & _LIMITS else Ready(next=next)
    for gate in closed(life, now, flags):
        return Waiting(gate=gate, next=next, due_at=_due_at(gate, life, now))
    return Ready(next=next)


def gated(
    snapshot: Snapshot, now: Millis, next: Next, life: Life, flags: Flags | None = None
) -> Snapshot:
    """An execution that wants to run, with this life and these flags: at its first closed gate, or
    ready."""
    flags = snapshot.head.flags if flags is None else flags
    return snapshot.to(admit(life, next, now, flags), life=life, flags=flags)


def cause_of_block(life: Life) -> Blocking | None:
    """What a block ends with, if it does so by itself. Other blocks end when a person says so, and
    the code gate looks after runs that are blocked by code."""
    if life.blocked not in _CAUSES or life.code is not None:
        return None
    return Blocking(life.blocked)


def _due_at(gate: Gate, life: Life, now: Millis) -> Millis | None:
    if gate in DELAYS:
        return life.not_before
    if gate is Gate.BLOCKED and cause_of_block(life) is not None:
        return Millis(now + LOOK_AGAIN)
    return None


def closed(life: Life, now: Millis, flags: Flags) -> Iterator[Gate]:
    """Every closed gate, in order."""
    if life.unsealed:
        yield Gate.UNSEALED
    if life.blocked is not None:
        yield Gate.BLOCKED
    if _waits_for_upstreams(life):
        yield Gate.DEPENDENCIES
    if life.not_before is not None and life.not_before > now:
        yield life.delay or Gate.DELAY
    if life.budget is not None:
        yield Gate.BUDGET
    if int(flags) & _LIMITS:
        yield Gate.LIMIT


def _waits_for_upstreams(life: Life) -> bool:
    """A clean-up does not wait for what the run has waited for."""
    join = life.join
    if join is None or not join.n or life.cleanup is not None:
        return False
    return join.state is not JoinState.SATISFIED
