"""A worker process of the demo: one slot, and a short lease so that a crash is noticed soon."""

import asyncio

from flowfabric.demo.tasks import fabric
from flowfabric.worker.run.exit import when_parent_ends
from flowfabric.worker.run.options import WorkerSettings

LEASE = "2s"


def main(url: str, name: str) -> int:
    fabric.url = url
    asyncio.run(_work(name))
    return 0


async def _work(name: str) -> None:
    options = WorkerSettings(name=name, concurrency=1, ttl=LEASE, drain="5s")
    async with fabric:
        worker = await fabric.worker(options)
        worker.handle_signals()
        when_parent_ends(worker.stop)
        await worker.run()
