"""Runs one claimed execution to whatever end its handler gives it."""

import asyncio
import contextvars
import logging
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from flowfabric.core.errors import FlowFabricError, Invalid, LeaseLost, Overloaded, Unavailable
from flowfabric.core.execution import Failure
from flowfabric.core.retry import Category
from flowfabric.core.time import Millis, parse_span
from flowfabric.engine.claims import Claim
from flowfabric.engine.engine import Engine
from flowfabric.worker.codec import Undecodable, encode
from flowfabric.worker.context import Context, SyncContext
from flowfabric.worker.control import Fail, Retry, StepsChanged, Unwind
from flowfabric.worker.processes import ProcessDied, Processes
from flowfabric.worker.steps import current_context
from flowfabric.worker.task import Mode, Task

log = logging.getLogger("flowfabric.worker")

UNKNOWN_TASK_DELAY = Millis(5_000)
MAX_DETAIL = 16_384
MAX_MESSAGE = 4_096


class Active:
    """One execution in hand: its claim, and why it was stopped, if it was."""

    def __init__(self, claim: Claim, handler: Task[Any, Any] | None) -> None:
        self.claim = claim
        self.handler = handler
        self.context: Context | None = None
        self.job: asyncio.Task[None] | None = None
        self.stopped = ""

    def stop(self, reason: str) -> None:
        """Cancels the handler; the first reason counts."""
        if self.stopped:
            return
        self.stopped = reason
        if self.context is not None:
            self.context.stop(reason)
        if self.job is not None:
            self.job.cancel()


LOST = "lease lost"
DRAIN = "worker stopping"


class Executor:
    """Calls handlers where they belong (event loop, thread, process) and reports how they
    ended. The only place where user code is called."""

    def __init__(self, engine: Engine, threads: ThreadPoolExecutor, processes: Processes) -> None:
        self._engine = engine
        self._threads = threads
        self._processes = processes

    async def run(self, active: Active) -> None:
        """Never raises: whatever happens ends up in the store or, for a lost lease, nowhere."""
        try:
            report = await self._outcome(active)
        except asyncio.CancelledError:
            report = self._stopped(active)
        except BaseException as error:
            report = self._parked_or(active, error)
        try:
            await self._deliver(active, report)
        except LeaseLost as error:
            log.info("%s was no longer ours when it ended: %s", active.claim.id, error)
        except FlowFabricError as error:
            log.warning("%s could not be reported: %s", active.claim.id, error)

    async def _outcome(self, active: Active) -> "Report":
        """Calls the handler; what it returns or raises becomes a report."""
        handler, claim = active.handler, active.claim
        if handler is None:
            return self._unknown(claim)
        try:
            args, kwargs = handler.signature.decode(claim.payload)
        except Undecodable as error:
            return failing(claim, str(error), Category.PERMANENT)
        if handler.takes_context:
            active.context = Context(self._engine, claim, asyncio.get_running_loop())
        result = await self._timed(active, handler, args, kwargs)
        if active.context is not None:
            if active.context.parked:
                return nothing
            active.context.check_finished()
        try:
            body = encode(result)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            message = f"what {handler.name} returned cannot be stored: {error}"
            return failing(claim, message, Category.PERMANENT)
        return completing(claim, body)

    async def _timed(
        self, active: Active, handler: Task[Any, Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        times_out_at = active.claim.lease.times_out_at
        if times_out_at is None:
            return await self._call(active, handler, args, kwargs)
        left = max(0.0, (times_out_at - self._engine.now()) / 1000)
        try:
            async with asyncio.timeout(left) as timer:
                return await self._call(active, handler, args, kwargs)
        except TimeoutError:
            if not timer.expired():
                raise
            if active.context is not None:
                active.context.stop("timed out")
            raise _TimedOut from None

    async def _call(
        self, active: Active, handler: Task[Any, Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        match handler.mode:
            case Mode.ASYNC:
                if active.context is None:
                    return await handler.function(*args, **kwargs)
                current_context.set(active.context)
                return await handler.function(active.context, *args, **kwargs)
            case Mode.THREAD:
                return await self._in_thread(active, handler, args, kwargs)
            case Mode.PROCESS:
                return await self._processes.call(handler, active.claim.payload)

    async def _in_thread(
        self, active: Active, handler: Task[Any, Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if active.context is not None:
            outer = SyncContext(active.context)
            args = [outer, *args]
            current_context.set(outer)
        here = contextvars.copy_context()
        call: Callable[[], Any] = lambda: here.run(handler.function, *args, **kwargs)  # noqa: E731
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _unknown(self, claim: Claim) -> "Report":
        log.warning("no task named %r here; %s is left for another worker", claim.kind, claim.id)
        until = Millis(self._engine.now() + UNKNOWN_TASK_DELAY)
        return lambda engine: engine.attempts.delay(claim, until)

    def _stopped(self, active: Active) -> "Report":
        claim = active.claim
        if active.stopped == LOST:
            return nothing
        if active.context is not None and active.context.parked:
            return nothing
        if active.stopped == DRAIN:
            return lambda engine: engine.attempts.hand_back(claim)
        return failing(claim, "the handler cancelled itself", Category.TRANSIENT)

    def _parked_or(self, active: Active, error: BaseException) -> "Report":
        if active.context is not None and active.context.parked:
            return nothing
        return _failure_report(active, error)

    async def _deliver(self, active: Active, report: "Report") -> None:
        """Reports until the store has answered; the heartbeat keeps the lease meanwhile."""
        pause = 0.05
        while True:
            try:
                await report(self._engine)
                return
            except (Unavailable, Overloaded):
                if active.stopped == LOST:
                    raise
                await asyncio.sleep(pause)
                pause = min(2.0, pause * 2)


Report = Callable[[Engine], Any]


class _TimedOut(Exception):
    pass


async def nothing(engine: Engine) -> None:
    """There is nothing to report: the lease is given up or lost already."""


def completing(claim: Claim, body: bytes) -> Report:
    return lambda engine: engine.attempts.complete(claim, body)


def failing(
    claim: Claim,
    message: str,
    category: Category,
    *,
    detail: str | None = None,
    retry_after: Millis | None = None,
) -> Report:
    trace = None if detail is None else _storable(detail[-MAX_DETAIL:]).encode()
    failure = Failure(_storable(message[:MAX_MESSAGE]), category, trace)
    return lambda engine: engine.attempts.fail(claim, failure, retry_after=retry_after)


def _failure_report(active: Active, error: BaseException) -> Report:
    claim = active.claim
    if isinstance(error, Unwind) or active.stopped == LOST:
        return nothing
    if isinstance(error, LeaseLost):
        return nothing
    if isinstance(error, _TimedOut):
        return failing(claim, "the attempt ran longer than its timeout", Category.TIMEOUT)
    if isinstance(error, ProcessDied):
        return failing(claim, str(error), Category.INFRA_CRASH)
    trace = "".join(traceback.format_exception(error))
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, Retry):
        after = None if error.after is None else parse_span(error.after, "retry")
        return failing(claim, message, Category.TRANSIENT, detail=trace, retry_after=after)
    permanent = isinstance(error, Fail | StepsChanged | Invalid)
    category = Category.PERMANENT if permanent else Category.TRANSIENT
    return failing(claim, message, category, detail=trace)


def _storable(text: str) -> str:
    """Error texts come from anywhere; what no store can hold is replaced."""
    return text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode()
