import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import (
    MAX_MILLIS,
    MAX_SPAN,
    Millis,
    check_moment,
    from_datetime,
    parse_span,
    to_datetime,
)


@pytest.mark.parametrize(
    ("value", "millis"),
    [
        ("250ms", 250),
        ("10s", 10_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("1h30m", 5_400_000),
        ("1d2h3m4s5ms", 93_784_005),
        ("0s", 0),
        ("3653d", MAX_SPAN),
        (3, 3000),
        (0.25, 250),
        (1.0015, 1001),
        (timedelta(minutes=1, microseconds=1500), 60_001),
        (timedelta(days=3653), MAX_SPAN),
    ],
)
def test_spans_are_written_in_many_ways(value: object, millis: int) -> None:
    assert parse_span(value, "timeout") == millis


@pytest.mark.parametrize(
    "value",
    ["", "10", "s", "10 s", " 10s", "10s\n", "30m1h", "1h1h", "1.5s", "-1s", "+1s", "1w", "10S",
     "\u0661s", "9" * 5000 + "s", "9999999999s", "\0", "\ud800", -1, -0.001, math.nan, math.inf,
     -math.inf, 1e300, 10**400, 10**9, True, None, b"10s", [10], timedelta(milliseconds=-1),
     timedelta(days=3654), timedelta.max],
)  # fmt: skip
def test_what_is_no_sensible_span_is_refused_by_name(value: object) -> None:
    with pytest.raises(Invalid, match="timeout"):
        parse_span(value, "timeout")


def test_a_span_that_is_not_understood_is_shown_up_to_a_length() -> None:
    with pytest.raises(Invalid, match=r"or '1h30m': 'soon'$"):
        parse_span("soon", "timeout")
    with pytest.raises(Invalid, match=r"': '9{38}…$"):
        parse_span("9" * 5000, "timeout")


@given(st.text())
def test_no_text_makes_a_span_fail_in_another_way(text: str) -> None:
    with suppress(Invalid):
        assert 0 <= parse_span(text, "timeout") <= MAX_SPAN


@given(st.floats() | st.integers() | st.timedeltas())
def test_no_number_makes_a_span_fail_in_another_way(value: float) -> None:
    with suppress(Invalid):
        assert 0 <= parse_span(value, "timeout") <= MAX_SPAN


@pytest.mark.parametrize("value", [0, 1, MAX_MILLIS])
def test_moments_reach_from_1970_to_9999(value: int) -> None:
    assert check_moment(value, "delay_until") == value


@pytest.mark.parametrize("value", [-1, MAX_MILLIS + 1, 10**30, True, 1.0, "1", None, math.nan])
def test_other_values_are_no_moments(value: object) -> None:
    with pytest.raises(Invalid, match="delay_until"):
        check_moment(value, "delay_until")


@given(st.integers(0, MAX_MILLIS).map(Millis))
def test_a_moment_reads_back_from_its_datetime(moment: Millis) -> None:
    assert from_datetime(to_datetime(moment)) == moment
    assert to_datetime(moment).tzinfo is UTC


def test_a_datetime_of_any_zone_names_its_moment() -> None:
    there = datetime(1970, 1, 1, 5, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert from_datetime(there) == 0


@pytest.mark.parametrize(
    "value",
    [datetime(2030, 1, 1), datetime(1969, 12, 31, tzinfo=UTC), None, 7, "2030-01-01"],  # noqa: DTZ001
)
def test_a_naive_or_ancient_datetime_is_refused_by_name(value: object) -> None:
    with pytest.raises(Invalid, match="start"):
        from_datetime(value, "start")  # type: ignore[arg-type]
