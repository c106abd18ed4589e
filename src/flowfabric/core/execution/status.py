"""The seven public dimensions of an execution, as one pure function of its state.

Exactly the seventeen legal combinations (S1–S17) are possible. Nothing derived is stored, so
nothing can disagree. A state that no rule writes raises `Corruption`.
"""

from enum import StrEnum

from msgspec import Struct

from flowfabric.core.base.errors import Corruption
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Gate,
    Life,
    Lost,
    Next,
    Outcome,
    Ready,
    Snapshot,
    Start,
    State,
    Suspended,
    Waiting,
)


class Phase(StrEnum):
    SUBMITTED = "submitted"
    RUNNABLE = "runnable"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    TERMINAL = "terminal"


class Ownership(StrEnum):
    UNOWNED = "unowned"
    LEASED = "leased"
    EXPIRED = "lease_expired_reclaimable"
    REVOKED = "lease_revoked"


class Eligibility(StrEnum):
    ELIGIBLE_NOW = "eligible_now"
    NOT_UNTIL_TIME = "not_eligible_until_time"
    DEPENDENCIES = "blocked_by_dependencies"
    BUDGET = "blocked_by_budget"
    QUOTA = "blocked_by_quota"
    ROUTE = "blocked_by_route"
    LANE_STATE = "blocked_by_lane_state"
    OPERATOR = "blocked_by_operator"
    NOT_APPLICABLE = "not_applicable"


class Blocking(StrEnum):
    NONE = "none"
    WORKER = "waiting_for_worker"
    RETRY_BACKOFF = "waiting_for_retry_backoff"
    RESUME_DELAY = "waiting_for_resume_delay"
    DELAY = "waiting_for_delay"
    SIGNAL = "waiting_for_signal"
    APPROVAL = "waiting_for_approval"
    CALLBACK = "waiting_for_callback"
    TOOL_RESULT = "waiting_for_tool_result"
    CHILDREN = "waiting_for_children"
    BUDGET = "waiting_for_budget"
    QUOTA = "waiting_for_quota"
    CAPABLE_WORKER = "waiting_for_capable_worker"
    LOCALITY = "waiting_for_locality_match"
    OPERATOR = "paused_by_operator"
    POLICY = "paused_by_policy"
    FLOW_CANCEL = "paused_by_flow_cancel"


class AttemptState(StrEnum):
    NONE = "none"
    PENDING_FIRST = "pending_first_attempt"
    RUNNING = "running_attempt"
    INTERRUPTED = "attempt_interrupted"
    PENDING_RETRY = "pending_retry_attempt"
    PENDING_REPLAY = "pending_replay_attempt"
    TERMINAL = "attempt_terminal"


class PublicState(StrEnum):
    """The state of a run, in one word; the last five are endings."""

    WAITING = "waiting"
    DELAYED = "delayed"
    RATE_LIMITED = "rate_limited"
    WAITING_CHILDREN = "waiting_children"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"


ENDED = frozenset(
    {
        PublicState.COMPLETED,
        PublicState.FAILED,
        PublicState.CANCELLED,
        PublicState.EXPIRED,
        PublicState.SKIPPED,
    }
)
"""The states of runs that have ended."""


class Vector(Struct, frozen=True):
    """The seven dimensions. `outcome` is `none` or the word of the ending."""

    phase: Phase
    ownership: Ownership
    eligibility: Eligibility
    blocking: Blocking
    outcome: str
    attempt: AttemptState

    @property
    def public(self) -> PublicState:
        return derive_public(self.phase, self.eligibility, self.outcome)


ADMISSION_BLOCKS = {
    Blocking.BUDGET: Eligibility.BUDGET,
    Blocking.QUOTA: Eligibility.QUOTA,
    Blocking.CAPABLE_WORKER: Eligibility.ROUTE,
    Blocking.OPERATOR: Eligibility.OPERATOR,
    Blocking.POLICY: Eligibility.LANE_STATE,
}
"""The eligibility for each reason of an admission block."""

_SUSPENSION_REASONS = {
    "waiting_for_signal": Blocking.SIGNAL,
    "waiting_for_approval": Blocking.APPROVAL,
    "waiting_for_callback": Blocking.CALLBACK,
    "waiting_for_tool_result": Blocking.TOOL_RESULT,
    "waiting_for_operator_review": Blocking.OPERATOR,
    "manual_pause": Blocking.OPERATOR,
    "paused_by_policy": Blocking.POLICY,
    "paused_by_budget": Blocking.BUDGET,
    "step_boundary": Blocking.SIGNAL,
}

