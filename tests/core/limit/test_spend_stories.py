"""Spending against a naive reference.

The reference keeps plain lists of what happened and adds them up; the rules keep totals. Both see
the same random story, cut into batches that are written and read again as a store would do.
"""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, field

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.limit import budget_changes
from flowfabric.core.limit.budget import Budget, Limit, OnHard
from flowfabric.core.limit.spend import (
    AlreadyApplied,
    BudgetLedger,
    Expense,
    HardBreach,
    Reserved,
    drop,
    release,
    reserve,
    settle,
    spend,
)
from tests.kit.shelf import Shelf, used

NOW = Millis(1_000_000)
X, Y = UUID(int=1), UUID(int=2)
PARENTS: dict[str, str | None] = {"org": None, "team": "org", "side": "org", "run": "team"}
DIMENSIONS = ("cost", "tokens")


class Item(Struct):
    """Something that was spent: of which budgets it still counts, and how much of each."""

    execution: UUID | None
    counted: dict[str, dict[str, int]]


class Reference:
    """Adds up from the beginning, every time."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.set_aside: dict[UUID, tuple[frozenset[str], dict[str, int]]] = {}
        self.hard: dict[str, dict[str, int | None]] = {
            name: dict.fromkeys(DIMENSIONS) for name in PARENTS
        }
        self.strict = dict.fromkeys(PARENTS, True)
        self.over = {name: dict.fromkeys(DIMENSIONS, 0) for name in PARENTS}

    @staticmethod
    def covered(names: tuple[str, ...]) -> frozenset[str]:
        found: set[str] = set()
        for name in names:
            step: str | None = name
            while step is not None:
                found.add(step)
                step = PARENTS[step]
        return frozenset(found)

    def used(self, name: str, dimension: str) -> int:
        return sum(item.counted.get(name, {}).get(dimension, 0) for item in self.items)

    def noted(self, name: str, dimension: str) -> int:
        return sum(
            item.counted.get(name, {}).get(dimension, 0)
            for item in self.items
            if item.execution is not None
        )

    def reserved(self, name: str, dimension: str) -> int:
        return sum(n.get(dimension, 0) for names, n in self.set_aside.values() if name in names)

    def left(self, name: str, dimension: str) -> int:
        """Less than nothing, if the limit was lowered below what is used."""
        hard = self.hard[name][dimension]
        if hard is None or not self.strict[name]:
            return 10**9
        return hard - self.used(name, dimension) - self.reserved(name, dimension)

    def room(self, name: str, dimension: str) -> int:
        return max(0, self.left(name, dimension))

    def fits(self, names: frozenset[str], amounts: dict[str, int]) -> bool:
        return all(
            number <= self.left(name, dimension)
            for name in names
            for dimension, number in amounts.items()
        )

    def count(self, names: frozenset[str], amounts: dict[str, int], execution: UUID | None) -> None:
        self.items.append(Item(execution, {name: dict(amounts) for name in names}))

    def count_bounded(
        self, names: frozenset[str], amounts: dict[str, int], execution: UUID | None
    ) -> None:
        counted = {
            name: {word: min(number, self.room(name, word)) for word, number in amounts.items()}
            for name in names
        }
        for name in names:
            for word, number in amounts.items():
                self.over[name][word] += number - counted[name][word]
        self.items.append(Item(execution, counted))

    def release(self, name: str, execution: UUID) -> None:
        """Takes back as much as still counts at the bottom, of every level that still has it."""
        mine = [item for item in self.items if item.execution == execution]
        back = {
            word: sum(item.counted.get(name, {}).get(word, 0) for item in mine)
            for word in DIMENSIONS
        }
        for level in self.covered((name,)):
            left = dict(back)
            for item in mine:
                counts = item.counted.get(level, {})
                for word in counts:
                    taken = min(counts[word], left[word])
                    counts[word] -= taken
                    left[word] -= taken

    def reset(self, name: str) -> None:
        self.over[name] = dict.fromkeys(DIMENSIONS, 0)
        for item in self.items:
            item.counted.pop(name, None)


NUMBERS = st.integers(min_value=0, max_value=7)
AMOUNTS = st.one_of(
    NUMBERS.map(lambda number: {"tokens": number}),
    st.tuples(NUMBERS, NUMBERS).map(lambda pair: dict(zip(DIMENSIONS, pair, strict=True))),
)
NAMES = st.one_of(
    st.sampled_from(list(PARENTS)).map(lambda name: (name,)),
    st.lists(st.sampled_from(list(PARENTS)), min_size=2, max_size=2).map(tuple),
)
EXECUTIONS = st.sampled_from([X, Y, None])
IDS = st.integers(min_value=1, max_value=4).map(lambda number: UUID(int=number))
HARD = st.none() | st.integers(min_value=1, max_value=20)
STORY = st.lists(
    st.one_of(
        st.tuples(st.just("spend"), NAMES, AMOUNTS, EXECUTIONS),
        st.tuples(st.just("reserve"), NAMES, AMOUNTS, st.sampled_from([X, Y]), IDS),
        st.tuples(st.just("settle"), NAMES, AMOUNTS, st.sampled_from([X, Y]), IDS),
        st.tuples(st.just("drop"), IDS),
        st.tuples(st.just("release"), st.sampled_from(list(PARENTS)), st.sampled_from([X, Y])),
        st.tuples(st.just("reset"), st.sampled_from(list(PARENTS))),
        st.tuples(st.just("turn"), *[st.sampled_from(list(PARENTS))] * 2, st.sampled_from([X, Y])),
        st.tuples(st.just("grant"), st.sampled_from(list(PARENTS))),
        st.tuples(st.just("redefine"), st.sampled_from(list(PARENTS)), HARD, HARD, st.booleans()),
        st.just(("commit",)),
    ),
    max_size=40,
)


class Walk(Struct):
    """Both sides, and what every step must hold."""

    shelf: Shelf
    ledger: BudgetLedger
    known: Reference
    owners: dict[UUID, UUID] = field(default_factory=dict)
    steps: int = 0

    @classmethod
    def begin(cls) -> "Walk":
        ledger = BudgetLedger()
        for name, parent in PARENTS.items():
            budget_changes.create(ledger, Budget(name=name, parent=parent), NOW)
        shelf = Shelf(BudgetLedger())
        walk = cls(shelf, shelf.commit(ledger), Reference())
        for name, hard in (("org", 20), ("team", 12), ("run", 8)):
            walk.redefine(name, hard, hard, True)
        walk.commit()
        return walk

    def step(self, word: str, *given: Any) -> None:
        self.steps += 1
        before = {name: budget for name, budget in self.ledger.budgets.items()}
        getattr(self, word)(*given)
        if word != "redefine":
            self._check_bounds(before)
        self._check_totals()

    def spend(self, names: Any, amounts: Any, execution: UUID | None) -> None:
        self._charged(
            spend(self.ledger, Expense(names, amounts, execution), NOW),
            names,
            amounts,
            lambda levels: self.known.count(levels, amounts, execution),
        )

    def reserve(self, names: Any, amounts: Any, execution: UUID, id: UUID) -> None:
        wanted = Expense(names, amounts, execution)
        if id in self.known.set_aside:
            before = self.ledger.budgets.copy()
            if self.owners[id] == execution:
                assert isinstance(reserve(self.ledger, wanted, id, 1, NOW), Reserved)
            else:
                with pytest.raises(Invalid):
                    reserve(self.ledger, wanted, id, 1, NOW)
            assert self.ledger.budgets == before
            return
        self.owners[id] = execution
        self._charged(
            reserve(self.ledger, wanted, id, 1, NOW),
            names,
            amounts,
            lambda levels: self.known.set_aside.update({id: (levels, dict(amounts))}),
        )

    def settle(self, names: Any, amounts: Any, execution: UUID, id: UUID) -> None:
        key = f"{self.steps}"
        known = self.ledger.reservations.get(id)
        chosen = names if known is None else known.budgets
        answer = settle(self.ledger, Expense(chosen, amounts, execution, key=key), id, NOW)
        levels, _ = self.known.set_aside.pop(id, (self.known.covered(names), {}))
        self.known.count_bounded(levels, amounts, execution)
        again = settle(self.ledger, Expense(chosen, amounts, execution, key=key), id, NOW)
        assert again == AlreadyApplied(answer)  # type: ignore[arg-type]

    def drop(self, id: UUID) -> None:
        assert drop(self.ledger, id, NOW) is (self.known.set_aside.pop(id, None) is not None)
        assert not drop(self.ledger, id, NOW)

    def release(self, name: str, execution: UUID) -> None:
        """I-26: twice is once."""
        release(self.ledger, name, execution, NOW)
        self.known.release(name, execution)
        before = used(self.ledger)
        assert release(self.ledger, name, execution, NOW) == {}
        assert used(self.ledger) == before

    def reset(self, name: str) -> None:
        budget_changes.reset(self.ledger, name, NOW)
        self.known.reset(name)

    def turn(self, level: str, name: str, execution: UUID) -> None:
        """F-38: a new period, something spent in it, and an old ledger released."""
        self.reset(level)
        self.spend((level,), {"tokens": 4}, None)
        self.release(name, execution)

    def grant(self, name: str) -> None:
        before = used(self.ledger)
        try:
            budget_changes.grant(self.ledger, name, "tokens", 3, NOW, f"{self.steps}")
        except Invalid:
            assert self.ledger.budgets[name].soft("tokens") is None
        assert used(self.ledger) == before

    def redefine(self, name: str, cost: int | None, tokens: int | None, strict: bool) -> None:
        self.known.hard[name] = {"cost": cost, "tokens": tokens}
        self.known.strict[name] = strict
        new = Budget(
            name=name,
            parent=PARENTS[name],
            limits={"cost": Limit(hard=cost), "tokens": Limit(hard=tokens, soft=tokens)},
            on_hard=OnHard.REFUSE if strict else OnHard.WARN,
        )
        budget_changes.define(self.ledger, new, NOW)

    def commit(self) -> None:
        self.ledger = self.shelf.commit(self.ledger)

    def _charged(self, answer: object, names: Any, amounts: Any, count: Any) -> None:
        levels = self.known.covered(names)
        fits = self.known.fits(levels, amounts)
        assert isinstance(answer, HardBreach) is not fits
        if fits:
            count(levels)

    def _check_bounds(self, before: dict[str, Budget]) -> None:
        """I-23: nothing passes a strict limit that did not before."""
        for name, budget in self.ledger.budgets.items():
            for word in DIMENSIONS:
                hard = budget.hard(word)
                if hard is not None and budget.strict:
                    assert budget.taken(word) <= max(hard, before[name].taken(word))
                    assert budget.used.get(word, 0) <= max(hard, before[name].taken(word))

    def _check_totals(self) -> None:
        """I-25: and the ledgers of the period are what executions have spent."""
        for name, budget in self.ledger.budgets.items():
            for word in DIMENSIONS:
                assert budget.used.get(word, 0) == self.known.used(name, word)
                assert budget.reserved.get(word, 0) == self.known.reserved(name, word)
                assert budget.overrun.get(word, 0) == self.known.over[name][word]
                noted = sum(
                    ledger.amounts.get(word, 0)
                    for ledger in self.ledger.ledgers.values()
                    if ledger.budget == name and ledger.period == budget.period
                )
                assert noted == self.known.noted(name, word)


@given(STORY)
def test_any_story_ends_where_plain_addition_does(story: list[Any]) -> None:
    """I-23, I-25, I-26, F-38"""
    walk = Walk.begin()
    for word, *rest in story:
        walk.step(word, *rest)
    walk.commit()
    walk._check_totals()
