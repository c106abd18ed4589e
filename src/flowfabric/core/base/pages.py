"""Long lists, page by page."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

Items = TypeVar("Items", bound=Sequence[Any])

MAX_PAGE = 1000
"""Most items that a caller gets at once, unless a list has a limit of its own."""
MAX_COUNTED = 100_000
"""Where counting executions stops."""


def in_pages(items: Items, size: int) -> Iterator[Items]:
    """Slices of `size` items, the last one perhaps shorter."""
    for start in range(0, len(items), size):
        yield cast(Items, items[start : start + size])
