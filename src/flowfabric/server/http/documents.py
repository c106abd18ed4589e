"""Values of the engine as the API shows them: moments are milliseconds, ids are tagged,
enumerations are words, attempts count from 0 as everywhere on the wire."""

from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import Any, TypeVar
from uuid import UUID

from litestar import Response
from msgspec import Struct

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.plain import plain_members, plain_value
from flowfabric.core.limit.lane import LaneState
from flowfabric.server.http.wire import respond

S = TypeVar("S", bound=Struct)


def document(value: Struct, *hidden: str) -> dict[str, Any]:
    """The members of a value, without those that are the engine's own affair."""
    members = plain_members(value, _leaf)
    return {name: each for name, each in members.items() if name not in hidden}


def respond_page(
    noun: str,
    found: Sequence[S],
    limit: int,
    cursor: Callable[[S], str],
    show: Callable[[S], dict[str, Any]] = document,
) -> Response[Any]:
    """A page of values. There may be more if it is full; `cursor` names the last one."""
    more = cursor(found[-1]) if found and len(found) == limit else None
    return respond({noun: [show(each) for each in found], "next_cursor": more})


def plain(value: object) -> Any:
    return plain_value("", value, _leaf)


def word(value: IntEnum) -> str:
    """The word of a number: its name, except for a lane that is open, which the original calls
    active."""
    return "active" if value is LaneState.OPEN else value.name.lower()


def _leaf(name: str, value: object) -> Any:
    match value:
        case IntEnum():
            return word(value)
        case Enum():
            return value.value
        case ExecutionId():
            return str(ExecutionId(value))
        case UUID():
            return str(value)
        case _:
            return value
