"""New identifiers: time-ordered, and in the order they were made within this process."""

import os
from struct import Struct
from uuid import UUID

from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis

_COUNTER = 1 << 12
_RANDOM_BITS = 62
_RANDOM = (1 << _RANDOM_BITS) - 1

_NUMBERS = Struct("=512Q")
_drawn: dict[int, list[int]] = {}
"""What this process has drawn. A fork does not use what its parent has."""


class Ids:
    """The twelve bits behind the millisecond count, so that executions submitted one after the
    other in the same millisecond are claimed in that order."""

    def __init__(self) -> None:
        self._last = 0
        self._count = 0

    def fresh(self, now: Millis) -> UUID:
        if now > self._last:
            self._last, self._count = now, 0
        else:
            self._count += 1
            if self._count == _COUNTER:
                self._last, self._count = self._last + 1, 0
        return new_uuid7(self._last, self._count << _RANDOM_BITS | _random() & _RANDOM)


def _random() -> int:
    """64 random bits of the system, drawn many at a time: every draw lets go of the interpreter's
    lock, and takes its turn after the thread that writes to SQLite to get it back."""
    process = os.getpid()
    try:
        return _drawn[process].pop()
    except (KeyError, IndexError):
        number, *more = _NUMBERS.unpack(os.urandom(_NUMBERS.size))
        _drawn.clear()
        _drawn[process] = more
        return int(number)
