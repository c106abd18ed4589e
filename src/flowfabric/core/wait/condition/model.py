"""The nodes of a condition, and what a condition refers to."""

from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from flowfabric.core.base.numbers import MAX_COUNT


class _Tagged(Struct, frozen=True, tag=True, tag_field="kind"):
    """In JSON, `kind` is the tag, by default the name of the class."""


class ByName(_Tagged, frozen=True):
    """Accepts the signals of exactly this name."""

    name: str


class Wildcard(_Tagged, frozen=True):
    """Accepts every signal."""


Matcher = ByName | Wildcard


class CountKind(StrEnum):
    """What a `Count` counts, each only once. A source is the pair of its type and identity."""

    WAITPOINTS = "DistinctWaitpoints"
    SIGNALS = "DistinctSignals"
    SOURCES = "DistinctSources"


class Single(_Tagged, frozen=True):
    """True when the waitpoint received a signal that the matcher accepts."""

    waitpoint: str
    matcher: Matcher = Wildcard()


class OperatorOnly(_Tagged, frozen=True):
    """Never true: only an operator ends the wait."""


class TimeoutOnly(_Tagged, frozen=True):
    """Never true: only the timeout, or an operator, ends the wait."""


class AllTrue(_Tagged, frozen=True, tag="AllOf"):
    """True when it has members and all are true."""

    members: "tuple[Condition, ...]"


class AnyTrue(_Tagged, frozen=True, tag="AnyOf"):
    """True when one of the members is true."""

    members: "tuple[Condition, ...]"


class Count(_Tagged, frozen=True):
    """True when these waitpoints received `n` distinct ones; without a matcher all count."""

    n: Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
    kind: CountKind = msgspec.field(name="count_kind")
    waitpoints: tuple[str, ...]
    matcher: Matcher | None = None


class Unknown(Struct, frozen=True):
    """A condition that a newer release wrote: kept as it is, never true."""

    members: dict[str, Any]


Leaf = Single | Count | OperatorOnly | TimeoutOnly | Unknown
Condition = Leaf | AllTrue | AnyTrue

# A union that is made for every question costs more than the question.
_BODIES = (AllTrue, AnyTrue)
_WITH_MATCHER = (Single, Count)


def all_waitpoints(*keys: str) -> AllTrue:
    """Some signal at each of these waitpoints."""
    return AllTrue(tuple(Single(key) for key in keys))


def any_waitpoint(*keys: str) -> Count:
    """Some signal at one of these waitpoints."""
    return Count(1, CountKind.WAITPOINTS, keys)


def keys_of(condition: Condition) -> tuple[str, ...]:
    """The waitpoint keys the condition refers to, each once, in the order of first mention."""
    return tuple(dict.fromkeys(key for leaf in leaves(condition) for key in leaf_keys(leaf)))


def names_for(condition: Condition, keys: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The names of signals the condition waits for at each of these waitpoints, each once; none
    means any signal. Where it waits for any signal besides a name, the name is still required."""
    if isinstance(condition, OperatorOnly):
        return dict.fromkeys(keys, ("__operator_only__",))
    if isinstance(condition, TimeoutOnly):
        return dict.fromkeys(keys, ("__timeout_only__",))
    found: dict[str, dict[str, None]] = {key: {} for key in keys}
    for leaf in leaves(condition):
        if isinstance(matcher := leaf_matcher(leaf), ByName):
            for key in found.keys() & leaf_keys(leaf):
                found[key][matcher.name] = None
    return {key: tuple(names) for key, names in found.items()}


def is_answerable(condition: Condition) -> bool:
    """Whether signals can make it true. An `AllTrue` that contains a wait for an operator or for
    the timeout is as unanswerable as that member."""
    match condition:
        case AllTrue():
            return all(is_answerable(member) for member in condition.members)
        case AnyTrue():
            return any(is_answerable(member) for member in condition.members)
        case Single() | Count():
            return True
        case OperatorOnly() | TimeoutOnly() | Unknown():
            return False


def needs_all(condition: Condition) -> bool:
    """Whether every waitpoint that it refers to must receive a signal."""
    match condition:
        case AllTrue():
            return all(needs_all(member) for member in condition.members)
        case Count(kind=CountKind.WAITPOINTS):
            return condition.n >= len(set(condition.waitpoints))
        case _:
            return len(keys_of(condition)) <= 1


def leaves(condition: Condition) -> Iterator[Leaf]:
    """In pre-order; a leaf's place in it is the place of its tally."""
    if isinstance(condition, _BODIES):
        for member in condition.members:
            yield from leaves(member)
    else:
        yield condition


def leaf_keys(leaf: Leaf) -> tuple[str, ...]:
    """The keys of the waitpoints that the leaf is about."""
    match leaf:
        case Single():
            return (leaf.waitpoint,)
        case Count():
            return leaf.waitpoints
        case OperatorOnly() | TimeoutOnly() | Unknown():
            return ()


def leaf_matcher(leaf: Leaf) -> Matcher | None:
    """What the leaf accepts at its waitpoints; None is everything."""
    return leaf.matcher if isinstance(leaf, _WITH_MATCHER) else None


def inside(path: str, index: int) -> str:
    """The path of a member of the node at `path`; the root's is empty."""
    return f"{path}.members[{index}]" if path else f"members[{index}]"
