from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import report
from bench.plot import Bar, bars
from bench.record import Record, Row, row
from bench.report import ReportError, insert
from bench.scenario import Figure, least, most, percentile, with_unit


def rows() -> list[Row]:
    more = {"what": "drain", "ratio": 0.5, "ratio_of": "raw limit", "cpu_us": 120.0}
    return [
        row("raw limit", "raw-postgres", "/s", [20_000.0], what="raw limit loop"),
        row("drain", "flowfabric-postgres", "/s", [9_000.0, 10_000.0, 11_000.0],
            goal="≥ 8,000/s", met=True, wal_bytes=2100.0, durability="fsync", **more),
        row("drain", "flowfabric-sqlite", "/s", [5.5, 6.5], **more),
        row("pickup p50", "flowfabric-postgres", "ms", [3.0], goal="≤ 2 ms", met=False,
            what="pickup", smaller_is_better=True),
        row("cost client", "flowfabric-postgres", "µs", [60.0], what="CPU"),
        row("cost server", "flowfabric-postgres", "µs", [80.0], what="CPU"),
        row("cost wal", "flowfabric-postgres", "B", [2000.0], what="WAL"),
    ]  # fmt: skip


RECORD = Record({"cores": "2"}, rows())
PAGE = "\n".join(
    f"# {name}\n<!-- bench:{name} -->\nold\n<!-- /bench:{name} -->\n"
    for name in ("machine", "results", "cost", "million", "paper", "peers")
)


def test_a_table_shows_medians_spread_ratio_and_whether_the_goal_was_reached() -> None:
    text = report.table(RECORD)
    assert (
        "| drain (% of the raw limit) | 10,000/s (9,000–11,000), 50 %"
        " | 6/s (5.50–6.50), 50 % | Postgres ≥ 8,000/s: reached |"
    ) in text
    assert "| pickup | 3 ms | – | ≤ 2 ms: **missed** |" in text
    assert "| raw limit loop | 20,000/s | – |  |" in text


def test_costs_have_a_table_of_their_own() -> None:
    assert "| drain | 120 µs | 2,100 B | 120 µs |" in report.cost_table(RECORD)


def test_a_million_and_the_large_server_are_arithmetic() -> None:
    text = report.million(RECORD)
    assert "| CPU of the client | 60 s | – |" in text
    assert "| WAL written | 2.00 GB | – |" in text
    paper = report.paper(RECORD)
    assert "64 cores × 70% × 1,000,000 µs / 80 µs = 560,000 executions/s" in paper
    assert "1,000 MB of WAL a second: / 2,000 B = 500,000 executions/s" in paper
    assert "**500,000 executions/s**" in paper
    assert "500,000 × 60 µs = 30 cores" in paper
    assert "no cost" in report.paper(Record({}, []))


