"""Threads for plain functions.

They are daemons: a function that cannot be stopped must not keep a stopping worker from ending, as
the threads of the standard pool would.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from flowfabric.worker.run.failure import contained

Job = tuple["Future[Any]", Callable[[], Any]]


class Threads:
    """Up to `size` threads, started when needed and kept for the next call."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._lock = threading.Lock()

    def start(self, function: Callable[[], Any]) -> "Future[Any]":
        """Calls the function in a thread, with the context variables of the caller."""
        future: Future[Any] = Future()
        here = contextvars.copy_context()
        self._queue.put((future, lambda: here.run(function)))
        self._ensure_one_listens()
        return future

    async def call(self, function: Callable[[], Any]) -> Any:
        """The result of the function. A cancelled caller does not stop it."""
        return await asyncio.wrap_future(self.start(function))

    def close(self) -> None:
        """Ends idle threads now, and the others after their current call."""
        with self._lock:
            for _ in range(self._started):
                self._queue.put(None)

    def _ensure_one_listens(self) -> None:
        if self._idle.acquire(blocking=False):
            return
        with self._lock:
            if self._started >= self._size:
                return
            self._started += 1
        name = f"{self._name}-{self._started}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            run_job(*job)
            del job  # what it returned must not live until the next one
            self._idle.release()


def run_job(future: "Future[Any]", function: Callable[[], Any]) -> None:
    """Calls the function here and puts what it returns or raises into the future."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # Unwind too: it is raised where the result is awaited
        if (other := contained(error)) is not error:
            other.__cause__ = error
        future.set_exception(other)
    else:
        future.set_result(result)
