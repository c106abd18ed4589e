"""Whether a request to suspend makes sense, before the store is touched."""

from uuid import UUID

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.numbers import check_kind_of, check_one_of
from flowfabric.core.base.shape import check_shape
from flowfabric.core.base.text import MAX_KEY, MAX_REASON, check_signal_name, check_text
from flowfabric.core.base.time import Millis, check_moment, check_span
from flowfabric.core.execution.step import Step
from flowfabric.core.wait.condition import Single, TimeoutOnly, check_condition, check_references
from flowfabric.core.wait.model import Behaviour, ResumePolicy, StepRef
from flowfabric.core.wait.suspend import Binding, Suspend, Wait, WaitpointUse

PAST_TOLERANCE = Millis(600_000)
REQUESTERS = frozenset({"worker", "operator", "policy", "system_timeout_policy"})
TARGETS = frozenset({"runnable"})
MAX_BINDINGS = 1_000


def check_suspend(request: Suspend, now: Millis) -> Suspend:
    """The request if it makes sense; refused before the store is touched otherwise."""
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
    match wait.condition:
        case Single(waitpoint=key) if primary.use is WaitpointUse.FRESH and key != primary.key:
            raise Invalid(f"waitpoint_key_mismatch: {key!r} is not {primary.key!r}")
        case _:
            pass
    _check_bindings(wait.bindings)
    check_condition(wait.condition)
    if primary.use is not WaitpointUse.PENDING:
        check_references(wait.condition, [binding.key for binding in wait.bindings])
    if isinstance(wait.condition, TimeoutOnly) and wait.timeout_at is None:
        raise Invalid("timeout_only_without_deadline")
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


def _check_bindings(bindings: tuple[Binding, ...]) -> None:
    for position, binding in enumerate(bindings):
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
