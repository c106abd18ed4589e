"""Budgets as values: what is accepted, what is spent, when they are reset."""

from datetime import UTC, datetime
from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.time import Millis
from flowfabric.core.limit.budget import (
    ATTACHED,
    MAX_AMOUNT,
    MAX_ATTACHED,
    MAX_DIMENSIONS,
    Budget,
    Exhausted,
    Limit,
    OnHard,
    Scope,
    begin,
    chain,
    check_amounts,
    check_budget,
    check_budget_names,
    check_dimension,
    exhausted,
    following_reset,
)

NOW = Millis(1_000_000)


def tokens(hard: int | None = 10, **members: Any) -> Budget:
    return Budget(**{"name": "team", "limits": {"tokens": Limit(hard=hard)}, **members})


def moment(*parts: int) -> Millis:
    return Millis(int(datetime(*parts, tzinfo=UTC).timestamp() * 1000))  # type: ignore[misc,arg-type]


def test_a_budget_admits_while_less_than_the_limit_is_taken() -> None:
    """F-39, C-T92: what is reserved is taken, and advice keeps nobody out"""
    assert exhausted(tokens(used={"tokens": 9})) is None
    why = exhausted(tokens(used={"tokens": 9}, reserved={"tokens": 1}, next_reset_at=Millis(7)))
    assert why == Exhausted("team", "tokens", 10, 10, Millis(7))
    assert str(why) == "budget team: 10 of 10 tokens"
    assert exhausted(tokens(used={"tokens": 99}, on_hard=OnHard.WARN)) is None
    assert exhausted(tokens(None, used={"tokens": 99})) is None
    two = Budget(
        name="two",
        limits={"b": Limit(hard=1), "a": Limit(hard=1)},
        used={"a": 1, "b": 1},
    )
    found = exhausted(two)
    assert found is not None
    assert found.dimension == "a"


def test_limits_of_a_dimension() -> None:
    budget = Budget(
        name="x", limits={"a": Limit(soft=5), "b": Limit(hard=3)}, granted={"a": 2}, used={"a": 1}
    )
    assert (budget.soft("a"), budget.soft("b"), budget.soft("c")) == (7, None, None)
    assert (budget.hard("a"), budget.hard("b"), budget.hard("c")) == (None, 3, None)
    assert (budget.taken("a"), budget.taken("c")) == (1, 0)


def test_a_chain_has_every_budget_once_the_named_ones_first() -> None:
    known = {
        "org": Budget(name="org"),
        "a": Budget(name="a", parent="org"),
        "b": Budget(name="b", parent="org"),
    }
    assert [budget.name for budget in chain(known, ("b", "a", "b"))] == ["b", "a", "org"]
    assert chain(known, ()) == []
    with pytest.raises(NotFound, match="c"):
        chain(known, ("a", "c"))


def test_a_new_budget_has_spent_nothing_whatever_it_is_copied_from() -> None:
    """C-T79: what was read of another budget can be used as a definition"""
    copied = tokens(
        every=Millis(5000),
        used={"tokens": 9},
        reserved={"tokens": 1},
        overrun={"tokens": 4},
        granted={"tokens": 3},
        period=4,
        parts=2,
        breaches=3,
        soft_breaches=3,
        breached_at=Millis(5),
        breached_dimension="tokens",
        resets=7,
        reset_at=Millis(3),
        next_reset_at=Millis(8),
        created_at=Millis(2),
        updated_at=Millis(3),
        version=6,
    )
    fresh = tokens(
        every=Millis(5000),
        created_at=NOW,
        updated_at=NOW,
        next_reset_at=Millis(NOW + 5000),
        version=6,  # the engine has given it one that no other had
    )
    assert begin(copied, NOW) == fresh
    assert begin(tokens(), NOW).next_reset_at is None


@pytest.mark.parametrize(
    ("late", "next_in"), [(0, 5000), (1, 5000), (4999, 5000), (12_000, 15_000)]
)
def test_resets_keep_their_rhythm(late: int, next_in: int) -> None:
    """F-41: next = previous due + interval, missed periods are left out"""
    budget = tokens(every=Millis(5000), next_reset_at=NOW)
    assert following_reset(budget, Millis(NOW + late)) == NOW + next_in


def test_resets_by_the_calendar_are_those_of_a_time_zone() -> None:
    """F-41: midnight in Berlin, before and after the clocks change"""
    daily = tokens(cron="0 0 * * *", timezone="Europe/Berlin")
    assert following_reset(daily, moment(2024, 1, 10, 12)) == moment(2024, 1, 10, 23)
    assert following_reset(daily, moment(2024, 7, 10, 12)) == moment(2024, 7, 10, 22)
    assert following_reset(tokens(), NOW) is None


