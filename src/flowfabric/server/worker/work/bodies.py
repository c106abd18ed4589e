"""What workers send. An operation on a lease is one struct here, used by its own route and, with
`op` and an id, as an item of a batch."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct

from flowfabric.core.execution.frame import MERGE_PATCH, FrameKind
from flowfabric.server.http.wire import U32, Bytes, Json, Lane, Moment, Whole

MAX_WAIT_MS = 30_000
MAX_CLAIMS = 500
MAX_LEASES = 1_000
MAX_OPERATIONS = 500
MAX_FRAMES = 1_000

LeaseMs = Annotated[int, Meta(ge=1, le=86_400_000, description="1 ms to 24 h")]
Span = Annotated[int, Meta(ge=0, le=315_619_200_000, description="milliseconds, up to ten years")]


class ClaimWork(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request for work. No lanes, kinds or namespace means any. Lanes with weights are served in
    that proportion. Repeating a request with the same `claim_id` gives what it took and still
    holds."""

    worker_id: str
    worker_instance_id: str
    lanes: list[Lane] | dict[Lane, Annotated[int, Meta(ge=1, le=1_000_000)]] = []
    namespace: str | None = None
    capabilities: list[str] = []
    kinds: list[str] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_CLAIMS)] = 1
    lease_ms: LeaseMs = 30_000
    wait_ms: Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)] = 0
    claim_id: str | None = None


class RedeemGrant(Struct, kw_only=True, forbid_unknown_fields=True):
    """Turns a grant into a lease. Repeating it gives the same lease while it is held."""

    execution_id: str
    grant_key: str
    worker_id: str
    worker_instance_id: str
    lease_ms: LeaseMs = 30_000
    expected_attempt_index: U32 | None = None


class Fenced(Struct, kw_only=True, forbid_unknown_fields=True):
    """Proof of ownership: the handle of the claim, or its lease id, epoch and attempt id."""

    handle: str | None = None
    lease_id: str | None = None
    lease_epoch: Whole | None = None
    attempt_id: str | None = None


class LeaseToRenew(Fenced):
    """With a handle, `execution_id` is optional."""

    execution_id: str | None = None


class RenewLeases(Struct, kw_only=True, forbid_unknown_fields=True):
    """Each lease is extended to now + `lease_ms`, by default the length of its claim; a fence
    without a handle needs `lease_ms`. A lease never gets shorter. Each renewal is an event, unless
    `record` is false."""

    leases: Annotated[list[LeaseToRenew], Meta(max_length=MAX_LEASES)]
    lease_ms: LeaseMs | None = None
    record: bool = True


class CompleteRun(Fenced):
    """`result` is any JSON value, `result_base64` any bytes, both with a `result_encoding`."""

    result: Json = UNSET
    result_base64: Bytes | None = None
    result_encoding: str | None = None


class FailRun(Fenced):
    """`category` is transient, timeout, infra_crash, permanent, cancelled or a word of your own,
    which is retried like transient. `retryable: false` is short for the category permanent.
    `details` is a traceback, or any JSON value. `retry_after_ms` replaces the pause of the retry
    policy."""

    reason: str
    category: str | None = None
    retryable: bool | None = None
    details: Json = UNSET
    step: str | None = None
    retry_after_ms: Span | None = None


class DelayRun(Fenced):
    """The same attempt goes on at `until`, or `delay_ms` from now."""

    until: Moment | None = None
    delay_ms: Span | None = None


class ReleaseRun(Fenced):
    """The same attempt goes on at once, elsewhere; no retry is used."""


class WaitForChildren(Fenced):
    """The same attempt goes on when the executions it depends on have ended."""


class CancelRun(Fenced):
    """The owner ends the run as cancelled."""

    reason: str


class FinishCleanup(Fenced):
    """The owner has cleaned up, as it was asked to. `reason` is what could not be cleaned up."""

    reason: str | None = None


class ReportProgress(Fenced):
    """Omitted values stay as they are."""

    percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    message: str | None = None


class RecordStep(Fenced):
    """Records what a step returned. A step that is recorded stays as it is. `occurrence` counts the
    calls of one name from 0, `position` those of all names; by default it comes last."""

    name: str
    value: Json = UNSET
    occurrence: U32 = 0
    position: U32 | None = None


class SetState(Fenced):
    """What the run shows of itself, as JSON or as bytes."""

    value: Json = UNSET
    value_base64: Bytes | None = None


class SpendBudgets(Fenced):
    """Counts what was consumed, for all budgets of the run or for those named. The same `key`
    counts once."""

    amounts: dict[str, Whole]
    budgets: list[str] | None = None
    key: str | None = None


