"""JSON merge patch (RFC 7396): how summary frames change the summary of an attempt.

A member that is null in a patch is deleted, objects are merged, anything else replaces. Because
null deletes, a patch writes the text `__ff_null__` where it wants a null stored. Only the patch is
searched for that text: what the document already says is never rewritten.

    document {"done": 1, "note": "x"}   patch {"done": 2, "note": null, "owner": "__ff_null__"}
    becomes  {"done": 2, "owner": null}
"""

from typing import Any

import msgspec

from flowfabric.core.base.errors import Invalid

NULL = "__ff_null__"
"""The text that stands for a null to be stored."""

MAX_DEPTH = 16
"""How many objects and lists may be inside each other in a patch, the patch itself included."""

Json = dict[str, Any]


def read_patch(data: bytes) -> Json:
    """The patch in `data`; Invalid if it is not a JSON object, or is nested too deeply."""
    try:
        patch = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"a summary frame must be JSON: {error}") from None
    if not isinstance(patch, dict):
        raise Invalid(f"a summary frame must be a JSON object, not {_kind(patch)}")
    check_depth(patch)
    return patch


def check_depth(value: object) -> None:
    """Level by level, so that a deep value is refused without being walked by recursion."""
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise Invalid(f"patch_depth_exceeded: a patch may be {MAX_DEPTH} levels deep")
        level = [
            inner for item in level for inner in (item.values() if isinstance(item, dict) else item)
        ]


def merge(document: object, patch: Json) -> Json:
    """The document after a patch; neither is changed in place."""
    merged = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            merged[name] = merge(merged.get(name), value)
        else:
            merged[name] = _stored(value)
    return merged


def _stored(value: object) -> object:
    """A value as it is stored, with the nulls that the patch asks for. What is in a list replaces
    as a whole: nothing in it is a patch, so its nulls stay."""
    if isinstance(value, list):
        return [_stored(item) for item in value]
    if isinstance(value, dict):
        return {name: _stored(item) for name, item in value.items()}
    return None if value == NULL else value


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case list():
            return "a list"
        case str():
            return "text"
        case _:
            return "a number"
