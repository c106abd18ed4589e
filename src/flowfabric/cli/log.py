"""How a worker writes its log: as text with a zone, or as one JSON document per line."""

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from flowfabric.cli.json import iso
from flowfabric.core.base.time import Millis

_COLOURED = "color_message"
"""The message once more, as uvicorn wants it on a terminal."""
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", _COLOURED}
"""What every record has; everything else was given as `extra`."""

DEEPEST = 8
"""How deep a field is written as JSON; deeper values are written as text."""


class TextFormatter(logging.Formatter):
    """A record as a line, and its traceback below."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")
        self._second = (-1, "", "")
        """The last second that was written, its text, and that of its zone."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        known, text, zone = self._second
        second = int(record.created)
        if second != known:
            shown = datetime.fromtimestamp(second).astimezone().isoformat(" ")
            text, zone = shown[:19], shown[19:]
            self._second = (second, text, zone)
        return f"{text}.{int(record.msecs):03d}{zone}"


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON, with the fields that were given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": iso(Millis(int(record.created * 1000))),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        for name, value in vars(record).items():
            if name not in _STANDARD and name not in line:
                line[name] = _writable(value)
        return msgspec.json.encode(_clean(line)).decode()


def _writable(value: object, depth: int = 0) -> Any:
    """The value as JSON has it, or its text: a field never keeps a record from being written."""
    match value:
        case None | bool() | int() | float():
            return value if _fits(value) else repr(value)
        case datetime():
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case Mapping() if depth < DEEPEST:
            return {str(key): _writable(each, depth + 1) for key, each in value.items()}
        case list() | tuple() | set() | frozenset() if depth < DEEPEST:
            return [_writable(each, depth + 1) for each in value]
        case _:
            return _text(value)


def _fits(number: object) -> bool:
    """Whether JSON, as others read it, can hold the number."""
    match number:
        case float():
            return number - number == 0
        case int():
            return -(2**63) <= number < 2**63
        case _:
            return True


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # its own __str__ fails
        return object.__repr__(value)


def _clean(value: Any) -> Any:
    """Without lone surrogates, which UTF-8 cannot hold."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_clean(key): _clean(each) for key, each in value.items()}
        case list():
            return [_clean(each) for each in value]
        case _:
            return value
