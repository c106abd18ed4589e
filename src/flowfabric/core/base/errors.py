"""Every error the engine raises, arranged by what the caller must do about it.

    FlowFabricError
    ├── Invalid                     the request is wrong; repeating it cannot help
    │   ├── InvalidId               text that is not an identifier, with the reason
    │   ├── InvalidCapabilities     a capability list that breaks the token rules
    │   ├── InvalidPolicy           a policy document that cannot be read
    │   ├── InvalidTag              a tag key that breaks the pattern
    │   ├── InvalidHandle           a forged or truncated handle
    │   │   └── ForeignHandle       a handle that another kind of store has made
    │   ├── InvalidBlockingReason   a reason that no admission block has
    │   ├── PayloadTooLarge         more bytes than the limit allows
    │   │   └── RetentionLimitExceeded  a frame or a summary of a stream that is too large
    │   ├── FenceRequired           an owner operation without a fence
    │   ├── PartialFence            only one or two members of a fence
    │   ├── CapabilityMismatch      the worker lacks capabilities the run requires
    │   ├── InvalidLeaseForSuspend  the caller's attempt is no longer the current one
    │   ├── InvalidWaitpoint        the waitpoint belongs to another attempt
    │   ├── SignalLimitExceeded     the run has accepted as many signals as it may
    │   ├── NotAllowed              the terms of an approval do not allow this decision
    │   ├── InvalidCall             arguments that do not fit the parameters of a task
    │   ├── InvalidGraph            a flow that cannot run: nothing of it was created
    │   │   ├── CycleDetected       runs that wait for each other
    │   │   ├── SelfEdge            a run that waits for itself
    │   │   └── NotInFlow           an edge to a run that is not a member
    │   ├── InvalidKid              a key id that is empty or contains a colon
    │   ├── InvalidSecretHex        a secret that is not hexadecimal text of the right length
    │   ├── InvalidGrace            a grace period that is not a number of milliseconds
    │   └── Unauthorized            the signal is refused unread
    │       ├── MissingToken        no token was presented
    │       ├── InvalidToken        forged, for something else, or for nothing that exists
    │       ├── TokenExpired        the token, or the key that signed it, has expired
    │       ├── TokenRevoked        the token was revoked
    │       ├── TokenUsed           a single-use token that was already used
    │       └── InvalidSecret       the stored key cannot be used
    ├── Unauthenticated             the caller is unknown: present a valid access token
    │   ├── MissingCredentials      no access token was presented
    │   ├── InvalidCredentials      forged, cut off, or of no token that exists
    │   ├── CredentialsExpired      the access token, or this secret of it, has expired
    │   └── CredentialsRevoked      the access token was revoked
    ├── Forbidden                   the caller is known, but its token does not allow this
    ├── NotFound                    no such run, grant, lane, …
    │   └── WaitpointNotFound       the waitpoint that a run is to wait at does not exist
    ├── Contention                  lost a race, or not possible now: load and decide again
    │   ├── NotEligible             not waiting for a claim at this moment
    │   ├── NotLeaseable            cannot be taken with this kind of claim
    │   │   └── LeaseConflict       another worker holds the lease
    │   ├── UseClaimResumed         an interrupted attempt: continue it instead
    │   ├── NotResumed              no interrupted attempt to continue
    │   ├── InvalidGrant            no grant, or a grant for another worker
    │   ├── GrantExpired            the grant expired before it was redeemed
    │   ├── WaitpointExists         the id of a new waitpoint is taken
    │   ├── StaleRevision           the graph changed since it was read
    │   ├── FlowConflict            the flow, edge or member exists with other values
    │   │   ├── AlreadyInFlow       the run is a member of another flow
    │   │   └── EdgeExists          the id of a new edge is taken
    │   ├── RotationConflict        the key id exists with another secret
    │   ├── TokenExists             an access token of that name is in use
    │   ├── Locked                  a transaction of the application holds the row
    │   └── RetryExhausted          lost the same race ten times in a row
    ├── WrongState                  the run is in another state
    │   ├── LeaseLost               stop: further writes are refused
    │   │   ├── StaleLease          the fence is not the current one
    │   │   ├── LeaseExpired        the lease expired
    │   │   ├── LeaseRevoked        an operator took the lease away
    │   │   ├── StaleOwner          the output stream belongs to another lease by now
    │   │   ├── StreamClosed        the output stream was closed with its attempt
    │   │   └── NotActive           no worker runs it (carries how it ended, if it did)
    │   ├── AlreadyEnded            the run has ended: there is nothing to cancel
    │   ├── NotTerminal             only an ended run can do this
    │   ├── NotSuspended            only a suspended run can do this
    │   ├── AlreadySuspended        the run has already given up its lease to wait
    │   ├── NotSignalable           the run has ended, or nothing waits for this signal
    │   │   ├── WaitpointClosed     the waitpoint accepts no signals any more
    │   │   └── ApprovalOutdated    what is to be approved has changed since
    │   ├── AlreadyDecided          this approver has already decided differently
    │   ├── WaitpointNotPending     the waitpoint is in use, or closed
    │   ├── WaitpointExpired        the pending waitpoint expired before it was used
    │   ├── FlowTerminal            the flow has ended or was cancelled
    │   ├── BudgetExceeded          the amount does not fit into a budget; nothing was counted
    │   ├── MaxReplays              replayed as often as its policy allows
    │   └── GrantExists             another live grant exists
    ├── Unavailable                 the store cannot be reached or refuses to work
    │   ├── NoSigningKey            no key to sign waitpoint tokens with: seed one
    │   ├── SchemaTooNew            the database was migrated by a newer release
    │   ├── StoreReadOnly           the file or server accepts no writes
    │   └── StoreFull               no space left
    ├── Overloaded                  a queue is full; retry after `retry_after` seconds
    └── Corruption                  stored data that no release of this engine wrote

`code` is stable and meant for programs; the text is meant for people. `retryable` says whether
trying again may help: after a pause, or, for `Contention`, after another look at the state.
"""

