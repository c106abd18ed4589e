"""How a bench has runs move: whatever can run now, and from one due moment to the next."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from itertools import count
from uuid import UUID

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis, parse_span
from flowfabric.core.execution.lease import MAX_TTL
from flowfabric.core.execution.status import Blocking, PublicState
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.views import Info
from flowfabric.fabric import Fabric
from flowfabric.store.clock import ManualClock
from flowfabric.store.queries import Query
from flowfabric.store.sqlite.store import open_sqlite
from flowfabric.testing.checks import Checks, at_once
from flowfabric.testing.hand import ManualWorker
from flowfabric.testing.stuck import ENDED, Hanging, Stuck
from flowfabric.testing.watch import HandlerWatch, WatchedAttempts, WatchedFlowViews, WatchedViews

JUMPS = 1000
"""Most moments the clock is moved to while a test waits for one thing."""

PATIENCE = 10.0
"""Seconds of real time a handler may be busy before it is taken for hanging."""

LOOK_EVERY = 0.1
"""Seconds of real time after which leases are looked at, as by a heartbeat."""


class Driver(Checks):
    """Has handlers run and time pass, as far as a test wants it."""

    def __init__(self, fabric: Fabric, clock: ManualClock | None = None) -> None:
        self.fabric = fabric
        self.clock = clock or ManualClock()
        self._engine: Engine | None = None
        self._hand: ManualWorker | None = None
        self._watch = HandlerWatch()
        self._driving = asyncio.Lock()

    # -- driving

    @asynccontextmanager
    async def _drive(self, *, release: bool = True) -> AsyncIterator[None]:
        """One driver at a time; a handler that was held goes on."""
        async with self._driving:
            await self.fabric.engine()
            if release:
                self._release()
            if self._hand is None:
                self._hand = ManualWorker(self._open_engine(), self.fabric.tasks)
            yield

    async def _drive_to_end(self, id: ExecutionId, timeout: float | None = None) -> None:
        """A timeout is one of the bench's clock, as everything else is."""
        async with self._drive():
            ended = partial(self._has_ended, id)
            if timeout is None:
                await self._settle_through(ended, "the run does not end", id)
            elif not await self._settle_until(ended, self._later(timeout)):
                raise TimeoutError(self._report(f"the run does not end within {timeout:g} s", id))

    async def _drive_flow(self, id: UUID, timeout: float | None = None) -> None:
        async with self._drive():
            over = partial(self._is_over, id)
            if timeout is None:
                await self._settle_through(over, "the flow does not end")
            elif not await self._settle_until(over, self._later(timeout)):
                raise TimeoutError(self._report(f"the flow does not end within {timeout:g} s"))

    async def _settle_through(
        self, reached: Callable[[], bool], why: str, id: ExecutionId | None = None
    ) -> None:
        """Drives and moves the clock from one due moment to the next until it is so."""
        if not await self._settle_until(reached, None):
            raise Stuck(self._report(why, id))

    async def _settle_until(self, reached: Callable[[], bool], end: Millis | None) -> bool:
        """Whether it became so, by `end` or before nothing was left to wait for."""
        for jumps in count():
            try:
                await self._settle(reached)
            except Hanging:
                if not _has_limit(self._working()):
                    raise  # no moment will come that ends it
            if reached():
                return True
            due = await self._next_due()
            if due is None or (end is not None and due > end):
                break
            if end is None and jumps == JUMPS:
                raise Stuck(self._report(f"the clock was moved {JUMPS} times, in vain"))
            await self._move_clock(due)
        await self._move_clock(end)
        return False

    async def _settle(self, reached: Callable[[], bool] = lambda: False) -> None:
        """Runs whatever can run at this moment, until it is so or nothing moves any more."""
        engine, hand = self._open_engine(), self._working()
        while not reached():
            self._watch.moved.clear()
            before = set(hand.active)
            await engine.sweep.once()
            await engine._dispatcher.drain()
            await engine.inbox.admit()
            await engine._limits.drain()
            await hand.renew()
            if await hand.claim():
                continue
            if before != set(hand.active):
                continue  # one has ended since: what it owes its flow may let others run
            if self._all_wait():
                return
            await self._movement()

    def _all_wait(self) -> bool:
        """Whether every handler is held or waits for a run that has not ended."""
        return all(
            key in self._watch.held or self._waits(self._watch.awaited.get(key, ()))
            for key in self._working().active
        )

    def _waits(self, awaited: Sequence[ExecutionId]) -> bool:
        return bool(awaited) and not any(map(self._has_ended, awaited))

    async def _movement(self) -> None:
        """Until something happens; handlers may do real work, but not for ever."""
        hand, store = self._working(), self._open_engine().store
        pause = min(LOOK_EVERY, PATIENCE)
        jobs = {active.job for active in hand.active.values() if active.job is not None}
        signs = {
            asyncio.ensure_future(self._watch.moved.wait()),
            asyncio.ensure_future(store.hints.wait(2 * PATIENCE)),
        }
        try:
            for _ in range(max(1, int(PATIENCE / pause))):
                done, _ = await asyncio.wait(
                    {*jobs, *signs}, timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    return
                await hand.renew()
        finally:
            for sign in signs:
                sign.cancel()
        raise Hanging(self._report(f"for {PATIENCE:.0f} s nothing happens"))

    # -- time

    async def _next_due(self) -> Millis | None:
        """The next moment at which something happens by itself."""
        engine = self._open_engine()
        await self._working().renew(MAX_TTL)  # leases of what runs are no such moments
        now = engine.now()
        moments = [
            await engine.store.next_due(now),
            await engine.schedules.next_at(),
            engine._limits.opens_at,
        ]
        if self._somebody_lacks_budget():
            moments.append(await engine._limits.resets_at())
        if self._working().active:
            moments.append(Millis(now + MAX_TTL - 1))  # renewed in time
        return min((moment for moment in moments if moment and moment > now), default=None)

    def _somebody_lacks_budget(self) -> bool:
        """A reset is worth a jump only if somebody waits for it."""
        return any(
            self.describe(info.id).blocking is Blocking.BUDGET
            for info in self._unended()
            if info.state is PublicState.RATE_LIMITED
        )

    async def _move_clock(self, to: Millis | None) -> None:
        if to is not None:
            await self._working().renew(MAX_TTL)
            self.clock.advance(max(0, to - self.clock.now()))

    def _later(self, span: str | float | timedelta) -> Millis:
        return Millis(self.clock.now() + parse_span(span, "span"))

    def _has_ended(self, id: ExecutionId) -> bool:
        return self.describe(id).state in ENDED

    def _is_over(self, id: UUID) -> bool:
        """Whether a flow has ended, or is not there to be waited for."""
        flow = at_once(self._open_engine().flow_views.get(id))
        return flow is None or flow.ended_at is not None

    # -- life

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Inside the block the Fabric is on this bench."""
        with self.fabric._lend(self._open):
            try:
                yield
            finally:
                self._abandon()

    async def close(self) -> None:
        """What still runs is stopped; the store is gone."""
        self._release()
        if self._hand is not None:
            await self._hand.close()
        if self._engine is not None:
            await self._engine.close()

    async def _open(self) -> Engine:
        if self._engine is not None:
            raise Invalid("a bench belongs to the event loop it was first used in")
        store = await open_sqlite(":memory:", clock=self.clock, inline=True)
        jitter = random.Random(0)  # noqa: S311 - the same jitter in every run of a test
        engine = await Engine.open(store, options=self.fabric._options, jitter=jitter)
        engine.attempts = WatchedAttempts(engine._context, engine.claims, self._watch)
        engine.views = WatchedViews(engine._context, self._watch, self._drive_to_end)
        engine.flow_views = WatchedFlowViews(
            engine._context, engine._dispatcher.work, self._drive_flow
        )
        self._engine = engine
        return engine

    def _abandon(self) -> None:
        """Where no event loop is left to close in: nothing that is left can do any harm."""
        if self._hand is not None:
            self._hand.forsake()
            self._hand.let_go()
        if self._engine is not None:
            at_once(self._engine.store.close())

    def _open_engine(self) -> Engine:
        if self._engine is None:
            raise Invalid("nothing was submitted on this bench yet")
        return self._engine

    def _working(self) -> ManualWorker:
        if self._hand is None:
            raise Stuck("the worker crashed while it was driven")
        return self._hand

    def _release(self, *, crashed: bool = False) -> None:
        hold, self._watch.hold = self._watch.hold, None
        if hold is not None:
            self._watch.held.clear()
            hold.release(crashed=crashed)

    def _report(self, why: str, id: ExecutionId | None = None) -> str:
        """What was waited for, and where the run stands, or the first few that have not ended."""
        unended = [info.id for info in self._unended()]
        chosen = [id] if id in unended else unended[:5]
        tasks = frozenset(self.fabric.tasks)
        told = [self._tell(run, tasks) for run in chosen] or ["every run has ended"]
        return "\n  ".join([f"{why}:", *told])

    def _unended(self) -> tuple[Info, ...]:
        states = tuple(state for state in PublicState if state not in ENDED)
        return at_once(self._open_engine().views.list(Query(states=states))).items


def _has_limit(hand: ManualWorker) -> bool:
    """Whether a handler that hangs is given up when its time is over."""
    return any(
        active.claim.lease.times_out_at is not None or active.claim.snapshot.deadline_at is not None
        for active in hand.active.values()
    )
