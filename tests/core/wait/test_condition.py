"""Examples of every rule; what is true of every condition is in test_condition_properties.py."""

import json
from collections.abc import Iterable
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import Corruption, Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.wait.condition.check import check_condition, check_names
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
    all_waitpoints,
    any_waitpoint,
    keys_of,
    names_for,
)
from flowfabric.core.wait.model import Effect, Signal, Tally

WAITPOINTS, SIGNALS, SOURCES = CountKind.WAITPOINTS, CountKind.SIGNALS, CountKind.SOURCES
_IDS = count(1_000)
NEWER = Unknown({"kind": "Never", "members": [{"kind": "Single"}]})


def effects(condition: Condition, *signals: Signal) -> list[Effect]:
    """What each of the signals does, as the engine would tell it."""
    matches = match_all(check_condition(condition), signals)
    assert all(satisfied(condition, each.tallies) is each.satisfied for each in matches)
    return [each.effect for each in matches]


def match_all(condition: Condition, signals: Iterable[Signal]) -> list[ConditionMatch]:
    """Matches one after the other; a source is known by its type and identity."""
    tallies, matches = blank(condition), list[ConditionMatch]()
    sourced, identified = dict[tuple[str, str], int](), dict[UUID, int]()
    for signal in signals:
        source = signal.source_type, signal.source
        known = sourced.get(source, 0), identified.get(signal.id, 0)
        matches.append(match_condition(condition, tallies, signal, *known))
        tallies, sourced[source] = matches[-1].tallies, matches[-1].sourced
        identified[signal.id] = matches[-1].identified
    return matches


def at(
    key: str, name: str = "any", source: str = "", source_type: str = "", id: int | None = None
) -> Signal:
    """A signal of that name at the waitpoint of that key, by default with an id of its own."""
    return Signal(
        number=1,
        id=UUID(int=next(_IDS) if id is None else id),
        waitpoint=UUID(int=2),
        key=key,
        name=name,
        accepted_at=Millis(0),
        source_type=source_type,
        source=source,
    )


def within(depth: int, inner: Condition) -> Condition:
    """`inner` inside of that many bodies."""
    return within(depth - 1, AllTrue((inner,))) if depth else inner


# One waitpoint.


def test_a_single_is_satisfied_by_the_first_signal_its_matcher_accepts() -> None:
    assert effects(Single("a"), at("a", "whatever")) == [Effect.SATISFIED]
    assert effects(Single("a", ByName("go")), at("a", "go")) == [Effect.SATISFIED]


def test_a_signal_of_another_name_is_a_no_op_for_a_single() -> None:
    """Names are compared exactly."""
    told = effects(Single("a", ByName("go")), at("a", "Go"), at("a", "go "), at("a", "go"))
    assert told == [Effect.NO_OP, Effect.NO_OP, Effect.SATISFIED]


def test_a_signal_elsewhere_is_not_in_the_condition() -> None:
    assert effects(Single("a"), at("b"), at("A")) == [Effect.NOT_IN_CONDITION] * 2


@pytest.mark.parametrize("condition", [OperatorOnly(), TimeoutOnly()])
def test_no_signal_satisfies_a_wait_for_another_source(condition: Condition) -> None:
    assert effects(condition, at("a"), at("")) == [Effect.NOT_IN_CONDITION] * 2
    assert effects(AllTrue((condition, Single("a"))), at("a"), at("a"))[1] is Effect.REPEATED


def test_a_condition_that_was_true_before_stays_true() -> None:
    """It never happens, and must do no harm."""
    told = effects(Single("a"), at("a"), at("a"))
    assert told == [Effect.SATISFIED, Effect.REPEATED]
    assert effects(Count(1, SIGNALS, ("a",)), at("a"), at("a")) == [Effect.SATISFIED] * 2


# Several.


def test_all_of_two_matchers_at_one_waitpoint_needs_both() -> None:
    """E-T280: appended, then satisfied."""
    both = AllTrue((Single("a", ByName("x")), Single("a", ByName("y"))))
    assert effects(both, at("a", "x"), at("a", "y")) == [Effect.APPENDED, Effect.SATISFIED]


