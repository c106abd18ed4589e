"""Claiming: how a worker fills its slots, and when it looks for work again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError, Forbidden, Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.engine.commit.observer import watching
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claim_calls import MAX_CLAIM
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.hints import NOTHING, Nudge
from flowfabric.store.queries import Suspects
from flowfabric.worker.run.options import WorkerSettings
from flowfabric.worker.run.probation import ProbationWard
from flowfabric.worker.run.slots import ClaimRequest, Slots

log = logging.getLogger("flowfabric.worker")

REST = 30.0
"""Seconds after which a worker claims without a hint. The sweep of its engine looks for work every
second and wakes it."""
FIRST_BACKOFF = 0.1
MAX_BACKOFF = 10.0

Launch = Callable[[Claim, Millis], None]
"""Starts a claimed run; the moment is now."""


class Claimer:
    """Claims runs for one worker. `freed` is set when a slot is free again, `stopping` (and with it
    `freed`) when the worker is to claim nothing more."""

    def __init__(
        self,
        engine: Engine,
        identity: WorkerIdentity,
        options: WorkerSettings,
        slots: Slots,
        ward: ProbationWard,
        *,
        freed: Nudge,
        stopping: Nudge,
    ) -> None:
        self.options = options
        self._engine = engine
        self._identity = identity
        self._slots = slots
        self._ward = ward
        self._freed = freed
        self._stopping = stopping
        self._seen = 0
        self._more = False
        self._store_health = StoreHealth()

    async def run(self, claim: Callable[[], Awaitable[int]]) -> None:
        """Calls `claim` whenever there may be work and a slot for it, until the worker stops."""
        backoff = FIRST_BACKOFF
        while not self._stopping.is_set():
            self._freed.clear()
            if not self._can_claim:
                watching().at_capacity()
                await self._freed.wait()
                continue
            self._seen, self._more = self._engine.hints.count, False
            try:
                claimed = await claim()
            except Invalid:
                raise  # it will not become valid by waiting
            except Exception as error:
                self._store_health.failed(error)
                await self._pause(backoff)
                backoff = min(MAX_BACKOFF, backoff * 2)
                continue
            self._store_health.answered()
            backoff = FIRST_BACKOFF
            if not self._more and self._can_claim:
                if claimed and self._engine.hints.count == self._seen:
                    await self._let_handlers_begin()
                await self._pause(None)

    async def _let_handlers_begin(self) -> None:
        """What was claimed begins two turns of the loop later, so that the next claim goes first.
        Where there is none to make, the handlers do not wait for what a pause takes to set up."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    @property
    def _can_claim(self) -> bool:
        return self._slots.left > 0 and not self._ward.closed

    async def claim(self, launch: Launch) -> int:
        """Starts a suspect if it is the turn of one, otherwise as many runs as there are slots for.
        A worker with nothing else to do takes suspects out of turn."""
        engine = self._engine
        asked = self._ward.has_turn and engine.suspects_seen
        if asked and await self._claim_suspect(launch):
            return 1
        count = await self._claim_others(launch)
        if count or asked or not self._ward.idle or not engine.suspects_seen:
            return count
        return await self._claim_suspect(launch)

    async def _claim_suspect(self, launch: Launch) -> int:
        for request in self._slots.requests():
            one = replace(request, limit=min(1, request.limit))
            if count := await self._claim_request(one, Suspects.ONLY, launch):
                return count
        return 0

    async def _claim_others(self, launch: Launch) -> int:
        """Makes one claim for each task with a limit of its own, and one for all others, whose
        order the store decides."""
        count = 0
        for request in self._slots.requests():
            count += await self._claim_request(request, Suspects.NONE, launch)
        return count

    async def _claim_request(
        self, request: ClaimRequest, suspects: Suspects, launch: Launch
    ) -> int:
        limit = min(request.limit, self._slots.left, MAX_CLAIM)
        if limit <= 0 or not request.kinds:
            return 0
        options = self.options
        claims = await self._engine.claims.claim(
            self._identity,
            lanes=options.lanes,
            capabilities=options.capabilities,
            kinds=request.kinds,
            limit=limit,
            ttl=options.ttl,
            namespace=options.namespace,
            suspects=suspects,
        )
        # A claim that took all it asked for says nothing of what is left, and runs may have ended
        # meanwhile: no hint tells of either.
        self._more = self._more or len(claims) == limit
        now = self._engine.now()
        for claim in claims:
            launch(claim, now)
        return len(claims)

    async def _pause(self, seconds: float | None) -> None:
        """Waits for a stop, for `seconds`, or, with None, for a hint that there is work, also one
        that came during the claim. A free slot ends the wait too where tasks have a limit of their
        own."""
        nudge = self._freed if self._slots.limited else self._stopping
        hints = self._engine.hints
        if seconds is None:
            await hints.wait(REST, self._seen, self._engine.hinted_by(), nudge)
        else:
            await hints.wait(seconds, None, NOTHING, nudge)


class StoreHealth:
    """Logs once that claiming fails, and once that it works again."""

    def __init__(self) -> None:
        self._well = True

    def failed(self, error: Exception) -> None:
        if self._well and isinstance(error, Forbidden):
            log.error("the server gives this worker no runs; claiming is tried again: %s", error)
        elif self._well and isinstance(error, FlowFabricError):
            log.warning("the store does not answer; claiming pauses and retries: %s", error)
        elif self._well:
            log.error("claiming failed; it pauses and retries", exc_info=error)
        self._well = False

    def answered(self) -> None:
        if not self._well:
            log.warning("the store answers again; claiming continues")
        self._well = True
