"""Budgets made, redefined, raised, reset and deleted. C-T79, C-T84, F-39, F-41."""

from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.time import Millis
from flowfabric.core.limit.budget import MAX_AMOUNT, MAX_DEPTH, Budget, Limit, OnHard
from flowfabric.core.limit.budget_changes import create, define, grant, remove, reset, turn_over
from flowfabric.core.limit.spend import BudgetLedger, Created, Known, Reset
from tests.kit.shelf import ledger_of

NOW = Millis(1_000_000)


def soft(**members: Any) -> Budget:
    given = {"name": "team", "limits": {"tokens": Limit(soft=5, hard=50)}, **members}
    return Budget(**given)


def test_what_is_there_is_not_made_again() -> None:
    """C-T79"""
    ledger = BudgetLedger()
    assert create(ledger, soft(), NOW) == Created("team")
    assert create(ledger, soft(limits={}), NOW) == Known("team")
    assert ledger.budgets["team"].limits["tokens"].hard == 50
    assert ledger.changed == {"team": 0}


def test_a_new_definition_keeps_what_was_spent() -> None:
    """C-T93, F-39"""
    old = soft(used={"tokens": 3}, granted={"tokens": 1}, breaches=2, period=4, version=7)
    ledger = ledger_of(old)
    other = soft(limits={"cost": Limit(hard=1)}, on_hard=OnHard.WARN, used={"tokens": 99}, period=9)
    assert define(ledger, other, NOW) == Known("team")
    after = ledger.budgets["team"]
    assert (after.limits, after.on_hard) == (other.limits, OnHard.WARN)
    assert (after.used, after.granted, after.breaches, after.period) == (
        old.used,
        old.granted,
        2,
        4,
    )
    assert ledger.changed == {"team": 7}
    assert define(ledger, Budget(name="new"), NOW) == Created("new")


def test_resets_start_over_only_when_their_times_change() -> None:
    """F-41"""
    ledger = ledger_of(soft(every=Millis(5000), next_reset_at=Millis(NOW + 100)))
    define(ledger, soft(every=Millis(5000), on_hard=OnHard.WARN), NOW)
    assert ledger.budgets["team"].next_reset_at == NOW + 100
    define(ledger, soft(every=Millis(6000)), NOW)
    assert ledger.budgets["team"].next_reset_at == NOW + 6000
    define(ledger, soft(), NOW)
    assert ledger.budgets["team"].next_reset_at is None


def test_the_parent_is_chosen_once() -> None:
    ledger = ledger_of(Budget(name="org"), soft())
    with pytest.raises(Invalid, match="another parent"):
        define(ledger, soft(parent="org"), NOW)
    with pytest.raises(NotFound, match="nowhere"):
        create(ledger, Budget(name="b", parent="nowhere"), NOW)
    assert ledger.changed == {}


def test_budgets_are_nested_only_so_deep() -> None:
    ledger = BudgetLedger()
    create(ledger, Budget(name="0"), NOW)
    for depth in range(1, MAX_DEPTH):
        create(ledger, Budget(name=str(depth), parent=str(depth - 1)), NOW)
    with pytest.raises(Invalid, match="deep"):
        create(ledger, Budget(name="more", parent=str(MAX_DEPTH - 1)), NOW)
    assert "more" not in ledger.budgets
    assert ledger.budgets[str(MAX_DEPTH - 1)].parts == 0


def test_one_that_others_are_part_of_stays() -> None:
    ledger = BudgetLedger()
    create(ledger, Budget(name="org"), NOW)
    create(ledger, Budget(name="a", parent="org"), NOW)
    create(ledger, Budget(name="b", parent="org"), NOW)
    assert remove(ledger, "a")
    with pytest.raises(Invalid, match="'org' has child budgets"):
        remove(ledger, "org")
    assert remove(ledger, "b")
    assert remove(ledger, "org")
    assert not remove(ledger, "org")
    assert ledger.removed == {"a", "b", "org"}


def test_a_new_part_changes_the_whole_so_that_it_cannot_be_deleted_meanwhile() -> None:
    ledger = ledger_of(Budget(name="org", version=3))
    create(ledger, Budget(name="a", parent="org"), NOW)
    assert ledger.changed == {"a": 0, "org": 3}


def test_a_reset_begins_a_new_period() -> None:
    """C-T84: usage is gone, counters stay, what is set aside stays set aside, the next reset is a
    whole interval away"""
    ledger = ledger_of(
        soft(
            used={"tokens": 9},
            reserved={"tokens": 2},
            overrun={"tokens": 3},
            granted={"tokens": 4},
            breaches=1,
            soft_breaches=2,
            breached_at=Millis(5),
            breached_dimension="tokens",
            period=4,
            resets=4,
            every=Millis(5000),
            next_reset_at=Millis(NOW + 100),
        )
    )
    assert reset(ledger, "team", NOW) == Reset(Millis(NOW + 5000))
    after = ledger.budgets["team"]
    assert (after.used, after.overrun, after.granted) == ({}, {}, {})
    assert (after.reserved, after.breaches, after.soft_breaches) == ({"tokens": 2}, 1, 2)
    assert (after.breached_at, after.breached_dimension) == (None, None)
    assert (after.period, after.resets, after.reset_at) == (5, 5, NOW)
    with pytest.raises(NotFound):
        reset(ledger, "nowhere", NOW)


def test_a_stale_timer_resets_nothing() -> None:
    """C-T86"""
    ledger = ledger_of(soft(used={"tokens": 9}, every=Millis(5000), next_reset_at=NOW))
    turn_over(ledger, Millis(NOW - 1))
    assert ledger.empty
    for _ in range(2):
        turn_over(ledger, Millis(NOW + 3))
        team = ledger.budgets["team"]
        assert (team.used, team.resets, team.period) == ({}, 1, 1)
        assert (team.reset_at, team.next_reset_at) == (NOW, NOW + 5000)
    plain = ledger_of(soft(used={"tokens": 9}))
    turn_over(plain, NOW)
    assert plain.empty


def test_by_cron_a_period_begins_at_the_moment_that_was_due() -> None:
    ledger = ledger_of(soft(used={"tokens": 9}, cron="0 * * * *", next_reset_at=NOW))
    turn_over(ledger, Millis(NOW + 3))
    team = ledger.budgets["team"]
    assert (team.used, team.reset_at) == ({}, NOW)
    assert team.next_reset_at is not None
    assert team.next_reset_at > NOW + 3


def test_a_grant_raises_the_soft_limit_until_the_next_reset() -> None:
    ledger = ledger_of(soft())
    assert grant(ledger, "team", "tokens", 5, NOW, "one") == 10
    assert grant(ledger, "team", "tokens", 5, NOW, "one") == 10
    assert grant(ledger, "team", "tokens", 5, NOW, "two") == 15
    reset(ledger, "team", NOW)
    assert ledger.budgets["team"].soft("tokens") == 5
    with pytest.raises(Invalid, match="no soft limit"):
        grant(ledger, "team", "cost", 5, NOW, "three")
    with pytest.raises(NotFound):
        grant(ledger, "nowhere", "tokens", 5, NOW, "three")


def test_grants_have_a_bound() -> None:
    ledger = ledger_of(soft())
    grant(ledger, "team", "tokens", MAX_AMOUNT, NOW, "one")
    with pytest.raises(Invalid, match="that many"):
        grant(ledger, "team", "tokens", 1, NOW, "two")
    assert ledger.budgets["team"].granted == {"tokens": MAX_AMOUNT}
