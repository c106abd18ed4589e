import math
from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.numbers import (
    MAX_COUNT,
    check_kind_of,
    check_limit,
    check_names,
    check_seconds,
    check_whole,
)

BEYOND_PRINT = 10**5000
NO_NUMBERS = [None, True, 1.0, math.nan, "1", b"1", [1], object()]


def refusal(check: Any, *arguments: Any) -> str:
    with pytest.raises(Invalid) as caught:
        check(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("value", [0, 1, MAX_COUNT])
def test_a_whole_number_within_its_bounds_comes_back(value: int) -> None:
    assert check_whole(value, "count") == value
    assert check_whole(-value, "count", -MAX_COUNT) == -value


@pytest.mark.parametrize("value", [-1, MAX_COUNT + 1, BEYOND_PRINT], ids=["-1", "31 bits", "all"])
def test_a_whole_number_beyond_its_bounds_is_refused_and_not_repeated(value: int) -> None:
    assert refusal(check_whole, value, "count") == f"invalid_input: count must be 0 to {MAX_COUNT}"


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_is_no_whole_number_is_told_by_its_type(value: object) -> None:
    assert refusal(check_whole, value, "count").endswith(f"not {type(value).__name__}")
    assert refusal(check_limit, value, 10).endswith(f"not {type(value).__name__}")


def test_a_limit_is_cut_to_what_there_is_room_for() -> None:
    given = [-BEYOND_PRINT, -1, 0, 7, 11, BEYOND_PRINT]
    assert [check_limit(value, 10) for value in given] == [0, 0, 0, 7, 10, 10]


@pytest.mark.parametrize("value", [0, 0.0, 1, 0.5, 1e9])
def test_seconds_may_have_a_fraction(value: float) -> None:
    assert check_seconds(value, "wait") == value


def test_impossible_seconds_are_refused() -> None:
    for value in (-1, -0.1, math.nan, math.inf, -math.inf, 1e10, BEYOND_PRINT):
        assert "must be 0 to" in refusal(check_seconds, value, "wait")


@pytest.mark.parametrize("value", [None, True, b"1", [1]])
def test_what_is_no_number_of_seconds_is_told_by_its_type(value: object) -> None:
    assert refusal(check_seconds, value, "wait").endswith(f"not {type(value).__name__}")


def test_a_value_of_the_right_kind_comes_back_and_another_is_refused() -> None:
    assert check_kind_of("x", str, "name") == "x"
    assert refusal(check_kind_of, 7, str, "name") == ("invalid_input: name must be a str, not int")


def test_names_are_a_collection_and_one_text_is_none() -> None:
    assert check_names(["a", "b"], "lanes") == ("a", "b")
    assert check_names((), "lanes") == ()
    for value in ("ab", b"ab", None, 7, {"a": 1}, iter("ab")):
        assert refusal(check_names, value, "lanes").startswith("invalid_input: lanes must be")
