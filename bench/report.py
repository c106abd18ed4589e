"""A record as Markdown tables and plots, between the markers of docs/performance.md."""

from collections.abc import Iterable
from pathlib import Path

from bench.peers.table import markdown
from bench.plot import Bar, bars
from bench.record import Record, Row
from bench.scenario import RAW_CALLS, RAW_LIMIT, share, with_unit

PLOTTED = (
    RAW_LIMIT, RAW_CALLS, "lifecycle-100", "lifecycle-2x100", "drain", "drain-2", "claims-64",
    "steps", "signals", "limits",
)  # fmt: skip
PEER_SERIES = {"drain": "one process", "drain-2": "two"}
STORES = {"postgres": "Postgres", "sqlite": "SQLite"}


HTTP = "http-"
"""How the names of figures of the HTTP API begin: they have a table of their own."""


class ReportError(Exception):
    """The page cannot be filled in."""


def insert(page: str, name: str, body: str) -> str:
    """The page with `body` between `<!-- bench:name -->` and `<!-- /bench:name -->`."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ReportError(f"the page needs {begin} and, after it, {end}, each once")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{body.strip()}\n\n{end}{rest.partition(end)[2]}"


def write(record: Record, peers: Record | None, page: Path) -> None:
    """Fills in the page, and writes the plots beside it. A part of which the record has nothing
    stays as it is."""
    text = page.read_text(encoding="utf-8")
    plot = page.with_suffix(".svg")
    parts = {}
    engine = [row for row in record.rows if not row.scenario.startswith(HTTP)]
    if len(engine) < len(record.rows):
        parts["http"] = f"{machine(record)}\n\n{http_table(record)}"
    if any(row.scenario != RAW_LIMIT for row in engine):
        parts |= _engine_parts(Record(record.machine, engine), plot)
    if peers is not None:
        rival = plot.with_stem(f"{plot.stem}-peers")
        parts["peers"] = f"![Worker drain]({rival.name})\n\n{machine(peers)}\n\n{markdown(peers)}"
        rival.write_text(bars("Worker drain, jobs per second", _peer_bars(peers)), encoding="utf-8")
    for name, body in parts.items():
        text = insert(text, name, body)
    page.write_text(text, encoding="utf-8")


def _engine_parts(record: Record, plot: Path) -> dict[str, str]:
    plot.write_text(
        bars(f"Executions per second, {record.machine.get('cores', '?')} cores", _bars(record)),
        encoding="utf-8",
    )
    return {
        "machine": machine(record),
        "results": f"![Executions per second]({plot.name})\n\n{table(record)}",
        "cost": cost_table(record),
        "million": million(record),
        "paper": paper(record),
    }


def machine(record: Record) -> str:
    return ", ".join(f"{name} {value}" for name, value in record.machine.items()) + "."


def table(record: Record) -> str:
    """One line per figure, the stores beside each other."""
    lines = ["| | Postgres | SQLite | goal |", "|---|---|---|---|"]
    for what, rows in _lines(record):
        cells = [_cell(rows.get(store)) for store in STORES]
        of = next(iter(rows.values())).ratio_of
        title = f"{what} (% of the {of})" if of else what
        lines.append(f"| {title} | {' | '.join(cells)} | {_goals(rows)} |")
    return "\n".join(lines)


def cost_table(record: Record) -> str:
    lines = ["| per execution | Postgres, CPU | WAL | SQLite, CPU |", "|---|---|---|---|"]
    for what, rows in _lines(record):
        if any(row.cpu_us is not None for row in rows.values()):
            postgres, sqlite = rows.get("postgres"), rows.get("sqlite")
            cells = (_cpu(postgres), _wal(postgres), _cpu(sqlite))
            lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def http_table(record: Record) -> str:
    """One line per figure of the HTTP API, with the CPU of a request by who has used it."""
    lines = [
        "| Postgres | | goal | CPU of the server | of the database | of the client |",
        "|---|---|---|---|---|---|",
    ]
    for row in record.rows:
        is_shown = row.scenario.startswith(HTTP) or row.scenario == RAW_LIMIT
        if is_shown and row.system.endswith("-postgres"):
            parts = row.cpu_parts or {}
            cpu = [
                f"{parts[name]:,.0f} µs" if name in parts else "–"
                for name in ("server", "database", "client")
            ]
            goal = _goals({"postgres": row}) if row.goal else ""
            lines.append(f"| {row.what} | {_cell(row)} | {goal} | {' | '.join(cpu)} |")
    return "\n".join(lines)


def million(record: Record) -> str:
    """What a million executions cost."""
    lines = ["| a million executions | Postgres | SQLite |", "|---|---|---|"]
    for name, label, form in (
        ("cost client", "CPU of the client", "{:.0f} s"),
        ("cost server", "CPU of the server", "{:.0f} s"),
        ("cost wal", "WAL written", "{:.2f} GB"),
        ("cost disk", "disk, until retention deletes them", "{:.2f} GB"),
    ):
        rows = _by_store(record, name)
        scale = 1 if form.endswith(" s") else 1 / 1000
        cells = [form.format(rows[s].median * scale) if s in rows else "–" for s in STORES]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def paper(record: Record, cores: int = 64, used: float = 0.7, disk: float = 1e9) -> str:
    """What a large server would do, as far as CPU and WAL decide, with the arithmetic."""
    names = ("server", "client", "wal")
    parts = [_by_store(record, f"cost {name}").get("postgres") for name in names]
    if any(part is None or part.median <= 0 for part in parts):
        return "The record has no cost per execution on Postgres."
    server, client, wal = (part.median for part in parts if part is not None)
    by_cpu, by_disk = cores * used * 1e6 / server, disk / wal
    rate = min(by_cpu, by_disk)
    return "\n".join(
        [
            f"- CPU of the server: {cores} cores × {used:.0%} × 1,000,000 µs / {server:.0f} µs"
            f" = {by_cpu:,.0f} executions/s.",
            f"- A disk that takes {disk / 1e6:,.0f} MB of WAL a second: / {wal:,.0f} B"
            f" = {by_disk:,.0f} executions/s.",
            f"- The smaller one decides: **{rate:,.0f} executions/s**, on paper.",
            f"- Workers and submitters: {rate:,.0f} × {client:.0f} µs"
            f" = {rate * client / 1e6:.0f} cores, without the work of the handlers.",
        ]
    )


def _lines(record: Record) -> Iterable[tuple[str, dict[str, Row]]]:
    names = dict.fromkeys(row.scenario for row in record.rows)
    for name in names:
        rows = _by_store(record, name)
        yield next(iter(rows.values())).what or name, rows


def _by_store(record: Record, scenario: str) -> dict[str, Row]:
    return {row.system.rpartition("-")[2]: row for row in record.rows if row.scenario == scenario}


def _cell(row: Row | None) -> str:
    """`9,800/s (9,100–10,300), 62 %`"""
    if row is None:
        return "–"
    digits = 0 if row.high >= 100 else 1 if row.high >= 10 else 2
    spread = f" ({row.low:,.{digits}f}–{row.high:,.{digits}f})" if len(row.samples) > 1 else ""
    ratio = f", {share(row.ratio)}" if row.ratio is not None else ""
    return f"{with_unit(row.median, row.unit)}{spread}{ratio}"


def _goals(rows: dict[str, Row]) -> str:
    """`≥ 10,000/s: reached`, with the stores named where their goals differ."""
    found = {store: rows[store] for store in STORES if store in rows and rows[store].goal}
    words = {True: "reached", False: "**missed**", None: "not judged"}
    if len({(row.goal, row.met) for row in found.values()}) == 1 and len(found) == len(rows):
        row = next(iter(found.values()))
        return f"{row.goal}: {words[row.met]}"
    return "; ".join(
        f"{STORES[store]} {row.goal}: {words[row.met]}" for store, row in found.items()
    )


def _cpu(row: Row | None) -> str:
    return "–" if row is None or row.cpu_us is None else f"{row.cpu_us:,.0f} µs"


def _wal(row: Row | None) -> str:
    return "–" if row is None or row.wal_bytes is None else f"{row.wal_bytes:,.0f} B"


def _bars(record: Record) -> list[Bar]:
    return [
        Bar(row.what, STORES[store], row.median, row.low, row.high)
        for name in PLOTTED
        for store, row in sorted(_by_store(record, name).items())
        if store in STORES
    ]


def _peer_bars(record: Record) -> list[Bar]:
    found = [row for row in record.rows if row.scenario in PEER_SERIES]
    best = {row.system: row.median for row in sorted(found, key=lambda row: row.median)}
    return [
        Bar(row.system, PEER_SERIES[row.scenario], row.median, row.low, row.high)
        for row in sorted(found, key=lambda row: (-best[row.system], row.scenario))
    ]
