"""`flowfabric top`: one moment of a store, drawn on terminals of any size, from few statements."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest
from rich.console import Console

from flowfabric.cli.activity import Rates, StoreMoment, StoreWatch
from flowfabric.cli.panels import UNBOUNDED, draw
from flowfabric.core.base.errors import Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.failures import FailureGroup
from flowfabric.core.execution.registry import Presence
from flowfabric.store.activity import LaneActivity
from flowfabric.store.clock import ManualClock
from flowfabric.store.open import open_store
from flowfabric.store.queries import Counts
from flowfabric.store.sqlite.store import SqliteStore
from tests.cli.terminal import NOBODY, Cli, Work
from tests.kit.lab import Lab
from tests.kit.situations import take

NOW = Millis(1_700_000_000_000)


# -- what is read


@pytest.fixture
async def lab(store_url: str) -> Any:
    clock = ManualClock()
    lab = await Lab.open(await open_store(store_url, clock=clock), clock)
    yield lab
    await lab.engine.close()


async def test_a_look_tells_what_waits_runs_and_happens(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.cli.activity.SHARE", 0)
    watch = StoreWatch(lab.engine.store, interval=0.0)
    for _ in range(3):
        await lab.submit(lane="mail")
    await lab.engine.workers.register(Presence(worker="w1", instance="w1-a", concurrency=4))
    first = await watch.look()
    assert first.rates == Rates()
    lab.clock.advance(2000)
    await lab.fail(await take(lab, await lab.submit(lane="reports")), "permanent", "no rows in 7")
    await lab.complete(await take(lab, await lab.submit(lane="reports")))
    await take(lab, await lab.submit(lane="reports"))
    second = await watch.look()
    lab.clock.advance(1000)
    for _ in range(3):  # what takes turns has been read again
        third = await watch.look()
    assert second.rates == Rates(submitted=1.5, started=1.5, completed=0.5, failed=0.5)
    assert [(lane.lane, lane.ready, lane.running) for lane in third.lanes] == [
        ("mail", 3, 0),
        ("reports", 0, 1),
    ]
    assert third.oldest is not None
    assert (third.oldest.lane, third.at - (third.oldest.oldest_at or 0)) == ("mail", 3000)
    assert third.states.by_state["failed"] == 1
    assert [(group.kind, group.count) for group in third.failures] == [("job", 1)]
    assert [(worker.instance, third.load(worker)) for worker in third.workers] == [("w1-a", 0.25)]


async def test_workers_that_fell_silent_are_not_shown(lab: Lab) -> None:
    await lab.engine.workers.register(Presence(worker="w1", instance="w1-a"))
    watch = StoreWatch(lab.engine.store)
    assert len((await watch.look()).workers) == 1
    lab.clock.advance(31_000)
    assert (await watch.look()).workers == ()


async def test_an_empty_store_can_be_looked_at(lab: Lab) -> None:
    frame = await StoreWatch(lab.engine.store).look()
    assert (frame.lanes, frame.workers, frame.failures, frame.oldest) == ((), (), (), None)


async def test_a_look_is_at_most_five_statements(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.fail(await take(lab, await lab.submit()), "permanent")
    await lab.engine.workers.register(Presence(worker="w1", instance="w1-a"))
    asked: list[str] = []

    def note(text: str) -> None:
        if text.lower() not in ("begin", "begin ", "commit"):
            asked.append(text)

    store = lab.engine.store
    if isinstance(store, SqliteStore):
        await store.reader.run(lambda session: session.connection.set_trace_callback(note))
    else:
        honest = asyncpg.Connection.fetch

        async def fetch(self: Any, query: str, *values: Any, **options: Any) -> Any:
            asked.append(query)
            return await honest(self, query, *values, **options)

        monkeypatch.setattr(asyncpg.Connection, "fetch", fetch)
    monkeypatch.setattr("flowfabric.cli.activity.SHARE", 0)
    watch = StoreWatch(store, interval=0.0)
    await watch.look()
    for _ in range(6):
        asked.clear()
        await watch.look()
        assert 3 <= len(asked) <= 5, asked


async def test_what_takes_long_is_asked_less_often(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, seconds = 0, 0.0
    honest = lab.engine.store.counts

    async def slow() -> Counts:
        nonlocal asked, seconds
        asked += 1
        seconds += 0.5  # as long as it took
        return await honest()

    monkeypatch.setattr(lab.engine.store, "counts", slow)
    monkeypatch.setattr("flowfabric.cli.activity.time.monotonic", lambda: seconds)
    watch = StoreWatch(lab.engine.store, interval=1.0)
    for _ in range(30):
        await watch.look()
        seconds += 1
    assert asked == 3  # every ten seconds, and not every third


# -- how it is drawn


def frame(**members: Any) -> StoreMoment:
    group = FailureGroup(
        kind="send",
        error="ConnectionError: no answer from mx…",
        category="",
        count=12,
        first_at=NOW,
        last_at=Millis(NOW - 4000),
        example=ExecutionId(f"{{fp:86}}:{NOBODY}"),
        message="",
    )
    whole = {
        "at": NOW,
        "rates": Rates(submitted=1234.4, started=2.5, failed=1.0),
        "states": Counts({"waiting": 5, "completed": 100_000}, frozenset({"completed"})),
        "lanes": tuple(LaneActivity(f"lane-{n}", n, 1, Millis(NOW - 1000 * n)) for n in range(30)),
        "workers": (Presence(worker="mailer", instance="host-1", concurrency=4, seen_at=NOW),),
        "held": {"host-1": 3},
        "failures": (group,),
    }
    return StoreMoment(**{**whole, **members})


def drawn(
    width: int, height: int, moment: StoreMoment | None = None, trouble: str = ""
) -> list[str]:
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        console.print(draw(moment or frame(), "sqlite:///work.db", width, height, trouble))
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [40, 46, 80, 200])
@pytest.mark.parametrize("height", [18, 24, 50])
def test_it_fits_the_terminal(width: int, height: int) -> None:
    lines = drawn(width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_it_tells_everything_where_there_is_room() -> None:
    lines = drawn(120, UNBOUNDED)
    text = "\n".join(lines)
    assert "1,234 submitted, 2.5 started, 0 completed, 1 failed" in text
    assert "5 waiting, 100,000+ completed" in text
    assert "oldest waiting: 29.0s in lane-29" in text
    assert text.count("lane-") == 31
    assert "host-1  mailer      3/4  ████████··  75%" in text
    assert "send             12  ConnectionError: no answer from mx…  4.0s" in text
    assert "q quits" not in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_long_names_push_no_figure_out(width: int) -> None:
    """A lane has up to 64 characters, and an error as many as it likes."""
    lanes = (LaneActivity("l" * 64, 76_400, 50, Millis(NOW - 90_000)),)
    worker = Presence(
        worker="w" * 60,
        instance="host-" + "i" * 60,
        lanes=("a" * 64, "b" * 64),
        concurrency=100,
        seen_at=NOW,
    )
    held = {worker.instance: 42}
    lines = drawn(width, 24, frame(lanes=lanes, workers=(worker,), held=held))
    assert any(re.search(r"^l+…? +76,400 +50 +1m30s", line) for line in lines)
    assert any(re.search(r"^host-i*…? .*42/100 .* 42%", line) for line in lines)
    assert any(re.search(r"^send +12 +Connection", line) for line in lines)
    assert all(len(line) <= width for line in lines)


def test_what_has_no_room_is_counted() -> None:
    assert any(line.startswith("… ") and line.strip().endswith(" more") for line in drawn(80, 24))


def test_trouble_and_control_characters_are_harmless() -> None:
    lanes = (LaneActivity("a\x1b[2Jb", 1, 0, None),)
    text = "\n".join(drawn(100, 30, frame(lanes=lanes), trouble="unavailable:\nthe \x1b[31mstore"))
    assert "\x1b" not in text
    assert "no answer: unavailable: the" in text


def test_an_empty_store_says_what_to_do() -> None:
    empty = frame(lanes=(), workers=(), failures=(), states=Counts({}, frozenset()))
    text = "\n".join(drawn(80, 24, empty))
    assert "runs: none" in text
    assert "nothing has been submitted so far" in text
    assert "start one with flowfabric worker" in text


# -- the command


def test_once_prints_one_moment(cli: Cli, work: Work) -> None:
    cli.submit("greet", "--arg", "name=ada")
    cli.submit("shout", "--arg", "text=help")
    work()
    cli.submit("greet", "--arg", "name=bob")
    printed = cli("top", "--once", "--interval", "50ms").stdout
    assert printed.startswith("flowfabric top  sqlite:///")
    assert "runs: 1 waiting, 1 completed, 1 failed" in printed
    assert "RuntimeError: help" in printed
    shown = cli.json("top", "--once", "--interval", "50ms")
    assert shown["lanes"][0]["ready"] == 1
    assert shown["states"]["failed"] == 1
    assert shown["lanes"][0]["oldest_at"].endswith("Z")


@pytest.mark.inside
def test_bad_intervals_and_missing_stores_are_one_line(cli: Cli) -> None:
    assert "no database" in cli.complaint("top", "--once", code=4)
    cli("migrate")
    assert "--interval" in cli.complaint("top", "--once", "--interval", "soon", code=2)


def test_a_pipe_gets_one_document_each_time_until_the_store_answers_no_more(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("migrate")
    looks = 0
    honest = StoreWatch.look

    async def look(self: StoreWatch) -> StoreMoment:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise Unavailable("the disk is gone")
        if looks == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return await honest(self)

    monkeypatch.setattr(StoreWatch, "look", look)
    result = cli("top", "--json", "--interval", "50ms")
    assert "the disk is gone" in result.stderr
    assert len(result.stdout.splitlines()) >= 2


@contextmanager
def terminal(url: str, width: int, height: int) -> Iterator[tuple[int, Any]]:
    """The command on a terminal of its own: what is typed and shown there, and the process."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    command = [sys.executable, "-m", "flowfabric.cli", "top", "--interval", "50ms", "--url", url]
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    try:
        yield master, process
    finally:
        process.kill()
        process.wait()
        os.close(master)


def read_until(master: int, wanted: bytes) -> bytes:
    shown = b""
    while wanted not in shown:
        ready, _, _ = select.select([master], [], [], 20)
        assert ready, shown
        try:
            shown += os.read(master, 65536)
        except OSError:  # the other end is closed
            break
    return shown


@pytest.mark.parametrize("how", ["q", "ctrl-c"])
def test_q_and_ctrl_c_give_the_terminal_back(cli: Cli, how: str) -> None:
    cli("migrate")
    with terminal(cli.url, 80, 24) as (master, process):
        read_until(master, b"q quits")
        if how == "q":
            os.write(master, b"q")
        else:
            process.send_signal(signal.SIGINT)
        shown = read_until(master, b"\x1b[?1049l")  # the screen of before
        assert process.wait(60) == 0
    assert b"Traceback" not in shown
