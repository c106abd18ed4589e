"""One clock per store. Rules never ask for the time; whoever calls them does, once."""

import time
from typing import Protocol

from flowfabric.core.time import Millis


class Clock(Protocol):
    def now(self) -> Millis: ...


class SystemClock:
    """The machine's own clock, for a store that lives on one machine."""

    def now(self) -> Millis:
        return Millis(time.time_ns() // 1_000_000)


class OffsetClock:
    """Another machine's clock, kept by an offset to one of ours that does not jump.

    The sample with the smallest round trip wins; each older one is trusted a little less, so
    that the offset follows a drift. Counts through suspend where the system has such a clock.
    """

    def __init__(self) -> None:
        self._offset = time.time() - _steady()
        self._error = float("inf")
        self.sampled_at = float("-inf")

    def now(self) -> Millis:
        return Millis(int((_steady() + self._offset) * 1000))

    def sample(self, sent: float, received: float, theirs: float) -> None:
        """`theirs` (seconds) was read somewhere between our `sent` and `received`."""
        self.sampled_at = received
        error = (received - sent) / 2
        offset = theirs - (sent + received) / 2
        self._error *= 1.1
        # Each offset is right within its error. Two that exclude each other: their clock was set,
        # or another server answers.
        if error <= self._error or abs(offset - self._offset) > error + self._error:
            self._error = error
            self._offset = offset

    steady = staticmethod(lambda: _steady())


class ManualClock:
    """A clock that stands still until told otherwise; for tests and simulation."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self._now = now

    def now(self) -> Millis:
        return Millis(self._now)

    def advance(self, millis: int) -> Millis:
        self._now += millis
        return self.now()


def _steady() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)
