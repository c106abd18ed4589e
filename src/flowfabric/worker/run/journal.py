"""The recorded steps of one run: what is recorded at a place, and what is added.

Example: a run has recorded `charge` as step 0 and `signal:paid` as step 1. Its handler runs again
from the top. Its first call, `charge`, gets place 0 and the recorded value; its second, if the code
still asks for `signal:paid`, place 1 and the recorded signal; its third gets place 2, where nothing
is recorded, and is done now. If the second call asks for `refund` instead, StepsChanged names both
and the run is blocked by code: two histories are never mixed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from flowfabric.core.base.errors import LeaseLost
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.step import Recorded, Step, TryName
from flowfabric.core.execution.step_order import LOOSE, SKIPPED
from flowfabric.engine.commit.shared_read import SharedRead
from flowfabric.engine.engine import Engine
from flowfabric.worker.errors import LOST, StepsChanged, Unwind
from flowfabric.worker.run.branches import (
    NOWHERE,
    Branch,
    Branches,
    BranchSpot,
    Halt,
    StepPlace,
    is_no_call,
    is_within,
    title,
)
from flowfabric.worker.run.cancelling import CancelPoint
from flowfabric.worker.run.lease import WorkerLease
from flowfabric.worker.run.patches import Patches, is_beyond
from flowfabric.worker.run.race import racing
from flowfabric.worker.run.until_available import until_available

_decoder = msgspec.json.Decoder(Recorded)


class Journal:
    """Loaded once, appended after."""

    def __init__(
        self,
        engine: Engine,
        lease: WorkerLease,
        halt: Halt,
        branches: Branches,
        cancel: CancelPoint,
        *,
        again: bool = False,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        """`again` says that the handler ran before under the same lease; `on_step` is called after
        a step was recorded."""
        self._engine = engine
        self._now = engine.clock.now
        self._lease = lease
        self._claim = lease.claim
        self._halt = halt
        self._cancel = cancel
        self._on_step = on_step
        self.branches = branches
        life = self._claim.snapshot.life
        self.generation = life.generation
        self._turn = f"{life.replays}.{life.retries}"
        self._steps: dict[tuple[str, int], tuple[Step, Recorded]] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._began: dict[tuple[str, int], Millis] = {}
        self._tries: dict[tuple[str, int], dict[int, Recorded]] = {}
        self._loaded = not (again or self._claim.may_have_steps)
        self._claimed = None if again else self._claim.steps
        self._loading = SharedRead()
        self.patches = Patches()

    async def recorded(self, place: StepPlace, *, begins: bool = True) -> Recorded | None:
        """What is recorded at a place; StepsChanged if something else is. None means that the
        caller may do it now. Without `begins` the call itself does nothing new: the calls that it
        makes do, and get what is recorded for them before a cancel is raised."""
        if not self._loaded:
            with self.branches.under_way():  # what is recorded may let the handler go on
                await self.load()
        calls = self.branches.skipped
        if calls.results and (skipped := calls.result(place.name, place.occurrence)) is not None:
            return skipped
        found = self._steps.get((place.branch, place.position))
        if found is None:
            if begins and self._cancel.notice is not None and not is_no_call(place.name):
                await self.reach_end()
            await self._begin(place)
            return None
        step, record = found
        if (step.name, step.occurrence) != (place.name, place.occurrence):
            expected = title(step.name, step.occurrence)
            self.refuse(
                f"step {place.position} was recorded as {expected} "
                f"but the code now asks for {place}",
                expected=f"step {place.position}: {expected}",
                asked=f"step {place.position}: {place}",
            )
        self._cancel.passed((place.branch, place.position))
        if (branch := racing.get()) is not None:
            branch.reach(record)
        return record

    async def _begin(self, place: StepPlace) -> None:
        """Goes beyond what is recorded; StepsChanged if this call is recorded at another place."""
        position = self._positions.get((place.name, place.occurrence))
        if position is not None:
            self.refuse(
                f"{place} was recorded as step {position} "
                f"but the code now asks for it as step {place.position}",
                expected=f"step {position}: {place}",
                asked=f"step {place.position}: {place}",
            )
        self._began[place.branch, place.position] = await self.confirm()
        self.branches.go_beyond()

    async def reach_end(self) -> None:
        """What is recorded ends here: a run that is being cancelled begins nothing new."""
        await self._cancel.reached(beside=self.branches.is_beside)

    async def recorded_wait(self, place: StepPlace) -> tuple[Recorded | None, Millis | None]:
        """How a wait ended, as `recorded`, and when its time is over if that is recorded: a wait
        that has not ended began in an earlier call of the handler then."""
        record = await self.recorded(place)
        if record is not None:
            return record, None
        timer = place.timer
        step, limit = self._steps.get((timer.branch, timer.position), (None, None))
        return None, limit.until if step and limit and step.name == timer.name else None

    async def confirm(self) -> Millis:
        """Nothing begins in a run that was stopped, or that another worker has taken over. Returns
        the time."""
        now = self._now()
        if not self._lease.lasts_until(now):
            try:
                await self._lease.confirm(self._engine, give_up=self._halt.is_stopped)
            except LeaseLost:
                self._halt.stop(LOST)
            now = self._now()
        if self._cancel.notice is not None and self._cancel.is_over(now):
            self._halt.stop(LOST)
        if self._halt.is_stopped():
            raise Unwind(self._halt.reason)
        return now

    def record(self, place: StepPlace, value: Recorded) -> Awaitable[None]:
        """Writes under the fence, however long the store is away; raises LeaseLost when another
        worker owns the run."""
        began = self._began.pop((place.branch, place.position), None)
        timed = replace(value, started_at=began, ended_at=self._now())
        if self._tries and (failed := self._tries.get((place.name, place.occurrence))):
            timed = replace(timed, tries=len(failed) + 1)
        return self._append(place, timed)

    async def record_try(self, place: StepPlace, number: int, failed: Recorded) -> None:
        """As `record`, for a try that failed and is followed by another."""
        await self._append(self.place_of_try(place, number), failed)
        self._tries.setdefault((place.name, place.occurrence), {})[number] = failed

    def place_of_try(self, place: StepPlace, number: int) -> StepPlace:
        """Where a failed try of a step is recorded."""
        return place.tried(self._turn, number)

    def last_try(self, place: StepPlace) -> tuple[int, Recorded] | None:
        """The last recorded try of a step that has not succeeded, with its number."""
        tries = self._tries.get((place.name, place.occurrence))
        if not tries:
            return None
        number = max(tries)
        return number, tries[number]

    async def _append(self, place: StepPlace, record: Recorded) -> None:
        patches = self.patches.take_unrecorded(self.generation)
        step = place.step(self.generation, record)
        write: Callable[[], Awaitable[object]]
        if patches.steps:
            write = partial(self._write_all, (*patches.steps, step))
        else:
            write = partial(self._engine.attempts.record_step, self._claim, step)
        try:
            await until_available(write, give_up=self._halt.is_stopped)
        except LeaseLost:
            self._halt.stop(LOST)
            raise
        if patches.places:
            self.patches.recorded(patches)
        self._on_step()

    def _write_all(self, steps: Iterable[Step]) -> Awaitable[object]:
        """In one batch: a patch is not recorded without what follows it."""
        record = partial(self._engine.attempts.record_step, self._claim)
        return asyncio.gather(*map(record, steps))

    def patched(self, name: str) -> bool:
        """Whether the run takes a patch; see `patches`. The journal must be loaded."""
        return self.patches.answer(name, self.branches.spot(name), self._steps)

    async def finish(self) -> None:
        """The handler returned: everything recorded must have been asked for."""
        if self.branches.refused is not None:
            raise self.branches.refused
        if not self._loaded:
            await self.load()
        extra = [place for place in self._steps if not self.branches.was_asked(*place)]
        if extra:
            step, _ = self._steps[min(extra)]
            expected = title(step.name, step.occurrence)
            self.refuse(
                f"step {step.position}, {expected}, is recorded but the code no longer asks for it",
                expected=f"step {step.position}: {expected}",
            )

    async def is_past(self, spot: BranchSpot) -> bool:
        """Whether an earlier call of the handler has recorded something beyond this spot."""
        if not self._loaded:
            await self.load()
        await self.confirm()
        return any(is_beyond(spot, *place) for place in self._steps)

    def has_begun(self, branch: Branch) -> bool:
        """Whether a branch had something recorded when the journal was loaded."""
        return any(is_within(at, branch.path) for at, _ in self._steps)

    def lose(self, branches: Iterable[Branch]) -> None:
        """Branches that lost a race: what they have recorded need not be asked for again."""
        lost = list(branches)
        self.branches.lose(lost)
        for call in self._steps:
            if any(is_within(call[0], branch.path) for branch in lost):
                self._cancel.passed(call)

    def went_on(self, place: StepPlace) -> bool:
        """Whether the handler had something recorded after this call when it was loaded."""
        return any(at == place.branch and place.position < n for at, n in self._steps)

    def refuse(self, message: str, *, expected: str = "", asked: str = "") -> NoReturn:
        """The code asks for something else than what is recorded."""
        self.branches.refused = StepsChanged(message, expected=expected, asked=asked)
        raise self.branches.refused

    async def load(self) -> None:
        """Learns what earlier calls of the handler have recorded, once: the claim may have brought
        it."""
        if self._claimed is None:
            await self._loading.when(lambda: not self._loaded, self._read)
        elif not self._loaded:
            self._learn(self._claimed)

    async def _read(self) -> None:
        self._learn(
            await until_available(
                partial(self._engine.attempts.steps, self._claim.uuid, self.generation),
                give_up=self._halt.is_stopped,
            )
        )

    def _learn(self, steps: Iterable[Step]) -> None:
        for step in steps:
            record = _decoder.decode(step.doc)
            if (tried := TryName.parse(step.name)) is not None:
                self._learn_try(tried, step, record)
                continue
            if record.skipped:
                self._skip(step, record)
                continue
            self._steps[record.branch, step.position] = (step, record)
            self._positions[step.name, step.occurrence] = step.position
            if record.branch:
                self.patches.learn(record.branch)
        self._loaded = True
        if self._cancel.notice is not None:
            self._cancel.replay(
                call
                for call, (step, _) in self._steps.items()
                if LOOSE not in call[0] and not is_no_call(step.name)
            )

    def _learn_try(self, tried: TryName, step: Step, record: Recorded) -> None:
        """Tries of an earlier turn do not count, but stay for people to see."""
        if tried.turn == self._turn:
            self._tries.setdefault((tried.call, step.occurrence), {})[tried.number] = record

    def _skip(self, step: Step, record: Recorded) -> None:
        """An operator has supplied the result of this call."""
        skipped = self.branches.skipped
        skipped.results[step.name.removeprefix(SKIPPED), step.occurrence] = record
        if step.position != NOWHERE:
            skipped.places.add((record.branch, step.position))
