"""How a signal counts for a condition, and when a condition is satisfied."""

from collections.abc import Collection, Iterator
from enum import IntEnum

from msgspec import Struct

from flowfabric.core.base.errors import Corruption
from flowfabric.core.wait.condition.model import (
    AllTrue,
    AnyTrue,
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
from flowfabric.core.wait.model import Effect, Signal, Tally


class ConditionMatch(Struct, frozen=True):
    """What a signal did to a condition.

    `sourced` has a bit for every leaf, by its index, that has counted the signal's source;
    `identified` for every leaf that has counted its id and may meet it at another waitpoint.
    """

    effect: Effect
    satisfied: bool
    tallies: tuple[Tally, ...]
    sourced: int
    identified: int


class _Match(IntEnum):
    """How far a signal matches a leaf."""

    OTHER_WAITPOINT = 0
    OTHER_NAME = 1
    MATCHES = 2


def blank(condition: Condition) -> tuple[Tally, ...]:
    """The tallies of a condition that no signal has counted for."""
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
        case AllTrue():
            return all([_possible(member, tallies, keys) for member in condition.members])
        case AnyTrue():
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


def match_condition(
    condition: Condition,
    tallies: tuple[Tally, ...],
    signal: Signal,
    sourced: int = 0,
    identified: int = 0,
) -> ConditionMatch:
    """What one more signal does, which must not have been matched before.

    `sourced` is what the last signal of the same source left, 0 for a new source; `identified` what
    the last one with the same id left, at another waitpoint.
    """
    closest, after, known = _Match.OTHER_WAITPOINT, list(tallies), sourced | identified
    for index, (leaf, tally) in enumerate(_paired(condition, tallies)):
        found = _match(leaf, signal)
        closest = max(closest, found)
        if found is _Match.MATCHES:
            after[index] = _add(leaf, tally, signal, known=bool(known >> index & 1))
            sourced |= _counts_sources(leaf) << index
            identified |= _counts_ids(leaf) << index
    added = any([new is not old for new, old in zip(after, tallies, strict=True)])
    truth = _true(condition, iter(after))
    effect = _effect(condition, closest, added, truth)
    return ConditionMatch(effect, truth, tuple(after), sourced, identified)


def _paired(condition: Condition, tallies: tuple[Tally, ...]) -> list[tuple[Leaf, Tally]]:
    ordered = list(leaves(condition))
    if len(ordered) != len(tallies):
        raise Corruption(f"a condition of {len(ordered)} leaves has {len(tallies)} tallies")
    return list(zip(ordered, tallies, strict=True))


def _true(condition: Condition, tallies: Iterator[Tally]) -> bool:
    """Takes as many tallies as the condition has leaves, so it never returns early."""
    match condition:
        case AllTrue():
            truths = [_true(member, tallies) for member in condition.members]
            return bool(truths) and all(truths)
        case AnyTrue():
            return any([_true(member, tallies) for member in condition.members])
        case Single():
            return next(tallies).count > 0
        case Count():
            return next(tallies).count >= condition.n
        case OperatorOnly() | TimeoutOnly() | Unknown():
            next(tallies)
            return False


def _match(leaf: Leaf, signal: Signal) -> _Match:
    if signal.key not in leaf_keys(leaf):
        return _Match.OTHER_WAITPOINT
    matcher = leaf_matcher(leaf)
    refuses = isinstance(matcher, ByName) and matcher.name != signal.name
    return _Match.OTHER_NAME if refuses else _Match.MATCHES


def _add(leaf: Leaf, tally: Tally, signal: Signal, *, known: bool) -> Tally:
    """The tally with the signal; the very same one if it adds nothing distinct."""
    match leaf:
        case Single() if not tally.count:
            return Tally(1)
        case Count(kind=CountKind.SIGNALS | CountKind.SOURCES) if not known:
            return Tally(tally.count + 1)
        case Count(kind=CountKind.WAITPOINTS) if signal.key not in tally.keys:
            return Tally(tally.count + 1, (*tally.keys, signal.key))
        case _:
            return tally


def _counts_sources(leaf: Leaf) -> bool:
    return isinstance(leaf, Count) and leaf.kind is CountKind.SOURCES


def _counts_ids(leaf: Leaf) -> bool:
    """Whether the leaf may meet a signal id twice: a waitpoint accepts an id once, so only at
    another one."""
    if not isinstance(leaf, Count) or leaf.kind is not CountKind.SIGNALS:
        return False
    return any([key != leaf.waitpoints[0] for key in leaf.waitpoints])


def _effect(condition: Condition, closest: _Match, added: bool, truth: bool) -> Effect:
    if closest is _Match.OTHER_WAITPOINT:
        return Effect.NOT_IN_CONDITION
    if closest is _Match.OTHER_NAME:
        return Effect.NO_OP if isinstance(condition, Single) else Effect.MATCHER_FAILED
    if not added:
        return Effect.REPEATED
    return Effect.SATISFIED if truth else Effect.APPENDED
