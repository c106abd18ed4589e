"""A flow as Mermaid text, which many pages and editors draw."""

from collections.abc import Iterable

from flowfabric.cli.draw.picture import KINDS, SIGNS, Arrow, NodeShape, picture
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.join import On
from flowfabric.engine.flow.views import FlowGraph

MOST = 12
"""So many of the same form: Mermaid draws a few hundred edges, not thousands."""

COLOURS = {
    PublicState.WAITING: ("#eef2f7", "#64748b"),
    PublicState.DELAYED: ("#eef2f7", "#64748b"),
    PublicState.RATE_LIMITED: ("#eef2f7", "#64748b"),
    PublicState.WAITING_CHILDREN: ("#f8fafc", "#94a3b8"),
    PublicState.ACTIVE: ("#dbeafe", "#1d4ed8"),
    PublicState.SUSPENDED: ("#f3e8ff", "#7e22ce"),
    PublicState.COMPLETED: ("#dcfce7", "#15803d"),
    PublicState.FAILED: ("#fee2e2", "#b91c1c"),
    PublicState.CANCELLED: ("#ffedd5", "#c2410c"),
    PublicState.EXPIRED: ("#fef3c7", "#a16207"),
    PublicState.SKIPPED: ("#f1f5f9", "#475569"),
}
"""Inside and border of a box."""

_SAFE = frozenset(" _-.,:/()…") | frozenset(SIGNS.values())


def mermaid(graph: FlowGraph) -> str:
    """The text of a diagram, `graph TD`; states are classes."""
    found = picture(NodeShape(graph), MOST)
    boxes = (
        f'    n{number}["{escaped(box.text)}"]:::{box.state}'
        for number, box in enumerate(found.boxes)
    )
    arrows = (_arrow(arrow) for arrow in found.arrows)
    states = {box.state for box in found.boxes}
    return "\n".join(["graph TD", *boxes, *arrows, *_classes(states)]) + "\n"


def escaped(text: str) -> str:
    """Everything that could mean something to Mermaid or to a page is written as its number."""
    return "".join(
        letter if letter.isalnum() or letter in _SAFE else f"#{ord(letter)};" for letter in text
    )


def _arrow(arrow: Arrow) -> str:
    ends = f"n{arrow.upstream}", f"n{arrow.downstream}"
    if arrow.kinds == {On.SUCCESS}:
        return f"    {ends[0]} --> {ends[1]}"
    words = ", ".join(KINDS[on] for on in On if on in arrow.kinds)
    return f'    {ends[0]} -. "{words}" .-> {ends[1]}'


def _classes(states: Iterable[PublicState]) -> Iterable[str]:
    for state in PublicState:
        if state in states:
            inside, border = COLOURS[state]
            yield f"    classDef {state} fill:{inside},stroke:{border},color:#0f172a"
