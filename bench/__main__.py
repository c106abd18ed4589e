"""`python -m bench`: measures; `report` and `guard` are commands of their own."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from bench import guard, harness, record, report, wrk
from bench.record import Record, RecordError, Row
from bench.scenario import FULL, QUICK, RAW_LIMIT, STORES, Scenario, Size
from bench.scenarios import ALL

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
RESULTS = HERE / "results"
RECORDED = HERE / "recorded.json"
DESCRIPTION = """\
Measures FlowFabric on Postgres and SQLite with durable settings, each figure beside the reference
of the same run. Repeats are interleaved; the table shows medians with their spread.

  python -m bench                    everything, in less than ten minutes
  python -m bench --only drain       one scenario
  python -m bench report             puts a record into docs/performance.md
  python -m bench guard              compares ratios with bench/recorded.json
"""


def parser() -> argparse.ArgumentParser:
    names = "\n".join(f"  {each.name:<18}{each.what}" for each in ALL)
    found = argparse.ArgumentParser(
        prog="python -m bench",
        description=DESCRIPTION,
        epilog=f"scenarios:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _common(found)
    found.add_argument("--full", action="store_true", help="tables of a million, long windows")
    found.add_argument("--old-transaction-minutes", type=float, metavar="N")
    found.add_argument("--json", type=Path, default=RESULTS / "latest.json", help="the record")
    found.add_argument("--report", action="store_true", help="then write docs/performance.md")
    commands = found.add_subparsers(dest="command", metavar="report | guard")
    writes = commands.add_parser("report", help="fill docs/performance.md from a record")
    writes.add_argument("--json", type=Path, default=RESULTS / "latest.json", help="the record")
    writes.add_argument("--peers", type=Path, default=RESULTS / "peers.json")
    writes.add_argument("--page", type=Path, default=PAGE)
    guards = commands.add_parser("guard", help="fail on ratios that lost more than a fifth")
    _common(guards)
    guards.add_argument("--recorded", type=Path, default=RECORDED)
    guards.add_argument("--record", action="store_true", help="record the ratios of this run")
    return found


def _common(found: argparse.ArgumentParser) -> None:
    found.add_argument("--store", choices=STORES, help="both without it")
    found.add_argument("--only", metavar="NAMES", help="scenarios, separated by commas")
    found.add_argument("--repeats", type=int, default=3, help="how often (3)")
    found.add_argument("--quick", action="store_true", help="small sizes; figures are rough")


def main(argv: Sequence[str] | None = None, size: Size | None = None) -> int:
    """`size` is for tests."""
    read = parser()
    options = read.parse_args(argv)
    try:
        if options.command == "report":
            _report(options.json, options.peers, options.page)
            return 0
        if options.repeats < 1:
            read.error("--repeats must be at least 1")
        chosen = _chosen(read, options)
        if options.command == "guard":
            return _guard(options, chosen, size or QUICK)
        return _measure(options, chosen, size or _size(options))
    except (RecordError, report.ReportError) as error:
        read.exit(2, f"{error}\n")


def _size(options: argparse.Namespace) -> Size:
    found = FULL if options.full else QUICK if options.quick else Size()
    if options.old_transaction_minutes is not None:
        found = replace(found, held=options.old_transaction_minutes * 60)
    return found


def _chosen(read: argparse.ArgumentParser, options: argparse.Namespace) -> list[Scenario]:
    """The scenarios that were asked for; the guard has use only for some."""
    known = {each.name: each for each in ALL if each.is_guarded or options.command != "guard"}
    if options.only is None:
        return _measurable(list(known.values()))
    names = options.only.split(",")
    if unknown := [name for name in names if name not in known]:
        read.error(f"no scenario is called {', '.join(unknown)}; there are: {', '.join(known)}")
    return [known[name] for name in names]


def _measurable(found: list[Scenario]) -> list[Scenario]:
    """Without all of the HTTP API if its load tool is missing: its table has no gaps."""
    if wrk.has_wrk():
        return found
    _progress(f"the HTTP API is left out: {wrk.HOW_TO_INSTALL}")
    return [each for each in found if not each.name.startswith("http")]


def _run(options: argparse.Namespace, chosen: list[Scenario], size: Size) -> tuple[Record, bool]:
    stores = [options.store] if options.store else list(STORES)
    outcome = harness.run(chosen, stores, size, options.repeats, _progress)
    for each in outcome.failed:
        _progress(f"failed: {each}")
    return outcome.record(repeats=str(options.repeats)), bool(outcome.failed)


def _measure(options: argparse.Namespace, chosen: list[Scenario], size: Size) -> int:
    found, has_failed = _run(options, chosen, size)
    record.save(found, options.json)
    print(report.table(found))
    if options.report:
        _report(options.json, RESULTS / "peers.json", PAGE)
    return int(has_failed)


def _guard(options: argparse.Namespace, chosen: list[Scenario], size: Size) -> int:
    recorded = None if options.record else record.load(options.recorded)
    found, has_failed = _run(options, chosen, size)
    if recorded is None:
        found.rows = [r for r in found.rows if r.ratio is not None or r.scenario == RAW_LIMIT]
        record.save(found, options.recorded)
        return int(has_failed)
    recorded.rows = [row for row in recorded.rows if _is_asked(row, options.store, chosen)]
    compared = guard.compare(recorded, found)
    print(guard.table(compared))
    if guard.failed(compared):
        print("A ratio lost more than a fifth, or was not measured.")
        return 1
    return int(has_failed)


def _is_asked(row: Row, store: str | None, chosen: list[Scenario]) -> bool:
    """Whether a recorded row is to be compared: of this store, and of one of these scenarios."""
    names = {RAW_LIMIT, *(metric.name for each in chosen for metric in each.metrics)}
    return row.scenario in names and store in (None, row.system.rpartition("-")[2])


def _report(path: Path, peers: Path, page: Path) -> None:
    report.write(record.load(path), record.load(peers) if peers.exists() else None, page)
    _progress(f"wrote {page.name} from {path.name}")


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
