"""What an operator decides about a lane: its state, its weight, how many of it run at once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Start
from flowfabric.core.limit.lane import (
    MAX_WEIGHT,
    Lane,
    LaneState,
    begins,
    check_lane_settings,
    is_full,
    set_state,
)

NOW = Millis(5_000)
states = st.sampled_from(LaneState)


def test_a_lane_without_settings_is_open_and_limits_nothing() -> None:
    lane = Lane(name="default")
    assert (lane.state, lane.concurrency, lane.weight) == (LaneState.OPEN, None, 1)
    assert (lane.by, lane.reason, lane.at) == ("", "", None)
    assert check_lane_settings(lane) is lane


@given(states, states)
def test_a_change_of_state_says_who_when_and_why_and_the_first_word_stays(
    old: LaneState, new: LaneState
) -> None:
    """F-47: lane states mean something, and somebody answers for them"""
    lane = Lane(name="a", state=old, by="ada", reason="first", at=Millis(1), weight=3)
    found = set_state(lane, new, "bob", "second", NOW)
    assert (found.state, found.weight, found.name) == (new, 3, "a")
    told = ("ada", "first", 1) if old is new else ("bob", "second", NOW)
    assert (found.by, found.reason, found.at) == told


@pytest.mark.parametrize(
    ("by", "reason"),
    [("x" * 257, ""), ("a\0b", ""), (7, ""), ("", "x" * 5000), ("", None), ("", "a\0b")],
)
def test_who_and_why_are_texts_that_can_be_stored(by: Any, reason: Any) -> None:
    for state in LaneState:
        with pytest.raises(Invalid):
            set_state(Lane(name="a"), state, by, reason, NOW)


@pytest.mark.parametrize(
    "members",
    [
        {"name": ""},
        {"name": "ä"},
        {"name": "x" * 65},
        {"weight": 0},
        {"weight": -1},
        {"weight": MAX_WEIGHT + 1},
        {"weight": 1.5},
        {"weight": True},
        {"weight": None},
        {"concurrency": 0},
        {"concurrency": -1},
        {"concurrency": 2**31},
        {"concurrency": "2"},
        {"concurrency": True},
    ],
)
def test_settings_that_make_no_sense_are_refused(members: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        check_lane_settings(Lane(**{"name": "a", **members}))


def test_settings_at_their_bounds_are_accepted() -> None:
    for weight in (1, MAX_WEIGHT):
        for concurrency in (None, 1, 2**31 - 1):
            lane = Lane(name="z" * 64, weight=weight, concurrency=concurrency)
            assert check_lane_settings(lane) is lane


@pytest.mark.parametrize("start", Start)
def test_what_is_taken_of_a_lane(start: Start) -> None:
    """F-47: what has begun goes on in a draining one, nothing does in a paused one"""
    assert begins(Lane(name="a"), start)
    assert not begins(Lane(name="a", state=LaneState.PAUSED), start)
    assert begins(Lane(name="a", state=LaneState.DRAINING), start) == (
        start not in (Start.INITIAL, Start.REPLAY)
    )


def test_a_lane_is_full_when_as_many_run_as_may() -> None:
    assert not is_full(Lane(name="a"), 10_000)
    assert [is_full(Lane(name="a", concurrency=2), n) for n in (0, 1, 2, 3)] == [
        False,
        False,
        True,
        True,
    ]
