"""Events: one row per transition, written with the change that caused it.

Lease, completion, operator and signal events are projections of the same row, so that every
transition is reported exactly once.
"""

from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Outcome, WorkerIdentity


class EventKind(IntEnum):
    """The transition. Numbers are stored: never reuse one."""

    CLAIMED = 1
    RESUMED = 2
    RECLAIMED = 3
    LEASE_EXPIRED = 5
    LEASE_REVOKED = 6
    COMPLETED = 10
    FAILED = 11
    CANCELLED = 12
    EXPIRED = 13
    SKIPPED = 14
    RECLAIMS_EXCEEDED = 15
    RETRY_SCHEDULED = 20
    DELAYED = 21
    HANDED_BACK = 22
    SUSPENDED = 23
    WAITING_CHILDREN = 24
    TURNED_AWAY = 25
    BLOCKED_BY_CODE = 26
    CLEANING_UP = 27
    PRIORITY_CHANGED = 30
    REPLAYED = 31
    FLOW_CANCEL_REQUESTED = 32
    STEP_RENAMED = 33
    STEP_SKIPPED = 34
    SIGNALLED = 40
    WOKEN = 41
    ESCALATED = 42
    WAITPOINT_CLOSED = 43
    PROBATION = 50
    CLEARED = 51


ENDING_KINDS = {
    Outcome.SUCCESS: EventKind.COMPLETED,
    Outcome.FAILED: EventKind.FAILED,
    Outcome.CANCELLED: EventKind.CANCELLED,
    Outcome.EXPIRED: EventKind.EXPIRED,
}
"""The event of an ending."""


class Family(StrEnum):
    """A filter over the one table of events."""

    LEASE = "lease"
    COMPLETION = "completion"
    OPERATOR = "operator"
    SIGNAL = "signal"


class Event(Struct, frozen=True, gc=False):
    """A transition about to be written."""

    uuid: UUID
    at: Millis
    kind: EventKind
    epoch: int
    attempt: int | None = None
    worker: WorkerIdentity | None = None
    detail: dict[str, Any] | None = None


class StoredEvent(Struct, frozen=True):
    """A transition as readers see it. `seq` is the cursor."""

    seq: int
    id: ExecutionId
    namespace: str
    lane: str
    at: Millis
    kind: EventKind
    epoch: int
    attempt: int | None = None
    worker: WorkerIdentity | None = None
    detail: dict[str, Any] | None = None

    @property
    def lease(self) -> str | None:
        """acquired, reclaimed, released, expired or revoked; None if no lease changed."""
        if self.kind in _RELEASING and self.worker is None:
            return None
        return _LEASE.get(self.kind)

    @property
    def completion(self) -> Outcome | None:
        return _COMPLETION.get(self.kind)

    @property
    def operator(self) -> str | None:
        return _OPERATOR.get(self.kind)

    @property
    def reason(self) -> str | None:
        detail = self.detail or {}
        given = detail.get("reason")
        return str(given) if given is not None else _REASON.get(self.kind)


_LEASE = {
    EventKind.CLAIMED: "acquired",
    EventKind.RESUMED: "acquired",
    EventKind.RECLAIMED: "reclaimed",
    EventKind.LEASE_EXPIRED: "expired",
    EventKind.LEASE_REVOKED: "revoked",
    EventKind.RECLAIMS_EXCEEDED: "revoked",
    EventKind.COMPLETED: "released",
    EventKind.FAILED: "released",
    EventKind.CANCELLED: "released",
    EventKind.EXPIRED: "released",
    EventKind.RETRY_SCHEDULED: "released",
    EventKind.DELAYED: "released",
    EventKind.HANDED_BACK: "released",
    EventKind.SUSPENDED: "released",
    EventKind.WAITING_CHILDREN: "released",
    EventKind.TURNED_AWAY: "released",
    EventKind.BLOCKED_BY_CODE: "released",
}
_RELEASING = frozenset(kind for kind, name in _LEASE.items() if name == "released")

_COMPLETION = {
    EventKind.COMPLETED: Outcome.SUCCESS,
    EventKind.FAILED: Outcome.FAILED,
    EventKind.RECLAIMS_EXCEEDED: Outcome.FAILED,
    EventKind.CANCELLED: Outcome.CANCELLED,
    EventKind.EXPIRED: Outcome.EXPIRED,
    EventKind.SKIPPED: Outcome.SKIPPED,
}

_OPERATOR = {
    EventKind.PRIORITY_CHANGED: "priority_changed",
    EventKind.REPLAYED: "replayed",
    EventKind.FLOW_CANCEL_REQUESTED: "flow_cancel_requested",
    EventKind.STEP_RENAMED: "step_renamed",
    EventKind.STEP_SKIPPED: "step_skipped",
}

_REASON = {
    EventKind.RESUMED: "claim_resumed",
    EventKind.COMPLETED: "completed",
    EventKind.FAILED: "failed",
    EventKind.CANCELLED: "cancelled",
    EventKind.RETRY_SCHEDULED: "failed_retry_scheduled",
    EventKind.DELAYED: "delayed",
    EventKind.HANDED_BACK: "handed_back",
    EventKind.SUSPENDED: "suspended",
    EventKind.TURNED_AWAY: "budget_exhausted",
    EventKind.RECLAIMS_EXCEEDED: "max_reclaims_exceeded",
}


def kinds_of(family: Family) -> frozenset[EventKind]:
    """The kinds of events in a family."""
    match family:
        case Family.LEASE:
            return frozenset(_LEASE)
        case Family.COMPLETION:
            return frozenset(_COMPLETION)
        case Family.OPERATOR:
            return frozenset(_OPERATOR)
        case Family.SIGNAL:
            return frozenset({EventKind.SIGNALLED})