_GATES = {
    Gate.INBOX: (Eligibility.ELIGIBLE_NOW, Blocking.WORKER),
    Gate.UNSEALED: (Eligibility.DEPENDENCIES, Blocking.CHILDREN),
    Gate.DEPENDENCIES: (Eligibility.DEPENDENCIES, Blocking.CHILDREN),
    Gate.DELAY: (Eligibility.NOT_UNTIL_TIME, Blocking.DELAY),
    Gate.BACKOFF: (Eligibility.NOT_UNTIL_TIME, Blocking.RETRY_BACKOFF),
    Gate.RESUME_DELAY: (Eligibility.NOT_UNTIL_TIME, Blocking.RESUME_DELAY),
    Gate.WORKER_DELAY: (Eligibility.NOT_UNTIL_TIME, Blocking.DELAY),
    Gate.LIMIT: (Eligibility.QUOTA, Blocking.QUOTA),
    Gate.BUDGET: (Eligibility.BUDGET, Blocking.BUDGET),
}

_PENDING = {
    Start.INITIAL: AttemptState.PENDING_FIRST,
    Start.RETRY: AttemptState.PENDING_RETRY,
    Start.REPLAY: AttemptState.PENDING_REPLAY,
    Start.CONTINUE: AttemptState.INTERRUPTED,
    Start.RECLAIM: AttemptState.INTERRUPTED,
}

_STARTS = {
    Blocking.CHILDREN: {Start.INITIAL, Start.RETRY, Start.REPLAY, Start.CONTINUE},
    Blocking.DELAY: {Start.INITIAL, Start.CONTINUE},
    Blocking.RETRY_BACKOFF: {Start.RETRY},
    Blocking.RESUME_DELAY: {Start.CONTINUE},
}
"""What can wait for these reasons; any start can wait for the other reasons."""

_NEVER_RUN = {Outcome.CANCELLED, Outcome.EXPIRED, Outcome.SKIPPED}
_NEW_ATTEMPTS = {Start.INITIAL, Start.RETRY, Start.REPLAY}

_KEYS_SHOWN = 5
"""Most waitpoints that the detail of a suspended run names."""

_PUBLIC_OUTCOME = {
    "success": PublicState.COMPLETED,
    "failed": PublicState.FAILED,
    "cancelled": PublicState.CANCELLED,
    "expired": PublicState.EXPIRED,
    "skipped": PublicState.SKIPPED,
}

_PUBLIC_ELIGIBILITY = {
    Eligibility.NOT_UNTIL_TIME: PublicState.DELAYED,
    Eligibility.DEPENDENCIES: PublicState.WAITING_CHILDREN,
    Eligibility.BUDGET: PublicState.RATE_LIMITED,
    Eligibility.QUOTA: PublicState.RATE_LIMITED,
}

_PUBLIC_GATES = {
    gate: _PUBLIC_ELIGIBILITY.get(eligibility, PublicState.WAITING)
    for gate, (eligibility, blocking) in _GATES.items()
    if blocking not in _STARTS
}
"""Of the gates where anything can wait, so that nothing has to be checked."""


def outcome_word(outcome: Outcome) -> str:
    return outcome.name.lower()


def derive_public(phase: Phase, eligibility: Eligibility, outcome: str) -> PublicState:
    """An ending without an outcome, which no execution has, counts as a failure."""
    match phase:
        case Phase.TERMINAL:
            return _PUBLIC_OUTCOME.get(outcome, PublicState.FAILED)
        case Phase.SUSPENDED:
            return PublicState.SUSPENDED
        case Phase.ACTIVE:
            return PublicState.ACTIVE
        case Phase.RUNNABLE:
            return _PUBLIC_ELIGIBILITY.get(eligibility, PublicState.WAITING)
        case Phase.SUBMITTED:
            return PublicState.WAITING


def vector(snapshot: Snapshot) -> Vector:
    return vector_of(snapshot.state, snapshot.head.life)


def public_state(snapshot: Snapshot) -> PublicState:
    """Only the public state, the same as in the full vector, at a tenth of its price for what was
    just submitted."""
    match snapshot.state:
        case Ready():
            return PublicState.WAITING
        case Waiting(gate=gate) if gate in _PUBLIC_GATES:
            return _PUBLIC_GATES[gate]
        case _:
            return vector(snapshot).public


