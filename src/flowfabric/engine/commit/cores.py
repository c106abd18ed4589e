"""Whether the processors are taken: Linux counts how long a thread has run, and how long it was
ready to run and had to wait."""

from pathlib import Path
from time import monotonic

COUNTERS = Path("/proc/thread-self/schedstat")
"""Nanoseconds it ran, nanoseconds it waited, and how often it ran."""
PERIOD = 0.1
STALE = 2 * PERIOD
CROWDED = 0.3
"""A thread that waits for so much of the time it runs shares its cores. On two cores: 0.03 to 0.2
with one busy process beside the database, 0.6 to 1.8 with two."""


class Cores:
    """Asked in one thread, about that thread. Where the system does not count, there is always
    room."""

    def __init__(self, counters: Path = COUNTERS) -> None:
        self._counters = counters
        self._looked_at = float("-inf")
        self._ran = self._waited = 0
        self._crowded = False

    def crowded(self) -> bool:
        """Whether other work wanted the same processors in the last tenth of a second. What is not
        known yet, because nothing asked in that time, is taken for crowded."""
        now = monotonic()
        if (since := now - self._looked_at) >= PERIOD:
            self._look(stale=since > STALE)
            self._looked_at = now
        return self._crowded

    def _look(self, *, stale: bool) -> None:
        try:
            ran, waited, _ = map(int, self._counters.read_text("ascii").split())
        except (OSError, ValueError):
            return
        self._crowded = stale or waited - self._waited > CROWDED * (ran - self._ran)
        self._ran, self._waited = ran, waited
