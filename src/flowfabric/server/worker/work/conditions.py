"""Conditions of a suspend as clients write them.

The spelling is that of the original: `{"Single": {"waitpoint_key": "k", "matcher": {"ByName":
"go"}}}`, `{"Composite": {"kind": "AllOf", "members": […]}}`, `{"Composite": {"kind": "Count", …}}`,
`"OperatorOnly"`, `"TimeoutOnly"`. The form in which the engine shows a condition (`{"kind":
"Single", …}`) and the one before composite conditions (`{"required_signal_names": […], …}`) are
read as well.
"""

from typing import Any

import msgspec

from flowfabric.core.base.errors import Invalid
from flowfabric.core.wait.condition.codec import MAX_NESTING, read_condition
from flowfabric.core.wait.condition.legacy import NAMES, as_condition, read_signal_set
from flowfabric.core.wait.condition.model import (
    AllTrue,
    AnyTrue,
    ByName,
    Condition,
    Count,
    CountKind,
    Matcher,
    OperatorOnly,
    Single,
    TimeoutOnly,
    Wildcard,
    all_waitpoints,
    any_waitpoint,
)
from flowfabric.core.wait.model import Behaviour
from flowfabric.server.http.wire import json_text
from flowfabric.server.worker.work.bodies import SuspendRun

_BARE: dict[str, Condition] = {"OperatorOnly": OperatorOnly(), "TimeoutOnly": TimeoutOnly()}


def wanted_condition(data: SuspendRun, key: str) -> Condition:
    """What a request waits for. `key` is that of the waitpoint of a single signal."""
    ways: list[Condition] = []
    if data.signal is not None:
        ways.append(Single(key, ByName(data.signal)))
    if data.all_of:
        ways.append(all_waitpoints(*data.all_of))
    if data.any_of:
        ways.append(any_waitpoint(*data.any_of))
    if (spelt := _spelt(data)) is not None:
        legacy = _is_legacy(spelt)
        ways.append(as_condition(read_signal_set(spelt), key) if legacy else parse_condition(spelt))
    if len(ways) > 1:
        raise Invalid("give one of signal, all_of, any_of and condition, not several")
    if ways:
        return ways[0]
    if data.timeout_ms is None and data.timeout_at is None:
        raise Invalid("give a signal, all_of, any_of, a condition or a timeout to wait for")
    return TimeoutOnly()


def _spelt(data: SuspendRun) -> Any:
    """The condition as the client has written it; None if there is none."""
    text = json_text(data.condition)
    return None if text is None else msgspec.json.decode(text)


def _is_legacy(value: Any) -> bool:
    return isinstance(value, dict) and NAMES in value


def parse_condition(value: Any, depth: int = 1) -> Condition:
    """The condition that a JSON value spells."""
    if depth > MAX_NESTING:
        raise Invalid(f"a condition is nested deeper than {MAX_NESTING} levels")
    match value:
        case "OperatorOnly" | "TimeoutOnly":
            return _BARE[value]
        case {"Single": {"waitpoint_key": str() as key, **rest}} if len(value) == 1:
            return Single(key, _matcher(rest.pop("matcher", "Wildcard"), rest))
        case {"Composite": {"kind": "AllOf" | "AnyOf" as kind, "members": list() as members}}:
            body = AllTrue if kind == "AllOf" else AnyTrue
            return body(tuple(parse_condition(member, depth + 1) for member in members))
        case {"Composite": {"kind": "Count", **rest}}:
            return _count(rest)
        case {"kind": str()}:
            return read_condition(value)
        case _:
            raise _refused(value)


def _count(members: dict[Any, Any]) -> Count:
    match members:
        case {"n": int() as n, "count_kind": str() as kind, "waitpoints": list() as keys} if (
            type(n) is int and kind in list(CountKind) and all(isinstance(k, str) for k in keys)
        ):
            given = members.get("matcher")
            matcher = None if given is None else _matcher(given, {})
            return Count(n, CountKind(kind), tuple(keys), matcher)
        case _:
            raise _refused({"kind": "Count", **members})


def _matcher(value: Any, rest: dict[Any, Any]) -> Matcher:
    match value:
        case "Wildcard" if not rest:
            return Wildcard()
        case {"ByName": str() as name} if len(value) == 1 and not rest:
            return ByName(name)
        case _:
            raise _refused(value)


def _refused(value: object) -> Invalid:
    shown = msgspec.json.encode(value).decode()
    return Invalid(f"this is not a condition: {shown[:120]}")


def timeout_behaviour(data: SuspendRun) -> Behaviour | None:
    """None leaves it to the policy of the run."""
    word = data.timeout_behavior
    if word is None and _is_legacy(spelt := _spelt(data)):
        word = read_signal_set(spelt).timeout_behavior
    return None if word is None else Behaviour(word)


def reason_code(word: str) -> str:
    """`WaitingForApproval` as `waiting_for_approval`; other words as they are."""
    if not word.isascii() or not word.isalpha() or not word[:1].isupper():
        return word
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in word).removeprefix("_")
