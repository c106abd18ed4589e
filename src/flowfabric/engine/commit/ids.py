"""New identifiers: time-ordered, and in the order they were made within this process."""

import os
import struct
from uuid import UUID

from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis

_COUNTER = 1 << 12
_RANDOM_BITS = 62
_POOLED = 512

_pool: list[int] = []
"""Random numbers of 64 bits, asked for in one call: one by one they cost more than all the rest."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)  # a fork must not give the same ids


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
        return new_uuid7(self._last, self._count << _RANDOM_BITS | _random())


def _random() -> int:
    if not _pool:
        _pool.extend(struct.unpack(f"{_POOLED}Q", os.urandom(8 * _POOLED)))
    return _pool.pop() >> (64 - _RANDOM_BITS)
