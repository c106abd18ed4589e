"""What must hold of limits after every step, and what must hold when nothing is under way."""

from collections import Counter
from dataclasses import dataclass, field

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.gate import DELAYS, closed
from flowfabric.core.execution.model import Active, Ended, Gate, Snapshot, Start, Waiting
from flowfabric.core.limit.budget import Budget, chain, exhausted
from flowfabric.core.limit.lane import begins
from flowfabric.core.limit.quota import queue_of
from flowfabric.core.limit.release import Room
from flowfabric.store.queries import LedgerNeeds, QuotaViewRequest
from flowfabric.store.rows import record
from tests.machine.limit_deeds import LOOSE, QUOTAS, TREE
from tests.machine.limit_model import held_by, running_by_lane
from tests.machine.limit_play import LimitPlay

MANY = 500
BUDGETS = (*(name for name, _ in TREE), LOOSE)


@dataclass
class Checks:
    play: LimitPlay
    bounds: dict[tuple[str, str], tuple[object, int]] = field(default_factory=dict)

    async def step(self) -> None:
        """After every step."""
        book, found = self.play.book, await self.play.look()
        book.check_slots(held_by(found.values()))
        book.check_rates()
        book.check_lanes(running_by_lane(found.values()))
        await self._budgets(found.values())

    async def rest(self) -> None:
        """Nothing is under way and somebody has swept: nobody waits who could go."""
        await self.step()
        now = self.play.clock.now()
        for snapshot in self.play.seen.values():
            if isinstance(snapshot.state, Waiting):
                await self._waits_for_something(snapshot, snapshot.state, now)
            if not isinstance(snapshot.state, Ended):
                explained = await self.play.other.explain(snapshot.execution.id)
                assert explained.reasons, f"nobody knows why {snapshot} does not run"
        await self._reservations_are_alive()

    async def end(self) -> None:
        """Everything has ended: nothing of it is left anywhere."""
        store = self.play.plain
        assert await store.crowds(-1, MANY) == [], "somebody still waits"
        for quota in QUOTAS:
            assert await store.queue_counts(quota, MANY) == [], f"slots of {quota} are left"
        for budget in await store.records.page(record.BUDGETS, "", MANY):
            assert not budget.reserved, f"something of {budget.name} is set aside for ever"
        assert not self.play.book.aside, "reservations are left"

    async def _budgets(self, found: "object") -> None:
        uuids = tuple(self.play.seen)
        books = await self.play.plain.ledger(LedgerNeeds(budgets=BUDGETS, executions=uuids))
        assert books.budgets.keys() == self.play.book.accounts.keys(), "the budgets"
        for budget in books.budgets.values():
            self._within(budget)
            self.play.book.check_budget(budget)
        spent: dict[str, Counter[str]] = {name: Counter() for name in books.budgets}
        for ledger in books.ledgers.values():
            if ledger.period == books.budgets[ledger.budget].period:
                spent[ledger.budget].update(ledger.amounts)
        for name, total in spent.items():
            if name != LOOSE:
                used = Counter(books.budgets[name].used)
                assert used == +total, f"{name}: ledgers tell {total}, the budget {used}"
        assert books.reservations.keys() == self.play.book.aside.keys(), "the reservations"

    def _within(self, budget: Budget) -> None:
        """A strict limit is not passed, but by what was there when it was lowered."""
        for dimension, limit in budget.limits.items():
            key, taken = (budget.name, dimension), budget.taken(dimension)
            terms = (limit.hard, budget.strict, budget.created_at)
            if limit.hard is None or not budget.strict:
                self.bounds.pop(key, None)
                continue
            known, bound = self.bounds.get(key, (None, 0))
            if known != terms:
                bound = taken
            allowed = max(bound, limit.hard)
            assert taken <= allowed, f"{taken} of {allowed} {dimension} taken of {budget.name}"
            self.bounds[key] = (terms, min(bound, taken))

    async def _waits_for_something(self, found: Snapshot, state: Waiting, now: Millis) -> None:
        gates = list(closed(found.life, now, found.head.flags))
        assert state.gate in gates, f"{found} waits at an open gate"
        if state.gate is Gate.LIMIT:
            if self._may_be_taken(found, state):
                await self._has_no_room(found, state, now)
        elif state.gate is Gate.BUDGET:
            name = found.life.budget or ""
            books = await self.play.plain.ledger(LedgerNeeds(budgets=(name,)))
            upper = chain(books.budgets, [name]) if name in books.budgets else []
            assert any(map(exhausted, upper)), f"{found} waits for a budget that admits"
        elif state.gate in DELAYS:
            assert state.due_at is not None, f"{found} waits for no moment"
            assert state.due_at > now, f"{found} is due"

    def _may_be_taken(self, found: Snapshot, state: Waiting) -> bool:
        """What its lane keeps from being taken needs no slot, whether or not there is one."""
        lane = self.play.book.lanes.get(found.execution.route.lane)
        return lane is None or begins(lane, state.next.start)

    async def _has_no_room(self, found: Snapshot, state: Waiting, now: Millis) -> None:
        uses = found.execution.uses
        starts = state.next.start is not Start.CONTINUE
        for use in uses:
            ask = QuotaViewRequest(use.quota, (queue_of(uses),), MANY, MANY, now)
            standing = await self.play.plain.quota_view(ask)
            room = Room(standing, now)
            need = room.need(uses)
            fits = room.has_slot(need) and (not starts or room.may_start(need))
            assert not fits, f"there is room for {found} in {use.quota}"

    async def _reservations_are_alive(self) -> None:
        assert not (await self.play.plain.ledger(LedgerNeeds(stale=MANY))).reservations
        uuids = tuple(self.play.seen)
        books = await self.play.plain.ledger(LedgerNeeds(executions=uuids))
        for reservation in books.reservations.values():
            owner = self.play.seen[reservation.execution]
            alive = isinstance(owner.state, Active) and owner.head.epoch == reservation.epoch
            assert alive, f"{reservation} of a lease that is gone"
