"""Commits of other processes are hints: they are seen by asking the writing connection for the
version of its data, which its own commits do not change."""

import time

from flowfabric.store.hints import Hints
from flowfabric.store.sqlite.session import SqliteSession
from flowfabric.store.sqlite.wal import Checkpoints

SHORTEST, LONGEST = 0.002, 0.05
"""Seconds between two looks at the file while a task waits."""

_PART = 1 / 300
"""The part of the quiet so far that passes before the next look. A look takes 0.1 ms of CPU, most
of it to wake the thread; at a five-hundredth, looks were most of what an idle process did."""

_RIVALS_FOR = 1.0
_GAP = 0.0003


class Commits:
    """Watches the transactions of the writing connection.

    Tells the commits of other processes, leaves those a gap to begin in, and has the log copied
    into the database before it grows too long.
    """

    def __init__(self, hints: Hints, checkpoints: Checkpoints | None) -> None:
        self._hints = hints
        self._checkpoints = checkpoints
        self._version: int | None = None
        self._rivals_until = 0.0
        self._committed = 0.0

    def before(self) -> None:
        now = time.monotonic()
        if now < self._rivals_until and now - self._committed < _GAP:
            time.sleep(_GAP)

    def begun(self, session: SqliteSession) -> None:
        self.idle(session)

    def ended(self, session: SqliteSession) -> None:
        self._committed = time.monotonic()
        if self._checkpoints is not None:
            self._checkpoints.count(session.connection.total_changes)

    def idle(self, session: SqliteSession) -> None:
        if self._checkpoints is None:
            return
        version = session.connection.execute("pragma data_version").fetchone()[0]
        if version != self._version and self._version is not None:
            self._rivals_until = time.monotonic() + _RIVALS_FOR
            self._hints.wake()
        self._version = version

    def pulse(self) -> float | None:
        """Seconds until the next look, a small part of the quiet so far; None: no task waits."""
        if self._checkpoints is None or not self._hints.waiting:
            return None
        return min(LONGEST, max(SHORTEST, self._hints.quiet * _PART))
