"""Flows as text, as Mermaid and as SVG."""

import random
from itertools import pairwise

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from flowfabric import AnyOf, Quorum
from flowfabric.cli.draw.mermaid import mermaid
from flowfabric.cli.draw.picture import NodeShape, picture
from flowfabric.cli.draw.place import place
from flowfabric.cli.draw.svg import svg
from flowfabric.cli.draw.text import draw
from flowfabric.core.flow.join import On
from flowfabric.engine.flow.views import FlowGraph
from tests.cli.graphs import graph, parsed

NASTY = 'a "quoted" <b>&amp; `x`; end\n]]> #35; \x1b[31m'
SVG = "{http://www.w3.org/2000/svg}"

DIAMOND = graph(
    {"plan": "c", "left": "c", "right": "f", "publish": "s", "cleanup": "a"},
    ("plan", "left"),
    ("plan", "right"),
    ("left", "publish"),
    ("right", "publish"),
    ("right", "cleanup", On.FAILURE),
)


def drawn(found: FlowGraph, width: int = 80, *, plain: bool = False) -> list[str]:
    lines = draw(found, width, plain=plain)
    return ["".join(ink.text for ink in line).rstrip() for line in lines]


def wide(width: int, **states: str) -> FlowGraph:
    parts = {f"part {n}": "c" for n in range(width)}
    parts |= {f"part {name.removeprefix('n')}": state for name, state in states.items()}
    arrows = [pair for part in parts for pair in (("plan", part), (part, "sum"))]
    return graph({"plan": "c", **parts, "sum": "w"}, *arrows)


def tangle(seed: int, nodes: int) -> FlowGraph:
    jitter = random.Random(seed)
    names = [f"node {n}" for n in range(nodes)]
    arrows = [
        (names[above], names[below], jitter.choice(list(On)))
        for above in range(nodes)
        for below in range(above + 1, nodes)
        if jitter.random() < 2.5 / nodes
    ]
    return graph({name: jitter.choice("cfawsx") for name in names}, *arrows)


def test_a_diamond_reads_from_top_to_bottom() -> None:
    assert drawn(DIAMOND) == [
        "    ✓ plan",
        "   ┌───┴───┐",
        "   ▼       ▼",
        "✓ left  ✗ right",
        "   └┬──────┤",
        "    │      └───┐",
        "    ▼          !",
        "↷ publish  ▶ cleanup",
        "",
        "▶ active  ✓ completed  ✗ failed  ↷ skipped",
        "▼ on success  ! on failure  ◆ several of these",
    ]


def test_an_edge_that_skips_a_layer_passes_beside_the_names() -> None:
    found = graph({"a": "c", "b": "a", "c": "w"}, ("a", "b"), ("b", "c"), ("a", "c"))
    assert drawn(found)[:6] == ["  ✓ a", " ┌─┴─┐", " ▼   │", "▶ b  │", " └─┬─┘", "   ▼"]


def test_a_wide_layer_is_folded_and_what_is_interesting_is_not() -> None:
    lines = drawn(wide(200, n17="f", n77="a"))
    assert lines[3] == (
        "✓ part 0  ✓ part 1  ✓ part 2  ✗ part 17  ▶ part 77  … 195 more (195 completed)"
    )
    assert max(map(len, lines)) <= 80


def test_the_fold_counts_states() -> None:
    (line,) = [line for line in drawn(wide(12, n1="f", n2="f", n3="a"), 60) if "more" in line]
    assert line.endswith("(9 completed)")
    many_states = wide(30, **{f"n{n}": "a" for n in range(20)})
    (line,) = [line for line in drawn(many_states, 60) if "more" in line]
    assert line.endswith("… 28 more (18 active, 10 completed)")


def test_parallel_chains_are_folded_layer_by_layer() -> None:
    names = [f"{step} {n}" for n in range(30) for step in ("fetch", "clean", "store")]
    arrows = [pair for pair in pairwise(names) if not pair[0].startswith("store")]
    lines = drawn(graph(dict.fromkeys(names, "c"), *arrows))
    assert [line.partition("…")[2] for line in lines if "more" in line] == [
        " 25 more (25 completed)"
    ] * 3


def test_one_alone_is_never_folded() -> None:
    assert "more" not in "".join(drawn(wide(3), 40))


def test_joins_tell_what_they_need() -> None:
    found = graph(
        {"a": "c", "b": "a", "first": "c", "most": "w"},
        *((above, below) for above in "ab" for below in ("first", "most")),
        joins={"first": AnyOf(), "most": Quorum(2)},
    )
    text = "\n".join(drawn(found))
    assert "✓ first (any of 2)" in text
    assert "◌ most (2 of 2)" in text


