"""Runs the systems in turns, so that a slow minute of the machine meets all of them."""

import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from msgspec import Struct

from bench.peers.catalog import FLOWFABRIC, System
from bench.record import Row, row

Answer = dict[str, Any]


class Plan(Struct):
    """How much is run. The seconds bound slow systems, which then get through fewer jobs."""

    jobs: int = 20_000
    repeats: int = 3
    submit_seconds: float = 2.0
    work_seconds: float = 3.0
    pickups: int = 100
    timeout: float = 90.0

    def quick(self) -> "Plan":
        return Plan(min(self.jobs, 2000), 1, 2.0, 2.0, 30, self.timeout)


class Figure(Struct):
    scenario: str
    value: float
    unit: str = "/s"
    cpu_us: float | None = None
    wal_bytes: float | None = None


class Speaker(Protocol):
    """A session with an adapter."""

    def ask(self, command: str, timeout: float) -> Answer: ...


class Asked:
    """A session, with the write-ahead log counted around a command."""

    def __init__(self, session: Speaker, plan: Plan, wal: Callable[[], int | None]) -> None:
        self.plan = plan
        self._session = session
        self._wal = wal

    def ask(self, *words: object) -> Answer:
        return self._session.ask(" ".join(map(str, words)), self.plan.timeout)

    def rate(self, scenario: str, *words: object) -> tuple[Figure, int]:
        """The figure of a command that answers with jobs and seconds, and how many jobs."""
        before = self._wal()
        answer = self.ask(*words)
        after, jobs = self._wal(), int(answer["jobs"])
        counted = int(answer.get("cpu_jobs", jobs))
        figure = Figure(scenario, jobs / float(answer["seconds"]))
        if counted:
            figure.cpu_us = float(answer["cpu"]) / counted * 1e6
        if before is not None and after is not None and jobs:
            figure.wal_bytes = (after - before) / max(jobs, counted)
        return figure, jobs


def one_process(asked: Asked) -> Iterator[Figure]:
    """A backlog submitted job by job, run by one worker process."""
    plan = asked.plan
    submitted, jobs = asked.rate("submit", "submit", plan.jobs, "one", plan.submit_seconds)
    yield submitted
    if jobs < plan.jobs:
        jobs = int(asked.ask("fill", jobs, plan.jobs, plan.submit_seconds)["jobs"])
    yield asked.rate("drain", "work", jobs, 1, plan.work_seconds)[0]


def two_processes(asked: Asked) -> Iterator[Figure]:
    """A backlog submitted in bulk, where the system can, run by two worker processes."""
    plan = asked.plan
    answer = asked.ask("submit", plan.jobs, "bulk", plan.submit_seconds)
    jobs = int(answer["jobs"])
    if answer["bulk"]:
        cpu_us = float(answer["cpu"]) / jobs * 1e6
        yield Figure("submit-bulk", jobs / float(answer["seconds"]), cpu_us=cpu_us)
    yield asked.rate("drain-2", "work", jobs, 2, plan.work_seconds)[0]


def pickup(asked: Asked) -> Iterator[Figure]:
    """From the start of a submit to the job, on an idle queue."""
    times = sorted(asked.ask("pickup", asked.plan.pickups)["ms"])
    yield Figure("pickup p50", percentile(times, 0.5), "ms")
    yield Figure("pickup p99", percentile(times, 0.99), "ms")