def test_a_member_counts_once() -> None:
    """E-T281: the repetition is told as one, the other member then resumes."""
    both = AllTrue((Single("a", ByName("x")), Single("a", ByName("y"))))
    told = effects(both, at("a", "x"), at("a", "x"), at("a", "y"))
    assert told == [Effect.APPENDED, Effect.REPEATED, Effect.SATISFIED]


def test_all_of_three_waitpoints_needs_each() -> None:
    """E-T282: appended, appended, satisfied."""
    told = effects(all_waitpoints("a", "b", "c"), at("c"), at("a"), at("d"), at("b"))
    ignored = Effect.NOT_IN_CONDITION
    assert told == [Effect.APPENDED, Effect.APPENDED, ignored, Effect.SATISFIED]


def test_a_count_of_waitpoints_reaches_its_threshold() -> None:
    """E-T283: a waitpoint counts once, and only if it is one of those named."""
    two = Count(2, WAITPOINTS, ("a", "b", "c"))
    told = effects(two, at("a"), at("a", "other"), at("d"), at("c"))
    ignored = Effect.NOT_IN_CONDITION
    assert told == [Effect.APPENDED, Effect.REPEATED, ignored, Effect.SATISFIED]


def test_a_waitpoint_named_twice_is_one_waitpoint() -> None:
    told = effects(Count(2, WAITPOINTS, ("a", "a", "b")), at("a"), at("a"), at("b"))
    assert told == [Effect.APPENDED, Effect.REPEATED, Effect.SATISFIED]


def test_any_waitpoint_is_satisfied_by_the_first() -> None:
    assert effects(any_waitpoint("a", "b"), at("b")) == [Effect.SATISFIED]


def test_a_count_of_signals_counts_every_signal() -> None:
    """E-T284: two signals resume, be they ever so alike."""
    two = Count(2, SIGNALS, ("a",))
    assert effects(two, at("a"), at("a")) == [Effect.APPENDED, Effect.SATISFIED]


def test_a_signal_id_at_two_waitpoints_is_one_satisfier() -> None:
    """4.2: what a count of signals counts is distinct signal ids; another count has its own."""
    three = Count(3, SIGNALS, ("a", "b"))
    told = effects(three, at("a", id=7), at("b", id=7), at("b", id=8), at("a", id=9))
    assert told == [Effect.APPENDED, Effect.REPEATED, Effect.APPENDED, Effect.SATISFIED]
    apart = AllTrue((Count(1, SIGNALS, ("a",)), Count(1, SIGNALS, ("b", "c"))))
    assert effects(apart, at("a", id=7), at("b", id=7)) == [Effect.APPENDED, Effect.SATISFIED]


def test_a_count_of_sources_counts_two_sources() -> None:
    """E-T286, E-T287: another source resumes, the same source again changes nothing."""
    two = Count(2, SOURCES, ("a", "b"))
    told = effects(two, at("a", source="ann"), at("b", source="ann"), at("b", source="bob"))
    assert told == [Effect.APPENDED, Effect.REPEATED, Effect.SATISFIED]


def test_all_anonymous_signals_are_one_source() -> None:
    assert effects(Count(2, SOURCES, ("a",)), at("a"), at("a"))[1] is Effect.REPEATED


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a", "b:c"), ("a:b", "c")), (("", "ab"), ("ab", "")), (("a\0", "b"), ("a", "\0b"))],
)
def test_sources_are_compared_as_pairs(one: tuple[str, str], other: tuple[str, str]) -> None:
    sounds = [at("a", source=source, source_type=kind) for kind, source in (one, other)]
    assert effects(Count(2, SOURCES, ("a",)), *sounds)[1] is Effect.SATISFIED


def test_a_count_with_a_matcher_counts_what_it_accepts() -> None:
    """E-T288: another name is ignored, the right one resumes."""
    one = Count(1, SIGNALS, ("a",), ByName("go"))
    assert effects(one, at("a", "no"), at("a", "go")) == [Effect.MATCHER_FAILED, Effect.SATISFIED]


def test_one_matcher_that_accepts_is_enough() -> None:
    mixed = AllTrue((Single("a", ByName("x")), Count(9, SIGNALS, ("a",)), Single("b", ByName("x"))))
    told = effects(mixed, at("a", "y"), at("b", "y"))
    assert told == [Effect.APPENDED, Effect.MATCHER_FAILED]


