"""What is true of every condition, whatever is received in whatever order."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowfabric.core.base.errors import Invalid
from flowfabric.core.wait.condition.check import check_condition
from flowfabric.core.wait.condition.codec import read_condition, write_condition
from flowfabric.core.wait.condition.match import ConditionMatch, blank, match_condition, satisfied
from flowfabric.core.wait.condition.model import (
    AllTrue,
    AnyTrue,
    ByName,
    Condition,
    Count,
    CountKind,
    OperatorOnly,
    Single,
    TimeoutOnly,
    Unknown,
    Wildcard,
    keys_of,
    names_for,
)
from flowfabric.core.wait.model import Effect, Signal
from tests.core.wait.test_condition import at, match_all

Received = list[Signal]
"""What one run accepts: no waitpoint has two signals with the same id."""


# The specification, word by word: a pure function of the condition and all that was received.


def is_true(condition: Condition, received: Received) -> bool:
    match condition:
        case AllTrue(members):
            return members != () and all(is_true(member, received) for member in members)
        case AnyTrue(members):
            return any(is_true(member, received) for member in members)
        case Count():
            return len(satisfiers(condition, received)) >= condition.n
        case Single():
            return satisfiers(condition, received) != set()
        case OperatorOnly() | TimeoutOnly() | Unknown():
            return False


def satisfiers(leaf: Condition, received: Received) -> set[object]:
    """The distinct ones among those that the leaf accepts."""
    accepted = [signal for signal in received if accepts(leaf, signal)]
    match leaf:
        case Single():
            return {leaf.waitpoint for _ in accepted}
        case Count(kind=CountKind.WAITPOINTS):
            return {signal.key for signal in accepted}
        case Count(kind=CountKind.SIGNALS):
            return {signal.id for signal in accepted}
        case _:
            return {(signal.source_type, signal.source) for signal in accepted}


def is_about(leaf: Condition, signal: Signal) -> bool:
    match leaf:
        case Single(waitpoint):
            return waitpoint == signal.key
        case Count():
            return signal.key in leaf.waitpoints
        case _:
            return False


def accepts(leaf: Condition, signal: Signal) -> bool:
    if not isinstance(leaf, Single | Count) or not is_about(leaf, signal):
        return False
    return not isinstance(leaf.matcher, ByName) or leaf.matcher.name == signal.name


def leaves(condition: Condition) -> Iterator[Condition]:
    if not isinstance(condition, AllTrue | AnyTrue):
        yield condition
        return
    for member in condition.members:
        yield from leaves(member)


def effect_of(condition: Condition, received: Received) -> Effect:
    """What the last of the signals did."""
    every, last = list(leaves(condition)), received[-1]
    if not any(is_about(leaf, last) for leaf in every):
        return Effect.NOT_IN_CONDITION
    if not any(accepts(leaf, last) for leaf in every):
        return Effect.NO_OP if isinstance(condition, Single) else Effect.MATCHER_FAILED
    if all(satisfiers(leaf, received) == satisfiers(leaf, received[:-1]) for leaf in every):
        return Effect.REPEATED
    return Effect.SATISFIED if is_true(condition, received) else Effect.APPENDED


# Conditions and signals of few words, so that they meet.

keys = st.sampled_from("abc")
names = st.sampled_from("xy")
matchers = st.builds(Wildcard) | st.builds(ByName, names)
singles = st.builds(Single, keys, matchers)
sources = st.sampled_from(["", "p", "p:"])
signals = st.builds(at, keys, names, st.sampled_from(["", ":"]), sources, id=st.integers(1, 8))
never = st.sampled_from([OperatorOnly(), TimeoutOnly()])


@st.composite
def counts(draw: st.DrawFn) -> Count:
    kind = draw(st.sampled_from(CountKind))
    waitpoints = tuple(draw(st.lists(keys, min_size=1, max_size=4)))
    most = len(set(waitpoints)) if kind is CountKind.WAITPOINTS else 4
    return Count(draw(st.integers(1, most)), kind, waitpoints, draw(st.none() | matchers))


def trees(depth: int) -> st.SearchStrategy[Condition]:
    """Conditions of at most that many bodies within one another, most of which can be true."""
    if depth == 0:
        return st.one_of(singles, singles, singles, never)
    members = st.lists(trees(depth - 1), min_size=1, max_size=3).map(tuple)
    bodies = st.one_of(st.builds(AllTrue, members), st.builds(AnyTrue, members))
    return st.one_of(bodies, bodies, counts(), singles)


conditions = trees(4)
rounds = st.lists(signals, max_size=12, unique_by=lambda signal: (signal.key, signal.id))

unhurried = settings(deadline=None)  # the specification, word by word, takes its time


@unhurried
@given(conditions, rounds)
def test_hearing_one_by_one_is_as_good_as_hearing_all_at_once(
    condition: Condition, received: Received
) -> None:
    """E-X21: the same truth, and the same effect, after every signal."""
    assert check_condition(condition) is condition
    for number, matched in enumerate(match_all(condition, received), start=1):
        truth = is_true(condition, received[:number])
        assert (matched.satisfied, satisfied(condition, matched.tallies)) == (truth, truth)
        assert matched.effect is effect_of(condition, received[:number])


@unhurried
@given(conditions, rounds.filter(bool), st.data())
def test_the_order_of_signals_plays_no_part(
    condition: Condition, received: Received, data: st.DataObject
) -> None:
    last = match_all(condition, received)[-1]
    other = match_all(condition, data.draw(st.permutations(received)))[-1]
    assert other.satisfied is last.satisfied
    assert [tally.count for tally in other.tallies] == [tally.count for tally in last.tallies]


@unhurried
@given(conditions, rounds)
def test_what_was_true_stays_true(condition: Condition, received: Received) -> None:
    truths = [matched.satisfied for matched in match_all(condition, received)]
    assert truths == sorted(truths)


@unhurried
@given(conditions, rounds)
def test_tallies_are_told_apart_by_leaf(condition: Condition, received: Received) -> None:
    """Each leaf counts its own distinct satisfiers, and keeps keys only where those count."""
    tallies = match_all(condition, received)[-1].tallies if received else blank(condition)
    for leaf, tally in zip(leaves(condition), tallies, strict=True):
        counted = satisfiers(leaf, received)
        by_key = isinstance(leaf, Count) and leaf.kind is CountKind.WAITPOINTS
        assert tally.count == len(counted)
        assert set(tally.keys) == (counted if by_key else set())


@unhurried
@given(conditions, keys)
def test_names_and_keys_are_those_that_can_be_heard(condition: Condition, key: str) -> None:
    every = [leaf for leaf in leaves(condition) if isinstance(leaf, Single | Count)]
    at_key = [leaf.matcher for leaf in every if is_about(leaf, at(key, ""))]
    assert (key in keys_of(condition)) is bool(at_key)
    if not isinstance(condition, OperatorOnly | TimeoutOnly):
        named = {matcher.name for matcher in at_key if isinstance(matcher, ByName)}
        assert set(names_for(condition, [key])[key]) == named


@given(st.lists(st.tuples(st.text(":\0|a", max_size=3), st.text(":\0|a", max_size=3)), max_size=8))
def test_sources_never_collide(sources: list[tuple[str, str]]) -> None:
    count = Count(len(set(sources)) or 1, CountKind.SOURCES, ("a",))
    matches = match_all(count, [at("a", "x", source, kind) for kind, source in sources])
    assert [matched.tallies[0].count for matched in matches] == [
        len(set(sources[:number])) for number in range(1, len(sources) + 1)
    ]


# Cost.


def calls_of(function: Callable[[], object]) -> int:
    """How many calls, of Python and of C, the function makes."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("kind", [CountKind.SIGNALS, CountKind.SOURCES])
