"""A worker whose handlers do not end: `python -m tests.worker.apps.stubborn URL TASK...`."""

import asyncio
import os
import sys
import threading
import time
from contextlib import suppress

from flowfabric import Context, Fabric, SyncContext, WorkerOptions
from flowfabric.worker.run import exit, loop

FOR_EVER = 600.0
fabric = Fabric(sys.argv[1])


def begun(ctx: Context | SyncContext) -> None:
    os.write(1, f"begun {ctx.info.id}\n".encode())  # at once and whole


async def stubborn() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(FOR_EVER)


@fabric.task()
async def swallows(ctx: Context) -> None:
    begun(ctx)
    await stubborn()


@fabric.task()
async def swallows_beside(ctx: Context) -> None:
    begun(ctx)
    await ctx.gather(stubborn(), stubborn())


@fabric.task()
def thread(ctx: SyncContext) -> None:
    begun(ctx)
    time.sleep(FOR_EVER)


@fabric.task()
async def pool_thread(ctx: Context) -> None:
    begun(ctx)
    await asyncio.to_thread(time.sleep, FOR_EVER)


@fabric.task()
async def full_pool(ctx: Context) -> None:
    begun(ctx)
    await asyncio.gather(*(asyncio.to_thread(time.sleep, FOR_EVER) for _ in range(99)))


@fabric.task()
async def own_thread(ctx: Context) -> None:
    threading.Thread(target=time.sleep, args=[FOR_EVER]).start()
    begun(ctx)
    await asyncio.sleep(FOR_EVER)


@fabric.task()
async def blocks(ctx: Context) -> None:
    begun(ctx)
    time.sleep(FOR_EVER)  # noqa: ASYNC251 - that is the point


async def main() -> None:
    # Handlers that do not end, so all of these pass; what can be handed back has its usual time.
    loop.STOP_GRACE, exit.CLOSING = 0.5, 1.5
    if "blocks" in sys.argv:
        loop.EXIT_AFTER = 3.0
    async with fabric:
        for name in sys.argv[2:]:
            await fabric.tasks[name].submit()
        await fabric.run_worker(WorkerOptions(drain=0.2))


if __name__ == "__main__":
    asyncio.run(main())
