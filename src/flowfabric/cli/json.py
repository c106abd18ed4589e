"""Values of the engine as JSON documents.

Members keep the names they have in the engine. Ids of runs are UUIDs, moments ISO 8601 in UTC,
enumerations words, bytes the JSON or the text they contain. Attempts count from 1.
"""

import base64
from collections.abc import Mapping
from datetime import datetime
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from flowfabric.core.base.ids import RunId, without_tags
from flowfabric.core.base.time import Millis, from_datetime
from flowfabric.core.base.time import iso as iso

Document = dict[str, Any]

_MOMENTS = frozenset({"at", "until", "since"})


def document(value: Struct) -> Document:
    """The members of a value, ready for JSON."""
    names = [name for name in value.__struct_fields__ if name != "unknown"]
    return {name: plain(name, getattr(value, name)) for name in names}


def counted(value: Struct) -> Document:
    """The same for a value whose `attempt` is the engine's index: people count from 1."""
    found = document(value)
    index = found["attempt"]
    return {**found, "attempt": None if index is None else index + 1}


def plain(name: str, value: object) -> Any:
    match value:
        case Struct():
            return document(value)
        case Mapping():
            return {str(key): plain(str(key), item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain("", item) for item in value]
        case bytes():
            return body(value)
        case _:
            return _simple(name, value)


def _simple(name: str, value: object) -> Any:
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


def body(data: bytes) -> Any:
    """A payload, a result or the detail of a failure: JSON if it is, else text, else base64."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
