"""When callers that wait for work look again, because a claim has left rows to other claims.
No hint tells that there are more."""

import asyncio
from collections.abc import Callable

FIRST = 0.02
LAST = 1.0
"""Seconds. While claims take nothing, each look waits twice as long as the one before: 0.02, 0.04,
0.08, … A stuck session may hold the rows of a claim for hours."""


class SecondLook:
    """One look for all claims that have left rows to others meanwhile."""

    def __init__(self) -> None:
        self._planned = False
        self._after = FIRST

    def plan(self, wake: Callable[[], None]) -> None:
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_later(self._after, self._look, wake)
            self._after = min(LAST, self._after * 2)

    def took(self) -> None:
        """A claim took something: the next look is an early one again."""
        self._after = FIRST

    def _look(self, wake: Callable[[], None]) -> None:
        self._planned = False
        wake()
