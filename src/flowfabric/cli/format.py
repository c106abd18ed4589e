"""Values as text for people: moments, spans, amounts, rates."""

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from flowfabric.core.base.time import Millis, to_datetime
from flowfabric.core.execution.model import Progress
from flowfabric.core.limit.quota import Rate

SHORT = 300
LINE = 120

_MILLISECOND = timedelta(milliseconds=1)
_MILLIS = re.compile(r"\b1[0-9]{12}\b")
_ISO = re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
_ONE = re.compile(r"^1(?=[smhd]$)")


def local(moment: datetime | Millis | None) -> str:
    """A moment as the clock on this machine's wall shows it, with its offset from UTC."""
    if moment is None:
        return ""
    at = moment if isinstance(moment, datetime) else to_datetime(moment)
    return at.astimezone().isoformat(" ", "seconds")


def span(length: timedelta | int | None) -> str:
    """A length of time in at most two units: 340ms, 2.5s, 3m12s, 4h5m, 2d7h. A number is one of
    milliseconds."""
    if length is None:
        return ""
    millis = length // _MILLISECOND if isinstance(length, timedelta) else length
    if millis < 1000:
        return f"{max(0, millis)}ms"
    if millis < 60_000:
        return f"{millis / 1000:.1f}s"
    index = next(n for n, (_, size) in enumerate(_UNITS) if millis >= size)
    (unit, size), (below, smaller) = _UNITS[index], _UNITS[index + 1]
    return f"{millis // size}{unit}{millis % size // smaller}{below}"


def exact_span(millis: int) -> str:
    """A span as a person would type it: exact, in its largest unit."""
    unit, size = next((unit, size) for unit, size in _UNITS if not millis % size)
    return f"{millis // size}{unit}"


def rate_text(rate: Rate | None) -> str:
    """`100/m`, `5/30s smooth`"""
    if rate is None:
        return ""
    return f"{rate.count}/{_ONE.sub('', exact_span(rate.window))}{' smooth' if rate.smooth else ''}"


def amounts_text(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in amounts.items())


def number_of(count: int, noun: str) -> str:
    """`1 member`, `3 members`"""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def times(count: int) -> str:
    return "" if not count else "once" if count == 1 else f"{count} times"


def pairs_text(pairs: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in pairs.items())


def optional(value: object) -> str:
    return "" if value is None else str(value)


def readable(detail: str | None) -> str:
    """A detail whose moments are written for people."""
    text = _ISO.sub(lambda match: local(datetime.fromisoformat(match[0])), detail or "")
    return _MILLIS.sub(lambda match: local(Millis(int(match[0]))), text)


def first_line(text: str, most: int = LINE) -> str:
    """A message in one line of a table."""
    line, *rest = text.strip().splitlines() or [""]
    return f"{line[:most]}…" if rest or len(line) > most else line


def shortened(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHORT else f"{text[:SHORT]}… ({len(text)} characters)"


def pretty(value: object) -> str:
    """A value as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def progress_text(progress: Progress | None) -> str:
    if progress is None:
        return ""
    percent = "" if progress.percent is None else f"{progress.percent} %"
    return " ".join(part for part in (percent, progress.message) if part)