def test_any_of_is_satisfied_by_one_member() -> None:
    any_of = AnyTrue((all_waitpoints("a", "b"), Single("c"), OperatorOnly()))
    assert effects(any_of, at("a"), at("c")) == [Effect.APPENDED, Effect.SATISFIED]
    assert effects(any_of, at("a"), at("b")) == [Effect.APPENDED, Effect.SATISFIED]


@pytest.mark.parametrize("empty", [AllTrue(()), AnyTrue(())])
def test_nothing_is_never_true(empty: Condition) -> None:
    assert not satisfied(empty, blank(empty))


def test_a_count_that_reached_its_number_still_tells_new_ones_from_repetitions() -> None:
    condition = AllTrue((Count(1, SOURCES, ("a",)), Single("b")))
    told = effects(condition, at("a", source="1"), at("a", source="2"), at("a", source="1"))
    assert told == [Effect.APPENDED, Effect.APPENDED, Effect.REPEATED]


def test_the_signals_that_satisfied_can_be_told_from_the_effects() -> None:
    """E-T291: those that appended or satisfied, and no others."""
    condition = AllTrue((Count(2, SOURCES, ("a",), ByName("yes")), Single("b")))
    sounds = [at("a", "yes", "1"), at("a", "no", "2"), at("a", "yes", "1"), at("b"), at("c")]
    told = effects(condition, *sounds, at("a", "yes", "2"))
    counted = {Effect.APPENDED, Effect.SATISFIED}
    assert [effect in counted for effect in told] == [True, False, False, True, False, True]


# Trees.


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("count", [Count(1, kind, ("a",)) for kind in CountKind])
def test_a_composite_at_the_bottom_fires(depth: int, count: Count) -> None:
    """E-X21: trees of three and four bodies."""
    assert effects(within(depth, count), at("a")) == [Effect.SATISFIED]
    pair = AllTrue((within(depth - 1, count), within(depth - 1, Single("b"))))
    assert effects(pair, at("a"), at("b")) == [Effect.APPENDED, Effect.SATISFIED]


@pytest.mark.parametrize("kind", [SIGNALS, SOURCES])
def test_two_counts_do_not_share_what_they_count(kind: CountKind) -> None:
    """E-X21: neither by kind nor by being equal."""
    apart = AllTrue((Count(2, kind, ("a",)), Count(2, kind, ("b",))))
    sounds = [at("a", source="1"), at("b", source="1"), at("a", source="2"), at("b", source="2")]
    assert effects(apart, *sounds) == [Effect.APPENDED] * 3 + [Effect.SATISFIED]


def test_one_signal_counts_for_every_leaf_that_accepts_it() -> None:
    shared = AllTrue((Single("a"), Count(1, SIGNALS, ("a", "b")), any_waitpoint("a")))
    assert effects(shared, at("a")) == [Effect.SATISFIED]


def test_a_source_is_remembered_leaf_by_leaf() -> None:
    at_a, at_b = (Count(2, SOURCES, (key,)) for key in ("a", "b"))
    condition = AllTrue((at_a, Count(1, SIGNALS, ("a",)), at_b))
    first = match_condition(condition, blank(condition), at("a", source="1"))
    second = match_condition(condition, first.tallies, at("b", source="1"), first.sourced)
    assert (first.sourced, second.sourced) == (0b001, 0b101)
    assert [tally.count for tally in second.tallies] == [1, 1, 1]


def test_an_unknown_condition_is_never_true() -> None:
    tallies = blank(AllTrue((NEWER, Single("a"))))
    matched = match_condition(AllTrue((NEWER, Single("a"))), tallies, at("a"))
    assert (matched.effect, matched.satisfied) == (Effect.APPENDED, False)
    assert match_condition(NEWER, blank(NEWER), at("a")).effect is Effect.NOT_IN_CONDITION
    assert match_condition(AnyTrue((NEWER, Single("a"))), tallies, at("a")).satisfied


