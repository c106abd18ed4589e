"""The Markdown of a record of peers."""

from bench.peers.catalog import SYSTEMS
from bench.record import Record, Row

_THROUGHPUT = ("drain", "drain-2", "submit", "submit-bulk")
_LATENCY = ("pickup p50", "pickup p99", "three-step run p50", "three-step runs")
_TITLES = {
    "drain": "drain/s, 1 process",
    "drain-2": "drain/s, 2 processes",
    "submit": "submit/s, one per call",
    "submit-bulk": "submit/s, 1,000 per call",
    "pickup p50": "pickup p50, ms",
    "pickup p99": "pickup p99, ms",
    "three-step run p50": "three-step run p50, ms",
    "three-step runs": "three-step runs/s",
}


def markdown(record: Record) -> str:
    """Two tables of medians with lowest and highest, and one of what each system is and keeps."""
    rows = {(row.system, row.scenario): row for row in record.rows}
    names = list(dict.fromkeys(row.system for row in record.rows))
    parts = [_figures(rows, names, _THROUGHPUT, cost=True), _figures(rows, names, _LATENCY)]
    return "\n\n".join(part for part in [*parts, setups(names)] if part) + "\n"


def _figures(
    rows: dict[tuple[str, str], Row],
    names: list[str],
    scenarios: tuple[str, ...],
    cost: bool = False,
) -> str:
    used = [name for name in scenarios if any(scenario == name for _, scenario in rows)]
    if not used:
        return ""
    titles = ["system", *(_TITLES[name] for name in used)]
    if cost:
        titles += ["CPU per drained job, µs", "WAL per drained job, kB"]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for name in names:
        found = [rows.get((name, scenario)) for scenario in used]
        if not any(found):
            continue
        cells = [name, *(cell(row) for row in found)]
        if cost:
            drain = rows.get((name, "drain"))
            cells.append(f"{drain.cpu_us:,.0f}" if drain and drain.cpu_us else "-")
            cells.append(f"{drain.wal_bytes / 1000:.1f}" if drain and drain.wal_bytes else "-")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def setups(names: list[str]) -> str:
    """How each system is set up, and what it keeps."""
    lines = ["| system | set up | durability |", "|---|---|---|"]
    for system in SYSTEMS:
        if system.name in names:
            lines.append(f"| {system.name} | {system.setup} | {system.durability} |")
    return "\n".join(lines)


def cell(row: Row | None) -> str:
    """`8,417 (8,046-13,182)`"""
    if row is None:
        return "-"
    if len(row.samples) == 1:
        return _number(row.median)
    return f"{_number(row.median)} ({_number(row.low)}-{_number(row.high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
