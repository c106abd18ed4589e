"""Runs one claimed execution: has its handler called and reports how it ended."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Raw

from flowfabric.core.base.errors import FlowFabricError, Invalid, LeaseLost, NoSigningKey
from flowfabric.core.base.time import to_datetime
from flowfabric.core.execution.mismatch import Mismatch
from flowfabric.core.execution.model import Failure, Outcome
from flowfabric.core.execution.retry import Category
from flowfabric.core.flow.arguments import fill_in
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.worker.api.context import run_info
from flowfabric.worker.api.hooks import AttemptEnd
from flowfabric.worker.api.task import Mode, Task
from flowfabric.worker.codec import Undecodable, encode
from flowfabric.worker.errors import DRAIN, LOST, Postpone, StepsChanged
from flowfabric.worker.run.active import ActiveRun, fields_of
from flowfabric.worker.run.callers import Callers
from flowfabric.worker.run.calling import AttemptTimedOut, HandlerCalls, decode_result
from flowfabric.worker.run.cancelling import CancelNotice
from flowfabric.worker.run.failure import MAX_MESSAGE, begin_in_user_code, storable, type_of
from flowfabric.worker.run.hooks import WorkerHooks
from flowfabric.worker.run.outcome import (
    AGAIN,
    Report,
    Reported,
    Undoing,
    blocking_by_code,
    completing,
    ended_by_others,
    failing,
    failing_by,
    finishing,
    handing_back,
    leaving,
    nothing,
    returning_untried,
    settling,
    suspending,
    timing_out,
    uncommitted,
)
from flowfabric.worker.run.processes import ProcessDied, Processes
from flowfabric.worker.run.scope import CallScope
from flowfabric.worker.run.threads import Threads
from flowfabric.worker.run.undo import undo_all
from flowfabric.worker.run.until_available import until_available

log = logging.getLogger("flowfabric.worker")


class Executor:
    """Has handlers called and reports how they ended."""

    def __init__(
        self,
        engine: Engine,
        *,
        handlers: Threads,
        steps: Threads,
        processes: Processes,
        hooks: WorkerHooks,
        stopping: Callable[[], bool],
        cancelled: Callable[[], bool],
    ) -> None:
        """`stopping` says whether the worker drains, `cancelled` whether it is torn down."""
        self.calls = HandlerCalls(
            engine.now,
            handlers=handlers,
            processes=processes,
            hooks=hooks,
            late_scope=self._late_scope,
        )
        self._callers = Callers()
        self.loop = self._callers.loop
        self._engine = engine
        self._steps = steps
        self._hooks = hooks
        self._stopping = stopping
        self._cancelled = cancelled

    async def run(self, active: ActiveRun) -> None:
        """Every outcome is reported to the store, except that of a lost lease."""
        active.entered = True
        if active.job is None:  # a loop may run what it starts at once
            active.job = asyncio.current_task()
        try:
            while await self._run_once(active):
                active.again, active.scope = True, None
        except LeaseLost as error:
            log.info(
                "run %s ended after its lease was lost; nothing is reported: %s",
                active.claim.uuid,
                error,
                extra=active.fields,
                exc_info=active.error,
            )
        except FlowFabricError as error:
            log.warning(
                "the end of run %s could not be reported; its lease expires and another worker "
                "takes it over: %s",
                active.claim.uuid,
                error,
                extra=active.fields,
                exc_info=active.error,
            )

    async def _run_once(self, active: ActiveRun) -> bool:
        """Whether the handler runs again at once, because what it waits for is there."""
        report = await self._handle(active)
        if active.completed:
            report = settling(active.claim, report, active.raised)
        elif active.told and active.begun:
            report = await self._cleaned_up(active, report)
        active.reporting = True
        try:
            reported = await self._deliver(active, report)
            if isinstance(reported, Undoing):
                active.reporting = False
                report = await self._undone(active, reported.failure)
                active.reporting = True
                reported = await self._deliver(active, report)
            if reported is None and active.stopped == LOST and not self._cancelled():
                reported = await self._ended_by_others(active)
            if isinstance(reported, Reported) and self._hooks.listens_to(
                active.handler, reported.outcome
            ):
                await self._call_end_hooks(active, reported)
            return reported is AGAIN
        finally:
            active.reporting = False

    async def _cleaned_up(self, active: ActiveRun, report: Report) -> Report:
        """What to report after a handler that was told of the cancel; one that was stopped, waits
        or asked for other steps continues its clean-up elsewhere, or later."""
        error = active.raised
        changed = error is not None and _steps_changed(active, error) is not None
        if active.stopped or active.parked or changed or self._cancelled():
            return report
        cleanup = active.claim.snapshot.life.cleanup
        if cleanup is not None and cleanup.outcome is not Outcome.CANCELLED:
            return await self._undone(active, active.claim.snapshot.life.failure)
        own = error if isinstance(error, Exception) else None
        return await self._undone(active, None, own)

    async def _undone(
        self, active: ActiveRun, failure: Failure | None, error: Exception | None = None
    ) -> Report:
        """Runs the compensations. `failure` is that of a run that has failed, `error` that of the
        clean-up before."""
        active.scope = scope = self._make_scope(active, again=True)
        active.handling = True
        try:
            raised = await undo_all(scope, active.undos)
        except asyncio.CancelledError:
            return self._stopped(active)
        except BaseException:  # the lease is lost, the worker stops, or an undo waits
            return self._stopped(active) if active.stopped or scope.parked else nothing
        finally:
            active.handling = False
            scope.close()
        reason = "" if active.notice is None else active.notice.reason
        return finishing(active.claim, failure, error or raised, reason)

    async def _ended_by_others(self, active: ActiveRun) -> Reported | None:
        """How the run was ended while its handler ran here, such as by a cancel."""
        try:
            found = await self._engine.views.load([active.claim.uuid])
        except FlowFabricError:
            return None  # the store is away; the process that ended the run knows
        return ended_by_others(active.claim, found.get(active.claim.uuid))

    async def _call_end_hooks(self, active: ActiveRun, reported: Reported) -> None:
        """Called when the end is durable; the slot is free when all hooks have returned."""
        failure, error, handler = reported.failure, active.raised, active.handler
        args, kwargs = active.args, active.kwargs
        if handler is not None and (args or kwargs):
            args, kwargs = handler.signature.place(args, kwargs)
        if reported.outcome in ("completed", "handed_back", "cancelled"):
            error = None
        retry_at = reported.retry_at
        end = AttemptEnd(
            run=run_info(active.claim.snapshot),
            attempt=active.claim.attempt + 1,
            outcome=reported.outcome,
            error=error,
            error_type="" if error is None else type_of(error),
            message="" if failure is None else failure.message,
            category="" if failure is None else failure.category,
            retry_at=None if retry_at is None else to_datetime(retry_at),
            result=_result_of(active) if reported.outcome == "completed" else None,
            args=args,
            kwargs=kwargs,
            lifespan=self._hooks.lifespan.value,
        )
        await self._hooks.ended(handler, end, self._steps)

    async def _handle(self, active: ActiveRun) -> Report:
        """Calls the handler; returns the report about how it ended."""
        if active.stopped:
            return self._stopped(active)
        active.handling, active.raised, active.begun = True, None, False
        try:
            try:
                return await self._outcome(active)
            except Exception:
                # A failure is reported after the store knows of all compensations.
                if active.scope is not None and not active.stopped:
                    await active.scope.announce_undos()
                raise
        except asyncio.CancelledError:
            return self._stopped(active)
        except BaseException as error:
            return self._raised(active, error)
        finally:
            active.handling = False
            if active.scope is not None:
                active.undos = active.scope.undos
                active.scope.close()

    async def _outcome(self, active: ActiveRun) -> Report:
        """Calls the handler; its return value becomes a report."""
        handler, claim = active.handler, active.claim
        if handler is None:
            return _unknown(claim)
        life = claim.snapshot.life
        if life.code is not None and handler.fingerprint in life.code.tried:
            return returning_untried(claim, handler.fingerprint)
        if life.join is not None and life.join.inputs:
            active.payload = await self._filled_in(active)
        if not (self._is_fresh(active) or await self._may_begin(active)):
            return nothing
        try:
            args, active.kwargs = handler.signature.decode(active.payload)
        except Undecodable as error:
            active.raised = error
            return failing(claim, str(error), Category.UNDECODABLE)
        active.args, active.begun = tuple(args), True
        return await self._called(active, handler)

    async def _called(self, active: ActiveRun, handler: Task[Any, Any]) -> Report:
        """Has the handler called, in a scope of its own if it needs one."""
        if handler.mode is not Mode.PROCESS and self.calls.needs_scope(active, handler):
            active.scope = self._make_scope(active, again=active.again, notice=active.notice)
            if active.scope.is_continued:
                await active.scope.load()
        if active.told and not _can_be_told(handler):
            return nothing
        result, scope = await self.calls.call(active, handler), active.scope
        if scope is not None:
            if scope.parked:
                return suspending(scope)
            if active.told:
                return nothing  # how it ends is not up to the handler any more
            await scope.finish()
            if active.completed:
                return uncommitted(active.claim)
        return _returned(active, result)

    def _make_scope(
        self, active: ActiveRun, *, again: bool, notice: CancelNotice | None = None
    ) -> CallScope:
        scope = CallScope(
            self._engine,
            active.lease,
            self._steps,
            callers=self._callers,
            on_completed=active.complete,
            on_step=active.on_step,
            again=again,
            hooks=self._hooks,
        )
        scope.received = active.received
        scope.expect_cancel(notice, active.learn)
        return scope

    def _late_scope(self, active: ActiveRun) -> CallScope:
        """The scope of a call that began without one. A task or thread that the call has left
        behind gets a closed one, also while the handler is called again."""
        scope = self._make_scope(active, again=False)
        scope.adopt(active.job)
        if active.stopped:
            scope.stop(active.stopped)
        if not active.again:
            active.scope = scope
        if active.again or not active.handling:
            scope.close()
        return scope

    def _is_fresh(self, active: ActiveRun) -> bool:
        """Whether less than half of the lease is over."""
        return active.lease.lasts_until(self._engine.now() + active.claim.ttl // 2)

    async def _may_begin(self, active: ActiveRun) -> bool:
        """Whether the handler may begin. The reply to the claim may have come after the lease had
        expired, and another worker may have done the work since. A lease that is half over is
        renewed."""
        pointless, half = partial(self._pointless, active), active.claim.ttl // 2
        try:
            await active.lease.confirm(self._engine, pointless, ahead=half)
        except LeaseLost as error:
            log.info(
                "run %s is not started: the reply to its claim came too late: %s",
                active.claim.uuid,
                error,
                extra=active.fields,
            )
            return False
        return True

    async def _filled_in(self, active: ActiveRun) -> bytes:
        """The arguments, with the results of the upstreams filled in."""
        snapshot = active.claim.snapshot
        inputs = await until_available(
            lambda: self._engine.flow_views.inputs(snapshot), partial(self._pointless, active)
        )
        return fill_in(active.claim.payload, inputs)

    def _blocked(self, claim: Claim, handler: Task[Any, Any], changed: StepsChanged) -> Report:
        log.warning(
            "run %s is blocked by code: %s; it waits for a worker with other code of %s, or for "
            "`flowfabric run unblock %s`",
            claim.uuid,
            changed.detail,
            claim.kind,
            claim.uuid,
            extra=fields_of(claim),
        )
        mismatch = Mismatch(
            message=storable(changed.detail[:MAX_MESSAGE]),
            fingerprint=handler.fingerprint,
            expected=storable(changed.expected[:MAX_MESSAGE]),
            asked=storable(changed.asked[:MAX_MESSAGE]),
            version=handler.version or "",
        )
        return blocking_by_code(claim, mismatch)

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
        begin_in_user_code(error)
        if active.stopped or active.parked or self._cancelled():
            return self._stopped(active)
        if isinstance(error, AttemptTimedOut):
            return timing_out(claim)
        if isinstance(error, Postpone):
            return leaving(claim, error.delay)
        if (changed := _steps_changed(active, error)) is not None and active.handler is not None:
            return self._blocked(claim, active.handler, changed)
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


def _unknown(claim: Claim) -> Report:
    log.warning(
        "no task is named %r here; run %s is left to another worker",
        claim.kind,
        claim.uuid,
        extra=fields_of(claim),
    )
    return leaving(claim)


def _returned(active: ActiveRun, result: object) -> Report:
    """The report about a handler that returned."""
    active.result = result
    try:
        return completing(active.claim, encode(result))
    except Invalid as error:
        active.raised = error
        reason = f"what {active.claim.kind} returned cannot be stored: {error.detail}"
        return failing(active.claim, reason)


def _can_be_told(handler: Task[Any, Any]) -> bool:
    """Whether a call of the handler can be interrupted before it does its work once more."""
    return handler.mode is Mode.ASYNC or (handler.mode is Mode.THREAD and handler.takes_context)


def _result_of(active: ActiveRun) -> Any:
    if active.handler is None or not isinstance(active.result, Raw):
        return active.result
    return decode_result(active.handler, bytes(active.result))


def _steps_changed(active: ActiveRun, error: BaseException) -> StepsChanged | None:
    """That the code asks for other steps, also if the handler raised something else then."""
    if isinstance(error, StepsChanged):
        return error
    return None if active.scope is None else active.scope.refused
