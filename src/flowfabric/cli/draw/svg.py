"""A flow as an SVG picture: boxes in layers, states as colours and as signs, a legend."""

from collections.abc import Iterable
from html import escape

from rich.cells import cell_len

from flowfabric.cli.draw.mermaid import COLOURS
from flowfabric.cli.draw.picture import KINDS, SIGNS, WORDS, NodeShape, Picture, counts, picture
from flowfabric.cli.draw.place import Layout, Leg, Spot, place
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.join import On
from flowfabric.engine.flow.views import FlowGraph

MOST = 12
NARROW = 420.0
WIDE = 2400.0
LETTER = 7.3
TEXT = 12.0
TITLE = 15.0
PADDING = 12.0
HEIGHT = 30.0
LEVEL = 78.0
GAP = 22.0
MARGIN = 24.0
HEADER = 46.0
LEGEND = 26.0

_DASHES = {On.SUCCESS: "", On.FAILURE: "6 4", On.ANY_END: "2 3"}
_INK = "#0f172a"
_FONT = "ui-monospace, Menlo, Consolas, monospace"
_LINE = "#64748b"


def svg(graph: FlowGraph) -> str:
    """The picture as a document of its own, readable without colours and by screen readers."""
    found, plan = _planned(NodeShape(graph))
    legend = list(_legend(found, plan.width))
    width = max(plan.width, _title_width(graph)) + 2 * MARGIN
    bottom = HEADER + max(len(plan.layers), 1) * LEVEL
    height = bottom + len(legend) * LEGEND + MARGIN
    title = _text(_title(graph))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-labelledby="title about">',
        *_words(graph),
        _MARKER,
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<g font-family="{_FONT}" font-size="{TEXT:.0f}" fill="{_INK}">',
        f'<text x="{MARGIN}" y="28" font-size="{TITLE:.0f}" font-weight="bold">{title}</text>',
        *(_line(plan, leg) for leg in plan.legs),
        *(_box(found, spot) for spot in plan.spots if spot.box is not None),
        *(f'<g transform="translate(0 {bottom + n * LEGEND:.1f})">{row}</g>'
          for n, row in enumerate(legend)),
        "</g>",
        "</svg>",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _planned(shape: NodeShape) -> tuple[Picture, Layout]:
    """What is drawn and where. In layers that no screen could show also those are folded that are
    not alike."""
    for alike in (True, False):
        found = picture(shape, MOST, alike=alike)
        plan = place(found, lambda text: cell_len(text) * LETTER + 2 * PADDING, GAP, NARROW)
        if plan.width <= WIDE:
            break
    return found, plan


_MARKER = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
    f' orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{_LINE}"/></marker></defs>'
)


_HEAD = 'marker-end="url(#head)"'


def _title(graph: FlowGraph) -> str:
    return f"Flow {graph.flow.kind}: {graph.flow.state}"


def _title_width(graph: FlowGraph) -> float:
    return cell_len(_title(graph)) * LETTER * TITLE / TEXT


def _words(graph: FlowGraph) -> Iterable[str]:
    states: dict[PublicState, int] = {}
    for member in graph.members:
        states[member.state] = states.get(member.state, 0) + 1
    about = f"{len(graph.members)} members, {len(graph.edges)} edges: {counts(states)}."
    yield f'<title id="title">{_text(_title(graph))}</title>'
    yield f'<desc id="about">{_text(f"Flow {graph.flow.id}. {about}")}</desc>'


def _top(spot: Spot) -> float:
    return HEADER + spot.layer * LEVEL


def _box(picture: Picture, spot: Spot) -> str:
    box = picture.boxes[spot.box or 0]
    inside, border = COLOURS[box.state]
    left, top = MARGIN + spot.x - spot.width / 2, _top(spot)
    words = box.text if box.folded else f"{box.label}: {WORDS[box.state]}"
    return (
        f'<g class="{box.state}"><title>{_text(words)}</title>'
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{spot.width:.1f}" height="{HEIGHT}" rx="6"'
        f' fill="{inside}" stroke="{border}" stroke-width="1.5"/>'
        f'<text x="{MARGIN + spot.x:.1f}" y="{top + 19.5:.1f}" text-anchor="middle">'
        f"{_text(box.text)}</text></g>"
    )


def _line(plan: Layout, leg: Leg) -> str:
    """From the lower side of a box to the upper side of another; one that passes goes through."""
    upper, lower = plan.spots[leg.upper], plan.spots[leg.lower]
    x, y = MARGIN + upper.x, _top(upper) + HEIGHT
    to_x, to_y = MARGIN + lower.x, _top(lower)
    way = f"M{x:.1f} {y:.1f}C{x:.1f} {y + 26:.1f} {to_x:.1f} {to_y - 26:.1f} {to_x:.1f} {to_y:.1f}"
    if not leg.ends:
        return f'<path d="{way}v{HEIGHT:.0f}" {_stroke(leg.along)}/>'
    return f'<path d="{way}" {_stroke(leg.along)} {_HEAD}/>'


def _stroke(kinds: frozenset[On]) -> str:
    dashes = _DASHES[next(iter(kinds))] if len(kinds) == 1 else ""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'fill="none" stroke="{_LINE}"{dashed}'


def _legend(picture: Picture, width: float) -> Iterable[str]:
    """Rows of signs and words, not wider than the picture."""
    states = {box.state for box in picture.boxes}
    yield from _rows([_state_entry(state) for state in PublicState if state in states], width)
    if picture.kinds not in ([], [On.SUCCESS]):
        yield from _rows([_kind_entry(on) for on in picture.kinds], width)


def _rows(entries: Iterable[tuple[float, str]], width: float) -> Iterable[str]:
    x, row = 0.0, ""
    for size, entry in entries:
        if row and x + size > width:
            yield row
            x, row = 0.0, ""
        row += f'<g transform="translate({MARGIN + x:.1f} 0)">{entry}</g>'
        x += size
    yield row


def _state_entry(state: PublicState) -> tuple[float, str]:
    inside, border = COLOURS[state]
    words = f"{SIGNS[state]} {WORDS[state]}"
    sign = f'<rect y="4" width="14" height="14" rx="3" fill="{inside}" stroke="{border}"/>'
    return len(words) * LETTER + 44, f'{sign}<text x="20" y="15">{words}</text>'


def _kind_entry(on: On) -> tuple[float, str]:
    line = f'<path d="M0 11h28" {_stroke(frozenset({on}))} {_HEAD}/>'
    return len(KINDS[on]) * LETTER + 58, f'{line}<text x="34" y="15">{KINDS[on]}</text>'


def _text(text: str) -> str:
    """Text from strangers is text in a document, and nothing that XML forbids is in it."""
    return escape("".join(letter if letter.isprintable() else " " for letter in text))
