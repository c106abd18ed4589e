"""What a handler can ask of the engine while it runs."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ParamSpec, TypeVar, overload

from msgspec import Struct

from flowfabric.core.base.errors import Invalid, LeaseLost
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis, parse_span, to_datetime
from flowfabric.core.execution.model import Snapshot, Start
from flowfabric.core.limit.spend import SoftBreach, Spent
from flowfabric.engine.engine import Engine
from flowfabric.store.foreign import run_sync
from flowfabric.worker.api.blocking import SyncWaits
from flowfabric.worker.api.children import SyncFlow
from flowfabric.worker.api.run import Run
from flowfabric.worker.api.spend import Spending, SyncReserve
from flowfabric.worker.api.task import Call, Task, check_task
from flowfabric.worker.api.transactions import Completion
from flowfabric.worker.api.waits import Heard
from flowfabric.worker.errors import LOST, OVER, Unwind
from flowfabric.worker.run.journal import (
    Branch,
    Halt,
    Journal,
    StepPlace,
    current_caller,
    inside_step,
)
from flowfabric.worker.run.lease import WorkerLease
from flowfabric.worker.run.steps import Work, attempt, attempt_here, keep, perform, read
from flowfabric.worker.run.threads import Threads
from flowfabric.worker.run.together import together
from flowfabric.worker.run.until_available import until_available

P = ParamSpec("P")
R = TypeVar("R")
Span = str | float | timedelta


class RunInfo(Struct, frozen=True):
    """Which run this is. `attempt` counts from 0, `first` is False after a crash or retry."""

    id: ExecutionId
    task: str
    lane: str
    namespace: str
    attempt: int
    retries: int
    priority: int
    created_at: datetime
    deadline_at: datetime | None

    @property
    def first(self) -> bool:
        return self.attempt == 0


class Context(Spending):
    """Given to a task whose first parameter is `ctx`.

    Whatever is recorded (`step`, `sleep`, `now`, `random`, `submit`) gets its place in the history
    when it is called, so several may be awaited together. Code that makes several such calls and
    runs beside other such code belongs into `gather`, which keeps their places apart.
    """

    def __init__(
        self,
        engine: Engine,
        lease: WorkerLease,
        threads: Threads,
        on_completed: Callable[[], None] = lambda: None,
        on_step: Callable[[], None] = lambda: None,
        *,
        again: bool = False,
        heard: Heard | None = None,
    ) -> None:
        """`again` says that the handler ran before under the same lease, `heard` is what its waits
        heard then."""
        self._again = again
        self._heard = {} if heard is None else heard
        self._engine = engine
        self._lease = lease
        self._claim = lease.claim
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._halt = Halt()
        self._owner: object = None
        self._made: Journal | None = None
        self._on_completed = on_completed
        self._on_step = on_step

    @property
    def _journal(self) -> Journal:
        """Made when it is first needed: many runs never ask for anything."""
        if self._made is None:
            self._made = Journal(
                self._engine,
                self._lease,
                self._halt,
                self._owner,
                again=self._again,
                on_step=self._on_step,
            )
        return self._made

    @cached_property
    def info(self) -> RunInfo:
        return _info(self._claim.snapshot)

    @cached_property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger whose records carry the run: `execution`, `task` and `attempt`."""
        claim = self._claim
        fields = {"execution": str(claim.id), "task": claim.kind, "attempt": claim.attempt}
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
        """Runs a function once: its result is recorded, and whenever the handler runs again the
        recorded value is returned instead. Plain functions run in a thread."""
        work = Work.of(function, args, kwargs)
        place = self._journal.place(work.name)
        journal, threads = self._journal, self._threads
        return perform(
            journal, place, lambda: attempt(work, threads, journal.confirm), work.returns
        )

    async def gather(self, *steps: Awaitable[Any]) -> list[Any]:
        """Runs steps at the same time; results in the order given. When one fails its error is
        raised at once, and the others are cancelled."""
        journal = self._journal
        branches = [journal.branch() for _ in steps]
        pairs = zip(steps, branches, strict=True)
        tasks = [asyncio.ensure_future(self._beside(*pair)) for pair in pairs]
        try:
            with journal.waiting():
                await together(tasks, lambda: self.parked)
        finally:
            journal.forget(branches)
        return [task.result() for task in tasks]

    def sleep(self, span: Span) -> Coroutine[Any, Any, None]:
        """Sleeps without a worker slot, through crashes and deploys, for minutes or months."""
        length = parse_span(span, "sleep")
        return self._sleep(self._journal.place("sleep"), length)

    def now(self) -> Coroutine[Any, Any, datetime]:
        """The time, recorded: the same whenever the handler runs again."""
        return self._now(self._journal.place("now"))

    def random(self) -> Coroutine[Any, Any, float]:
        """A random number in [0, 1), recorded."""
        return perform(self._journal, self._journal.place("random"), _dice, float)

    def submit(
        self, task: "Task[P, R] | Call[P, R]", *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Run[R]]:
        """Submits a child run exactly once, however often the handler runs. It spends of the
        budgets of this run, and of its own."""
        check_task(task)
        call = task if isinstance(task, Call) else task.with_options()
        if call.options.connection is not None:
            raise Invalid("in a transaction a run is submitted by the task itself, not by ctx")
        place = self._journal.place(f"submit:{call.task.name}")
        return self._submit(place, call, args, kwargs)

    # -- the attempt itself

    async def complete_in(self, connection: Any, result: object = None) -> None:
        """Ends the run in success with this result in the open transaction of the application:
        what it wrote there and the end of the run are committed together, or neither is.

        Raises LeaseLost when the run is no longer this worker's: let it pass, so that the
        transaction is rolled back. Commit right afterwards; what the handler returns is ignored.
        """
        await _completion(self).write(connection, result)

    async def progress(self, percent: int | None = None, message: str | None = None) -> None:
        """Says how far the run is, for people who watch it."""
        await until_available(
            lambda: self._engine.attempts.progress(self._claim, percent, message),
            self._halt.__bool__,
        )

    def heartbeat(self) -> None:
        """For plain functions that run long: stops the function here when its lease was lost or
        the worker is stopping. Coroutines are stopped by themselves."""
        if self._halt or self.parked:
            raise Unwind(self._halt.reason)

    # -- for the worker

    def adopt(self) -> None:
        """Called in the task or thread where the handler is about to run."""
        self._owner = current_caller()

    def stop(self, reason: str) -> None:
        """Nothing this handler asks for from now on is done."""
        self._halt.stop(reason)

    def close(self) -> None:
        """The handler is over; what it left behind can do nothing any more."""
        self._halt.stop(OVER)
        self._owner = None  # a task that knows itself would wait for the garbage collector
        if self._made is not None:
            self._made.close()

    @property
    def parked(self) -> bool:
        return self._made is not None and self._made.parked

    async def finish(self) -> None:
        continued = self._again or self._claim.lease.start is not Start.INITIAL
        if self._made is not None or continued:
            await self._journal.finish()

    async def release(self) -> bool:
        """True when the handler is to run again at once."""
        return await self._parking.release()

    # -- how

    async def _beside(self, step: Awaitable[R], branch: Branch) -> R:
        with self._journal.strand(branch):
            try:
                return await step
            except (SystemExit, KeyboardInterrupt) as error:
                # In a task of its own it would end the event loop, and all others with it.
                self._journal.failed(branch)
                raise RuntimeError(f"a step raised {error!r}") from error
            except Exception:
                self._journal.failed(branch)
                raise

    async def _sleep(self, place: StepPlace, span: Millis) -> None:
        record = await self._journal.recorded(place)
        if record is None:
            until = Millis(self._engine.now() + span)
        else:
            until = record.until or Millis(0)
            if until <= self._engine.now():
                return
        await self._parking.sleep(place, until, known=record is not None)

    async def _now(self, place: StepPlace) -> datetime:
        async def clock() -> int:
            return self._engine.now()

        return to_datetime(await perform(self._journal, place, clock, int))

    async def _submit(
        self, place: StepPlace, call: "Call[P, R]", args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Run[R]:
        generation = self._claim.snapshot.life.generation
        key = f"{self._claim.uuid}:{generation}:{place.branch}:{place.position}"

        async def submit() -> str:
            keyed = call.or_key(key).also_spending(self._claim.policy.budget_ids)
            run = await until_available(lambda: keyed.submit(*args, **kwargs), self._halt.__bool__)
            return str(run.id)

        id = await perform(self._journal, place, submit, str)
        return call.task.run_of(ExecutionId(id))


class SyncContext(SyncWaits):
    """The context of a plain function, which runs in a thread: the same words, blocking."""

    _context: Context

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def info(self) -> RunInfo:
        return self._context.info

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        return self._context.log

    @overload
    def step(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def step(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    def step(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """As `Context.step`; a plain function runs in this very thread, unless it has a timeout."""
        work = Work.of(function, args, kwargs)
        if work.is_async:
            return self._block(self._context.step(function, *args, **kwargs))
        return self._step_here(work)

    def sleep(self, span: Span) -> None:
        self._block(self._context.sleep(span))

    def now(self) -> datetime:
        return self._block(self._context.now())

    def random(self) -> float:
        return self._block(self._context.random())

    def submit(self, task: "Task[P, R] | Call[P, R]", *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        return self._block(self._context.submit(task, *args, **kwargs))

    def map(
        self, task: "Task[..., R] | Call[..., R]", items: Iterable[Any], *, name: str | None = None
    ) -> list[R]:
        """As `Context.map`."""
        return self._block(self._context.map(task, items, name=name))

    def flow(self, name: str) -> SyncFlow:
        """As `Context.flow`: `with ctx.flow("parts") as flow: ...`, then `flow.result()`."""
        return SyncFlow(self._context.flow(name), self._block)

    def spend(
        self,
        amounts: Mapping[str, int] | None = None,
        /,
        *,
        budget: str | None = None,
        **dimensions: int,
    ) -> Spent | SoftBreach:
        return self._block(self._context.spend(amounts, budget=budget, **dimensions))

    def reserve(
        self,
        amounts: Mapping[str, int] | None = None,
        /,
        *,
        budget: str | None = None,
        **dimensions: int,
    ) -> SyncReserve:
        """As `Context.reserve`: `with ctx.reserve(tokens=2000) as r: ...`."""
        reserve = self._context.reserve(amounts, budget=budget, **dimensions)
        return SyncReserve(reserve, self._block)

    def progress(self, percent: int | None = None, message: str | None = None) -> None:
        self._block(self._context.progress(percent, message))

    def heartbeat(self) -> None:
        self._context.heartbeat()

    def complete_in(self, connection: Any, result: object = None) -> None:
        """As `Context.complete_in`, on a connection that blocks and in this very thread."""
        completion = _completion(self._context)

        async def current() -> Snapshot:
            return self._block(completion.current())

        run_sync(completion.write(connection, result, current), connection)

    def _step_here(self, work: Work) -> Any:
        """The work is done in the handler's own thread, only the journal is asked in the loop."""
        journal = self._context._journal
        place = journal.place(work.name)
        record = self._block(journal.recorded(place))
        if record is not None:
            return read(place, record, work.returns)
        self.heartbeat()
        result = attempt_here(work, self._context._threads, self._go_on)
        return self._block(keep(journal, place, result, work.returns))

    def _go_on(self) -> None:
        """Between two tries of a step."""
        self.heartbeat()
        self._block(self._context._journal.confirm())

    def _block(self, work: Coroutine[Any, Any, R]) -> R:
        loop = self._context._loop
        if loop.is_closed():
            work.close()
            raise Unwind("the worker is gone")
        return asyncio.run_coroutine_threadsafe(work, loop).result()


def _completion(context: Context) -> Completion:
    if (step := inside_step.get()) is not None:
        raise Invalid(f"complete_in was called inside step {step!r}, which is recorded whole")
    if context._halt.reason == LOST:
        raise LeaseLost("the lease was lost")
    context.heartbeat()
    return Completion(context._engine, context._claim, context._on_completed)


async def _dice() -> float:
    return random.random()  # noqa: S311 - the user's dice, not a secret


def _info(snapshot: Snapshot) -> RunInfo:
    execution = snapshot.execution
    deadline = snapshot.deadline_at
    return RunInfo(
        id=execution.id,
        task=execution.kind,
        lane=execution.route.lane,
        namespace=execution.route.namespace,
        attempt=snapshot.current_attempt or 0,
        retries=snapshot.life.retries,
        priority=snapshot.priority,
        created_at=to_datetime(execution.created_at),
        deadline_at=None if deadline is None else to_datetime(deadline),
    )
