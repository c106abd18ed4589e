"""A small application for tests with real processes: `python -m tests.worker.apps.shop OPTIONS`.

What its tasks do is told in a ledger, a file that survives whoever writes it. A task that waits
does so until a file of a given name exists.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from flowfabric import Context, Fabric, SyncContext, Task, WorkerOptions
from tests.worker import handlers


class Shop:
    """The tasks, and the place where they leave their traces."""

    def __init__(self, fabric: Fabric, place: Path) -> None:
        self.fabric = fabric
        self.place = place
        self.tasks: dict[str, Task[Any, Any]] = {}
        for function in (self.steps, self.dies_in_step, self.waits, self.stale, self.job, self.add):
            self.tasks[function.__name__] = fabric.task()(function)
        for plain in (self.blocks_thread, self.blocks_loop):
            self.tasks[plain.__name__] = fabric.task()(plain)
        for in_process in (handlers.square, handlers.crash, handlers.nap):
            self.tasks[in_process.__name__] = fabric.task(process=True)(in_process)

    # -- traces

    def note(self, word: str) -> None:
        file = os.open(self.place / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{word}\n".encode())
        os.close(file)

    def ledger(self) -> list[str]:
        path = self.place / "ledger"
        return path.read_text().splitlines() if path.exists() else []

    def allow(self, name: str) -> None:
        (self.place / name).touch()

    def allowed(self, name: str) -> bool:
        return (self.place / name).exists()

    async def until_allowed(self, name: str) -> None:
        while not self.allowed(name):  # noqa: ASYNC110 - another process allows it
            await asyncio.sleep(0.01)

    # -- tasks

    async def steps(self, ctx: Context) -> str:
        async def one() -> str:
            self.note("one")
            return "1"

        async def two() -> str:
            self.note("two begins")
            await self.until_allowed("go")
            self.note("two ends")
            return "2"

        return await ctx.step(one) + await ctx.step(two)

    async def dies_in_step(self, ctx: Context) -> str:
        def deadly() -> str:
            self.note("worked")
            if not self.allowed("live"):
                os.kill(os.getpid(), signal.SIGKILL)
            return "survived"

        return await ctx.step(deadly)

    async def waits(self, name: str) -> str:
        self.note(f"waits {name}")
        await self.until_allowed(name)
        return f"waited for {name}"

    async def stale(self, ctx: Context) -> int:
        """The first attempt waits; whatever it does later must not count."""
        self.note(f"begun {ctx.info.attempt}")
        if ctx.info.first:
            try:
                await self.until_allowed("go")
            finally:
                self.note("the first goes on")
        self.note(f"step {ctx.info.attempt}")
        await ctx.step(os.getpid)
        return os.getpid()

    async def job(self, number: int, millis: int = 0) -> int:
        if millis:
            await asyncio.sleep(millis / 1000)
        self.note(f"job {number}")
        return number

    async def add(self, a: int, b: int = 0) -> int:
        return a + b

    async def blocks_loop(self, seconds: float) -> str:
        time.sleep(seconds)  # noqa: ASYNC251 - that is the point
        return "at last"

    def blocks_thread(self, ctx: SyncContext) -> None:
        self.note("thread begins")
        while True:
            time.sleep(1)


async def work(options: dict[str, Any]) -> None:
    async with Fabric() as fabric:
        shop = Shop(fabric, Path(os.environ["SHOP"]))
        worker = await fabric.worker(WorkerOptions(**options))
        worker.handle_signals()
        shop.note(f"ready {os.getpid()}")
        await worker.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(work(msgspec.json.decode(sys.argv[1])))
