"""What counts as an acceptable number, or as a value of the right kind, wherever one enters.

Every check returns the value it accepts and raises `Invalid` otherwise, whatever the type of the
argument. A refused number is not repeated in the text: it may have more digits than Python prints.
"""

from typing import TypeVar

from flowfabric.core.errors import Invalid

T = TypeVar("T")

MAX_COUNT = 2**31 - 1
"""The largest count every store can hold."""

MAX_SECONDS = 1_000_000_000
"""Longer than anybody waits: some thirty years."""


def check_whole(value: object, what: str, least: int = 0, most: int = MAX_COUNT) -> int:
    """`value` if it is a whole number within the bounds; a bool is none."""
    if type(value) is not int:
        raise Invalid(f"{what} must be a whole number, not {type(value).__name__}")
    if not least <= value <= most:
        raise Invalid(f"{what} must be {least} to {most}")
    return value


def check_limit(value: object, most: int) -> int:
    """How many a caller wants to see: none if zero or less, and never more than `most`."""
    if type(value) is not int:
        raise Invalid(f"limit must be a whole number, not {type(value).__name__}")
    return max(0, min(value, most))


def check_seconds(value: object, what: str) -> float:
    """`value` if it is a number of seconds somebody could wait."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"{what} must be a number of seconds, not {type(value).__name__}")
    if not 0 <= value <= MAX_SECONDS:
        raise Invalid(f"{what} must be 0 to {MAX_SECONDS} seconds")
    return float(value)


def check_kind_of(value: object, kind: type[T], what: str) -> T:
    """`value` if it is an instance of `kind`."""
    if not isinstance(value, kind):
        raise Invalid(f"{what} must be a {kind.__name__}, not {type(value).__name__}")
    return value


def check_names(value: object, what: str) -> tuple[object, ...]:
    """The items of a collection of names. One text is no collection of its letters."""
    if not isinstance(value, list | tuple | set | frozenset):
        raise Invalid(f"{what} must be a list of names, not {type(value).__name__}")
    return tuple(value)
