"""The hooks of an application: middleware around calls, listeners for the ends of attempts, and the
lifespan. The worker's own log of attempts is the first listener."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from flowfabric.worker.api.hooks import (
    AsyncMiddleware,
    AttemptEnd,
    EndHook,
    Invocation,
    SyncMiddleware,
)
from flowfabric.worker.api.task import Task, check_function, is_async
from flowfabric.worker.run.attempt_log import is_logged, log_attempt
from flowfabric.worker.run.failure import contained
from flowfabric.worker.run.lifespan import Lifespan, LifespanFactory
from flowfabric.worker.run.middleware import Chain, Layer, Start
from flowfabric.worker.run.processes import InProcessHook
from flowfabric.worker.run.threads import Threads

if TYPE_CHECKING:
    from flowfabric.worker.api.context import RunInfo

log = logging.getLogger("flowfabric.worker")


class Hooks:
    """What an application has registered, in the order of registration."""

    def __init__(self, lifespan: LifespanFactory | None = None) -> None:
        self.middleware: list[Layer] = []
        self.listeners: list[EndHook] = []
        self.lifespan = lifespan
        self.in_process: InProcessHook | None = None

    def add_middleware(self, function: Callable[..., Any]) -> None:
        self.middleware.append(Layer(check_function(function), is_async(function)))

    def put_outermost(self, function: AsyncMiddleware, plain: SyncMiddleware) -> None:
        """A middleware with two forms, around coroutines and around plain functions, neither of
        which has to change between the event loop and a thread."""
        self.middleware.insert(0, Layer(function, True, Layer(plain, False)))

    def add_listener(self, function: EndHook) -> None:
        self.listeners.append(check_function(function))


class WorkerHooks:
    """The hooks as one worker calls them, with the lifespan of that worker."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self.lifespan = Lifespan(hooks.lifespan)

    @property
    def in_process(self) -> InProcessHook | None:
        """What is called around a handler in its process."""
        return self._hooks.in_process

    @property
    def has_middleware(self) -> bool:
        return bool(self._hooks.middleware)

    def around(
        self,
        function: Callable[[Invocation], Any],
        *,
        is_async: bool,
        loop: asyncio.AbstractEventLoop,
        start: Start,
    ) -> Chain:
        """A chain that ends in this function."""
        last = Layer(lambda call, _: function(call), is_async)
        layers = [_fitting(layer, is_async) for layer in self._hooks.middleware]
        return Chain([*layers, last], loop, start)

    def has_listeners(self, task: Task[Any, Any] | None) -> bool:
        """Whether code of the application may run after an end of this task."""
        own = task is not None and (task.options.on_success or task.options.on_failure)
        return bool(self._hooks.listeners or own)

    def listens_to(self, task: Task[Any, Any] | None, outcome: str) -> bool:
        """Whether anything wants to know about such an end."""
        return bool(
            self._hooks.listeners or is_logged(outcome) or _hook_of(task, outcome) is not None
        )

    async def ended(self, task: Task[Any, Any] | None, end: AttemptEnd, threads: Threads) -> None:
        """Tells all listeners. The end is recorded already: an error of a listener is logged, and
        the others are told all the same."""
        log_attempt(end)
        own = _hook_of(task, end.outcome)
        for listener in self._hooks.listeners if own is None else [*self._hooks.listeners, own]:
            try:
                await _call_listener(listener, end, threads)
            except BaseException as error:  # SystemExit too, which would end the worker
                if not isinstance(contained(error), Exception):
                    raise  # the worker is torn down
                log.exception(
                    "the hook %s failed for run %s, which stays %s",
                    getattr(listener, "__qualname__", listener),
                    end.run.id,
                    end.outcome,
                    extra={"run": str(end.run.id), "task": end.task, "attempt": end.attempt},
                )


class StepHooks:
    """The middleware around the steps of one run."""

    def __init__(self, hooks: WorkerHooks, run: "RunInfo", loop: asyncio.AbstractEventLoop) -> None:
        self._hooks = hooks
        self._run = run
        self._loop = loop

    def call(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], try_number: int = 1
    ) -> Invocation:
        return Invocation(
            kind="step",
            name=name,
            run=self._run,
            args=args,
            kwargs=kwargs,
            lifespan=self._hooks.lifespan.value,
            try_number=try_number,
        )

    def around(
        self, function: Callable[[Invocation], Any], *, is_async: bool, start: Start
    ) -> Chain:
        """A chain that ends in the function of a step."""
        return self._hooks.around(function, is_async=is_async, loop=self._loop, start=start)


def _fitting(layer: Layer, is_async: bool) -> Layer:
    return layer if is_async or layer.plain is None else layer.plain


def _hook_of(task: Task[Any, Any] | None, outcome: str) -> EndHook | None:
    """`on_success` or `on_failure` of the task, if the run has ended in that way."""
    if task is None:
        return None
    if outcome == "completed":
        return task.options.on_success
    return task.options.on_failure if outcome in ("failed", "expired") else None


async def _call_listener(listener: EndHook, end: AttemptEnd, threads: Threads) -> None:
    if is_async(listener):
        await listener(end)
        return
    result = await threads.call(lambda: listener(end))
    if isinstance(result, Awaitable):
        await result
