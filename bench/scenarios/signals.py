"""Runs that wait: how soon a signal lets the handler continue, alone and with many others."""

import asyncio
import time
from collections import defaultdict
from typing import Any

from msgspec import Struct

from bench.cost import counted
from bench.scenario import RAW_LIMIT, Figure, Figures, Load, least, most, percentile, scenario
from bench.scenarios.flows import working
from flowfabric import Context, Fabric


class Waiting(Struct):
    """One run that waits, and its timestamps."""

    suspended: "asyncio.Future[None]"
    resumed: "asyncio.Future[None]"
    address: str = ""
    token: Any = None
    asked_at: float = 0.0
    running_at: float = 0.0


class Stage:
    """Runs that wait at a callback."""

    def __init__(self, url: str) -> None:
        self.fabric = Fabric(url)
        self.waiting: dict[int, Waiting] = defaultdict(_waiting)
        self._by_run: dict[str, Waiting] = {}

        @self.fabric.task()
        async def waits(ctx: Context, n: int) -> None:
            here = self.waiting[n]
            callback = await ctx.callback("go")
            # Not the callback itself, which would keep the whole call of the handler in memory.
            here.address, here.token = callback.id, callback.token
            self._by_run[callback.id.partition("/")[0]] = here
            await callback.result()
            here.running_at = time.perf_counter()
            here.resumed.set_result(None)

        self.task = waits

    async def note_suspensions(self) -> None:
        """The moment of a suspension is known to the engine alone."""
        engine = await self.fabric.engine()
        suspend = engine.suspensions.suspend

        async def noting(owned: Any, request: Any) -> Any:
            here = self._by_run[str(owned.uuid)]
            here.asked_at = time.perf_counter()
            answer = await suspend(owned, request)
            here.suspended.set_result(None)
            return answer

        engine.suspensions.suspend = noting  # type: ignore[method-assign]

    async def answer(self, here: Waiting) -> None:
        await self.fabric.signal(here.address, payload="go", token=here.token)


def _waiting() -> Waiting:
    loop = asyncio.get_running_loop()
    return Waiting(loop.create_future(), loop.create_future())


@scenario(
    "signals",
    [
        least("signals", "1,000 signals until handlers run", "/s", RAW_LIMIT, postgres=3_000),
        most("signal p50", "suspend → signal → handler runs, p50", postgres=5),
    ],
)
async def signals(load: Load) -> Figures:
    """Runs that wait at a callback; every signal carries a token that is verified."""
    limit = await load.raw_limit()
    stage = Stage(load.url)
    async with stage.fabric, working(stage.fabric):
        await stage.note_suspensions()
        alone = [await _alone(stage, n) for n in range(load.size.samples + 3)]
        async with counted(load.url) as cost:
            rate = await _many(stage, len(alone), load.size.signals)
    return {
        "signals": Figure(rate, limit).costing(cost, load.size.signals),
        "signal p50": Figure(percentile(alone[3:], 0.5)),
    }


async def _alone(stage: Stage, n: int) -> float:
    here = stage.waiting[n]
    await stage.task.submit(n)
    await here.suspended
    await asyncio.gather(stage.answer(here), here.resumed)
    return here.running_at - here.asked_at


async def _many(stage: Stage, first: int, count: int) -> float:
    numbers = range(first, first + count)
    waiting = [stage.waiting[n] for n in numbers]
    await stage.task.submit_many([(n,) for n in numbers])
    await asyncio.gather(*(each.suspended for each in waiting))
    began = time.perf_counter()
    await asyncio.gather(*(stage.answer(each) for each in waiting))
    await asyncio.gather(*(each.resumed for each in waiting))
    return count / (max(each.running_at for each in waiting) - began)
