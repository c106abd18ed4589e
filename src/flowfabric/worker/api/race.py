"""Races: the first of several things that a handler waits for, and the end of the others."""

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from types import CoroutineType
from typing import Any, Generic, NamedTuple, TypeVar, cast, overload

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.numbers import Seconds
from flowfabric.core.base.text import check_signal_name
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Failure
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.step import Recorded
from flowfabric.core.flow.children import end_signal
from flowfabric.engine.execution.described import Ending
from flowfabric.worker.api.concurrency import Concurrency, beside
from flowfabric.worker.api.run import Run
from flowfabric.worker.api.waits import WaitsApi
from flowfabric.worker.errors import FlowFailed, RunError, WaitClosed, WaitTimeout
from flowfabric.worker.run.branches import Branch, StepPlace
from flowfabric.worker.run.race import (
    RaceBranch,
    RaceDecision,
    close_losers,
    decide,
    first_of,
    racing,
)
from flowfabric.worker.run.scope import CallScope
from flowfabric.worker.run.steps import read
from flowfabric.worker.run.together import together

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
T6 = TypeVar("T6")

MAX_BRANCHES = 100
MAX_KEPT = 512 * 1024
"""How many bytes of the result of a run are recorded at most; a longer one is read again."""
CATCHING_UP = 1.0
"""Seconds that the losers have to ask again for what they asked for in an earlier call."""
END, CLOSED = "end", "closed"
"""Names of what is recorded beside a race."""


class Winner(NamedTuple, Generic[T]):
    """The branch that won a race, and what it returned."""

    name: str
    value: T


class RecordedEnding(Struct, frozen=True, omit_defaults=True):
    """The step of the end of a run. `whole` is False if its result is too long for a step."""

    run: str
    outcome: Outcome
    ended_at: Millis
    result: bytes | None = None
    whole: bool = True
    failure: Failure | None = None
    reason: str | None = None


