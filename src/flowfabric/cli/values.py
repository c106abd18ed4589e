"""Values that come from the command line, from a file or from stdin."""

import json
import sys
from pathlib import Path
from typing import Any

from flowfabric.cli.errors import Code, CommandError

STDIN = "-"


def read_json(text: str, what: str) -> Any:
    """The value a text says. Refused if another reader might read it otherwise."""
    try:
        return json.loads(text, object_pairs_hook=_members, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise usage(f"{what} is not JSON: {error}") from None


def read_source(source: str, what: str) -> str:
    """The text of a file, of stdin for `-`."""
    try:
        return sys.stdin.read() if source == STDIN else Path(source).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise usage(f"{what} cannot be read from {source}: {reason}") from None


def usage(text: str) -> CommandError:
    return CommandError(text, Code.USAGE, "usage")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is named twice")
    return members


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")
