"""The door to `ready`: gates are asked in one fixed order and work waits at the first closed one.

held (unsealed, blocked) → dependencies → not before → budget → limits → ready. What has not been
reached yet travels in the execution's life, so passing one gate asks the rest.

The limits gate is the last one and opened by `release` only: whoever uses a quota waits there, if
only for a moment. A budget is asked after the take: one that was turned away waits at its gate
until the budget has room again.
"""

from collections.abc import Iterator

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Flags, Gate, Life, Next, Ready, Waiting
from flowfabric.core.flow.join import JoinState

DELAYS = frozenset({Gate.DELAY, Gate.BACKOFF, Gate.RESUME_DELAY, Gate.WORKER_DELAY})
"""The gates that time alone opens."""


def admit(life: Life, next: Next, now: Millis, flags: Flags) -> Waiting | Ready:
    """Where an execution that wants to run stands at `now`."""
    for gate in closed(life, now, flags):
        due_at = life.not_before if gate in DELAYS else None
        return Waiting(gate=gate, next=next, due_at=due_at)
    return Ready(next=next)


def closed(life: Life, now: Millis, flags: Flags) -> Iterator[Gate]:
    """Every gate that is closed, in the order they are asked."""
    if life.unsealed:
        yield Gate.UNSEALED
    if life.blocked is not None:
        yield Gate.BLOCKED
    if life.join is not None and life.join.state is not JoinState.SATISFIED:
        yield Gate.DEPENDENCIES
    if life.not_before is not None and life.not_before > now:
        yield life.delay or Gate.DELAY
    if life.budget is not None:
        yield Gate.BUDGET
    if flags & Flags.LIMITS:
        yield Gate.LIMIT
