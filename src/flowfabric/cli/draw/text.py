"""A flow drawn with letters: layers of names, and lines between them."""

from collections.abc import Iterable, Mapping
from math import floor

from msgspec import Struct
from rich.cells import cell_len

from flowfabric.cli.draw.picture import KINDS, SIGNS, WORDS, NodeShape, Picture, picture
from flowfabric.cli.draw.place import Layout, Leg, place
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.join import On
from flowfabric.engine.flow.views import FlowGraph

GAP = 2
UP, RIGHT, DOWN, LEFT = 1, 2, 4, 8
LINES = dict(zip(range(1, 16), "│─└││┌├─┘─┴┐┤┬┼", strict=True))
HEADS = {On.SUCCESS: "▼", On.FAILURE: "!", On.ANY_END: "▽"}
MIXED = "◆"

_TRIES = (
    *((most, 40, True) for most in (8, 6, 5, 4, 3, 2)),
    *((most, 20, True) for most in (3, 2, 1)),
    *((most, 20, False) for most in (4, 3, 2, 1)),
    (0, 12, False),
)
"""How many of a form, how long a name, only alike ones: the first that fits is drawn."""

_PLAIN = str.maketrans(
    "○◷◍◌▶‖✓✗⊘⌀↷│─└┌├┘┴┐┤┬┼▼▽◆",
    "odl~>=+xce^|-'.|'+.|++v:*",
    "",
)


class Ink(Struct, frozen=True):
    """A piece of a line; `state` gives it its colour."""

    text: str
    state: PublicState | None = None


def draw(graph: FlowGraph, width: int, *, plain: bool = False) -> list[list[Ink]]:
    """The lines of a drawing, not wider than `width` if that can be. `plain` uses ASCII signs
    where the terminal knows no others."""
    shape = NodeShape(graph)
    found = picture(shape, 0)
    for most, name_length, alike in _TRIES:
        found = picture(shape, most, name_length=name_length, alike=alike)
        if place(found, cell_len, GAP, 0).width <= width:
            break
    plan = place(found, cell_len, GAP, 0)
    lines = [*Drawing(found, plan).lines(), [], *_legend(found)]
    if plain:
        lines = [[Ink(_ascii(ink.text), ink.state) for ink in line] for line in lines]
    return lines


class Drawing:
    def __init__(self, picture: Picture, plan: Layout) -> None:
        self._picture = picture
        self._plan = plan
        self._columns = [floor(spot.x) for spot in plan.spots]

    def lines(self) -> Iterable[list[Ink]]:
        legs: list[list[Leg]] = [[] for _ in self._plan.layers]
        for leg in self._plan.legs:
            legs[self._plan.spots[leg.upper].layer].append(leg)
        for layer, found in zip(self._plan.layers, legs, strict=True):
            # Lines first, then the next names: lines decide where exactly arrows pass a layer.
            yield self._names(layer)
            yield from Lines(self._plan, self._columns, found).lines()

    def _names(self, layer: list[int]) -> list[Ink]:
        inks, at = list[Ink](), 0
        for number in sorted(layer, key=self._left):
            left = self._left(number)
            inks.append(Ink(" " * (left - at)))
            box = self._plan.spots[number].box
            if box is None:
                inks.append(Ink("│"))
            else:
                inks.append(Ink(self._picture.boxes[box].text, self._picture.boxes[box].state))
            at = left + cell_len(inks[-1].text)
        return inks

    def _left(self, number: int) -> int:
        spot = self._plan.spots[number]
        return self._columns[number] if spot.box is None else floor(spot.x - spot.width / 2 + 0.5)


class Bundle(Struct):
    """Lower spots that hang on the same upper ones share a horizontal line, in one `row`."""

    uppers: frozenset[int]
    lowers: list[int]
    columns: list[int] = []
    row: int = 0


