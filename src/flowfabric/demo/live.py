"""The board as a live table, for a terminal."""

from collections import deque

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flowfabric.demo.board import Board, Row

SPOKEN = 8
_STYLES = {
    "active": "cyan",
    "delayed": "yellow",
    "lost": "red",
    "completed": "green",
    "waiting": "dim",
}


class LiveBoard(Board):
    """A table that changes in place, with the last comments of the narrator below it."""

    def __init__(self) -> None:
        super().__init__()
        self._spoken: deque[str] = deque(maxlen=SPOKEN)
        self._live = Live(get_renderable=self._render, refresh_per_second=10)

    def __enter__(self) -> "LiveBoard":
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def show(self, row: Row) -> None:
        self._live.refresh()

    def say(self, text: str) -> None:
        self._spoken.append(f"{self.seconds:5.1f}s  {text}")
        self._live.refresh()

    def _render(self) -> Group:
        table = Table(title="FlowFabric", title_justify="left", expand=False)
        for column in ("run", "task", "state", "attempt", "worker", "what just happened"):
            table.add_column(column, no_wrap=column != "what just happened")
        for row in self.rows.values():
            state = Text(row.state, style=_STYLES.get(row.state, ""))
            cells = (row.run, row.task, state, str(row.attempt), row.worker, row.happened)
            table.add_row(*cells)
        return Group(table, *(Text(line) for line in self._spoken))
