"""The budget gate: a claimed execution is checked against its budgets before a worker gets it.

A new run whose budget is used up goes back and waits in the budget's queue. When the budget has
room again (after a reset, a raised limit or a release), a page of those is admitted, and the next
page as soon as half of the first was claimed: admitting a hundred thousand to send all but ten back
would be a storm.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TypeVar
from uuid import UUID

from flowfabric.core.base.errors import Corruption, FlowFabricError
from flowfabric.core.base.pages import in_pages
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import Active, Flags, Gate, Lease, Snapshot, Waiting
from flowfabric.core.limit import spend as rules
from flowfabric.core.limit.budget import Exhausted, Reservation, spent
from flowfabric.core.limit.budget_gate import (
    hold_back,
    is_start,
    let_in,
    take_back,
    turn_away,
)
from flowfabric.core.limit.quota import budget_queue
from flowfabric.engine.commit.background import Background
from flowfabric.engine.commit.decide import Decision
from flowfabric.engine.commit.observer import watching
from flowfabric.engine.commit.post_commit import Commit
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.limit.known_budgets import KnownBudgets
from flowfabric.engine.limit.ledger import LedgerWriter
from flowfabric.engine.limit.releases import Releases
from flowfabric.store.queries import InQueue, LedgerNeeds, Taken
from flowfabric.store.readable import SET_ASIDE, load_readable
from flowfabric.store.rows.record import BUDGETS

T = TypeVar("T")

PAGE = 200
MOST_WAITING = 100_000

# A plain number, because flags are slow and every claim is tested.
_BUDGETS = int(Flags.BUDGETS)

log = logging.getLogger("flowfabric.limits")


class BudgetGate(Service):
    """Shared by `engine.claims`, `engine.budgets` and the sweep."""

    def __init__(self, context: EngineContext, releases: Releases) -> None:
        super().__init__(context)
        self._releases = releases
        self.ledger = LedgerWriter(context.store, self._admit_soon)
        self.known = KnownBudgets(context)
        self._crowded: dict[str, int] = {}
        self._resets: dict[str, Millis] = {}
        self._reserving: set[UUID] = set()
        self._background = Background("work for budgets", log)

    async def check(self, taken: Sequence[Taken]) -> list[Taken]:
        """The executions that may start; the rest waits for its budget. An unreadable budget admits
        nothing: its executions go back. If there are no others, the caller gets the error;
        otherwise they are set aside, and the others continue."""
        try:
            return await self._check(taken)
        except Corruption as error:
            if len(taken) == 1:
                await self._leave(taken[0], error)
                raise
        except FlowFabricError:
            self._background.start(partial(self._take_back, taken))
            raise
        admitted: list[Taken] = []
        for item in taken:
            with suppress(Corruption):
                admitted += await self.check([item])
        return admitted

    async def _leave(self, item: Taken, error: Corruption) -> None:
        """Returns an execution with an unreadable budget and sets it aside for a while, because the
        next claim would take it again at once."""
        execution, now = item.snapshot.execution, self._now()
        log.error(
            "run %s waits a minute: a budget cannot be read: %s",
            execution.uuid,
            error,
            extra={"run": str(execution.uuid)},
        )
        await self._take_back([item])
        await self._context.store.set_aside([execution.uuid], now, Millis(now + SET_ASIDE))

    async def _check(self, taken: Sequence[Taken]) -> list[Taken]:
        await self.known.refresh()
        named = {
            item.snapshot.execution.uuid: names
            for item in taken
            if (self.known.attached or int(item.snapshot.head.flags) & _BUDGETS)
            and is_start(item.snapshot)
            and (names := self.known.named(item.snapshot.execution))
        }
        if not named:
            return list(taken)
        asked = tuple(dict.fromkeys(name for names in named.values() for name in names))
        budgets = await self.known.budgets(asked)
        refused = {
            uuid: why for uuid, names in named.items() if (why := spent(budgets, names)) is not None
        }
        self._count_admitted(named, refused)
        if refused:
            await self._turn_away(taken, refused)
        return [item for item in taken if item.snapshot.execution.uuid not in refused]

    async def hold_back(self, refused: Sequence[tuple[Snapshot, Exhausted]]) -> None:
        """Lets executions that no worker has yet wait for their budgets."""
        decisions = []
        for snapshot, why in refused:
            self._note_reset(why)
            rule = partial(_held_back, why=why)
            decisions.append(Decision(snapshot.execution.uuid, rule, snapshot))
        await self._context.decisions.decide_all(decisions)

    async def let_in_due(self) -> None:
        """Admits what was refused here until a reset that has come since. The sweep finds the
        rest."""
        if not self._resets:
            return
        now = self._now()
        for name in [name for name, at in self._resets.items() if at <= now]:
            del self._resets[name]
            # In a task of its own: a caller that is cancelled does not leave it half done.
            await asyncio.shield(self._background.start(partial(self.let_in, name), name))

    def reserving(self, uuid: UUID) -> None:
        """Remembers that this execution has a reservation, to release it when the lease is gone."""
        self._reserving.add(uuid)

    async def sweep(self) -> None:
        """Resets budgets that are due, and releases reservations of dead leases."""
        records = self._context.store.records
        while due := await records.due(BUDGETS, self._now(), PAGE):
            resets = (_tried(self._reset_due(budget.name)) for budget in due)
            if not any(await asyncio.gather(*resets)) or len(due) < PAGE:
                break
        await self._give_back()

    async def next_at(self) -> Millis | None:
        return await self._context.store.records.next_due(BUDGETS)

    @property
    def busy(self) -> bool:
        return bool(self._background)

    async def drain(self) -> None:
        await self._background.drain()
        await self.ledger.drain()

    async def _turn_away(self, taken: Sequence[Taken], refused: dict[UUID, Exhausted]) -> None:
        turned: list[Snapshot] = []
        decisions = []
        for item in taken:
            why = refused.get(item.snapshot.execution.uuid)
            state = item.snapshot.state
            if why is not None and isinstance(state, Active):
                rule = partial(_turned_away, lease=state.lease, why=why)
                decisions.append(Decision(item.snapshot.execution.uuid, rule, item.snapshot))
                turned.append(item.snapshot)
                self._note_reset(why)
                watching().refused_by_budget(why.dimension)
        answers = await self._context.decisions.decide_all(decisions)
        for answer in answers:
            if isinstance(answer, Exception):
                log.warning(
                    "giving back a refused run failed; its lease has to expire: %s",
                    answer,
                )
        self._releases.turned_away(_unbegun(turned, answers))

    async def _take_back(self, taken: Sequence[Taken]) -> None:
        held = [item.snapshot for item in taken]
        decisions = [
            Decision(snapshot.execution.uuid, partial(_taken_back, lease=state.lease))
            for snapshot in held
            if isinstance(state := snapshot.state, Active)
        ]
        answers = await self._context.decisions.decide_all(decisions)
        self._releases.turned_away(_unbegun(held, answers))

    def _note_reset(self, why: Exhausted) -> None:
        if why.next_reset_at is not None:
            self._resets[why.budget] = why.next_reset_at

    def _count_admitted(
        self, named: dict[UUID, tuple[str, ...]], refused: dict[UUID, Exhausted]
    ) -> None:
        """Admits the next page once half of the last one was claimed."""
        if not self._crowded:
            return
        claimed = (names for uuid, names in named.items() if uuid not in refused)
        for name in chain.from_iterable(claimed):
            if name in self._crowded:
                self._crowded[name] += 1
                if self._crowded[name] * 2 >= PAGE:
                    self._admit_soon([name])

    def _admit_soon(self, names: Iterable[str]) -> None:
        for name in names:
            self._crowded.pop(name, None)
            self._context.rounds.open(self._background.start(partial(self.let_in, name), name))

    def free_soon(self, names: Iterable[str]) -> None:
        """Admits what waits for one of these budgets but is no longer limited by it."""
        for name in names:
            self._context.rounds.open(self._background.start(partial(self._free, name), name))

    async def _free(self, name: str) -> None:
        store, rule = self._context.store, partial(_let_in, budget=name)
        waiting = await store.executions_in(InQueue(budget_queue(name)), MOST_WAITING)
        for page in in_pages(waiting, PAGE):
            found = await load_readable(store.load, page)
            free = await self.known.not_limited_by(name, found.values())
            await self._context.decisions.decide_all([Decision(uuid, rule) for uuid in free])

    async def let_in(self, name: str) -> None:
        """Admits one page of the executions that wait for a budget, if it has room."""
        why = spent(await self.known.budgets((name,)), (name,))
        if why is not None:
            self._note_reset(why)
            first = await self._context.store.executions_in(InQueue(budget_queue(name)), 1)
            found = await load_readable(self._context.store.load, first)
            if await self.known.not_limited_by(name, found.values()):
                await self._free(name)
            return
        waiting = await self._context.store.executions_in(InQueue(budget_queue(name)), PAGE)
        rule = partial(_let_in, budget=name)
        await self._context.decisions.decide_all([Decision(uuid, rule) for uuid in waiting])
        if len(waiting) == PAGE:
            self._crowded[name] = 0

    def committed(self, commit: Commit) -> None:
        for uuid in commit.unleased:
            if uuid in self._reserving:
                self._reserving.discard(uuid)
                self._background.start(partial(self._give_back_of, uuid))

    async def _give_back_of(self, uuid: UUID) -> None:
        found = await self._context.store.ledger(LedgerNeeds(executions=(uuid,)))
        if not found.reservations:
            return
        snapshot = (await self._context.store.load([uuid])).get(uuid)
        epoch = _live_epoch(snapshot)
        for reservation in found.reservations.values():
            if reservation.execution == uuid and reservation.epoch != epoch:
                await self._drop(reservation.id, reservation.budgets)

    async def _stale(self) -> list[Reservation]:
        found = await self._context.store.ledger(LedgerNeeds(stale=PAGE))
        return list(found.reservations.values())

    async def _give_back(self) -> None:
        while stale := await self._stale():
            drops = (_tried(self._drop(each.id, each.budgets)) for each in stale)
            if not any(await asyncio.gather(*drops)) or len(stale) < PAGE:
                break

    async def _reset_due(self, name: str) -> bool:
        ask = LedgerNeeds(budgets=(name,))
        await self.ledger.post(ask, lambda ledger, now: None)  # posting brings it up to date
        return True

    async def _drop(self, id: UUID, budgets: tuple[str, ...]) -> bool:
        ask = LedgerNeeds(budgets=budgets, reservations=(id,))
        return await self.ledger.post(ask, lambda ledger, now: rules.drop(ledger, id, now))


async def _tried(work: Coroutine[None, None, T]) -> T | None:
    """The result of the work; None if it failed and is left to the sweep."""
    try:
        return await work
    except FlowFabricError as error:
        log.warning("work for a budget failed; the sweep tries again: %s", error)
        return None


def waited_for(snapshot: Snapshot) -> str | None:
    """The budget that an execution waits for."""
    match snapshot.state:
        case Waiting(gate=Gate.BUDGET):
            return snapshot.life.budget
        case _:
            return None


def _unbegun(snapshots: Sequence[Snapshot], answers: Sequence[bool | Exception]) -> list[Snapshot]:
    """The executions that went back before a worker had them, and so started nothing that a rate
    counts."""
    pairs = zip(snapshots, answers, strict=True)
    return [snapshot for snapshot, back in pairs if back is True and is_start(snapshot)]


def _live_epoch(snapshot: Snapshot | None) -> int | None:
    if snapshot is None or not isinstance(snapshot.state, Active):
        return None
    return snapshot.head.epoch


def _turned_away(
    found: Snapshot | None, now: Millis, *, lease: Lease, why: Exhausted
) -> Change[bool]:
    return turn_away(found, now, lease, why)


def _held_back(found: Snapshot | None, now: Millis, *, why: Exhausted) -> Change[bool]:
    return hold_back(found, now, why)


def _taken_back(found: Snapshot | None, now: Millis, *, lease: Lease) -> Change[bool]:
    return take_back(found, now, lease)


def _let_in(found: Snapshot | None, now: Millis, *, budget: str) -> Change[bool]:
    return let_in(found, now, budget)
