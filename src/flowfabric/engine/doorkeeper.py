"""Budgets at the door: what was taken is shown to its budgets before anybody works on it.

New work whose budget is spent goes back and waits in the budget's queue. When the budget admits
again (a reset, a raised limit, something given back) a page of those is let in, and another one as
soon as the first was taken: letting in a hundred thousand to send all but ten away again would be
a storm.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar
from uuid import UUID

from flowfabric.core import budgeting
from flowfabric.core import spending as rules
from flowfabric.core.admission import is_start, let_in, take_back, turn_away
from flowfabric.core.budget import Budget, Exhausted, Scope, chain, exhausted
from flowfabric.core.change import Change
from flowfabric.core.errors import Corruption, FlowFabricError
from flowfabric.core.execution import Active, Execution, Flags, Gate, Lease, Snapshot, Waiting
from flowfabric.core.quota import budget_queue
from flowfabric.core.time import Millis
from flowfabric.engine.base import Noun, Parts
from flowfabric.engine.bookkeeping import Bookkeeping
from flowfabric.engine.decisions import Decision
from flowfabric.store.contract import Taken
from flowfabric.store.limits import BookAsk
from flowfabric.store.readable import SET_ASIDE

T = TypeVar("T")

PAGE = 200
REFRESH = 1.0
"""Seconds until a budget of a namespace, flow or run made by another process is seen."""

log = logging.getLogger("flowfabric.limits")


class Doorkeeper(Noun):
    """Shared by `engine.claims`, `engine.budgets` and the sweep."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.books = Bookkeeping(parts.store, self._admit_soon)
        self._attached: dict[tuple[str, str], list[str]] = {}
        self._refreshed_at: float | None = None
        self._refreshing = asyncio.Lock()
        self._crowded: dict[str, int] = {}
        self._reserving: set[UUID] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        parts.after.let_go = self._let_go

    async def names_of(self, execution: Execution) -> tuple[str, ...]:
        """Every budget that holds for an execution."""
        await self._refresh()
        return self._names_of(execution)

    def _names_of(self, execution: Execution) -> tuple[str, ...]:
        names = dict.fromkeys(execution.rules.budget_ids)
        for scope in _scopes(execution):
            names.update(dict.fromkeys(self._attached.get(scope, ())))
        return tuple(names)

    def forget_attached(self) -> None:
        """Looks again which budgets hold without being named."""
        self._refreshed_at = None

    async def check(self, taken: Sequence[Taken]) -> list[Taken]:
        """What may be worked on. The rest waits for its budget. A budget that cannot be read admits
        nobody: what was taken goes back. If that is all, the error is the caller's; otherwise it is
        set aside, and the others go on."""
        try:
            return await self._check(taken)
        except Corruption as error:
            if len(taken) == 1:
                await self._leave(taken[0], error)
                raise
        except FlowFabricError:
            self._spawn(self._take_back(taken))
            raise
        admitted: list[Taken] = []
        for item in taken:
            with suppress(Corruption):
                admitted += await self.check([item])
        return admitted

    async def _leave(self, item: Taken, error: Corruption) -> None:
        """Gives back what a budget that cannot be read holds for, and leaves it for a while: it
        would be taken again at once, before all others."""
        execution, now = item.snapshot.execution, self._now()
        log.error("execution %s is set aside: %s", execution.id, error)
        await self._take_back([item])
        await self._parts.store.set_aside([execution.uuid], now, Millis(now + SET_ASIDE))

    async def _check(self, taken: Sequence[Taken]) -> list[Taken]:
        await self._refresh()
        named = {
            item.snapshot.execution.uuid: names
            for item in taken
            if (self._attached or item.snapshot.head.flags & Flags.BUDGETS)
            and is_start(item.snapshot)
            and (names := self._names_of(item.snapshot.execution))
        }
        if not named:
            return list(taken)
        asked = tuple(dict.fromkeys(name for names in named.values() for name in names))
        budgets = (await self._parts.store.books(BookAsk(budgets=asked))).budgets
        refused = {
            uuid: why
            for uuid, names in named.items()
            if (why := _spent(budgets, names)) is not None
        }
        self._count_admitted(named, refused)
        if refused:
            await self._turn_away(taken, refused)
        return [item for item in taken if item.snapshot.execution.uuid not in refused]

    def reserving(self, uuid: UUID) -> None:
        """This execution has something set aside: it is looked at when its lease goes."""
        self._reserving.add(uuid)

    async def sweep(self) -> None:
        """Resets what is due, and gives back what dead leases have set aside."""
        while due := await self._parts.store.due_budgets(self._now(), PAGE):
            resets = (self._tried(self._reset_due(name)) for name in due)
            if not any(await asyncio.gather(*resets)) or len(due) < PAGE:
                break
        await self._give_back()

    async def next_at(self) -> Millis | None:
        return await self._parts.store.next_reset()

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self.books.drain()

    async def _refresh(self) -> None:
        """Whoever asks meanwhile waits: budgets that are not known would admit everybody."""
        async with self._refreshing:
            now = asyncio.get_running_loop().time()
            if self._refreshed_at is not None and now - self._refreshed_at < REFRESH:
                return
            self._refreshed_at = now
            try:
                attached = await self._parts.store.attached()
            except BaseException:
                self._refreshed_at = None
                raise
            self._attached = {}
            for scope, id, name in attached:
                self._attached.setdefault((scope, id), []).append(name)

    async def _turn_away(self, taken: Sequence[Taken], refused: dict[UUID, Exhausted]) -> None:
        decisions = []
        for item in taken:
            why = refused.get(item.snapshot.execution.uuid)
            state = item.snapshot.state
            if why is not None and isinstance(state, Active):
                rule = partial(_turned_away, lease=state.lease, why=why)
                decisions.append(Decision(item.snapshot.execution.uuid, rule, item.snapshot))
        for answer in await self._parts.decisions.decide_all(decisions):
            if isinstance(answer, Exception):
                log.warning("a refused execution keeps its lease until it runs out: %s", answer)

    async def _take_back(self, taken: Sequence[Taken]) -> None:
        decisions = [
            Decision(item.snapshot.execution.uuid, partial(_taken_back, lease=state.lease))
            for item in taken
            if isinstance(state := item.snapshot.state, Active)
        ]
        await self._parts.decisions.decide_all(decisions)

    def _count_admitted(
        self, named: dict[UUID, tuple[str, ...]], refused: dict[UUID, Exhausted]
    ) -> None:
        """Lets more in once half of the last page was taken."""
        if not self._crowded:
            return
        for uuid, names in named.items():
            for name in names if uuid not in refused else ():
                if name in self._crowded:
                    self._crowded[name] += 1
                    if self._crowded[name] * 2 >= PAGE:
                        self._admit_soon([name])

    def _admit_soon(self, names: Iterable[str]) -> None:
        for name in names:
            self._crowded.pop(name, None)
            self._spawn(self.let_in(name))

    async def let_in(self, name: str) -> None:
        """One page of those who wait for a budget, if it admits."""
        books = await self._parts.store.books(BookAsk(budgets=(name,)))
        if _spent(books.budgets, (name,)) is not None:
            return
        waiting = await self._parts.store.waiting_in(budget_queue(name), PAGE)
        rule = partial(_let_in, budget=name)
        await self._parts.decisions.decide_all([Decision(uuid, rule) for uuid in waiting])
        if len(waiting) == PAGE:
            self._crowded[name] = 0

    def _let_go(self, uuids: Iterable[UUID]) -> None:
        for uuid in uuids:
            if uuid in self._reserving:
                self._reserving.discard(uuid)
                self._spawn(self._give_back_of(uuid))

    async def _give_back_of(self, uuid: UUID) -> None:
        found = await self._parts.store.books(BookAsk(executions=(uuid,)))
        if not found.reservations:
            return
        snapshot = (await self._parts.store.load([uuid])).get(uuid)
        epoch = _live_epoch(snapshot)
        for reservation in found.reservations.values():
            if reservation.execution == uuid and reservation.epoch != epoch:
                await self._drop(reservation.id, reservation.budgets)

    async def _give_back(self) -> None:
        while stale := await self._parts.store.stale_reservations(PAGE):
            drops = (self._tried(self._drop(each.id, each.budgets)) for each in stale)
            if not any(await asyncio.gather(*drops)) or len(stale) < PAGE:
                break

    async def _reset_due(self, name: str) -> bool:
        ask = BookAsk(budgets=(name,))
        await self.books.post(
            ask, lambda books, now: budgeting.reset(books, name, now, due_only=True)
        )
        return True

    async def _drop(self, id: UUID, budgets: tuple[str, ...]) -> bool:
        ask = BookAsk(budgets=budgets, reservations=(id,))
        return await self.books.post(ask, lambda books, now: rules.drop(books, id, now))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(self._tried(work), name="flowfabric-budgets")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tried(self, work: Coroutine[None, None, T]) -> T | None:
        """What comes of the work; None when it is left to the sweep, which costs no other work."""
        try:
            return await work
        except FlowFabricError as error:
            log.warning("a budget is left to the sweep: %s", error)
            return None


