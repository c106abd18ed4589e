"""Races: what each branch waits for, which one wins, and what the others leave behind."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.errors import NotFound, WrongState
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.numbers import Seconds
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.step import Recorded
from flowfabric.core.wait.model import Waited
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.described import Ending
from flowfabric.worker.errors import Unwind
from flowfabric.worker.run.together import errors_of, stop_all

EndingOf = Callable[[ExecutionId, Seconds | None], Awaitable[Ending]]
"""How a run ended, given its id and a timeout; nothing holds a worker meanwhile."""

UntilAvailable = Callable[[Callable[[], Awaitable[object]]], Awaitable[object]]
"""Repeats a call while the store is away."""

racing: ContextVar["RaceBranch | None"] = ContextVar("flowfabric_racing", default=None)
"""The branch of a race that this code belongs to."""


class RaceDecision(Struct, frozen=True, omit_defaults=True):
    """The step of a race: which branch won, and what the others leave behind."""

    winner: str
    waitpoints: list[UUID] = []
    runs: list[str] = []
    flows: list[UUID] = []

    @property
    def leaves_nothing(self) -> bool:
        return not (self.waitpoints or self.runs or self.flows)


class RaceBranch:
    """One branch of a race: what it has begun to wait for, and how far it has come. `answered` says
    that what it reached last is a signal. `ending_of` waits for the end of a run."""

    def __init__(self, ending_of: EndingOf) -> None:
        self.ending_of = ending_of
        self._outer = racing.get()
        self.rivals: Sequence[RaceBranch] = ()
        self.ended = False
        self.reached = Millis(0)
        self.answered = False
        self.waitpoints: dict[UUID, None] = {}
        self.runs: dict[str, None] = {}
        self.flows: dict[UUID, None] = {}

    def begin(
        self,
        *,
        waitpoints: Iterable[UUID] = (),
        runs: Iterable[str] = (),
        flows: Iterable[UUID] = (),
    ) -> None:
        """The branch begins to wait for these, and so does every race around it."""
        given = list(waitpoints), list(runs), list(flows)
        branch: RaceBranch | None = self
        while branch is not None:
            branch.waitpoints.update(dict.fromkeys(given[0]))
            branch.runs.update(dict.fromkeys(given[1]))
            branch.flows.update(dict.fromkeys(given[2]))
            branch = branch._outer

    @property
    def has_lost(self) -> bool:
        """Whether another branch has ended, of this race or of one around it: this one takes no
        further signals, which are kept for other waits."""
        branch: RaceBranch | None = self
        while branch is not None:
            if any(rival.ended for rival in branch.rivals):
                return True
            branch = branch._outer
        return False

    def reach(self, record: Recorded) -> None:
        """Something that the branch asked for is over, as this record says."""
        moment = record.until or record.ended_at or Millis(0)
        branch: RaceBranch | None = self
        while branch is not None:
            if moment >= branch.reached:
                branch.reached = moment
                branch.answered = record.waited == Waited.SIGNALLED
            branch = branch._outer

    @property
    def rank(self) -> tuple[bool, Millis]:
        """Of branches that have ended, the lowest rank wins: the one whose answer came first, but
        signals go before timers and steps. A signal is used up, and its sender was told so."""
        return not self.answered, self.reached


def decide(winner: str, branches: Mapping[str, RaceBranch]) -> RaceDecision:
    """What is recorded of a race: nothing that the winner waits for as well is closed."""
    won = branches[winner]
    lost = [branch for name, branch in branches.items() if name != winner]
    waitpoints = {each: None for branch in lost for each in branch.waitpoints}
    runs = {each: None for branch in lost for each in branch.runs}
    flows = {each: None for branch in lost for each in branch.flows}
    return RaceDecision(
        winner,
        [each for each in waitpoints if each not in won.waitpoints],
        [each for each in runs if each not in won.runs],
        [each for each in flows if each not in won.flows],
    )


async def first_of(
    tasks: Mapping[str, asyncio.Task[Any]],
    branches: Mapping[str, RaceBranch],
    parked: Callable[[], bool],
    catch_up: Callable[[], Awaitable[None]],
) -> str:
    """The name of the branch that ended first; the others are cancelled. If several have ended by
    the time this is seen, such as in an earlier call of the handler, the one of the lowest rank, or
    else the first in the order of the race. `catch_up` lets the others ask for everything they have
    asked for in earlier calls, so that it is known what they leave behind, and lets those end that
    a signal has ended. A parked handler unwinds as a whole."""
    left = set(tasks.values())
    try:
        while left:
            _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            if _ended(tasks) and not parked():
                await catch_up()
                return min(_ended(tasks), key=lambda name: branches[name].rank)
    finally:
        await stop_all(list(tasks.values()))
    for error in errors_of(list(tasks.values())):
        raise error
    raise Unwind


async def close_losers(
    engine: Engine,
    run: ExecutionId,
    decision: RaceDecision,
    reason: str,
    until_available: UntilAvailable,
) -> None:
    """Closes the waitpoints of the losers, cancels their runs and flows. Repeating it is
    harmless."""
    flows, suspensions = engine.flows, engine.suspensions
    close = partial(suspensions.close_waitpoint, run, reason=reason)
    calls: list[Callable[[], Awaitable[object]]] = [
        *(partial(close, id) for id in decision.waitpoints),
        *(partial(engine.executions.cancel, id, reason=reason) for id in decision.runs),
        *(partial(flows.cancel, id, reason=reason, wait=False) for id in decision.flows),
    ]
    for call in calls:
        # Otherwise it never began, has ended, or was deleted: there is nothing to close.
        with suppress(NotFound, WrongState):
            await until_available(call)


def _ended(tasks: Mapping[str, asyncio.Task[Any]]) -> list[str]:
    return [name for name, task in tasks.items() if task.done() and not _unwound(task)]


def _unwound(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or isinstance(task.exception(), Unwind)