def test_the_page_is_filled_in_between_its_markers_as_often_as_one_likes(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(PAGE, encoding="utf-8")
    report.write(RECORD, RECORD, page)
    once = page.read_text(encoding="utf-8")
    report.write(RECORD, RECORD, page)
    assert page.read_text(encoding="utf-8") == once
    assert "old" not in once.replace("threshold", "")
    assert once.startswith("# machine\n<!-- bench:machine -->\n\ncores 2.\n")
    assert "| flowfabric-postgres | 10,000 (9,000-11,000) |" in once
    for name in ("performance.svg", "performance-peers.svg"):
        ElementTree.parse(tmp_path / name)


HTTP_ROWS = [
    row("raw limit", "raw-postgres", "/s", [20_000.0], what="raw limit loop"),
    row("http-create", "flowfabric-postgres", "/s", [3_000.0], what="create", goal="≥ 2,500/s",
        met=True, ratio=0.15, ratio_of="raw limit", cpu_us=250.0,
        cpu_parts={"server": 200.0, "client": 10.0, "database": 40.0}),
    row("http-tails", "flowfabric-postgres", "MB", [31.0], what="idle tails"),
]  # fmt: skip


def test_http_has_a_table_with_the_cpu_of_each_side() -> None:
    text = report.http_table(Record({}, HTTP_ROWS))
    assert "| create | 3,000/s, 15 % | ≥ 2,500/s: reached | 200 µs | 40 µs | 10 µs |" in text
    assert "| idle tails | 31 MB |  | – | – | – |" in text


def test_a_record_of_http_alone_fills_in_that_part_alone(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"{PAGE}<!-- bench:http -->\nold\n<!-- /bench:http -->\n", encoding="utf-8")
    report.write(Record({"cores": "2"}, HTTP_ROWS), None, page)
    text = page.read_text(encoding="utf-8")
    assert "<!-- bench:http -->\n\ncores 2.\n\n| Postgres |" in text
    assert "<!-- bench:results -->\nold\n" in text
    report.write(Record({"cores": "4"}, [*rows(), *HTTP_ROWS[1:]]), None, page)
    text = page.read_text(encoding="utf-8")
    assert "old" not in text.partition("# peers")[0]
    results = text.partition("<!-- bench:results -->")[2].partition("<!-- /bench:results -->")[0]
    assert "idle tails" not in results


def test_without_peers_their_part_stays(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(PAGE, encoding="utf-8")
    report.write(RECORD, None, page)
    assert "<!-- bench:peers -->\nold\n" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page",
    [
        "nothing",
        "<!-- bench:a -->",
        "<!-- /bench:a --> <!-- bench:a -->",
        "<!-- bench:a --><!-- bench:a --><!-- /bench:a -->",
    ],
)
def test_a_page_without_its_markers_is_refused(page: str) -> None:
    with pytest.raises(ReportError, match="the page needs <!-- bench:a -->"):
        insert(page, "a", "body")


def test_the_real_page_has_every_marker() -> None:
    page = Path(report.__file__).parents[1] / "docs" / "performance.md"
    text = page.read_text(encoding="utf-8")
    for name in ("machine", "results", "cost", "million", "paper", "peers"):
        text = insert(text, name, "filled")


def test_a_plot_is_a_picture_for_light_and_dark_pages() -> None:
    text = bars("A < B", [Bar("one & two", "Postgres", 50.0, 40.0, 60.0), Bar("x", "S", 0, 0, 0)])
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == "A < B"
    assert "prefers-color-scheme: dark" in text
    assert ElementTree.fromstring(bars("nothing", [])) is not None


def test_goals_are_read_off_the_figures() -> None:
    rate = least("x", "x", "/s", "raw limit", ratio=0.6, postgres=10_000)
    assert rate.goal("postgres") == "≥ 10,000/s, ≥ 60 % of the raw limit"
    assert rate.goal("sqlite") == "≥ 60 % of the raw limit"
    assert rate.met("postgres", 12_000, 0.7) is True
    assert rate.met("postgres", 12_000, 0.5) is False
    assert rate.met("sqlite", 1, 0.7) is True
    latency = most("y", "y", postgres=0.35)
    assert latency.goal("postgres") == "≤ 0.35 ms"
    assert latency.goal("sqlite") == ""
    assert latency.met("postgres", 0.3, None) is True
    assert latency.met("sqlite", 0.3, None) is None


def test_numbers_are_short() -> None:
    assert with_unit(12_345.6, "/s") == "12,346/s"
    assert with_unit(12.34, "ms") == "12.3 ms"
    assert with_unit(0.354, "ms") == "0.35 ms"
    assert with_unit(1.25, "% of a core") == "1.25 % of a core"


def test_percentiles_and_ratios() -> None:
    assert percentile([0.003, 0.001, 0.002], 0.5) == 2.0
    assert percentile([0.001], 0.99) == 1.0
    assert Figure(3.0, 6.0).ratio == 0.5
    assert Figure(3.0, 0.0).ratio is None
    assert Figure(3.0).ratio is None