def test_the_ten_thousandth_signal_costs_what_the_first_did(kind: CountKind) -> None:
    """In calls, and in what is kept."""
    condition = AllTrue((Count(10_000, kind, ("a", "b")), Single("a")))
    received = [at("a", "x", str(number)) for number in range(10_000)]
    matches = match_all(condition, received)
    assert [matched.satisfied for matched in matches] == [False] * 9_999 + [True]
    assert msgspec.json.encode(matches[-1].tallies) == b"[[10000,[]],[1,[]]]"

    second = calls_of(lambda: match_condition(condition, matches[0].tallies, received[1]))
    last = calls_of(lambda: match_condition(condition, matches[-2].tallies, received[-1]))
    assert last == second


def test_a_waitpoint_is_kept_once_however_often_it_is_heard() -> None:
    condition = Count(3, CountKind.WAITPOINTS, ("a", "b", "c"))
    matches = match_all(condition, [at("ab"[number % 2], "x") for number in range(1_000)])
    assert matches[-1].tallies == matches[1].tallies
    assert matches[-1].tallies[0].keys == ("a", "b")


# Documents from anywhere.

WORDS = [
    *("kind", "members", "matcher", "name", "n", "count_kind", "waitpoint", "waitpoints"),
    *("Single", "Count", "AllOf", "AnyOf", "OperatorOnly", "TimeoutOnly", "ByName", "Wildcard"),
    *("DistinctSignals", "DistinctSources", "DistinctWaitpoints"),
]
words = st.sampled_from(WORDS) | st.text(max_size=3)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=5),
    max_leaves=12,
)


@st.composite
def mutations(draw: st.DrawFn) -> Any:
    """A valid document in which some places are replaced, taken away or added."""
    document: dict[str, Any] = {"": deepcopy(write_condition(draw(conditions)))}
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(list(places(document))))
        spot = draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
        if draw(st.booleans()):
            place[spot] = draw(anything)
        elif place is not document:
            del place[spot]
    return document[""]


def places(value: Any) -> Iterator[Any]:
    """Everything in a document that has something in it."""
    if isinstance(value, dict | list) and value:
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from places(item)


def read_without_harm(members: object) -> None:
    """Either refused as invalid, or read and usable: no document does anything else."""
    with suppress(Invalid):
        condition = read_condition(members)
        assert read_condition(write_condition(condition)) == condition
        assert isinstance(
            match_condition(condition, blank(condition), at("a", "x")), ConditionMatch
        )
        assert check_condition(condition) == condition


@given(anything)
def test_reading_survives_any_document(members: object) -> None:
    read_without_harm(members)


@given(mutations())
def test_reading_survives_a_broken_condition(members: object) -> None:
    read_without_harm(members)


@given(
    st.dictionaries(st.none() | st.integers() | words, anything | st.binary(), max_size=5)
    | st.sampled_from([object(), Single, Single("a"), {"a"}, b"{}", {"kind": object()}])
)
def test_reading_survives_what_is_no_json(members: object) -> None:
    read_without_harm(members)


@given(conditions)
def test_a_condition_reads_back_from_json(condition: Condition) -> None:
    members = msgspec.json.decode(msgspec.json.encode(write_condition(condition)))
    assert members == write_condition(condition)
    assert read_condition(members) == condition
