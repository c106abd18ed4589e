"""The asynchronous API without `await`, for scripts and for tasks that are plain functions.

    class Run:
        async def result(self, timeout: float | None = None) -> R: ...

        result_sync = blocking(result)

Parameters, overloads and results keep their types, so there is one signature to write and to read.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from flowfabric.core.base.errors import Invalid

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
W = TypeVar("W")
M = TypeVar("M", bound=AbstractAsyncContextManager[Any, Any])

deferred: ContextVar[list[Coroutine[Any, Any, Any]] | None] = ContextVar(
    "flowfabric_deferred", default=None
)
"""Where blocking methods put their work instead of doing it, and return it; see `unstarted`."""

Block = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine in an event loop of another thread and returns its result."""


def has_loop() -> bool:
    """Whether an event loop runs in this thread, which a blocking call would keep from running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether it is this event loop that runs in this thread."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


class CanBlock(Protocol):
    """A class that has blocking methods."""

    def _blocking(self) -> tuple[Any, Block]:
        """The object whose methods are awaited, and what awaits them."""


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """The method as one that returns when its work is done."""

    @wraps(method)
    def call(self: CanBlock, /, *args: P.args, **kwargs: P.kwargs) -> R:
        awaited, block = self._blocking()
        made = getattr(awaited, method.__name__)(*args, **kwargs)
        result: R = do_now(block, made if inspect.iscoroutine(made) else _awaited(made))
        return result

    return call


async def _awaited(made: Awaitable[R]) -> R:
    return await made


def blocking_as(
    proxy: Callable[[Any, Block], S], method: Callable[Concatenate[Any, P], object]
) -> Callable[Concatenate[Any, P], S]:
    """The method with `proxy` around the object it gives, whose own methods then block too."""

    @wraps(method)
    def call(self: CanBlock, /, *args: P.args, **kwargs: P.kwargs) -> S:
        if deferred.get() is not None:
            raise Invalid(f"{method.__name__} cannot be a branch of a race in a plain function")
        awaited, block = self._blocking()
        made = getattr(awaited, method.__name__)(*args, **kwargs)
        return proxy(block(made) if inspect.iscoroutine(made) else made, block)

    return call


def do_now(block: Block, work: Coroutine[Any, Any, Any]) -> Any:
    """What the work gives; inside `unstarted` the work itself."""
    calls = deferred.get()
    if calls is None:
        return block(work)
    calls.append(work)
    return work


def unstarted(function: Callable[[], Any], name: str) -> Coroutine[Any, Any, Any]:
    """The work of the one blocking call that a function makes, not yet begun."""
    calls: list[Coroutine[Any, Any, Any]] = []
    token = deferred.set(calls)
    try:
        given: object = function()
        if len(calls) != 1 or given is not calls[0]:
            raise Invalid(
                f"branch {name!r} of a race in a plain function must be one call of ctx, whose "
                f"value it returns: `lambda: ctx.sleep('1h')`"
            )
    except BaseException:
        for call in calls:
            call.close()
        raise
    finally:
        deferred.reset(token)
    (call,) = calls
    return call


class BlockingProxy(Generic[W]):
    """Stands for an asynchronous object."""

    def __init__(self, wrapped: W, block: Block) -> None:
        self._wrapped = wrapped
        self._block = block

    def _blocking(self) -> tuple[W, Block]:
        return self._wrapped, self._block


class BlockingManager(BlockingProxy[M]):
    """Stands for an object that is used with `async with`, which becomes a plain `with`."""

    def __enter__(self) -> Self:
        self._block(self._wrapped.__aenter__())
        return self

    def __exit__(self, *exc: Any) -> None:
        self._block(self._wrapped.__aexit__(*exc))
