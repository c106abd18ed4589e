"""Waiting for runs that are being admitted through their limits."""

import asyncio
from collections.abc import Collection

from flowfabric.core.execution.model import Gate, Snapshot, Waiting
from flowfabric.store.hints import Hints, Topic

SETTLE = 0.1
"""Seconds that a caller waits at most for budgets, and then for quotas."""

_LIMITS = frozenset({Gate.LIMIT, Gate.BUDGET})


class Rounds:
    """Looks at quotas that are under way (`busy`) or will follow (`dirty`, with the lines to look
    at; None for all), tasks that let runs in whose budgets have room again, and who waits for
    them."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        self.dirty: dict[str, set[int] | None] = {}
        self.busy: set[str] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._now: dict[str, asyncio.Future[None]] = {}
        self._next: dict[str, asyncio.Future[None]] = {}

    async def settle(self, seen: int, quotas: Collection[str] | None = None) -> bool:
        """Waits a moment for runs that are being admitted, through these quotas or any, so that a
        caller that submits and then claims finds its run; False if there are none, and no hint of
        work came since the count `seen`."""
        opening = list(self._opening)
        if opening:  # and then their quotas are asked
            await asyncio.wait(opening, timeout=SETTLE)
        looked_at = {*self.dirty, *self.busy}
        if quotas is not None:
            looked_at.intersection_update(quotas)
        rounds = [self._round_of(quota) for quota in looked_at]
        if rounds:
            await asyncio.wait(rounds, timeout=SETTLE)
        return bool(opening or rounds) or bool(Topic.WORK & self._hints.since(seen))

    async def settle_run(self, snapshot: Snapshot, seen: int) -> bool:
        """Waits a moment if this run may be admitted just now: it does not wait for its limits
        before they were looked at. False if it is to be taken as it was read."""
        state = snapshot.state
        if not isinstance(state, Waiting) or state.gate not in _LIMITS:
            return False
        return await self.settle(seen, [use.quota for use in snapshot.execution.uses])

    def open(self, task: "asyncio.Task[None]") -> None:
        """The task lets runs in whose budget has room again."""
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def begin(self, quota: str) -> None:
        if (waited_for := self._next.pop(quota, None)) is not None:
            self._now[quota] = waited_for

    def end(self, quota: str) -> None:
        if (waited_for := self._now.pop(quota, None)) is not None:
            waited_for.set_result(None)

    def _round_of(self, quota: str) -> "asyncio.Future[None]":
        """Is done after the look that finds what is known of now: the one under way has begun
        before, if the quota is to be looked at again."""
        rounds = self._next if quota in self.dirty else self._now
        if quota not in rounds:
            rounds[quota] = asyncio.get_running_loop().create_future()
        return rounds[quota]
