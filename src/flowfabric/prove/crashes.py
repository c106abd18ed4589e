"""What is checked by breaking things: a worker that is killed, connections that are cut."""

import asyncio
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from flowfabric.core.base.errors import FlowFabricError, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.prove.ground import TTL, Ground
from flowfabric.prove.report import CannotCheck, ProofTally
from flowfabric.prove.worker import (
    STEPS,
    URL,
    LedgerLine,
    order_task,
    prepare,
    read_ledger,
)
from flowfabric.store.health import Severity, cut_connections, examine
from flowfabric.worker.api.run import Run

ORDERS = 5
CUTS = 3
WRITERS = 4
LEAST_WRITES = 10
MOST_WRITES = 200
WORKER = "flowfabric.prove.worker"
SHORT_LEASE = Millis(2_000)
"""The lease of the worker that is killed: its runs are taken over when it has expired."""
STOP_WITHIN = 10.0


# -- a killed worker


async def crash(ground: Ground) -> ProofTally:
    """A worker is killed in the middle of its runs; another finishes them and repeats nothing
    that was recorded."""
    problems: list[str] = []
    taken_over = 0
    for round in range(ground.rounds):
        home = ground.home / f"crash-{round}"
        prepare(ground.place, home)
        count, found = await _killed(ground, home, stay=STEPS[2 + round % 3])
        taken_over += count
        problems += found
    return ProofTally(count=taken_over, unit="runs taken over", problems=problems)


async def _killed(ground: Ground, home: Path, stay: str) -> tuple[int, list[str]]:
    """The first worker stays in a step, where it is killed."""
    async with ground.place.fabric() as fabric:
        order = order_task(ground.place, fabric, home)
        runs = [await order.submit() for _ in range(ORDERS)]
        with _process(ground, home, SHORT_LEASE, stay) as first:
            await _until_in(stay, ground, home, first)
            first.kill()
            await asyncio.to_thread(first.wait, STOP_WITHIN)
        with _process(ground, home, TTL):
            results = await asyncio.gather(*(run.result(ground.patience) for run in runs))
        taken_over = 0
        problems = ledger_problems(
            read_ledger(home),
            {str(run.id): result for run, result in zip(runs, results, strict=True)},
        )
        for run in runs:
            count, found = await _end_of(run)
            taken_over += count
            problems += found
    return taken_over, problems


async def _until_in(
    stay: str, ground: Ground, home: Path, process: "subprocess.Popen[bytes]"
) -> None:
    """Waits until every run is in the step where the worker process stays."""

    def is_there() -> bool:
        if process.poll() is not None:
            log = (home / "worker.log").read_text(encoding="utf-8", errors="replace")
            raise CannotCheck(f"the worker process ended by itself: {log[-300:]}")
        return len({line.run for line in read_ledger(home) if line.step == stay}) == ORDERS

    await ground.wait_for(is_there, "the first steps of a worker process")


@contextmanager
def _process(
    ground: Ground, home: Path, lease: Millis, *stay: str
) -> "Iterator[subprocess.Popen[bytes]]":
    """A worker process, killed at the end of the block at the latest."""
    with (home / "worker.log").open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", WORKER, str(home), str(lease), *stay],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, URL: ground.place.url},
        )
    try:
        yield process
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_WITHIN)
    finally:
        process.kill()
        process.communicate()


async def _end_of(run: Run[list[str]]) -> tuple[int, list[str]]:
    """Whether a run was taken over, and what is wrong with its end."""
    events = await run.events()
    ends = sum(event.completion is not None for event in events)
    taken_over = any(event.kind is EventKind.RECLAIMED for event in events)
    return taken_over, [] if ends == 1 else [f"run {run.id} ended {ends} times"]


def ledger_problems(lines: Sequence[LedgerLine], results: dict[str, list[str]]) -> list[str]:
    """Steps that were done again after they were recorded, and results that are not theirs."""
    kept: dict[tuple[str, str], str] = {}
    problems = []
    for line in lines:
        place = line.run, line.step
        if line.what == "kept":
            if kept.setdefault(place, line.value) != line.value:
                problems.append(f"step {line.step} of run {line.run} has two values")
        elif place in kept:
            problems.append(f"step {line.step} of run {line.run} was done again")
    by_run: dict[str, list[str]] = defaultdict(list)
    for (run, _), value in kept.items():
        by_run[run].append(value)
    for run, result in results.items():
        if len(result) != len(STEPS) or sorted(by_run[run]) != sorted(result):
            problems.append(f"the result of run {run} is not what its steps recorded")
    return problems


# -- durability


async def durability(ground: Ground) -> ProofTally:
    """What was acknowledged is there, also if the connections are cut while it is written."""
    if ground.remote:
        raise CannotCheck("needs the database itself: give its URL instead of the server's")
    found = await examine(ground.place.url)
    problems = [
        finding.summary
        for finding in found.findings
        if finding.check == "durability" and finding.severity is Severity.PROBLEM
    ]
    acknowledged: dict[str, int] = {}
    cut = 0
    for round in range(CUTS * ground.rounds):
        cut += await _write(ground, acknowledged, round)
    problems += await _lost(ground, acknowledged)
    how = f"{cut} connections cut" if cut else f"opened {CUTS * ground.rounds} times"
    return ProofTally(
        count=len(acknowledged), unit="acknowledged runs", problems=problems, note=how
    )


async def _write(ground: Ground, acknowledged: dict[str, int], round: int) -> int:
    """Submits in parallel until the connections are cut, and a few more; returns how many were."""
    async with ground.place.fabric() as fabric:
        put = ground.place.task(fabric, "durability", name="put")(_put)
        engine = await fabric.engine()
        is_cut = asyncio.Event()

        async def write(part: int) -> None:
            for each in range(MOST_WRITES):
                if each >= LEAST_WRITES and is_cut.is_set():
                    return
                number = (round * WRITERS + part) * MOST_WRITES + each
                with suppress(Unavailable):  # then it was not acknowledged
                    (run,) = await put.submit_many([number])
                    acknowledged[str(run.id)] = number

        writers = asyncio.gather(*(write(part) for part in range(WRITERS)))
        cut = 0
        with suppress(FlowFabricError):  # a role that may not: the store is only opened again
            cut = await cut_connections(engine.store, ground.place.url)
        is_cut.set()
        await writers
    return cut


async def _lost(ground: Ground, acknowledged: dict[str, int]) -> list[str]:
    """Runs them all in another process's place; each has to give its own number."""
    async with ground.place.fabric() as fabric:
        ground.place.task(fabric, "durability", name="put")(_put)
        async with ground.place.worker(fabric, "durability"):
            lost = 0
            for id, number in acknowledged.items():
                try:
                    run = await fabric.run(id)
                    lost += await run.result(ground.patience) != number
                except FlowFabricError:
                    lost += 1
    return [f"{lost} acknowledged runs are gone or changed"] if lost else []


async def _put(number: int) -> int:
    return number
