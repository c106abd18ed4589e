"""Handlers that need a core of their own: each runs in a spawned process, one at a time, so that
a crash takes nobody else along."""

import asyncio
import importlib
import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from flowfabric.core.errors import Invalid
from flowfabric.worker.codec import decode, encode
from flowfabric.worker.task import Task


class ProcessDied(Exception):
    """The process that ran the handler ended without an answer."""


class Processes:
    """Up to `size` spawned processes, started when first needed. Spawned and never forked: a
    forked copy of a database connection corrupts it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._idle: list[ProcessPoolExecutor] = []
        self._room = asyncio.Semaphore(size)

    async def call(self, handler: Task[Any, Any], payload: bytes) -> Any:
        target = _address(handler)
        async with self._room:
            pool = self._idle.pop() if self._idle else _start()
            try:
                future = pool.submit(_run, target, payload)
                body = await asyncio.wrap_future(future)
            except BrokenProcessPool:
                pool.shutdown(wait=False)
                raise ProcessDied(f"the process that ran {handler.name} died") from None
            except asyncio.CancelledError:
                _kill(pool)
                raise
            except BaseException:
                self._idle.append(pool)
                raise
            self._idle.append(pool)
            return decode(body, handler.signature.returns)

    def close(self) -> None:
        for pool in self._idle:
            pool.shutdown(wait=False, cancel_futures=True)
        self._idle.clear()


def _start() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_ignore_signals)


def _kill(pool: ProcessPoolExecutor) -> None:
    """A process whose answer nobody wants any more cannot be asked to stop, only made to."""
    for process in list(getattr(pool, "_processes", {}).values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)


def _ignore_signals() -> None:
    # The worker decides when its processes stop; Ctrl-C goes to the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _address(handler: Task[Any, Any]) -> tuple[str, str]:
    function = handler.function
    module, name = function.__module__, function.__qualname__
    if "<" in name:
        raise Invalid(f"{handler.name}: a task that runs in a process must be a module's function")
    return module, name


def _run(target: tuple[str, str], payload: bytes) -> bytes:
    """In the child: find the function again by its address, call it, encode what it returns."""
    module, name = target
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, Task):
        raise TypeError(f"{module}.{name} is not a task")
    args, kwargs = found.signature.decode(payload)
    return encode(found.function(*args, **kwargs))
