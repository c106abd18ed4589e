"""How often a process looks for the commits of others."""

import sqlite3
from pathlib import Path

import pytest

from flowfabric.store.hints import Hints
from flowfabric.store.sqlite.connection import OpenFile
from flowfabric.store.sqlite.runner import NoWatch, Runner
from flowfabric.store.sqlite.session import NameRegistry, SqliteSession
from flowfabric.store.sqlite.wake import LONGEST, SHORTEST, Commits
from flowfabric.store.sqlite.wal import Checkpoints


class QuietFor(Hints):
    """Hints that last came so many seconds ago, and tasks that wait for the next."""

    def __init__(self, seconds: float, tasks: int = 1) -> None:
        super().__init__()
        self.seconds, self.tasks = seconds, tasks

    @property
    def quiet(self) -> float:
        return self.seconds

    @property
    def waiting(self) -> int:
        return self.tasks


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    session = SqliteSession(sqlite3.connect(":memory:"), NameRegistry())
    path = str(tmp_path / "work.db")
    return Checkpoints(Runner(session, path, "begin", NoWatch(), OpenFile(path)))


@pytest.mark.parametrize(
    ("quiet", "pause"), [(0.0, SHORTEST), (0.5, SHORTEST), (3.0, 0.01), (60.0, LONGEST)]
)
def test_the_longer_it_is_quiet_the_rarer_the_looks(
    checkpoints: Checkpoints, quiet: float, pause: float
) -> None:
    assert Commits(QuietFor(quiet), checkpoints).pulse() == pytest.approx(pause)


def test_no_look_while_no_task_waits(checkpoints: Checkpoints) -> None:
    assert Commits(QuietFor(3.0, tasks=0), checkpoints).pulse() is None
