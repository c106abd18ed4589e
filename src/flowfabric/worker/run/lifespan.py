"""The lifespan of a worker: what the application sets up before the first run and tears down after
the last one."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Any

from flowfabric.core.base.errors import Invalid
from flowfabric.worker.errors import StartupFailed
from flowfabric.worker.run.failure import text_of

log = logging.getLogger("flowfabric.worker")

LifespanFactory = Callable[[], AbstractAsyncContextManager[Any]]

_current: ContextVar["Lifespan | None"] = ContextVar("flowfabric_lifespan", default=None)
"""The lifespan that the code which asks is a part of."""


def check_lifespan(function: object) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """The argument, as a function that returns an async context manager; Invalid if it cannot be
    one. A bare async generator function is accepted too."""
    if not callable(function):
        raise Invalid(f"a lifespan must be a function, not {type(function).__name__}")
    if inspect.isasyncgenfunction(function):
        return asynccontextmanager(function)
    if inspect.iscoroutinefunction(function):
        raise Invalid("a lifespan must yield once between start-up and shutdown; this never does")
    return function


class Lifespan:
    """Enters and leaves the context manager in a task of its own, as web servers do, so that it may
    contain timeouts and task groups."""

    def __init__(self, factory: LifespanFactory | None) -> None:
        self._factory = factory
        self._task: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()
        self.value: Any = None

    async def start(self) -> None:
        """Raises StartupFailed. A cancelled start-up is undone."""
        if self._factory is None or self._task is not None:
            return
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leaving.clear()
        task = asyncio.create_task(self._live(entered), name="flowfabric-lifespan")
        self._task = task
        try:
            await asyncio.wait([entered, task], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop(at_once=True)
            raise
        if not entered.done():
            self._task = None
            error = None if task.cancelled() else task.exception()
            raise StartupFailed(
                "the lifespan failed before it yielded, so the worker did not start: "
                + ("it was cancelled" if error is None else text_of(error))
            ) from error

    async def stop(self, *, at_once: bool = False) -> None:
        """Runs the part after the `yield`, once however many callers wait for it. An error there is
        logged: every run has ended by then. With `at_once`, a start-up that is under way is
        cancelled."""
        task = self._task
        if task is None or _current.get() is self:  # which cannot wait for itself
            return
        self._leaving.set()
        if at_once:
            task.cancel()
        await asyncio.wait([task])
        if self._task is not task:
            return  # another caller was first
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the lifespan failed while the worker shut down", exc_info=error)

    async def _live(self, entered: "asyncio.Future[None]") -> None:
        _current.set(self)
        manager = self._factory() if self._factory is not None else None
        if not isinstance(manager, AbstractAsyncContextManager):
            raise Invalid(
                f"a lifespan must return an async context manager, not {type(manager).__name__}: "
                "decorate it with contextlib.asynccontextmanager"
            )
        async with manager as self.value:
            entered.set_result(None)
            await self._leaving.wait()
