"""Events: one row per transition, written with the change that caused it.

Lease, completion, operator, signal and worker events are projections of the same rows, so that
every transition is reported exactly once, under one numbering. `core.execution.event_views` has
the shapes that subscribers see.
"""

from enum import IntEnum, StrEnum
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Outcome, WorkerIdentity

LeaseChange = Literal["acquired", "renewed", "reclaimed", "released", "expired", "revoked"]
RegistryChange = Literal["registered", "changed", "marked_dead", "expired", "deregistered"]


class EventKind(IntEnum):
    """The transition. Numbers are stored: never reuse one."""

    CLAIMED = 1
    RESUMED = 2
    RECLAIMED = 3
    LEASE_EXPIRED = 5
    LEASE_REVOKED = 6
    LEASE_RENEWED = 7
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
    WORKER_REGISTERED = 60
    WORKER_CHANGED = 61
    WORKER_MARKED_DEAD = 62
    WORKER_EXPIRED = 63
    WORKER_DEREGISTERED = 64


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
    WORKER = "worker"


class Event(Struct, frozen=True, gc=False):
    """A transition about to be written."""

    uuid: UUID
    at: Millis
    kind: EventKind
    epoch: int
    attempt: int | None = None
    worker: WorkerIdentity | None = None
    detail: dict[str, Any] | None = None


class RegistryEvent(Struct, frozen=True):
    """A transition of a worker's entry in the registry, about to be written with it. It belongs to
    no execution; `detail` names the worker."""

    namespace: str
    at: Millis
    kind: EventKind
    detail: dict[str, Any]


class StoredEvent(Struct, frozen=True):
    """A transition as readers see it. `seq` is the cursor. An event of the worker registry has no
    `id` and no lane."""

    seq: int
    id: ExecutionId | None
    namespace: str
    lane: str
    at: Millis
    kind: EventKind
    epoch: int
    attempt: int | None = None
    worker: WorkerIdentity | None = None
    detail: dict[str, Any] | None = None
    flow: UUID | None = None

    @property
    def lease(self) -> "LeaseChange | None":
        """acquired, renewed, reclaimed, released, expired or revoked; None if no lease changed."""
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
    def registry(self) -> "RegistryChange | None":
        """What became of a worker's entry in the registry; None for other events."""
        return _REGISTRY.get(self.kind)

    @property
    def reason(self) -> str | None:
        detail = self.detail or {}
        given = detail.get("reason")
        return str(given) if given is not None else _REASON.get(self.kind)


_LEASE: dict[EventKind, LeaseChange] = {
    EventKind.CLAIMED: "acquired",
    EventKind.RESUMED: "acquired",
    EventKind.LEASE_RENEWED: "renewed",
    EventKind.RECLAIMED: "reclaimed",
    EventKind.LEASE_EXPIRED: "expired",
    EventKind.LEASE_REVOKED: "revoked",
    EventKind.RECLAIMS_EXCEEDED: "revoked",
    EventKind.COMPLETED: "released",
    EventKind.FAILED: "released",
    EventKind.CANCELLED: "released",
    EventKind.EXPIRED: "released",
    EventKind.SKIPPED: "released",
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

_REGISTRY: dict[EventKind, RegistryChange] = {
    EventKind.WORKER_REGISTERED: "registered",
    EventKind.WORKER_CHANGED: "changed",
    EventKind.WORKER_MARKED_DEAD: "marked_dead",
    EventKind.WORKER_EXPIRED: "expired",
    EventKind.WORKER_DEREGISTERED: "deregistered",
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
    EventKind.WAITING_CHILDREN: "waiting_children",
    EventKind.TURNED_AWAY: "budget_exhausted",
    EventKind.RECLAIMS_EXCEEDED: "max_reclaims_exceeded",
}


_KINDS = {
    Family.LEASE: frozenset(_LEASE),
    Family.COMPLETION: frozenset(_COMPLETION),
    Family.OPERATOR: frozenset(_OPERATOR),
    Family.SIGNAL: frozenset({EventKind.SIGNALLED}),
    Family.WORKER: frozenset(_REGISTRY),
}


def kinds_of(family: Family) -> frozenset[EventKind]:
    """The kinds of events in a family."""
    return _KINDS[family]


def belongs_to(event: StoredEvent, family: Family) -> bool:
    """Whether an event is one of a family. The kind alone does not say so: the end of a run
    releases a lease only if it was running."""
    return event.lease is not None if family is Family.LEASE else event.kind in _KINDS[family]
