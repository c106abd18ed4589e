"""Where boxes go: layers from top to bottom, few crossings, everything near what it belongs to.

An arrow that passes a layer has a place of its own there, so that it does not run into boxes.
"""

from collections.abc import Callable, Sequence
from statistics import fmean

from msgspec import Struct

from flowfabric.cli.draw.picture import Arrow, Picture
from flowfabric.core.flow.join import On

SWEEPS = 6


class Spot(Struct):
    """A place in a layer, for a box or (`box` is None) for an arrow that passes. `x` is its
    middle."""

    layer: int
    width: float
    box: int | None = None
    x: float = 0.0


class Leg(Struct, frozen=True):
    """A part of arrows, from a spot in one layer to one in the next. `along` are the kinds of all
    that go along it, `ends` says whether they end there."""

    upper: int
    lower: int
    along: frozenset[On]
    ends: bool

    @property
    def kinds(self) -> frozenset[On] | None:
        """What ends here, None for a part that passes."""
        return self.along if self.ends else None


class Layout(Struct):
    spots: list[Spot]
    legs: list[Leg]
    layers: list[list[int]]
    width: float


def place(picture: Picture, width_of: Callable[[str], float], gap: float, room: float) -> Layout:
    """The places of a picture. It is as wide as `room`, or as its widest layer if that is more."""
    spots = [Spot(box.layer, width_of(box.text), n) for n, box in enumerate(picture.boxes)]
    legs = _legs(picture.arrows, spots)
    layers: list[list[int]] = [[] for _ in range(max((s.layer for s in spots), default=-1) + 1)]
    for number, spot in enumerate(spots):
        layers[spot.layer].append(number)
    plan = Layout(spots, legs, layers, room)
    plan.width = max([room, *(_needed(plan, layer, gap) for layer in layers)])
    _arrange(plan, gap)
    return plan


def _legs(arrows: Sequence[Arrow], spots: list[Spot]) -> list[Leg]:
    """The parts of arrows; makes spots in the layers they pass. Arrows that begin at the same box
    go together as far as they can."""
    passing: dict[tuple[int, int], int] = {}
    along: dict[tuple[int, int], frozenset[On]] = {}
    for arrow in arrows:
        upper = arrow.upstream
        for layer in range(spots[upper].layer + 1, spots[arrow.downstream].layer):
            lower = passing.get((arrow.upstream, layer))
            if lower is None:
                lower = passing[arrow.upstream, layer] = len(spots)
                spots.append(Spot(layer, 1))
            along[upper, lower] = along.get((upper, lower), frozenset()) | arrow.kinds
            upper = lower
        along[upper, arrow.downstream] = arrow.kinds
    return [
        Leg(upper, lower, kinds, ends=spots[lower].box is not None)
        for (upper, lower), kinds in along.items()
    ]


def _needed(plan: Layout, layer: Sequence[int], gap: float) -> float:
    return sum(plan.spots[n].width for n in layer) + gap * (len(layer) - 1)


def _arrange(plan: Layout, gap: float) -> None:
    above: list[list[int]] = [[] for _ in plan.spots]
    below: list[list[int]] = [[] for _ in plan.spots]
    for leg in plan.legs:
        above[leg.lower].append(leg.upper)
        below[leg.upper].append(leg.lower)
    for layer in plan.layers:
        _settle(plan, layer, gap, lambda number: plan.width / 2)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        for layer in plan.layers if down else reversed(plan.layers):

            def wanted(number: int, near: list[list[int]] = near) -> float:
                spot = plan.spots[number]
                return fmean([plan.spots[n].x for n in near[number]] or [spot.x])

            layer.sort(key=wanted)  # stable: those that want the same stay as they are
            _settle(plan, layer, gap, wanted)


def _settle(plan: Layout, layer: list[int], gap: float, wanted: Callable[[int], float]) -> None:
    """Puts the spots of a layer as near as can be to where they want to be, in their order and
    without overlap: the least sum of squares, by pooling those that would collide."""
    spots, offsets, at = [plan.spots[n] for n in layer], [], 0.0
    for spot in spots:
        offsets.append(at + spot.width / 2)
        at += spot.width + gap
    pools: list[tuple[float, int]] = []
    for number, offset in zip(layer, offsets, strict=True):
        mean, size = wanted(number) - offset, 1
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean, size = (before * many + mean * size) / (many + size), many + size
        pools.append((mean, size))
    lefts = [mean for mean, size in pools for _ in range(size)]
    most = plan.width - (at - gap)
    for spot, offset, left in zip(spots, offsets, lefts, strict=True):
        spot.x = offset + min(max(left, 0.0), max(most, 0.0))