class RaceApi:
    """The part of a context that waits for the first of several things."""

    def __init__(self, scope: CallScope, waits: WaitsApi) -> None:
        self._scope = scope
        self._ends = RunEnds(scope, waits)

    @overload
    def race(self, branch: "Awaitable[T1] | Run[T1]", /) -> Coroutine[Any, Any, Winner[T1]]: ...
    @overload
    def race(
        self, branch1: "Awaitable[T1] | Run[T1]", branch2: "Awaitable[T2] | Run[T2]", /
    ) -> Coroutine[Any, Any, Winner[T1 | T2]]: ...
    @overload
    def race(
        self,
        branch1: "Awaitable[T1] | Run[T1]",
        branch2: "Awaitable[T2] | Run[T2]",
        branch3: "Awaitable[T3] | Run[T3]",
        /,
    ) -> Coroutine[Any, Any, Winner[T1 | T2 | T3]]: ...
    @overload
    def race(
        self,
        branch1: "Awaitable[T1] | Run[T1]",
        branch2: "Awaitable[T2] | Run[T2]",
        branch3: "Awaitable[T3] | Run[T3]",
        branch4: "Awaitable[T4] | Run[T4]",
        /,
    ) -> Coroutine[Any, Any, Winner[T1 | T2 | T3 | T4]]: ...
    @overload
    def race(
        self, *branches: "Awaitable[T] | Run[T]", **named: "Awaitable[T] | Run[T]"
    ) -> Coroutine[Any, Any, Winner[T]]: ...
    def race(self, *branches: Any, **named: Any) -> Coroutine[Any, Any, Winner[Any]]:
        """Waits for the first of several branches and returns its name and value:
        `name, value = await ctx.race(paid=callback.result(Payment), late=ctx.sleep("1d"))`.
        Branches without a name are called "0", "1" and so on. A `Run` is a child run.

        The winner is recorded, and is the same whenever the handler runs again. The losers are
        over: waitpoints of callbacks and approvals are closed, runs and flows are cancelled, steps
        are stopped. Signals they have not received are kept for other waits. If a step fails first,
        its error is raised and nothing is decided: a retry of the run races again.
        """
        contenders = check_contenders(branches, named)
        all_branches = self._scope.branches
        place = all_branches.place(f"race:{','.join(contenders)[:150]}")
        return self._race(place, contenders, {name: all_branches.branch() for name in contenders})

    async def _race(
        self, place: StepPlace, contenders: dict[str, Any], branches: dict[str, Branch]
    ) -> Winner[Any]:
        awaited = list(contenders.values())
        try:
            with self._scope.branches.under_way():
                record = await self._scope.journal.recorded(place, begins=False)
            if record is None:
                return await self._decide(place, contenders, branches)
            decision = read(place, record, RaceDecision)
            return await self._decided(place, decision, contenders, branches)
        finally:
            for each in awaited:
                drop(each)

    async def _decided(
        self,
        place: StepPlace,
        decision: RaceDecision,
        contenders: dict[str, Any],
        branches: dict[str, Branch],
    ) -> Winner[Any]:
        """The race was decided in an earlier call of the handler: only the winner runs again."""
        scope, name = self._scope, decision.winner
        winner = contenders.get(name)
        if winner is None:
            scope.journal.refuse(f"{place} was won by {name!r}, which no longer takes part")
        branch = branches.pop(name)
        scope.journal.lose(branches.values())
        with scope.branches.under_way():
            await self._close(place, decision)
        task = asyncio.ensure_future(self._contend(winner, branch, RaceBranch(self._ends.ending)))
        try:
            with scope.branches.waiting():
                await together([task], lambda: scope.parked)
        finally:
            scope.branches.forget([branch])
        return Winner(name, task.result())

    async def _decide(
        self, place: StepPlace, contenders: dict[str, Any], branches: dict[str, Branch]
    ) -> Winner[Any]:
        scope = self._scope
        racers = {name: RaceBranch(self._ends.ending) for name in contenders}
        for racer in racers.values():
            racer.rivals = [each for each in racers.values() if each is not racer]
        tasks = {
            name: asyncio.ensure_future(self._contend(each, branches[name], racers[name]))
            for name, each in contenders.items()
        }
        try:
            with scope.branches.waiting():
                catch_up = partial(self._catch_up, branches, racers)
                name = await first_of(tasks, racers, lambda: scope.parked, catch_up)
            error = tasks[name].exception()
            if error is not None and not _is_recorded(error):
                raise error
            await scope.journal.reach_end()  # a run that is being cancelled decides nothing
            decision = decide(name, racers)
            value = msgspec.Raw(msgspec.json.encode(decision))
            await scope.journal.record(place, Recorded(value=value))
            scope.journal.lose(branch for at, branch in branches.items() if at != name)
            await self._close(place, decision)
            return Winner(name, tasks[name].result())
        finally:
            scope.branches.forget(branches.values())

    async def _catch_up(self, branches: dict[str, Branch], racers: dict[str, RaceBranch]) -> None:
        scope = self._scope
        await scope.parking.settle()  # a signal that counts for a branch by now may win
        begun = [
            branch
            for name, branch in branches.items()
            if racers[name].reached or scope.journal.has_begun(branch)
        ]
        with suppress(TimeoutError):  # one that awaits something else is not waited for
            async with asyncio.timeout(CATCHING_UP):
                await scope.branches.replaying.ended(begun)

    async def _contend(self, contender: Any, branch: Branch, racer: RaceBranch) -> Any:
        racing.set(racer)
        awaited = contender.result() if isinstance(contender, Run) else contender
        try:
            value = await beside(self._scope, awaited, branch)
        finally:
            racer.ended = True
        self._scope.branches.hold(branch)  # counts as under way until the race has seen it
        return value

    async def _close(self, place: StepPlace, decision: RaceDecision) -> None:
        """Ends what the losers wait for, once; again if the worker died before it was recorded."""
        closed, scope = place.again(0, CLOSED), self._scope
        if decision.leaves_nothing or await scope.journal.recorded(closed) is not None:
            return
        reason = f"lost the race {','.join(place.name.split(':')[1:])}"
        await close_losers(scope.engine, scope.claim.id, decision, reason, scope.until_available)
        await scope.journal.record(closed, Recorded())


