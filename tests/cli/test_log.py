"""The log of a worker as JSON: every field arrives, and none keeps a record from being written."""

import logging
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from flowfabric.cli.log import JsonFormatter, TextFormatter


class Broken:
    def __str__(self) -> str:
        raise ValueError


def written(message: str, **extra: Any) -> dict[str, Any]:
    record = logging.getLogger("app").makeRecord(
        "app", logging.INFO, "app.py", 1, message, (), None, extra=extra
    )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found: dict[str, Any] = msgspec.json.decode(line)
    assert found.keys() == {"at", "level", "logger", "message", *extra}
    return found


ID = UUID("01a1e105-5216-7000-b234-22890e43ab8b")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        (7, 7),
        (True, True),
        (1.5, 1.5),
        (float("nan"), "nan"),
        (2**70, str(2**70)),
        ("two\nlines", "two\nlines"),
        ("lone \ud800", "lone ?"),
        (ID, str(ID)),
        (datetime(2030, 1, 2, tzinfo=UTC), "2030-01-02T00:00:00.000Z"),
        ({"a": (1, {2})}, {"a": [1, [2]]}),
        ({7: Broken}, {"7": str(Broken)}),
        (ValueError("boom"), "boom"),
    ],
)
def test_a_field_arrives(given: Any, expected: Any) -> None:
    assert written("hello", field=given)["field"] == expected


def test_what_cannot_be_written_is_named() -> None:
    assert "Broken object" in written("hello", field=Broken())["field"]
    endless: list[Any] = []
    endless.append(endless)
    assert written("hello", field=endless)["field"]


def test_a_field_cannot_replace_what_every_record_has() -> None:
    assert written("hello", level="loud")["level"] == "info"


def test_what_uvicorn_colours_for_a_terminal_is_left_out() -> None:
    record = logging.makeLogRecord({"msg": "started", "color_message": "\x1b[1mstarted\x1b[0m"})
    found = msgspec.json.decode(JsonFormatter().format(record))
    assert found.keys() == {"at", "level", "logger", "message"}


def test_a_line_of_text_has_its_moment_in_milliseconds_with_the_zone() -> None:
    formatter = TextFormatter()
    for created in (1_700_000_000.0, 1_700_000_000.25, 1_700_000_001.5, 1_700_000_000.125):
        record = logging.makeLogRecord({"msg": "hello", "levelname": "INFO"})
        record.created, record.msecs = created, created % 1 * 1000
        moment = datetime.fromtimestamp(created).astimezone()
        expected = f"{moment.isoformat(' ', 'milliseconds')} INFO    hello"
        assert formatter.format(record) == expected
