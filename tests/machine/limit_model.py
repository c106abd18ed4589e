"""What the model knows of limits: what was defined last, who started when, what was charged.

It hears of every write in the order of commits and keeps its own accounts. A limit that is lowered
stops only newcomers: what is above it at that moment may stay, and may only become less.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from flowfabric.core.execution.model import Active, Lost, Ready, Snapshot, Start, Waiting
from flowfabric.core.limit.budget import Amounts, Budget, chain
from flowfabric.core.limit.lane import Lane
from flowfabric.core.limit.quota import Quota, Rate, Use, Uses
from flowfabric.core.limit.spend import BudgetLedger

ALL = None
Part = tuple[str, str | None]
"""A quota, and a key of it or all of them."""


@dataclass
class Begun:
    """One that was let through to begin an attempt. It was `unbegun` if it went back before anybody
    had its attempt."""

    uuid: UUID
    at: int
    uses: Uses
    unbegun: bool = False


@dataclass
class Account:
    """What a budget must show: what was charged since its period began."""

    period: int
    charged: Counter[str] = field(default_factory=Counter)


@dataclass
class Aside:
    """What was set aside, and of which budgets that still exist. `names` are all it was made of."""

    budgets: set[str]
    amounts: Amounts
    names: tuple[str, ...]


@dataclass
class Book:
    quotas: dict[str, Quota] = field(default_factory=dict)
    bounds: dict[Part, int] = field(default_factory=dict)
    begun: list[Begun] = field(default_factory=list)
    since: dict[tuple[str, bool], int] = field(default_factory=dict)
    """From which start on a rate is to hold; `True` for the one per key."""
    lanes: dict[str, Lane] = field(default_factory=dict)
    lane_bounds: dict[str, int] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    aside: dict[UUID, Aside] = field(default_factory=dict)
    wanted: dict[str, list[tuple[tuple[str, ...], Amounts]]] = field(default_factory=dict)
    """What was asked for under a key."""
    counted: dict[str, set[str]] = field(default_factory=dict)
    """The budgets that remember a key."""
    releasing: int = 0
    """How many calls are under way that take back what was spent."""

    # -- quotas

    def define(self, quota: Quota, held: Mapping[Part, int]) -> None:
        old = self.quotas.get(quota.name)
        for per_key, rate in _rates(quota):
            if old is None or dict(_rates(old))[per_key] != rate:
                self.since[quota.name, per_key] = len(self.begun)
        self.quotas[quota.name] = quota
        self._forget(quota.name)
        for part, number in held.items():
            if part[0] == quota.name:
                self.bounds[part] = number

    def drop(self, name: str) -> None:
        self.quotas.pop(name, None)
        self._forget(name)

    def let_through(self, before: Iterable[Snapshot], at: int) -> None:
        """An attempt that goes on after a wait is no start."""
        for snapshot in before:
            state = snapshot.state
            if isinstance(state, Waiting) and state.next.start is not Start.CONTINUE:
                self.begun.append(Begun(snapshot.execution.uuid, at, snapshot.execution.uses))

    def go_back(self, before: Snapshot, after: Snapshot) -> None:
        """One that was let through waits again, for the attempt it waited for before."""
        match before.state, after.state:
            case Ready(next=first), Waiting(next=again):
                unbegun = (first.start, first.attempt) == (again.start, again.attempt)
            case Active(lease=lease), Waiting(next=again):
                unbegun = (lease.start, lease.attempt) == (again.start, again.attempt)
            case _:
                return
        if unbegun and again.start is not Start.CONTINUE:
            uuid = before.execution.uuid
            last = next((each for each in reversed(self.begun) if each.uuid == uuid), None)
            if last is not None:
                last.unbegun = True

    def check_slots(self, held: Mapping[Part, int]) -> None:
        for part, number in held.items():
            quota = self.quotas.get(part[0])
            if quota is None:
                continue
            cap = quota.concurrency if part[1] is ALL else quota.concurrency_per_key
            if cap is None:
                continue
            bound = max(cap, self.bounds.get(part, 0))
            assert number <= bound, f"{number} hold slots of {part}, at most {bound} may"
        for part in self.bounds:
            self.bounds[part] = min(self.bounds[part], held.get(part, 0))

    def check_rates(self) -> None:
        for quota in self.quotas.values():
            for per_key, rate in _rates(quota):
                if rate is not None:
                    first = self.since.get((quota.name, per_key), 0)
                    self._check_rate(quota.name, rate, per_key, self.begun[first:])

    def _check_rate(self, name: str, rate: Rate, per_key: bool, begun: list[Begun]) -> None:
        for key, moments in self._moments(name, per_key=per_key, begun=begun).items():
            for end in moments:
                within = [at for at in moments if end - rate.window < at <= end]
                assert len(within) <= rate.count, f"{len(within)} starts of {name} {key!r}: {rate}"

    def _moments(
        self, name: str, *, per_key: bool, begun: list[Begun]
    ) -> dict[str | None, list[int]]:
        """When attempts of a quota began, by key or of all keys together."""
        times: dict[str | None, list[int]] = {}
        for start in begun:
            for use in start.uses if not start.unbegun else ():
                if use.quota == name:
                    times.setdefault(use.key if per_key else ALL, []).append(start.at)
        return times

    def _forget(self, name: str) -> None:
        self.bounds = {part: bound for part, bound in self.bounds.items() if part[0] != name}

    # -- lanes

    def decide(self, lane: Lane, running: int) -> None:
        self.lanes[lane.name] = lane
        self.lane_bounds[lane.name] = running

    def check_lanes(self, running: Mapping[str, int]) -> None:
        for name, lane in self.lanes.items():
            number = running.get(name, 0)
            if lane.concurrency is not None:
                bound = max(lane.concurrency, self.lane_bounds[name])
                assert number <= bound, f"{number} of lane {name} run, at most {bound} may"
            self.lane_bounds[name] = min(self.lane_bounds[name], number)

    # -- budgets

    def want(self, key: str, names: tuple[str, ...], amounts: Amounts) -> None:
        """Somebody is about to charge this, perhaps not for the first time, and perhaps beside
        somebody who charges something else for the same key."""
        if not self.counted.get(key):
            self.wanted.setdefault(key, []).append((names, amounts))

    def post(self, books: BudgetLedger) -> None:
        """What was written: new periods begin with nothing, keys are counted once."""
        for name in books.removed:
            self._remove(name)
        known = {name: books.budgets[name] for name in books.changed if name in books.budgets}
        begun = [budget for budget in known.values() if self._begin(budget)]
        for key in dict.fromkeys(key for _, key in books.new_charges):
            if key in self.wanted:
                self._charge(key, books)
        for budget in begun:
            self._leave_behind(budget)
        self._set_aside(books)
        if self.releasing:
            for budget in known.values():
                self._give_back(budget)

    def _begin(self, budget: Budget) -> bool:
        """Whether a new period began with this write."""
        account = self.accounts.get(budget.name)
        if account is not None and account.period == budget.period:
            return False
        self.accounts[budget.name] = Account(budget.period)
        return True

    def _leave_behind(self, now: Budget) -> None:
        """A charge and a reset in one write: what was charged first is of the old period."""
        charged, total = self.accounts[now.name].charged, _total(now)
        assert total <= charged, f"{now.name} counts {dict(total)}, at most {dict(charged)}"
        self.accounts[now.name].charged = total

    def _set_aside(self, books: BudgetLedger) -> None:
        for id, reservation in books.new_reservations.items():
            if reservation is None:
                del self.aside[id]
            else:
                found = {budget.name for budget in chain(books.budgets, reservation.budgets)}
                self.aside[id] = Aside(found, reservation.amounts, reservation.budgets)

    def _give_back(self, now: Budget) -> None:
        """The account is what is left, which must not be more than before."""
        charged = self.accounts[now.name].charged
        left = _total(now)
        assert left <= charged, f"a release adds to {now.name}"
        self.accounts[now.name].charged = left

    def check_budget(self, budget: Budget) -> None:
        name = budget.name
        total = _total(budget)
        wanted = self.accounts[name].charged
        assert total == +wanted, f"{name} counts {dict(total)}, not {dict(wanted)}"
        aside: Counter[str] = Counter()
        for kept in self.aside.values():
            if name in kept.budgets:
                aside.update(kept.amounts)
        assert Counter(budget.reserved) == +aside, f"{name}: {budget.reserved} set aside: {aside}"

    def _charge(self, key: str, books: BudgetLedger) -> None:
        assert not self.counted.get(key), f"{key} is counted again"
        names, amounts = self._counted_amounts(key, books)
        self.counted[key] = {name for name, word in books.new_charges if word == key}
        for budget in chain(books.budgets, [name for name in names if name in books.budgets]):
            self.accounts[budget.name].charged.update(amounts)

    def _counted_amounts(self, key: str, books: BudgetLedger) -> tuple[tuple[str, ...], Amounts]:
        """Of what was wanted for a key at once, that which the budgets show."""
        for names, amounts in self.wanted[key]:
            budgets = chain(books.budgets, [name for name in names if name in books.budgets])
            if all(
                _total(each) == +(self.accounts[each.name].charged + Counter(amounts))
                for each in budgets
            ):
                return names, amounts
        return self.wanted[key][0]

    def _remove(self, name: str) -> None:
        self.accounts.pop(name, None)
        for names in self.counted.values():
            names.discard(name)
        for kept in self.aside.values():
            kept.budgets.discard(name)


def held_by(snapshots: Iterable[Snapshot]) -> Counter[Part]:
    """How many hold a slot: whoever is ready, lost or running."""
    held: Counter[Part] = Counter()
    for snapshot in snapshots:
        if isinstance(snapshot.state, Ready | Lost | Active):
            for use in snapshot.execution.uses:
                held.update(_context(use))
    return held


def running_by_lane(snapshots: Iterable[Snapshot]) -> Counter[str]:
    return Counter(one.execution.route.lane for one in snapshots if isinstance(one.state, Active))


def _context(use: Use) -> tuple[Part, Part]:
    return (use.quota, ALL), (use.quota, use.key)


def _rates(quota: Quota) -> list[tuple[bool, Rate | None]]:
    return [(False, quota.rate), (True, quota.rate_per_key)]


def _total(budget: Budget) -> Counter[str]:
    return +(Counter(budget.used) + Counter(budget.overrun))
