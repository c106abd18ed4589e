"""Conditions as JSON: read and written."""

from collections.abc import Container
from typing import Any

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import Invalid
from flowfabric.core.wait.condition.model import (
    AllTrue,
    AnyTrue,
    ByName,
    Condition,
    Count,
    CountKind,
    Leaf,
    Matcher,
    OperatorOnly,
    Single,
    TimeoutOnly,
    Unknown,
    Wildcard,
    inside,
)

MAX_NESTING = 64
"""Objects and lists within one another in a document that is to be read."""

_LEAVES: dict[str, type[Single | Count | OperatorOnly | TimeoutOnly]] = {
    "Single": Single,
    "Count": Count,
    "OperatorOnly": OperatorOnly,
    "TimeoutOnly": TimeoutOnly,
}
_BODIES: dict[str, type[AllTrue | AnyTrue]] = {
    "AllOf": AllTrue,
    "AnyOf": AnyTrue,
}
_MATCHERS: dict[str, type[Matcher]] = {"ByName": ByName, "Wildcard": Wildcard}
_CONDITIONS = {**_LEAVES, **_BODIES}
_NAMES = {
    kind: frozenset(("kind", *known.__struct_encode_fields__))
    for kind, known in {**_CONDITIONS, **_MATCHERS}.items()
}
"""The members that this release knows, by kind."""
_ANY_SIGNAL = {"kind": "Single", "matcher": {"kind": "Wildcard"}}
"""The members of a wait for any signal at one waitpoint, apart from the waitpoint."""


def read_condition(members: object) -> Condition:
    """The condition with these JSON members; `Invalid` when they do not make one.

    Only its form is looked at: whether it makes sense is for `check_condition` to say.
    """
    if isinstance(members, dict) and len(members) == len(_ANY_SIGNAL) + 1:
        waitpoint = members.get("waitpoint")
        if type(waitpoint) is str and members == {**_ANY_SIGNAL, "waitpoint": waitpoint}:
            return Single(waitpoint)  # what most runs wait for
    _check_nesting(members)
    return _read(members, "")


def write_condition(condition: Condition) -> dict[str, Any]:
    """The JSON members of the condition; `read_condition` makes the same condition of them."""
    match condition:
        case AllTrue() | AnyTrue():
            inner = [write_condition(member) for member in condition.members]
            return {**_tag(condition), "members": inner}
        case Unknown():
            return dict(condition.members)
        case Single():
            return {**_tag(condition), "waitpoint": condition.waitpoint, **_accepted(condition)}
        case Count():
            return {
                **_tag(condition),
                "n": condition.n,
                "count_kind": condition.kind.value,
                "waitpoints": list(condition.waitpoints),
                **_accepted(condition),
            }
        case OperatorOnly() | TimeoutOnly():
            return _tag(condition)


def _tag(node: Struct) -> dict[str, Any]:
    return {"kind": node.__struct_config__.tag}


def _accepted(leaf: Single | Count) -> dict[str, Any]:
    return {} if leaf.matcher is None else {"matcher": msgspec.to_builtins(leaf.matcher)}


def _check_nesting(members: object) -> None:
    """Without recursion, and depth first: it ends even in a list that contains itself."""
    todo = [(members, 1)]
    while todo:
        value, depth = todo.pop()
        if depth > MAX_NESTING:
            raise Invalid(f"a condition is nested deeper than {MAX_NESTING} levels")
        if isinstance(value, dict):
            todo.extend((item, depth + 1) for item in value.values())
        elif isinstance(value, list | tuple):
            todo.extend((item, depth + 1) for item in value)


def _read(value: object, path: str) -> Condition:
    at = path or "<root>"
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise Invalid(f"a condition must be a JSON object, not {type(value).__name__}, at {at}")
    if not isinstance(value.get("kind"), str):
        raise Invalid(f"a condition needs the member kind, a text, at {at}")
    if _is_newer(value):
        return Unknown(value)
    if value["kind"] in _BODIES:
        return _read_body(value, path)
    try:
        leaf: Leaf = msgspec.convert(value, _LEAVES[value["kind"]])
        return leaf
    except msgspec.ValidationError as error:
        raise Invalid(f"{error} at {at}") from None


def _read_body(members: dict[str, Any], path: str) -> Condition:
    inner = members.get("members")
    if not isinstance(inner, list | tuple):
        raise Invalid(f"members must be a list, not {type(inner).__name__}, at {path or '<root>'}")
    read = (_read(member, inside(path, index)) for index, member in enumerate(inner))
    return _BODIES[members["kind"]](tuple(read))


def _is_newer(members: dict[str, Any]) -> bool:
    """Whether something in a condition, its members aside, is not known to this release."""
    matcher, counted = members.get("matcher"), members.get("count_kind")
    return (
        _has_news(members, _CONDITIONS)
        or (isinstance(matcher, dict) and _has_news(matcher, _MATCHERS))
        or (isinstance(counted, str) and counted not in list(CountKind))
    )


def _has_news(members: dict[str, Any], known: Container[str]) -> bool:
    kind = members.get("kind")
    if not isinstance(kind, str):
        return False
    return kind not in known or not members.keys() <= _NAMES[kind]
