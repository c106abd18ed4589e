"""What answers look like whose values `documents.document` writes, for the OpenAPI document: types
that have the members of a value of the engine in their plain form."""

from collections.abc import Mapping
from enum import Enum, IntEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType

from flowfabric.core.base.ids import ExecutionId
from flowfabric.server.http.documents import word

Shown = type[Struct]
_PLAIN = (str, int, float, bool, NoneType)
_LISTS = (list, tuple, set, frozenset)


def page(noun: str, item: Shown) -> Shown:
    """A page of such values: `next_cursor` is null on the last one."""
    return _made(f"{item.__name__}Page", {noun: list[item], "next_cursor": str | None})  # type: ignore[valid-type]


def listing(noun: str, item: Shown) -> Shown:
    """All such values that there are."""
    return _made(f"{item.__name__}s", {noun: list[item]})  # type: ignore[valid-type]


def also(value: type[Struct], *hidden: str, **more: Any) -> Shown:
    """A value without some of its members, and with others."""
    kept = {name: kind for name, kind in _members(value).items() if name not in hidden}
    return _made(f"{value.__name__}Answer", kept | more)


def entry(value: type[Struct], **more: Any) -> Shown:
    """A value with more members, as lists show it."""
    return _made(f"{value.__name__}Entry", _members(value) | more)


def by_name(item: Shown) -> Any:
    """A member that has such values by their names."""
    return dict[str, item]  # type: ignore[valid-type]


def word_of(kind: type[Enum]) -> Any:
    """A member that is one of these words."""
    return _plain_class(kind)


def maybe(kind: Any) -> Any:
    """A member that may be left out."""
    return kind | UnsetType


def members(name: str, **members: Any) -> Shown:
    """An answer that is put together from these members."""
    return _made(name, members)


@cache
def shown(value: type[Struct]) -> Shown:
    """A value."""
    _under_way.add(value)
    try:
        return _made(value.__name__, _members(value))
    finally:
        _under_way.discard(value)


_under_way: set[type] = set()
"""Values whose types are being made: one that contains itself is any value there."""


def _made(name: str, kinds: Mapping[str, Any]) -> Shown:
    needed = [(name, kind) for name, kind in kinds.items() if UnsetType not in get_args(kind)]
    others = [(name, kind, UNSET) for name, kind in kinds.items() if (name, kind) not in needed]
    return msgspec.defstruct(name, [*needed, *others], module="flowfabric.shown", kw_only=True)


def _members(value: type[Struct]) -> dict[str, Any]:
    fields = msgspec.structs.fields(value)
    return {field.name: _plain(field.type) for field in fields if field.name != "unknown"}


def _plain(kind: Any) -> Any:
    if isinstance(kind, NewType):
        return _plain(kind.__supertype__)
    if isinstance(kind, type) and get_origin(kind) is None:
        return _plain_class(kind)
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _plain(args[0])
    if origin in (Union, UnionType):
        return _one_of([_plain(each) for each in args])
    if isinstance(origin, type) and issubclass(origin, Mapping) and args:
        return dict[str, _plain(args[1])]  # type: ignore[misc]
    if origin in _LISTS:
        return list[_plain(args[0])] if len(set(args) - {...}) == 1 else list[Any]  # type: ignore[misc]
    return kind if origin is Literal else Any


def _one_of(kinds: list[Any]) -> Any:
    """One of these. Several values that have members are one object: nothing would tell them
    apart. A word is a text."""
    if Any in kinds:
        return Any
    if str in kinds:
        kinds = [kind for kind in kinds if get_origin(kind) is not Literal]
    objects = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Struct)]
    if len(objects) > 1:
        kinds = [dict[str, Any], *(kind for kind in kinds if kind not in objects)]
    return Union[tuple(kinds)]  # noqa: UP007 - made of a list


def _plain_class(kind: type) -> Any:
    if issubclass(kind, IntEnum):
        return Literal[tuple(word(each) for each in kind)]
    if issubclass(kind, Enum):
        return Literal[tuple(each.value for each in kind)]
    if issubclass(kind, Struct):
        return Any if kind in _under_way else shown(kind)
    if issubclass(kind, (UUID, ExecutionId)):
        return str
    return kind if kind in _PLAIN else Any
