"""How an execution ends."""

from enum import IntEnum


class Outcome(IntEnum):
    SUCCESS = 0
    FAILED = 1
    CANCELLED = 2
    EXPIRED = 3
    SKIPPED = 4

    def __bool__(self) -> bool:
        """An ending is something, success included, although its number is zero."""
        return True
