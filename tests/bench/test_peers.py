"""The comparison with other systems: everything but the other systems."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.peers import catalog, install, table
from bench.peers.adapter import Feed, last_line, rate
from bench.peers.catalog import FLOWFABRIC, SYSTEMS, System
from bench.peers.marks import Marks
from bench.peers.runner import PARTS, Asked, Figure, Plan, Results, percentile, run, turns
from bench.peers.servers import Place, Servers
from bench.peers.session import Session, SessionError, environment, parse
from bench.record import Record, load, save

A, B = (System(name, name, "sqlite", f"{name} keeps all", "as is") for name in "ab")
OURS = System(FLOWFABRIC, "flowfabric", "postgres", "commits", "as is", steps=True)


class TestMarks:
    def test_every_process_sees_which_jobs_ran(self, tmp_path: Path) -> None:
        here, there = Marks(tmp_path / "marks", 10), Marks(tmp_path / "marks", 10)
        here.set(3)
        here.set(5)
        here.set(5)
        assert (there.done(10), there.repeated(10), len(there.read(10))) == (2, 1, 2)
        assert there.at(3) is not None
        assert there.at(4) is None

    def test_processes_that_ran_a_job_are_counted(self, tmp_path: Path) -> None:
        marks = Marks(tmp_path / "marks", 10)
        assert marks.entered() == 0
        marks.enter()
        marks.enter()
        assert marks.entered() == 2
        marks.clear(10)
        assert (marks.entered(), marks.done(10)) == (0, 0)


class TestRate:
    def test_counts_from_the_first_job_of_the_last_process(self) -> None:
        ran = [(0.0, 1), (1.0, 1), (2.0, 2), (3.0, 1), (4.0, 2), (5.0, 1)]
        assert rate(ran, 6.0) == {"jobs": 3, "seconds": 4.0, "processes": 2}

    def test_counts_from_the_first_job_if_a_process_came_when_most_had_run(self) -> None:
        ran = [(0.0, 1), (1.0, 1), (2.0, 1), (3.0, 2)]
        assert rate(ran, 4.0) == {"jobs": 3, "seconds": 4.0, "processes": 2}

    def test_needs_jobs(self) -> None:
        with pytest.raises(RuntimeError, match="no job ran"):
            rate([], 1.0)


class TestFeed:
    def test_hands_every_number_out_once(self) -> None:
        feed = Feed(7, 60)
        assert [next(iter(feed)), feed.take(2), *feed.chunks(3)] == [0, [1, 2], [3, 4, 5], [6]]
        assert feed.given == 7

    def test_ends_when_its_time_is_up(self) -> None:
        feed = Feed(7, 0)
        assert list(feed) == []
        assert feed.given == 0


class TestProtocol:
    def test_an_answer_is_one_document(self) -> None:
        assert parse('{"jobs": 3}\n') == {"jobs": 3}

    @pytest.mark.parametrize("line", ["hello", "[1]", ""])
    def test_anything_else_is_an_error(self, line: str) -> None:
        with pytest.raises(SessionError, match="not an answer"):
            parse(line)

    def test_an_error_of_the_adapter_is_raised(self) -> None:
        with pytest.raises(SessionError, match="no such table"):
            parse('{"error": "OperationalError: no such table"}')

    def test_the_last_line_says_why(self) -> None:
        assert last_line("Traceback\n  File\nValueError: no\n\n") == "ValueError: no"
        assert last_line("\n") == "it said nothing"

    def test_an_adapter_that_ends_is_reported_with_its_last_words(self) -> None:
        with (
            Session([sys.executable, "-c", "raise SystemExit('no driver')"], {}) as session,
            pytest.raises(SessionError, match="the adapter ended: no driver"),
        ):
            session.ask("prepare", 30)

    def test_an_adapter_that_does_not_answer_is_killed(self) -> None:
        with (
            pytest.raises(SessionError, match="no answer within 0 s"),
            Session([sys.executable, "-c", "import time; time.sleep(600)"], {}) as session,
        ):
            session.ask("prepare", 0.1)
        assert session.process.returncode is not None

    def test_the_settings_of_a_variant_reach_its_adapter(self) -> None:
        variant = System("x-500", "x", "redis", "", "", settings={"BATCH": "500"})
        found = environment(variant, Place("redis://x", 17))
        assert (found["PEERS_BATCH"], found["PEERS_URL"]) == ("500", "redis://x")
        assert found["PEERS_SERVER"] == "17"


class TestTurns:
    def test_systems_take_turns(self) -> None:
        found = [(repeat, part, system.name) for repeat, part, system in turns([A, B], ["one"], 2)]
        assert found == [(0, "one", "a"), (0, "one", "b"), (1, "one", "a"), (1, "one", "b")]

    def test_steps_are_for_systems_that_have_them(self) -> None:
        found = [(part, system.name) for _, part, system in turns([A, OURS], ["one", "steps"], 1)]
        assert found == [("one", "a"), ("one", FLOWFABRIC), ("steps", FLOWFABRIC)]

    def test_pickup_is_not_for_variants_with_larger_batches(self) -> None:
        variant = System("a-500", "a", "sqlite", "", "", settings={"BATCH": "500"})
        found = [(part, system.name) for _, part, system in turns([variant], ["one", "pickup"], 1)]
        assert found == [("one", "a-500")]


def test_a_system_that_fails_is_reported_and_the_rest_goes_on() -> None:
    said, tried = list[str](), list[str]()

    def perform(part: str, system: System, plan: Plan) -> list[Figure]:
        tried.append(system.name)
        if system is A:
            raise SessionError("a worker ended with 1: no driver")
        return [Figure("drain", 100.0)]

    results = run([A, B], ["one"], Plan(repeats=2), perform, said.append)
    assert tried == ["a", "b", "b"]
    assert results.failures == ["a, one: a worker ended with 1: no driver"]
    assert said[0] == "[1/4] a, one: FAILED: a worker ended with 1: no driver"
    assert said[2] == "[3/4] a, one: left out, it failed before"
    assert [(row.system, row.samples) for row in results.rows()] == [("b", [100.0, 100.0])]


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(n) for n in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99)) == (50.0, 99.0)
    assert percentile([7.0], 0.99) == 7.0


class TestRecord:
    @pytest.fixture
    def record(self) -> Record:
        results = Results()
        for repeat, (ours, theirs) in enumerate([(100, 50), (300, 270), (200, 120)]):
            results.add(repeat, A, Figure("drain", theirs, cpu_us=200 + repeat, wal_bytes=1500))
            results.add(repeat, OURS, Figure("drain", ours))
        results.add(0, A, Figure("pickup p50", 3.25, "ms"))
        return Record({"cores": "2"}, results.rows())

    def test_the_ratio_is_taken_within_each_repeat(self, record: Record) -> None:
        ours, theirs, _ = record.rows
        assert (ours.system, ours.median, ours.ratio) == (FLOWFABRIC, 200, None)
        assert (theirs.ratio, theirs.ratio_of) == (0.6, FLOWFABRIC)
        assert (theirs.median, theirs.low, theirs.high) == (120, 50, 270)
        assert (theirs.cpu_us, theirs.durability) == (201, "a keeps all")

    def test_it_is_read_back_as_it_was_written(self, record: Record, tmp_path: Path) -> None:
        save(record, tmp_path / "peers.json")
        assert load(tmp_path / "peers.json") == record

    def test_the_table_has_medians_and_spread(self, record: Record) -> None:
        lines = table.markdown(record).splitlines()
        assert "| system | drain/s, 1 process | CPU per drained job, µs |" in lines[0]
        assert lines[2:4] == [
            f"| {FLOWFABRIC} | 200 (100-300) | - | - |",
            "| a | 120 (50.0-270) | 201 | 1.5 |",
        ]
        assert "| a | 3.2 |" in lines


class TestCatalog:
    def test_every_peer_has_pinned_requirements(self) -> None:
        found = install.sections((install.HERE / "requirements.txt").read_text())
        assert set(found) | {"flowfabric"} == {system.adapter for system in SYSTEMS}
        pinned = re.compile(r"[a-z-]+(\[[a-z,]+\])?==[0-9.]+")
        assert all(pinned.fullmatch(line) for lines in found.values() for line in lines)

    def test_every_peer_has_an_adapter(self) -> None:
        for system in SYSTEMS:
            assert (install.HERE / "systems" / f"{system.adapter}.py").exists()

    def test_names_of_adapters_choose_all_variants(self) -> None:
        names = [system.name for system in catalog.chosen(["saq", FLOWFABRIC])]
        assert names == [FLOWFABRIC, "saq-postgres", "saq-redis"]
        assert catalog.chosen([]) == SYSTEMS

    def test_an_unknown_name_is_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"there is no system cellery; there are .*celery"):
            catalog.chosen(["cellery"])


@pytest.fixture
def ours() -> Iterator[Any]:
    """A session with the adapter of FlowFabric on an empty SQLite file."""
    (system,) = catalog.chosen(["flowfabric-sqlite"])
    command = [sys.executable, "-m", "bench.peers.adapter", system.adapter]
    with (
        Servers() as servers,
        servers.empty(system.store) as place,
        Session(command, environment(system, place)) as session,
    ):
        session.ask("prepare", 60)
        yield session


def test_the_adapter_of_flowfabric_measures(ours: Session) -> None:
    plan = Plan(jobs=60, submit_seconds=30, work_seconds=30)
    figures = list(PARTS["one"](Asked(ours, plan, lambda: None)))
    assert [figure.scenario for figure in figures] == ["submit", "drain"]
    assert all(figure.value > 0 for figure in figures)
    with pytest.raises(SessionError, match="there is no command fly"):
        ours.ask("fly", 30)


def test_the_adapter_of_flowfabric_runs_durable_steps(ours: Session) -> None:
    assert len(ours.ask("run-steps 3 30", 60)["ms"]) == 3
    assert ours.ask("steps 40 30", 60)["jobs"] == 40
    answer = ours.ask("work 40 1 30", 60)
    assert (answer["ended"], answer["repeated"], answer["processes"]) == (True, 0, 1)
