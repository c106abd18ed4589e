"""`flowfabric promote`, as it is typed; what it moves is in tests/store/test_promote.py."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.patient import Patient
from tests.cli.terminal import Cli, Work


@pytest.fixture
def target(fresh_database: Callable[..., str]) -> str:
    return fresh_database()


def test_a_run_that_waits_is_answered_at_the_new_store(
    cli: Cli, patient: Patient, target: str
) -> None:
    id = patient.start("order")
    result = cli("promote", cli.url, target)
    assert result.stdout.startswith("moved 1 run, ")
    assert result.stdout.endswith(": counts and digests agree\n")
    assert "none on " in result.stderr
    cli("signal", id, "paid", "250", "--url", target)
    Patient(target).work()
    assert cli.json("run", "result", id, "--url", target)["result"] == 250
    assert cli.json("run", "show", id)["state"] == "suspended"  # the source is as it was


def test_it_is_told_in_one_document(cli: Cli, work: Work, target: str) -> None:
    cli.submit("greet", "--arg", "name=ada")
    work()
    moved = cli.json("promote", cli.url, target)
    rows = {table["name"]: table["rows"] for table in moved["tables"]}
    assert (rows["execution"], rows["done"]) == (1, 1)
    assert cli.json("promote", cli.url, target)["already"] is True
    assert "nothing was done" in cli("promote", cli.url, target).stdout


def test_refusals_are_one_line(cli: Cli, target: str, tmp_path: Path) -> None:
    assert "no database" in cli.complaint("promote", cli.url, target, code=4)
    cli.submit("greet", "--arg", "name=ada")
    assert "the same store" in cli.complaint("promote", cli.url, cli.url, code=2)
    assert "not a known store" in cli.complaint("promote", cli.url, "oracle://x", code=2)
    other = f"sqlite:///{tmp_path / 'other.db'}"
    cli("promote", cli.url, other)
    cli("submit", "tests.cli.sample:fabric", "greet", "--arg", "name=bob", "--url", target)
    assert "already has other data" in cli.complaint("promote", cli.url, target, code=2)
