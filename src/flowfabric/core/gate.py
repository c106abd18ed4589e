"""The door to `ready`: gates are asked in one fixed order and work waits at the first closed one.

held (unsealed, blocked) → dependencies → not before → limits → ready. What has not been
reached yet travels in the execution's life, so passing one gate asks the rest.
"""

from flowfabric.core.execution import Gate, Life, Next, Ready, Waiting
from flowfabric.core.join import JoinState
from flowfabric.core.time import Millis

DELAYS = frozenset({Gate.DELAY, Gate.BACKOFF, Gate.RESUME_DELAY, Gate.WORKER_DELAY})
"""The gates that time alone opens."""


def admit(life: Life, next: Next, now: Millis) -> Waiting | Ready:
    """Where an execution that wants to run stands at `now`."""
    if life.unsealed:
        return Waiting(gate=Gate.UNSEALED, next=next)
    if life.blocked is not None:
        return Waiting(gate=Gate.BLOCKED, next=next)
    if life.join is not None and life.join.state is not JoinState.SATISFIED:
        return Waiting(gate=Gate.DEPENDENCIES, next=next)
    if life.not_before is not None and life.not_before > now:
        return Waiting(gate=life.delay or Gate.DELAY, next=next, due_at=life.not_before)
    return Ready(next=next)
