"""Reports: how an execution ended in a worker, as one call of the engine."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import CleaningUp, Failing, RetryScheduled, TerminalFailed
from flowfabric.core.execution.mismatch import Mismatch
from flowfabric.core.execution.model import Ended, Failure, Outcome, Snapshot
from flowfabric.core.execution.retry import Category
from flowfabric.core.execution.status import PublicState
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.hints import Topic
from flowfabric.worker.api.hooks import EndOutcome
from flowfabric.worker.api.transactions import UNCOMMITTED, completed_by
from flowfabric.worker.run.failure import MAX_MESSAGE, Raised, storable
from flowfabric.worker.run.scope import CallScope

log = logging.getLogger("flowfabric.worker")


class Reported(Struct, frozen=True):
    """What a report has made of the attempt, for those who watch it."""

    outcome: EndOutcome
    failure: Failure | None = None
    retry_at: Millis | None = None


class Undoing(Struct, frozen=True):
    """The failure is final, and the compensations of the run are next."""

    failure: Failure


Report = Callable[[Engine], Awaitable[Any]]
"""Returns what it has `Reported`, None if there is nothing to tell, or AGAIN."""

_COMPLETED = Reported("completed")

AGAIN = object()
"""The answer of a report that keeps the lease: the handler runs again."""

UNKNOWN_TASK_DELAY = Millis(5_000)


async def nothing(engine: Engine) -> None:
    """Reports nothing: the lease is lost."""


def completing(claim: Claim, body: bytes) -> Report:
    async def report(engine: Engine) -> Reported:
        await engine.attempts.complete(claim, body)
        return _COMPLETED

    return report


def uncommitted(claim: Claim) -> Report:
    return failing(claim, UNCOMMITTED, Category.TRANSIENT)


def settling(claim: Claim, otherwise: Report, raised: BaseException | None) -> Report:
    """For a handler that ended the run in a transaction of the application. If that was committed,
    the run is completed, even if the handler failed afterwards."""

    async def report(engine: Engine) -> object:
        found = (await engine.views.load([claim.uuid])).get(claim.uuid)
        if found is None or not completed_by(claim, found):
            return await otherwise(engine)
        engine.attempts.ended_elsewhere(claim, found)
        engine.hints.send(Topic.ENDINGS)  # wakes those that wait for the result
        if raised is not None:
            log.warning(
                "run %s is completed; its handler raised afterwards",
                claim.uuid,
                exc_info=raised,
                extra={"run": str(claim.uuid), "task": claim.kind},
            )
        return _COMPLETED

    return report


def suspending(scope: CallScope) -> Report:
    """Suspends the run, unless what it waits for is there: then AGAIN."""

    async def report(engine: Engine) -> object:
        return AGAIN if await scope.release() else None

    return report


def handing_back(claim: Claim) -> Report:
    """Another worker continues the same attempt; no retry is used."""

    async def report(engine: Engine) -> Reported:
        await engine.attempts.hand_back(claim)
        return Reported("handed_back")

    return report


def leaving(claim: Claim, delay: Millis = UNKNOWN_TASK_DELAY) -> Report:
    """As `handing_back`, after a delay; by default one in which a worker that knows the task can
    take it."""

    async def report(engine: Engine) -> None:
        await engine.attempts.delay(claim, Millis(engine.now() + delay))

    return report


def blocking_by_code(claim: Claim, mismatch: Mismatch) -> Report:
    """Another worker, whose code fits, continues the same attempt; no retry is used."""

    async def report(engine: Engine) -> None:
        await engine.attempts.block_by_code(claim, mismatch)

    return report


def returning_untried(claim: Claim, fingerprint: str) -> Report:
    """As `blocking_by_code`, for code that did not fit before."""

    async def report(engine: Engine) -> None:
        await engine.attempts.return_untried(claim, fingerprint)

    return report


def timing_out(claim: Claim) -> Report:
    """Ends the attempt as the sweep would, whichever comes first."""
    failure = Failure(f"{claim.kind} took longer than its timeout", Category.TIMEOUT)

    async def report(engine: Engine) -> Reported | Undoing:
        return _failed(await engine.attempts.time_out(claim), failure)

    return report


def failing(claim: Claim, message: str, category: Category = Category.PERMANENT) -> Report:
    return _failing(claim, Failure(storable(message[:MAX_MESSAGE]), category))


def failing_by(claim: Claim, error: BaseException) -> Report:
    """The exception decides whether and when the run is retried."""
    raised = Raised.by(error)
    return _failing(claim, failure_of(error), raised.after)


def _failing(claim: Claim, failure: Failure, retry_after: Millis | None = None) -> Report:
    async def report(engine: Engine) -> Reported | Undoing:
        answer = await engine.attempts.fail(claim, failure, retry_after=retry_after)
        return _failed(answer, failure)

    return report


def finishing(
    claim: Claim, failure: Failure | None, error: Exception | None, reason: str = ""
) -> Report:
    """Ends a run that was cleaned up: `failure` is why it has failed, None if it was cancelled for
    a `reason`. A cancelled one whose clean-up raised an `error` is tried again if it has retries
    left."""

    async def report(engine: Engine) -> Reported:
        wrong = None if error is None else failure_of(error)
        if wrong is not None and failure is None:
            answer = await engine.attempts.fail(claim, wrong)
            if isinstance(answer, RetryScheduled):
                return Reported("retrying", wrong, answer.delay_until)
            if isinstance(answer, TerminalFailed):
                return Reported("cancelled", wrong)
        ended = await engine.attempts.finish_cleanup(claim, wrong)
        why = failure or wrong or Failure(reason, Category.CANCELLED)
        return Reported(_ENDINGS[ended.state], why)

    return report


_ENDINGS: dict[PublicState, EndOutcome] = {
    PublicState.CANCELLED: "cancelled",
    PublicState.FAILED: "failed",
    PublicState.EXPIRED: "expired",
}


def failure_of(error: BaseException) -> Failure:
    raised = Raised.by(error)
    return Failure(raised.message, raised.category, raised.trace.encode() or None, raised.step)


def _failed(answer: Failing, failure: Failure) -> Reported | Undoing:
    if isinstance(answer, CleaningUp):
        return Undoing(failure)
    if isinstance(answer, RetryScheduled):
        return Reported("retrying", failure, answer.delay_until)
    return Reported("expired" if failure.category == Category.TIMEOUT else "failed", failure)


def ended_by_others(claim: Claim, found: Snapshot | None) -> Reported | None:
    """How the run ended while this claim held it, by a cancel or its deadline; None if the lease
    was lost in another way."""
    if found is None or not isinstance(found.state, Ended):
        return None
    lease, life = found.state.lease, found.life
    if lease is None or lease.id != claim.lease.id:
        return None
    match found.state.outcome:
        case Outcome.CANCELLED:
            return Reported("cancelled", Failure(life.cancel_reason or "", Category.CANCELLED))
        case Outcome.EXPIRED:
            return Reported("expired", life.failure)
        case Outcome.FAILED:
            return Reported("failed", life.failure)
        case _:
            return None
