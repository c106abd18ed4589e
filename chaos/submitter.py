"""Submits runs like an application, and writes acknowledged runs to the ledger."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from chaos.ledger import Ledger
from flowfabric import Fabric, Run
from flowfabric.core.base.errors import FlowFabricError

T = TypeVar("T")

KINDS = ("plain", "steps", "sleeper", "flaky", "listener", "limited", "mapper")
POISON_EVERY = 400


class Submitter:
    """Each submission has a key and is repeated until it is acknowledged."""

    def __init__(self, fabric: Fabric, ledger: Ledger, dice: random.Random, rate: float) -> None:
        self._fabric = fabric
        self._ledger = ledger
        self._dice = dice
        self._pause = 1 / rate
        self._sending: set[asyncio.Task[None]] = set()
        self.stopped = asyncio.Event()

    async def run(self) -> None:
        for number in itertools.count(1):
            if self.stopped.is_set():
                break
            kind = self._dice.choice(KINDS) if number % POISON_EVERY else "poison"
            task = asyncio.create_task(self._one(kind, number))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
            await asyncio.sleep(self._pause)
        await asyncio.gather(*self._sending)

    async def _one(self, kind: str, number: int) -> None:
        call = self._fabric.get_task(kind).with_options(key=f"{kind}-{number}")
        run: Run[Any] = await insist(lambda: call.submit(number))
        self._ledger.write("ack", run.id.tagged, kind)
        if kind == "listener":
            await asyncio.sleep(self._dice.uniform(0, 3))
            await insist(lambda: self._fabric.signal(run, "go", number, key=f"go-{number}"))


async def insist(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeats a call until the store answers. Any error but an outage is a finding."""
    while True:
        try:
            return await ask()
        except FlowFabricError as error:
            if not error.retryable:
                raise
            await asyncio.sleep(0.2)
