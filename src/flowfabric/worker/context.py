"""What a handler can ask of the engine while it runs."""

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ParamSpec, TypeVar

from msgspec import Struct

from flowfabric.core.execution import Snapshot
from flowfabric.core.ids import ExecutionId
from flowfabric.core.time import Millis, parse_span, to_datetime
from flowfabric.engine.claims import Claim
from flowfabric.engine.engine import Engine
from flowfabric.worker.control import Unwind
from flowfabric.worker.run import Run
from flowfabric.worker.steps import (
    Journal,
    attempt,
    perform,
    returns_of,
    step_name,
    unwrap,
)
from flowfabric.worker.task import Call, CallOptions, Task

P = ParamSpec("P")
R = TypeVar("R")
Span = str | float | timedelta


class Info(Struct, frozen=True):
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


class Context:
    """Given to a task whose first parameter is `ctx`."""

    def __init__(self, engine: Engine, claim: Claim, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._claim = claim
        self._loop = loop
        self._journal = Journal(engine, claim)
        self._stopping = ""

    @cached_property
    def info(self) -> Info:
        return _info(self._claim.snapshot)

    @cached_property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger whose records carry the run: `execution`, `task` and `attempt`."""
        claim = self._claim
        fields = {"execution": str(claim.id), "task": claim.kind, "attempt": claim.attempt}
        return logging.LoggerAdapter(logging.getLogger(f"flowfabric.task.{claim.kind}"), fields)

    # -- steps

    def step(
        self, function: Callable[P, Awaitable[R] | R], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Runs a function once: its result is recorded, and whenever the handler runs again the
        recorded value is returned instead. Plain functions run in a thread."""
        target, options = unwrap(function)
        place = self._journal.place(step_name(target, options))
        return perform(
            self._journal,
            place,
            lambda: attempt(target, options, args, dict(kwargs)),
            returns_of(target),
        )

    async def gather(self, *steps: Awaitable[Any]) -> list[Any]:
        """Runs steps at the same time; results in the order given. When one fails, the others
        are finished (and recorded) before its error is raised."""
        results = await asyncio.gather(*steps, return_exceptions=True)
        unwinding = [result for result in results if isinstance(result, Unwind)]
        failures = [result for result in results if isinstance(result, BaseException)]
        for error in (*unwinding, *failures):
            raise error
        return list(results)

    async def sleep(self, span: Span) -> None:
        """Sleeps without a worker slot, through crashes and deploys, for minutes or months."""
        place = self._journal.place("sleep")
        record = await self._journal.recorded(place)
        if record is None:
            until = Millis(self._engine.now() + parse_span(span, "sleep"))
        else:
            until = record.until or Millis(0)
            if until <= self._engine.now():
                return
        await self._journal.park(place, until, known=record is not None)

    async def now(self) -> datetime:
        """The time, recorded: the same whenever the handler runs again."""
        place = self._journal.place("now")
        millis = await perform(self._journal, place, self._clock, int)
        return to_datetime(Millis(millis))

    async def random(self) -> float:
        """A random number in [0, 1), recorded."""
        place = self._journal.place("random")
        value: float = await perform(self._journal, place, _dice, float)
        return value

    async def submit(self, task: "Task[P, R]", *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Submits a child run exactly once, however often the handler runs."""
        place = self._journal.place(f"submit:{task.name}")
        key = f"{self._claim.uuid}:{self._claim.snapshot.life.generation}:{place.position}"

        async def submit() -> str:
            run = await Call(task, CallOptions(key=key)).submit(*args, **kwargs)
            return str(run.id)

        id = await perform(self._journal, place, submit, str)
        return Run(task._client, id, task.signature.returns)

    # -- the attempt itself

    async def progress(self, percent: int | None = None, message: str | None = None) -> None:
        """Says how far the run is, for people who watch it."""
        await self._engine.attempts.progress(self._claim, percent, message)

    def heartbeat(self) -> None:
        """For plain functions that run long: stops the function here when its lease was lost or
        the worker is stopping. Coroutines are stopped by themselves."""
        if self._stopping or self._journal.parked:
            raise Unwind(self._stopping)

    def stop(self, reason: str) -> None:
        """Called by the worker: nothing this handler does from now on counts."""
        self._stopping = reason

    @property
    def parked(self) -> bool:
        return self._journal.parked

    def check_finished(self) -> None:
        self._journal.check_finished()

    async def _clock(self) -> int:
        return self._engine.now()


class SyncContext:
    """The context of a plain function, which runs in a thread: the same words, blocking."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def info(self) -> Info:
        return self._context.info

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        return self._context.log

    def step(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `Context.step`; the function runs in this very thread."""
        target, options = unwrap(function)
        if inspect.iscoroutinefunction(target):
            value: R = self._block(self._start(function, args, kwargs))
            return value
        here: R = self._step_here(target, options, args, kwargs)
        return here

    def sleep(self, span: Span) -> None:
        self._block(self._context.sleep(span))

    def now(self) -> datetime:
        moment: datetime = self._block(self._context.now())
        return moment

    def random(self) -> float:
        number: float = self._block(self._context.random())
        return number

    def submit(self, task: "Task[P, R]", *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        run: Run[R] = self._block(self._context.submit(task, *args, **kwargs))
        return run

    def progress(self, percent: int | None = None, message: str | None = None) -> None:
        self._block(self._context.progress(percent, message))

    def heartbeat(self) -> None:
        self._context.heartbeat()

    def _start(self, function: Any, args: Any, kwargs: Any) -> Coroutine[Any, Any, Any]:
        async def start() -> Any:
            return await self._context.step(function, *args, **kwargs)

        return start()

    def _step_here(self, target: Any, options: Any, args: Any, kwargs: Any) -> Any:
        """The work is done in the handler's own thread, only the journal is asked in the loop."""
        journal = self._context._journal
        place = self._block(_in_loop(lambda: journal.place(step_name(target, options))))

        async def in_this_thread() -> Any:
            raise _NotRecorded

        try:
            return self._block(perform(journal, place, in_this_thread, returns_of(target)))
        except _NotRecorded:
            self._context.heartbeat()
            result = _attempt_here(target, options, args, kwargs)

        async def done() -> Any:
            return result

        return self._block(perform(journal, place, done, returns_of(target)))

    def _block(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._context._loop).result()


class _NotRecorded(Exception):
    pass


def _attempt_here(target: Any, options: Any, args: Any, kwargs: Any) -> Any:
    """Retries of a step that runs in the handler's thread. A timeout cannot stop a plain
    function, so it has none here."""
    return asyncio.run(_attempt_sync(target, options, args, kwargs))


async def _attempt_sync(target: Any, options: Any, args: Any, kwargs: Any) -> Any:
    async def call() -> Any:
        return target(*args, **kwargs)

    return await attempt(call, options, (), {})


async def _in_loop(call: Callable[[], R]) -> R:
    return call()


async def _dice() -> float:
    return random.random()  # noqa: S311 - the user's dice, not a secret


def _info(snapshot: Snapshot) -> Info:
    execution = snapshot.execution
    deadline = snapshot.deadline_at
    return Info(
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
