"""The machine of limits on every store. `FLOWFABRIC_MACHINE_EXAMPLES` scales it too."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.machine.limit_machine import LimitMachine
from tests.machine.play import Bench
from tests.machine.test_machine import ASKED, PostgresBench, SqliteBench

USUAL = {"sqlite": 60, "postgres": 15}


def play(bench: Bench, examples: int) -> None:
    machine = type("LimitMachineOnThisBench", (LimitMachine,), {"bench": bench})
    profile = settings.get_profile("machine")
    asked = examples if ASKED is None else int(ASKED)
    steps = 8 if ASKED is None else 20
    run_state_machine_as_test(
        machine, settings=settings(profile, max_examples=asked, stateful_step_count=steps)
    )


@pytest.mark.timeout(600 if ASKED is None else 0)
def test_no_limit_is_passed_and_nobody_is_stuck_on_sqlite(tmp_path: Path) -> None:
    play(SqliteBench(tmp_path), USUAL["sqlite"])


@pytest.mark.timeout(600 if ASKED is None else 0)
def test_no_limit_is_passed_and_nobody_is_stuck_on_postgres(
    fresh_database: Callable[..., str],
) -> None:
    bench = PostgresBench(fresh_database())
    try:
        play(bench, USUAL["postgres"])
    finally:
        bench.close()
