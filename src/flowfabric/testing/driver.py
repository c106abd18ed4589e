"""How a harness drives runs: everything that can run now, then on to the next due moment."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from itertools import count
from uuid import UUID

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis, parse_span
from flowfabric.core.execution.lease import MAX_TTL
from flowfabric.core.execution.status import ENDED, Blocking, PublicState
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.described import Info
from flowfabric.fabric import Fabric
from flowfabric.store.clock import ManualClock
from flowfabric.store.queries import Query
from flowfabric.store.sqlite.store import open_sqlite
from flowfabric.testing.checks import Checks, at_once
from flowfabric.testing.manual_worker import ManualWorker
from flowfabric.testing.stuck import Hanging, Stuck
from flowfabric.testing.watch import (
    HandlerWatch,
    WatchedAttempts,
    WatchedFlowViews,
    WatchedStreams,
    WatchedViews,
)
from flowfabric.worker.run.hooks import WorkerHooks

JUMPS = 1000
"""How often the clock is moved while a test waits for one thing."""

HANGS_AFTER = 10.0
"""Seconds of real time after which a busy handler counts as hanging."""

LOOK_EVERY = 0.1
"""Seconds of real time between two looks at the leases, as a heartbeat has them."""


class Driver:
    """Runs handlers and moves the clock, as far as a test wants."""

    def __init__(self, fabric: Fabric, clock: ManualClock | None = None) -> None:
        self.fabric = fabric
        self.clock = clock or ManualClock()
        self._engine: Engine | None = None
        self._worker: ManualWorker | None = None
        self._hooks: WorkerHooks | None = None
        self.watch = HandlerWatch()
        self.checks = Checks(self.open_engine)
        self._driving = asyncio.Lock()

    # -- driving

    @asynccontextmanager
    async def drive(self, *, release: bool = True) -> AsyncIterator[None]:
        """One call drives at a time. A held handler continues."""
        async with self._driving:
            engine = await self.fabric.engine()
            if release:
                self.release()
            if self._hooks is None:
                self._hooks = WorkerHooks(self.fabric._hooks)
            await self._hooks.lifespan.start()  # once, however often the worker crashes
            if self._worker is None:
                await self.fabric._client.declarations.make(engine)
                self._worker = ManualWorker(self.open_engine(), self.fabric.tasks, self._hooks)
            yield

    async def drive_to_end(self, id: ExecutionId, timeout: float | None = None) -> None:
        """The timeout is measured by the clock of the harness."""
        async with self.drive():
            ended = partial(_is_reported, self, partial(self._has_ended, id))
            if timeout is None:
                await self.settle_through(ended, "the run does not end", id)
            elif not await self.settle_until(ended, self.later(timeout)):
                raise TimeoutError(self._report(f"the run does not end within {timeout:g} s", id))

    async def drive_flow(self, id: UUID, timeout: float | None = None) -> None:
        async with self.drive():
            over = partial(_is_reported, self, partial(self._is_over, id))
            if timeout is None:
                await self.settle_through(over, "the flow does not end")
            elif not await self.settle_until(over, self.later(timeout)):
                raise TimeoutError(self._report(f"the flow does not end within {timeout:g} s"))

    async def settle_through(
        self, reached: Callable[[], bool], why: str, id: ExecutionId | None = None
    ) -> None:
        """Drives, and moves the clock from one due moment to the next, until `reached`."""
        if not await self.settle_until(reached, None):
            raise Stuck(self._report(why, id))

    async def settle_until(self, reached: Callable[[], bool], end: Millis | None) -> bool:
        """Whether `reached` became true, by `end` or while there was a due moment left."""
        for jumps in count():
            try:
                await self.settle(reached)
            except Hanging:
                if not _has_limit(self._working()):
                    raise  # no moment will come that ends it
            if reached():
                return True
            due = await self._next_due()
            if due is None or (end is not None and due > end):
                break
            if end is None and jumps == JUMPS:
                raise Stuck(self._report(f"the clock was moved {JUMPS} times without an end"))
            await self._move_clock(due)
        await self._move_clock(end)
        return False

    async def settle(self, reached: Callable[[], bool] = lambda: False) -> None:
        """Runs everything that can run now, until `reached` or until nothing can run."""
        engine, worker = self.open_engine(), self._working()
        while not reached():
            self.watch.moved.clear()
            before = set(worker.active)
            await engine.sweep.once()
            await engine._dispatcher.drain()
            await engine.inbox.admit()
            await engine._limits.drain()
            await worker.renew()
            if await worker.claim():
                continue
            if before != set(worker.active):
                continue  # one has ended since: what it owes its flow may let others run
            if self._all_wait():
                return
            await self._movement()

    def _all_wait(self) -> bool:
        """Whether every handler is held or waits for a run that has not ended."""
        watch = self.watch
        return all(
            key in watch.held
            or ((awaited := watch.awaited.get(key)) and not any(map(self._has_ended, awaited)))
            for key in self._working().active
        )

    async def _movement(self) -> None:
        """Waits until something happens. Handlers may do real work, but not for ever."""
        worker, store = self._working(), self.open_engine().store
        pause = min(LOOK_EVERY, HANGS_AFTER)
        jobs = {active.job for active in worker.active.values() if active.job is not None}
        signs = {
            asyncio.ensure_future(self.watch.moved.wait()),
            asyncio.ensure_future(store.hints.wait(2 * HANGS_AFTER)),
        }
        try:
            for _ in range(max(1, int(HANGS_AFTER / pause))):
                done, _ = await asyncio.wait(
                    {*jobs, *signs}, timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    return
                await worker.renew()
        finally:
            for sign in signs:
                sign.cancel()
        raise Hanging(self._report(f"for {HANGS_AFTER:.0f} s nothing happens"))

    async def crash(self) -> None:
        """Drops the worker with all its handlers; their leases are lost."""
        worker, self._worker = self._worker, None
        if worker is None or not worker.active:
            raise Stuck("nothing runs that could crash: use run_until to stop in the middle")
        dropping = asyncio.ensure_future(worker.crash())
        await asyncio.sleep(0)
        self.release(crashed=True)
        for claim in await dropping:
            await self.open_engine().claims.revoke(claim.id, reason="the worker crashed")
        worker.let_go()

    # -- time

    async def _next_due(self) -> Millis | None:
        """The next moment at which something becomes due."""
        engine = self.open_engine()
        await self._working().renew(MAX_TTL)  # leases of what runs are no such moments
        now = engine.now()
        moments = [
            await engine.store.next_due(now),
            await engine.schedules.next_at(),
            engine._limits.opens_at,
        ]
        if self._any_lacks_budget():
            moments.append(await engine._limits.resets_at())
        if self._working().active:
            moments.append(Millis(now + MAX_TTL - 1))  # renewed in time
        return min((moment for moment in moments if moment and moment > now), default=None)

    def _any_lacks_budget(self) -> bool:
        """Whether a run waits for a budget: only then is its reset worth a jump."""
        return any(
            self.checks.describe(info.id).blocking is Blocking.BUDGET
            for info in self.unended()
            if info.state is PublicState.RATE_LIMITED
        )

    async def _move_clock(self, to: Millis | None) -> None:
        if to is not None:
            await self._working().renew(MAX_TTL)
            self.clock.advance(max(0, to - self.clock.now()))

    def later(self, span: str | float | timedelta) -> Millis:
        return Millis(self.clock.now() + parse_span(span, "span"))

    def _has_ended(self, id: ExecutionId) -> bool:
        return self.checks.describe(id).state in ENDED

    def _is_over(self, id: UUID) -> bool:
        """Whether a flow has ended, or is not there to be waited for."""
        flow = at_once(self.open_engine().flow_views.get(id))
        return flow is None or flow.ended_at is not None

    # -- life

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lends the Fabric the store and the clock of this harness for a block."""
        with self.fabric._lend(self._open):
            try:
                yield
            finally:
                self._abandon()

    async def close(self) -> None:
        """Stops what still runs and drops the store."""
        self.release()
        if self._worker is not None:
            await self._worker.close()
        if self._hooks is not None:
            await self._hooks.lifespan.stop()
        if self._engine is not None:
            await self._engine.close()

    async def _open(self) -> Engine:
        if self._engine is not None:
            raise Invalid("a harness belongs to the event loop it was first used in")
        store = await open_sqlite(":memory:", clock=self.clock, inline=True)
        jitter = random.Random(0)  # noqa: S311 - the same jitter in every run of a test
        engine = await Engine.open(store, options=self.fabric._options, jitter=jitter)
        engine.attempts = WatchedAttempts(engine, self.watch)
        engine.streams = WatchedStreams(engine._context, engine.attempts, self.drive_to_end)
        engine.views = WatchedViews(engine._context, self.watch, self.drive_to_end)
        engine.flow_views = WatchedFlowViews(engine._context, engine._resolver, self.drive_flow)
        self._engine = engine
        return engine

    def _abandon(self) -> None:
        """Makes what is left harmless where no event loop is left to close it in."""
        if self._worker is not None:
            self._worker.forsake()
            self._worker.let_go()
        if self._engine is not None:
            at_once(self._engine.store.close())

    def open_engine(self) -> Engine:
        if self._engine is None:
            raise Invalid("nothing was submitted in this harness yet")
        return self._engine

    def _working(self) -> ManualWorker:
        if self._worker is None:
            raise Stuck("the worker crashed while it was driven")
        return self._worker

    def release(self, *, crashed: bool = False) -> None:
        hold, self.watch.hold = self.watch.hold, None
        if hold is not None:
            self.watch.held.clear()
            hold.release(crashed=crashed)

    def _report(self, why: str, id: ExecutionId | None = None) -> str:
        """What the test waits for, and why the run, or the first few that have not ended, does not
        continue."""
        unended = [info.id for info in self.unended()]
        chosen = [id] if id in unended else unended[:5]
        tasks = frozenset(self.fabric.tasks)
        lines = [self.checks.summary(run, tasks) for run in chosen] or ["every run has ended"]
        return "\n  ".join([f"{why}:", *lines])

    def unended(self) -> tuple[Info, ...]:
        states = tuple(state for state in PublicState if state not in ENDED)
        return at_once(self.checks.views.list(Query(states=states))).items


def _is_reported(driver: Driver, ended: Callable[[], bool]) -> bool:
    """Whether it has ended, and the hooks that hear of it have returned."""
    return ended() and not driver._working().reporting


def _has_limit(worker: ManualWorker) -> bool:
    """Whether a handler that hangs is given up when its time is over."""
    return any(
        active.claim.lease.times_out_at is not None
        or active.claim.snapshot.deadline_at is not None
        or active.notice is not None
        for active in worker.active.values()
    )
