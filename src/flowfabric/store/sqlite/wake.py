"""Hints that something happened, in this process or in another one.

Inside the process a hint wakes whoever waits. Commits of other processes are seen by asking the
writing connection for the version of its data, which its own commits do not change.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from flowfabric.store.sqlite.session import Session
from flowfabric.store.sqlite.wal import Checkpoints

SHORTEST, LONGEST = 0.002, 0.05
"""Seconds between two looks at the file while somebody waits."""

_RIVALS_FOR = 1.0
_GAP = 0.0003


class Wakeups:
    """Whoever waits, and how often to look at what other processes do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[asyncio.Future[bool], asyncio.AbstractEventLoop] = {}
        self.count = 0
        self._last = time.monotonic()
        self.nudge: Callable[[], None] = lambda: None

    def hint(self) -> None:
        """Wakes those who wait."""
        with self._lock:
            waiters, self._waiters = self._waiters, {}
            self.count += 1
            self._last = time.monotonic()
        for future, loop in waiters.items():
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake, future)

    async def wait(self, timeout: float, since: int | None) -> bool:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        with self._lock:
            if since is not None and since != self.count:
                return True
            first = not self._waiters
            self._waiters[future] = loop
        if first:
            self.nudge()
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiters.pop(future, None)

    def interval(self) -> float | None:
        """Seconds until the next look: a small part of the quiet so far; None: nobody waits."""
        if not self._waiters:
            return None
        return min(LONGEST, max(SHORTEST, (time.monotonic() - self._last) / 500))


class Commits:
    """Watches the transactions of the writing connection.

    Tells the commits of other processes, leaves those a gap to begin in, and has the log copied
    into the database before it grows too long.
    """

    def __init__(self, wakeups: Wakeups, checkpoints: Checkpoints | None) -> None:
        self._wakeups = wakeups
        self._checkpoints = checkpoints
        self._version: int | None = None
        self._rivals_until = 0.0
        self._committed = 0.0

    def before(self) -> None:
        now = time.monotonic()
        if now < self._rivals_until and now - self._committed < _GAP:
            time.sleep(_GAP)

    def begun(self, session: Session) -> None:
        self.idle(session)

    def ended(self, session: Session) -> None:
        self._committed = time.monotonic()
        if self._checkpoints is not None:
            self._checkpoints.count(session.connection.total_changes)

    def idle(self, session: Session) -> None:
        if self._checkpoints is None:
            return
        version = session.connection.execute("pragma data_version").fetchone()[0]
        if version != self._version and self._version is not None:
            self._rivals_until = time.monotonic() + _RIVALS_FOR
            self._wakeups.hint()
        self._version = version

    def pulse(self) -> float | None:
        return None if self._checkpoints is None else self._wakeups.interval()


def _wake(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(True)
