"""The context of a run: what a handler can ask the engine for."""

import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Generic, ParamSpec, TypeVar, overload

from msgspec import Struct

from flowfabric.core.base.errors import Invalid, LeaseLost
from flowfabric.core.base.ids import ExecutionId, RunId
from flowfabric.core.base.text import MAX_STATE_VALUE, check_bytes
from flowfabric.core.base.time import Millis, parse_span, to_datetime
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.step_order import check_step_name
from flowfabric.core.execution.versions import version_of
from flowfabric.worker.api.children import FlowsApi
from flowfabric.worker.api.cleanup import CleanupApi
from flowfabric.worker.api.concurrency import Concurrency
from flowfabric.worker.api.emit import OutputApi
from flowfabric.worker.api.race import RaceApi
from flowfabric.worker.api.run import Run
from flowfabric.worker.api.span import Span
from flowfabric.worker.api.spend import SpendApi
from flowfabric.worker.api.task import Call, Task, check_task
from flowfabric.worker.api.transactions import Completion
from flowfabric.worker.api.waits import WaitsApi
from flowfabric.worker.codec import encode
from flowfabric.worker.errors import LOST
from flowfabric.worker.run.branches import BranchSpot, StepPlace, inside_step
from flowfabric.worker.run.hooks import StepHooks
from flowfabric.worker.run.patches import PatchAnswer
from flowfabric.worker.run.scope import CallScope
from flowfabric.worker.run.steps import Work, attempt, perform

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class RunInfo(Struct, frozen=True):
    """Facts about the run. `attempt` counts from 1; `first` is False after a retry. `version` is
    that of the task, if the run is pinned to it. `trace` is the W3C trace context that it was
    submitted in."""

    id: RunId
    task: str
    lane: str
    namespace: str
    attempt: int
    retries: int
    priority: int
    created_at: datetime
    deadline_at: datetime | None
    version: str | None = None
    trace: str | None = None

    @property
    def first(self) -> bool:
        return self.attempt == 1


class Part(Generic[T]):
    """A part of a context, made when it is first asked for: a handler uses one or two of them."""

    def __init__(self, make: "Callable[[Context], T]") -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, context: None, owner: type) -> "Part[T]": ...
    @overload
    def __get__(self, context: "Context", owner: type) -> T: ...
    def __get__(self, context: "Context | None", owner: type) -> "T | Part[T]":
        if context is None:
            return self
        made = context.__dict__[self._name] = self._make(context)
        return made


