"""The rules of spending one by one. I-23 to I-26, F-36 to F-42."""

from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.time import Millis
from flowfabric.core.limit import budget_changes
from flowfabric.core.limit.budget import MAX_AMOUNT, Budget, Limit, OnHard, OnSoft, chain
from flowfabric.core.limit.spend import (
    REMEMBERED,
    AlreadyApplied,
    BudgetLedger,
    Expense,
    HardBreach,
    Overrun,
    Reserved,
    SoftBreach,
    Spent,
    drop,
    release,
    reserve,
    settle,
    spend,
)
from tests.kit.shelf import Shelf, ledger_of, used

NOW = Millis(1_000_000)
X, Y = UUID(int=1), UUID(int=2)


def asked(*names: str, execution: UUID | None = X, key: str | None = None, **n: int) -> Expense:
    return Expense(names or ("team",), n, execution, key=key)


def team(hard: int | None = 10, **members: Any) -> Budget:
    given = {"name": "team", "limits": {"tokens": Limit(hard=hard)}, **members}
    return Budget(**given)


def test_a_limit_can_be_spent_exactly_and_not_passed() -> None:
    """C-T80, C-T85, F-39"""
    ledger = ledger_of(team(10))
    assert spend(ledger, asked(tokens=10), NOW) == Spent()
    assert spend(ledger, asked(tokens=1), NOW) == HardBreach("team", "tokens", 10, 10)
    assert spend(ledger, asked(tokens=0), NOW) == Spent()
    budget = ledger.budgets["team"]
    assert (budget.used, budget.breaches) == ({"tokens": 10}, 1)
    assert (budget.breached_at, budget.breached_dimension) == (NOW, "tokens")


def test_every_dimension_is_looked_at_before_any_is_counted() -> None:
    """C-T80, I-23: §2.2: and the first of the report is named"""
    ledger = ledger_of(
        Budget(name="org", limits={"a": Limit(hard=1)}),
        team(10, parent="org", limits={"c": Limit(hard=1), "b": Limit(hard=1)}),
    )
    answer = spend(ledger, asked(z=1, c=2, b=2, a=2), NOW)
    assert answer == HardBreach("team", "c", 0, 1)
    assert used(ledger) == {"org": {}, "team": {}}
    assert spend(ledger, asked(z=1, a=2), NOW) == HardBreach("org", "a", 0, 1)
    assert used(ledger) == {"org": {}, "team": {}}
    assert (ledger.new_ledgers, ledger.new_charges) == ({}, {})
    assert [budget.breaches for budget in ledger.budgets.values()] == [1, 1]


def test_a_soft_limit_keeps_what_was_spent_and_counts_one_breach_a_report() -> None:
    """C-T80, C-T81"""
    limits = {"a": Limit(soft=1, more=4), "b": Limit(soft=1)}
    ledger = ledger_of(team(limits=limits, on_soft=OnSoft.APPROVE))
    assert spend(ledger, asked(a=1, b=1), NOW) == Spent()
    breach = SoftBreach("team", "a", 2, 1, OnSoft.APPROVE, 4)
    assert spend(ledger, asked(a=1, b=1), NOW) == breach
    budget = ledger.budgets["team"]
    assert (budget.used, budget.soft_breaches, budget.breaches) == ({"a": 2, "b": 2}, 1, 0)
    assert spend(ledger, asked(c=1), NOW) == Spent()


def test_a_limit_that_is_advice_is_counted_and_told() -> None:
    ledger = ledger_of(team(10, on_hard=OnHard.WARN))
    assert spend(ledger, asked(tokens=11), NOW) == SoftBreach("team", "tokens", 11, 10)
    assert isinstance(reserve(ledger, asked(tokens=11), X, 1, NOW), Reserved)


def test_no_warning_hides_a_limit_that_asks_a_person() -> None:
    """C-T80, Q-9: neither the warning of another budget nor that of an advisory limit"""
    whole = Budget(name="org", limits={"tokens": Limit(soft=5)}, on_soft=OnSoft.APPROVE)
    limits = {"cents": Limit(hard=1), "tokens": Limit(soft=3)}
    ledger = ledger_of(whole, team(limits=limits, on_hard=OnHard.WARN, parent="org"))
    assert spend(ledger, asked(tokens=4), NOW) == SoftBreach("team", "tokens", 4, 3)
    breach = SoftBreach("org", "tokens", 6, 5, OnSoft.APPROVE)
    assert spend(ledger, asked(cents=2, tokens=2), NOW) == breach
    assert settle(ledger, asked(tokens=1), Y, NOW) == replace(breach, used=7)
    assert [budget.soft_breaches for budget in ledger.budgets.values()] == [2, 3]
    asking = ledger_of(team(limits=limits, on_hard=OnHard.WARN, on_soft=OnSoft.APPROVE))
    breach = SoftBreach("team", "tokens", 4, 3, OnSoft.APPROVE)
    assert spend(asking, asked(cents=2, tokens=4), NOW) == breach


