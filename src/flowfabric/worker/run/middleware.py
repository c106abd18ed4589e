"""Middleware: how a call passes through the functions registered around it.

Async layers run in the event loop, plain layers in a thread. A chain may mix them: it goes from
the thread to the loop and back as the layers demand, and all plain layers of one call, the handler
or step included, share one thread. A plain middleware may therefore use what belongs to a thread,
such as a database connection.
"""

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any

from msgspec import Struct

from flowfabric.worker.api.hooks import Invocation
from flowfabric.worker.errors import Unwind
from flowfabric.worker.run.threads import Job, run_job

Start = Callable[[Callable[[], Any]], "Future[Any]"]
"""Starts a function in a thread."""


class Layer(Struct, frozen=True):
    """A middleware, called with the call and what comes next; or, as the last one, the function
    itself, which ignores what comes next. `plain` takes its place around a plain function."""

    function: Callable[..., Any]
    is_async: bool
    plain: "Layer | None" = None


class Chain:
    """One call through its layers, outermost first. `start` gives plain layers a thread."""

    def __init__(
        self, layers: Sequence[Layer], loop: asyncio.AbstractEventLoop, start: Start
    ) -> None:
        self._layers = layers
        self._loop = loop
        self._start = start
        self._visits: list[Visit] = []
        self._left = False

    async def run(self, call: Invocation) -> Any:
        """Called in the event loop."""
        return await self._in_loop(0, None, call)

    def run_here(self, call: Invocation) -> Any:
        """Called in a thread, which plain layers then run in."""
        return self._in_thread(0, call)

    async def _in_loop(self, at: int, visit: "Visit | None", call: Invocation) -> Any:
        """`visit` is that of the thread that waits for this code, if one does."""
        layer = self._layers[at]
        if layer.is_async:
            return await layer.function(call, partial(self._in_loop, at + 1, visit))
        return await self._on_thread(visit, partial(self._in_thread, at, call))

    def _in_thread(self, at: int, call: Invocation) -> Any:
        if self._left or self._loop.is_closed():
            raise Unwind("the worker no longer waits for this call")
        layer = self._layers[at]
        if layer.is_async:
            return self._visit(lambda visit: self._in_loop(at, visit, call))
        result = layer.function(call, partial(self._in_thread, at + 1))
        return self._visit(lambda _: _awaited(result)) if inspect.isawaitable(result) else result

    async def _on_thread(self, visit: "Visit | None", work: Callable[[], Any]) -> Any:
        """A cancelled caller cancels what the thread awaits in the event loop and waits for the
        thread; one that is busy itself cannot be stopped and is left behind."""
        before = len(self._visits)
        future = self._start(work) if visit is None else visit.put(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            under_way = [each for each in self._visits[before:] if each.cancel()]
            if future.done() or not under_way:
                self._left = True
                raise
        return await asyncio.wrap_future(future)

    def _visit(self, work: "Callable[[Visit], Coroutine[Any, Any, Any]]") -> Any:
        visit = Visit(work)
        self._visits.append(visit)
        self._loop.call_soon_threadsafe(visit.begin)  # with the context variables of this thread
        return visit.serve()


class Visit:
    """A thread that waits for a coroutine in the event loop, and meanwhile does what that coroutine
    asks it to do."""

    def __init__(self, work: "Callable[[Visit], Coroutine[Any, Any, Any]]") -> None:
        self._work = work
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._over = False

    # -- in the event loop

    def begin(self) -> None:
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._end)
        if self._cancelled:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            self._result = await self._work(self)
        except BaseException as error:  # SystemExit too, which would end the loop: for the thread
            self._error = error

    def _end(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():  # before it began
            self._error = asyncio.CancelledError()
        self._over = True
        self._jobs.put(None)

    def cancel(self) -> bool:
        """Cancels the coroutine; False if it has ended."""
        if self._over:
            return False
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()
        return True

    def put(self, work: Callable[[], Any]) -> "Future[Any]":
        """Has the waiting thread do this, with the context variables of the caller."""
        if self._over:
            raise RuntimeError("a middleware has returned; its next can no longer be called")
        future: Future[Any] = Future()
        here = contextvars.copy_context()
        self._jobs.put((future, lambda: here.run(work)))
        return future

    # -- in the thread

    def serve(self) -> Any:
        """Waits for the end of the coroutine; returns its result or raises its error."""
        while (job := self._jobs.get()) is not None:
            run_job(*job)
        if self._error is not None:
            raise self._error
        return self._result


async def _awaited(result: Any) -> Any:
    return await result
