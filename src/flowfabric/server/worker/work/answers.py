"""What workers get. `outcome` says what happened; members that do not apply are left out."""

from typing import Any, Literal

from msgspec import UNSET, Struct

from flowfabric.server.http.errors import ErrorBody
from flowfabric.server.http.wire import Json


class CancelRequest(Struct):
    """The run is to end, and its owner may clean up until then."""

    until: int
    reason: str
    outcome: str


class StepOnRecord(Struct, omit_defaults=True):
    name: str
    occurrence: int
    position: int
    value: Json
    recorded_at: int | None = None


class ResumeSignal(Struct, omit_defaults=True):
    """A signal that the run was suspended for."""

    signal_id: str
    name: str
    waitpoint_id: str
    waitpoint_key: str
    accepted_at: int
    source_type: str = ""
    source_identity: str = ""
    category: str = ""
    payload_json: Json = UNSET
    payload: str | None = None


class ClaimedRun(Struct, omit_defaults=True, kw_only=True):
    """A run and the lease on it. The input is `payload_json` if it was submitted as JSON, else
    `payload` in base64. The lease ends at `expires_at` unless it is renewed. `traceparent` is the
    trace that the run was submitted in."""

    execution_id: str
    kind: str
    namespace: str
    lane: str
    attempt_index: int
    attempt_id: str
    lease_id: str
    lease_epoch: int
    lease_ms: int
    expires_at: int
    handle: str
    started_as: Literal["initial", "retry", "replay", "reclaim", "resume"]
    created_at: int
    priority: int
    tags: dict[str, str]
    steps: list[StepOnRecord]
    signals: list[ResumeSignal]
    payload_json: Json = UNSET
    payload: str | None = None
    payload_encoding: str | None = None
    flow_id: str | None = None
    attempt_times_out_at: int | None = None
    deadline_at: int | None = None
    retries: int = 0
    max_retries: int = 0
    cancel_requested: CancelRequest | None = None
    traceparent: str | None = None


class ClaimedWork(Struct):
    """`retry_after_ms` is how long to wait before the next request; 0 means at once."""

    claims: list[ClaimedRun]
    retry_after_ms: int


class RenewedLease(Struct, omit_defaults=True):
    """In the order of the request. Without `error` the lease is renewed; with `cancel_requested`
    the worker must stop, clean up, and say so with `finish-cleanup`."""

    execution_id: str
    status: int
    expires_at: int | None = None
    cancel_requested: CancelRequest | None = None
    error: ErrorBody | None = None


class RenewedLeases(Struct):
    leases: list[RenewedLease]


class RunCompleted(Struct):
    execution_id: str
    outcome: Literal["completed"] = "completed"


class AttemptFailed(Struct, omit_defaults=True):
    """`cleaning_up`: the failure is final, but the lease stays until what was done is undone."""

    execution_id: str
    outcome: Literal["retry_scheduled", "terminal_failed", "cleaning_up"]
    delay_until: int | None = None
    next_attempt_index: int | None = None
    cleanup_until: int | None = None


Parking = Literal["delayed", "released", "waiting_for_children"]


class RunParked(Struct):
    """The lease is given up; the same attempt goes on later."""

    execution_id: str
    outcome: Parking
    public_state: str


class OwnerCancelled(Struct):
    execution_id: str
    public_state: str
    outcome: Literal["cancelled", "cleaned_up"]


class Noted(Struct):
    outcome: Literal["recorded"] = "recorded"


class StepRecorded(Struct):
    """`value` is what is recorded; that of an earlier call if the step was there already."""

    outcome: Literal["recorded", "already_recorded"]
    name: str
    occurrence: int
    position: int
    value: Json


class FramesAppended(Struct, omit_defaults=True):
    """`frame_count` is how many frames the stream has had with these, `summary_version` the version
    of the summary after them, if one was a patch of it."""

    outcome: Literal["appended"]
    ids: list[str]
    frame_count: int | None = None
    summary_version: int | None = None


class StepList(Struct):
    steps: list[StepOnRecord]


class BudgetsSpent(Struct, omit_defaults=True):
    """After a `hard_breach` nothing was counted. `already_applied`: the key was used before, and
    this is its first answer."""

    outcome: Literal["ok", "soft_breach", "hard_breach", "overrun"]
    already_applied: bool = False
    budget: str | None = None
    dimension: str | None = None
    used: int | None = None
    limit: int | None = None
    excess: int | None = None
    action: str | None = None


class WaitpointMade(Struct):
    """The token lets a sender outside signal the waitpoint; None if the key that signs is gone."""

    waitpoint_id: str
    waitpoint_key: str
    token: str | None


class RunSuspended(Struct, omit_defaults=True):
    """`suspended`: the lease is given up. `already_satisfied`: what to wait for is here, the lease
    is kept, and `signals` are what came."""

    outcome: Literal["suspended", "already_satisfied"]
    suspension_id: str
    waitpoints: list[WaitpointMade]
    handle: str | None = None
    signals: list[ResumeSignal] = []


Answer = (
    RunCompleted
    | AttemptFailed
    | RunParked
    | OwnerCancelled
    | Noted
    | StepRecorded
    | FramesAppended
    | BudgetsSpent
    | WaitpointMade
    | RunSuspended
)
"""The answers to operations on a lease."""


class OperationResult(Struct, omit_defaults=True):
    """One result of a batch: the status and the answer that the route of the operation gives."""

    status: int
    answer: Any = None
    error: ErrorBody | None = None


class BatchResults(Struct):
    """In the order of the request."""

    results: list[OperationResult]


class WorkerRegistered(Struct):
    outcome: Literal["registered", "refreshed", "removed"]
    expires_at: int | None = None


class WorkerMarkedDead(Struct):
    """`revoked` is how many leases were taken away."""

    outcome: Literal["marked"]
    revoked: int
