"""JSON documents that older and newer releases exchange without losing members.

A newer release may have written members that this one does not know. They are kept in `unknown`
when the document is read, survive `msgspec.structs.replace`, and are written back beside the
known ones. Members at their default are left out; nothing is written as null.

Use `read` and `write`, not msgspec's own functions, which do not know `unknown`.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from msgspec import inspect

from flowfabric.core.base.errors import Corruption

# The member name under which msgspec reads and writes `unknown`. No document uses it; if one
# contains it anyway, or may hide it behind an escape, the slow and careful path reads the document.
_HOME = "\x7f"
_HOME_BYTE = b"\x7f"
_ESCAPE = b"\\u"


class Document(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Base class of all documents. Every member of a subclass needs a default.

    `unknown` holds the members this release does not know. It may be shared by several copies
    and must not be changed in place.
    """

    unknown: dict[str, Any] = msgspec.field(default_factory=dict, name=_HOME)


D = TypeVar("D", bound=Document)


def read(cls: type[D], data: bytes) -> D:
    """The document of class `cls` in `data`; `Corruption` if it cannot be read."""
    try:
        if _HOME_BYTE not in data and _ESCAPE not in data:
            known = _read_known(cls, data)
            if known is not None:
                return known
        return from_members(cls, msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corruption(f"{cls.__name__}: {error}") from None


def write(document: Document) -> bytes:
    """The document as JSON, with the members in `unknown` beside the known ones."""
    data = msgspec.json.encode(document)
    if _HOME_BYTE not in data:
        return data
    return msgspec.json.encode(to_members(document))


def to_members(document: Document) -> dict[str, Any]:
    """The JSON members of the document, including the unknown ones."""
    members = msgspec.to_builtins(document, str_keys=True)
    return cast(dict[str, Any], _walk_document(type(document), members, _scatter))


def from_members(cls: type[D], members: object) -> D:
    """The document with the given JSON members; `msgspec.ValidationError` names what is wrong."""
    return msgspec.convert(_walk_document(cls, members, _gather), cls, str_keys=True)


def _read_known(cls: type[D], data: bytes) -> D | None:
    """The fast path, for documents without unknown members; None if it does not apply."""
    try:
        document: D = _decoder(cls).decode(data)
        return document
    except msgspec.ValidationError:
        return None


@lru_cache(maxsize=256)
def _decoder(cls: type[D]) -> msgspec.json.Decoder[D]:
    return msgspec.json.Decoder(cls)


# Reading gathers the unknown members of every document, however deep, under `_HOME`; writing
# scatters them again. Both follow the declared types, never the names alone: the content of an
# unknown member is left as it is.

_Members = dict[str, Any]
_Step = Callable[[_Members, frozenset[str]], _Members]
_Walk = Callable[[Any, _Step], Any]


class _Layout(NamedTuple):
    known: frozenset[str]
    inner: dict[str, _Walk]


def _gather(members: _Members, known: frozenset[str]) -> _Members:
    extra = {name: value for name, value in members.items() if name not in known}
    kept = {name: value for name, value in members.items() if name in known}
    return {**kept, _HOME: extra} if extra else kept


def _scatter(members: _Members, known: frozenset[str]) -> _Members:
    extra = members.get(_HOME, {})
    kept = {name: value for name, value in members.items() if name in known}
    return {**{name: value for name, value in extra.items() if name not in known}, **kept}


def _walk_document(cls: type[Document], members: Any, step: _Step) -> Any:
    if not isinstance(members, dict):
        return members
    layout = _layout(cls)
    walked = {
        name: layout.inner[name](value, step) if name in layout.inner else value
        for name, value in members.items()
    }
    return step(walked, layout.known)


@lru_cache(maxsize=256)
def _layout(cls: type[Document]) -> _Layout:
    info = cast(inspect.StructType, inspect.type_info(cls))
    fields = {field.encode_name: field.type for field in info.fields if field.name != "unknown"}
    walks = {name: walk for name, kind in fields.items() if (walk := _walk_of(kind)) is not None}
    tag = [info.tag_field] if info.tag_field else []
    return _Layout(frozenset([*fields, *tag]), walks)


def _walk_of(info: inspect.Type) -> _Walk | None:
    """How to reach the documents inside a member of this type; None if there are none."""
    match info:
        case inspect.StructType() if issubclass(info.cls, Document):
            return _into(info.cls)
        case inspect.UnionType():
            return _into_one_of(info)
        case inspect.ListType() | inspect.VarTupleType():
            return _into_items(_walk_of(info.item_type))
        case inspect.DictType():
            return _into_values(_walk_of(info.value_type))
        case _:
            return None


def _into(cls: type[Document]) -> _Walk:
    return lambda value, step: _walk_document(cls, value, step)


def _into_items(walk: _Walk | None) -> _Walk | None:
    if walk is None:
        return None

    def items(value: Any, step: _Step) -> Any:
        return [walk(item, step) for item in value] if isinstance(value, list | tuple) else value

    return items


def _into_values(walk: _Walk | None) -> _Walk | None:
    if walk is None:
        return None

    def values(value: Any, step: _Step) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: walk(item, step) for name, item in value.items()}

    return values


def _into_one_of(info: inspect.UnionType) -> _Walk | None:
    """Tags distinguish documents; other members of a union are not objects."""
    structs = [kind for kind in info.types if isinstance(kind, inspect.StructType)]
    tagged = {kind.tag: walk for kind in structs if (walk := _walk_of(kind)) is not None}
    tag_field = next((kind.tag_field for kind in structs), None)
    others = [walk for kind in info.types if kind not in structs and (walk := _walk_of(kind))]

    def one_of(value: Any, step: _Step) -> Any:
        if isinstance(value, dict) and structs:
            chosen = tagged.get(value.get(tag_field) if tag_field else None)
            return chosen(value, step) if chosen else value
        for walk in others:
            value = walk(value, step)
        return value

    return one_of if tagged or others else None
