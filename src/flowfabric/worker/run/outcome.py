"""What a worker tells the engine about an execution in the end, as one call to make."""

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
"""The answer of a report that leaves the lease where it is, for the handler to run again."""

UNKNOWN_TASK_DELAY = Millis(5_000)


async def nothing(engine: Engine) -> None:
    """There is nothing to report: the lease is lost."""


def completing(claim: Claim, body: bytes) -> Report:
    return lambda engine: engine.attempts.complete(claim, body)


def uncommitted(claim: Claim) -> Report:
    return failing(claim, UNCOMMITTED, Category.TRANSIENT)


def settling(claim: Claim, otherwise: Report, raised: BaseException | None) -> Report:
    """The handler ended the run in the application's transaction. That counts if it was committed,
    whatever happened to the handler afterwards."""

    async def report(engine: Engine) -> None:
        found = (await engine.store.load([claim.uuid])).get(claim.uuid)
        if found is None or not completed_by(claim, found):
            await otherwise(engine)
            return
        engine.attempts.ended_elsewhere(claim, found)
        engine.store.hints.send()  # whoever waits for the result
        if raised is not None:
            log.warning("%s is completed; afterwards its handler raised", claim.id, exc_info=raised)

    return report


def suspending(scope: CallScope) -> Report:
    """The run sleeps or waits, unless what it waits for is there: then AGAIN."""

    async def report(engine: Engine) -> object:
        return AGAIN if await scope.release() else None

    return report


def handing_back(claim: Claim) -> Report:
    """The same attempt goes on elsewhere, no retry is spent."""
    return lambda engine: engine.attempts.hand_back(claim)


def leaving(claim: Claim) -> Report:
    """The same after a while, so that a worker that knows the task has time to take it."""
    return lambda engine: engine.attempts.delay(claim, Millis(engine.now() + UNKNOWN_TASK_DELAY))


def timing_out(claim: Claim) -> Report:
    """Ends the attempt as the sweep would have done it, whichever of the two is first."""
    return lambda engine: engine.attempts.time_out(claim)


def failing(claim: Claim, message: str, category: Category = Category.PERMANENT) -> Report:
    failure = Failure(storable(message[:MAX_MESSAGE]), category)
    return lambda engine: engine.attempts.fail(claim, failure)


def failing_by(claim: Claim, error: BaseException) -> Report:
    """What a handler raised decides whether and when it is worth another try."""
    raised = Raised.by(error)
    failure = Failure(raised.message, raised.category, raised.trace.encode() or None)
    return lambda engine: engine.attempts.fail(claim, failure, retry_after=raised.after)
