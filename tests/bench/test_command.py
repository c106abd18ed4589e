from pathlib import Path

import msgspec
import pytest

from bench import __main__ as command
from bench import harness, stores, wrk
from bench.cost import Cost, counted
from bench.record import load
from bench.scenario import TINY, Figure, Figures, Load, Scenario, least


@pytest.fixture(autouse=True)
def event_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command makes loops of its own; the one of the tests stays as it is."""
    monkeypatch.setattr(stores, "use_uvloop", lambda: None)
    monkeypatch.setattr(harness, "_finish", _elsewhere(harness._finish))


def _elsewhere(finish: object) -> object:
    from concurrent.futures import ThreadPoolExecutor

    def run(*args: object) -> object:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(finish, *args).result()  # type: ignore[arg-type]

    return run


def test_a_run_writes_a_record_and_prints_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    args = ["--store", "sqlite", "--only", "claims", "--repeats", "2", "--json", str(path)]
    assert command.main(args, TINY) == 0
    (row,) = load(path).rows
    assert (row.scenario, row.system, len(row.samples)) == ("claims-64", "flowfabric-sqlite", 2)
    assert row.ratio is not None
    out, err = capsys.readouterr()
    assert "| claims of one each by 64 callers (% of the batched claims) |" in out
    assert "[1/2] claims on sqlite, repeat 1: claims-64" in err


def test_a_guard_compares_with_what_it_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recorded.json"
    args = ["guard", "--store", "sqlite", "--only", "claims", "--repeats", "1", "--recorded"]
    assert command.main([*args, str(path), "--record"], TINY) == 0
    recorded = load(path)
    recorded.rows[0].ratio = 0.0001
    path.write_bytes(msgspec.json.encode(recorded))
    assert command.main([*args, str(path)], TINY) == 0
    recorded.rows[0].ratio = 9_999.0
    path.write_bytes(msgspec.json.encode(recorded))
    assert command.main([*args, str(path)], TINY) == 1
    out = capsys.readouterr().out
    assert "gain" in out
    assert "LOSS" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--only", "drain,swim"], "no scenario is called swim; there are: lifecycle, cost"),
        (["guard", "--only", "idle"], "no scenario is called idle; there are: lifecycle, drain"),
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["report", "--json", "absent.json"], "there is no record at absent.json"),
        (["guard", "--recorded", "absent.json"], "there is no record at absent.json"),
    ],
)
def test_mistakes_are_explained(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        command.main(args)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_help_lists_the_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    assert "old-transaction" in capsys.readouterr().out


def test_a_scenario_that_fails_does_not_stop_the_others() -> None:
    async def breaks(load: Load) -> Figures:
        raise RuntimeError("broken")

    async def works(load: Load) -> Figures:
        return {"works": Figure(1.0)}

    chosen = [
        Scenario("breaks", "", (least("breaks", ""),), breaks),
        Scenario("works", "", (least("works", ""),), works, once=True),
    ]
    said: list[str] = []
    outcome = harness.run(chosen, ["sqlite"], TINY, 2, said.append)
    assert len(outcome.failed) == 2
    assert [row.scenario for row in outcome.record().rows] == ["works"]
    assert "[2/3] works on sqlite, repeat 1: works 1/s" in said[1]


def test_without_its_load_tool_the_http_api_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Unless it is asked for: then what is missing is an error."""

    async def works(load: Load) -> Figures:
        return {"works": Figure(1.0)}

    async def measures_http(load: Load) -> Figures:
        await wrk.load("http://127.0.0.1:1", "GET", "/", seconds=1)
        return {}

    monkeypatch.setattr(wrk, "has_wrk", lambda: False)
    scenarios = {"works": works, "http": measures_http, "http-worker": measures_http}
    found = [Scenario(name, "", (least(name, ""),), run) for name, run in scenarios.items()]
    monkeypatch.setattr(command, "ALL", tuple(found))
    args = ["--store", "sqlite", "--repeats", "1", "--json", str(tmp_path / "record.json")]
    assert command.main(args, TINY) == 0
    assert "the HTTP API is left out: wrk is not installed: apt-get" in capsys.readouterr().err
    assert command.main([*args, "--only", "http"], TINY) == 1
    assert "failed: http on sqlite" in capsys.readouterr().err


async def test_work_of_this_process_is_counted(store_url: str) -> None:
    async with counted(store_url) as cost:
        sum(range(3_000_000))
    assert cost.client > 0.01
    assert cost.seconds > 0
    assert cost.cpu_us(1000) == pytest.approx((cost.client + cost.server) * 1000)


def test_costs_are_written_per_execution() -> None:
    cost = Cost(client=0.5, server=0.25, wal=2_000_000, transactions=10)
    assert cost.per(1000) == "500 + 250 µs of CPU, 2.00 kB of WAL, 0.01 transactions"
    assert cost.cpu_us(1000) == 750
