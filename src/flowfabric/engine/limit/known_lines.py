"""What this process knows of lines, and submissions that use it: a run that finds room is admitted
in the commit that creates it, and a run that finds its line full is not followed by a look at that
line."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.submission import Creation
from flowfabric.core.limit.at_submission import Admissions, at_submission, waits_at_limit
from flowfabric.core.limit.known_quota import KnownQuota
from flowfabric.core.limit.quota import Uses
from flowfabric.core.limit.release import QuotaView, Release, turn_of
from flowfabric.core.limit.unclaimable import Unclaimable
from flowfabric.engine.commit.observer import watching
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.limit.unclaimable import ClosedRoutes
from flowfabric.store.queries import LinesRequest, OtherVersion, ServedLines

MAX_LINES = 100_000
PATIENCE = 0.1
"""Seconds that a submission waits at most for a look that is under way."""

LineEvent = Callable[[KnownQuota, Collection[int]], None]
"""A method of `KnownQuota`: `give_back`, `wait`, or `forget`."""

log = logging.getLogger("flowfabric.limits")


class Written(Struct, frozen=True):
    """New runs as they were written, and of each the id of the execution that was there already.
    Lines of runs in `full`, by the numbers of their ids, need no look."""

    snapshots: Sequence[Snapshot]
    existing: Sequence[ExecutionId | None]
    full: Collection[int] = frozenset()


class KnownLines(Service):
    """Knows which queues the store has rows of, and the room of lines of quotas that limit keys
    only (`core.limit.known_quota`).

    Looks at lines and submissions take turns (`turns`), so that each knows what the one before has
    left; a look at all lines, which `Releases` decides, takes its turn as well. Endings do not
    wait for a turn: `looks` tells which came between.
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
        self.looks = 0
        """How many looks were answered."""
        self.contested: set[str] = set()
        """Quotas that other processes may have moved."""

    def meet(self, queues: Mapping[int, Uses]) -> list[Uses]:
        """Notes the queues of executions; the uses of those that are new to this process."""
        new = {queue: queues[queue] for queue in queues.keys() - self._introduced if queues[queue]}
        self._new |= new
        return list(new.values())

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

    def note(self, quota: str, queues: Collection[int], event: LineEvent) -> None:
        """Notes what has happened in these lines."""
        if (known := self._quotas.get(quota)) is not None:
            event(known, queues)

    async def serve(
        self, quota: str, queues: Sequence[int], now: Millis, most: int, closed: Unclaimable
    ) -> ServedLines | None:
        """Looks at these lines as far as that is needed, and moves the version in any case: another
        process may know a line as full in which there is room now."""
        async with self.turns:
            while True:
                known = self._quotas.setdefault(quota, KnownQuota())
                if len(known.room) > MAX_LINES:
                    known = self._quotas[quota] = KnownQuota()
                asked = known.ask(queues)
                shut = closed.closed, closed.draining
                ask = LinesRequest(quota, asked, known.version or None, now, most, *shut)
                served = await self._context.store.serve(ask)
                if isinstance(served, OtherVersion):
                    self.forget(quota)
                    continue
                if served is None:  # it is gone, or has other limits
                    self.forget(quota)
                else:
                    self._learn(known, asked, served)
                return served

    def _learn(
        self, known: KnownQuota, asked: Mapping[int, int | None], served: ServedLines
    ) -> None:
        self.looks += 1
        known.learn(asked, served.room, served.left, self.looks)
        known.version, known.turn = served.version, max(known.turn, served.turn)
        if not served.moved and any(room <= 0 for room in served.room.values()):
            watching().refused_by_quota("concurrency")

    def released(self, release: Release, *, keep: bool) -> None:
        """Forgets the quotas of a release that has looked at all lines: if a key has two lines, it
        may have given the room of one to the other, and a line in which no run waits may have room
        that it did not see. With `keep`, each key has one line, and lines that have room again are
        looked at next: then only the lines that were served are forgotten."""
        for quota, version in release.versions.items():
            known = self._quotas.get(quota)
            if not keep or known is None or known.version != version:
                self.forget(quota)
                continue
            known.forget([queue for name, queue in release.turns if name == quota])
            known.version += 1

    async def looked(self, view: QuotaView, *, keep: bool) -> bool:
        """Moves the versions after a look at all lines that admits no run, as `serve` does: another
        process may know a line as full in which there is room now. False if a rival was faster."""
        versions = {name: quota.version for name, quota in view.quotas.items() if quota.only_keys}
        if not versions:
            return True
        looked = Release(versions=versions)
        moved = await self._context.store.release(looked)
        if moved is None:
            return False
        self.released(looked, keep=keep and not moved.repeated)
        return True

    def forget(self, quota: str) -> None:
        self._quotas.pop(quota, None)
        self.contested.add(quota)

    async def submit(self, creations: Sequence[Creation], now: Millis) -> Written:
        """Writes new runs, and admits those that find room."""
        snapshots = [creation.snapshot for creation in creations]
        if not self._quotas or not _may_be_admitted(creations) or not await self._my_turn():
            return Written(snapshots, await self._context.store.submit(creations, now))
        try:
            return await self._submit(creations, snapshots, now)
        finally:
            self.turns.release()

    async def _my_turn(self) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                return await self.turns.acquire()
        except TimeoutError:
            return False

    async def _submit(
        self, creations: Sequence[Creation], snapshots: Sequence[Snapshot], now: Millis
    ) -> Written:
        self._closed.meet([each.execution.route for each in snapshots])
        found = at_submission(snapshots, now, self._quotas, self._closed.known.routes)
        store = self._context.store
        if not found.versions:
            return Written(snapshots, await store.submit(creations, now))
        for quota, lines in found.taken.items():
            self._quotas[quota].take(lines, found.waiting[quota])
        stood = False
        try:
            existing, stood = await store.submit_and_admit(creations, found, now)
        finally:
            self._learn_admitted(found, now, stands=stood and not any(existing))
        if not stood:
            return Written(snapshots, existing)
        if found.full:
            watching().refused_by_quota("concurrency")
        full = frozenset[int]() if any(existing) else found.full
        return Written(found.written(snapshots), existing, full)

    def _learn_admitted(self, found: Admissions, now: Millis, *, stands: bool) -> None:
        """If some existed before, they took no room, and it is not known what there is."""
        for quota, lines in found.taken.items():
            if not stands:
                self.forget(quota)
            elif (known := self._quotas.get(quota)) is not None:
                known.version += 1
                if lines:
                    known.turn = turn_of(known.turn, now)


def _may_be_admitted(creations: Sequence[Creation]) -> bool:
    """Whether one of these can be, and none may have to wait for another session: the lock on a
    quota must not be held for that long."""
    return all([each.minted and each.key is None and not each.steps for each in creations]) and any(
        waits_at_limit(each.snapshot) for each in creations
    )
