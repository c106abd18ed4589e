"""Flows: how many chains a second, how long a wide fan takes, how soon a flow is cancelled.

    python -m bench.flow [--store sqlite|postgres] [--seconds 4] [--rounds 3] [--cancels 100]

One process declares the flows and works. "Chains": sixteen callers each declare a chain of ten
tasks and wait for its result, repeatedly. "Fan": one task, a thousand after it, and one after all
of those. "Cancel": flows whose members all wait, with no worker; the time until every member has
ended. The limit loop is that of `bench.lifecycle`.
"""

import argparse
import asyncio
import statistics
import time

from bench import limit, stores
from bench.lifecycle import Figures, closed_loop
from flowfabric import Fabric, Task, WorkerOptions
from flowfabric.worker.api.flow import FlowBuilder

LENGTH = 10
DECLARERS = 16
WIDTH = 1000
CONCURRENCY = 100


class Stage:
    """A worker in this process, and the one task of every node."""

    def __init__(self, url: str, *, works: bool = True) -> None:
        self.fabric = Fabric(url)
        self._works = works

        @self.fabric.task(lane="works" if works else "nobody-works")
        async def noop(n: int) -> int:
            return n

        self.noop: Task[..., int] = noop

    async def __aenter__(self) -> "Stage":
        engine = await self.fabric.engine()
        if self._works:
            options = WorkerOptions(concurrency=CONCURRENCY, lanes=("works",))
            self._worker = await self.fabric.worker(options)
            self._running = asyncio.create_task(self._worker.run())
        self.engine = engine
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._works:
            self._worker.stop()
            await self._running
        await self.fabric.close()

    def chain(self, length: int) -> FlowBuilder:
        flow = self.fabric.flow("chain")
        last = flow.add(self.noop, 0)
        for n in range(1, length):
            last = flow.add(self.noop, n, after=last, name=str(n))
        return flow

    def fan(self, width: int) -> FlowBuilder:
        flow = self.fabric.flow("fan")
        first = flow.add(self.noop, 0, name="first")
        wide = [flow.add(self.noop, n, after=first, name=str(n)) for n in range(width)]
        flow.add(self.noop, 1, after=wide, name="last")
        return flow

    def star(self, members: int) -> FlowBuilder:
        flow = self.fabric.flow("star")
        first = flow.add(self.noop, 0, name="first")
        for n in range(1, members):
            flow.add(self.noop, n, after=first, name=str(n))
        return flow


async def chains(stage: Stage, seconds: float) -> Figures:
    """Flows until the time is up, and how long each took."""
    latencies: list[float] = []
    began = time.perf_counter()

    async def declare() -> None:
        while (start := time.perf_counter()) < began + seconds:
            flow = stage.chain(LENGTH)
            await flow.declare()
            await flow.result()
            latencies.append(time.perf_counter() - start)

    await asyncio.gather(*(declare() for _ in range(DECLARERS)))
    return Figures(len(latencies), time.perf_counter() - began, latencies)


async def fan(stage: Stage) -> tuple[float, float]:
    """Seconds until the flow is declared, and until its last node has run."""
    flow = stage.fan(WIDTH)
    began = time.perf_counter()
    await flow.declare()
    declared = time.perf_counter() - began
    await flow.result()
    return declared, time.perf_counter() - began


async def cancels(stage: Stage, members: int, times: int) -> Figures:
    """How long it takes to cancel a flow of `members` members that never started."""
    latencies: list[float] = []
    for _ in range(times):
        flow = stage.star(members)
        await flow.declare()
        began = time.perf_counter()
        answer = await flow.cancel()
        latencies.append(time.perf_counter() - began)
        assert answer.remaining == ()
        await stage.engine.flow_views.wait(flow.id)  # edges and counts, in the background
    return Figures(times, sum(latencies), latencies)


def line(what: str, figure: str, goal: str = "") -> None:
    print(f"| {what} | {figure} | {goal} |", flush=True)


def milliseconds(figures: Figures) -> str:
    return f"{figures.percentile(0.5):.0f} / {figures.percentile(0.99):.0f} ms"


async def measure(url: str, options: argparse.Namespace, ceiling: float) -> None:
    async with Stage(url) as stage:
        await chains(stage, 1.0)
        found = await chains(stage, options.seconds)
        share = found.rate * LENGTH / ceiling
        what = f"chains of {LENGTH}, {DECLARERS} at a time"
        line(what, f"{found.rate:,.0f} flows/s ({share:.0%} of the limit)", "Postgres ≥ 150/s")
        line("of those each, p50 / p99", milliseconds(found), "Postgres p99 ≤ 500 ms")
        fans = [await fan(stage) for _ in range(options.rounds)]
        declared, total = (statistics.median(part) for part in zip(*fans, strict=True))
        figure = f"{total:.2f} s, of that {declared:.2f} s to declare it"
        line(f"{WIDTH:,} wide, out and in", figure, "≤ 3 s")
    async with Stage(url, works=False) as stage:
        await cancels(stage, 100, 5)
        for members, times, goal in ((100, options.cancels, 50), (1000, options.cancels // 3, 150)):
            found = await cancels(stage, members, times)
            line(
                f"cancel {members:,} that wait, p50 / p99",
                milliseconds(found),
                f"Postgres p99 ≤ {goal} ms",
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgres"])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cancels", type=int, default=100)
    options = parser.parse_args()
    stores.use_uvloop()
    for store in [options.store] if options.store else ["sqlite", "postgres"]:
        with stores.fresh(store) as url:
            ceiling = asyncio.run(limit.run(url, 2.0))
            lifecycle = asyncio.run(closed_loop(url, CONCURRENCY, 2.0, "lifecycle")).rate
            print(f"\n{store}: limit loop {ceiling:,.0f}/s, lifecycle {lifecycle:,.0f}/s")
            print("|  |  | goal |\n|---|---|---|")
            asyncio.run(measure(url, options, ceiling))


if __name__ == "__main__":
    main()
