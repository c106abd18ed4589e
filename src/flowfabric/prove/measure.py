"""The measurement: how fast this database is for this machine."""

import asyncio
import time
from collections.abc import Sequence

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.engine.engine import Engine
from flowfabric.fabric import Fabric
from flowfabric.prove.ground import Ground
from flowfabric.prove.report import ProofTally
from flowfabric.worker.api.task import Task

BATCH = 200
SINGLE = 50
LEAST = 1.0
"""Seconds that it takes at least."""


async def measure(ground: Ground) -> ProofTally:
    """Single runs one after the other, claims, and then as many runs as fit into the time."""
    place = ground.place
    async with place.fabric() as fabric:
        starts: dict[int, float] = {}
        task = _task(ground, fabric, starts)
        async with place.worker(fabric, "measure", concurrency=BATCH):
            latencies, pickups = await _single(ground, task, starts)
            rates, cpu, count = await _batches(ground, task)
        claims = await _claims(ground, fabric)
    figures = {
        "runs per second": count / max(rates, 1e-9),
        "client CPU per run, ms": cpu / max(count, 1) * 1e3,
        "submit to result, median ms": _at(latencies, 0.5),
        "submit to result, 99 % ms": _at(latencies, 0.99),
        "submit to start, median ms": _at(pickups, 0.5),
        "claim, median ms": _at(claims, 0.5),
    }
    return ProofTally(count=count + SINGLE, unit="runs", figures=figures)


def _task(ground: Ground, fabric: Fabric, starts: dict[int, float]) -> Task[[int], int]:
    @ground.place.task(fabric, "measure", name="empty")
    async def empty(number: int) -> int:
        starts[number] = time.perf_counter()
        return number

    ground.place.task(fabric, "claims", name="claimed")(_claimed)
    return empty


async def _claimed() -> None:
    """Is never called: its runs are claimed by hand."""


async def _single(
    ground: Ground, task: Task[[int], int], starts: dict[int, float]
) -> tuple[list[float], list[float]]:
    latencies, pickups = [], []
    for number in range(SINGLE):
        began = time.perf_counter()
        run = await task.submit(number)
        await run.result(ground.patience)
        latencies.append(time.perf_counter() - began)
        pickups.append(starts[number] - began)
    return latencies, pickups


async def _batches(ground: Ground, task: Task[[int], int]) -> tuple[float, float, int]:
    """Seconds, seconds of CPU and the number of runs."""
    began, cpu, count = time.perf_counter(), time.process_time(), 0
    until = max(ground.until, time.monotonic() + LEAST)
    while time.monotonic() < until:
        runs = await task.submit_many(range(BATCH))
        await asyncio.gather(*(run.result(ground.patience) for run in runs))
        count += len(runs)
    return time.perf_counter() - began, time.process_time() - cpu, count


async def _claims(ground: Ground, fabric: Fabric) -> list[float]:
    place, engine = ground.place, await fabric.engine()
    await fabric.get_task(f"{place.name}.claims.claimed").submit_many([()] * SINGLE)
    await _one_claim(ground, engine)  # the first one may have to wait for its hint
    return [await _one_claim(ground, engine) for _ in range(SINGLE - 1)]


async def _one_claim(ground: Ground, engine: Engine) -> float:
    place = ground.place
    began = time.perf_counter()
    claims = await engine.claims.claim(
        WorkerIdentity(place.name, f"{place.name}-1"),
        lanes=[place.lane("claims")],
        namespace=place.name,
        ttl=Millis(30_000),
        max_wait=ground.patience,
    )
    took = time.perf_counter() - began
    for claim in claims:
        await engine.attempts.complete(claim, b"null")
    return took


def _at(seconds: Sequence[float], share: float) -> float:
    """The value below which this share of all is, in milliseconds."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3
