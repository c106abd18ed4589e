"""Hints: wake-ups between processes. Losing every one costs at most the poll floor."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

Waiter = asyncio.Future[bool]


def _nothing() -> None:
    """For a store whose other processes need no telling."""


class Hints:
    """Wakes the tasks of this process that wait for something to happen, from any thread.

    The store provides what reaches other processes: `tell` passes a hint on to them, and `listen`
    is called whenever a task waits, so that their hints are heard and given to `wake`.
    """

    def __init__(
        self, listen: Callable[[], None] = _nothing, tell: Callable[[], None] = _nothing
    ) -> None:
        self._listen = listen
        self._tell = tell
        self._lock = threading.Lock()
        self._waiters: dict[Waiter, asyncio.AbstractEventLoop] = {}
        self._last = time.monotonic()
        self.count = 0
        """How many hints there were so far. Note it before looking at the store and give it to
        `wait`: then no hint in between is missed."""

    @property
    def waiting(self) -> int:
        """How many tasks wait."""
        return len(self._waiters)

    @property
    def quiet(self) -> float:
        """Seconds since the last hint."""
        return time.monotonic() - self._last

    def send(self) -> None:
        """Tells other processes, and this one, that work arrived or ended."""
        self.wake()
        self._tell()

    def wake(self) -> None:
        """Wakes the tasks that wait in this process."""
        with self._lock:
            waiters, self._waiters = self._waiters, {}
            self.count += 1
            self._last = time.monotonic()
        here = _running_loop() if waiters else None
        for waiter, loop in waiters.items():
            if loop is here:
                _wake(waiter)
            else:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(_wake, waiter)

    async def wait(self, timeout: float, since: int | None = None) -> bool:
        """Returns when something may have happened (after `count` was `since`, if given), or after
        `timeout` seconds (False)."""
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        with self._lock:
            if since is not None and since != self.count:
                return True
            self._waiters[waiter] = loop
        try:
            self._listen()
            async with asyncio.timeout(timeout):
                return await waiter
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiters.pop(waiter, None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _wake(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(True)
