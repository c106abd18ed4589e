"""The judge of the chaos run finds each broken promise in a ledger, and none in a good one."""

from pathlib import Path

from chaos.checks import changed_values, repeated_steps, wrong_results
from chaos.ledger import Ledger, Line


def line(what: str, *, value: str = "a", pid: int = 1, at: float = 0.0) -> Line:
    return Line(what, "run", "charge", value, pid, at)


def test_a_ledger_is_read_in_the_order_it_was_written(tmp_path: Path) -> None:
    one, other = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "ledger")
    one.write("look", "run", "charge")
    other.write("step", "run", "charge", "a")
    assert [found.what for found in one.read()] == ["look", "step"]


def test_a_step_that_runs_after_its_value_was_kept_is_found() -> None:
    good = [line("look"), line("step"), line("kept")]
    again = [line("look", pid=2, at=5.0), line("step", pid=2, at=5.1, value="b")]
    assert repeated_steps(good) == []
    assert len(repeated_steps(good + again)) == 1


def test_a_step_may_run_again_while_no_handler_has_seen_its_value() -> None:
    lines = [line("look"), line("step"), line("look", pid=2), line("step", pid=2, value="b")]
    assert repeated_steps(lines) == []


def test_a_process_that_froze_before_the_first_line_of_its_step_is_no_finding() -> None:
    frozen = line("look", pid=2, at=0.0)
    done = [line("look", at=4.0), line("step", at=4.1), line("kept", at=4.2)]
    woken = line("step", pid=2, at=4.3, value="b")
    assert repeated_steps([frozen, *done, woken]) == []


def test_two_values_of_one_step_are_found() -> None:
    assert changed_values([line("kept"), line("kept", pid=2)]) == []
    assert len(changed_values([line("kept"), line("kept", pid=2, value="b")])) == 1


def test_a_result_without_what_was_kept_is_found() -> None:
    lines = [line("step"), line("kept")]
    assert wrong_results(lines, {"run": ["a"]}) == []
    assert len(wrong_results(lines, {"run": ["b"]})) == 1
    assert len(wrong_results(lines, {"run": None})) == 1
