"""Checks that the members of a caller's struct have their declared types.

msgspec does not check a struct that is created in code; a wrong member would only show up in the
store, or when it is read again. The meaning of the members is checked where they are used.
"""

import builtins
import types
import typing
from collections import abc
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from flowfabric.core.base.document import Document
from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.json import check_json
from flowfabric.core.base.numbers import check_kind_of
from flowfabric.core.base.time import check_span

S = TypeVar("S", bound=msgspec.Struct)
_Fits = Callable[[Any], bool]


class _Member(NamedTuple):
    name: str
    exact: frozenset[type]
    """Classes whose own instances fit: for them, the check need not be called."""
    fits: _Fits
    expected: str


def check_shape(value: object, kind: type[S], what: str, *, spans: tuple[str, ...] = ()) -> S:
    """`value` if it is a `kind` whose members, at every depth, have their declared types. The
    members in `spans` may be durations as text and become milliseconds."""
    checked = check_kind_of(value, kind, what)
    for name in spans:
        given = getattr(checked, name)
        if given is not None and type(given) is not int:
            checked = replace(checked, **{name: check_span(given, f"{name} of a {what}")})
    for member in _members(kind):
        given = getattr(checked, member.name)
        if type(given) not in member.exact and not member.fits(given):
            found = type(given).__name__
            raise Invalid(f"{member.name} of a {what} must be {member.expected}, not {found}")
    if isinstance(checked, Document):
        check_json(checked.unknown, f"unknown members of a {what}")
    return checked


@lru_cache(maxsize=256)
def _members(kind: type[msgspec.Struct]) -> tuple[_Member, ...]:
    hints = get_type_hints(kind)
    return tuple(
        _Member(name, frozenset(_exact(hints[name])), *_check_of(hints[name]))
        for name in kind.__struct_fields__
    )


def _exact(hint: Any) -> Iterator[type]:
    if get_origin(hint) in (typing.Union, types.UnionType):
        for each in get_args(hint):
            yield from _exact(each)
    kind = getattr(hint, "__supertype__", hint)
    if isinstance(kind, type) and not issubclass(kind, msgspec.Struct):
        yield kind


def _check_of(hint: Any) -> tuple[_Fits, str]:
    """A check for this type, and the name of the type for an error."""
    inner = get_args(hint)
    match get_origin(hint):
        case typing.Union | types.UnionType:
            checks = [_check_of(each) for each in inner]
            fits = tuple(check for check, _ in checks)
            if len(fits) == 2 and inner[1] is types.NoneType:
                first = fits[0]
                return (lambda value: value is None or first(value)), _either(checks)
            return (lambda value: any(each(value) for each in fits)), _either(checks)
        case builtins.tuple if inner[1:] == (...,):
            item, expected = _check_of(inner[0])
            return (lambda value: _all(value, item)), f"a tuple, each {expected}"
        case builtins.tuple:
            items = tuple(_check_of(each)[0] for each in inner)
            return (lambda value: _each(value, items)), f"a tuple of {len(items)}"
        case builtins.dict | abc.Mapping:
            key, item = _check_of(inner[0])[0], _check_of(inner[1])[0]
            return (lambda value: _mapping(value, key, item)), "a mapping"
        case None:
            return _check_of_class(getattr(hint, "__supertype__", hint))
        case other:
            raise TypeError(f"no check for {other}")


_PLAIN: dict[Any, tuple[_Fits, str]] = {
    Any: (lambda value: True, "anything"),
    types.NoneType: (lambda value: value is None, "None"),
    bool: (lambda value: isinstance(value, bool), "True or False"),
    int: (lambda value: type(value) is int, "a whole number"),
    str: (lambda value: isinstance(value, str), "text"),
    bytes: (lambda value: isinstance(value, bytes | bytearray | memoryview), "bytes"),
}


def _check_of_class(kind: Any) -> tuple[_Fits, str]:
    known = _PLAIN.get(kind)
    if known is not None:
        return known
    name = f"a {kind.__name__}"
    if issubclass(kind, msgspec.Struct):
        return (lambda value: _whole(value, kind)), name
    if issubclass(kind, StrEnum):
        words = frozenset(map(str, kind))
        return (lambda value: isinstance(value, str) and value in words), f"one of {sorted(words)}"
    return (lambda value: isinstance(value, kind)), name


def _either(checks: list[tuple[_Fits, str]]) -> str:
    return " or ".join(dict.fromkeys(expected for _, expected in checks))


def _whole(value: object, kind: type[msgspec.Struct]) -> bool:
    if not isinstance(value, kind):
        return False
    return all(member.fits(getattr(value, member.name)) for member in _members(kind))


def _all(value: object, item: _Fits) -> bool:
    return isinstance(value, tuple) and all(item(each) for each in value)


def _each(value: object, items: tuple[_Fits, ...]) -> bool:
    if not isinstance(value, tuple) or len(value) != len(items):
        return False
    return all(fits(each) for fits, each in zip(items, value, strict=True))


def _mapping(value: object, key: _Fits, item: _Fits) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(key(name) and item(each) for name, each in value.items())
