"""Whether an execution may wait for a condition."""

from collections.abc import Iterator
from typing import cast

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.numbers import check_whole
from flowfabric.core.base.text import check_signal_name
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
    inside,
    keys_of,
)

MAX_DEPTH = 4
"""Bodies (all that is no leaf, and `Count`) within one another."""

MAX_LEAVES = 1_000
"""Leaves of one condition; a `Count` weighs as many as it names waitpoints."""


def check_condition(condition: object) -> Condition:
    """`condition` if its structure is sound; the first fault in pre-order otherwise. Empty names
    are for `check_names`: keys without a waitpoint are reported before them."""
    weight = 0
    for node, depth, path in _nodes(condition, 1, ""):
        weight += _check_node(node, depth, path or "<root>")
        if weight > MAX_LEAVES:
            raise Invalid(f"a condition may have {MAX_LEAVES} leaves, this one has more")
    return cast(Condition, condition)


def check_names(condition: Condition) -> None:
    """No signal is waited for by an empty name."""
    for node, _, path in _nodes(condition, 1, ""):
        matcher = node.matcher if isinstance(node, Single | Count) else None
        if isinstance(matcher, ByName) and not matcher.name:
            at = path or "<root>"
            raise Invalid(f"the signal name is empty, use a wildcard to accept any name, at {at}")


def check_references(condition: Condition, keys: list[str]) -> None:
    """Every key the condition names has a waitpoint, and every waitpoint is named by it."""
    named = keys_of(condition)
    for key in named:
        if key not in keys:
            raise Invalid(f"referenced_waitpoint_key_missing_binding: {key}")
    if isinstance(condition, OperatorOnly | TimeoutOnly) and len(keys) == 1:
        return
    for key in keys:
        if key not in named:
            raise Invalid(f"extra_binding_not_referenced_by_condition: {key}")
    if len(set(keys)) != len(keys):
        raise Invalid("duplicate_waitpoint_key")


def _nodes(node: object, depth: int, path: str) -> Iterator[tuple[object, int, str]]:
    """Lazily: a fault that is found in a node ends the descent into it."""
    yield node, depth, path
    if isinstance(node, AllTrue | AnyTrue):
        for index, member in enumerate(node.members):
            yield from _nodes(member, depth + 1, inside(path, index))


def _check_node(node: object, depth: int, path: str) -> int:
    """The weight of an acceptable node, its members aside."""
    if isinstance(node, AllTrue | AnyTrue | Count) and depth > MAX_DEPTH:
        raise Invalid(f"nesting depth {depth} exceeds cap {MAX_DEPTH} at {path}")
    match node:
        case AllTrue() | AnyTrue():
            _check_members(node, path)
            return 0
        case Count():
            _check_count(node, path)
            return len(node.waitpoints)
        case Single():
            _check_waitpoint(node.waitpoint, path)
            _check_matcher(node.matcher, path)
            return 1
        case OperatorOnly() | TimeoutOnly():
            return 1
        case Unknown():
            raise Invalid(f"this release does not know all members of the condition at {path}")
        case _:
            raise Invalid(f"a condition is expected, not {type(node).__name__}, at {path}")


def _check_members(node: AllTrue | AnyTrue, path: str) -> None:
    _check_tuple(node.members, "members", path)
    if not node.members:
        kind = str(node.__struct_config__.tag).lower()
        raise Invalid(f"{kind}_empty_members: there is nothing in {path}")


def _check_count(node: Count, path: str) -> None:
    check_whole(node.n, f"n of the Count at {path}")
    _check_tuple(node.waitpoints, "waitpoints", path)
    if not isinstance(node.kind, CountKind):
        raise Invalid(f"kind must be a CountKind, not {type(node.kind).__name__}, at {path}")
    if node.n == 0:
        raise Invalid(f"count_n_zero: n must be 1 or more at {path}")
    if not node.waitpoints:
        raise Invalid(f"count_waitpoints_empty: there is nothing to count at {path}")
    for key in node.waitpoints:
        _check_waitpoint(key, path)
    distinct = len(set(node.waitpoints))
    if node.kind is CountKind.WAITPOINTS and node.n > distinct:
        raise Invalid(f"count_exceeds_waitpoint_set: {node.n} of {distinct} waitpoints at {path}")
    if node.matcher is not None:
        _check_matcher(node.matcher, path)


def _check_tuple(value: object, what: str, path: str) -> None:
    if not isinstance(value, tuple):
        raise Invalid(f"{what} must be a tuple, not {type(value).__name__}, at {path}")


def _check_waitpoint(key: object, path: str) -> None:
    if not check_signal_name(key, f"the waitpoint key at {path}"):
        raise Invalid(f"the waitpoint key is empty at {path}")


def _check_matcher(matcher: object, path: str) -> None:
    if isinstance(matcher, Wildcard):
        return
    if not isinstance(matcher, ByName):
        raise Invalid(f"a matcher is expected, not {type(matcher).__name__}, at {path}")
    check_signal_name(matcher.name, f"the signal name at {path}")
