"""Amounts and limits as people type and read them: `tokens=100000`, `100/m`, `1d`."""

from collections.abc import Iterable, Mapping

from flowfabric.cli.values import usage
from flowfabric.core.limit.quota import Rate

NONE = "none"
"""The word that takes a limit away."""

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


def read_amounts(words: Iterable[str], what: str) -> dict[str, int]:
    """`["tokens=5", "calls=1"]` as amounts."""
    found: dict[str, int] = {}
    for name, value in _pairs(words, what):
        found[name] = _number(value, name, what)
    return found


def read_limits(words: Iterable[str], what: str) -> dict[str, int | None]:
    """As amounts, where `none` stands for no limit."""
    return {
        name: None if value == NONE else _number(value, name, what)
        for name, value in _pairs(words, what)
    }


def amounts_text(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in amounts.items())


def span_text(millis: int) -> str:
    """A span as somebody would have typed it: exact, in its largest unit."""
    unit, size = next((unit, size) for unit, size in _UNITS if not millis % size)
    return f"{millis // size}{unit}"


def rate_text(rate: Rate | None) -> str:
    if rate is None:
        return ""
    window = span_text(rate.window)
    evenly = " smooth" if rate.smooth else ""
    return f"{rate.count}/{window.removeprefix('1') if window in _ONES else window}{evenly}"


_ONES = frozenset({"1s", "1m", "1h", "1d"})


def _pairs(words: Iterable[str], what: str) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for word in words:
        name, given, value = word.partition("=")
        if not given or not name:
            raise usage(f"{what} is a dimension and a number such as tokens=1000, not {word!r}")
        if name in found:
            raise usage(f"{what} names {name} twice")
        found[name] = value
    return list(found.items())


def _number(value: str, name: str, what: str) -> int:
    digits = value.replace("_", "")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        raise usage(f"{what} of {name} is a whole number, not {value!r}")
    return int(digits)
