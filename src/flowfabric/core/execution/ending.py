"""How an execution is ended from outside, in any state."""

from typing import Any, Never

from msgspec.structs import replace

from flowfabric.core.base.errors import NotTerminal
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.event import Event, EventKind
from flowfabric.core.execution.lease import lease_event
from flowfabric.core.execution.model import Active, Ended, Life, Outcome, Snapshot, Start


def end(
    snapshot: Snapshot,
    now: Millis,
    outcome: Outcome,
    kind: EventKind,
    life: Life,
    reason: str,
) -> "Change[Never]":
    """The change that ends an execution in any state, together with its current attempt. The caller
    fills in the outcome."""
    state = snapshot.state
    lease = state.lease if isinstance(state, Active) else None
    made = snapshot.attempts_made
    ended = Ended(
        outcome=outcome,
        ended_at=now,
        attempt=made - 1 if made else None,
        pending=_pending(snapshot, outcome),
        lease=lease,
    )
    life = replace(
        life,
        started_at=snapshot.started_at,
        losses=snapshot.reclaims,
        not_before=None,
        blocked=None,
        detail=None,
        budget=None,
    )
    if lease is None:
        event = event_of(snapshot, now, kind, {"reason": reason})
    elif kind is EventKind.CANCELLED:
        # The reason that the lease is released is the cancel; why that came is its message.
        event = lease_event(snapshot, now, lease, kind, reason="cancelled", message=reason)
    else:
        event = lease_event(snapshot, now, lease, kind, reason=reason)
    after = snapshot.to(ended, life=life)
    return Change(NotTerminal(), snapshot, after, (event,))


def _pending(snapshot: Snapshot, outcome: Outcome) -> Start | None:
    """The start that does not happen any more. One that failed has run: if its clean-up is over
    between two attempts, it ends after the last one."""
    match snapshot.state:
        case Active() | Ended():
            return None
        case state if snapshot.current_attempt is None and outcome is not Outcome.FAILED:
            return state.next.start
        case _:
            return None


def event_of(snapshot: Snapshot, now: Millis, kind: EventKind, detail: dict[str, Any]) -> Event:
    """An event of an execution without a lease."""
    return Event(
        uuid=snapshot.execution.uuid,
        at=now,
        kind=kind,
        epoch=snapshot.head.epoch,
        attempt=snapshot.current_attempt,
        detail=detail,
    )
