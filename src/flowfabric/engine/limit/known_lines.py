"""What this process knows of lines, and submissions that use it: a run that finds room is admitted
in the commit that creates it, and a run that finds its line full is not followed by a look at that
line."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.submission import Creation
from flowfabric.core.limit.at_submission import (
    Admissions,
    KnownQuota,
    at_submission,
    waits_at_limit,
)
from flowfabric.core.limit.quota import Uses
from flowfabric.core.limit.release import QuotaView, Release, turn_of
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.limit.unclaimable import ClosedRoutes
from flowfabric.store.queries import LinesRequest, ServedLines

MAX_LINES = 100_000
PATIENCE = 0.1
"""Seconds that a submission waits at most for a look that is under way."""

log = logging.getLogger("flowfabric.limits")


class Written(Struct, frozen=True):
    """Creations as they were written, and of each the id of the execution that was there already.
    Lines of runs in `full` need no look."""

    creations: Sequence[Creation]
    existing: Sequence[ExecutionId | None]
    full: Collection[UUID] = frozenset()


class KnownLines(Service):
    """Knows which queues the store has rows of, and the room that the last release has left in the
    lines of quotas that limit keys only.

    Looks at lines and submissions take turns, so that each knows what the one before has left.
    What is known of a quota holds while it has that version: another process that releases or
    looks moves the version. So a submission that compares it finds out, and is followed by a look.
    """

    def __init__(self, context: EngineContext, closed: ClosedRoutes) -> None:
        super().__init__(context)
        self._closed = closed
        self._introduced: set[int] = set()
        self._new: dict[int, Uses] = {}
        self._introducing = asyncio.Lock()
        self._quotas: dict[str, KnownQuota] = {}
        self.turns = asyncio.Lock()

    def meet(self, queue: int, uses: Uses) -> None:
        """Notes the queue of an execution."""
        if uses and queue not in self._introduced:
            self._new[queue] = uses

    def forget_queues(self) -> None:
        """The store may have forgotten queues that were empty."""
        self._introduced.clear()

    async def introduce(self) -> None:
        """Tells the store about queues that are new to this process. Concurrent calls wait, because
        their queue may be among those."""
        async with self._introducing:
            if not self._new:
                return
            fresh, self._new = self._new, {}
            try:
                await self._context.store.put_queues(list(fresh.items()))
            except FlowFabricError as error:
                log.warning("introducing queues of quotas failed; the sweep tries again: %s", error)
                return
            if len(self._introduced) > MAX_LINES:
                self._introduced.clear()
            self._introduced.update(fresh)

    async def serve(self, ask: LinesRequest) -> ServedLines | None:
        """Looks at lines, and learns what the look has left: nothing of its lines, if it left runs
        that it had picked."""
        async with self.turns:
            served = await self._context.store.serve(ask)
            if served is None:  # it is gone, or has other limits
                self.forget(ask.quota)
                return None
            known = self._quotas.get(ask.quota)
            if known is None or known.version + 1 != served.version or len(known.room) > MAX_LINES:
                known = KnownQuota(served.version, served.turn, {})
            known.room.update(served.room)
            if served.moved < served.picked:
                for queue in served.room:
                    del known.room[queue]
            turn = max(known.turn, served.turn)
            self._quotas[ask.quota] = KnownQuota(served.version, turn, known.room)
            return served

    def released(self, release: Release, *, keep: bool) -> None:
        """Forgets the quotas of a release that has looked at all lines: if a key has two lines, it
        may have given the room of one to the other, and a line in which no run waits may have room
        that it did not see. With `keep`, each key has one line, and lines that have room again are
        looked at next: then only the lines that were served are forgotten."""
        for quota, version in release.versions.items():
            known = self._quotas.pop(quota, None)
            if keep and known is not None and known.version == version:
                for name, queue in release.turns:
                    if name == quota:
                        known.room.pop(queue, None)
                self._quotas[quota] = replace(known, version=version + 1)

    async def looked(self, view: QuotaView, *, keep: bool) -> bool:
        """Moves the versions after a look at all lines that admits no run, as `serve` does: another
        process may know a line as full in which there is room now. False if a rival was faster."""
        versions = {name: quota.version for name, quota in view.quotas.items() if quota.only_keys}
        if not versions:
            return True
        looked = Release(versions=versions)
        if await self._context.store.release(looked) is None:
            return False
        self.released(looked, keep=keep)
        return True

    def forget(self, quota: str) -> None:
        self._quotas.pop(quota, None)

    async def submit(self, creations: Sequence[Creation], now: Millis) -> Written:
        """Writes new runs, and admits those that find room."""
        if not self._quotas or not _may_be_admitted(creations) or not await self._my_turn():
            return Written(creations, await self._context.store.submit(creations, now))
        try:
            return await self._submit(creations, now)
        finally:
            self.turns.release()

    async def _my_turn(self) -> bool:
        try:
            return await asyncio.wait_for(self.turns.acquire(), PATIENCE)
        except TimeoutError:
            return False

    async def _submit(self, creations: Sequence[Creation], now: Millis) -> Written:
        for route in {creation.snapshot.execution.route for creation in creations}:
            self._closed.meet(route)
        snapshots = [creation.snapshot for creation in creations]
        found = at_submission(snapshots, now, self._quotas, self._closed.known.routes)
        store = self._context.store
        if not found.versions:
            return Written(creations, await store.submit(creations, now))
        before = {quota: self._quotas.pop(quota) for quota in found.versions}
        existing, stood = await store.submit_and_admit(creations, found, now)
        if not stood:
            return Written(creations, existing)
        written = found.written(creations)
        if any(existing):  # these took no room, so it is not known what there is
            return Written(written, existing)
        for quota, known in before.items():
            self._quotas[quota] = _after(known, found, quota, now)
        return Written(written, existing, found.full)


def _may_be_admitted(creations: Sequence[Creation]) -> bool:
    """Whether one of these can be, and none may have to wait for another session: the lock on a
    quota must not be held for that long."""
    return all([each.minted and each.key is None and not each.steps for each in creations]) and any(
        waits_at_limit(each.snapshot) for each in creations
    )


def _after(known: KnownQuota, found: Admissions, quota: str, now: Millis) -> KnownQuota:
    """What is known when these have been written."""
    taken = found.taken[quota]
    for queue, count in taken.items():
        known.room[queue] -= count
    turn = turn_of(known.turn, now) if taken else known.turn
    return KnownQuota(known.version + 1, turn, known.room)
