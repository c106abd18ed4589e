"""Whether the processors are taken, from what the system counts for a thread."""

from pathlib import Path

import pytest

from flowfabric.engine.commit import cores
from flowfabric.engine.commit.cores import Cores


class Counters:
    """A file of counters, and the time they are read at."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "schedstat"
        self.now = 100.0
        self._ran = self._waited = 5_000_000
        monkeypatch.setattr(cores, "monotonic", lambda: self.now)
        self.passed(0, ran=0, waited=0)

    def passed(self, seconds: float, *, ran: int, waited: int) -> None:
        self.now += seconds
        self._ran += ran
        self._waited += waited
        self.path.write_text(f"{self._ran} {self._waited} 77\n", encoding="ascii")


@pytest.fixture
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counters:
    return Counters(tmp_path, monkeypatch)


def test_a_thread_that_waits_for_its_turn_shares_the_processors(counters: Counters) -> None:
    asked = Cores(counters.path)
    asked.crowded()
    counters.passed(0.11, ran=60, waited=60)
    assert asked.crowded()
    counters.passed(0.11, ran=60, waited=6)
    assert not asked.crowded()


def test_the_counters_are_read_ten_times_a_second(counters: Counters) -> None:
    asked = Cores(counters.path)
    asked.crowded()
    counters.passed(0.11, ran=60, waited=0)
    assert not asked.crowded()
    counters.passed(0.09, ran=1, waited=60)
    assert not asked.crowded()
    counters.passed(0.02, ran=1, waited=0)
    assert asked.crowded()


def test_what_is_not_known_yet_is_taken_for_crowded(counters: Counters) -> None:
    asked = Cores(counters.path)
    assert asked.crowded()
    counters.passed(0.11, ran=60, waited=0)
    assert not asked.crowded()
    counters.passed(5, ran=60, waited=0)
    assert asked.crowded()


def test_without_counters_there_is_room(tmp_path: Path) -> None:
    assert not Cores(tmp_path / "missing").crowded()
    (tmp_path / "other").write_text("another system\n", encoding="ascii")
    assert not Cores(tmp_path / "other").crowded()