class RunEnds:
    """Waits for the ends of runs without a worker, and records them."""

    def __init__(self, scope: CallScope, waits: WaitsApi) -> None:
        self._scope = scope
        self._waits = waits

    async def ending(self, id: ExecutionId, timeout: Seconds | None) -> Ending:
        """How a run ended, as it was first read: it may be replayed or deleted later."""
        id = ExecutionId(id)  # what is recorded has the engine's form
        journal, views = self._scope.journal, self._scope.engine.views
        if (branch := racing.get()) is not None:
            branch.begin(runs=[str(id)])
        place = self._scope.branches.place("run-result")
        record = await journal.recorded(place)
        kept = None if record is None else read(place, record, RecordedEnding)
        if kept is not None and kept.run != str(id):
            journal.refuse(f"{place} is that of run {kept.run}, not of run {id}")
        if kept is not None and kept.whole:
            return _ending(kept)
        if kept is None:
            await self._until_ended(place, id, timeout)
        ending = await self._scope.until_available(lambda: views.wait(id))
        if kept is None:
            value = msgspec.Raw(msgspec.json.encode(_recorded(ending)))
            await journal.record(place, Recorded(value=value))
        return ending

    async def _until_ended(
        self, place: StepPlace, id: ExecutionId, timeout: Seconds | None
    ) -> None:
        """One that was replayed after it had signalled its end is waited for again."""
        scope, number = self._scope, 0
        executions, waiting = scope.engine.executions, scope.claim.uuid
        while True:
            at = place.again(number, END)
            if await scope.journal.recorded(at) is None and await scope.until_available(
                lambda: executions.await_end(id, waiting)
            ):
                return
            await self._waits.wait_at(at, end_signal(id.uuid), timeout)
            number += 1


def check_contenders(branches: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The branches of a race by name."""
    given = {**{str(number): each for number, each in enumerate(branches)}, **named}
    try:
        if len(given) < len(branches) + len(named):
            raise Invalid("two branches of a race have the same name")
        _check_given(given)
    except Invalid:
        for each in (*branches, *named.values()):
            drop(each)
        raise
    return given


def _check_given(given: dict[str, Any]) -> None:
    if not given:
        raise Invalid("a race needs at least one branch")
    if len(given) > MAX_BRANCHES:
        raise Invalid(f"a race of {len(given)} branches; the limit is {MAX_BRANCHES}")
    for name, each in given.items():
        if not check_signal_name(name, "the name of a branch"):
            raise Invalid("a branch of a race needs a name")
        if not isinstance(each, Run) and not inspect.isawaitable(each):
            kind = type(each).__name__
            raise Invalid(f"branch {name!r} of a race is of type {kind}, which cannot be awaited")


def _is_recorded(error: BaseException) -> bool:
    """Whether the branch raises the same whenever the handler runs again: then it has ended."""
    recorded = isinstance(error, WaitTimeout | WaitClosed | RunError)
    return recorded and not isinstance(error, FlowFailed)  # a retry runs the flow again


def drop(loser: object) -> None:
    """What has not begun by the end of a race never begins, nor do the branches of a race or a
    gather in it."""
    if inspect.iscoroutine(loser):
        if inspect.getcoroutinestate(loser) == inspect.CORO_CREATED:
            for each in _branches_of(loser):
                drop(each)
        loser.close()
    elif isinstance(loser, asyncio.Future):
        loser.cancel()


def _branches_of(call: "CoroutineType[Any, Any, Any]") -> Iterable[object]:
    """What a race or a gather that has not begun was given."""
    code, given = call.cr_code, inspect.getcoroutinelocals(call)
    if code is Concurrency._gather.__code__:
        return cast("Iterable[object]", given["steps"])
    if code is RaceApi._race.__code__:
        return cast("dict[str, object]", given["contenders"]).values()
    return ()


def _recorded(ending: Ending) -> RecordedEnding:
    result = ending.result
    whole = result is None or len(result) <= MAX_KEPT
    return RecordedEnding(
        run=str(ending.id),
        outcome=ending.outcome,
        ended_at=ending.ended_at,
        result=result if whole else None,
        whole=whole,
        failure=ending.failure,
        reason=ending.reason,
    )


def _ending(kept: RecordedEnding) -> Ending:
    return Ending(
        id=ExecutionId(kept.run),
        outcome=kept.outcome,
        result=kept.result,
        failure=kept.failure,
        ended_at=kept.ended_at,
        reason=kept.reason,
    )
