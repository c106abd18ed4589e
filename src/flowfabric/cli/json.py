"""Values of the engine as JSON documents.

Members keep the names they have in the engine. Ids of runs are UUIDs, moments ISO 8601 in UTC,
enumerations words, bytes the JSON or the text they contain. Attempts count from 1.
"""

from datetime import datetime
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.ids import RunId, without_tags
from flowfabric.core.base.plain import plain_bytes, plain_members, plain_value
from flowfabric.core.base.time import Millis, from_datetime
from flowfabric.core.base.time import iso as iso

Document = dict[str, Any]

_MOMENTS = frozenset({"at", "until", "since"})


def document(value: Struct) -> Document:
    """The members of a value, ready for JSON."""
    return plain_members(value, _leaf)


def counted(value: Struct) -> Document:
    """The same for a value whose `attempt` is the engine's index: people count from 1."""
    found = document(value)
    index = found["attempt"]
    return {**found, "attempt": None if index is None else index + 1}


def plain(name: str, value: object) -> Any:
    return plain_value(name, value, _leaf)


def _leaf(name: str, value: object) -> Any:
    match value:
        case IntEnum():
            return value.name.lower()
        case Enum():
            return value.value
        case RunId() | UUID():
            return str(value)
        case str():
            return without_tags(value)
        case datetime():
            return iso(from_datetime(value))
        case bool():
            return value
        case int() if name.endswith("_at") or name in _MOMENTS:
            return iso(Millis(value))
        case _:
            return value


body = plain_bytes
