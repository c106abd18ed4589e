"""Reports: how an execution ended in a worker, as one call of the engine."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Failure
from flowfabric.core.execution.retry import Category
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.worker.api.transactions import UNCOMMITTED, completed_by
from flowfabric.worker.run.failure import MAX_MESSAGE, Raised, storable
from flowfabric.worker.run.scope import CallScope

log = logging.getLogger("flowfabric.worker")

Report = Callable[[Engine], Awaitable[Any]]

AGAIN = object()
"""The answer of a report that keeps the lease: the handler runs again."""

UNKNOWN_TASK_DELAY = Millis(5_000)


async def nothing(engine: Engine) -> None:
    """Reports nothing: the lease is lost."""


def completing(claim: Claim, body: bytes) -> Report:
    return lambda engine: engine.attempts.complete(claim, body)


def uncommitted(claim: Claim) -> Report:
    return failing(claim, UNCOMMITTED, Category.TRANSIENT)


def settling(claim: Claim, otherwise: Report, raised: BaseException | None) -> Report:
    """For a handler that ended the run in a transaction of the application. If that was committed,
    the run is completed, even if the handler failed afterwards."""

    async def report(engine: Engine) -> None:
        found = (await engine.store.load([claim.uuid])).get(claim.uuid)
        if found is None or not completed_by(claim, found):
            await otherwise(engine)
            return
        engine.attempts.ended_elsewhere(claim, found)
        engine.store.hints.send()  # wakes those that wait for the result
        if raised is not None:
            log.warning("%s is completed; its handler raised afterwards", claim.id, exc_info=raised)

    return report


def suspending(scope: CallScope) -> Report:
    """Suspends the run, unless what it waits for is there: then AGAIN."""

    async def report(engine: Engine) -> object:
        return AGAIN if await scope.release() else None

    return report


def handing_back(claim: Claim) -> Report:
    """Another worker continues the same attempt; no retry is used."""
    return lambda engine: engine.attempts.hand_back(claim)


def leaving(claim: Claim) -> Report:
    """As `handing_back`, after a delay in which a worker that knows the task can take it."""
    return lambda engine: engine.attempts.delay(claim, Millis(engine.now() + UNKNOWN_TASK_DELAY))


def timing_out(claim: Claim) -> Report:
    """Ends the attempt as the sweep would, whichever comes first."""
    return lambda engine: engine.attempts.time_out(claim)


def failing(claim: Claim, message: str, category: Category = Category.PERMANENT) -> Report:
    failure = Failure(storable(message[:MAX_MESSAGE]), category)
    return lambda engine: engine.attempts.fail(claim, failure)


def failing_by(claim: Claim, error: BaseException) -> Report:
    """The exception decides whether and when the run is retried."""
    raised = Raised.by(error)
    failure = Failure(raised.message, raised.category, raised.trace.encode() or None, raised.step)
    return lambda engine: engine.attempts.fail(claim, failure, retry_after=raised.after)
