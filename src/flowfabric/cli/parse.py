"""What people type: JSON, files, stdin, tags, amounts such as `tokens=100000`, moments."""

import getpass
import json
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from flowfabric.cli.errors import usage
from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis, from_datetime, parse_span

NONE = "none"
"""The word that takes a limit away."""
STDIN = "-"


def read_json(text: str, what: str) -> Any:
    """The value a text says. Refused if another reader might read it otherwise."""
    try:
        value = json.loads(text, object_pairs_hook=_members, parse_constant=_no_number)
        msgspec.json.decode(text)  # takes no half of a character, and no number out of range
    except (ValueError, RecursionError) as error:
        raise usage(f"{what} is not JSON: {error}") from None
    return value


def read_object(text: str, what: str) -> dict[str, Any]:
    """The members of the JSON object a text says."""
    value = read_json(text, what)
    if not isinstance(value, dict):
        raise usage(f"{what} is not a JSON object")
    return value


def read_source(source: str, what: str) -> str:
    """The text of a file, of stdin for `-`."""
    try:
        return sys.stdin.read() if source == STDIN else Path(source).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise usage(f"{what} cannot be read from {source}: {reason}") from None


def read_ids(ids: list[str]) -> list[str]:
    """The ids on the command line, each once; `-` stands for those on stdin."""
    found: list[str] = []
    for id in ids:
        found += sys.stdin.read().split() if id == STDIN else [id]
    if not found:
        raise usage("no ids on stdin")
    return list(dict.fromkeys(found))


def user_name(by: str | None) -> str:
    """Who acts: as given, otherwise the name of the user."""
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without a name for its user
        return ""


def read_optional_span(text: str | None, option: str) -> Millis | None:
    return None if text is None else parse_span(text, option)


def read_since(text: str | None, now: Millis) -> Millis | None:
    """The moment `--since` means: so long ago, or itself a moment."""
    if text is None:
        return None
    try:
        return Millis(max(0, now - parse_span(text, "--since")))
    except Invalid:
        pass
    try:
        return from_datetime(datetime.fromisoformat(text).astimezone(), "--since")
    except ValueError:
        reason = (
            f"--since is a duration such as 2h or a moment such as 2025-03-01T08:00, not {text!r}"
        )
        raise usage(reason) from None


def read_tag(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, equals, value = text.partition("=")
    if not equals:
        raise usage(f"--tag is written app.tenant=acme, not {text!r}")
    return key, value


def read_tags(words: list[str] | None) -> dict[str, str] | None:
    """What `--tag` was given, once or several times; None if it was not."""
    return dict(read_pair(text, "--tag") for text in words or ()) or None


def read_pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise usage(f"{option} is written name=value, not {text!r}")
    return name, value


def read_amounts(words: Iterable[str], what: str) -> dict[str, int]:
    """`["tokens=5", "calls=1"]` as amounts."""
    return {name: _number(value, name, what) for name, value in _pairs(words, what)}


def read_limits(words: Iterable[str] | None, what: str) -> dict[str, int | None]:
    """As amounts, where `none` stands for no limit."""
    return {
        name: None if value == NONE else _number(value, name, what)
        for name, value in _pairs(words or (), what)
    }


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


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is named twice")
    return members


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number")
