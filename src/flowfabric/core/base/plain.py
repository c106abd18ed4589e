"""Values of the engine as plain ones, ready for JSON: structs become mappings of their members.

The command line and the server differ in how they write ids and moments; `leaf` decides that.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

Leaf = Callable[[str, object], Any]
"""The plain form of a value that has no members, given the name of the member that it is."""


def plain_members(value: Struct, leaf: Leaf) -> dict[str, Any]:
    """The members of a value. `unknown`, where documents keep what a newer release wrote, is
    left out."""
    names = [name for name in value.__struct_fields__ if name != "unknown"]
    return {name: plain_value(name, getattr(value, name), leaf) for name in names}


def plain_value(name: str, value: object, leaf: Leaf) -> Any:
    match value:
        case Struct():
            return plain_members(value, leaf)
        case Mapping():
            return {str(key): plain_value(str(key), item, leaf) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain_value("", item, leaf) for item in value]
        case bytes():
            return plain_bytes(value)
        case _:
            return leaf(name, value)


def plain_bytes(data: bytes) -> Any:
    """A payload, a result or the detail of a failure: JSON if it is, else text, else base64."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
