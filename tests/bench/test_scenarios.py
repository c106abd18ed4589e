"""Every scenario runs with tiny sizes, so that none can rot. No figure means anything here."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import wrk
from bench.scenario import TINY, Load, Scenario
from bench.scenarios import ALL

SLOW = {"http", "http-processes"}
EVERY = [
    pytest.param(
        each,
        store,
        id=f"{each.name}-{store}",
        marks=[] if store == each.stores[-1] and each.name not in SLOW else pytest.mark.deep,
    )
    for each in ALL
    for store in each.stores
    if wrk.has_wrk() or not each.name.startswith("http")
]
"""Without the load tool there is nothing to measure the HTTP API with. `make test` tries each of
them on one store."""
PARTLY = {"lifecycle": 7, "cost": 2, "idle": 1, "pickup": 2}
"""Figures of those that do not find every metric: few loads, no server."""


@pytest.mark.long
@pytest.mark.parametrize(("scenario", "store"), EVERY)
async def test_a_scenario_finds_its_figures(
    scenario: Scenario, store: str, fresh_database: Callable[..., str], tmp_path: Path
) -> None:
    numbers = iter(range(99))

    def fresh() -> str:
        if store == "postgres":
            return fresh_database()
        return f"sqlite:///{tmp_path / f'{next(numbers)}.db'}"

    load = Load(store, TINY, fresh)
    figures = await scenario.run(load)
    names = {metric.name for metric in scenario.metrics}
    assert set(figures) <= names
    assert len(figures) >= PARTLY.get(scenario.name, len(names))
    for figure in figures.values():
        assert math.isfinite(figure.value)
        assert figure.value >= 0
    if any("raw limit" in (metric.ratio_of or "") for metric in scenario.metrics):
        assert load.limit is not None
        assert load.limit.value > 0


def test_names_are_unique() -> None:
    names = [each.name for each in ALL]
    metrics = [metric.name for each in ALL for metric in each.metrics]
    assert len(set(names)) == len(names)
    assert len(set(metrics)) == len(metrics)


def test_every_scenario_says_what_it_measures() -> None:
    assert all(each.what for each in ALL)