def test_a_key_counts_once_on_each_budget_until_it_is_forgotten() -> None:
    """C-T82, C-T88, I-24, F-36, Q-5: a refusal is not remembered"""
    ledger = ledger_of(team(10, limits={"tokens": Limit(hard=10, soft=3)}), Budget(name="other"))
    assert isinstance(spend(ledger, asked(tokens=11, key="k"), NOW), HardBreach)
    first = spend(ledger, asked(tokens=4, key="k"), NOW)
    assert first == SoftBreach("team", "tokens", 4, 3)
    assert spend(ledger, asked(tokens=4, key="k"), NOW) == AlreadyApplied(first)
    assert spend(ledger, asked("other", tokens=4, key="k"), NOW) == Spent()
    late = Millis(NOW + REMEMBERED)
    last = Millis(late - 1)
    assert isinstance(spend(ledger, asked(tokens=4, key="k"), last), AlreadyApplied)
    assert spend(ledger, asked(tokens=4, key="k"), late) == SoftBreach("team", "tokens", 8, 3)
    assert used(ledger) == {"team": {"tokens": 8}, "other": {"tokens": 4}}


def test_an_unknown_budget_counts_nothing_anywhere() -> None:
    """F-39"""
    ledger = ledger_of(team())
    for rule in (
        lambda: spend(ledger, asked("team", "nowhere", tokens=1), NOW),
        lambda: reserve(ledger, asked("team", "nowhere", tokens=1), X, 1, NOW),
        lambda: settle(ledger, asked("team", "nowhere", tokens=1), X, NOW),
        lambda: release(ledger, "nowhere", X, NOW),
    ):
        with pytest.raises(NotFound):
            rule()
    assert ledger.empty


def test_a_deleted_budget_that_no_run_names_limits_nothing() -> None:
    ledger = ledger_of(team())
    given = Expense(("team", "gone"), {"tokens": 1}, X, key="k", attached=True)
    assert spend(ledger, given, NOW) == Spent()
    assert used(ledger) == {"team": {"tokens": 1}}
    assert ledger.new_charges.keys() == {("team", "k")}


def test_what_was_spent_before_a_reset_is_never_taken_back() -> None:
    """F-38: neither of the budget that was reset, nor of those it is part of"""
    ledger = ledger_of(Budget(name="org"), team(None, parent="org"))
    spend(ledger, asked(tokens=5), NOW)
    budget_changes.reset(ledger, "team", NOW)
    spend(ledger, asked(tokens=3, execution=Y), NOW)
    assert release(ledger, "team", X, NOW) == {}
    assert used(ledger) == {"org": {"tokens": 8}, "team": {"tokens": 3}}
    budget_changes.reset(ledger, "org", NOW)
    spend(ledger, asked(tokens=1, execution=Y), NOW)
    assert release(ledger, "team", Y, NOW) == {"tokens": 4}
    assert used(ledger) == {"org": {"tokens": 0}, "team": {"tokens": 0}}


def test_what_was_spent_before_the_whole_was_reset_is_not_taken_back_from_it() -> None:
    """F-38: one level up"""
    ledger = ledger_of(Budget(name="org"), team(None, parent="org"))
    spend(ledger, asked(tokens=5), NOW)
    budget_changes.reset(ledger, "org", NOW)
    spend(ledger, asked("org", tokens=9, execution=Y), NOW)
    assert release(ledger, "team", X, NOW) == {"tokens": 5}
    assert used(ledger) == {"org": {"tokens": 9}, "team": {"tokens": 0}}
    assert ("org", X) not in ledger.ledgers


def test_settling_more_leaves_what_others_have_set_aside() -> None:
    """F-42, I-23"""
    ledger = ledger_of(team(10))
    reserve(ledger, asked(tokens=2), X, 1, NOW)
    reserve(ledger, asked(tokens=5, execution=Y), Y, 1, NOW)
    answer = settle(ledger, asked(tokens=9, key="k"), X, NOW)
    assert answer == Overrun("team", "tokens", 10, 10, 4)
    assert ledger.budgets["team"].used == {"tokens": 5}


