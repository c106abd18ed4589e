"""`flowfabric prove`: all promises hold here, and each planted fault breaks exactly its own."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from flowfabric import Fabric, WorkerOptions
from flowfabric.cli.app import app
from flowfabric.core.base.errors import InvalidToken, LeaseLost
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import StoredEvent
from flowfabric.core.execution.submission import Submission, Submitted
from flowfabric.core.flow.graph import Graph
from flowfabric.core.limit.quota import Quota
from flowfabric.core.wait.signal import DuplicateSignal
from flowfabric.engine.execution.attempts import Attempts
from flowfabric.engine.execution.events import Events
from flowfabric.engine.execution.executions import Executions
from flowfabric.engine.flow.flows import Flows
from flowfabric.engine.limit.quotas import Quotas
from flowfabric.engine.wait.signals import Signals
from flowfabric.prove import crashes
from flowfabric.prove.ground import Ground, clear, new_place
from flowfabric.prove.report import (
    CheckResult,
    ProofOutcome,
    ProofReport,
    markdown,
)
from flowfabric.prove.run import PROMISES, prove, tried
from flowfabric.prove.worker import STEPS, LedgerLine
from flowfabric.store.clock import ManualClock, SystemClock
from flowfabric.store.health import Examination
from tests.kit.served import served_in_thread

NAMES = [promise.name for promise in PROMISES]
DAY = 86_400_000


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'work.db'}"
        assert CliRunner().invoke(app, ["migrate", "--url", url]).exit_code == 0
        return url
    create: Callable[..., str] = request.getfixturevalue("fresh_database")
    return create(template=request.getfixturevalue("migrated_template"))


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of the tests is not durable, which is found; here it is overlooked."""

    async def examine(url: str) -> Examination:
        return Examination(url, "any", (), ())

    monkeypatch.setattr(crashes, "examine", examine)


def typed(*words: str) -> Result:
    return CliRunner().invoke(app, ["prove", *words])


