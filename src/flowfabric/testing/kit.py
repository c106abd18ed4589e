"""The bench: one Fabric whose runs are driven by a test, step by step and through time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import ParamSpec, TypeVar

from flowfabric.core.base.errors import Invalid
from flowfabric.fabric import Fabric
from flowfabric.store.clock import ManualClock
from flowfabric.testing.driver import Driver
from flowfabric.testing.stuck import Stuck
from flowfabric.testing.watch import HeldHandler
from flowfabric.worker.api.run import Run
from flowfabric.worker.api.task import Call, Task

P = ParamSpec("P")
R = TypeVar("R")


class Bench(Driver):
    """A Fabric on a store in memory and on a clock that stands still until it is moved.

    Nothing runs by itself: handlers run while the test waits for one of the methods below, or for
    the `result()` of a run. Made by `testing.bench` and by the fixtures of the pytest plugin.
    """

    # -- runs

    async def run(self, task: Task[P, R] | Call[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What a run of the task with these arguments returns. Raises what `result` raises."""
        return await self.result(await task.submit(*args, **kwargs))

    async def result(self, run: Run[R]) -> R:
        """What the run returned, once it was driven to its end; RunFailed and its kin otherwise."""
        return await run.result()

    async def run_until_done(self, run: Run[R]) -> Run[R]:
        """The run has ended, however it did. The clock jumps over sleeps, delays and backoffs;
        Stuck says where the run stands when that does not help."""
        await self._drive_to_end(run.id)
        return run

    async def run_until_idle(self) -> None:
        """Whatever can run at this moment has run. The clock stands still."""
        async with self._drive():
            await self._settle()

    async def run_until(
        self,
        *,
        step: str | None = None,
        unrecorded: str | None = None,
        waits_for: str | None = None,
    ) -> None:
        """A handler is held right after a step was recorded, or, with `unrecorded`, when its
        function has returned and nothing is recorded yet. It goes on with the next call that
        drives, unless `crash` comes first. With `waits_for` some run waits for the signal,
        approval or callback of that name. The clock jumps as in `run_until_done`."""
        if (step, unrecorded, waits_for).count(None) != 2:
            raise Invalid("give either a step, an unrecorded step, or what is waited for")
        async with self._drive():
            if waits_for is not None:
                waited = partial(self._somebody_waits, waits_for)
                await self._settle_through(waited, f"no run waits for {waits_for!r}")
                return
            hold = HeldHandler(step or unrecorded or "", recorded=step is not None)
            self._watch.hold = hold
            await self._settle_through(lambda: hold.reached, f"no run comes to step {hold.step!r}")

    def _somebody_waits(self, name: str) -> bool:
        return any(name in self.waits_for(info.id) for info in self._unended())

    async def advance(self, span: str | float | timedelta) -> None:
        """The clock is `span` later, and everything due on the way has run at its time."""
        async with self._drive(release=False):
            await self._settle_until(lambda: False, self._later(span))
            await self._settle()

    async def crash(self) -> None:
        """Whatever runs is gone, as if its process had been killed: nothing is reported, leases
        are lost, and what was recorded stays. The next call that drives is a new worker."""
        hand, self._hand = self._hand, None
        if hand is None or not hand.active:
            raise Stuck("nothing runs that could crash: use run_until to stop in the middle")
        dropping = asyncio.ensure_future(hand.crash())
        await asyncio.sleep(0)
        self._release(crashed=True)
        for claim in await dropping:
            await self._open_engine().claims.revoke(claim.id, reason="the worker crashed")
        hand.let_go()


@asynccontextmanager
async def bench(fabric: Fabric, *, clock: ManualClock | None = None) -> AsyncIterator[Bench]:
    """Inside the block the Fabric works on a fresh store in memory and on a manual clock,
    whatever its URL says; afterwards it is as it was.

    Example:
        async with bench(fabric) as b:
            assert await b.run(double, 21) == 42
    """
    made = Bench(fabric, clock)
    with made.lent():
        try:
            await fabric.engine()
            yield made
        finally:
            await made.close()