@pytest.mark.parametrize("tallies", [(), (Tally(),), (Tally(),) * 3])
def test_tallies_of_another_condition_are_corrupt(tallies: tuple[Tally, ...]) -> None:
    condition = all_waitpoints("a", "b")
    with pytest.raises(Corruption, match="2 leaves"):
        match_condition(condition, tallies, at("a"))
    with pytest.raises(Corruption, match="2 leaves"):
        satisfied(condition, tallies)


# What a condition refers to.


def test_keys_are_told_once_in_the_order_of_mention() -> None:
    condition = AllTrue((Single("b"), Count(1, SIGNALS, ("c", "a", "c")), AnyTrue((Single("b"),))))
    assert keys_of(condition) == ("b", "c", "a")
    assert keys_of(OperatorOnly()) == keys_of(TimeoutOnly()) == keys_of(NEWER) == ()


def test_names_are_told_once_in_the_order_of_mention() -> None:
    count = Count(1, SIGNALS, ("a", "b"), ByName("y"))
    condition = AllTrue((Single("a", ByName("x")), count, Single("a", ByName("x"))))
    assert names_for(condition, ["a", "b", "c"]) == {"a": ("x", "y"), "b": ("y",), "c": ()}


@pytest.mark.parametrize("any_name", [Single("a"), Count(1, SIGNALS, ("b", "a"))])
def test_no_names_mean_any_signal(any_name: Condition) -> None:
    assert names_for(any_name, ["a"]) == {"a": ()}
    assert names_for(AllTrue((any_name, Single("a", ByName("x")))), ["a"]) == {"a": ("x",)}


def test_a_wildcard_elsewhere_does_not_matter() -> None:
    assert names_for(AllTrue((Single("a", ByName("x")), Single("b"))), ["a"]) == {"a": ("x",)}


def test_another_actor_is_named_in_place_of_approvers() -> None:
    assert names_for(OperatorOnly(), ["a"]) == {"a": ("__operator_only__",)}
    assert names_for(TimeoutOnly(), ["a"]) == {"a": ("__timeout_only__",)}


# What may be waited for.


@pytest.mark.parametrize("leaf", [Single("a"), OperatorOnly(), TimeoutOnly()])
def test_a_leaf_may_be_inside_of_four_bodies(leaf: Condition) -> None:
    """E-T289: leaves do not count for the depth."""
    assert check_condition(within(4, leaf)) == within(4, leaf)
    with pytest.raises(Invalid) as refused:
        check_condition(within(5, leaf))
    path = ".".join(["members[0]"] * 4)
    assert refused.value.detail == f"nesting depth 5 exceeds cap 4 at {path}"


@pytest.mark.parametrize("body", [AnyTrue((Single("a"),)), Count(1, SIGNALS, ("a",))])
def test_every_body_counts_for_the_depth(body: Condition) -> None:
    """E-T289: depth 4 is valid, depth 5 is not."""
    assert check_condition(within(3, body))
    with pytest.raises(Invalid, match="depth 5 exceeds cap 4"):
        check_condition(within(4, body))


def test_any_depth_is_refused_in_the_same_way() -> None:
    with pytest.raises(Invalid, match="exceeds cap"):
        check_condition(within(900, Single("a")))


@pytest.mark.parametrize(
    ("faulty", "detail"),
    [
        (AllTrue(()), "allof_empty_members"),
        (AnyTrue(()), "anyof_empty_members"),
        (Count(0, SIGNALS, ("a",)), "count_n_zero"),
        (Count(0, SIGNALS, ()), "count_n_zero"),
        (Count(1, SIGNALS, ()), "count_waitpoints_empty"),
        (Count(3, WAITPOINTS, ("a", "b")), "count_exceeds_waitpoint_set"),
        (Count(2, WAITPOINTS, ("a", "a")), "count_exceeds_waitpoint_set"),
    ],
)
def test_a_faulty_structure_is_told_with_its_path(faulty: Condition, detail: str) -> None:
    """E-T290: n zero, no waitpoints, and the other faults."""
    for condition, path in [
        (faulty, "<root>"),
        (AllTrue((Single("a"), faulty)), "members[1]"),
        (
            AnyTrue((OperatorOnly(), AllTrue((Single("a"), Single("b"), faulty)))),
            "members[1].members[2]",
        ),
    ]:
        with pytest.raises(Invalid) as refused:
            check_condition(condition)
        assert refused.value.detail.startswith(f"{detail}: ")
        assert refused.value.detail.endswith(f" {path}")