def rows(url: str) -> dict[str, int]:
    """How many rows each table has."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            names = database.execute("select name from sqlite_schema where type = 'table'")
            found = [name for (name,) in names.fetchall()]
            counts = [database.execute(f"select count(*) from {name}").fetchone() for name in found]
        return {name: count for name, (count,) in zip(found, counts, strict=True)}
    query = "select table_name from information_schema.tables where table_schema = 'flowfabric'"
    with psycopg.connect(url) as connection:
        found = [name for (name,) in connection.execute(query).fetchall()]
        return {
            name: connection.execute(f"select count(*) from flowfabric.{name}".encode()).fetchall()[
                0
            ][0]
            for name in found
        }


async def outcomes(url: str, home: Path, names: list[str]) -> dict[str, CheckResult]:
    """What becomes of some promises."""
    place = new_place(url, 1)
    ground = Ground(place=place, home=home / "prove", until=time.monotonic(), patience=60.0)
    chosen = [promise for promise in PROMISES if promise.name in names]
    try:
        return {promise.name: await tried(promise, ground) for promise in chosen}
    finally:
        await clear(place, patient=False)


def broken(results: dict[str, CheckResult]) -> dict[str, ProofOutcome]:
    return {
        name: result.outcome
        for name, result in results.items()
        if result.outcome is not ProofOutcome.HELD
    }


# -- the command


@pytest.mark.long
@pytest.mark.usefixtures("sound")
def test_all_of_it_holds_and_is_written_down(store: str, tmp_path: Path) -> None:
    report = tmp_path / "proof.md"
    result = typed("--url", store, "--minutes", "0.02", "--report", str(report))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1 : len(NAMES) + 1]] == NAMES
    assert "8 held, 1 measured" in result.stdout
    page = report.read_text(encoding="utf-8")
    assert page.startswith("# FlowFabric: proof on this database\n\n9 checks: 8 held, 1 measured")
    assert "| runs per second |" in page
    setting = "| journal_mode | wal |" if store.startswith("sqlite") else "| synchronous_commit |"
    assert setting in page


@pytest.mark.deep
def test_a_program_reads_one_document_and_a_server_that_is_not_durable_is_found(
    fresh_database: Callable[..., str], migrated_template: str
) -> None:
    url = fresh_database(template=migrated_template)
    result = typed("--url", url, "--minutes", "0.02", "--json")
    assert result.exit_code == 1, result.output
    found = msgspec.json.decode(result.stdout)
    assert found["outcome"] == "did not hold"
    checks = {check["check"]: check for check in found["checks"]}
    assert "fsync is off" in checks["durability"]["problems"]
    assert "connections cut" in checks["durability"]["note"]
    assert [name for name in NAMES if checks[name]["outcome"] == "did not hold"] == ["durability"]
    assert checks["measurement"]["figures"]["runs per second"] > 0


@pytest.mark.long
def test_through_a_server_it_says_what_needs_the_database(tmp_path: Path) -> None:
    with served_in_thread(f"sqlite:///{tmp_path / 'work.db'}") as url:
        result = typed("--url", url, "--minutes", "0.02")
    assert result.exit_code == 2, result.output
    assert "durability: needs the database itself" in result.stdout
    assert "7 held, 1 not checked, 1 measured" in result.stdout


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "1441", "inf"])
def test_the_time_has_to_make_sense(tmp_path: Path, minutes: str) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    CliRunner().invoke(app, ["migrate", "--url", url])
    result = typed("--url", url, "--minutes", minutes)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--minutes must be more than 0" in result.stderr


def test_a_mistyped_path_makes_no_database(tmp_path: Path) -> None:
    result = typed("--url", f"sqlite:///{tmp_path / 'none.db'}")
    assert result.exit_code == 4
    assert not (tmp_path / "none.db").exists()


def test_memory_cannot_be_shared_by_processes() -> None:
    result = typed("--url", "sqlite://:memory:")
    assert result.exit_code == 2
    assert "name a file" in result.stderr


def test_a_report_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    CliRunner().invoke(app, ["migrate", "--url", url])
    result = typed("--url", url, "--report", str(tmp_path / "no" / "proof.md"))
    assert result.exit_code == 1
    assert "the report cannot be written" in result.stderr


# -- the user's data


@pytest.mark.long
@pytest.mark.inside
@pytest.mark.rules
@pytest.mark.usefixtures("sound")
async def test_nothing_is_left_and_nothing_of_others_is_touched(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a waiting run, nor one that ended longer ago than the usual retention."""
    monkeypatch.setattr("flowfabric.prove.ground.CLEAR_WITHIN", 60.0)
    long_ago = ManualClock(Millis(SystemClock().now() - 30 * DAY))
    async with Fabric(store, clock=long_ago) as fabric:
        task = fabric.task(name="old")(_nothing)
        old, waiting = await task.submit(), await task.with_options(lane="other").submit()
        worker = await fabric.worker(WorkerOptions(lanes=["default"]))
        assert await worker.run_until_idle() == 1
    before = rows(store)
    chosen = [each for each in PROMISES if each.name not in ("flows", "crash", "measurement")]
    report = await prove(store, 1, lambda *_: None, chosen)
    assert (report.outcome, report.left) == (ProofOutcome.HELD, 0)
    after = rows(store)
    # The first signing key, interned names, that workers came and went, and the duty to sweep of
    # a process that was killed while it had it.
    assert {name for name in after if after[name] > before.get(name, 0)} <= ALLOWED
    async with Fabric(store) as fabric:
        assert await (await fabric.run(old.id)).state() == "completed"
        assert await (await fabric.run(waiting.id)).state() == "waiting"


ALLOWED = {"duty", "event", "keyring", "route", "worker"}


async def _nothing() -> None:
    pass


