"""What the owner of a lease does with it, each as a function of the lease and its body."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import structs

from flowfabric.core.base.errors import FenceRequired, Invalid, NotFound
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import CleaningUp, Delayed, RetryScheduled, TerminalFailed
from flowfabric.core.execution.model import Failure
from flowfabric.core.execution.retry import is_final
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Recorded, Step
from flowfabric.core.execution.step_order import check_step_name
from flowfabric.core.limit.spend import AlreadyApplied, Charged, Counted, HardBreach, Overrun, Spent
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.server.http.wire import Bytes, Json, json_text, read_bytes
from flowfabric.server.worker.work import bodies, frames, waits
from flowfabric.server.worker.work.answers import (
    Answer,
    AttemptFailed,
    BudgetsSpent,
    Noted,
    OwnerCancelled,
    Parking,
    RunCompleted,
    RunParked,
    StepRecorded,
)
from flowfabric.server.worker.work.described import describe_steps
from flowfabric.server.worker.work.lease import PresentedLease


class RawResult(bodies.CompleteRun):
    """A result that came as the body itself."""

    body: bytes = b""


async def complete(lease: PresentedLease, data: bodies.CompleteRun) -> RunCompleted:
    if isinstance(data, RawResult):
        result: bytes | None = data.body
    else:
        result = _content(data.result, data.result_base64, "result")
    attempts = lease.engine.attempts
    done = await attempts.complete(lease.fastest, result, encoding=data.result_encoding)
    lease.forget()
    return RunCompleted(done.id)


def _content(value: Json, encoded: Bytes | None, name: str) -> bytes | None:
    """The bytes of a JSON value as it was sent, or those that were sent in base64."""
    text = json_text(value)
    if encoded is None:
        return text
    if text is not None:
        raise Invalid(f"give {name} or {name}_base64, not both")
    return read_bytes(encoded, f"{name}_base64")


async def fail(lease: PresentedLease, data: bodies.FailRun) -> AttemptFailed:
    after = None if data.retry_after_ms is None else Millis(data.retry_after_ms)
    attempts = lease.engine.attempts
    match await attempts.fail(lease.fastest, _failure(data), retry_after=after):
        case RetryScheduled(id=id, delay_until=until, next_attempt=index):
            lease.forget()
            return AttemptFailed(id, "retry_scheduled", delay_until=until, next_attempt_index=index)
        case CleaningUp(id=id, until=until):
            return AttemptFailed(id, "cleaning_up", cleanup_until=until)
        case TerminalFailed(id=id):
            lease.forget()
            return AttemptFailed(id, "terminal_failed")


def _failure(data: bodies.FailRun) -> Failure:
    category = data.category
    if category is None:
        category = "permanent" if data.retryable is False else "transient"
    if data.retryable is not None and data.retryable is is_final(category):
        raise Invalid(f"retryable {data.retryable} contradicts the category {category}")
    details = json_text(data.details)
    if details is not None and details.startswith(b'"'):
        details = msgspec.json.decode(details, type=str).encode()
    return Failure(data.reason, category, details, data.step)


async def delay(lease: PresentedLease, data: bodies.DelayRun) -> RunParked:
    match (data.until, data.delay_ms):
        case (int() as until, None):
            pass
        case (None, int() as span):
            until = lease.engine.now() + span
        case _:
            raise Invalid("give either until or delay_ms")
    return _parked(
        lease, await lease.engine.attempts.delay(lease.fastest, Millis(until)), "delayed"
    )


async def release(lease: PresentedLease, data: bodies.ReleaseRun) -> RunParked:
    return _parked(lease, await lease.engine.attempts.hand_back(lease.fastest), "released")


async def wait_for_children(lease: PresentedLease, data: bodies.WaitForChildren) -> RunParked:
    parked = await lease.engine.attempts.wait_children(lease.owned)
    return _parked(lease, parked, "waiting_for_children")


def _parked(lease: PresentedLease, parked: Delayed, outcome: Parking) -> RunParked:
    lease.forget()
    return RunParked(parked.id, outcome, parked.state)


async def cancel(lease: PresentedLease, data: bodies.CancelRun) -> OwnerCancelled:
    done = await lease.engine.attempts.cancel(lease.owned, data.reason)
    lease.forget()
    return OwnerCancelled(done.id, PublicState.CANCELLED, "cancelled")


async def finish_cleanup(lease: PresentedLease, data: bodies.FinishCleanup) -> OwnerCancelled:
    failure = None if data.reason is None else Failure(data.reason)
    done = await lease.engine.attempts.finish_cleanup(lease.owned, failure)
    lease.forget()
    return OwnerCancelled(done.id, done.state, "cleaned_up")


async def progress(lease: PresentedLease, data: bodies.ReportProgress) -> Noted:
    await lease.engine.attempts.progress(lease.owned, data.percent, data.message)
    return Noted()


async def state(lease: PresentedLease, data: bodies.SetState) -> Noted:
    value = _content(data.value, data.value_base64, "value")
    if value is None:
        raise Invalid("give a value or value_base64")
    await lease.engine.attempts.set_state(lease.owned, value)
    return Noted()


async def record_step(lease: PresentedLease, data: bodies.RecordStep) -> StepRecorded:
    name, attempts = check_step_name(data.name), lease.engine.attempts
    generation, steps = await lease.engine.views.recorded(lease.id)
    value = msgspec.Raw(json_text(data.value) or b"null")
    doc = msgspec.json.encode(Recorded(value=value, ended_at=lease.engine.now()))
    last = max((step.position for step in steps), default=-1)
    position = last + 1 if data.position is None else data.position
    await attempts.record_step(lease.owned, Step(generation, position, name, data.occurrence, doc))
    for known in describe_steps(steps):
        if (known.name, known.occurrence) == (name, data.occurrence):
            at = known.position
            return StepRecorded("already_recorded", name, data.occurrence, at, known.value)
    return StepRecorded("recorded", name, data.occurrence, position, value)


async def spend(lease: PresentedLease, data: bodies.SpendBudgets) -> BudgetsSpent:
    budgets = lease.engine.budgets
    if isinstance(lease.owned, FencedExecution) and lease.owned.owner.fence is None:
        raise FenceRequired("only the owner of a run can count what it has consumed")
    if lease.restricted and data.budgets:
        attached = await budgets.attached_to(lease.id)
        for name in data.budgets:
            if name not in attached:
                raise NotFound("budget", name)
    answer = await budgets.report(lease.owned, data.amounts, budgets=data.budgets, key=data.key)
    if isinstance(answer, AlreadyApplied):
        return structs.replace(_spent(answer.outcome), already_applied=True)
    return _spent(answer)


def _spent(answer: Charged | Counted) -> BudgetsSpent:
    if isinstance(answer, Spent):
        return BudgetsSpent("ok")
    where = BudgetsSpent(
        "soft_breach",
        budget=answer.budget,
        dimension=answer.dimension,
        used=answer.used,
        limit=answer.limit,
    )
    if isinstance(answer, Overrun):
        return structs.replace(where, outcome="overrun", excess=answer.excess)
    if isinstance(answer, HardBreach):
        return structs.replace(where, outcome="hard_breach", action=answer.action)
    return structs.replace(where, action=answer.action)


Operation = Callable[[PresentedLease, Any], Awaitable[Answer]]

OPERATIONS: dict[type[bodies.Item], Operation] = {
    bodies.CompleteItem: complete,
    bodies.FailItem: fail,
    bodies.DelayItem: delay,
    bodies.ReleaseItem: release,
    bodies.WaitForChildrenItem: wait_for_children,
    bodies.CancelItem: cancel,
    bodies.FinishCleanupItem: finish_cleanup,
    bodies.ProgressItem: progress,
    bodies.StepItem: record_step,
    bodies.StateItem: state,
    bodies.FramesItem: frames.append_frames,
    bodies.SpendItem: spend,
    bodies.WaitpointItem: waits.make_waitpoint,
    bodies.SuspendItem: waits.suspend,
}
"""What an item of a batch does."""