BAD = {
    "no name": {"name": ""},
    "blank": {"name": " x"},
    "newline": {"name": "a\nb"},
    "nul": {"name": "a\0b"},
    "long": {"name": "x" * 257},
    "name kind": {"name": 5},
    "parent": {"parent": " "},
    "itself": {"parent": "team"},
    "limits kind": {"limits": [("tokens", Limit(hard=1))]},
    "limit kind": {"limits": {"tokens": 5}},
    "dimension": {"limits": {"two words": Limit(hard=1)}},
    "negative": {"limits": {"tokens": Limit(hard=-1)}},
    "float": {"limits": {"tokens": Limit(hard=1.5)}},  # type: ignore[arg-type]
    "bool": {"limits": {"tokens": Limit(soft=True)}},
    "huge": {"limits": {"tokens": Limit(hard=2**63)}},
    "more": {"limits": {"tokens": Limit(soft=1, more=0)}},
    "65": {"limits": {f"d{number}": Limit(hard=1) for number in range(MAX_DIMENSIONS + 1)}},
    "scope": {"scope": "galaxy", "scope_id": "x"},
    "scope id": {"scope": Scope.TENANT, "scope_id": 5},
    "scope id long": {"scope": Scope.TENANT, "scope_id": "x" * 257},
    "on hard": {"on_hard": "explode"},
    "on soft": {"on_soft": "explode"},
    "both times": {"every": 5000, "cron": "0 0 * * *"},
    "every negative": {"every": -1},
    "every kind": {"every": "hourly"},
    "every float": {"every": 5000.0},
    "every bool": {"every": True},
    "every huge": {"every": 2**63},
    "cron": {"cron": "0 0 31 13 *"},
    "cron kind": {"cron": 5},
    "zone": {"cron": "0 0 * * *", "timezone": "Mars/Olympus"},
    "zone kind": {"cron": "0 0 * * *", "timezone": 5},
    "zone path": {"cron": "0 0 * * *", "timezone": "../../etc/passwd"},
}


@pytest.mark.parametrize("wrong", BAD.values(), ids=BAD.keys())
def test_a_definition_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    """Q-9"""
    with pytest.raises(Invalid):
        check_budget(tokens(**wrong))


def test_zero_is_no_limit_and_no_reset() -> None:
    """§2.0, §2.1: limit 0 = no limit, a budget without an interval is not reset"""
    limits = {"tokens": Limit(hard=0, soft=5), "calls": Limit(hard=7, soft=0)}
    checked = check_budget(tokens(limits=limits, every=Millis(0)))
    assert checked.limits == {"tokens": Limit(soft=5), "calls": Limit(hard=7)}
    assert (checked.every, begin(checked, NOW).next_reset_at) == (None, None)
    assert check_budget(checked) == checked


def test_a_soft_limit_may_be_above_the_hard_one() -> None:
    """§2.1: limits are not compared; the soft one is never exceeded then"""
    limits = {"tokens": Limit(hard=5, soft=6)}
    assert check_budget(tokens(limits=limits)).limits == limits


def test_what_holds_for_all_of_something_says_of_what() -> None:
    for scope in ATTACHED:
        with pytest.raises(Invalid, match="needs its id"):
            check_budget(tokens(scope=scope))
    for scope in set(Scope) - ATTACHED:
        assert check_budget(tokens(scope=scope)).scope is scope


def test_a_definition_at_its_bounds_is_accepted() -> None:
    full = {f"d{number}": Limit(hard=MAX_AMOUNT, soft=MAX_AMOUNT) for number in range(64)}
    budget = tokens(limits=full, cron="0 0 * * *", timezone="Asia/Tokyo", name="naïve 鍵")
    assert check_budget(budget) == budget


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        [],
        None,
        5,
        {"tokens": -1},
        {"tokens": 1.0},
        {"tokens": True},
        {"tokens": "1"},
        {"tokens": None},
        {"tokens": 2**63},
        {"": 1},
        {5: 1},
        {"two words": 1},
        {"a\u200b": 1},
        {"x" * 65: 1},
        {f"d{number}": 1 for number in range(65)},
    ],
    ids=lambda wrong: str(wrong)[:20],
)
def test_amounts_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(Invalid):
        check_amounts(wrong)


def test_amounts_are_whole_numbers_of_words() -> None:
    """F-37: the usual dimensions are dimensions like any other"""
    given = {"input_tokens": 1, "output_tokens": 2, "wall_ms": 0, "größe": MAX_AMOUNT}
    assert check_amounts(given) == given
    assert check_dimension("x" * 64)


def test_budgets_are_named_once_each() -> None:
    assert check_budget_names(["b", "a", "b"]) == ("b", "a")
    for wrong in ("team", 5, None, ["a", ""], ["a", 5], [f"b{n}" for n in range(MAX_ATTACHED + 1)]):
        with pytest.raises(Invalid):
            check_budget_names(wrong)
