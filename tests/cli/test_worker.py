"""`flowfabric worker`, as a process of its own."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.terminal import APP, Cli, follow

ROOT = Path(__file__).parents[2]


class Process:
    """A worker that was started as a user starts one. Waits for words, never for time."""

    def __init__(self, url: str, *options: str) -> None:
        command = [sys.executable, "-m", "flowfabric.cli", "worker", APP, "--url", url, *options]
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "TZ": "UTC"}
        )

    def read_line(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.readline()

    def read_until(self, word: str) -> str:
        """The first line with this word; the registry has its say in between."""
        while word not in (line := self.read_line()):
            assert line, f"nothing was said of {word!r}"
        return line

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> tuple[int, str]:
        """The exit code and what else was logged."""
        _, words = self._process.communicate(timeout=120)
        return self._process.returncode, words

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.kill()


def start(processes: list[Process], cli: Cli, *options: str) -> Process:
    processes.append(Process(cli.url, *options))
    return processes[-1]


def test_a_worker_lets_what_runs_finish_before_it_stops(
    cli: Cli, processes: list[Process], tmp_path: Path
) -> None:
    id = cli.submit("wait_for", "--arg", f"gate={tmp_path / 'gate'}")
    process = start(processes, cli, "--name", "ada", "--concurrency", "3")
    first = process.read_line()
    tasks = "checkout, divide, greet, on_day, persistent, shout, teller, wait_for"
    assert f"works on {cli.url}: {tasks}; lanes: all" in first
    follow(cli.url, id, "claimed")
    process.terminate()
    assert "stopping: 1 running" in process.read_until("stopping")
    (tmp_path / "gate").touch()
    code, words = process.end()
    assert code == 0
    assert "stopped after 1 claims" in words
    shown = cli.json("run", "show", id)
    assert (shown["result"], shown["attempts"][0]["worker"]["id"]) == ("through", "ada")


def test_a_worker_hands_back_what_does_not_finish(
    cli: Cli, processes: list[Process], tmp_path: Path
) -> None:
    id = cli.submit("wait_for", "--arg", f"gate={tmp_path / 'gate'}")
    process = start(processes, cli, "--drain", "0s", "--lanes", "slow=1", "--log-level", "warning")
    follow(cli.url, id, "claimed")
    process.terminate()
    assert process.end() == (0, "")
    shown = cli.json("run", "show", id)
    assert (shown["state"], shown["attempts_made"]) == ("waiting", 1)


def test_a_worker_logs_documents_when_asked_to(cli: Cli, processes: list[Process]) -> None:
    process = start(processes, cli, "--json", "--lanes", "fast=3,slow=1")
    first: dict[str, Any] = msgspec.json.decode(process.read_line())
    assert first.keys() == {"at", "level", "logger", "message"}
    assert (first["level"], first["logger"]) == ("info", "flowfabric.worker")
    assert first["at"].endswith("Z")
    assert "lanes: fast, slow" in first["message"]
    process.terminate()
    code, words = process.end()
    assert code == 0
    assert "stopped after 0 claims" in msgspec.json.decode(words.splitlines()[-1])["message"]


def test_a_worker_logs_every_field_of_a_failed_attempt(cli: Cli, processes: list[Process]) -> None:
    id = cli.submit("divide", "--arg", "a=1", "--arg", "b=0")
    process = start(processes, cli, "--log-json", "--ttl", "10s")
    first: dict[str, Any] = msgspec.json.decode(process.read_until("ZeroDivisionError"))
    assert id.endswith(first["run"].rpartition(":")[2])
    assert (first["level"], first["task"], first["attempt"]) == ("warning", "divide", 1)
    assert (first["outcome"], first["error_type"]) == ("retrying", "ZeroDivisionError")
    assert first["retry_at"].endswith("Z")
    assert first["traceback"].startswith("Traceback (most recent call last)")
    last: dict[str, Any] = msgspec.json.decode(process.read_until("ZeroDivisionError"))
    assert (last["level"], last["outcome"], last["retry_at"]) == ("error", "failed", None)
    process.terminate()
    assert process.end()[0] == 0


def test_a_text_log_tells_its_zone(cli: Cli, processes: list[Process]) -> None:
    process = start(processes, cli)
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+00:00 INFO ", process.read_line())


class Receiver(BaseHTTPRequestHandler):
    """Answers the first request only when its `gate` is open."""

    gate = threading.Event()
    ids: "queue.SimpleQueue[str]" = queue.SimpleQueue()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.ids.put(self.headers["FlowFabric-Event-Id"])
        self.gate.wait(60)
        with suppress(OSError):  # the worker is dead
            self.send_response(204)
            self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[str]:
    Receiver.gate.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        Receiver.gate.set()
        server.shutdown()
        thread.join()


def test_a_worker_that_is_killed_while_it_delivers_loses_nothing(
    cli: Cli, processes: list[Process], receiver: str
) -> None:
    """At least once, with the same id: another worker sends it again"""
    cli("migrate")
    cli("webhooks", "create", "h", receiver, "--family", "completion")
    cli.submit("greet", "--arg", "name=ada")
    first = start(processes, cli, "--webhooks", "--ttl", "1s", "--lanes", "default")
    id = Receiver.ids.get(timeout=120)
    first.kill()
    processes.remove(first)
    Receiver.gate.set()
    second = start(processes, cli, "--webhooks", "--ttl", "1s")
    assert Receiver.ids.get(timeout=120) == id
    second.terminate()
    assert second.end()[0] == 0
    (delivery,) = cli.lines("run", "list", "--task", "flowfabric.webhook")
    assert delivery["state"] == "completed"


def test_a_worker_that_cannot_start_says_why(cli: Cli) -> None:
    words = ("worker", "tests.cli.unable:fabric", "--log-level", "error")
    assert cli.complaint(*words, code=1) == (
        "the lifespan failed before it yielded, so the worker did not start: "
        "ConnectionError: no mail server"
    )


def test_a_worker_without_tasks_says_so(cli: Cli) -> None:
    """The usual reason: no module that defines tasks was imported."""
    said = cli("worker", "tests.cli.unable:fabric", code=1).stderr
    assert "no task is registered, so this worker runs nothing" in said


def test_a_duration_that_is_not_understood_is_shown(cli: Cli) -> None:
    complaint = cli.complaint("worker", "tests.cli.sample:fabric", "--ttl", "soon", code=2)
    assert complaint == "--ttl is not a duration such as '10s', '5m' or '1h30m': 'soon'"


@pytest.mark.parametrize("words", [("--version",), ("worker", "--version")])
def test_the_version_is_shown(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli(*words).stdout.startswith("flowfabric ")


def test_a_worker_serves_only_its_lanes(cli: Cli, processes: list[Process], tmp_path: Path) -> None:
    other = cli.submit("wait_for", "--arg", f"gate={tmp_path / 'gate'}")
    mine = cli.submit("greet", "--arg", "name=x")
    process = start(processes, cli, "--lanes", "default")
    follow(cli.url, mine, "completed")
    process.terminate()
    assert process.end()[0] == 0
    assert cli.json("run", "show", other)["state"] == "waiting"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--lanes", "fast=x"), "--lanes: the weight of 'fast' is a whole number above 0"),
        (("--lanes", "fast=0"), "--lanes: the weight of 'fast' is a whole number above 0"),
        (("--drain", "a while"), "--drain is not a duration"),
        (("--ttl", "a while"), "--ttl is not a duration"),
        (("--ttl", "2d"), "ttl must be longer than zero, and at most a day"),
    ],
)
def test_a_wrong_option_is_one_readable_line(
    cli: Cli, words: tuple[str, ...], complaint: str
) -> None:
    assert cli.complaint("worker", APP, *words, code=2).startswith(complaint)