@pytest.mark.parametrize("seed", range(40))
def test_any_graph_fits_a_narrow_terminal(seed: int) -> None:
    lines = drawn(tangle(seed, 4 + seed // 2), 100)
    assert max(map(cell_len, lines)) <= 100


@pytest.mark.parametrize("seed", range(20))
def test_boxes_do_not_touch_each_other(seed: int) -> None:
    plan = place(picture(NodeShape(tangle(seed, 14)), 4), cell_len, 2, 0)
    for layer in plan.layers:
        spots = [plan.spots[number] for number in layer]
        assert all(spot.x - spot.width / 2 >= -1e-6 for spot in spots)
        for left, right in pairwise(spots):
            assert left.x + left.width / 2 + 2 <= right.x - right.width / 2 + 1e-6


def test_every_line_of_a_tangle_leads_somewhere() -> None:
    """No vertical line ends in the air: what is open downwards goes on in the next line."""
    open_below, open_above = set("│├┤┼┬┌┐"), set("│├┤┼┴└┘▼▽!◆")
    for seed in range(30):
        lines = drawn(tangle(seed, 12), 120)
        lines = lines[: lines.index("")]
        for upper, lower in pairwise(lines):
            for column, sign in enumerate(upper):
                below = lower[column] if column < len(lower) else " "
                assert sign not in open_below or below in open_above, "\n".join(lines)


def test_a_terminal_without_signs_gets_letters() -> None:
    lines = drawn(wide(200, n17="f"), plain=True)
    assert all(line.isascii() for line in lines)
    assert "x part 17" in lines[3]
    assert "... 19" in lines[3]


def test_an_empty_flow_is_an_empty_picture() -> None:
    assert drawn(graph({})) == ["", ""]
    assert mermaid(graph({})) == "graph TD\n"
    assert parsed(svg(graph({}))).tag == f"{SVG}svg"


def test_names_cannot_break_out_of_mermaid() -> None:
    text = mermaid(graph({NASTY: "c", "end": "f"}, (NASTY, "end", On.FAILURE)))
    first, second, arrow, *classes = text.splitlines()[1:]
    assert first.startswith('    n0["✓ a #34;quoted#34; #60;b#62;#38;amp#59; #96;x#96;#59; end ')
    assert first.endswith('"]:::completed')
    assert first.count('"') == 2
    assert second == '    n1["✗ end"]:::failed'
    assert arrow == '    n0 -. "on failure" .-> n1'
    assert [line.split()[1] for line in classes] == ["completed", "failed"]


def test_mermaid_folds_what_it_could_not_draw() -> None:
    text = mermaid(wide(1000))
    assert text.startswith("graph TD\n")
    assert "… 988 more (988 completed)" in text
    assert text.count("-->") == 26


def test_names_cannot_break_out_of_svg() -> None:
    text = svg(graph({NASTY: "c", "end": "f"}, (NASTY, "end", On.FAILURE)))
    root = parsed(text)
    words = ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]
    assert words[0] == "Flow nightly: open"
    assert words[1].startswith('✓ a "quoted" <b>&amp; `x`; end')
    assert not list(root.iter(f"{SVG}b"))


def test_svg_tells_states_without_colours_and_to_screen_readers() -> None:
    root = parsed(svg(DIAMOND))
    assert root.get("role") == "img"
    assert root.find(f"{SVG}title").text == "Flow nightly: open"  # type: ignore[union-attr]
    about = root.find(f"{SVG}desc").text or ""  # type: ignore[union-attr]
    assert "5 members, 5 edges: 1 failed, 1 active, 1 skipped, 2 completed" in about
    titles = [each.text for each in root.iter(f"{SVG}title")]
    assert "right: failed" in titles
    legend = ["".join(each.itertext()) for each in root.iter(f"{SVG}text")][-6:]
    assert legend == [
        "▶ active",
        "✓ completed",
        "✗ failed",
        "↷ skipped",
        "on success",
        "on failure",
    ]


@pytest.mark.parametrize("seed", range(10))
def test_svg_stays_inside_its_frame(seed: int) -> None:
    root = parsed(svg(tangle(seed, 16)))
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for box in root.iter(f"{SVG}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert 0 <= x <= x + float(box.get("width", 0)) <= width
        assert 0 <= y <= y + float(box.get("height", 0)) <= height


@pytest.mark.parametrize("kind", ["short", "nightly-" * 30, "夜間バッチ" * 20])
def test_the_title_of_an_svg_is_never_cut(kind: str) -> None:
    """The picture is as wide as its title needs; a bold letter of 15 pixels is 9 wide"""
    found = graph({"only": "c"})
    root = parsed(svg(replace(found, flow=replace(found.flow, kind=kind))))
    title = next(each for each in root.iter(f"{SVG}text") if "bold" in each.attrib.values())
    assert kind in (title.text or "")
    end = float(title.get("x", 0)) + 9 * cell_len(title.text or "")
    assert end <= float(root.get("width", ""))


def test_svg_folds_a_layer_that_no_screen_could_show() -> None:
    """Also where each member is of a kind of its own; what is interesting is still seen"""
    parts = {f"k{n}_{'x' * 20}": "f" if n == 33 else "c" for n in range(60)}
    found = graph({"plan": "c", **parts}, *(("plan", part) for part in parts))
    text = svg(found)
    assert float(parsed(text).get("width", "")) < 4000
    assert "48 more (48 completed)" in text
    assert "✗ k33" in text


def test_a_dashed_line_is_dashed_all_the_way() -> None:
    """Also where it passes a layer; lines of two kinds that go together are solid there"""
    passing = ("a", "c", On.FAILURE)
    lone = svg(graph(dict.fromkeys("abc", "c"), ("a", "b"), ("b", "c"), passing))
    assert lone.count('stroke-dasharray="6 4"') == 2 + 1  # both parts, and in the legend
    more = ("a", "b"), ("b", "c"), ("a", "d"), ("b", "d")
    mixed = svg(graph(dict.fromkeys("abcd", "c"), passing, *more))
    assert mixed.count('stroke-dasharray="6 4"') == 1 + 1
