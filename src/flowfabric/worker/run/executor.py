"""Runs one claimed execution: calls its handler and reports how it ended."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec

from flowfabric.core.base.errors import FlowFabricError, Invalid, LeaseLost, NoSigningKey
from flowfabric.core.execution.retry import Category
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.worker.api.context import Context
from flowfabric.worker.api.sync import SyncContext
from flowfabric.worker.api.task import Mode, Task
from flowfabric.worker.codec import Undecodable, encode
from flowfabric.worker.errors import DRAIN, LOST, TIMED_OUT
from flowfabric.worker.run.arguments import fill_in
from flowfabric.worker.run.lease import Key, WorkerLease
from flowfabric.worker.run.outcome import (
    AGAIN,
    Report,
    completing,
    failing,
    failing_by,
    handing_back,
    leaving,
    nothing,
    settling,
    suspending,
    timing_out,
    uncommitted,
)
from flowfabric.worker.run.processes import ProcessDied, Processes
from flowfabric.worker.run.scope import CallScope, SignalsBySuspension
from flowfabric.worker.run.steps import current_context
from flowfabric.worker.run.threads import Threads
from flowfabric.worker.run.until_available import until_available

log = logging.getLogger("flowfabric.worker")


def _nothing() -> None: ...


class ActiveRun:
    """One execution that a worker runs: its claim, and why it was stopped, if it was."""

    def __init__(
        self, claim: Claim, handler: Task[Any, Any] | None, lease: WorkerLease | None = None
    ) -> None:
        self.claim = claim
        self.handler = handler
        self.lease = lease or WorkerLease(claim)
        self.scope: CallScope | None = None
        self.job: asyncio.Task[None] | None = None
        self.thread: Future[Any] | None = None
        self.handling = False
        self.reporting = False
        self.stopped = ""
        self.again = False
        self.received: SignalsBySuspension = {}
        self.payload = claim.payload
        self.raised: BaseException | None = None
        self.completed = False
        """Whether the handler ended the run in a transaction. Only the store knows whether that
        was committed."""
        self.on_completed: Callable[[], None] = _nothing
        self.on_step: Callable[[], None] = _nothing

    @property
    def key(self) -> Key:
        return self.lease.key

    @property
    def parked(self) -> bool:
        return self.scope is not None and self.scope.parked

    @property
    def lingers(self) -> bool:
        """Whether a plain function still runs in its thread after its run was left."""
        return self.thread is not None and not self.thread.done()

    def complete(self) -> None:
        self.completed = True
        self.on_completed()

    def stop(self, reason: str) -> None:
        """Cancels the handler, but never the report of how it ended; the first reason counts."""
        if self.stopped:
            return
        self.stopped = reason
        if self.scope is not None:
            self.scope.stop(reason)
        if self.handling and self.job is not None:
            self.job.cancel()


class Executor:
    """Calls handlers in the event loop, a thread or a process, and reports how they ended. The
    only place where user code is called."""

    def __init__(
        self,
        engine: Engine,
        *,
        handlers: Threads,
        steps: Threads,
        processes: Processes,
        stopping: Callable[[], bool],
        cancelled: Callable[[], bool],
    ) -> None:
        """`stopping` says whether the worker drains, `cancelled` whether it is torn down."""
        self._engine = engine
        self._handlers = handlers
        self._steps = steps
        self._processes = processes
        self._stopping = stopping
        self._cancelled = cancelled

    async def run(self, active: ActiveRun) -> None:
        """Every outcome is reported to the store, except that of a lost lease."""
        try:
            while await self._run_once(active):
                active.again, active.scope = True, None
        except LeaseLost as error:
            log.info(
                "%s ended after its lease was lost; nothing is reported: %s", active.claim.id, error
            )
        except FlowFabricError as error:
            log.warning(
                "how %s ended could not be reported; its lease expires and it is taken over: %s",
                active.claim.id,
                error,
            )

    async def _run_once(self, active: ActiveRun) -> bool:
        """Whether the handler runs again at once, because what it waits for is there."""
        report = await self._handle(active)
        if active.completed:
            report = settling(active.claim, report, active.raised)
        active.reporting = True
        try:
            return await self._deliver(active, report) is AGAIN
        finally:
            active.reporting = False

    async def _handle(self, active: ActiveRun) -> Report:
        """Calls the handler; returns the report about how it ended."""
        if active.stopped:
            return self._stopped(active)
        active.handling = True
        try:
            return await self._outcome(active)
        except asyncio.CancelledError:
            return self._stopped(active)
        except BaseException as error:
            return self._raised(active, error)
        finally:
            active.handling = False
            if active.scope is not None:
                active.scope.close()

    async def _outcome(self, active: ActiveRun) -> Report:
        """Calls the handler; its return value becomes a report."""
        handler, claim = active.handler, active.claim
        if handler is None:
            return self._unknown(claim)
        active.payload = await self._payload(active)
        if not await self._may_begin(active):
            return nothing
        try:
            args, kwargs = handler.signature.decode(active.payload)
        except Undecodable as error:
            return failing(claim, str(error))
        if handler.mode is not Mode.PROCESS:
            active.scope = CallScope(
                self._engine,
                active.lease,
                self._steps,
                on_completed=active.complete,
                on_step=active.on_step,
                again=active.again,
                received=active.received,
            )
        return await self._returned(active, await self._timed(active, handler, args, kwargs))

    async def _returned(self, active: ActiveRun, result: object) -> Report:
        if active.scope is not None:
            if active.scope.parked:
                return suspending(active.scope)
            await active.scope.finish()
            if active.completed:
                return uncommitted(active.claim)
        try:
            return completing(active.claim, encode(result))
        except Invalid as error:
            reason = f"what {active.claim.kind} returned cannot be stored: {error.detail}"
            return failing(active.claim, reason)

    async def _may_begin(self, active: ActiveRun) -> bool:
        """Whether the handler may begin. The reply to the claim may have come after the lease had
        expired, and another worker may have done the work since. A lease that is half over is
        renewed."""
        pointless, half = partial(self._pointless, active), active.claim.ttl // 2
        try:
            await active.lease.confirm(self._engine, pointless, ahead=half)
        except LeaseLost as error:
            log.info(
                "%s is not started: the reply to its claim came too late: %s",
                active.claim.id,
                error,
            )
            return False
        return True

    async def _payload(self, active: ActiveRun) -> bytes:
        """The arguments, with the results of the upstreams filled in."""
        snapshot = active.claim.snapshot
        if snapshot.life.join is None or not snapshot.life.join.inputs:
            return active.claim.payload
        inputs = await until_available(
            lambda: self._engine.flow_views.inputs(snapshot), partial(self._pointless, active)
        )
        return fill_in(active.claim.payload, inputs)

    async def _timed(
        self, active: ActiveRun, handler: Task[Any, Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        times_out_at = active.claim.lease.times_out_at
        if times_out_at is None:
            return await self._call(active, handler, args, kwargs)
        timer = asyncio.timeout(max(0.0, (times_out_at - self._engine.now()) / 1000))
        try:
            async with timer:
                result = await self._call(active, handler, args, kwargs)
        except BaseException:
            if not timer.expired():
                raise
        if not timer.expired():
            return result
        # Also if the handler swallowed the cancellation: the sweep would report the same.
        if active.scope is not None:
            active.scope.stop(TIMED_OUT)
        raise _TimedOut

    async def _call(
        self, active: ActiveRun, handler: Task[Any, Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        scope = active.scope
        if scope is None:
            return msgspec.Raw(await self._processes.call(handler, active.payload))
        if handler.mode is Mode.ASYNC:
            scope.adopt()
            # Not made before it is asked for: most handlers of short tasks take no context.
            make_context = partial(Context, scope)
            current_context.set(make_context)
            given = [make_context(), *args] if handler.takes_context else args
            result = handler.function(*given, **kwargs)
        else:
            result = await self._in_thread(active, scope, handler, args, kwargs)
        return await result if inspect.isawaitable(result) else result

    async def _in_thread(
        self,
        active: ActiveRun,
        scope: CallScope,
        handler: Task[Any, Any],
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        def make_context() -> SyncContext:
            return SyncContext(Context(scope))

        given = [make_context(), *args] if handler.takes_context else args

        def call() -> Any:
            scope.adopt()
            current_context.set(make_context)
            return handler.function(*given, **kwargs)

        active.thread = self._handlers.start(call)
        return await asyncio.wrap_future(active.thread)

    def _unknown(self, claim: Claim) -> Report:
        log.warning("no task is named %r here; %s is left to another worker", claim.kind, claim.id)
        return leaving(claim)

    def _stopped(self, active: ActiveRun) -> Report:
        """The handler was cancelled: by the worker, by the end of the event loop, or by itself."""
        if active.stopped == LOST:
            return nothing
        if active.parked and active.scope is not None:
            return suspending(active.scope)
        if active.stopped == DRAIN or self._cancelled():
            return handing_back(active.claim)
        return failing(active.claim, "the handler cancelled itself", Category.TRANSIENT)

    def _raised(self, active: ActiveRun, error: BaseException) -> Report:
        """The handler raised. One that is parked or was stopped may have raised because of that."""
        claim, active.raised = active.claim, error
        if active.stopped or active.parked or self._cancelled():
            return self._stopped(active)
        if isinstance(error, _TimedOut):
            return timing_out(claim)
        if isinstance(error, ProcessDied):
            # The signal that stops the worker may have reached its processes as well.
            crash = failing(claim, str(error), Category.INFRA_CRASH)
            return handing_back(claim) if self._stopping() else crash
        return failing_by(claim, error)

    async def _deliver(self, active: ActiveRun, report: Report) -> object:
        """Repeats the report until the store answers; the heartbeat keeps the lease meanwhile."""
        pointless = partial(self._pointless, active)
        try:
            return await until_available(partial(report, self._engine), pointless)
        except (Invalid, NoSigningKey) as error:  # such as a result that is too large
            report = failing(active.claim, f"how it ended cannot be stored: {error.detail}")
            return await until_available(partial(report, self._engine), pointless)

    def _pointless(self, active: ActiveRun) -> bool:
        return active.stopped == LOST or self._cancelled()


class _TimedOut(Exception):
    pass
