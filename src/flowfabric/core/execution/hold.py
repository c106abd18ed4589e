"""An operator holds a run back: it does not start before it is released.

A hold uses the same mark as a block, `life.blocked`, at the first gate. Other waits of the run
continue: time passes, upstreams end, signals arrive.
"""

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import NotEligible
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.gate import gated
from flowfabric.core.execution.lease import unended
from flowfabric.core.execution.model import Gate, Life, Ready, Snapshot, Suspended, Waiting
from flowfabric.core.execution.status import Blocking, PublicState, public_state

HELD = str(Blocking.OPERATOR)


class Held(Struct, frozen=True):
    id: ExecutionId
    state: PublicState


class Unheld(Struct, frozen=True):
    id: ExecutionId
    state: PublicState


def hold(snapshot: Snapshot | None, now: Millis, detail: str | None = None) -> "Change[Held]":
    """Holds back an execution that is not running. Holding it again changes nothing. Refused if it
    is blocked for another reason, is running, or was lost while it ran."""
    snapshot = unended(snapshot)
    if snapshot.life.blocked == HELD:
        return unchanged(Held(snapshot.execution.id, public_state(snapshot)))
    if snapshot.life.blocked is not None:
        raise NotEligible(f"{snapshot.run} is already blocked: {snapshot.life.blocked}")
    life = replace(snapshot.life, blocked=HELD, detail=detail)
    after = _moved(snapshot, now, life)
    return Change(Held(snapshot.execution.id, public_state(after)), snapshot, after)


def unhold(snapshot: Snapshot | None, now: Millis) -> "Change[Unheld]":
    """Releases a held execution: it waits for its other gates, or is ready."""
    snapshot = unended(snapshot)
    if snapshot.life.blocked != HELD:
        raise NotEligible(f"{snapshot.run} is not held back")
    after = _moved(snapshot, now, replace(snapshot.life, blocked=None, detail=None))
    return Change(Unheld(snapshot.execution.id, public_state(after)), snapshot, after)


def _moved(snapshot: Snapshot, now: Millis, life: Life) -> Snapshot:
    life = replace(life, touched_at=now)
    match snapshot.state:
        case Waiting(gate=Gate.INBOX):
            raise NotEligible(f"{snapshot.run} was refused and is about to end")
        case Waiting(gate=Gate.UNSEALED) | Suspended():
            return snapshot.to(snapshot.state, life=life)
        case Waiting(next=next) | Ready(next=next):
            return gated(snapshot, now, next, life)
        case _:
            raise NotEligible(f"{snapshot.run} has started; only a waiting run can be held back")
