"""Strict JSON: a value that would come back as a different value is refused.

The encoder writes NaN and infinities as null, so a number would come back as None.
"""

import math
from collections.abc import Callable
from typing import Any

import msgspec

from flowfabric.core.base.errors import Invalid

_NULL = b"null"


def encode_strictly(
    value: object, encoder: msgspec.json.Encoder, plain: Callable[[object], Any]
) -> bytes:
    """The JSON of `value`; ValueError if it contains NaN or an infinity. `plain` returns the lists,
    dicts and numbers that the encoder makes of a value."""
    data = encoder.encode(value)
    if _NULL in data and value is not None and (found := find_no_number(plain(value))):
        raise ValueError(f"{found} has no JSON form")
    return data


def find_no_number(value: object) -> str | None:
    """The first NaN or infinity in a plain value, with its path; None if there is none."""
    open_ones: list[tuple[str, object]] = [("", value)]
    while open_ones:
        path, item = open_ones.pop()
        match item:
            case float() if not math.isfinite(item):
                return f"{item} at {path}" if path else str(item)
            case dict():
                open_ones += [(f"{path}.{name}", each) for name, each in item.items()]
            case list() | tuple():
                open_ones += [(f"{path}[{place}]", each) for place, each in enumerate(item)]
            case _:
                pass
    return None


def check_json(value: object, what: str) -> None:
    """Refuses a value that is not plain JSON."""
    if not value and isinstance(value, dict):
        return
    try:
        encode_strictly(value, _ENCODER, msgspec.to_builtins)
    except (TypeError, ValueError, RecursionError, msgspec.EncodeError) as error:
        raise Invalid(f"{what} cannot be written as JSON: {error}"[:300]) from None


_ENCODER = msgspec.json.Encoder()
