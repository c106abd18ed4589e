"""The parent of several server processes: whom it starts again, and that all of them end."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric.server.processes import RESTART_AFTER, ServerProcesses

MANY = 50


class Child:
    """A process that runs until it is terminated `deaths` times."""

    pid = 4711

    def __init__(self, deaths: int = 1) -> None:
        self.deaths = deaths

    @property
    def returncode(self) -> int | None:
        return None if self.deaths else 0

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self.deaths -= 1


class Parent:
    """Starts these children one after the other; `on_start` and `on_sleep` are called meanwhile."""

    def __init__(self, *children: Child) -> None:
        self.children = list(children)
        self.started: list[Child] = []
        self.sleeps = 0
        self.on_start: Callable[[], None] = lambda: None
        self.on_sleep: Callable[[float], None] = lambda seconds: None
        self._listening = socket.socket()
        self._parent = ServerProcesses([], self._listening, 2)

    def signal(self) -> None:
        self._parent._on_signal(15, None)

    def start(self, *command: Any, **options: Any) -> Child:
        self.started.append(self.children[len(self.started)])
        self.on_start()
        return self.started[-1]

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        assert self.sleeps < MANY, "it does not end"
        self.on_sleep(seconds)

    def watch(self) -> None:
        self._parent._watch()
        self._listening.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Parent]:
    def make(*children: Child) -> Parent:
        parent = Parent(*children)
        monkeypatch.setattr("flowfabric.server.processes.subprocess.Popen", parent.start)
        monkeypatch.setattr("flowfabric.server.processes.time.sleep", parent.sleep)
        return parent

    return make


def test_a_process_that_ended_is_started_again(made: Callable[..., Parent]) -> None:
    parent = made(Child(), Child(deaths=0), Child())

    def stop_later(seconds: float) -> None:
        if parent.sleeps == 3:
            parent.signal()

    parent.on_sleep = stop_later
    parent.watch()
    assert parent.started == parent.children
    assert [child.deaths for child in parent.started] == [0, 0, 0]


def test_a_signal_between_two_lives_of_a_process_ends_all(made: Callable[..., Parent]) -> None:
    parent = made(Child(), Child(deaths=0), Child())
    parent.on_sleep = lambda seconds: parent.signal() if seconds == RESTART_AFTER else None
    parent.watch()
    assert parent.started == parent.children[:2]


def test_a_signal_while_the_processes_start_ends_all(made: Callable[..., Parent]) -> None:
    parent = made(Child(), Child())
    parent.on_start = lambda: parent.signal() if len(parent.started) == 1 else None
    parent.watch()
    assert [child.deaths for child in parent.started] == [0, 0]


def test_a_second_signal_is_passed_on(made: Callable[..., Parent]) -> None:
    """It stops at once what still drains."""
    parent = made(Child(deaths=2), Child(deaths=1))
    parent.on_sleep = lambda seconds: parent.signal()
    parent.watch()
    assert [child.deaths for child in parent.started] == [0, 0]
