"""Horizontal bars as SVG, written by hand. The picture has a background of its own, light or dark
as the reader prefers, so that it is readable on any page."""

from xml.sax.saxutils import escape

from msgspec import Struct

WIDTH, LEFT, RIGHT = 860, 330, 110
ROW, GAP, TOP, FOOT = 22, 8, 64, 20
STYLE = """
.card { fill: #ffffff } text { font: 13px system-ui, sans-serif; fill: #1f2933 }
.title { font-weight: 600; font-size: 15px } .spread { stroke: #1f2933; stroke-width: 1.5 }
.s0 { fill: #2f6fb5 } .s1 { fill: #d98324 } .s2 { fill: #4f9d69 } .s3 { fill: #8a63b8 }
@media (prefers-color-scheme: dark) {
  .card { fill: #14181d } text { fill: #e4e7eb } .spread { stroke: #e4e7eb }
  .s0 { fill: #6ca6e8 } .s1 { fill: #f0a957 } .s2 { fill: #7cc796 } .s3 { fill: #b795e0 }
}"""


class Bar(Struct):
    """Bars with the same label stand together; the series gives the colour."""

    label: str
    series: str
    value: float
    low: float
    high: float


def bars(title: str, found: list[Bar]) -> str:
    """An SVG document. A thin line shows the spread from the lowest to the highest."""
    series = list(dict.fromkeys(bar.series for bar in found))
    most = max((bar.high for bar in found), default=0.0) or 1.0
    parts, y, label = [], TOP, None
    for bar in found:
        if bar.label != label:
            y, label = y + GAP, bar.label
            parts.append(
                f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(label)}</text>'
            )
        parts += _bar(bar, y, most, series.index(bar.series) % 4)
        y += ROW
    height = y + FOOT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            f' width="{WIDTH}" height="{height}" role="img" aria-label="{escape(title)}">',
            f"<style>{STYLE}</style>",
            f'<rect class="card" width="{WIDTH}" height="{height}" rx="8"/>',
            f'<text class="title" x="20" y="28">{escape(title)}</text>',
            *_legend(series),
            *parts,
            "</svg>\n",
        ]
    )


def _bar(bar: Bar, y: int, most: float, colour: int) -> list[str]:
    def x(value: float) -> str:
        return f"{LEFT + value / most * (WIDTH - LEFT - RIGHT):.1f}"

    width = max(1.0, float(x(bar.value)) - LEFT)
    middle = y + ROW / 2 - 1
    return [
        f'<rect class="s{colour}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{ROW - 4}"/>',
        f'<line class="spread" x1="{x(bar.low)}" x2="{x(bar.high)}" y1="{middle}" y2="{middle}"/>',
        f'<text x="{float(x(bar.high)) + 8:.1f}" y="{y + 14}">{bar.value:,.0f}</text>',
    ]


def _legend(series: list[str]) -> list[str]:
    return [
        f'<rect class="s{n % 4}" x="{20 + 110 * n}" y="42" width="12" height="12"/>'
        f'<text x="{38 + 110 * n}" y="53">{escape(name)}</text>'
        for n, name in enumerate(series)
    ]
