"""Conditions as clients wrote them before there were composite ones: names of signals, and how many
of them are needed at the one waitpoint.

Each name is a slot that one signal fills: `["a", "a"]` needs two signals of the name `a`.
"""

from collections import Counter
from itertools import combinations
from math import comb

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import Invalid
from flowfabric.core.wait.condition.check import MAX_LEAVES
from flowfabric.core.wait.condition.model import (
    AllTrue,
    AnyTrue,
    ByName,
    Condition,
    Count,
    CountKind,
    Single,
)

NAMES = "required_signal_names"
"""The member that only these documents have."""

MAX_DIGITS = 10
"""Of a number of signals that is written as text."""


class SignalSet(Struct, frozen=True, forbid_unknown_fields=True):
    """Such a document. The match mode is `all`, or a number of signals, or any other word: then
    `minimum_signal_count` is needed. An operator may resume every run, whatever it says here."""

    required_signal_names: tuple[str, ...]
    signal_match_mode: str | int = "any"
    minimum_signal_count: int = 1
    condition_type: str = "signal_set"
    timeout_behavior: str | None = None
    allow_operator_override: bool = True


def read_signal_set(members: object) -> SignalSet:
    try:
        return msgspec.convert(members, SignalSet)
    except msgspec.ValidationError as error:
        raise Invalid(f"{error} in a condition with {NAMES}") from None


def as_condition(wanted: SignalSet, waitpoint: str) -> Condition:
    """The same in the language of conditions. No names at all are any signal."""
    names, needed = wanted.required_signal_names, _needed(wanted)
    if needed < 1:
        raise Invalid(f"count_n_zero: {needed} signals are nothing to wait for")
    if not names:
        return Single(waitpoint) if needed == 1 else Count(needed, CountKind.SIGNALS, (waitpoint,))
    if needed > len(names):
        raise Invalid(f"{needed} signals are needed, but {NAMES} has {len(names)}")
    if len(names) > MAX_LEAVES or comb(len(names), needed) > MAX_LEAVES:
        raise Invalid(f"{needed} of {len(names)} names are more ways than {MAX_LEAVES}")
    different = {tuple(sorted(way)): way for way in combinations(names, needed)}
    ways = tuple(_all_of(way, waitpoint) for way in different.values())
    return ways[0] if len(ways) == 1 else AnyTrue(ways)


def _needed(wanted: SignalSet) -> int:
    mode = wanted.signal_match_mode
    if mode == "all":
        return max(1, len(wanted.required_signal_names))
    if isinstance(mode, int):
        return mode
    if not (mode.isdecimal() and mode.isascii()):
        return wanted.minimum_signal_count
    if len(mode) > MAX_DIGITS:
        raise Invalid(f"signal_match_mode is a number of {len(mode)} digits, {MAX_DIGITS} at most")
    return int(mode)


def _all_of(names: tuple[str, ...], waitpoint: str) -> Condition:
    slots = [
        Single(waitpoint, ByName(name))
        if count == 1
        else Count(count, CountKind.SIGNALS, (waitpoint,), ByName(name))
        for name, count in Counter(names).items()
    ]
    return slots[0] if len(slots) == 1 else AllTrue(tuple(slots))