from typing import ClassVar
from uuid import UUID

from flowfabric.core.base.redact import without_secrets


class FlowFabricError(Exception):
    """Base class of all errors raised by FlowFabric."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}" if self.detail else self.code


class Invalid(FlowFabricError):
    """Nothing was done: the request is wrong, and repeating it cannot help."""

    code = "invalid_input"


_RUN_ID_FORM = (
    "the id of a run looks like 01a1e105-7c1b-7d3e-8a52-3f0c9e4b6d71, "
    "for the engine {fp:86}:01a1e105-7c1b-7d3e-8a52-3f0c9e4b6d71"
)
_ID_FORMS = {
    "missing_braces": "a partition looks like {fp:86}",
    "malformed_body": "a partition looks like {fp:86}",
    "unknown_family": "a partition looks like {fp:86}, {b:7} or {q:7}",
    "invalid_uuid": "a UUID looks like 01a1e105-7c1b-7d3e-8a52-3f0c9e4b6d71",
}


class InvalidId(Invalid):
    """`reason` is one of missing_tag, invalid_partition_index, partition_out_of_range,
    wrong_partition, invalid_uuid. `text` is the given text, with possible tokens removed. `what` is
    the name of the member or argument that had it, or empty."""

    code = "invalid_id"

    def __init__(self, reason: str, text: str, what: str = "") -> None:
        shown, form = without_secrets(text), _ID_FORMS.get(reason, _RUN_ID_FORM)
        super().__init__(f"{reason}: {what}{' ' if what else ''}{shown[:80]!r} ({form})")
        self.reason = reason
        self.text = shown
        self.what = what


class InvalidCapabilities(Invalid):
    code = "invalid_capabilities"


class InvalidPolicy(Invalid):
    code = "invalid_policy_json"


class InvalidTag(Invalid):
    code = "invalid_tag_key"


class InvalidHandle(Invalid):
    code = "invalid_handle"


class ForeignHandle(InvalidHandle):
    code = "handle_from_other_backend"


class InvalidBlockingReason(Invalid):
    code = "invalid_blocking_reason"


class PayloadTooLarge(Invalid):
    code = "payload_too_large"

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what} has {size} bytes, the limit is {limit}")
        self.what = what
        self.size = size
        self.limit = limit


class RetentionLimitExceeded(PayloadTooLarge):
    code = "retention_limit_exceeded"


class FenceRequired(Invalid):
    code = "fence_required"


class PartialFence(Invalid):
    code = "partial_fence_triple"


class CapabilityMismatch(Invalid):
    code = "capability_mismatch"

    def __init__(self, missing: tuple[str, ...]) -> None:
        super().__init__(",".join(missing))
        self.missing = missing


class InvalidLeaseForSuspend(Invalid):
    code = "invalid_lease_for_suspend"


class InvalidWaitpoint(Invalid):
    code = "invalid_waitpoint_for_execution"


class SignalLimitExceeded(Invalid):
    code = "signal_limit_exceeded"


class NotAllowed(Invalid):
    code = "decision_not_allowed"


class InvalidCall(Invalid, TypeError):
    """The arguments do not fit the parameters of the task. Also a TypeError, like any call of a
    function with wrong arguments."""

    code = "invalid_call"


class InvalidGraph(Invalid):
    """The flow cannot run; nothing was created."""

    code = "invalid_graph"


class CycleDetected(InvalidGraph):
    code = "cycle_detected"


class SelfEdge(InvalidGraph):
    code = "self_referencing_edge"


class NotInFlow(InvalidGraph):
    code = "execution_not_in_flow"


class InvalidKid(Invalid):
    code = "invalid_kid"


class InvalidSecretHex(Invalid):
    code = "invalid_secret_hex"


class InvalidGrace(Invalid):
    code = "invalid_grace_ms"


class Unauthorized(Invalid):
    """The signal was refused before anything else was checked. The text says no more than the class
    does, and never contains a token."""

    code = "unauthorized"


class MissingToken(Unauthorized):
    code = "missing_token"


class InvalidToken(Unauthorized):
    """Also raised for a waitpoint that does not exist, so that callers cannot find out which ones
    do."""

    code = "invalid_token"


class TokenExpired(Unauthorized):
    code = "token_expired"


class TokenRevoked(Unauthorized):
    code = "token_revoked"


class TokenUsed(Unauthorized):
    code = "token_used"


class InvalidSecret(Unauthorized):
    code = "invalid_secret"


class Unauthenticated(FlowFabricError):
    """The caller could not be identified, so nothing was read or done. The text says no more than
    the class does, and never contains a token."""

    code = "unauthenticated"


class MissingCredentials(Unauthenticated):
    code = "missing_credentials"


class InvalidCredentials(Unauthenticated):
    """Also raised for the name of a token that does not exist, so that callers cannot find out
    which ones do."""

    code = "invalid_credentials"


class CredentialsExpired(Unauthenticated):
    code = "credentials_expired"


class CredentialsRevoked(Unauthenticated):
    code = "credentials_revoked"


class Forbidden(FlowFabricError):
    """The caller is known, but its access token lacks `scope`, or is limited to namespaces that do
    not include what was asked for."""

    code = "forbidden"

    def __init__(self, detail: str, *, scope: str | None = None) -> None:
        super().__init__(detail)
        self.scope = scope


class NotFound(FlowFabricError):
    """There is no such run, task, lane or schedule; `entity` and `key` say which. The entity of a
    run is `execution`, the engine's word."""

    code = "not_found"

    def __init__(self, entity: str, key: object = "") -> None:
        word = "run" if entity == "execution" else entity
        super().__init__(f"no {word} {key}".strip())
        self.entity = entity
        self.key = key