class Context:
    """Given to a task whose first parameter is `ctx`: the engine, as one run sees it.

    What a handler asks for here is recorded, and the record takes the place of the work whenever
    the handler runs again. The place in the record is taken when a method is *called*, so several
    calls may be awaited together. Wrap code that makes several such calls beside other such code
    in `gather`, which keeps their places apart.

    `gather` is that of `Concurrency`, `race` and its other name `first_of` those of `RaceApi`,
    `compensate` and `shield` those of `CleanupApi`. The methods that wait (`wait_for_signal`,
    `wait_for_any`, `wait_for_all`, `approval`, `request_approval`, `callback`) are those of
    `WaitsApi`, `flow` and `map` those of `FlowsApi`, `spend` and `reserve` those of `SpendApi`,
    `emit` that of `OutputApi`.
    """

    _scope: CallScope
    _waits: "Part[WaitsApi]" = Part(lambda ctx: WaitsApi(ctx._scope))
    gather = Part(lambda ctx: Concurrency(ctx._scope).gather)
    compensate = Part(lambda ctx: CleanupApi(ctx._scope, type(ctx)).compensate)
    shield = Part(lambda ctx: CleanupApi(ctx._scope, type(ctx)).shield)
    wait_for_signal = Part(lambda ctx: ctx._waits.wait_for_signal)
    wait_for_any = Part(lambda ctx: ctx._waits.wait_for_any)
    wait_for_all = Part(lambda ctx: ctx._waits.wait_for_all)
    approval = Part(lambda ctx: ctx._waits.approval)
    request_approval = Part(lambda ctx: ctx._waits.request_approval)
    callback = Part(lambda ctx: ctx._waits.callback)
    race = Part(lambda ctx: RaceApi(ctx._scope, ctx._waits).race)
    first_of = Part(lambda ctx: RaceApi(ctx._scope, ctx._waits).race)
    flow = Part(lambda ctx: FlowsApi(ctx._scope, ctx._waits).flow)
    map = Part(lambda ctx: FlowsApi(ctx._scope, ctx._waits).map)
    spend = Part(lambda ctx: SpendApi(ctx._scope, ctx._waits).spend)
    reserve = Part(lambda ctx: SpendApi(ctx._scope, ctx._waits).reserve)
    emit = Part(lambda ctx: OutputApi(ctx._scope).emit)

    def __init__(self, scope: CallScope) -> None:
        self._scope = scope

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    @cached_property
    def info(self) -> RunInfo:
        """The id, task, lane, attempt and times of the run."""
        return run_info(self._scope.claim.snapshot)

    @property
    def lifespan(self) -> Any:
        """What the lifespan of the worker has yielded; None without a lifespan."""
        return self._scope.hooks.lifespan.value

    @cached_property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger whose records carry the run: `run`, `task` and `attempt`."""
        claim, run = self._scope.claim, str(self.info.id)
        fields = {
            "run": run,
            "execution": run,
            "task": claim.kind,
            "attempt": self.info.attempt,
        }
        return logging.LoggerAdapter(logging.getLogger(f"flowfabric.task.{claim.kind}"), fields)

    # -- what is recorded

    @overload
    def step(
        self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(
        self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    def step(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        """Calls a function and records its result. When the handler runs again, the recorded result
        is returned and the function is not called. Plain functions run in a thread. Tries that
        failed are recorded too, and a long pause before the next one needs no worker."""
        work, scope = Work.of(function, args, kwargs, self._step_hooks), self._scope
        journal = scope.journal
        place = journal.branches.place(work.name)
        tries = work.tries(scope, place, under_way=True)
        return perform(
            journal, place, partial(attempt, work, scope.threads, tries), work.facts.returns
        )

    def sleep(self, span: Span) -> Coroutine[Any, Any, None]:
        """Sleeps without holding a worker, through crashes and deploys, for minutes or months."""
        length = parse_span(span, "sleep")
        return self._sleep(self._scope.branches.place("sleep"), length)

    def now(self) -> Coroutine[Any, Any, datetime]:
        """The current time. It is recorded: the same whenever the handler runs again."""
        return self._now(self._scope.branches.place("now"))

    def random(self) -> Coroutine[Any, Any, float]:
        """A random number in [0, 1). It is recorded: the same whenever the handler runs again."""
        return perform(self._scope.journal, self._scope.branches.place("random"), _dice, float)

    def patched(self, name: str) -> PatchAnswer:
        """Whether this run takes a change of the code: `if ctx.patched("tax-first"): …`.

        False, for ever, if the run has already recorded something beyond this point without the
        patch: it keeps to the old code. Otherwise True, for ever, and recorded. Every call with the
        same name has the same answer in a run."""
        return PatchAnswer(self._scope.journal.patched(check_step_name(name)))

    def submit(
        self, /, task: "Task[P, R] | Call[P, R]", *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Run[R]]:
        """Submits a child run, exactly once however often the handler runs. It spends from the
        budgets of this run as well as from its own."""
        check_task(task)
        call = task if isinstance(task, Call) else task.with_options()
        if call.options.connection is not None:
            raise Invalid("to submit in a transaction, call submit of the task, not of ctx")
        place = self._scope.branches.place(f"submit:{call.task.name}")
        return self._submit(place, call, args, kwargs)

    # -- the attempt itself

    async def complete_in(self, connection: Any, result: object = None) -> None:
        """Completes the run with this result in an open transaction of the application: its own
        writes and the end of the run are committed together, or neither is.

        Commit right afterwards; the return value of the handler is ignored. Raises LeaseLost if
        another worker has the run: do not catch it, so that the transaction is rolled back.
        """
        await self._completion().write(connection, result)

    async def progress(self, percent: int | None = None, message: str | None = None) -> None:
        """Reports the progress of the run to people who watch it."""
        await self._scope.until_available(
            lambda: self._scope.engine.attempts.progress(self._scope.claim, percent, message)
        )

    def set_state(self, value: object) -> Coroutine[Any, Any, None]:
        """Shows a value to people and programs that watch the run: `run.state_value()`. It is
        encoded as results are, and the last value wins.

        The value outlives the attempt, sleeps and the end of the run. A handler that runs again
        does not set what it has set before: calls that have something recorded after them do
        nothing, so the value never goes back.
        """
        data = _state_value(value)
        if inside_step.get() is not None:  # which is never called again once it is recorded
            return self._show(data)
        return self._set_state(self._scope.branches.spot("set_state"), data)

    def heartbeat(self) -> None:
        """Call it regularly in a plain function that runs long: it stops the function if its lease
        was lost or its worker is stopping, and raises Cancelled if its run is being cancelled.
        Coroutines are cancelled without it."""
        self._scope.check_running()

    # -- how

    @cached_property
    def _step_hooks(self) -> StepHooks | None:
        scope = self._scope
        if not scope.hooks.has_middleware:
            return None
        return StepHooks(scope.hooks, self.info, scope.loop)

    def _completion(self) -> Completion:
        scope = self._scope
        if (step := inside_step.get()) is not None:
            raise Invalid(f"complete_in was called inside step {step!r}, which is recorded whole")
        if scope.halt.reason == LOST:
            raise LeaseLost(f"the lease of run {scope.claim.uuid} was lost")
        scope.check_running()
        return Completion(scope.engine, scope.claim, scope.complete)

    async def _sleep(self, place: StepPlace, span: Millis) -> None:
        record = await self._scope.journal.recorded(place)
        if record is None:
            until = Millis(self._scope.engine.now() + span)
        else:
            until = record.until or Millis(0)
            if self._scope.cancel.lasts_beyond(until):
                await self._scope.journal.reach_end()
            if until <= self._scope.engine.now():
                return
        await self._scope.parking.sleep(place, until, known=record is not None)

    async def _set_state(self, spot: BranchSpot, value: bytes) -> None:
        scope = self._scope
        with scope.branches.under_way():
            if not await scope.journal.is_past(spot):
                await self._show(value)

    async def _show(self, value: bytes) -> None:
        scope = self._scope
        scope.check_running()
        await scope.until_available(lambda: scope.engine.attempts.set_state(scope.claim, value))

    async def _now(self, place: StepPlace) -> datetime:
        async def clock() -> int:
            return self._scope.engine.now()

        return to_datetime(await perform(self._scope.journal, place, clock, int))

    async def _submit(
        self, place: StepPlace, call: "Call[P, R]", args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Run[R]:
        key = self._scope.key_at(place)

        async def submit() -> str:
            keyed = call.or_key(key).also_spending(self._scope.claim.policy.budget_ids)
            run = await self._scope.until_available(lambda: keyed.submit(*args, **kwargs))
            return run.id.tagged

        id = await perform(self._scope.journal, place, submit, str)
        return call.task.run_of(ExecutionId(id))


def _state_value(value: object) -> bytes:
    try:
        data = encode(value)
    except Invalid as error:
        raise Invalid(f"ctx.set_state cannot show this value: {error.detail}") from None
    return check_bytes(data, "state value", MAX_STATE_VALUE)


async def _dice() -> float:
    return random.random()  # noqa: S311 - the user's dice, not a secret


def run_info(snapshot: Snapshot) -> RunInfo:
    execution = snapshot.execution
    deadline = snapshot.deadline_at
    return RunInfo(
        id=RunId(execution.id),
        task=execution.kind,
        lane=execution.route.lane,
        namespace=execution.route.namespace,
        attempt=(snapshot.current_attempt or 0) + 1,
        retries=snapshot.life.retries,
        priority=snapshot.priority,
        created_at=to_datetime(execution.created_at),
        deadline_at=None if deadline is None else to_datetime(deadline),
        version=version_of(execution.route),
        trace=execution.facts.trace,
    )
