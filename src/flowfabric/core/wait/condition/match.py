"""How a condition hears a signal, and when it is satisfied."""

from collections.abc import Collection, Iterator
from enum import IntEnum

from msgspec import Struct

from flowfabric.core.base.errors import Corruption
from flowfabric.core.wait.condition.tree import (
    AllOf,
    AnyOf,
    ByName,
    Condition,
    Count,
    CountKind,
    Leaf,
    OperatorOnly,
    Single,
    TimeoutOnly,
    Unknown,
    leaf_keys,
    leaf_matcher,
    leaves,
)
from flowfabric.core.wait.model import Effect, Tally


class Sound(Struct, frozen=True):
    """A signal as a condition hears it."""

    key: str
    name: str
    source_type: str = ""
    source: str = ""


class Hearing(Struct, frozen=True):
    """What a signal did to a condition.

    `sourced` has a bit for every leaf, by its index, that has counted the signal's source.
    """

    effect: Effect
    satisfied: bool
    tallies: tuple[Tally, ...]
    sourced: int


class _Ear(IntEnum):
    """How close a signal came to a leaf."""

    ELSEWHERE = 0
    REFUSES = 1
    HEARS = 2


def blank(condition: Condition) -> tuple[Tally, ...]:
    """The tallies of a condition that heard nothing yet."""
    return tuple(Tally() for _ in leaves(condition))


def satisfied(condition: Condition, tallies: tuple[Tally, ...]) -> bool:
    """Whether a condition with these tallies is true."""
    _paired(condition, tallies)
    return _true(condition, iter(tallies))


def possible(condition: Condition, tallies: tuple[Tally, ...], keys: Collection[str]) -> bool:
    """Whether signals to these waitpoints only may make it true. What no signal ever makes true
    waits for something else, and what a newer release wrote may be: both count as possible."""
    _paired(condition, tallies)
    return _possible(condition, iter(tallies), keys)


def _possible(condition: Condition, tallies: Iterator[Tally], keys: Collection[str]) -> bool:
    match condition:
        case AllOf():
            return all([_possible(member, tallies, keys) for member in condition.members])
        case AnyOf():
            return any([_possible(member, tallies, keys) for member in condition.members])
        case Single():
            return next(tallies).count > 0 or condition.waitpoint in keys
        case Count():
            tally = next(tallies)
            left = {key for key in condition.waitpoints if key in keys}
            if condition.kind is CountKind.WAITPOINTS:
                return len(left.union(tally.keys)) >= condition.n
            return bool(left) or tally.count >= condition.n
        case OperatorOnly() | TimeoutOnly() | Unknown():
            next(tallies)
            return True


def hear(
    condition: Condition, tallies: tuple[Tally, ...], sound: Sound, sourced: int = 0
) -> Hearing:
    """What one more signal does, which must not have been heard before.

    `sourced` is what the last hearing of the same source returned, 0 for a new source.
    """
    closest, after, counted = _Ear.ELSEWHERE, list(tallies), sourced
    for index, (leaf, tally) in enumerate(_paired(condition, tallies)):
        ear = _ear(leaf, sound)
        closest = max(closest, ear)
        if ear is _Ear.HEARS:
            after[index] = _add(leaf, tally, sound, known=bool(sourced >> index & 1))
            counted |= _counts_sources(leaf) << index
    added = any(new is not old for new, old in zip(after, tallies, strict=True))
    truth = _true(condition, iter(after))
    return Hearing(_effect(condition, closest, added, truth), truth, tuple(after), counted)


def _paired(condition: Condition, tallies: tuple[Tally, ...]) -> list[tuple[Leaf, Tally]]:
    ordered = list(leaves(condition))
    if len(ordered) != len(tallies):
        raise Corruption(f"a condition of {len(ordered)} leaves has {len(tallies)} tallies")
    return list(zip(ordered, tallies, strict=True))


def _true(condition: Condition, tallies: Iterator[Tally]) -> bool:
    """Takes as many tallies as the condition has leaves, hence no early way out."""
    match condition:
        case AllOf():
            truths = [_true(member, tallies) for member in condition.members]
            return bool(truths) and all(truths)
        case AnyOf():
            return any([_true(member, tallies) for member in condition.members])
        case Single():
            return next(tallies).count > 0
        case Count():
            return next(tallies).count >= condition.n
        case OperatorOnly() | TimeoutOnly() | Unknown():
            next(tallies)
            return False


def _ear(leaf: Leaf, sound: Sound) -> _Ear:
    if sound.key not in leaf_keys(leaf):
        return _Ear.ELSEWHERE
    matcher = leaf_matcher(leaf)
    refuses = isinstance(matcher, ByName) and matcher.name != sound.name
    return _Ear.REFUSES if refuses else _Ear.HEARS


def _add(leaf: Leaf, tally: Tally, sound: Sound, *, known: bool) -> Tally:
    """The tally with the signal; the very same one if it adds nothing distinct."""
    match leaf:
        case Single() if not tally.count:
            return Tally(1)
        case Count(kind=CountKind.SIGNALS):
            return Tally(tally.count + 1)
        case Count(kind=CountKind.SOURCES) if not known:
            return Tally(tally.count + 1)
        case Count(kind=CountKind.WAITPOINTS) if sound.key not in tally.keys:
            return Tally(tally.count + 1, (*tally.keys, sound.key))
        case _:
            return tally


def _counts_sources(leaf: Leaf) -> bool:
    return isinstance(leaf, Count) and leaf.kind is CountKind.SOURCES


def _effect(condition: Condition, closest: _Ear, added: bool, truth: bool) -> Effect:
    if closest is _Ear.ELSEWHERE:
        return Effect.NOT_IN_CONDITION
    if closest is _Ear.REFUSES:
        return Effect.NO_OP if isinstance(condition, Single) else Effect.MATCHER_FAILED
    if not added:
        return Effect.REPEATED
    return Effect.SATISFIED if truth else Effect.APPENDED
