"""An engine that is used from another event loop than its own.

An engine belongs to the event loop it was opened in. A web server may run each request in an event
loop of its own; there, every call of the engine is carried to the engine's loop, and its result
back.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Coroutine
from functools import partial
from typing import Any, TypeVar, cast

from flowfabric.engine.engine import Engine

T = TypeVar("T")

_END = object()


def from_other_loop(engine: Engine, loop: asyncio.AbstractEventLoop) -> Engine:
    """The engine of `loop`, as code in another event loop uses it."""
    return cast(Engine, CarriedService(engine, loop))


class CarriedService:
    """Stands for the engine or for one of its services."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if inspect.isroutine(value):
            return partial(self._call, value)
        of_engine = type(value).__module__.startswith(("flowfabric.engine.", "flowfabric.remote."))
        return CarriedService(value, self._loop) if of_engine else value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._target, *args, **kwargs)

    def _call(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if inspect.iscoroutine(result):
            return _carry(result, self._loop)
        return _items(result, self._loop) if isinstance(result, AsyncGenerator) else result


async def _carry(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """A cancelled caller cancels the work."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


async def _items(
    items: AsyncGenerator[T, None], loop: asyncio.AbstractEventLoop
) -> AsyncGenerator[T, None]:
    async def following() -> Any:
        return await anext(items, _END)

    try:
        while (item := await _carry(following(), loop)) is not _END:
            yield item
    finally:
        await _carry(items.aclose(), loop)