class WaitpointNotFound(NotFound):
    """The pending waitpoint that a suspend names does not exist."""

    code = "waitpoint_not_found"


class Contention(FlowFabricError):
    """Another caller was faster, or the operation is not possible now: load and decide again."""

    code = "contention"
    retryable = True


class NotEligible(Contention):
    code = "execution_not_eligible"


class NotLeaseable(Contention):
    code = "execution_not_leaseable"


class UseClaimResumed(Contention):
    code = "use_claim_resumed_execution"


class NotResumed(Contention):
    code = "not_a_resumed_execution"


class LeaseConflict(NotLeaseable):
    code = "lease_conflict"


class InvalidGrant(Contention):
    code = "invalid_claim_grant"


class GrantExpired(Contention):
    code = "claim_grant_expired"


class WaitpointExists(Contention):
    code = "waitpoint_already_exists"
    retryable = False


class StaleRevision(Contention):
    code = "stale_graph_revision"


class FlowConflict(Contention):
    code = "flow_conflict"
    retryable = False


class AlreadyInFlow(FlowConflict):
    """`flow` is the flow that the run is a member of."""

    code = "execution_already_in_flow"

    def __init__(self, flow: UUID) -> None:
        super().__init__(f"already_member_of_different_flow:{flow}")
        self.flow = flow


