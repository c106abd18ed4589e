"""Copies the write-ahead log into the database, away from the thread that commits.

SQLite does not say how many pages a commit wrote, only how many rows. So the number of rows between
two checkpoints is learned from the length of the log that each of them finds.
"""

from flowfabric.store.sqlite.runner import Runner
from flowfabric.store.sqlite.session import SqliteSession

PAGES = 1000
"""Length of the log at which it is copied."""

LONG = 8 * PAGES
"""Length at which writing pauses, because copying beside a busy writer never catches up."""

_FEWEST, _MOST = 50, 20_000


class Checkpoints:
    """Counts changes, copies the log when there were many."""

    def __init__(self, beside: Runner) -> None:
        self.writer: Runner | None = None
        self._beside = beside
        self._under_way = False
        self._seen = 0
        self._due = 1000
        self._length = 0

    def count(self, total: int) -> None:
        """Told the number of rows the writer has ever changed, after each commit."""
        if total - self._seen >= self._due and not self._under_way:
            self._under_way = True
            self._seen = total
            self._beside.post(self._copy)

    def _copy(self, session: SqliteSession) -> None:
        try:
            _, length, _ = session.connection.execute("pragma wal_checkpoint(passive)").fetchone()
        finally:
            self._under_way = False
        grown = length - self._length if length >= self._length else length
        self._length = length
        if grown > 0:
            self._due = max(_FEWEST, min(_MOST, self._due * PAGES // grown))
        if length >= LONG and self.writer is not None:
            self.writer.post(_start_over)


def _start_over(session: SqliteSession) -> None:
    """Copies the rest while there is no writer, so that the next commit starts the log over."""
    session.connection.execute("pragma wal_checkpoint(restart)").fetchone()
