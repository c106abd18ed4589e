"""A worker process of the demo: one slot, and a short lease so that a crash is noticed soon."""

import asyncio
import sys

from flowfabric.demo.tasks import fabric
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
        # The demo holds the other end: when it is gone, however it ended, so is the worker.
        loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()

        def parent_gone() -> None:
            loop.remove_reader(stdin)
            worker.stop()

        loop.add_reader(stdin, parent_gone)
        await worker.run()
