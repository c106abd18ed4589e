"""The public API end to end: workers are other processes, as in production."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from bench import raw
from bench.cost import counted
from bench.crew import Crew, Line, crew
from bench.scenario import (
    RAW_LIMIT,
    RAW_PICKUP,
    Figure,
    Figures,
    Load,
    least,
    most,
    percentile,
    scenario,
)  # fmt: skip
from flowfabric import Context, Fabric, WorkerOptions
from flowfabric.core.execution.event import Family
from tests.kit.pooler import pooled

CONCURRENCY = 100
TEXT = "x" * 400
WARM_UP = 3


class Tasks:
    """What the submitter and the worker both know."""

    def __init__(self, url: str) -> None:
        self.fabric = Fabric(url)

        @self.fabric.task()
        async def noop(n: int, text: str = "") -> int:
            return n

        @self.fabric.task()
        async def stamp() -> float:
            return time.time()

        async def add(n: int) -> int:
            return n + 1

        @self.fabric.task()
        async def steps(ctx: Context, n: int) -> int:
            for _ in range(3):
                n = await ctx.step(add, n)
            return n

        self.noop, self.stamp, self.steps = noop, stamp, steps


async def serve(line: Line, number: int, url: str) -> None:
    """A worker process: begins when it is asked, and stops when it is asked."""
    tasks = Tasks(url)
    worker = await tasks.fabric.worker(WorkerOptions(concurrency=CONCURRENCY))
    await line.ready()
    running = asyncio.create_task(worker.run())
    await line.wait()
    worker.stop()
    await running
    await tasks.fabric.close()


@asynccontextmanager
async def staged(url: str, workers: int = 1) -> AsyncIterator[tuple[Tasks, Crew]]:
    tasks = Tasks(url)
    async with tasks.fabric, crew(workers, serve, url) as others:
        yield tasks, others


@scenario(
    "drain",
    [
        least("drain", "worker drains a backlog, one process", "/s", RAW_LIMIT),
        least("drain-2", "worker drains a backlog, two processes", "/s", RAW_LIMIT),
    ],
)
async def drain(load: Load) -> Figures:
    """No-op runs that wait already, worked off by one and by two worker processes. From the first
    ending to the last, so that starting does not count."""
    limit, found = await load.raw_limit(), {}
    for name, workers, url in (("drain", 1, load.url), ("drain-2", 2, load.fresh())):
        async with staged(url, workers) as (tasks, others):
            for start in range(0, load.size.runs, 5_000):
                count = min(5_000, load.size.runs - start)
                await tasks.noop.submit_many([(n, TEXT) for n in range(count)])
            async with counted(url) as cost:
                others.say()
                rate = await drained(tasks.fabric, load.size.runs)
        found[name] = Figure(rate, limit).costing(cost, load.size.runs)
    return found


async def drained(fabric: Fabric, runs: int) -> float:
    """Looks only now and then, because looking takes CPU away from the workers."""
    engine = await fabric.engine()
    while (await engine.views.counts(lane="default")).by_state["completed"] < runs:
        await asyncio.sleep(0.1)
    moments, cursor = list[int](), 0
    while (page := await engine.events.read(after=cursor, family=Family.COMPLETION)).events:
        moments += [event.at for event in page.events]
        cursor = page.cursor
    return runs / (max(1, max(moments) - min(moments)) / 1000)


async def _pickup(tasks: Tasks) -> float:
    """Seconds from before the submit until the handler starts, on an idle queue."""
    began = time.time()
    run = await tasks.stamp.submit()
    found = await run.result(30) - began
    await asyncio.sleep(raw.REST)
    return found


@scenario(
    "pickup",
    [
        most(RAW_PICKUP, "raw pickup: two commits and a notification, p50"),
        most("pickup p50", "pickup on an idle queue, p50", of=RAW_PICKUP, postgres=3),
        most("pickup p99", "pickup on an idle queue, p99", postgres=8),
    ],
)
async def pickup(load: Load) -> Figures:
    """From the submit in one process to the start of the handler in another; on Postgres in turn
    with plain SQL."""
    ours, plain = list[float](), list[float]()
    async with staged(load.url) as (tasks, others), AsyncExitStack() as stack:
        others.say()
        if load.store == "postgres":
            sample = await stack.enter_async_context(raw.picking_up(load.fresh(), b"{}"))
        for _ in range(load.size.samples + WARM_UP):
            ours.append(await _pickup(tasks))
            if load.store == "postgres":
                plain.append(await sample())
    p50, p99 = (percentile(ours[WARM_UP:], part) for part in (0.5, 0.99))
    found = {"pickup p50": Figure(p50), "pickup p99": Figure(p99)}
    if plain:
        found[RAW_PICKUP] = Figure(percentile(plain[WARM_UP:], 0.5))
        found["pickup p50"].reference = found[RAW_PICKUP].value
    return found


@scenario(
    "pooler",
    [most("pickup-pooler p50", "pickup through a transaction pooler, p50", postgres=60)],
    stores=("postgres",),
)
async def pooler(load: Load) -> Figures:
    """The same through a pooler that gives sessions away between transactions, where LISTEN does
    not work."""
    async with (
        pooled(load.url, strict=False, sessions=8) as (_, url),
        staged(url) as (tasks, others),
    ):
        others.say()
        found = [await _pickup(tasks) for _ in range(max(1, load.size.samples // 4) + 1)]
    return {"pickup-pooler p50": Figure(percentile(found[1:], 0.5))}


@scenario(
    "steps",
    [
        least("steps", "runs of three steps, many", "/s", RAW_LIMIT, postgres=4_000),
        most("steps p50", "run of three steps, p50", postgres=6),
    ],
)
async def steps(load: Load) -> Figures:
    """Runs of three durable steps, from the submit to the result: one at a time, and many."""
    limit, alone = await load.raw_limit(), []
    runs = max(20, load.size.runs // 4)
    async with staged(load.url) as (tasks, others):
        others.say()
        for n in range(load.size.samples + 3):
            began = time.perf_counter()
            run: Any = await tasks.steps.submit(n)
            await run.result(30)
            alone.append(time.perf_counter() - began)
        async with counted(load.url) as cost:
            began = time.perf_counter()
            pending = await tasks.steps.submit_many(list(range(runs)))
            await asyncio.gather(*(run.result(120) for run in pending))
            rate = runs / (time.perf_counter() - began)
    return {
        "steps p50": Figure(percentile(alone[3:], 0.5)),
        "steps": Figure(rate, limit).costing(cost, runs),
    }
