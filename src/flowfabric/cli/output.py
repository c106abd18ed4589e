"""Where output goes: results to stdout, all else to stderr, as JSON or for people."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table

from flowfabric.core.base.ids import without_tags
from flowfabric.core.base.redact import redact

Cells = Sequence[tuple[str, str]]
"""Headings and texts."""

PIPE_WIDTH = 1000
"""A pipe has no width of its own; nothing may be cut off for a program."""


class Screen:
    """What one command prints. People's text never contains a password or a control character."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.out = _console()
        self.err = _console(stderr=True)

    @property
    def is_watched(self) -> bool:
        """Whether a person at a terminal sees what is under way."""
        return not self.as_json and self.err.is_terminal

    def document(self, document: object) -> None:
        """One line of JSON."""
        self.out.file.write(_json(document) + "\n")
        self.out.file.flush()

    def line(self, text: str, style: str | None = None) -> None:
        self.out.print(printable(text), style=style, soft_wrap=True)

    def text(self, text: str) -> None:
        """Several lines, as they are."""
        self.out.print(printable(text, keep_lines=True), style="dim", soft_wrap=True)

    def note(self, text: str) -> None:
        """An aside for people, out of the way of what a pipe reads."""
        self.err.print(printable(redact(text)), style="dim", soft_wrap=True)

    def aside(self, document: object) -> None:
        """One line of JSON that is no result."""
        self.err.file.write(_json(document) + "\n")

    def value(self, value: object) -> None:
        """A result, as indented JSON."""
        self.out.print(msgspec.json.format(_json(value)), soft_wrap=True)

    def table(self, rows: Sequence[Cells], firm: Collection[str] = ()) -> None:
        """Rows of the same headings; the first column is never shortened, and `firm` ones stay on
        one line."""
        table = Table(box=None, header_style="bold", pad_edge=False)
        for number, (heading, _) in enumerate(rows[0]):
            table.add_column(heading, no_wrap=number == 0 or heading in firm, overflow="fold")
        for row in rows:
            table.add_row(*(printable(text) for _, text in row))
        self.out.print(table)

    def fields(self, fields: Cells) -> None:
        """Names and values below each other; a name without a value is left out."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in fields:
            if value:
                grid.add_row(name, printable(value, keep_lines=True))
        self.out.print(grid)

    def answer(self, document: object, words: str, note: str = "") -> None:
        """A document for programs, or a line for people, who may also get a note."""
        if self.as_json:
            self.document(document)
            return
        self.line(words)
        if note:
            self.note(note)

    def error(self, word: str, text: str, **members: Any) -> None:
        """One line on stderr."""
        safe = without_tags(redact(text))
        if self.as_json:
            self.aside({**members, "error": word, "message": safe})
        else:
            self.err.print("error:", printable(safe), style="red", soft_wrap=True)


@contextmanager
def progress_bar(screen: Screen) -> Iterator[Callable[[str, int, int], None]]:
    """What is done now, how much of it is done, and how much there is: for people at a terminal."""
    if not screen.is_watched:
        yield lambda what, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bars(*columns, console=screen.err, transient=True) as bars:
        shown = bars.add_task("opening", total=None)
        yield lambda what, done, total: bars.update(
            shown, description=what, completed=done, total=total
        )


def _json(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def printable(text: str, *, keep_lines: bool = False) -> str:
    """Text for people: ids of runs are UUIDs, and text from strangers cannot move the cursor or
    change colours."""
    kept = "\n" if keep_lines else ""
    return "".join(c if c.isprintable() or c in kept else " " for c in without_tags(text))


def _console(*, stderr: bool = False) -> Console:
    console = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console
