"""A request to suspend: what to wait for, in one or more arms, and at which waitpoints."""

from enum import StrEnum
from uuid import UUID

from msgspec import Struct
from msgspec.structs import force_setattr

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.numbers import check_kind_of, check_one_of
from flowfabric.core.base.shape import check_shape
from flowfabric.core.base.text import MAX_KEY, MAX_REASON, check_signal_name, check_text
from flowfabric.core.base.time import Millis, check_moment, check_span
from flowfabric.core.execution.step import Step
from flowfabric.core.wait.condition.check import check_condition, check_names, check_references
from flowfabric.core.wait.condition.model import Condition, Single, TimeoutOnly
from flowfabric.core.wait.model import Behaviour, ResumePolicy, StepRef, Terms

PAST_TOLERANCE = Millis(600_000)
REQUESTERS = frozenset({"worker", "operator", "policy", "system_timeout_policy"})
TARGETS = frozenset({"runnable"})
MAX_BINDINGS = 1_000


class WaitpointUse(StrEnum):
    """FRESH is a new waitpoint, PENDING one that was made before, EITHER may be both. Only EITHER
    opens a closed one again: a handler asks for the very same thing (the id is made of what it asks
    for), and what was decided about that still counts. What an operator closed stays closed."""

    FRESH = "fresh"
    PENDING = "pending"
    EITHER = "either"


class Binding(Struct, frozen=True, kw_only=True):
    """A waitpoint to wait at. A pending one brings its own key. A `lasting` one belongs to the
    execution and outlives the attempt. It closes pending ones with the same `slot`."""

    id: UUID
    key: str = ""
    use: WaitpointUse = WaitpointUse.FRESH
    terms: Terms | None = None
    lasting: bool = False
    slot: UUID | None = None

    @classmethod
    def fresh(cls, id: UUID) -> "Binding":
        return cls(id=id, key=f"wpk:{id}")


class Wait(Struct, frozen=True, kw_only=True):
    """One arm of a request; the first binding is the primary one. What it does not say about a
    timeout the policy of the execution says."""

    condition: Condition
    bindings: tuple[Binding, ...]
    timeout_at: Millis | None = None
    behaviour: Behaviour | None = None
    policy: ResumePolicy = ResumePolicy()
    step: StepRef | None = None

    def __post_init__(self) -> None:
        if self.timeout_at == 0:  # not set, as every moment of zero
            force_setattr(self, "timeout_at", None)


class Suspend(Struct, frozen=True, kw_only=True):
    """A request to suspend. It is resumed at `until` at the latest; `steps` are recorded by the
    change that suspends; `kid` names the key that signs tokens of fresh waitpoints."""

    id: UUID
    waits: tuple[Wait, ...]
    reason: str = "waiting_for_signal"
    requested_by: str = "worker"
    continuation: str | None = None
    idempotency_key: str | None = None
    kid: str | None = None
    until: Millis | None = None
    steps: tuple[Step, ...] = ()

    @property
    def bindings(self) -> list[Binding]:
        return [binding for wait in self.waits for binding in wait.bindings]

    @property
    def unique_ids(self) -> tuple[UUID, ...]:
        """The ids that no waitpoint of another execution may have. EITHER is for ids that are made
        of the execution's own, where the waitpoint is lasting: those need not be looked for."""
        either = WaitpointUse.EITHER
        return tuple([b.id for b in self.bindings if b.use is not either or not b.lasting])


def check_suspend(request: Suspend, now: Millis) -> Suspend:
    """The request if it makes sense; it is refused before the store is touched otherwise."""
    if not check_kind_of(request.waits, tuple, "waits"):
        raise Invalid("waitpoints_empty")
    check_kind_of(request.id, UUID, "suspension id")
    check_one_of(request.requested_by, REQUESTERS, "requested_by")
    check_text(request.reason, "reason", limit=MAX_REASON)
    if request.continuation is not None:
        check_text(request.continuation, "continuation", limit=MAX_REASON)
    if request.idempotency_key is not None:
        check_text(request.idempotency_key, "idempotency key", limit=MAX_KEY)
    for wait in request.waits:
        _check_wait(check_kind_of(wait, Wait, "wait"), now)
    if request.until is not None:
        check_moment(request.until, "until")
    for step in check_kind_of(request.steps, tuple, "steps"):
        check_shape(step, Step, "step")
    return request


def _check_wait(wait: Wait, now: Millis) -> None:
    if not check_kind_of(wait.bindings, tuple, "waitpoints"):
        raise Invalid("waitpoints_empty")
    if len(wait.bindings) > MAX_BINDINGS:
        raise Invalid(f"{len(wait.bindings)} waitpoints, the limit is {MAX_BINDINGS}")
    primary = check_shape(wait.bindings[0], Binding, "waitpoint")
    _check_bindings(wait)
    check_condition(wait.condition)
    if primary.use is not WaitpointUse.PENDING:
        check_references(wait.condition, [binding.key for binding in wait.bindings])
    if isinstance(wait.condition, TimeoutOnly) and wait.timeout_at is None:
        raise Invalid("timeout_only_without_deadline")
    check_names(wait.condition)
    if wait.timeout_at is not None:
        check_moment(wait.timeout_at, "timeout_at")
        if wait.timeout_at + PAST_TOLERANCE < now:
            raise Invalid("timeout_at_in_past")
    _check_ending(wait)


def _check_ending(wait: Wait) -> None:
    """Whether what happens after the wait can be stored."""
    if wait.behaviour is not None:
        check_kind_of(wait.behaviour, Behaviour, "behaviour")
    policy = check_shape(wait.policy, ResumePolicy, "resume policy")
    check_one_of(policy.target, TARGETS, "the target of a resume policy")
    delay = policy.resume_delay
    if delay is not None:
        check_span(delay, "resume_delay")
    if wait.step is not None:
        check_shape(wait.step, StepRef, "step")


def _check_bindings(wait: Wait) -> None:
    primary, condition = wait.bindings[0], wait.condition
    if isinstance(condition, Single) and primary.use is WaitpointUse.FRESH:
        key = condition.waitpoint
        if key != primary.key:
            raise Invalid(f"waitpoint_key_mismatch: {key!r} is not {primary.key!r}")
    for position, binding in enumerate(wait.bindings):
        check_shape(binding, Binding, "waitpoint")
        if binding.use is WaitpointUse.PENDING:
            if position:
                raise Invalid(f"additional_waitpoint_binding_must_be_fresh: waitpoints[{position}]")
            continue
        check_signal_name(binding.key, "waitpoint key")
        if not binding.key:
            if position:
                raise Invalid(f"additional_waitpoint_binding_empty_key: waitpoints[{position}]")
            raise Invalid("waitpoint_key_empty")
