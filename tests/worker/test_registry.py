"""A worker is in the registry while it works, and signs off when it stops."""

import asyncio

from flowfabric import Fabric, Fixed, Retry, WorkerOptions


async def test_a_worker_registers_and_signs_off() -> None:
    fabric = Fabric("sqlite://:memory:")
    seen: list[tuple[str, tuple[str, ...], int]] = []

    @fabric.task(retries=100, backoff=Fixed(delay=1))
    async def look() -> None:
        found = await (await fabric.engine()).workers.list()
        if not found:
            raise Retry("not registered yet", after=0.001)
        seen.extend((p.worker, p.kinds, p.concurrency) for p in found)

    async with fabric:
        worker = await fabric.worker(WorkerOptions(name="ada", concurrency=3))
        working = asyncio.create_task(worker.run())
        run = await look.submit()
        await run.result(10)
        worker.stop()
        await working
        assert seen == [("ada", ("look",), 3)]
        assert await (await fabric.engine()).workers.list() == []
