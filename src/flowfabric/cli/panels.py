"""How `flowfabric top` draws a moment of a store, on a terminal of any size."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flowfabric.cli.activity import StoreMoment
from flowfabric.cli.format import first_line, local, span
from flowfabric.cli.output import printable
from flowfabric.core.base.pages import MAX_COUNTED
from flowfabric.core.execution.status import PublicState

UNBOUNDED = 1_000_000
"""The height of a page that no terminal shows."""

NARROW = 72
"""Columns below which only the first and the most important ones are drawn."""

_STATE_STYLES = {
    PublicState.ACTIVE: "cyan",
    PublicState.FAILED: "red",
    PublicState.COMPLETED: "green",
    PublicState.RATE_LIMITED: "yellow",
}
_SHOWN_RATES = ("submitted", "started", "completed", "failed", "retried", "suspended", "lost")
_ALARMING = ("failed", "lost")
_NUMBERS = ("ready", "running", "runs")
_WHOLE = (*_NUMBERS, "oldest", "load", "seen", "last")
"""Columns that are never cut off; names and errors share what they leave."""
_GAP = 2


class Panel(NamedTuple):
    """A table below a heading; `few` are the columns of a narrow terminal."""

    columns: Sequence[str]
    few: Sequence[int]
    rows: Sequence[Sequence[str]]
    empty: str


def draw(
    frame: StoreMoment, shown: str, width: int, height: int, trouble: str = ""
) -> RenderableType:
    """The frame in so many columns and lines."""
    narrow = width < NARROW
    head = list(_head(frame, shown, trouble, narrow, height != UNBOUNDED))
    panels = [_lanes(frame), _workers(frame), _failures(frame)]
    lines = sum(_lines_of(text, width) for text in head) + 2 * len(panels)
    sizes = _sizes([len(panel.rows) or 1 for panel in panels], height - lines)
    parts: list[RenderableType] = list(head)
    for panel, size in zip(panels, sizes, strict=True):
        parts += [Text(), _table(panel, size, width)]
    return Group(*parts)


def _lines_of(text: Text, width: int) -> int:
    return max(1, -(-text.cell_len // max(1, width)))


def _sizes(wanted: Sequence[int], room: int) -> list[int]:
    """How many rows each panel gets: none more than it has, and each at least one."""
    sizes = [1] * len(wanted)
    left = room - len(wanted)
    while left > 0 and any(size < most for size, most in zip(sizes, wanted, strict=True)):
        for number, most in enumerate(wanted):
            if sizes[number] < most and left > 0:
                sizes[number] += 1
                left -= 1
    return sizes


def _head(frame: StoreMoment, shown: str, trouble: str, narrow: bool, live: bool) -> Iterator[Text]:
    title = Text("flowfabric top", style="bold", overflow="ellipsis", no_wrap=True)
    title.append(f"  {printable(shown)}", style="none")
    if not narrow:
        title.append(f"  {local(frame.at)}{'  q quits' if live else ''}", style="dim")
    yield title
    if trouble:
        yield Text(
            f"no answer: {printable(trouble)}", style="red", overflow="ellipsis", no_wrap=True
        )
    yield _sentence("per second", _rates(frame))
    yield _sentence("runs", _states(frame))
    oldest = frame.oldest
    if oldest is not None and oldest.oldest_at is not None:
        age = span(max(0, frame.at - oldest.oldest_at))
        yield _sentence("oldest waiting", [(f"{age} in {printable(oldest.lane)}", "")])


def _sentence(word: str, parts: Iterable[tuple[str, str]]) -> Text:
    text = Text(f"{word}: ", style="dim")
    for number, (part, style) in enumerate(parts):
        text.append(", " if number else "", style="dim")
        text.append(part, style=style or "none")
    return text


def _rates(frame: StoreMoment) -> Iterator[tuple[str, str]]:
    for name in _SHOWN_RATES:
        rate = getattr(frame.rates, name)
        if rate or name in ("submitted", "started", "completed"):
            yield f"{_rate(rate)} {name}", "red" if name in _ALARMING and rate else ""


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _states(frame: StoreMoment) -> Iterator[tuple[str, str]]:
    counts = frame.states
    some = False
    for state in PublicState:
        if count := counts.by_state.get(state, 0):
            more = "+" if state in counts.capped else ""
            yield f"{count:,}{more} {state.replace('_', ' ')}", _STATE_STYLES.get(state, "")
            some = True
    if not some:
        yield "none", ""


def _lanes(frame: StoreMoment) -> Panel:
    lanes = sorted(frame.lanes, key=lambda lane: (-lane.ready, -lane.running, lane.lane))
    rows = [
        (
            lane.lane,
            f"{lane.ready:,}{'+' if lane.ready >= MAX_COUNTED else ''}",
            f"{lane.running:,}",
            "" if lane.oldest_at is None else span(max(0, frame.at - lane.oldest_at)),
        )
        for lane in lanes
    ]
    return Panel(
        ("lane", "ready", "running", "oldest"), (0, 1, 2, 3), rows,
        "no lanes: nothing has been submitted so far",
    )  # fmt: skip


def _workers(frame: StoreMoment) -> Panel:
    workers = sorted(frame.workers, key=lambda worker: (-frame.load(worker), worker.instance))
    rows = [
        (
            worker.instance,
            worker.worker,
            f"{frame.held.get(worker.instance, 0)}/{worker.concurrency}",
            _bar(frame.load(worker)),
            ", ".join(worker.lanes) or "all",
            span(max(0, frame.at - worker.seen_at)),
        )
        for worker in workers
    ]
    return Panel(
        ("worker", "name", "running", "load", "lanes", "seen"), (0, 2, 3), rows,
        "no workers: start one with flowfabric worker",
    )  # fmt: skip


def _bar(load: float, width: int = 10) -> str:
    full = min(width, round(load * width))
    return "█" * full + "·" * (width - full) + f" {load:>4.0%}"


def _failures(frame: StoreMoment) -> Panel:
    rows = [
        (
            group.kind,
            str(group.count),
            first_line(group.error, 80),
            span(max(0, frame.at - group.last_at)),
        )
        for group in frame.failures
    ]
    return Panel(
        ("failed lately", "runs", "error", "last"), (0, 1, 2), rows,
        "no failures in the last 10 minutes",
    )  # fmt: skip


def _table(panel: Panel, size: int, width: int) -> RenderableType:
    if not panel.rows:
        return Group(Text(), Text(panel.empty, style="dim", overflow="ellipsis", no_wrap=True))
    columns = panel.few if width < NARROW else range(len(panel.columns))
    names = [panel.columns[number] for number in columns]
    rows = [[printable(row[number]) for number in columns] for row in panel.rows[:size]]
    more = len(panel.rows) - len(rows) + 1 if 1 < len(rows) < len(panel.rows) else 0
    if more:
        rows[-1] = [f"… {more} more", *("" for _ in names[1:])]
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
    for name, room in zip(names, _widths(names, rows, width), strict=True):
        align: Literal["left", "right"] = "right" if name in _NUMBERS else "left"
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify=align, width=room)
    for row in rows:
        table.add_row(*row, style="dim" if more and row is rows[-1] else None)
    return table


def _widths(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """How wide each column is: as it needs to be, or for names and errors an equal share of what
    is left."""
    wanted = [
        max(cell_len(text) for text in (name, *cells))
        for name, cells in zip(names, zip(*rows, strict=True), strict=True)
    ]
    soft = [number for number, name in enumerate(names) if name not in _WHOLE]
    left = width - _GAP * len(names) - sum(w for n, w in enumerate(wanted) if n not in soft)
    for place, number in enumerate(sorted(soft, key=lambda number: wanted[number])):
        share = max(1, left // (len(soft) - place))
        wanted[number] = min(wanted[number], share)
        left -= wanted[number]
    return wanted
