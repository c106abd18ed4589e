"""Values of the engine as the API shows them: moments are milliseconds, ids are tagged,
enumerations are words, attempts count from 0 as everywhere on the wire."""

from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.plain import plain_members, plain_value


def document(value: Struct) -> dict[str, Any]:
    """The members of a value."""
    return plain_members(value, _leaf)


def plain(value: object) -> Any:
    return plain_value("", value, _leaf)


def _leaf(name: str, value: object) -> Any:
    match value:
        case IntEnum():
            return value.name.lower()
        case Enum():
            return value.value
        case ExecutionId():
            return str(ExecutionId(value))
        case UUID():
            return str(value)
        case _:
            return value
