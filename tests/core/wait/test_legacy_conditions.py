"""Conditions from before there were composite ones (execution.md 4.1): each name is a slot."""

from itertools import product
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.wait.condition.check import check_condition
from flowfabric.core.wait.condition.legacy import as_condition, read_signal_set
from flowfabric.core.wait.condition.match import blank, match_condition
from flowfabric.core.wait.condition.model import (
    AllTrue,
    ByName,
    Condition,
    Count,
    CountKind,
    Single,
)
from flowfabric.core.wait.model import Behaviour, Signal


def read(*names: str, **members: Any) -> Condition:
    given = {"required_signal_names": list(names), **members}
    return check_condition(as_condition(read_signal_set(given), "k"))


def is_satisfied_by(condition: Condition, *names: str) -> bool:
    tallies, satisfied = blank(condition), False
    for number, name in enumerate(names, 1):
        signal = Signal(number, UUID(int=number), UUID(int=0), "k", name, Millis(0))
        found = match_condition(condition, tallies, signal)
        tallies, satisfied = found.tallies, found.satisfied
    return satisfied


def fills_slots(slots: str, needed: int, names: tuple[str, ...]) -> bool:
    """The text, word by word: a signal fills the first free slot that accepts it."""
    free = list(slots)
    for name in names:
        if name in free:
            free.remove(name)
    return len(slots) - len(free) >= needed


@pytest.mark.parametrize("slots", ["a", "ab", "aa", "aba", "abc"])
def test_each_name_is_a_slot_that_one_signal_fills(slots: str) -> None:
    for needed in range(1, len(slots) + 1):
        condition = read(*slots, minimum_signal_count=needed)
        assert read(*slots, signal_match_mode=needed) == condition
        assert read(*slots, signal_match_mode=str(needed)) == condition
        for length in range(5):
            for names in product("abcx", repeat=length):
                expected = fills_slots(slots, needed, names)
                assert is_satisfied_by(condition, *names) is expected, (condition, names)


def test_all_needs_every_slot() -> None:
    everything = AllTrue((Single("k", ByName("a")), Single("k", ByName("b"))))
    assert read("a", "b", signal_match_mode="all", minimum_signal_count=1) == everything
    assert read("a", signal_match_mode="all") == Single("k", ByName("a"))


def test_no_name_is_any_signal() -> None:
    assert read() == read(signal_match_mode="all") == Single("k")
    assert read(minimum_signal_count=3) == Count(3, CountKind.SIGNALS, ("k",))


@pytest.mark.parametrize(
    "given",
    [
        7,
        {"required_signal_names": "a"},
        {"required_signal_names": [1]},
        {"required_signal_names": ["a"], "minimum_signal_count": 0},
        {"required_signal_names": ["a"], "minimum_signal_count": 2},
        {"required_signal_names": ["a"], "signal_match_mode": -1},
        {"required_signal_names": ["a"], "signal_match_mode": "9" * 5000},
        {"required_signal_names": ["a"], "color": "red"},
        {"required_signal_names": [str(n) for n in range(60)], "minimum_signal_count": 30},
        {"required_signal_names": ["a"] * 1001, "signal_match_mode": "all"},
    ],
)
def test_what_cannot_be_waited_for(given: Any) -> None:
    with pytest.raises(Invalid):
        as_condition(read_signal_set(given), "k")


@pytest.mark.parametrize(
    ("word", "behaviour"),
    [
        ("fail", Behaviour.FAIL),
        ("Cancel", Behaviour.CANCEL),
        ("EXPIRE", Behaviour.EXPIRE),
        ("auto_resume", Behaviour.AUTO_RESUME),
        ("AutoResume", Behaviour.AUTO_RESUME),
        ("AutoResumeWithTimeoutSignal", Behaviour.AUTO_RESUME),
        ("auto_resume_with_timeout_signal", Behaviour.AUTO_RESUME),
        ("Escalate", Behaviour.ESCALATE),
        ("explode", Behaviour.FAIL),
        ("", Behaviour.FAIL),
    ],
)
def test_spellings_of_what_happens_after_a_timeout(word: str, behaviour: Behaviour) -> None:
    """§3.39: short and long forms; what is not known is `fail`."""
    assert Behaviour(word) is behaviour