class MakeWaitpoint(Fenced):
    """A place for signals, before the run suspends. Asking again for the same key under the same
    lease gives the same waitpoint."""

    waitpoint_key: str
    waitpoint_id: str | None = None
    expires_in_ms: Span | None = None


class ResumeRules(Struct, kw_only=True, forbid_unknown_fields=True):
    """How the run goes on when what it waits for is here."""

    consume_matched_signals: bool = True
    retain_signal_buffer_until_closed: bool = False
    close_waitpoint_on_resume: bool = True
    resume_delay_ms: Span | None = None


class SuspendRun(Fenced):
    """Gives the lease up until a signal is here. Say what to wait for in one of these ways: the
    name of a `signal` at one waitpoint; any signal at `all_of` or `any_of` these waitpoints; a
    `condition` as the reference describes it; or only a timeout.

    `waitpoint_id` is one that was made before, and `waitpoint_key` its key. A repeat of the same
    request under the same lease gets the first answer; give another `suspension_id` to suspend
    once more in the same words."""

    signal: str | None = None
    all_of: list[str] = []
    any_of: list[str] = []
    condition: Json = UNSET
    waitpoint_key: str | None = None
    waitpoint_id: str | None = None
    timeout_ms: Span | None = None
    timeout_at: Moment | None = None
    timeout_behavior: str | None = None
    reason_code: str = "waiting_for_signal"
    resume_policy: ResumeRules | None = None
    suspension_id: str | None = None
    idempotency_key: str | None = None


class WorkFrame(Struct, kw_only=True, forbid_unknown_fields=True):
    """A piece of output: text, a JSON value, or bytes in base64. Without a `frame_type` it has the
    name of its `kind`. A summary frame is a JSON merge patch of the summary of the attempt. The
    members from `ttl_ms` on are for best-effort frames: after twice that time without another one
    they expire, and as many are kept as come in it, within the two bounds; `ema_alpha` is the
    weight of the newest in their rate."""

    frame_type: str = ""
    kind: FrameKind = FrameKind.EVENT
    text: str | None = None
    payload_json: Json = UNSET
    payload: Bytes | None = None
    mode: Literal["durable", "summary", "best_effort"] = "durable"
    correlation_id: str | None = None
    at: Moment | None = None
    patch_kind: str = MERGE_PATCH
    ttl_ms: Span | None = None
    ema_alpha: float = 0.2
    maxlen_floor: Whole = 64
    maxlen_ceiling: Whole = 16_384


class AppendFrames(Fenced):
    """Appends all frames or none. A repeat with the same `append_id`, any number that the other
    appends of the attempt do not have, appends once."""

    frames: Annotated[list[WorkFrame], Meta(max_length=MAX_FRAMES)]
    append_id: Whole | None = None


# -- items of a batch


class CompleteItem(CompleteRun, tag_field="op", tag="complete"):
    execution_id: str | None = None


class FailItem(FailRun, tag_field="op", tag="fail"):
    execution_id: str | None = None


class DelayItem(DelayRun, tag_field="op", tag="delay"):
    execution_id: str | None = None


class ReleaseItem(ReleaseRun, tag_field="op", tag="release"):
    execution_id: str | None = None


class WaitForChildrenItem(WaitForChildren, tag_field="op", tag="wait-for-children"):
    execution_id: str | None = None


class CancelItem(CancelRun, tag_field="op", tag="cancel"):
    execution_id: str | None = None


class FinishCleanupItem(FinishCleanup, tag_field="op", tag="finish-cleanup"):
    execution_id: str | None = None


class ProgressItem(ReportProgress, tag_field="op", tag="progress"):
    execution_id: str | None = None


class StepItem(RecordStep, tag_field="op", tag="steps"):
    execution_id: str | None = None


class StateItem(SetState, tag_field="op", tag="state"):
    execution_id: str | None = None


class SpendItem(SpendBudgets, tag_field="op", tag="spend"):
    execution_id: str | None = None


class WaitpointItem(MakeWaitpoint, tag_field="op", tag="waitpoints"):
    execution_id: str | None = None


class FramesItem(AppendFrames, tag_field="op", tag="frames"):
    execution_id: str | None = None


class SuspendItem(SuspendRun, tag_field="op", tag="suspend"):
    execution_id: str | None = None


Item = (
    CompleteItem
    | FailItem
    | DelayItem
    | ReleaseItem
    | WaitForChildrenItem
    | CancelItem
    | FinishCleanupItem
    | ProgressItem
    | StepItem
    | StateItem
    | FramesItem
    | SpendItem
    | WaitpointItem
    | SuspendItem
)


class WorkBatch(Struct, kw_only=True, forbid_unknown_fields=True):
    """Operations on many runs. Those on one run are done in their order, the others side by side;
    each succeeds or fails on its own."""

    operations: Annotated[list[Item], Meta(max_length=MAX_OPERATIONS)]
