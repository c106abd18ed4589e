"""What the tests of planted faults share: how long a machine looks, and that it must find them."""

from contextlib import closing

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from flowfabric.core.base.errors import FlowFabricError
from tests.machine.benches import SqliteBench
from tests.machine.driver import Machine

BUDGET = settings(
    max_examples=200,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def assert_found(rules: type[Machine], bench: SqliteBench, budget: settings = BUDGET) -> None:
    machine = type("FaultyMachine", (rules,), {"bench": bench})
    with closing(bench), pytest.raises((AssertionError, FlowFabricError)):
        run_state_machine_as_test(machine, settings=budget)
