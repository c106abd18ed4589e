"""The promises that are checked at the end."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from chaos.ledger import Line
from flowfabric import Fabric
from flowfabric.worker.errors import RunFailed

POISON = "poison"
ENDED = {"completed", "failed", "cancelled", "expired", "skipped"}

FROZEN = 1.0
"""A process that needs longer than this from `look` to `step` was frozen after the engine had
checked the lease, which no engine can see. Frozen processes stand still for longer than a lease,
and nothing else takes a second between these two lines."""


def repeated_steps(lines: Iterable[Line]) -> list[str]:
    """Steps that ran although a handler had already seen their recorded value."""
    kept: set[tuple[str, str]] = set()
    looked: dict[tuple[int, str, str], float] = {}
    found: list[str] = []
    for line in lines:
        place = (line.run, line.name)
        match line.what:
            case "kept":
                kept.add(place)
            case "look":
                looked[line.pid, *place] = line.at
            case "step" if place in kept and line.at - looked[line.pid, *place] < FROZEN:
                found.append(
                    f"step {line.name!r} of run {line.run} ran again after its value was recorded"
                )
    return found


def changed_values(lines: Iterable[Line]) -> list[str]:
    """Steps of which handlers have seen two values: a stale write was accepted."""
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for line in lines:
        if line.what == "kept":
            values[line.run, line.name].add(line.value)
    return [
        f"step {name!r} of run {run} had the values {sorted(seen)}"
        for (run, name), seen in values.items()
        if len(seen) > 1
    ]


def wrong_results(lines: Sequence[Line], results: Mapping[str, object]) -> list[str]:
    """Runs whose result differs from the recorded values of their steps."""
    kept = {(line.run, line.name): line.value for line in lines if line.what == "kept"}
    by_run: dict[str, list[str]] = defaultdict(list)
    for (run, _), value in kept.items():
        by_run[run].append(value)
    return [
        f"run {run} ended with {result!r}, its steps recorded {by_run[run]}"
        for run, result in results.items()
        if run in by_run and not _fits(result, by_run[run])
    ]


def _fits(result: object, kept: Sequence[str]) -> bool:
    return isinstance(result, list) and set(kept) <= set(result)


async def wrong_endings(
    fabric: Fabric, runs: Mapping[str, str]
) -> tuple[list[str], dict[str, object]]:
    """Runs (id → task) that did not end exactly once, or not as their task requires; and the
    results."""
    problems: list[str] = []
    results: dict[str, object] = {}
    for id, task in runs.items():
        run = await fabric.run(id)
        if (state := await run.state()) not in ENDED:
            why = await run.explain()
            problems.append(f"{task} run {id} is stuck in {state}: {why.main.text}")
            continue
        try:
            results[id] = await run.result()
        except RunFailed as error:
            if task != POISON or "reclaims" not in str(error):
                problems.append(f"{task} run {id} failed: {error}")
        else:
            if task == POISON:
                problems.append(f"poisoned run {id} completed")
        ends = [event.kind.name for event in await run.events() if event.completion is not None]
        if len(ends) != 1:
            problems.append(f"{task} run {id} ended {len(ends)} times: {', '.join(ends)}")
    return problems, results