class EdgeExists(FlowConflict):
    """The members are those of the stored edge; `edge` is its id, `on` and `input` are as they were
    staged, `created_at` is in milliseconds."""

    code = "dependency_already_exists"

    def __init__(
        self,
        edge: UUID,
        upstream: UUID,
        downstream: UUID,
        *,
        flow: UUID,
        on: str,
        input: str | None,
        created_at: int,
    ) -> None:
        super().__init__(f"edge {edge} leads from run {upstream} to run {downstream}")
        self.edge = edge
        self.flow = flow
        self.upstream = upstream
        self.downstream = downstream
        self.on = on
        self.input = input
        self.created_at = created_at


class RotationConflict(Contention):
    code = "rotation_conflict"
    retryable = False


class TokenExists(Contention):
    code = "token_exists"
    retryable = False


class Locked(Contention):
    """A transaction of the application (a submit or an ending) holds the row and must end first."""

    code = "locked"


class RetryExhausted(Contention):
    code = "retry_exhausted"


class WrongState(FlowFabricError):
    code = "wrong_state"


class LeaseLost(WrongState):
    """The run belongs to another worker or has ended: stop, further writes are refused."""

    code = "lease_lost"


class StaleLease(LeaseLost):
    code = "stale_lease"


class LeaseExpired(LeaseLost):
    code = "lease_expired"


class LeaseRevoked(LeaseLost):
    code = "lease_revoked"


class StaleOwner(LeaseLost):
    code = "stale_owner_cannot_append"


class StreamClosed(LeaseLost):
    code = "stream_closed"


class NotActive(LeaseLost):
    """Carries what a caller needs to find out whether its own earlier call succeeded."""

    code = "execution_not_active"

    def __init__(self, *, phase: str, outcome: str, epoch: int, attempt_id: UUID | None) -> None:
        super().__init__(f"phase {phase}, outcome {outcome}, epoch {epoch}")
        self.phase = phase
        self.outcome = outcome
        self.epoch = epoch
        self.attempt_id = attempt_id


class AlreadyEnded(WrongState):
    """The run has ended, so there is nothing to cancel. `id` is the run, `outcome` how it ended."""

    code = "already_ended"

    def __init__(self, id: str, outcome: str) -> None:
        super().__init__(f"run {id} has already ended ({outcome}): there is nothing to cancel")
        self.id = id
        self.outcome = outcome


class NotTerminal(WrongState):
    code = "execution_not_terminal"


class NotSuspended(WrongState):
    code = "execution_not_suspended"


class AlreadySuspended(WrongState):
    code = "already_suspended"


class NotSignalable(WrongState):
    """The run has ended, or nothing in it waits for this signal."""

    code = "target_not_signalable"


class WaitpointClosed(NotSignalable):
    code = "waitpoint_closed"


class ApprovalOutdated(NotSignalable):
    """What is to be approved has changed since the approval was asked for, or given."""

    code = "approval_outdated"


class AlreadyDecided(WrongState):
    code = "already_decided"


class WaitpointNotPending(WrongState):
    code = "waitpoint_not_pending"


class WaitpointExpired(WrongState):
    code = "pending_waitpoint_expired"


class FlowTerminal(WrongState):
    code = "flow_already_terminal"


class BudgetExceeded(WrongState):
    """The amount does not fit below a limit of the budget; `used` is already taken of the
    dimension."""

    code = "budget_exceeded"

    def __init__(
        self, budget: str, dimension: str, used: int, limit: int, wanted: int | None = None
    ) -> None:
        taken = f"budget {budget}: {used} of {limit} {dimension} are taken"
        super().__init__(taken if wanted is None else f"{taken}, {wanted} more do not fit")
        self.budget = budget
        self.dimension = dimension
        self.used = used
        self.limit = limit
        self.wanted = wanted


class MaxReplays(WrongState):
    code = "max_replays_exhausted"


class GrantExists(WrongState):
    code = "grant_already_exists"


class Unavailable(FlowFabricError):
    """The store could not be reached or refuses to work; `retryable` says whether to try again."""

    code = "unavailable"
    retryable = True


class NoSigningKey(Unavailable):
    code = "hmac_secret_not_initialized"
    retryable = False


class SchemaTooNew(Unavailable):
    code = "schema_too_new"
    retryable = False


class StoreReadOnly(Unavailable):
    code = "store_read_only"
    retryable = False


class StoreFull(Unavailable):
    code = "store_full"


class Overloaded(FlowFabricError):
    """Nothing was done because too many calls are queued; retry after `retry_after` seconds."""

    code = "overloaded"
    retryable = True

    def __init__(self, detail: str, *, retry_after: float) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class Corruption(FlowFabricError):
    code = "corruption"
