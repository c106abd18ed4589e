"""No-op tasks end to end through the public API.

    python -m bench.worker [--store sqlite|postgres] [--runs 20000]

Measures, with one worker process and durable settings: submit_many → worker → result, both at once;
draining a backlog; the time from a submit to the start of the handler on an idle queue; a run of
three durable steps, one at a time and a hundred at once. Submitter and worker are two processes, as
in production.
"""

import argparse
import asyncio
import multiprocessing
import os
import signal
import statistics
import time
from typing import Any

from bench import limit, stores
from flowfabric import Context, Fabric, WorkerOptions
from flowfabric.core.execution.event import Family

CONCURRENCY = 100


def tasks(url: str) -> tuple[Fabric, dict[str, Any]]:
    fabric = Fabric(url)

    @fabric.task()
    async def noop(n: int, text: str = "") -> int:
        return n

    @fabric.task()
    async def stamp() -> float:
        return time.time()

    def add(n: int) -> int:
        return n + 1

    async def add_async(n: int) -> int:
        return add(n)

    @fabric.task()
    async def steps(ctx: Context, n: int) -> int:
        for _ in range(3):
            n = await ctx.step(add_async, n)
        return n

    return fabric, {"noop": noop, "stamp": stamp, "steps": steps}


def _worker(url: str, ready: Any) -> None:
    stores.use_uvloop()

    async def main() -> None:
        fabric, _ = tasks(url)
        worker = await fabric.worker(WorkerOptions(concurrency=CONCURRENCY))
        worker.handle_signals()
        ready.set()
        await worker.run()
        await fabric.close()

    asyncio.run(main())


class WorkerProcess:
    def __init__(self, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._ready = context.Event()
        self._process = context.Process(target=_worker, args=(url, self._ready))

    def __enter__(self) -> "WorkerProcess":
        self._process.start()
        self._ready.wait()
        return self

    def __exit__(self, *exc: object) -> None:
        os.kill(self._process.pid or 0, signal.SIGTERM)
        self._process.join()


def show(what: str, rate: float, unit: str = "/s") -> None:
    print(f"| {what} | {rate:,.1f} {unit} |" if rate < 100 else f"| {what} | {rate:,.0f} {unit} |")


async def together(noop: Any, runs: int) -> float:
    """Submits while the worker runs, and awaits the results."""
    began = time.perf_counter()
    pending: list[Any] = []
    for start in range(0, runs, 1000):
        pending += await noop.submit_many([(n, "x" * 400) for n in range(start, start + 1000)])
    await asyncio.gather(*(run.result(60) for run in pending))
    return runs / (time.perf_counter() - began)


async def pickup(stamp: Any, samples: int = 150) -> list[float]:
    found = []
    for _ in range(samples):
        began = time.time()
        run = await stamp.submit()
        found.append((await run.result(10) - began) * 1000)
        await asyncio.sleep(0.02)
    return sorted(found)


async def one_at_a_time(steps: Any, samples: int = 150) -> list[float]:
    found = []
    for n in range(samples):
        began = time.perf_counter()
        run = await steps.submit(n)
        await run.result(10)
        found.append((time.perf_counter() - began) * 1000)
    return sorted(found)


async def many_steps(steps: Any, runs: int) -> float:
    began = time.perf_counter()
    pending = await steps.submit_many(list(range(runs)))
    await asyncio.gather(*(run.result(120) for run in pending))
    return runs / (time.perf_counter() - began)


async def backlog(url: str, runs: int) -> None:
    fabric, made = tasks(url)
    async with fabric:
        for start in range(0, runs, 5000):
            await made["noop"].submit_many([(n, "x" * 400) for n in range(start, start + 5000)])


async def drained(url: str, runs: int) -> float:
    """From the first ending to the last, so that starting the process does not count. Looks only
    now and then, because polling would take the worker's core away."""
    fabric, _ = tasks(url)
    async with fabric:
        engine = await fabric.engine()
        while (await engine.views.counts(lane="default")).by_state["completed"] < runs:
            await asyncio.sleep(0.25)
        moments, cursor = list[int](), 0
        while (page := await engine.events.read(after=cursor, family=Family.COMPLETION)).events:
            moments += [event.at for event in page.events if event.lane == "default"]
            cursor = page.cursor
    return runs / ((max(moments) - min(moments)) / 1000)


async def measure(url: str, runs: int) -> None:
    fabric, made = tasks(url)
    async with fabric:
        show("submit_many → worker → result", await together(made["noop"], runs))
        times = await pickup(made["stamp"])
        show("pickup p50", statistics.median(times), "ms")
        show("pickup p99", times[int(len(times) * 0.99)], "ms")
        times = await one_at_a_time(made["steps"])
        show("three steps, one at a time, p50", statistics.median(times), "ms")
        show("three steps, many at once", await many_steps(made["steps"], max(2000, runs // 5)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgres"])
    parser.add_argument("--runs", type=int, default=20_000)
    options = parser.parse_args()
    stores.use_uvloop()
    for store in [options.store] if options.store else ["sqlite", "postgres"]:
        with stores.fresh(store) as url:
            ceiling = asyncio.run(limit.run(url, 2.0))
            print(f"\n{store} (limit loop {ceiling:,.0f} executions/s)\n|  |  |\n|---|---|")
            asyncio.run(backlog(url, options.runs))
            with WorkerProcess(url):
                done = asyncio.run(drained(url, options.runs))
                show(f"draining a backlog of {options.runs:,}", done)
                asyncio.run(measure(url, options.runs))


if __name__ == "__main__":
    main()
