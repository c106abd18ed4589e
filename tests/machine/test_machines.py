"""The three machines on every store, and nothing is found.

`make test-deep` plays more and longer examples; `FLOWFABRIC_MACHINE_EXAMPLES` asks for so many on
each store.
"""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.machine.benches import Bench, PostgresBench, SqliteBench
from tests.machine.driver import Machine
from tests.machine.execution_machine import ExecutionMachine
from tests.machine.flow_machine import FlowMachine
from tests.machine.limit_machine import LimitMachine

ASKED = os.environ.get("FLOWFABRIC_MACHINE_EXAMPLES")
DEEPER = 15

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200 if ASKED is None else 0)]


class Plan(NamedTuple):
    """How many examples of how many steps are played in `make test`."""

    rules: type[Machine]
    steps: int
    on_sqlite: int
    on_postgres: int


every_machine = pytest.mark.parametrize(
    "plan",
    [
        Plan(ExecutionMachine, steps=40, on_sqlite=20, on_postgres=6),
        Plan(FlowMachine, steps=20, on_sqlite=30, on_postgres=6),
        Plan(LimitMachine, steps=8, on_sqlite=15, on_postgres=3),
    ],
    ids=lambda plan: plan.rules.__name__,
)


@every_machine
def test_the_machine_finds_nothing_on_sqlite(
    plan: Plan, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    with closing(SqliteBench(tmp_path)) as bench:
        play(plan, bench, plan.on_sqlite, deep=pytestconfig.getoption("--deep"))


@every_machine
def test_the_machine_finds_nothing_on_postgres(
    plan: Plan, fresh_database: Callable[..., str], pytestconfig: pytest.Config
) -> None:
    with closing(PostgresBench(fresh_database())) as bench:
        play(plan, bench, plan.on_postgres, deep=pytestconfig.getoption("--deep"))


def play(plan: Plan, bench: Bench, examples: int, *, deep: bool) -> None:
    machine = type(f"{plan.rules.__name__}OnThisBench", (plan.rules,), {"bench": bench})
    longer = deep or ASKED is not None
    asked = int(ASKED) if ASKED is not None else examples * (DEEPER if deep else 1)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=asked,
            stateful_step_count=plan.steps * (2 if longer else 1),
            deadline=None,
            # The same examples every time, except where somebody looks for new ones.
            derandomize=not longer,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
