"""Handlers in processes: each spawned process runs one handler at a time, so that a crash ends no
other run."""

import asyncio
import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import Invalid
from flowfabric.worker.api.task import Task
from flowfabric.worker.codec import Signature, encode
from flowfabric.worker.run.failure import InProcess, Raised

InProcessHook = Callable[[Callable[[], bytes]], bytes]
"""Calls what it is given, in the process of a handler: a module's function."""


class ProcessDied(Exception):
    """The process that ran the handler ended without an answer."""


class Answer(Struct, frozen=True):
    """What a process sends back: the result as JSON, or the error of the handler."""

    body: bytes | None = None
    raised: Raised | None = None


class Processes:
    """Up to `size` spawned processes, started when first needed. Spawned and never forked: a
    forked copy of a database connection corrupts it. `around` is called in the process, around
    each import and call of a handler."""

    def __init__(self, size: int, around: InProcessHook | None = None) -> None:
        self._around = around
        self._idle: list[ProcessPoolExecutor] = []
        self._busy: set[ProcessPoolExecutor] = set()
        self._room = asyncio.Semaphore(size)

    async def call(self, handler: Task[Any, Any], payload: bytes) -> bytes:
        """The result of the handler as JSON. Raises ProcessDied if there is no answer, and
        InProcess if the handler raised."""
        async with self._room:
            answer = await self._ask(handler, payload)
        if answer.raised is not None:
            raise InProcess(answer.raised)
        return answer.body or b"null"

    async def _ask(self, handler: Task[Any, Any], payload: bytes) -> Answer:
        function = handler.function
        target = function.__module__, function.__qualname__
        pool, future = self._submit(target, payload, handler.name)
        self._busy.add(pool)
        processes = _processes_of(pool)
        try:
            body = await asyncio.wrap_future(future)
        except BrokenProcessPool:
            how = await _ending_of(processes)
            raise ProcessDied(f"the process that ran {handler.name} died{how}") from None
        else:
            self._idle.append(pool)
            return msgspec.msgpack.decode(body, type=Answer)
        finally:
            self._busy.discard(pool)
            if pool not in self._idle:
                _kill(pool)

    def _submit(
        self, target: tuple[str, str], payload: bytes, name: str
    ) -> tuple[ProcessPoolExecutor, Any]:
        while self._idle:
            pool = self._idle.pop()
            try:
                return pool, pool.submit(_run, target, payload, name, self._around)
            except BrokenProcessPool:  # it died while it was idle
                _kill(pool)
        pool = _start()
        return pool, pool.submit(_run, target, payload, name, self._around)

    def close(self) -> None:
        """Kills every process."""
        for pool in (*self._idle, *self._busy):
            _kill(pool)
        self._idle.clear()
        self._busy.clear()


def _start() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin)


def _kill(pool: ProcessPoolExecutor) -> None:
    """A busy process cannot be asked to stop, so it is killed."""
    for process in _processes_of(pool):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)


def _processes_of(pool: ProcessPoolExecutor) -> list[BaseProcess]:
    return list((getattr(pool, "_processes", None) or {}).values())


async def _ending_of(processes: list[BaseProcess]) -> str:
    """How the process of a pool ended, in words. The thread of the pool reaps it as well: while
    one of the two has done so and has not noted it yet, the exit code is unknown."""
    for _ in range(10):
        for code in [process.exitcode for process in processes]:
            if code is not None:
                return f": {_ending(code)}"
        await asyncio.sleep(0.01)
    return ""


def _ending(code: int) -> str:
    """SIGKILL is what the kernel sends when there is no memory left."""
    if code >= 0:
        return f"exit code {code}"
    name = next((found.name for found in signal.Signals if found == -code), f"signal {-code}")
    return f"{name}, perhaps for lack of memory" if name == "SIGKILL" else name


# -- in the child


def _begin() -> None:
    # The worker decides when its processes stop; Ctrl-C goes to the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="flowfabric-parent", daemon=True).start()


def _end_with_parent() -> None:
    """A worker that was killed cannot stop its processes, so they watch it."""
    if (parent := multiprocessing.parent_process()) is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _run(target: tuple[str, str], payload: bytes, name: str, around: InProcessHook | None) -> bytes:
    """Finds the function by module and name, and calls it."""

    def work() -> bytes:
        return call(*_find(target), payload, name)

    answer = answer_of(work if around is None else partial(around, work))
    return msgspec.msgpack.encode(answer)


def answer_of(work: Callable[[], bytes]) -> Answer:
    """Errors are sent as data: many cannot be unpickled."""
    try:
        return Answer(body=work())
    except BaseException as error:
        return Answer(raised=Raised.by(error))


def call(function: Callable[..., Any], signature: Signature, payload: bytes, name: str) -> bytes:
    """What the function returns, as JSON; `name` is that of its task."""
    args, kwargs = signature.decode(payload)
    result = function(*args, **kwargs)
    try:
        return encode(result)
    except Invalid as error:
        raise Invalid(f"what {name} returned cannot be stored: {error.detail}") from None


@lru_cache
def _find(target: tuple[str, str]) -> tuple[Callable[..., Any], Signature]:
    module, name = target
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    function = found.function if isinstance(found, Task) else found
    return function, Signature(function, skip_first=False)
