"""Moments and durations, both in milliseconds.

A moment is milliseconds since the Unix epoch; a span is a duration. Callers write spans as
`"1h30m"`, as a `timedelta` or as a number of seconds; inside the engine there is only `Millis`.
"""

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NewType

from flowfabric.core.base.errors import Invalid

Millis = NewType("Millis", int)
NO_TIME = Millis(0)
Span = Millis | int | str | timedelta
"""A duration as callers of the engine write it: milliseconds, `"5s"`, or a `timedelta`."""

#: The last millisecond a `datetime` can name: 9999-12-31T23:59:59.999Z.
MAX_MILLIS = Millis(253_402_300_799_999)

#: Ten years, leap days included. A longer duration is treated as a mistake.
MAX_SPAN = Millis(3653 * 86_400_000)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SPAN = re.compile(
    r"(?:([0-9]{1,15})d)?(?:([0-9]{1,15})h)?(?:([0-9]{1,15})m)?"
    r"(?:([0-9]{1,15})s)?(?:([0-9]{1,15})ms)?"
)
_UNITS = (86_400_000, 3_600_000, 60_000, 1000, 1)


def earliest(moments: Iterable[Millis | None]) -> Millis | None:
    """The first of the moments that are set; None if none is."""
    first: Millis | None = None
    for at in moments:
        if at is not None and (first is None or at < first):
            first = at
    return first


def parse_span(value: object, what: str) -> Millis:
    """The duration that `value` names: `"250ms"`, `"1h30m"`, a `timedelta`, or seconds as a number.

    Fractions of a millisecond are dropped. Raises `Invalid`, naming `what`, for anything
    negative, longer than ten years, or not understood.

    >>> parse_span("1h30m", "timeout")
    5400000
    """
    span = _milliseconds(value)
    if span is None:
        given = repr(value)
        given = given if len(given) <= 40 else f"{given[:39]}…"
        raise Invalid(f"{what} is not a duration such as '10s', '5m' or '1h30m': {given}")
    if not 0 <= span <= MAX_SPAN:
        raise Invalid(f"{what} must be between zero and ten years")
    return Millis(span)


def check_span(value: object, what: str, least: int = 0, most: int = MAX_SPAN) -> Millis:
    """The duration that an argument in milliseconds names: a whole number, `"5s"`, or a
    `timedelta`. A fraction is refused, because some readers would take it for seconds."""
    if isinstance(value, str | timedelta):
        span = _milliseconds(value)
    else:
        span = value if type(value) is int else None
    if span is None:
        raise Invalid(f"{what} must be a whole number of milliseconds or a duration such as '5s'")
    if not least <= span <= most:
        raise Invalid(f"{what} must be {least} to {most} milliseconds")
    return Millis(span)


def check_moment(value: object, what: str) -> Millis:
    """`value` if it is a moment from 1970 to 9999 in milliseconds, else `Invalid`."""
    if type(value) is not int:
        raise Invalid(f"{what} must be a whole number of milliseconds since 1970")
    if not 0 <= value <= MAX_MILLIS:
        raise Invalid(f"{what} must be between the years 1970 and 9999")
    return Millis(value)


def from_datetime(value: datetime, what: str = "moment") -> Millis:
    """The moment of an aware `datetime`; `Invalid` for a naive one or one before 1970."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise Invalid(f"{what} must be a datetime with a time zone")
    return check_moment((value - _EPOCH) // _MILLISECOND, what)


def to_datetime(moment: Millis) -> datetime:
    """The same moment as an aware `datetime` in UTC."""
    return _EPOCH + moment * _MILLISECOND


def optional_datetime(moment: Millis | None) -> datetime | None:
    return None if moment is None else to_datetime(moment)


def iso(moment: Millis) -> str:
    """The same moment as text: ISO 8601 in UTC."""
    return to_datetime(moment).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_timedelta(span: Millis) -> timedelta:
    """The same duration as a `timedelta`."""
    return span * _MILLISECOND


def optional_timedelta(span: Millis | None) -> timedelta | None:
    return None if span is None else to_timedelta(span)


def _milliseconds(value: object) -> int | None:
    """The range is not checked yet; None if `value` is not a duration."""
    match value:
        case bool():
            return None
        case str():
            return _from_text(value)
        case timedelta():
            return value // _MILLISECOND
        case int():
            return value * 1000
        case float() if math.isfinite(value):
            return math.floor(value * 1000) if abs(value) <= MAX_SPAN else MAX_SPAN + 1
        case _:
            return None


def _from_text(text: str) -> int | None:
    match = _SPAN.fullmatch(text)
    if match is None or not text:
        return None
    return sum(int(count) * unit for count, unit in zip(match.groups("0"), _UNITS, strict=True))