def test_settling_counts_in_place_of_what_was_set_aside() -> None:
    """F-42: less, as much, more"""
    ledger = ledger_of(team(10))
    for actual in (1, 3, 6):
        reserve(ledger, asked(tokens=3), X, 1, NOW)
        assert settle(ledger, asked(tokens=actual, key=f"{actual}"), X, NOW) == Spent()
    budget = ledger.budgets["team"]
    assert (budget.used, budget.reserved, budget.overrun) == ({"tokens": 10}, {}, {})


def test_what_does_not_fit_any_more_is_kept_apart() -> None:
    """F-42, I-23: consumed all the same, and the limit is not passed"""
    ledger = ledger_of(team(10))
    reserve(ledger, asked(tokens=3), X, 1, NOW)
    spend(ledger, asked(tokens=5, execution=Y), NOW)
    answer = settle(ledger, asked(tokens=9, key="k"), X, NOW)
    assert answer == Overrun("team", "tokens", 10, 10, 4)
    assert settle(ledger, asked(tokens=9, key="k"), X, NOW) == AlreadyApplied(answer)
    budget = ledger.budgets["team"]
    assert (budget.used, budget.overrun, budget.breaches) == ({"tokens": 10}, {"tokens": 4}, 1)
    assert release(ledger, "team", X, NOW) == {"tokens": 5}


def test_no_sum_grows_beyond_what_can_be_stored() -> None:
    ledger = ledger_of(team(10), Budget(name="free"))
    for key in "abc":
        settle(ledger, asked(tokens=MAX_AMOUNT, key=key), X, NOW)
        settle(ledger, asked("free", tokens=MAX_AMOUNT, key=key), X, NOW)
    assert ledger.budgets["team"].overrun == {"tokens": MAX_AMOUNT}
    assert ledger.budgets["free"].overrun == {"tokens": MAX_AMOUNT}
    with pytest.raises(Invalid, match="that many"):
        spend(ledger, asked("free", tokens=1), NOW)


def test_a_reservation_belongs_to_its_execution_and_its_lease() -> None:
    """F-42: under a new lease it is made anew, for the old one is about to be given back"""
    ledger = ledger_of(team(10))
    reserve(ledger, asked(tokens=6), X, 1, NOW)
    with pytest.raises(Invalid, match="another run"):
        reserve(ledger, asked(tokens=6, execution=Y), X, 1, NOW)
    with pytest.raises(Invalid, match="a reservation needs a run"):
        reserve(ledger, asked(tokens=6, execution=None), Y, 1, NOW)
    answer = reserve(ledger, asked(tokens=7), X, 2, NOW)
    assert isinstance(answer, Reserved)
    assert (answer.reservation.epoch, answer.reservation.amounts) == (2, {"tokens": 7})
    assert ledger.budgets["team"].reserved == {"tokens": 7}


def test_what_is_made_again_and_dropped_in_one_batch_is_gone() -> None:
    shelf = Shelf(BudgetLedger(budgets={"team": team(10)}))
    ledger = shelf.read()
    reserve(ledger, asked(tokens=6), X, 1, NOW)
    ledger = shelf.commit(ledger)
    reserve(ledger, asked(tokens=6), X, 2, NOW)
    drop(ledger, X, NOW)
    ledger = shelf.commit(ledger)
    assert (ledger.reservations, ledger.budgets["team"].reserved) == ({}, {})


def test_a_deleted_budget_gives_back_what_it_had_set_aside_above() -> None:
    ledger = ledger_of(Budget(name="org"), team(10, parent="org"))
    ledger.budgets["org"] = replace(ledger.budgets["org"], parts=1)
    reserve(ledger, asked(tokens=6), X, 1, NOW)
    assert budget_changes.remove(ledger, "team")
    assert ledger.budgets["org"].reserved == {"tokens": 6}
    assert drop(ledger, X, NOW)
    assert ledger.budgets["org"].reserved == {}


def test_a_budget_created_again_owes_nothing_to_old_reservations() -> None:
    ledger = ledger_of(team(10))
    reserve(ledger, asked(tokens=6), X, 1, NOW)
    later = Millis(NOW + 1)
    ledger.budgets["team"] = team(10, created_at=later)
    reserve(ledger, asked(tokens=6), Y, 1, later)
    assert drop(ledger, X, later)
    assert ledger.budgets["team"].reserved == {"tokens": 6}


def test_budgets_with_a_common_part_charge_it_once() -> None:
    ledger = ledger_of(
        Budget(name="org"), Budget(name="a", parent="org"), Budget(name="b", parent="org")
    )
    spend(ledger, asked("a", "b", tokens=2), NOW)
    assert used(ledger) == {name: {"tokens": 2} for name in ("org", "a", "b")}
    assert [budget.name for budget in chain(ledger.budgets, ("a", "b"))] == ["a", "b", "org"]
