"""The W3C trace context that an execution carries, so that traces connect processes."""

import re

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.text import check_text

_TRACE = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def is_trace(text: str) -> bool:
    """Whether a text is a `traceparent` that names a span."""
    return _TRACE.fullmatch(text) is not None


def check_trace(value: object) -> str:
    """`value` if it is a `traceparent` that names a span."""
    text = check_text(value, "trace", limit=256)
    if not is_trace(text):
        raise Invalid("a trace is a W3C traceparent: 00-<32 hex>-<16 hex>-<2 hex>")
    return text
