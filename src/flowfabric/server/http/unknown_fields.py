"""Which fields of a JSON document its type does not know, at any depth, by their paths.

A path has the names from the outside in and the places in lists, with dots between them:
`policy.required_capabilities`, `executions.3.policy_json`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import inspect

MEMBERS_OF = "members_of"
"""Extra metadata of an object that is kept as it is: the struct that has its members."""

Find = Callable[[object, str], Iterator[str]]
"""The paths of the unknown fields in a value, each after the given prefix."""


def unknown_fields(type: Any) -> Find | None:
    """Finds the unknown fields in a document of this type; None if it has no known ones."""
    return _finder(inspect.type_info(type), {})


def _finder(info: inspect.Type, seen: dict[type, Find]) -> Find | None:
    match info:
        case inspect.Metadata(type=inner, extra=extra):
            named = (extra or {}).get(MEMBERS_OF)
            return _finder(inner if named is None else inspect.type_info(named), seen)
        case inspect.StructType():
            return seen.get(info.cls) or _in_struct(info, seen)
        case inspect.UnionType(types=types):
            return _in_one_of(types, seen)
        case inspect.CollectionType(item_type=item):
            return _in_list(_finder(item, seen))
        case inspect.VarTupleType(item_type=item):
            return _in_list(_finder(item, seen))
        case _:
            return None


def _in_struct(info: inspect.StructType, seen: dict[type, Find]) -> Find:
    names = (field.encode_name for field in info.fields if field.name != "unknown")
    known = frozenset((info.tag_field, *names))
    inner: dict[str, Find] = {}

    def find(value: object, prefix: str) -> Iterator[str]:
        if not isinstance(value, dict):
            return
        for name, item in value.items():
            if name not in known:
                yield prefix + name
            elif name in inner:
                yield from inner[name](item, f"{prefix}{name}.")

    seen[info.cls] = find  # a type may contain itself
    deeper = ((field.encode_name, _finder(field.type, seen)) for field in info.fields)
    inner.update((name, found) for name, found in deeper if found is not None)
    return find


def _in_one_of(types: tuple[inspect.Type, ...], seen: dict[type, Find]) -> Find | None:
    """By the tag, where several structs have one; otherwise there is one of them at most."""
    tagged: dict[object, Find] = {}
    others: list[Find] = []
    field = None
    for each in types:
        found = _finder(each, seen)
        if found is None:
            continue
        if isinstance(each, inspect.StructType) and each.tag_field is not None:
            tagged[each.tag], field = found, each.tag_field
        else:
            others.append(found)
    if not tagged:
        return others[0] if others else None

    def find(value: object, prefix: str) -> Iterator[str]:
        tag = value.get(field) if isinstance(value, dict) else None
        if isinstance(tag, str) and tag in tagged:
            yield from tagged[tag](value, prefix)

    return find


def _in_list(item: Find | None) -> Find | None:
    if item is None:
        return None

    def find(value: object, prefix: str) -> Iterator[str]:
        if isinstance(value, list):
            for place, each in enumerate(value):
                yield from item(each, f"{prefix}{place}.")

    return find
