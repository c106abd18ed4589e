"""Runs scenarios on stores: interleaved repeats, so that a slow minute of the machine falls on all
of them, and one row of the record per figure."""

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from bench import record, stores
from bench.record import Record, Row
from bench.scenario import (
    RAW,
    RAW_CALLS,
    RAW_LIMIT,
    RAW_PICKUP,
    Figure,
    Figures,
    Load,
    Metric,
    Scenario,
    Size,
    share,
    with_unit,
)

Say = Callable[[str], None]
Found = dict[tuple[str, str], list[Figure]]
"""By the name of a metric and the store."""


class Outcome:
    """What was found so far, and which scenarios failed."""

    def __init__(self, scenarios: Sequence[Scenario], servers: dict[str, str]) -> None:
        self._scenarios = scenarios
        self._servers = servers
        self._found: Found = defaultdict(list)
        self._versions = {}
        if "postgres" in servers:
            self._versions["postgres"] = stores.version(servers["postgres"])
        self.failed: list[str] = []

    def add(self, store: str, figures: Figures, limit: Figure | None) -> None:
        for name, figure in figures.items():
            self._found[name, store].append(figure)
        if limit is not None:
            self._found[RAW_LIMIT, store].append(limit)

    def record(self, **facts: str) -> Record:
        return Record(record.machine_facts(**self._versions, **facts), list(self._rows()))

    def _rows(self) -> Iterable[Row]:
        limit = Metric(RAW_LIMIT, "raw limit loop")
        metrics = [limit, *(metric for each in self._scenarios for metric in each.metrics)]
        for metric in metrics:
            for store in self._servers:
                if found := self._found.get((metric.name, store)):
                    yield _row(metric, store, found)


def _row(metric: Metric, store: str, found: list[Figure]) -> Row:
    system = f"{RAW if metric.name in (RAW_LIMIT, RAW_CALLS, RAW_PICKUP) else 'flowfabric-'}{store}"
    made = record.row(
        metric.name,
        system,
        metric.unit,
        [figure.value for figure in found],
        durability=stores.DURABILITY[store],
        goal=metric.goal(store),
        ratio=_median(figure.ratio for figure in found),
        ratio_of=metric.ratio_of,
        cpu_us=_median(figure.cpu_us for figure in found),
        cpu_parts=_parts(found),
        wal_bytes=_median(figure.wal_bytes for figure in found),
        what=metric.what,
        smaller_is_better=metric.smaller_is_better,
    )
    made.met = metric.met(store, made.median, made.ratio)
    return made


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _parts(found: list[Figure]) -> dict[str, float] | None:
    counted = [figure.cpu_parts for figure in found if figure.cpu_parts is not None]
    if not counted:
        return None
    return {name: statistics.median(parts[name] for parts in counted) for name in counted[0]}


def run(
    scenarios: Sequence[Scenario], chosen: Sequence[str], size: Size, repeats: int, say: Say
) -> Outcome:
    """Every scenario on every store, then all again."""
    turns = [
        (repeat, scenario, store)
        for repeat in range(repeats)
        for scenario in scenarios
        for store in chosen
        if store in scenario.stores and not (scenario.once and repeat)
    ]
    with ExitStack() as stack:
        servers = {store: stack.enter_context(stores.server(store)) for store in chosen}
        outcome = Outcome(scenarios, servers)
        for number, (repeat, scenario, store) in enumerate(turns, 1):
            began = time.perf_counter()
            title = f"[{number}/{len(turns)}] {scenario.name} on {store}, repeat {repeat + 1}"
            try:
                with stores.databases(servers[store]) as fresh:
                    load = Load(store, size, fresh)
                    figures = _finish(scenario, load)
                outcome.add(store, figures, load.limit)
            except Exception as error:  # the others are worth having
                outcome.failed.append(f"{scenario.name} on {store}: {error!r}")
                say(f"{title} failed: {error!r}")
            else:
                say(f"{title}: {_summary(scenario, figures)} ({time.perf_counter() - began:.0f} s)")
    return outcome


def _finish(scenario: Scenario, load: Load) -> Figures:
    stores.use_uvloop()

    async def measure() -> Figures:
        return await scenario.run(load)

    return asyncio.run(measure())


def _summary(scenario: Scenario, figures: Figures) -> str:
    parts = []
    for metric in scenario.metrics:
        if figure := figures.get(metric.name):
            ratio = "" if figure.ratio is None else f" ({share(figure.ratio)})"
            parts.append(f"{metric.name} {with_unit(figure.value, metric.unit)}{ratio}")
    return ", ".join(parts)