def steps(asked: Asked) -> Iterator[Figure]:
    """Runs of three durable steps: one at a time, then a backlog of them."""
    plan = asked.plan
    times = sorted(asked.ask("run-steps", 100, plan.work_seconds)["ms"])
    yield Figure("three-step run p50", percentile(times, 0.5), "ms")
    jobs = int(asked.ask("steps", plan.jobs // 4, plan.submit_seconds)["jobs"])
    yield asked.rate("three-step runs", "work", jobs, 1, plan.work_seconds)[0]


Part = Callable[[Asked], Iterator[Figure]]

PARTS: dict[str, Part] = {
    "one": one_process,
    "two": two_processes,
    "pickup": pickup,
    "steps": steps,
}
"""Each part has an empty store and a fresh adapter process."""

WHAT = {
    "drain": "backlog, one worker process",
    "drain-2": "backlog, two worker processes",
    "submit": "submit, one job per call",
    "submit-bulk": "submit, a thousand jobs per call",
    "pickup p50": "submit to start, idle queue, p50",
    "pickup p99": "submit to start, idle queue, p99",
    "three-step run p50": "run of three durable steps, submit to result, p50",
    "three-step runs": "backlog of such runs, one worker process",
}


def percentile(ordered: list[float], share: float) -> float:
    """The smallest value that this share of them does not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def turns(
    systems: list[System], parts: list[str], repeats: int
) -> Iterator[tuple[int, str, System]]:
    """Every system does a part before any does the next: A B C, A B C, …"""
    for repeat in range(repeats):
        for part in parts:
            for system in systems:
                if system.does(part):
                    yield repeat, part, system


class Results:
    """The figures of all repeats, and what failed."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._found: dict[tuple[str, str], dict[int, Figure]] = {}
        self._systems: dict[str, System] = {}

    def add(self, repeat: int, system: System, figure: Figure) -> None:
        self._systems[system.name] = system
        self._found.setdefault((figure.scenario, system.name), {})[repeat] = figure

    def rows(self) -> list[Row]:
        """In the order of WHAT, each scenario with its best system first."""
        rows = [self._row(scenario, name) for scenario, name in self._found]
        order = list(WHAT)
        return sorted(
            rows,
            key=lambda row: (
                order.index(row.scenario),
                row.median if row.smaller_is_better else -row.median,
            ),
        )

    def _row(self, scenario: str, name: str) -> Row:
        found = self._found[scenario, name]
        figures = list(found.values())
        base = self._found.get((scenario, FLOWFABRIC), {})
        ratios = [
            figure.value / base[repeat].value for repeat, figure in found.items() if repeat in base
        ]
        compared = bool(ratios) and name != FLOWFABRIC
        return row(
            scenario,
            name,
            figures[0].unit,
            [figure.value for figure in figures],
            durability=self._systems[name].durability,
            ratio=statistics.median(ratios) if compared else None,
            ratio_of=FLOWFABRIC if compared else None,
            cpu_us=_median([figure.cpu_us for figure in figures]),
            wal_bytes=_median([figure.wal_bytes for figure in figures]),
            what=WHAT[scenario],
            smaller_is_better=figures[0].unit == "ms",
        )


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


Perform = Callable[[str, System, Plan], list[Figure]]


def run(
    systems: list[System],
    parts: list[str],
    plan: Plan,
    perform: Perform,
    say: Callable[[str], None],
) -> Results:
    """All turns. A part that fails for a system is left out for it from then on; the rest goes
    on."""
    results, failed = Results(), set[tuple[str, str]]()
    every = list(turns(systems, parts, plan.repeats))
    for number, (repeat, part, system) in enumerate(every, 1):
        head = f"[{number}/{len(every)}] {system.name}, {part}"
        if (part, system.name) in failed:
            say(f"{head}: left out, it failed before")
            continue
        try:
            figures = perform(part, system, plan)
        except Exception as error:  # one system must not end the run of the others
            failed.add((part, system.name))
            results.failures.append(f"{system.name}, {part}: {error}")
            say(f"{head}: FAILED: {error}")
            continue
        for figure in figures:
            results.add(repeat, system, figure)
        say(f"{head}: {', '.join(map(show, figures))}")
    return results


def show(figure: Figure) -> str:
    size = ",.0f" if figure.value >= 100 else ",.1f"
    text = f"{figure.scenario} {figure.value:{size}} {figure.unit}".replace(" /s", "/s")
    return text if figure.cpu_us is None else f"{text} ({figure.cpu_us:,.0f} µs of CPU)"
