"""A pause in proportion to what a look has cost, so that slow looks take a tenth of the time."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

TIMES = 9.0
MAX_REST = 10.0


class Pacer:
    """After a look that took 20 ms the next one waits for 180 ms, and never more than 10 s."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def rests(self) -> bool:
        """Whether the next look must still wait."""
        return asyncio.get_running_loop().time() < self._until

    @contextmanager
    def look(self) -> Iterator[None]:
        """Around the look itself."""
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        yield
        ended_at = loop.time()
        self._until = ended_at + min(MAX_REST, TIMES * (ended_at - begun_at))