class Lines:
    """The lines between two layers. A crossing where nothing meets is drawn as if the horizontal
    line passed behind."""

    def __init__(self, plan: Layout, columns: list[int], legs: list[Leg]) -> None:
        self._plan = plan
        self._columns = columns
        self._legs = legs
        self._bundles = _bundles(legs)
        self._dodge()
        for bundle in self._bundles:
            bundle.columns = [columns[n] for n in (*bundle.uppers, *bundle.lowers)]
        self._rows = self._stack()

    def lines(self) -> Iterable[list[Ink]]:
        if not self._legs:
            return
        cells: list[dict[int, int]] = [{} for _ in range(self._rows)]
        for bundle in sorted(self._bundles, key=lambda bundle: bundle.row):
            self._draw(bundle, cells)
        for row in cells:
            yield _inks({column: LINES[bits] for column, bits in row.items()})
        yield _inks(self._heads())

    def _dodge(self) -> None:
        """No line comes down where another one already does."""
        bundles_of: dict[int, int] = {}
        for bundle in self._bundles:
            for upper in bundle.uppers:
                bundles_of[upper] = bundles_of.get(upper, 0) + 1
        taken = {self._columns[upper]: upper for upper in bundles_of}
        for bundle in self._bundles:
            for lower in bundle.lowers:
                column = self._columns[lower]
                above = taken.get(column)
                mine = above in bundle.uppers and bundles_of.get(above or 0) == 1
                if above is not None and not mine:
                    self._columns[lower] = column - 1 if column + 1 in taken else column + 1

    def _stack(self) -> int:
        """Gives each bundle a row of its own, or one it shares with others far from it; how many
        rows that makes. A single straight line needs none."""
        ends: list[int] = []
        for bundle in sorted(self._bundles, key=lambda bundle: min(bundle.columns)):
            left, right = min(bundle.columns), max(bundle.columns)
            if left == right:
                continue
            free = next((row for row, end in enumerate(ends) if end < left - 1), len(ends))
            ends[free : free + 1] = [right]
            bundle.row = free
        return len(ends)

    def _draw(self, bundle: Bundle, cells: list[dict[int, int]]) -> None:
        uppers = {self._columns[n] for n in bundle.uppers}
        lowers = {self._columns[n] for n in bundle.lowers}
        straight = len(uppers | lowers) == 1
        row = len(cells) if straight else bundle.row
        for column in uppers:
            for above in cells[:row]:
                _cross(above, column)
        for column in lowers:
            for below in cells[row + 1 :]:
                _cross(below, column)
        if not straight:
            _span(cells[row], uppers, lowers)

    def _heads(self) -> dict[int, str]:
        kinds: dict[int, set[On]] = {}
        for leg in self._legs:
            kinds.setdefault(leg.lower, set()).update(leg.kinds or ())
        return {
            self._columns[lower]: (
                "│" if not found else HEADS[next(iter(found))] if len(found) == 1 else MIXED
            )
            for lower, found in kinds.items()
        }


def _bundles(legs: list[Leg]) -> list[Bundle]:
    uppers: dict[int, set[int]] = {}
    for leg in legs:
        uppers.setdefault(leg.lower, set()).add(leg.upper)
    found: dict[frozenset[int], list[int]] = {}
    for lower, above in uppers.items():
        found.setdefault(frozenset(above), []).append(lower)
    return [Bundle(above, lowers) for above, lowers in found.items()]


def _span(row: dict[int, int], uppers: set[int], lowers: set[int]) -> None:
    """The horizontal line of a bundle; it passes behind lines that are not its own."""
    left, right = min(uppers | lowers), max(uppers | lowers)
    for column in range(left, right + 1):
        ends = UP * (column in uppers) | DOWN * (column in lowers)
        met = row.get(column, 0)
        if ends or not met & (UP | DOWN):
            row[column] = met | ends | LEFT * (column > left) | RIGHT * (column < right)


def _cross(row: dict[int, int], column: int) -> None:
    """A vertical line through a row; it hides a horizontal one that it only crosses."""
    met = row.get(column, 0)
    row[column] = met | UP | DOWN if met & (UP | DOWN) else UP | DOWN


def _inks(row: Mapping[int, str]) -> list[Ink]:
    last = max(row, default=-1)
    return [Ink("".join(row.get(column, " ") for column in range(last + 1)))]


def _legend(picture: Picture) -> Iterable[list[Ink]]:
    states = [Ink(f"{SIGNS[state]} {WORDS[state]}", state) for state in picture.states]
    yield [ink for state in states for ink in (state, Ink("  "))][:-1]
    kinds = picture.kinds
    if kinds not in ([], [On.SUCCESS]):
        heads = [f"{HEADS[on]} {KINDS[on]}" for on in kinds]
        if len(kinds) > 1:
            heads.append(f"{MIXED} several of these")
        yield [Ink("  ".join(heads))]


def _ascii(text: str) -> str:
    return text.translate(_PLAIN).replace("…", "...")
