"""Spending: charges, reservations and releases of budgets.

Every rule checks all its budgets before it changes any: a refusal counts nothing. The rules of one
batch are decided one after the other on the same `BudgetLedger` and written as one change.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import replace

from flowfabric.core.base.document import Document
from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.limit.budget import (
    MAX_AMOUNT,
    Amounts,
    Budget,
    Ledger,
    OnHard,
    OnSoft,
    Reservation,
    chain,
)

REMEMBERED = Millis(24 * 3_600_000)
"""How long a key prevents the same amount from being counted again."""

LedgerKey = tuple[str, UUID]
ChargeKey = tuple[str, str]


class Spent(Struct, frozen=True, tag=True):
    """Counted, within every limit."""


class SoftBreach(Struct, frozen=True, tag=True):
    """Counted, and a soft or advisory limit was exceeded. `more` is what an approval would add, if
    the budget asks for one."""

    budget: str
    dimension: str
    used: int
    limit: int
    action: OnSoft = OnSoft.WARN
    more: int | None = None


class HardBreach(Struct, frozen=True, tag=True):
    """Nothing was counted, because the amount does not fit. `used` is already taken."""

    budget: str
    dimension: str
    used: int
    limit: int
    action: OnHard = OnHard.REFUSE


class Overrun(Struct, frozen=True, tag=True):
    """Counted up to the limit; `excess` was consumed beyond it and is kept separately."""

    budget: str
    dimension: str
    used: int
    limit: int
    excess: int


Counted = Spent | SoftBreach | Overrun
C = TypeVar("C", bound=Counted)
Charged = Spent | SoftBreach | HardBreach


class AlreadyApplied(Struct, frozen=True):
    """The key was already used; `outcome` is the first answer."""

    outcome: Counted


class Reserved(Struct, frozen=True):
    reservation: Reservation


class Created(Struct, frozen=True):
    name: str


class Known(Struct, frozen=True):
    """A budget of that name exists; nothing was compared or changed."""

    name: str


class Reset(Struct, frozen=True):
    """The next scheduled reset; None if there is none."""

    next_reset_at: Millis | None


class Charge(Document, frozen=True, kw_only=True):
    """The outcome of a key, stored so that a repeat counts nothing."""

    budget: str = ""
    key: str = ""
    until: Millis = Millis(0)
    outcome: Counted = Spent()
    stale: bool = False


class BudgetLedger(Struct):
    """The budgets of a batch, as read and with the batch's postings so far. `changed` are the
    versions to compare, `made` the reservations of this batch; the rest is what to write."""

    budgets: dict[str, Budget] = field(default_factory=dict)
    ledgers: dict[LedgerKey, Ledger] = field(default_factory=dict)
    charges: dict[ChargeKey, Charge] = field(default_factory=dict)
    reservations: dict[UUID, Reservation] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    new_ledgers: dict[LedgerKey, Ledger | None] = field(default_factory=dict)
    new_charges: dict[ChargeKey, Charge] = field(default_factory=dict)
    new_reservations: dict[UUID, Reservation | None] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    made: set[UUID] = field(default_factory=set)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.changed or self.new_ledgers or self.new_charges or self.new_reservations)

    def put(self, budget: Budget) -> None:
        old = self.budgets.get(budget.name)
        self.changed.setdefault(budget.name, 0 if old is None else old.version)
        self.budgets[budget.name] = budget
        self.removed.discard(budget.name)

    def remove(self, name: str) -> None:
        """Deletes the budget and its records."""
        self.changed.setdefault(name, self.budgets.pop(name).version)
        self.removed.add(name)

    def put_ledger(self, key: LedgerKey, ledger: Ledger | None) -> None:
        """Writes or deletes an entry. The version of its budget guards it: in the next period
        another process may have written a new one."""
        if (budget := self.budgets.get(key[0])) is not None:
            self.put(budget)
        self.new_ledgers[key] = ledger
        if ledger is None:
            self.ledgers.pop(key, None)
        else:
            self.ledgers[key] = ledger

    def put_charge(self, charge: Charge) -> None:
        self.charges[charge.budget, charge.key] = charge
        self.new_charges[charge.budget, charge.key] = charge

    def put_reservation(self, id: UUID, reservation: Reservation | None) -> None:
        if reservation is not None:
            if id not in self.new_reservations:  # otherwise it replaces a stored one
                self.made.add(id)
            self.reservations[id] = self.new_reservations[id] = reservation
            return
        self.reservations.pop(id, None)
        if id in self.made:  # not stored yet, so there is nothing to delete
            del self.new_reservations[id]
        else:
            self.new_reservations[id] = None


class Expense(Struct, frozen=True):
    """A request to charge budgets and their parents, for an execution if one is named. `stale`: the
    caller has lost its lease; the consumed amount is counted all the same. `attached`: the budgets
    apply to the execution and were not named by this call; a deleted one limits nothing. `epoch` is
    that of the caller's lease, if any: reservations of earlier leases of this execution are
    released first."""

    budgets: tuple[str, ...]
    amounts: Amounts
    execution: UUID | None = None
    key: str | None = None
    stale: bool = False
    attached: bool = False
    epoch: int | None = None


def spend(ledger: BudgetLedger, asked: Expense, now: Millis) -> Charged | AlreadyApplied:
    """Counts an amount, or refuses all of it. A refusal is not stored, so the same key may try
    again later."""
    if (known := repeated(ledger, asked, now)) is not None:
        return known
    names = _wanted(ledger, asked)
    _drop_earlier(ledger, asked.execution, asked.epoch, now)
    budgets = chain(ledger.budgets, names)
    if (breach := _breach(budgets, asked.amounts)) is not None:
        _mark(ledger, ledger.budgets[breach.budget], breach.dimension, now)
        return breach
    outcome = _told(_count(ledger, budget, asked.amounts, now) for budget in budgets)
    _enter(ledger, budgets, asked.execution, asked.amounts)
    remember(ledger, asked, outcome, now)
    return outcome


def reserve(
    ledger: BudgetLedger, asked: Expense, reservation: UUID, epoch: int, now: Millis
) -> Reserved | HardBreach:
    """Reserves an estimate, so that no other execution can spend it. Repeating it changes nothing,
    unless the first reservation's lease is gone: then it is made again. Nothing is reserved if the
    key, under which the consumed amount will be counted, has counted before."""
    if asked.execution is None:
        raise Invalid("a reservation needs a run")
    known = ledger.reservations.get(reservation)
    if known is not None and known.execution != asked.execution:
        raise Invalid("the reservation belongs to another run")
    if known is not None and known.epoch == epoch:
        return Reserved(known)
    if repeated(ledger, asked, now) is not None:
        return nothing_reserved(asked, reservation, epoch, now)
    names = _wanted(ledger, asked)
    drop(ledger, reservation, now)
    _drop_earlier(ledger, asked.execution, epoch, now)
    budgets = chain(ledger.budgets, names)
    if (breach := _breach(budgets, asked.amounts)) is not None:
        _mark(ledger, ledger.budgets[breach.budget], breach.dimension, now)
        return breach
    for budget in budgets:
        reserved = plus(budget.reserved, asked.amounts)
        ledger.put(replace(ledger.budgets[budget.name], reserved=reserved, updated_at=now))
    new = Reservation(
        id=reservation,
        budgets=tuple(budget.name for budget in budgets),
        execution=asked.execution,
        epoch=epoch,
        amounts=asked.amounts,
        at=now,
    )
    ledger.put_reservation(reservation, new)
    return Reserved(new)


def nothing_reserved(asked: Expense, id: UUID, epoch: int, now: Millis) -> Reserved:
    """An empty reservation."""
    execution = asked.execution or UUID(int=0)
    return Reserved(Reservation(id, (), execution, epoch, asked.amounts, now))


def settle(
    ledger: BudgetLedger, asked: Expense, reservation: UUID, now: Millis
) -> Counted | AlreadyApplied:
    """Counts the consumed amount in place of the reservation. An amount that does not fit was
    consumed all the same: it is counted up to the limit, and the rest is kept separately. A repeat
    counts nothing; its reservation, which another lease may have made since, is released too."""
    if (known := repeated(ledger, asked, now)) is not None:
        drop(ledger, reservation, now)
        return known
    names = _wanted(ledger, asked)
    drop(ledger, reservation, now)
    budgets = chain(ledger.budgets, names)
    outcome = _told(_count_bounded(ledger, budget, asked.amounts, now) for budget in budgets)
    _enter(ledger, budgets, asked.execution, asked.amounts)
    remember(ledger, asked, outcome, now)
    return outcome


def drop(ledger: BudgetLedger, reservation: UUID, now: Millis) -> bool:
    """Releases a reservation; False if it was already released."""
    found = ledger.reservations.get(reservation)
    if found is None:
        return False
    for name in budgets_left(found, ledger.budgets):
        budget = ledger.budgets[name]
        reserved = _minus(budget.reserved, found.amounts)
        ledger.put(replace(budget, reserved=reserved, updated_at=now))
    ledger.put_reservation(reservation, None)
    return True


def _drop_earlier(
    ledger: BudgetLedger, execution: UUID | None, epoch: int | None, now: Millis
) -> None:
    """Releases the reservations of earlier leases of this execution, so that the new owner is not
    refused because of them."""
    for found in list(ledger.reservations.values()) if epoch is not None else ():
        known = all(name in ledger.budgets for name in found.budgets)
        if known and found.execution == execution and found.epoch < (epoch or 0):
            drop(ledger, found.id, now)


def release(ledger: BudgetLedger, name: str, execution: UUID, now: Millis) -> Amounts:
    """Takes back what an execution spent from a budget and its parents in the current period;
    repeating it has no effect. What was spent before a reset is already cleared."""
    first, *upper = chain(ledger.budgets, [name])
    entry = ledger.ledgers.get((first.name, execution))
    if entry is None:
        return {}
    if entry.period != first.period:
        ledger.put_ledger((first.name, execution), None)
        return {}
    for budget in (first, *upper):
        _take_back(ledger, budget, execution, entry.amounts, now)
    return entry.amounts


def budgets_left(reservation: Reservation, known: Mapping[str, Budget]) -> list[str]:
    """The budgets of a reservation that still exist. A budget that was deleted and created again
    has no reservation."""
    return [
        name
        for name in reservation.budgets
        if name in known and known[name].created_at <= reservation.at
    ]


def repeated(ledger: BudgetLedger, asked: Expense, now: Millis) -> AlreadyApplied | None:
    if asked.key is None:
        return None
    for name in asked.budgets:
        charge = ledger.charges.get((name, asked.key))
        if charge is not None and charge.until > now:
            return AlreadyApplied(charge.outcome)
    return None


def _wanted(ledger: BudgetLedger, asked: Expense) -> tuple[str, ...]:
    """The budgets to charge; NotFound for one that is unknown, before anything changes."""
    names = asked.budgets
    if asked.attached:
        names = tuple(name for name in names if name in ledger.budgets)
    chain(ledger.budgets, names)
    return names


def _breach(budgets: Iterable[Budget], amounts: Amounts) -> HardBreach | None:
    """The first dimension that does not fit, in the order of the amounts."""
    for budget in budgets:
        for dimension, amount in amounts.items():
            taken, hard = budget.taken(dimension), budget.hard(dimension)
            if hard is not None and budget.strict and taken + amount > hard:
                return HardBreach(budget.name, dimension, taken, hard, budget.on_hard)
            if taken + amount > MAX_AMOUNT:
                raise Invalid(f"budget {budget.name!r} cannot count that many {dimension}")
    return None


def _mark(ledger: BudgetLedger, budget: Budget, dimension: str, now: Millis) -> None:
    ledger.put(
        replace(
            budget,
            breaches=budget.breaches + 1,
            breached_at=now,
            breached_dimension=dimension,
            updated_at=now,
        )
    )


def _count(
    ledger: BudgetLedger, budget: Budget, amounts: Amounts, now: Millis
) -> Spent | SoftBreach:
    used = plus(budget.used, amounts)
    after = replace(budget, used=used, updated_at=now)
    found = _told(_soft_breaches(after, amounts))
    if not isinstance(found, Spent):
        after = replace(after, soft_breaches=after.soft_breaches + 1)
    ledger.put(after)
    return found


def _count_bounded(ledger: BudgetLedger, budget: Budget, amounts: Amounts, now: Millis) -> Counted:
    """Like `_count`, for an amount that was consumed whether it fits or not."""
    fits: Amounts = {}
    over: list[Overrun] = []
    for dimension, amount in sorted(amounts.items()):
        taken, hard = budget.taken(dimension), budget.hard(dimension)
        bound = hard if hard is not None and budget.strict else MAX_AMOUNT
        fits[dimension] = max(0, min(amount, bound - taken))
        if fits[dimension] < amount:
            excess = amount - fits[dimension]
            over.append(Overrun(budget.name, dimension, taken + fits[dimension], bound, excess))
    counted = _count(ledger, budget, {name: n for name, n in fits.items() if n}, now)
    if not over:
        return counted
    after = ledger.budgets[budget.name]
    overrun = plus(after.overrun, {breach.dimension: breach.excess for breach in over})
    bounded = {name: min(number, MAX_AMOUNT) for name, number in overrun.items()}
    _mark(ledger, replace(after, overrun=bounded), over[0].dimension, now)
    return over[0]


def _soft_breaches(budget: Budget, amounts: Amounts) -> Iterator[SoftBreach]:
    """The dimensions above their soft limit, or above a hard limit that only warns, which no
    approval raises."""
    for dimension in amounts:
        used = budget.used.get(dimension, 0)
        soft, hard = budget.soft(dimension), budget.hard(dimension)
        if soft is not None and used > soft:
            more = budget.limits[dimension].more
            yield SoftBreach(budget.name, dimension, used, soft, budget.on_soft, more)
        elif hard is not None and used > hard and not budget.strict:
            yield SoftBreach(budget.name, dimension, used, hard)


def _told(outcomes: Iterable[C]) -> C | Spent:
    """The first outcome that is not `Spent`; but no warning hides a breach that asks a person."""
    found = [each for each in outcomes if not isinstance(each, Spent)]
    if not found:
        return Spent()
    warns = isinstance(found[0], SoftBreach)
    return next((each for each in found if warns and _asks(each)), found[0])


def _asks(outcome: Counted) -> bool:
    return isinstance(outcome, SoftBreach) and outcome.action is OnSoft.APPROVE


def _enter(
    ledger: BudgetLedger, budgets: Iterable[Budget], execution: UUID | None, amounts: Amounts
) -> None:
    """Records in the ledgers what was counted for an execution, and when."""
    if execution is None:
        return
    for before in budgets:
        after = ledger.budgets[before.name]
        counted = {
            name: grown
            for name in amounts
            if (grown := after.used.get(name, 0) - before.used.get(name, 0)) > 0
        }
        key = (before.name, execution)
        old = ledger.ledgers.get(key)
        so_far = old.amounts if old is not None and old.period == after.period else {}
        total = plus(so_far, counted)
        if total:
            ledger.put_ledger(key, Ledger(before.name, execution, after.period, total))


def _take_back(
    ledger: BudgetLedger, budget: Budget, execution: UUID, amounts: Amounts, now: Millis
) -> None:
    key = (budget.name, execution)
    entry = ledger.ledgers.get(key)
    if entry is None:
        return
    if entry.period != budget.period:
        ledger.put_ledger(key, None)
        return
    back = {name: min(number, entry.amounts.get(name, 0)) for name, number in amounts.items()}
    used = dict.fromkeys(budget.used, 0) | _minus(budget.used, back)  # a counter is 0, not gone
    ledger.put(replace(budget, used=used, updated_at=now))
    left = _minus(entry.amounts, back)
    ledger.put_ledger(key, replace(entry, amounts=left) if left else None)


def remember(ledger: BudgetLedger, asked: Expense, outcome: Counted, now: Millis) -> None:
    if asked.key is None:
        return
    until = Millis(now + REMEMBERED)
    for name in _wanted(ledger, asked):
        charge = Charge(budget=name, key=asked.key, until=until, outcome=outcome, stale=asked.stale)
        ledger.put_charge(charge)


def plus(first: Amounts, second: Amounts) -> Amounts:
    """The sum; a counter of `first` that is 0 stays."""
    total = {name: first.get(name, 0) + second.get(name, 0) for name in {*first, *second}}
    return {name: number for name, number in sorted(total.items()) if number or name in first}


def _minus(first: Amounts, second: Amounts) -> Amounts:
    left = {name: max(0, number - second.get(name, 0)) for name, number in first.items()}
    return {name: number for name, number in sorted(left.items()) if number}
