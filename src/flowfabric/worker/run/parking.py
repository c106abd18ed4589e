"""Taking a handler off its slot: its sleeps and waits, until nothing else of it is under way.

A wait whose signal is there already ends at once, and the handler goes on. Otherwise the handler
unwinds, and only then is its lease given up.

Beside a step that runs, the handler keeps its slot. Waits that take part in a race look out for
their signals meanwhile; other waits go on when the step is done.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError, LeaseLost
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.step import Recorded, Step
from flowfabric.core.wait.model import StepRef
from flowfabric.core.wait.request import Suspend, Wait
from flowfabric.core.wait.suspend import AlreadyMet
from flowfabric.engine.commit.background import begun
from flowfabric.engine.engine import Engine
from flowfabric.store.hints import NOTHING, Nudge, Topic
from flowfabric.worker.errors import LOST, Unwind
from flowfabric.worker.run.branches import Branch, Halt, StepPlace
from flowfabric.worker.run.journal import Journal
from flowfabric.worker.run.lease import WorkerLease
from flowfabric.worker.run.race import RaceBranch, racing
from flowfabric.worker.run.together import all_ended
from flowfabric.worker.run.until_available import until_available

POLL_FLOOR = 1.0
REST = 0.05
"""Seconds between two looks for signals beside a step: at most, and at least."""


class Sleeper(Struct, frozen=True):
    """A sleep; `recorded` says that its end is recorded already."""

    until: Millis
    recorded: bool


class Waiter(Struct, frozen=True):
    """A wait that is to begin; `recorded` says that the end of its time, if it has one, is
    recorded already. `branch` is the one that waits, `racer` the branch of a race around it."""

    wait: Wait
    reason: str
    recorded: bool
    branch: Branch
    racer: RaceBranch | None


class Parking:
    """What a handler sleeps until and waits for, all at the same time."""

    def __init__(
        self,
        engine: Engine,
        lease: WorkerLease,
        halt: Halt,
        journal: Journal,
        *,
        again: bool = False,
    ) -> None:
        """`again` says that the handler ran before under the same lease: signals are there."""
        self._engine = engine
        self._lease = lease
        self._claim = lease.claim
        self._halt = halt
        self._journal = journal
        self._branches = journal.branches
        self._sleepers: dict[StepPlace, Sleeper] = {}
        self._waiters: dict[StepPlace, Waiter] = {}
        self._answers: dict[StepPlace, Recorded] = {}
        self._expecting = again
        self._answering: asyncio.Task[bool] | None = None
        self._looking = False
        self._looked_at = -1
        self._opened: set[UUID] = set()
        self._suspension: UUID | None = None

    async def sleep(self, place: StepPlace, until: Millis, *, known: bool) -> None:
        """Takes the handler off its slot until the earliest of all sleeps: then it never returns.
        While something else is under way it waits for that, and returns if its own time is over
        before. `known` says that its end is recorded already."""
        with self._branches.waiting():
            if known:  # counts at once: a sleep beside it may take the handler off its slot
                self._sleepers[place] = Sleeper(until, known)
            try:
                await asyncio.sleep(0)  # what was started together with this sleep begins
                if self._branches.busy and not known:
                    await self._journal.record(place, Recorded(until=until))
                    known = True
                self._sleepers[place] = Sleeper(until, known)
                await self._quiet(place, until)
            except BaseException:
                self._sleepers.pop(place, None)
                raise
            if not self._branches.busy:
                self._branches.parked = True
                raise Unwind
            del self._sleepers[place]

    async def wait(
        self, place: StepPlace, wait: Wait, reason: str, limit: Millis | None
    ) -> Recorded:
        """How a wait that is not recorded ends, if a signal that was kept ends it now. Otherwise
        the handler is taken off its slot as soon as nothing else is under way, and this never
        returns. Its time is counted from the first time it was asked for, however often something
        else resumes the run: `limit` is its recorded end."""
        until = wait.timeout_at if limit is None or wait.timeout_at is None else limit
        recorded = until is None or limit is not None
        with self._branches.waiting():
            await asyncio.sleep(0)  # what was started together with this wait begins
            if self._branches.busy and until is not None and not recorded:
                await self._journal.record(place.timer, Recorded(until=until))
                recorded = True
            step = StepRef(
                self._journal.generation,
                place.position,
                place.name,
                place.occurrence,
                place.branch,
                place.opened,
            )
            begun = replace(wait, step=step, timeout_at=until)
            branch = self._branches.current()
            self._waiters[place] = Waiter(begun, reason, recorded, branch, racing.get())
            self._looked_at = -1
            try:
                await self._quiet(place)
            except BaseException:
                self._waiters.pop(place, None)
                self._take_answer(place)
                raise
        answer = self._take_answer(place)
        if answer is None:
            self._branches.parked = True
            raise Unwind
        return answer

    def _take_answer(self, place: StepPlace) -> Recorded | None:
        """The answer to a wait, once; until it is taken it counts as under way."""
        record = self._answers.pop(place, None)
        if record is not None:
            self._branches.end()
        return record

    async def _quiet(self, place: StepPlace, until: Millis | None = None) -> None:
        """Returns when nothing is under way and no kept signal ends a wait, when there is an
        answer at `place`, or at `until`."""
        idle = self._branches.idle = self._branches.idle or Nudge()
        while place not in self._answers:
            if not self._branches.busy:
                if await self._is_stuck():
                    return
                continue
            left = None if until is None else (until - self._engine.now()) / 1000
            if left is not None and left <= 0:
                return
            idle.clear()
            if racing.get() is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await idle.wait()
            else:
                await self._look_out(idle, left)

    async def _look_out(self, idle: Nudge, left: float | None) -> None:
        """Beside something that is under way: looks whether signals have ended waits, and returns
        when that or something else may have changed, after `left` seconds at the latest."""
        hints = self._engine.hints
        seen = hints.count
        await self._look()
        if idle.is_set():
            return
        pause = POLL_FLOOR if left is None else min(left, POLL_FLOOR)
        await hints.wait(pause, seen, Topic.SIGNALS | Topic.ENDINGS, idle)
        if not idle.is_set():
            await hints.wait(min(REST, pause), None, NOTHING, idle)

    async def _look(self) -> None:
        """Ends waits whose signals are there, or whose time is over. One look serves all waits."""
        if self._looking or self._answering or self._answers or not self._asking():
            return  # an answer that was not taken yet may end a race, which keeps other signals
        self._looking = True
        try:
            await self._open_approvals()
            found = await until_available(
                lambda: self._engine.suspensions.signals_so_far(self._claim), self._halt.is_stopped
            )
            if found in (0, self._looked_at) and not self._is_overdue():
                return
            self._looked_at = found
            if not self._branches.parked and not self._halt.is_stopped() and await self._go_on():
                self._looked_at = -1
        finally:
            self._looking = False

    def _is_overdue(self) -> bool:
        now = self._engine.now()
        ends = (waiter.wait.timeout_at for waiter in self._waiters.values())
        return any(end is not None and end <= now for end in ends)

    async def _open_approvals(self) -> None:
        """People can decide while a step runs: elsewhere the suspension opens the waitpoint."""
        asked = [binding for waiter in self._waiters.values() for binding in waiter.wait.bindings]
        for binding in asked:
            if binding.terms is not None and binding.id not in self._opened:
                await until_available(
                    partial(
                        self._engine.suspensions.create_waitpoint,
                        self._claim,
                        binding.key,
                        id=binding.id,
                        terms=binding.terms,
                        lasting=True,
                        slot=binding.slot,
                    ),
                    self._halt.is_stopped,
                )
                self._opened.add(binding.id)

    async def _is_stuck(self) -> bool:
        """Whether nothing goes on by itself, and no kept signal ends a wait."""
        waits = len(self._waiters)
        await asyncio.sleep(0)  # a branch that was answered just now may ask for the next signal
        if self._branches.busy:
            return False
        if self._may_go_on():
            return not await self._go_on() and not self._branches.busy
        return not self._branches.busy and waits == len(self._waiters)

    def _may_go_on(self) -> bool:
        """Whether a signal for one of the waits may be there: the run has just found some, or it
        was claimed with some that nothing has used up."""
        waits = self._claim.snapshot.life.waits
        if self._branches.parked or not self._asking() or self._halt.is_stopped():
            return False
        if self._expecting or waits is None:
            return self._expecting
        kept = {each.id for each in waits.pending if each.unwanted < waits.signals}
        bound = (waiter.wait.bindings for waiter in self._waiters.values())
        return any(binding.id in kept for bindings in bound for binding in bindings)

    async def _go_on(self) -> bool:
        """Ends waits whose signals are there already, without unwinding the handler. False when
        there is nothing to go on with: it is parked then. A branch that is cancelled meanwhile
        stays until that is done, for it is done for the waits of all branches."""
        asked = list(self._waiters)
        self._expecting = True
        answering = self._answering = begun(self._answer())
        try:
            with self._branches.under_way():
                try:
                    await all_ended([answering])
                finally:
                    self._answering = None
        finally:
            if self._branches.idle is not None:
                self._branches.idle.set()
        # No signals were read for a wait that began meanwhile.
        self._expecting = answering.result() or asked != list(self._waiters)
        return self._expecting

    async def settle(self) -> None:
        """Returns when no waits are being ended by kept signals."""
        if self._answering is not None:
            await all_ended([self._answering])

    async def _answer(self) -> bool:
        ended = await self._ended_by_signals()
        for place, record in ended.items():
            waiter = self._waiters.pop(place, None)
            if waiter is not None:
                self._answers[place] = record
                self._branches.begin()  # until it is taken
                if waiter.racer is not None:
                    waiter.racer.reach(record)
                    self._branches.resume(waiter.branch)
        return bool(ended)

    async def _ended_by_signals(self) -> dict[StepPlace, Recorded]:
        places = {(place.branch, place.position): place for place in self._waiters}
        patches = self._journal.patches.take_unrecorded(self._journal.generation)
        # The same id for every try: after a lost reply the repeat is recognised.
        id = self._engine.suspensions.new_id()
        request = self._request(id, None, patches.steps, self._asking())
        try:
            steps = await until_available(
                lambda: self._steps_of(request), give_up=self._halt.is_stopped
            )
        except LeaseLost:
            self._halt.stop(LOST)
            raise
        except FlowFabricError:
            return {}  # the report of the parked run meets the same error
        found: dict[StepPlace, Recorded] = {}
        for step in steps:
            record = msgspec.json.decode(step.doc, type=Recorded)
            if (place := places.get((record.branch, step.position))) is not None:
                found[place] = record
        return found

    async def _steps_of(self, request: Suspend) -> Sequence[Step]:
        """The steps of waits that kept signals end; after a lost reply, among others."""
        met = await self._engine.suspensions.go_on(self._claim, request)
        if met is None or met.steps:
            return () if met is None else met.steps
        return await self._engine.attempts.steps(self._claim.uuid, self._journal.generation)

    async def release(self) -> bool:
        """Gives the lease up until the first of all sleeps and waits is over, and records the
        sleeps. True when a wait is over already: the lease is kept, the handler runs again."""
        fresh = self._unrecorded()
        until = min((sleeper.until for sleeper in self._sleepers.values()), default=None)
        if self._waiters:
            return await self._suspend(until, fresh)
        for step in fresh[1:]:
            await self._engine.attempts.record_step(self._claim, step)
        first = fresh[0] if fresh else None
        await self._engine.attempts.delay(self._claim, until or Millis(0), step=first)
        return False

    def _unrecorded(self) -> list[Step]:
        """The steps for the ends of sleeps, of the time of waits, and of patches taken before them,
        that are not recorded yet."""
        ends = {place: s.until for place, s in self._sleepers.items() if not s.recorded}
        for place, waiter in self._waiters.items():
            if waiter.wait.timeout_at is not None and not waiter.recorded:
                ends[place.timer] = waiter.wait.timeout_at
        generation = self._journal.generation
        timers = [place.step(generation, Recorded(until=until)) for place, until in ends.items()]
        return [*timers, *self._journal.patches.take_unrecorded(generation).steps]

    async def _suspend(self, until: Millis | None, steps: list[Step]) -> bool:
        # The same id for every try: after a lost reply the repeat is recognised.
        self._suspension = self._suspension or self._engine.suspensions.new_id()
        request = self._request(self._suspension, until, steps, list(self._waiters.values()))
        outcome = await self._engine.suspensions.suspend(self._lease.claim, request)
        return isinstance(outcome, AlreadyMet)

    def _asking(self) -> list[Waiter]:
        """The waits that signals may end: not those of branches that have lost their race."""
        waiters = self._waiters.values()
        return [each for each in waiters if each.racer is None or not each.racer.has_lost]

    def _request(
        self, id: UUID, until: Millis | None, steps: Sequence[Step], waiters: list[Waiter]
    ) -> Suspend:
        reasons = {waiter.reason for waiter in waiters}
        now = self._engine.now()
        return Suspend(
            id=id,
            waits=tuple(_not_before(now, waiter.wait) for waiter in waiters),
            reason=reasons.pop() if len(reasons) == 1 else "waiting_for_signal",
            until=until,
            steps=tuple(steps),
        )


def _not_before(now: Millis, wait: Wait) -> Wait:
    """A wait whose time ran out while no worker had the run is over at once, not refused."""
    if wait.timeout_at is None or wait.timeout_at >= now:
        return wait
    return replace(wait, timeout_at=now)