def vector_of(state: State, life: Life) -> Vector:
    match state:
        case Ready(next=next):
            return _runnable(Eligibility.ELIGIBLE_NOW, Blocking.WORKER, next)
        case Waiting(gate=Gate.BLOCKED, next=next):
            return _blocked(life.blocked, next)
        case Waiting(gate=gate, next=next):
            return _runnable(*_GATES[gate], next)
        case Active():
            return _active(Ownership.LEASED, Blocking.NONE, AttemptState.RUNNING)
        case Lost(revoked=revoked):
            ownership = Ownership.REVOKED if revoked else Ownership.EXPIRED
            return _active(ownership, Blocking.WORKER, AttemptState.INTERRUPTED)
        case Suspended(reason=reason):
            return Vector(
                Phase.SUSPENDED,
                Ownership.UNOWNED,
                Eligibility.NOT_APPLICABLE,
                _SUSPENSION_REASONS.get(reason, Blocking.SIGNAL),
                "none",
                AttemptState.INTERRUPTED,
            )
        case Ended(outcome=outcome, pending=pending):
            return _terminal(outcome, pending)


def blocking_detail(snapshot: Snapshot) -> str | None:
    """The blocking reason as free text."""
    life = snapshot.head.life
    match snapshot.state:
        case Waiting() as waiting:
            return _why_parked(waiting, life)
        case Lost(revoked=True):
            return f"lease revoked: {life.lapsed.reason if life.lapsed else ''}"
        case Lost():
            return "lease expired, awaiting reclaim"
        case Suspended():
            return _waits_at(list(dict.fromkeys([each.key for each in snapshot.waits.active])))
        case _:
            return None


def _why_parked(waiting: Waiting, life: Life) -> str | None:
    due_at = waiting.due_at
    match waiting.gate:
        case Gate.DELAY | Gate.WORKER_DELAY:
            return f"delayed until {due_at}"
        case Gate.BACKOFF:
            return f"attempt {waiting.next.attempt - 1} failed, retry after {due_at}"
        case Gate.RESUME_DELAY:
            return f"resume delayed until {due_at}"
        case Gate.DEPENDENCIES | Gate.UNSEALED:
            return _waits_for(life) or life.detail
        case _:
            return life.detail


def _waits_for(life: Life) -> str | None:
    """What a member of a flow waits for; None for a run that waits for its own children."""
    join, waits_for = life.join, list[str]()
    if join is not None and join.n:
        edge = "" if life.newest_edge is None else f" (newest edge {life.newest_edge})"
        waits_for.append(f"{join.running} of {join.n} upstreams{edge}")
    if life.unsealed:
        waits_for.append("the seal of its flow")
    return f"waits for {' and '.join(waits_for)}" if waits_for else None


def _waits_at(keys: list[str]) -> str | None:
    """Which waitpoints a suspended run waits at; of many the first."""
    more = f" and {len(keys) - _KEYS_SHOWN} more" if len(keys) > _KEYS_SHOWN else ""
    return f"waits at {', '.join(keys[:_KEYS_SHOWN])}{more}" if keys else None


def _blocked(reason: str | None, next: Next) -> Vector:
    try:
        blocking = Blocking(reason or Blocking.OPERATOR)
        return _runnable(ADMISSION_BLOCKS[blocking], blocking, next)
    except (KeyError, ValueError):
        raise Corruption(f"blocked for the unknown reason {reason!r}") from None


def _runnable(eligibility: Eligibility, blocking: Blocking, next: Next) -> Vector:
    if next.start not in _STARTS.get(blocking, _PENDING):
        raise Corruption(f"{blocking} with a {next.start.name.lower()} to come")
    return Vector(
        Phase.RUNNABLE, Ownership.UNOWNED, eligibility, blocking, "none", _PENDING[next.start]
    )


def _active(ownership: Ownership, blocking: Blocking, attempt: AttemptState) -> Vector:
    return Vector(Phase.ACTIVE, ownership, Eligibility.NOT_APPLICABLE, blocking, "none", attempt)


def _terminal(outcome: Outcome, pending: Start | None) -> Vector:
    attempt = AttemptState.TERMINAL if pending is None else _PENDING[pending]
    if pending is not None and not (outcome in _NEVER_RUN and pending in _NEW_ATTEMPTS):
        raise Corruption(f"ended as {outcome_word(outcome)} with {attempt}")
    return Vector(
        Phase.TERMINAL,
        Ownership.UNOWNED,
        Eligibility.NOT_APPLICABLE,
        Blocking.NONE,
        outcome_word(outcome),
        attempt,
    )