@pytest.mark.deep
def test_an_interrupt_ends_it_and_its_processes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    CliRunner().invoke(app, ["migrate", "--url", url])
    process = subprocess.Popen(
        [sys.executable, "-m", "flowfabric.cli", "prove", "--url", url, "--minutes", "5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with closing(sqlite3.connect(tmp_path / "work.db")) as database:
        while not database.execute("select count(*) from execution").fetchone()[0]:
            assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=40)
    assert process.returncode not in (0, 1)
    assert out == b""
    with closing(sqlite3.connect(tmp_path / "work.db")) as database:
        assert database.execute("select count(*) from ready").fetchone() == (0,)
        assert database.execute("select count(*) from lease").fetchone() == (0,)


# -- planted faults: each breaks its own promise and no other

IN_PROCESS = ["once", "fence", "durability", "waiting", "flows", "limits", "events"]


def no_keys(patch: pytest.MonkeyPatch) -> None:
    """A key is forgotten."""
    submit = Executions.submit

    async def forgetful(self: Executions, submission: Submission, **options: Any) -> object:
        return await submit(self, replace(submission, key=None), **options)

    patch.setattr(Executions, "submit", forgetful)


def late_steps(patch: pytest.MonkeyPatch) -> None:
    """A step of a worker that has lost its lease is taken."""
    record = Attempts.record_step

    async def lenient(self: Attempts, *args: Any) -> None:
        try:
            await record(self, *args)
        except LeaseLost:
            return

    patch.setattr(Attempts, "record_step", lenient)


def lost_runs(patch: pytest.MonkeyPatch) -> None:
    """Every run is acknowledged, but some are not written."""
    submit = Executions.submit_many

    async def careless(self: Executions, submissions: Any, **options: Any) -> Any:
        answers = await submit(self, submissions, **options)
        return [
            Submitted(type(answer.id)(str(answer.id)[:-1] + "0"), answer.state)
            if isinstance(answer, Submitted) and str(answer.id)[-1] in "13579"
            else answer
            for answer in answers
        ]

    patch.setattr(Executions, "submit_many", careless)


def any_token(patch: pytest.MonkeyPatch) -> None:
    """A wrong token gets the answer of a right one."""
    deliver = Signals.deliver

    async def trusting(self: Signals, *args: Any, **options: Any) -> object:
        try:
            return await deliver(self, *args, **options)
        except InvalidToken:
            return DuplicateSignal(UUID(int=1))

    patch.setattr(Signals, "deliver", trusting)


def lost_edges(patch: pytest.MonkeyPatch) -> None:
    """The last node does not wait for those before it."""
    declare = Flows.declare

    async def hasty(self: Flows, kind: str, graph: Graph, **options: Any) -> object:
        links = tuple(edge for edge in graph.links if edge.downstream != "end")
        return await declare(self, kind, replace(graph, links=links), **options)

    patch.setattr(Flows, "declare", hasty)


def wide_limits(patch: pytest.MonkeyPatch) -> None:
    """A limit of two lets five in."""
    define = Quotas.define

    async def generous(self: Quotas, quota: Quota) -> bool:
        return await define(self, replace(quota, concurrency=5))

    patch.setattr(Quotas, "define", generous)


def changed_events(change: Callable[[int], int]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        subscribe = Events.subscribe

        async def careless(self: Events, **options: Any) -> AsyncGenerator[StoredEvent, None]:
            number = 0
            async for event in subscribe(self, **options):
                for _ in range(change(number)):
                    yield event
                number += 1

        patch.setattr(Events, "subscribe", careless)

    return plant


FAULTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "keys": ("once", no_keys),
    "late steps": ("fence", late_steps),
    "lost runs": ("durability", lost_runs),
    "any token": ("waiting", any_token),
    "lost edges": ("flows", lost_edges),
    "wide limits": ("limits", wide_limits),
    "missing event": ("events", changed_events(lambda number: int(number != 6))),
    "event twice": ("events", changed_events(lambda number: 1 + (number == 6))),
}


@pytest.mark.inside
@pytest.mark.rules
@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_breaks_its_own_promise_and_no_other(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    name, plant = FAULTS[fault]
    plant(monkeypatch)
    found = broken(await outcomes(store, tmp_path, IN_PROCESS))
    assert found == {name: ProofOutcome.BROKEN}


@pytest.mark.long
@pytest.mark.inside
@pytest.mark.rules
async def test_a_worker_that_repeats_recorded_steps_is_found(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crashes, "WORKER", "tests.cli.forgetful")
    result = (await outcomes(store, tmp_path, ["crash"]))["crash"]
    assert result.outcome is ProofOutcome.BROKEN
    assert any("was done again" in problem for problem in result.problems)


@pytest.mark.inside
@pytest.mark.rules
async def test_a_worker_that_cannot_start_is_no_verdict(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crashes, "WORKER", "tests.cli.there_is_none")
    result = (await outcomes(store, tmp_path, ["crash"]))["crash"]
    assert result.outcome is ProofOutcome.UNCHECKED
    assert "ended by itself" in result.problems[0]


# -- what is judged, and how it is written


def test_the_ledger_is_read_line_by_line() -> None:
    values = [f"v{step}" for step in STEPS]
    whole = [LedgerLine(what, "r", step, f"v{step}") for step in STEPS for what in ("did", "kept")]
    assert crashes.ledger_problems(whole, {"r": values}) == []
    again = [*whole, LedgerLine("did", "r", "charge", "other")]
    assert crashes.ledger_problems(again, {"r": values}) == ["step charge of run r was done again"]
    changed = [*whole, LedgerLine("kept", "r", "charge", "other")]
    assert crashes.ledger_problems(changed, {"r": values}) == [
        "step charge of run r has two values"
    ]
    assert crashes.ledger_problems(whole, {"r": values[:-1]}) == [
        "the result of run r is not what its steps recorded"
    ]
    unfinished = [LedgerLine("did", "r", "reserve", "lost"), *whole]
    assert crashes.ledger_problems(unfinished, {"r": values}) == []


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        ([ProofOutcome.HELD], ProofOutcome.HELD),
        ([ProofOutcome.HELD, ProofOutcome.UNCHECKED], ProofOutcome.UNCHECKED),
        ([ProofOutcome.UNCHECKED, ProofOutcome.BROKEN, ProofOutcome.HELD], ProofOutcome.BROKEN),
    ],
)
def test_a_broken_promise_counts_more_than_an_untried_one(
    found: list[ProofOutcome], outcome: ProofOutcome
) -> None:
    results = tuple(
        CheckResult(check="x", promise="y", outcome=each, seconds=0.0) for each in found
    )
    report = ProofReport(store="s", environment={}, results=results, seconds=1.0)
    assert report.outcome is outcome


def test_text_of_others_cannot_change_the_page() -> None:
    result = CheckResult(
        check="x",
        promise="a | b",
        outcome=ProofOutcome.BROKEN,
        seconds=0.0,
        problems=("one\n# two <script>",),
    )
    report = ProofReport(store="s", environment={"k": "v"}, results=(result,), seconds=1.0, left=4)
    page = markdown(report)
    assert "a \\| b" in page
    assert "- one # two &lt;script>" in page
    assert "4 ended runs stay until a worker deletes them" in page


def test_a_check_that_takes_too_long_is_no_verdict(tmp_path: Path) -> None:
    async def never(ground: Ground) -> Any:
        await ground.wait_for(lambda: False, "what never comes")

    promise = replace(PROMISES[0], check=never)
    place = new_place("sqlite:///none.db", 1)
    ground = Ground(place=place, home=tmp_path, until=0.0, patience=0.05)
    result = asyncio.run(tried(promise, ground))
    assert result.outcome is ProofOutcome.UNCHECKED
    assert "what never comes" in result.problems[0]
