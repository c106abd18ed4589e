"""Waiting until quotas that are to be looked at have been."""

import asyncio
from collections.abc import Collection

from flowfabric.store.hints import Hints, Topic

SETTLE = 0.1
"""Seconds that a caller waits at most."""


class Rounds:
    """Looks at quotas that are under way (`busy`) or will follow (`dirty`), and who waits for
    them."""

    def __init__(self, hints: Hints, dirty: Collection[str], busy: Collection[str]) -> None:
        self._hints = hints
        self._dirty = dirty
        self._busy = busy
        self._now: dict[str, asyncio.Future[None]] = {}
        self._next: dict[str, asyncio.Future[None]] = {}

    async def settle(self, seen: int) -> bool:
        """Waits a moment for runs that are being admitted, so that a caller that submits and then
        claims finds its run; False if there are none, and no hint of work came since the count
        `seen`."""
        rounds = [self._round_of(quota) for quota in {*self._dirty, *self._busy}]
        if rounds:
            await asyncio.wait(rounds, timeout=SETTLE)
        return bool(rounds) or bool(Topic.WORK & self._hints.since(seen))

    def begin(self, quota: str) -> None:
        if (waited_for := self._next.pop(quota, None)) is not None:
            self._now[quota] = waited_for

    def end(self, quota: str) -> None:
        if (waited_for := self._now.pop(quota, None)) is not None:
            waited_for.set_result(None)

    def _round_of(self, quota: str) -> "asyncio.Future[None]":
        """Is done after the look that finds what is known of now: the one under way has begun
        before, if the quota is to be looked at again."""
        rounds = self._next if quota in self._dirty else self._now
        if quota not in rounds:
            rounds[quota] = asyncio.get_running_loop().create_future()
        return rounds[quota]
