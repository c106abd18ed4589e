"""The harness: a Fabric whose runs a test drives, step by step and through time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import ParamSpec, TypeVar

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import to_datetime
from flowfabric.fabric import Fabric
from flowfabric.store.clock import ManualClock
from flowfabric.testing.driver import Driver
from flowfabric.testing.watch import HeldHandler
from flowfabric.worker.api.run import Run
from flowfabric.worker.api.task import Call, Task, check_task

P = ParamSpec("P")
R = TypeVar("R")


class Harness:
    """A Fabric with an in-memory store and a clock that only the test moves.

    Nothing runs in the background: handlers run while the test awaits a method of the harness or
    the `result()` of a run. `testing.harness` and the fixtures of the pytest plugin make one.
    """

    def __init__(self, fabric: Fabric, clock: ManualClock | None = None) -> None:
        self._driver = driver = Driver(fabric, clock)
        self.fabric, self.clock = fabric, driver.clock
        self.lent, self.close = driver.lent, driver.close
        checks = driver.checks
        self.describe, self.state = checks.describe, checks.state
        self.steps, self.waits_for = checks.steps, checks.waits_for
        self.assert_completed, self.assert_failed = checks.assert_completed, checks.assert_failed
        self.assert_steps, self.assert_attempts = checks.assert_steps, checks.assert_attempts

    def now(self) -> datetime:
        """What the clock shows, in UTC."""
        return to_datetime(self.clock.now())

    async def run(self, task: Task[P, R] | Call[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Submits a run of the task, drives it to its end and returns its result; see `result`."""
        wanted = check_task(task)
        asked = wanted.task if isinstance(wanted, Call) else wanted
        if asked._client is not self.fabric._client:  # whose store is a real one
            raise Invalid(
                f"task {asked.name!r} is not of the Fabric in this harness: give that of your "
                "application to testing.harness, or override the fixture `fabric`"
            )
        return await self.result(await task.submit(*args, **kwargs))

    async def result(self, run: Run[R]) -> R:
        """Drives the run to its end and returns its result. Raises RunFailed, RunCancelled,
        RunExpired or RunSkipped when it ended otherwise."""
        return await run.result()

    async def run_until_done(self, run: Run[R]) -> Run[R]:
        """Drives the run to its end, however it ends. The clock jumps over sleeps, delays and
        backoffs. Raises Stuck, with the reason, when the run cannot end."""
        await self._driver.drive_to_end(run.id)
        return run

    async def run_until_idle(self) -> None:
        """Runs everything that can run now. The clock does not move."""
        async with self._driver.drive():
            await self._driver.settle()

    async def run_until(
        self,
        *,
        step: str | None = None,
        unrecorded: str | None = None,
        waits_for: str | None = None,
    ) -> None:
        """Drives until a handler comes to a place, and holds it there: right after a `step` is
        recorded, or, with `unrecorded`, when the function has returned but nothing is recorded yet.
        The next call that drives continues it, unless `crash` comes first. With `waits_for`, drives
        until a run waits for the signal, approval or callback of that name. The clock jumps as in
        `run_until_done`."""
        if (step, unrecorded, waits_for).count(None) != 2:
            raise Invalid("give either a step, an unrecorded step, or what is waited for")
        async with self._driver.drive():
            if waits_for is not None:
                waited = partial(self._any_waits, waits_for)
                await self._driver.settle_through(waited, f"no run waits for {waits_for!r}")
                return
            hold = HeldHandler(step or unrecorded or "", recorded=step is not None)
            self._driver.watch.hold = hold
            await self._driver.settle_through(
                lambda: hold.reached, f"no run comes to step {hold.step!r}"
            )

    def _any_waits(self, name: str) -> bool:
        return any(name in self.waits_for(info.id) for info in self._driver.unended())

    async def advance(self, span: str | float | timedelta) -> None:
        """Moves the clock by `span` and runs everything due on the way, at its time."""
        async with self._driver.drive(release=False):
            await self._driver.settle_until(lambda: False, self._driver.later(span))
            await self._driver.settle()

    async def crash(self) -> None:
        """Drops every running handler, as if the process of its worker were killed: nothing is
        reported, the leases are lost, and recorded steps stay. The next call that drives starts a
        new worker."""
        await self._driver.crash()


@asynccontextmanager
async def harness(fabric: Fabric, *, clock: ManualClock | None = None) -> AsyncIterator[Harness]:
    """Puts a Fabric in a harness for a block: it uses a fresh in-memory store and a manual clock,
    whatever its URL says. Afterwards it is as before.

    Example:
        async with harness(fabric) as b:
            assert await b.run(double, 21) == 42
    """
    made = Harness(fabric, clock)
    with made.lent():
        try:
            await fabric.engine()
            yield made
        finally:
            await made.close()