def test_the_first_fault_in_pre_order_is_told() -> None:
    faults = AllTrue((AllTrue((Count(0, SIGNALS, ("a",)),)), AllTrue(()), Single("a", ByName(""))))
    with pytest.raises(
        Invalid, match=r"^invalid_input: count_n_zero.* members\[0\]\.members\[0\]$"
    ):
        check_condition(faults)


@pytest.mark.parametrize("kind", [SIGNALS, SOURCES])
def test_a_number_that_may_be_reached_some_day_is_accepted(kind: CountKind) -> None:
    assert check_condition(Count(10_000, kind, ("a",)))


@pytest.mark.parametrize("faulty", [Single("a", ByName("")), Count(1, SIGNALS, ("a",), ByName(""))])
def test_an_empty_name_is_refused_anywhere(faulty: Condition) -> None:
    for condition in (faulty, AllTrue((AnyTrue((faulty,)),))):
        with pytest.raises(Invalid, match="name is empty, use a wildcard"):
            check_names(check_condition(condition))


def each(kind: Any, *values: object) -> list[object]:
    """Nodes with a first member that the types forbid, and Python does not."""
    return [kind(value) for value in values]


def counts(**members: object) -> list[object]:
    """A `Count` for each member, which alone is wrong."""
    right: dict[str, Any] = {"n": 1, "kind": SIGNALS, "waitpoints": ("a",), "matcher": None}
    return [Count(**{**right, name: value}) for name, value in members.items()]


@pytest.mark.parametrize(
    "condition",
    [
        *(None, 7, "Single", {"kind": "Single", "waitpoint": "a"}, [Single("a")], Single),
        *(ByName("x"), Wildcard(), NEWER, AllTrue((NEWER,))),
        *each(Single, None, 7, b"a", "", "a\0", "\ud800", "a" * 257),
        *each(partial(Single, "a"), None, "x", Single("a")),
        *each(
            lambda name: Single("a", ByName(name)), None, 7, "a\0", "\udfff", "a" * 257, "é" * 257
        ),
        *each(AllTrue, None, 7, "ab", [Single("a")], {}, (Single("a"), None)),
        *each(AnyTrue, None, Single("a")),
        *counts(n="1", kind="DistinctSignals", waitpoints="a", matcher="x"),
        *counts(n=True, kind=None, waitpoints=["a"], matcher=Single("a")),
        *counts(n=-1, waitpoints=(7,)),
        *counts(n=2**31, waitpoints=("",)),
        *counts(n=1.0, waitpoints=("a", "b\0")),
        *counts(n=None, waitpoints=None),
    ],
)
def test_anything_else_is_refused(condition: object) -> None:
    with pytest.raises(Invalid):
        check_condition(condition)


def test_texts_may_be_as_long_as_their_limits() -> None:
    assert check_condition(Single("k" * 256, ByName("n" * 256)))
    assert check_condition(Single("é" * 256, ByName("信" * 256)))


def test_a_condition_has_a_thousand_leaves_at_most() -> None:
    keys = tuple(str(number) for number in range(1_001))
    for largest in (all_waitpoints(*keys[:1_000]), Count(1_000, WAITPOINTS, keys[:1_000])):
        assert check_condition(largest) is largest
        with pytest.raises(Invalid, match="1000 leaves"):
            check_condition(AllTrue((largest, OperatorOnly())))


# As JSON.

WRITTEN: list[tuple[Condition, dict[str, Any]]] = [
    (OperatorOnly(), {"kind": "OperatorOnly"}),
    (TimeoutOnly(), {"kind": "TimeoutOnly"}),
    (Single("a"), {"kind": "Single", "waitpoint": "a", "matcher": {"kind": "Wildcard"}}),
    (
        AnyTrue((Single("a", ByName("x")),)),
        {
            "kind": "AnyOf",
            "members": [
                {"kind": "Single", "waitpoint": "a", "matcher": {"kind": "ByName", "name": "x"}}
            ],
        },
    ),
    (
        AllTrue((Count(2, SOURCES, ("a", "b")), NEWER)),
        {
            "kind": "AllOf",
            "members": [
                {
                    "kind": "Count",
                    "n": 2,
                    "count_kind": "DistinctSources",
                    "waitpoints": ["a", "b"],
                },
                NEWER.members,
            ],
        },
    ),
]