def waited_for(snapshot: Snapshot) -> str | None:
    """The budget an execution waits for."""
    match snapshot.state:
        case Waiting(gate=Gate.BUDGET):
            return snapshot.life.budget
        case _:
            return None


def _scopes(execution: Execution) -> list[tuple[str, str]]:
    found = [(Scope.NAMESPACE, execution.route.namespace), (Scope.RUN, str(execution.id))]
    if execution.flow is not None:
        found.append((Scope.FLOW, str(execution.flow)))
    return [(str(scope), id) for scope, id in found]


def _spent(budgets: dict[str, Budget], names: Iterable[str]) -> Exhausted | None:
    """Why nothing may start; a budget that was deleted limits nothing."""
    known = [name for name in names if name in budgets]
    for budget in chain(budgets, known):
        if (why := exhausted(budget)) is not None:
            return why
    return None


def _live_epoch(snapshot: Snapshot | None) -> int | None:
    if snapshot is None or not isinstance(snapshot.state, Active):
        return None
    return snapshot.head.epoch


def _turned_away(
    found: Snapshot | None, now: Millis, *, lease: Lease, why: Exhausted
) -> Change[bool]:
    return turn_away(found, lease, why, now)


def _taken_back(found: Snapshot | None, now: Millis, *, lease: Lease) -> Change[bool]:
    return take_back(found, lease, now)


def _let_in(found: Snapshot | None, now: Millis, *, budget: str) -> Change[bool]:
    return let_in(found, budget, now)
