"""What waits: idle workers, running coroutines, and a very large submission."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from bench.cost import counted, memory
from bench.crew import Line, crew
from bench.scenario import Figure, Figures, Load, most, scenario
from bench.scenarios.flows import working
from bench.scenarios.worker import TEXT, Tasks, staged
from flowfabric import Fabric, WorkerOptions
from tests.kit.proxy import proxied

SETTLE = 2.0


@scenario(
    "idle",
    [
        most("idle statements", "statements of an idle worker process", "/s", postgres=1),
        most("idle cpu", "CPU of 200 idle workers", "% of a core", postgres=2, sqlite=2),
    ],
    once=True,
)
async def idle(load: Load) -> Figures:
    """Workers with nothing to do: statements of one process (counted on the wire), and the CPU of
    two hundred workers."""
    found: Figures = {}
    settle = min(SETTLE, load.size.idle)
    if load.store == "postgres":
        async with proxied(load.url) as (proxy, url), staged(url) as (tasks, others):
            await tasks.fabric.close()  # its engine has statements of its own
            others.say()
            await asyncio.sleep(settle)
            before = proxy.statements
            await asyncio.sleep(load.size.idle)
            found["idle statements"] = Figure((proxy.statements - before) / load.size.idle)
    url = load.fresh()
    async with AsyncExitStack() as stack:
        fabric = await stack.enter_async_context(Tasks(url).fabric)
        for _ in range(load.size.workers):
            await stack.enter_async_context(working(fabric))
        await asyncio.sleep(settle)
        async with counted(url) as cost:
            await asyncio.sleep(load.size.idle)
    found["idle cpu"] = Figure((cost.client + cost.server) / cost.seconds * 100)
    return found


async def hold(line: Line, number: int, url: str, count: int) -> float:
    """Runs `count` coroutines at once; the memory of this process at its peak."""
    fabric, release, started = Fabric(url), asyncio.Event(), asyncio.Semaphore(0)

    @fabric.task()
    async def waits(n: int) -> None:
        started.release()
        await release.wait()

    async with fabric:
        worker = await fabric.worker(WorkerOptions(concurrency=count))
        running = asyncio.create_task(worker.run())
        await line.ready()
        for start in range(0, count, 1_000):
            await waits.submit_many([(n,) for n in range(start, min(count, start + 1_000))])
        for _ in range(count):
            await started.acquire()
        _, found = memory()
        release.set()
        worker.stop()
        await running
    return found


@scenario(
    "coroutines",
    [most("coroutines", "memory of 10,000 running coroutines", "MB", postgres=300, sqlite=300)],
    once=True,
)
async def coroutines(load: Load) -> Figures:
    """The whole worker process, interpreter and libraries included, at its peak."""
    async with crew(1, hold, load.url, load.size.coroutines) as others:
        others.say()
        (found,) = await others.answers()
    return {"coroutines": Figure(found)}


async def submit(line: Line, number: int, url: str, count: int) -> float:
    """The memory that one call of `submit_many` takes above that of its arguments."""
    tasks = Tasks(url)
    async with tasks.fabric:
        await tasks.noop.submit_many([(n, TEXT) for n in range(10)])
        await line.ready()
        arguments: list[Any] = [(n, TEXT) for n in range(count)]
        before, _ = memory()
        await tasks.noop.submit_many(arguments)
        _, most = memory()
        return max(0.0, most - before)


@scenario(
    "submit-many",
    [most("submit-many", "memory of a submit_many of 50,000", "MB", postgres=200, sqlite=200)],
    once=True,
)
async def submit_many(load: Load) -> Figures:
    """Peak of the process above what it held before the call."""
    async with crew(1, submit, load.url, load.size.many) as others:
        others.say()
        (found,) = await others.answers()
    return {"submit-many": Figure(found)}