@pytest.mark.parametrize(("condition", "members"), WRITTEN)
def test_a_condition_is_written_by_kind(condition: Condition, members: dict[str, Any]) -> None:
    assert write_condition(condition) == members
    assert read_condition(json.loads(json.dumps(members))) == condition


def test_a_matcher_may_be_left_out() -> None:
    assert read_condition({"kind": "Single", "waitpoint": "a"}) == Single("a")


@pytest.mark.parametrize(
    "members",
    [
        {"kind": "NoneOf", "members": [7]},
        {"kind": ""},
        {"kind": "Single", "waitpoint": "a", "after": 5},
        {"kind": "Single", "waitpoint": "a", "matcher": {"kind": "ByPrefix", "name": "x"}},
        {"kind": "Single", "waitpoint": "a", "matcher": {"kind": "Wildcard", "but": "x"}},
        {"kind": "Count", "n": 1, "count_kind": "DistinctDays", "waitpoints": ["a"]},
        {"kind": "AllOf", "members": [], "within": 60},
    ],
)
def test_what_a_newer_release_wrote_is_kept_and_never_true(members: dict[str, Any]) -> None:
    """Also a known kind with a new member: it may restrict what this release would accept."""
    outer = read_condition({"kind": "AllOf", "members": [members]})
    assert outer == AllTrue((Unknown(members),))
    assert write_condition(outer) == {"kind": "AllOf", "members": [members]}
    assert not match_condition(outer, blank(outer), at("a")).satisfied


@pytest.mark.parametrize(
    "members",
    [
        *(None, 7, "Single", [], {}, {"kind": None}, {"kind": 7}, {7: "kind"}, {"kind": "AllOf"}),
        {"kind": "Single"},
        {"kind": "Single", "waitpoint": "a", 7: "x"},
        {"kind": "Single", "waitpoint": 7},
        {"kind": "Single", "waitpoint": "a", "matcher": None},
        {"kind": "Single", "waitpoint": "a", "matcher": "x"},
        {"kind": "Single", "waitpoint": "a", "matcher": {"kind": "ByName"}},
        {"kind": "Single", "waitpoint": "a", "matcher": {"name": "x"}},
        {"kind": "AllOf", "members": {}},
        {"kind": "AllOf", "members": "ab"},
        {"kind": "Count", "n": True, "count_kind": "DistinctSignals", "waitpoints": ["a"]},
        {"kind": "Count", "n": -1, "count_kind": "DistinctSignals", "waitpoints": ["a"]},
        {"kind": "Count", "n": 10**5000, "count_kind": "DistinctSignals", "waitpoints": ["a"]},
        {"kind": "Count", "n": 1, "count_kind": 7, "waitpoints": ["a"]},
        {"kind": "Count", "n": 1, "count_kind": "DistinctSignals", "waitpoints": "a"},
        {"kind": "Count", "n": 1, "count_kind": "DistinctSignals", "waitpoints": [7]},
    ],
)
def test_a_malformed_condition_is_refused_with_its_path(members: object) -> None:
    with pytest.raises(Invalid, match=r"at <root>$"):
        read_condition(members)
    inner = {"kind": "AnyOf", "members": [members]}
    with pytest.raises(Invalid, match=r"at members\[1\]\.members\[0\]$"):
        read_condition({"kind": "AllOf", "members": [{"kind": "OperatorOnly"}, inner]})


def test_reading_ends_at_any_nesting() -> None:
    deep: Any = {"kind": "Single", "waitpoint": "a"}
    endless: list[Any] = []
    endless.extend([endless, endless])
    for _ in range(100_000):
        deep = {"kind": "AllOf", "members": [deep]}
    for members in (deep, {"kind": "Newer", "of": deep}, {"kind": "AllOf", "members": endless}):
        with pytest.raises(Invalid, match="deeper than 64"):
            read_condition(members)
