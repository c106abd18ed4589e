"""Quotas: what may be said of them, and in which line somebody stands."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, InvalidPolicy
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.policy import parse_policy
from flowfabric.core.limit.quota import (
    MAX_USES,
    Quota,
    Rate,
    Use,
    budget_queue,
    check_quota,
    check_uses,
    name_uses,
    parse_rate,
    queue_of,
)

MINUTE = Millis(60_000)
names = st.sampled_from(["a", "b", "c", "openai", "task:send", "größe"])
keys = st.sampled_from(["", "k", "l", "a", "=", "b"])
uses = st.dictionaries(names, keys).map(name_uses)


# -- limits


@pytest.mark.parametrize(
    "limits",
    [
        {"concurrency": 1},
        {"concurrency": 2**31 - 1},
        {"concurrency_per_key": 1},
        {"rate": Rate(1, Millis(1))},
        {"rate_per_key": Rate(2**31 - 1, MINUTE)},
        {"concurrency": 1, "concurrency_per_key": 2, "rate": Rate(1, MINUTE)},
    ],
)
def test_a_quota_limits_something(limits: dict[str, Any]) -> None:
    """C-T94, C-T96: limits are read back as they were given"""
    quota = Quota(name="q", **limits)
    assert check_quota(quota) == quota
    assert {limit for limit in quota.limits if limit is not None} == set(limits.values())
    assert quota.limits == replace(quota, version=7, updated_at=Millis(9)).limits
    assert quota.limits != replace(quota, concurrency=77).limits


@pytest.mark.parametrize(
    "members",
    [
        {"concurrency": -1},
        {"concurrency": 2**31},
        {"concurrency": True},
        {"concurrency": 1.5},
        {"concurrency_per_key": -1},
        {"concurrency_per_key": "1"},
        {"rate": Rate(-1, MINUTE)},
        {"rate": Rate(1, Millis(10**15))},
        {"rate_per_key": Rate(1, Millis(-5))},
        {"rate_per_key": Rate(1.5, MINUTE)},  # type: ignore[arg-type]
        {"name": "", "concurrency": 1},
        {"name": " q", "concurrency": 1},
        {"name": "q\n", "concurrency": 1},
        {"name": "x" * 5000, "concurrency": 1},
        {"name": 7, "concurrency": 1},
    ],
)
def test_a_quota_that_makes_no_sense_is_refused(members: dict[str, Any]) -> None:
    """C-T94: bad definitions"""
    with pytest.raises(Invalid):
        check_quota(Quota(**{"name": "q", **members}))


@pytest.mark.parametrize(
    ("members", "limits"),
    [
        ({}, (None, None, None, None)),
        ({"concurrency": 0, "concurrency_per_key": 0}, (None, None, None, None)),
        ({"concurrency": 1, "rate": Rate(0, MINUTE)}, (1, None, None, None)),
        ({"rate": Rate(5, Millis(0))}, (None, None, Rate(5, MINUTE), None)),
        ({"rate_per_key": Rate(0, Millis(0))}, (None, None, None, None)),
    ],
)
def test_zero_is_no_limit(members: dict[str, Any], limits: tuple[Any, ...]) -> None:
    """§3.0, §3.4: 0 = unlimited; a window of 0 is a minute"""
    checked = check_quota(Quota(name="q", **members))
    assert checked.limits == limits
    assert check_quota(checked) == checked


# -- rates


@pytest.mark.parametrize(
    ("text", "count", "window"),
    [
        ("100/m", 100, 60_000),
        ("1/s", 1, 1_000),
        ("7/h", 7, 3_600_000),
        ("2/d", 2, 86_400_000),
        ("5/30s", 5, 30_000),
        ("5/500ms", 5, 500),
        (" 5 / m ", 5, 60_000),
        ((3, "90s"), 3, 90_000),
        ((3, timedelta(minutes=2)), 3, 120_000),
        (Rate(4, MINUTE), 4, 60_000),
    ],
)
def test_a_rate_is_a_count_in_a_span(text: object, count: int, window: int) -> None:
    assert parse_rate(text) == Rate(count, Millis(window))


@pytest.mark.parametrize(
    "wrong",
    [
        *["", "100", "/m", "100/", "0/m", "-1/m", "1.5/m", "a/m", "1/m/s", "1/0s", "1/x"],
        *["\u0661/m", "9" * 20 + "/m"],
        *[7, None, (), (1,), (0, "1s"), (1, 0), ("1", "s"), (True, "1s"), b"1/m"],
    ],
)
def test_what_is_no_rate_is_told_so(wrong: object) -> None:
    with pytest.raises(Invalid):
        parse_rate(wrong)


# -- uses and lines


@given(st.dictionaries(names, keys))
def test_uses_are_in_one_order_however_they_are_given(given_uses: dict[str, str]) -> None:
    """F-07: what a submission says of quotas is what is stored"""
    backwards = dict(reversed(given_uses.items()))
    found = name_uses(given_uses)
    assert found == name_uses(backwards)
    assert [use.quota for use in found] == sorted(given_uses)
    documents = [{"quota": quota, "key": key} for quota, key in backwards.items()]
    assert parse_policy({"quotas": documents}).quotas == found
    assert queue_of(found) == queue_of(name_uses(backwards))


@given(uses, uses)
def test_two_lines_are_the_same_exactly_when_their_uses_are(
    one: tuple[Use, ...], other: tuple[Use, ...]
) -> None:
    assert (queue_of(one) == queue_of(other)) is (one == other)
    assert 0 <= queue_of(one) < 1 << 63


def test_the_number_of_a_line_is_the_same_for_ever() -> None:
    """Rows carry it: another way to count would lose everybody who waits."""
    assert queue_of(name_uses({"a": "k"})) == 6_216_712_471_094_751_904
    assert budget_queue("a") == 808_398_830_757_415_508


def test_names_alone_share_the_empty_key() -> None:
    assert name_uses(["b", Use(quota="a", key="k")]) == (
        Use(quota="a", key="k"),
        Use(quota="b", key=""),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        [Use(quota="a"), Use(quota="a", key="k")],
        [Use(quota="")],
        [Use(quota=" a")],
        [Use(quota="a", key="a\0b")],
        [Use(quota="a", key="x" * 5000)],
        [Use(quota="a", key=7)],  # type: ignore[arg-type]
        [Use(quota=f"q{n}") for n in range(MAX_USES + 1)],
    ],
)
def test_uses_that_make_no_sense_are_refused(wrong: list[Use]) -> None:
    with pytest.raises(Invalid):
        check_uses(wrong)


def test_one_text_is_no_list_of_quotas() -> None:
    with pytest.raises(Invalid):
        name_uses("abc")


@pytest.mark.parametrize(
    "wrong",
    [
        "a",
        ["a"],
        [{"quota": ""}],
        [{"key": "k"}],
        [{"quota": "a", "key": None}],
        [{"quota": "a", "key": 7}],
        [{"quota": "a"}, {"quota": "a", "key": "k"}],
        [{"quota": f"q{n}"} for n in range(MAX_USES + 1)],
        {"quota": "a"},
    ],
)
def test_a_policy_with_such_uses_is_refused(wrong: object) -> None:
    """F-07: what cannot be understood refuses the creation"""
    with pytest.raises(InvalidPolicy):
        parse_policy({"quotas": wrong})
