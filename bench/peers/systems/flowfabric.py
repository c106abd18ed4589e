"""FlowFabric, as its guide says: `flowfabric worker`, by default with a hundred at once."""

import sys

from bench.peers.adapter import TEXT, Adapter, Feed, setting, url
from bench.peers.marks import mark
from flowfabric import Context, Fabric

fabric = Fabric(url())


@fabric.task()
async def noop(n: int, text: str) -> int:
    mark(n)
    return n


async def add(n: int) -> int:
    return n + 1


@fabric.task()
async def three_steps(ctx: Context, n: int) -> int:
    found = n
    for _ in range(3):
        found = await ctx.step(add, found)
    mark(n)
    return found


class System(Adapter):
    bulk = True

    async def prepare(self) -> None:
        await fabric.engine()

    async def close(self) -> None:
        await fabric.close()

    async def submit_one(self, n: int) -> None:
        await noop.submit(n, TEXT)

    async def submit_bulk(self, numbers: list[int]) -> None:
        await noop.submit_many([(n, TEXT) for n in numbers])

    def workers(self, processes: int) -> list[list[str]]:
        command = [sys.executable, "-m", "flowfabric.cli", "worker", f"{__name__}:fabric"]
        options = ["--concurrency", str(setting("CONCURRENCY", 100)), "--log-level", "warning"]
        return [[*command, *options]] * processes

    async def left(self) -> int:
        counts = (await (await fabric.engine()).views.counts(lane="default")).by_state
        return sum(count for state, count in counts.items() if state != "completed")

    async def submit_steps(self, feed: Feed) -> None:
        for chunk in feed.chunks():
            await three_steps.submit_many(chunk)

    async def run_steps(self, n: int) -> None:
        await (await three_steps.submit(n)).result(30)
