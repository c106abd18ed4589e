"""The demo: it ends by itself, proves what it says, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, StoredEvent
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.demo import __main__ as entry
from flowfabric.demo import play, tasks
from flowfabric.demo.board import Board, JsonBoard, choose
from flowfabric.demo.live import LiveBoard
from flowfabric.demo.proof import DemoVerdict, Evidence, judge
from flowfabric.demo.stage import Stage, WorkerDied
from flowfabric.worker.api.history import RunEvent, run_event
from tests.cli.terminal import NOBODY, Cli

COMMAND = [sys.executable, "-u", "-m", "flowfabric.demo"]
BROKEN = DemoVerdict({"the earth is flat": False, "it turns": True}, 5, 1, 2)


def start(home: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        COMMAND,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(home)},
        # Tests that run in the background ignore SIGINT, and so would the demo.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def test_the_demo_ends_by_itself_and_keeps_its_promises(tmp_path: Path) -> None:
    process = start(tmp_path)
    printed, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    assert "5 runs, 1 worker killed, 0 steps repeated" in printed
    assert "BROKEN" not in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    process = start(tmp_path)
    assert process.stdout is not None
    while "completed" not in (line := process.stdout.readline()):
        assert line, "the demo ended before anything was completed"
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "interrupted; everything was cleaned up\n"
    assert list(tmp_path.iterdir()) == []


def seen() -> Evidence:
    """What a good performance looks like."""
    ada, bob = WorkerIdentity("ada", "ada-1"), WorkerIdentity("bob", "bob-1")
    number = iter(range(1, 100))

    def event(kind: EventKind, worker: WorkerIdentity) -> RunEvent:
        id = ExecutionId(f"{{fp:86}}:{NOBODY}")
        return run_event(
            StoredEvent(next(number), id, "default", "default", Millis(0), kind, 1, 0, worker)
        )

    claimed = [event(EventKind.CLAIMED, ada) for _ in range(3)]
    asleep = event(EventKind.DELAYED, ada)
    guest = event(EventKind.COMPLETED, ada)
    awake = event(EventKind.RESUMED, bob)
    taken = event(EventKind.RECLAIMED, bob)
    end = event(EventKind.COMPLETED, bob)
    return Evidence(
        events={
            "rates": [*claimed, end],
            "reminder": [asleep, awake, end],
            "guest": [guest],
            "order": [taken, end],
        },
        ledger=["reserve 1", "charge 1", "pack 2", "label 2", "notify 2"],
        pids={"ada": 1, "bob": 2},
        codes={"ada": -9, "bob": 0},
    )


def test_a_good_performance_breaks_no_promise() -> None:
    verdict = judge(seen())
    assert verdict.broken == []
    assert (verdict.runs, verdict.killed, verdict.repeated) == (4, 1, 0)


def test_a_step_that_was_done_twice_is_noticed() -> None:
    evidence = seen()
    verdict = judge(replace(evidence, ledger=[*evidence.ledger, "charge 2"]))
    assert verdict.repeated == 1
    assert "every step was done exactly once" in verdict.broken


def test_a_slot_that_was_not_free_is_noticed() -> None:
    evidence = seen()
    late = replace(evidence.events["guest"][0], seq=99)
    verdict = judge(replace(evidence, events={**evidence.events, "guest": [late]}))
    assert verdict.broken == ["the slot was free during the sleep"]


def test_what_never_happened_is_noticed() -> None:
    nothing: dict[str, list[RunEvent]] = {
        name: [] for name in ("rates", "reminder", "guest", "order")
    }
    verdict = judge(Evidence(events=nothing, ledger=[], pids={}, codes={}))
    assert len(verdict.broken) == len(verdict.expectations)


def test_a_broken_promise_is_told_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def perform(self: object) -> DemoVerdict:
        return BROKEN

    monkeypatch.setattr(play.Play, "perform", perform)
    assert entry.main([]) == 1
    printed = capsys.readouterr()
    assert "BROKEN  the earth is flat" in printed.out
    assert "5 runs, 1 worker killed, 2 steps repeated" in printed.out
    assert printed.err == "the demo failed, this did not come true: the earth is flat\n"


def test_a_performance_that_takes_too_long_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(play, "TIME_LIMIT", 0.0)
    assert play.main() == 1
    assert "not done within 0 s; waiting for the first worker" in capsys.readouterr().err


def test_a_worker_that_dies_by_itself_is_told_with_its_last_words() -> None:
    with Stage() as stage:
        stage.url = "nonsense"
        stage.start("ada")
        stage._processes["ada"].wait(60)
        with pytest.raises(WorkerDied, match="that is not the URL of a store"):
            stage.check()
    assert not stage.home.exists()


def test_wrong_words_for_the_demo_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["dance"]) == 2
    assert capsys.readouterr().err.startswith("usage: ")


def test_the_board_writes_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    board = choose(as_json=False)
    assert type(board) is Board
    with board:
        board.add("order", "ship_order")
        board.update("order", state="active", worker="ada", happened="a worker took it")
        board.say("so it goes")
    lines = [line.split(None, 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines[1].split() == ["order", "active", "on", "ada", "a", "worker", "took", "it"]
    assert lines[2] == "# so it goes"


def test_the_board_writes_documents(capsys: pytest.CaptureFixture[str]) -> None:
    board = choose(as_json=True)
    assert isinstance(board, JsonBoard)
    board.add("order", "ship_order")
    board.say("so it goes")
    board.conclude(BROKEN)
    row, spoken, end = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (row["run"], row["state"], row["worker"]) == ("order", "waiting", None)
    assert spoken["says"] == "so it goes"
    assert (end["ok"], end["steps_repeated"], end["expectations"]["it turns"]) == (False, 2, True)


def test_the_live_board_shows_the_table_and_the_narrator(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LiveBoard() as board:
        board.add("order", "ship_order")
        board.update("order", state="lost", worker="ada")
        board.say("so it goes")
    shown = capsys.readouterr().out
    for word in ("order", "ship_order", "lost", "ada", "so it goes"):
        assert word in shown


def test_the_command_plays_the_demo(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def perform(self: object) -> DemoVerdict:
        return BROKEN

    monkeypatch.setattr(play.Play, "perform", perform)
    assert cli.json("demo", code=1)["ok"] is False


async def test_the_tasks_of_the_demo_are_ordinary_functions() -> None:
    assert await tasks.greet("world") == "Hello, world!"
