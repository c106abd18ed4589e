"""Flows: chains as a caller sees them, and how soon a flow is cancelled."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.cost import counted
from bench.scenario import Figure, Figures, Load, least, most, percentile, scenario
from flowfabric import Fabric, Task, WorkerOptions
from flowfabric.worker.api.flow import FlowBuilder

LENGTH = 10
DECLARERS = 16
CONCURRENCY = 100


class Flows:
    """The one task of every node."""

    def __init__(self, url: str) -> None:
        self.fabric = Fabric(url)

        @self.fabric.task()
        async def noop(n: int) -> int:
            return n

        self._noop: Task[..., int] = noop

    def chain(self, length: int) -> FlowBuilder:
        flow = self.fabric.flow("chain")
        last = flow.add(self._noop, 0)
        for n in range(1, length):
            last = flow.add(self._noop, n, after=last, name=str(n))
        return flow

    def star(self, members: int) -> FlowBuilder:
        flow = self.fabric.flow("star")
        first = flow.add(self._noop, 0, name="first")
        for n in range(1, members):
            flow.add(self._noop, n, after=first, name=str(n))
        return flow


@asynccontextmanager
async def working(fabric: Fabric, concurrency: int = CONCURRENCY) -> AsyncIterator[None]:
    """A worker in this process."""
    worker = await fabric.worker(WorkerOptions(concurrency=concurrency))
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


@scenario(
    "chain",
    [
        least("chain", "chains of ten, 16 callers", "flows/s", "raw limit by node", postgres=250),
        most("chain p99", "chains of ten, p99", postgres=250),
        most("chain cpu", "chains of ten, CPU per node", postgres=0.35),
    ],
)
async def chain(load: Load) -> Figures:
    """Sixteen callers each declare a chain of ten and wait for its result, repeatedly."""
    limit = await load.raw_limit()
    flows = Flows(load.url)
    async with flows.fabric, working(flows.fabric):
        await _chains(flows, load.size.seconds / 5)
        async with counted(load.url) as cost:
            began = time.perf_counter()
            found = await _chains(flows, load.size.seconds)
            rate = len(found) / (time.perf_counter() - began)
    nodes = len(found) * LENGTH
    return {
        "chain": Figure(rate, limit / LENGTH).costing(cost, nodes),
        "chain p99": Figure(percentile(found, 0.99)),
        "chain cpu": Figure(cost.cpu_us(nodes) / 1000),
    }


async def _chains(flows: Flows, seconds: float) -> list[float]:
    """Seconds of every flow, until the time is up."""
    found: list[float] = []
    stop_at = time.perf_counter() + seconds

    async def declare() -> None:
        while (start := time.perf_counter()) < stop_at:
            flow = flows.chain(LENGTH)
            await flow.declare()
            await flow.result()
            found.append(time.perf_counter() - start)

    await asyncio.gather(*(declare() for _ in range(DECLARERS)))
    return found


@scenario(
    "cancel",
    [
        most("cancel-100 p99", "cancel a flow of 100 members, p99", postgres=25),
        most("cancel-1000 p99", "cancel a flow of 1,000 members, p99", postgres=80),
    ],
)
async def cancel(load: Load) -> Figures:
    """Flows whose members all wait, with no worker: the time until every member has ended."""
    flows, found = Flows(load.url), {}
    async with flows.fabric as fabric:
        engine = await fabric.engine()
        for members, (size, times) in zip((100, 1_000), load.size.members, strict=True):
            seconds = []
            for _ in range(times + 1):
                flow = flows.star(size)
                await flow.declare()
                began = time.perf_counter()
                answer = await flow.cancel()
                seconds.append(time.perf_counter() - began)
                assert answer.remaining == ()
                await engine.flow_views.wait(flow.id)  # edges and counts, in the background
            found[f"cancel-{members} p99"] = Figure(percentile(seconds[1:], 0.99))
    return found
