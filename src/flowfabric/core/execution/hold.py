"""An operator holds a run back: whatever it waits for, it does not start before it is let go.

It is the same mark a block leaves, `life.blocked`, and the first gate that is asked. What the run
waits for besides goes on meanwhile: time passes, upstreams end, signals arrive.
"""

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import NotEligible
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.gate import admit
from flowfabric.core.execution.lease import not_active, present
from flowfabric.core.execution.model import Ended, Gate, Life, Ready, Snapshot, Suspended, Waiting
from flowfabric.core.execution.status import Blocking, PublicState, public_state

HELD = str(Blocking.OPERATOR)


class Held(Struct, frozen=True):
    id: ExecutionId
    state: PublicState


class Unheld(Struct, frozen=True):
    id: ExecutionId
    state: PublicState


def hold(snapshot: Snapshot | None, now: Millis, detail: str | None = None) -> "Change[Held]":
    """Holds one back that does not run. Holding it again changes nothing; one that is blocked for
    another reason, runs, or was lost while it ran is refused."""
    snapshot = present(snapshot)
    if isinstance(snapshot.state, Ended):
        raise not_active(snapshot)
    if snapshot.life.blocked == HELD:
        return unchanged(Held(snapshot.execution.id, public_state(snapshot)))
    if snapshot.life.blocked is not None:
        raise NotEligible(f"it is blocked already: {snapshot.life.blocked}")
    life = replace(snapshot.life, blocked=HELD, detail=detail)
    after = _moved(snapshot, now, life)
    return Change(Held(snapshot.execution.id, public_state(after)), snapshot, after)


def unhold(snapshot: Snapshot | None, now: Millis) -> "Change[Unheld]":
    """Lets one go that was held back: it waits for the rest, or is ready."""
    snapshot = present(snapshot)
    if isinstance(snapshot.state, Ended):
        raise not_active(snapshot)
    if snapshot.life.blocked != HELD:
        raise NotEligible("it is not held back")
    after = _moved(snapshot, now, replace(snapshot.life, blocked=None, detail=None))
    return Change(Unheld(snapshot.execution.id, public_state(after)), snapshot, after)


def _moved(snapshot: Snapshot, now: Millis, life: Life) -> Snapshot:
    life = replace(life, touched_at=now)
    match snapshot.state:
        case Waiting(gate=Gate.ARRIVAL):
            raise NotEligible("it was refused and is about to end")
        case Waiting(gate=Gate.UNSEALED) | Suspended():
            return snapshot.to(snapshot.state, life=life)
        case Waiting(next=next) | Ready(next=next):
            return snapshot.to(admit(life, next, now, snapshot.head.flags), life=life)
        case _:
            raise NotEligible("only a run that waits can be held back, and this one has begun")
