"""Hints: wake-ups between processes. Losing every one costs at most the poll floor."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

Waiter = asyncio.Future[bool]
Topics = int
"""Topics, added up."""


class Topic:
    """What a hint is about, in bits that travel between processes of different releases. Plain
    numbers: each commit adds them up, and flags of `enum` took sixty calls of Python for that."""

    WORK = 1
    """There may be something to claim."""
    ENDINGS = 2
    """Runs or flows have ended."""
    INBOX = 4
    """An application's transaction has submitted something."""
    SIGNALS = 8
    """A run that is running has received a signal."""
    FRAMES = 16
    """Attempts have appended to their output streams, or an attempt of a run that goes on has
    ended."""


_EACH = (Topic.WORK, Topic.ENDINGS, Topic.INBOX, Topic.SIGNALS, Topic.FRAMES)
NOTHING: Topics = 0
EVERYTHING: Topics = sum(_EACH)


def _nothing() -> None:
    """For a store that sees the commits of other processes without being asked to listen."""


def _to_none(topics: Topics) -> None:
    """For a store whose other processes need no telling."""


class _Waiting(Struct, frozen=True):
    loop: asyncio.AbstractEventLoop
    topics: Topics


class Nudge(asyncio.Event):
    """An event that also ends a wait for hints, in the same event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.waiters: set[Waiter] = set()

    def set(self) -> None:
        super().set()
        for waiter in self.waiters:
            _wake(waiter, False)


class Hints:
    """Wakes the tasks of this process that wait for something to happen, from any thread.

    The store provides what reaches other processes: `tell` passes a hint on to them, and `listen`
    is called whenever a task waits, so that their hints are heard and given to `wake`.
    """

    def __init__(
        self, listen: Callable[[], None] = _nothing, tell: Callable[[Topics], None] = _to_none
    ) -> None:
        self._listen = listen
        self._tell = tell
        self._lock = threading.Lock()
        self._waiters: dict[Waiter, _Waiting] = {}
        self._last = time.monotonic()
        self._latest = dict.fromkeys(_EACH, 0)
        self._counts = dict.fromkeys(_EACH, 0)
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

    def heard(self, topics: Topics) -> int:
        """How many hints there were so far about these topics; one about two of them counts
        twice."""
        return sum([count for topic, count in self._counts.items() if topic & topics])

    def since(self, count: int) -> Topics:
        """What was hinted at after `count`."""
        with self._lock:
            return sum([topic for topic, at in self._latest.items() if at > count])

    def send(self, topics: Topics = EVERYTHING) -> None:
        """Tells other processes, and this one, what has happened."""
        self.wake(topics)
        self._tell(topics)

    def wake(self, topics: Topics = EVERYTHING) -> None:
        """Wakes the tasks of this process that wait for one of these topics."""
        with self._lock:
            self.count += 1
            self._last = time.monotonic()
            for topic in _EACH:
                if topic & topics:
                    self._latest[topic] = self.count
                    self._counts[topic] += 1
            woken = [(w, each.loop) for w, each in self._waiters.items() if each.topics & topics]
            for waiter, _ in woken:
                del self._waiters[waiter]
        here = _running_loop() if woken else None
        for waiter, loop in woken:
            if loop is here:
                _wake(waiter, True)
            else:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(_wake, waiter, True)

    async def wait(
        self,
        timeout: float,
        since: int | None = None,
        topics: Topics = EVERYTHING,
        nudge: Nudge | None = None,
    ) -> bool:
        """Returns when something may have happened (after `count` was `since`, if given); False
        after `timeout` seconds, or because of the nudge."""
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        with self._lock:
            if since is not None and any([self._latest[t] > since for t in _EACH if t & topics]):
                return True
            if nudge is not None and nudge.is_set():
                return False
            self._waiters[waiter] = _Waiting(loop, topics)
        if nudge is not None:
            nudge.waiters.add(waiter)
        timer = loop.call_later(timeout, _wake, waiter, False)
        try:
            self._listen()
            return await waiter
        finally:
            timer.cancel()
            if nudge is not None:
                nudge.waiters.discard(waiter)
            with self._lock:
                self._waiters.pop(waiter, None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _wake(waiter: Waiter, hinted: bool) -> None:
    if not waiter.done():
        waiter.set_result(hinted)
