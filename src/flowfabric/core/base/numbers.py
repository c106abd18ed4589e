"""Checks of numbers, words and collections that callers pass in.

Every check returns the accepted value and raises `Invalid` otherwise, for an argument of any type.
The text does not repeat a refused number, which may have more digits than Python prints.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import parse_span

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

MAX_COUNT = 2**31 - 1
"""The largest count that every store can hold."""

MAX_SECONDS = 1_000_000_000
"""About thirty years, longer than any caller waits."""


Seconds = float | str | timedelta
"""How long a caller waits: seconds, `"5s"`, or a `timedelta`."""


def check_whole(value: object, what: str, least: int = 0, most: int = MAX_COUNT) -> int:
    """`value` if it is a whole number within the bounds; a bool is not a number."""
    if type(value) is not int:
        raise Invalid(f"{what} must be a whole number, not {type(value).__name__}")
    if not least <= value <= most:
        raise Invalid(f"{what} must be {least} to {most}")
    return value


def check_wholes(values: Iterable[object], what: str) -> None:
    """The same for several numbers, each a count."""
    for value in values:
        if type(value) is not int or not 0 <= value <= MAX_COUNT:
            check_whole(value, what)


def check_limit(value: object, most: int) -> int:
    """How many items a caller wants: none if zero or less, and at most `most`."""
    if type(value) is not int:
        raise Invalid(f"limit must be a whole number, not {type(value).__name__}")
    return max(0, min(value, most))


def check_seconds(value: object, what: str) -> float:
    """How many seconds to wait: a number, or a duration as text."""
    if isinstance(value, str | timedelta):
        return parse_span(value, what) / 1000
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"{what} must be a number of seconds, not {type(value).__name__}")
    if not 0 <= value <= MAX_SECONDS:
        raise Invalid(f"{what} must be 0 to {MAX_SECONDS} seconds")
    return float(value)


def check_flag(value: object, what: str) -> bool:
    """`value` if it is True or False; nothing else is converted."""
    if not isinstance(value, bool):
        raise Invalid(f"{what} must be True or False, not {type(value).__name__}")
    return value


def check_one_of(value: object, words: frozenset[str], what: str) -> str:
    """`value` if it is one of these words."""
    if not isinstance(value, str) or value not in words:
        raise Invalid(f"{what} must be one of {', '.join(sorted(words))}")
    return value


def check_word(value: object, words: type[E], what: str) -> E:
    """The member of `words` that `value` is, or names."""
    if isinstance(value, str):
        with suppress(ValueError):
            return words(value)
    known = ", ".join(words)
    shown = repr(value)[:80] if isinstance(value, str) else type(value).__name__
    raise Invalid(f"{what} must be one of {known}, not {shown}")


def check_kind_of(value: object, kind: type[T], what: str) -> T:
    """`value` if it is an instance of `kind`."""
    if not isinstance(value, kind):
        raise Invalid(f"{what} must be a {kind.__name__}, not {type(value).__name__}")
    return value


def check_items(value: object, what: str) -> tuple[object, ...]:
    """The items of a collection."""
    if not isinstance(value, list | tuple | set | frozenset):
        raise Invalid(f"{what} must be a list, not {type(value).__name__}")
    return tuple(value)


def check_iterable(value: Iterable[T], what: str) -> Iterable[T]:
    """`value` if it is iterable; a text is not a list of its letters."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise Invalid(f"{what} must be a list, not {type(value).__name__}")
    return value


def check_mapping(value: object, what: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise Invalid(f"{what} must be a mapping, not {type(value).__name__}")
    return value


def check_names(value: object, what: str) -> tuple[object, ...]:
    """The items of a collection of names; a text is not a collection of its letters."""
    if not isinstance(value, list | tuple | set | frozenset):
        raise Invalid(f"{what} must be a list of names, not {type(value).__name__}")
    return tuple(value)
