"""Waiting for the end of runs and flows: however many callers wait, one query per hint answers all
of them."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from flowfabric.core.base.errors import Corruption, NotFound, Unavailable
from flowfabric.core.execution.model import Ended, Snapshot
from flowfabric.core.flow.model import Flow
from flowfabric.engine.commit.background import Background
from flowfabric.engine.commit.post_commit import Commit
from flowfabric.engine.execution.inbox import Inbox
from flowfabric.store.contract import MAX_BATCH, Store
from flowfabric.store.hints import Topic
from flowfabric.store.readable import load_each
from flowfabric.store.rows.record import FLOWS

T = TypeVar("T")

POLL_FLOOR = 1.0
LONGEST_REST = 0.05

log = logging.getLogger("flowfabric.watcher")


class Awaited(Protocol[T]):
    """What callers wait for, and how the store is asked about it. `rest` is how many seconds pass
    at least between two looks that hints ask for."""

    noun: str
    rest: float

    def id_of(self, found: T) -> object: ...

    def has_ended(self, found: T) -> bool: ...

    async def look(
        self, uuids: Sequence[UUID], *, whole: bool
    ) -> Mapping[UUID, T | Corruption | None]:
        """Those that have ended, or with `whole` all of them as they stand; None: not there."""

    def ended_by(self, commit: Commit) -> Mapping[UUID, T | None]:
        """What a commit of this process has ended; None: it has to be looked at."""


class AwaitedRuns:
    noun = "execution"
    rest = 0.0

    def __init__(self, store: Store, inbox: Inbox) -> None:
        self._store = store
        self._inbox = inbox

    def id_of(self, found: Snapshot) -> object:
        return found.execution.id

    def has_ended(self, found: Snapshot) -> bool:
        return isinstance(found.state, Ended)

    async def look(
        self, uuids: Sequence[UUID], *, whole: bool
    ) -> Mapping[UUID, Snapshot | Corruption | None]:
        wanted = list(uuids) if whole else list(await self._store.ended(uuids))
        found = await load_each(self._inbox.load, wanted) if wanted else {}
        return {uuid: found.get(uuid) for uuid in wanted}

    def ended_by(self, commit: Commit) -> Mapping[UUID, Snapshot | None]:
        return dict.fromkeys(commit.ended)


class AwaitedFlows:
    noun = "flow"
    rest = 0.02
    """Every ending of any run is a hint; flows end less often, and most of them in this process."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def id_of(self, found: Flow) -> object:
        return found.id

    def has_ended(self, found: Flow) -> bool:
        return found.ended_at is not None

    async def look(
        self, uuids: Sequence[UUID], *, whole: bool
    ) -> Mapping[UUID, Flow | Corruption | None]:
        found = await self._store.records.get(FLOWS, uuids)
        return {uuid: found.get(uuid) for uuid in uuids}

    def ended_by(self, commit: Commit) -> Mapping[UUID, Flow | None]:
        return {flow.id: flow for flow in commit.ended_flows}


class Watcher(Generic[T]):
    def __init__(self, store: Store, awaited: Awaited[T]) -> None:
        self._store = store
        self._awaited = awaited
        self._waiters: dict[UUID, dict[asyncio.Future[T], object]] = {}
        self._nudged: set[UUID] = set()
        self._nudge = asyncio.Event()
        self._turn = 0
        self._own_hints = 0
        self._background = Background(f"waiting for the end of a {awaited.noun}", log)

    async def end_of(self, id: object, uuid: UUID) -> T:
        """What `id` names, once it has ended. NotFound if there is nothing of that very id."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(uuid, {})[future] = id
        self._look_soon([uuid])
        if not self._background:
            self._background.start(self._watch)
        try:
            return await future
        finally:
            self._forget(uuid, future)

    def committed(self, commit: Commit) -> None:
        """What this process ended itself is answered at once: its own hints need no look."""
        self._own_hints += bool(commit.topics)
        if not self._waiters:
            return
        for uuid, found in self._awaited.ended_by(commit).items():
            if uuid not in self._waiters:
                continue
            if found is None:
                self._look_soon([uuid])
            else:
                self._tell(uuid, found)

    async def close(self) -> None:
        await self._background.cancel()
        self._fail(list(self._waiters), Unavailable("the engine was closed"))

    def _look_soon(self, uuids: Sequence[UUID]) -> None:
        self._nudged.update(uuids)
        self._nudge.set()

    async def _watch(self) -> None:
        seen, rests_until = self._others_hints, 0.0
        while self._waiters:
            if self._nudged:
                nudged, self._nudged = self._nudged, set()
                await self._look_at([uuid for uuid in nudged if uuid in self._waiters])
                continue
            await self._pause(rests_until - time.monotonic(), None)
            hinted = await self._hinted(seen)
            if self._nudged:
                continue
            seen, began = self._others_hints, time.monotonic()
            await self._look(everywhere=not hinted)
            # However many wait and however often others hint: no more than half the time.
            ended = time.monotonic()
            rests_until = ended + max(self._awaited.rest, min(LONGEST_REST, ended - began))

    @property
    def _others_hints(self) -> int:
        """How many hints there were that are not about commits of this process."""
        return self._store.hints.count - self._own_hints

    async def _hinted(self, seen: int) -> bool:
        """Waits for a nudge, or for a hint of others (after there were `seen`: True), at most until
        the poll floor."""
        floor = time.monotonic() + POLL_FLOOR
        while not self._nudged and seen == self._others_hints:
            if (left := floor - time.monotonic()) <= 0:
                return False
            await self._pause(left, self._store.hints.count)
        return not self._nudged

    async def _pause(self, seconds: float, seen: int | None) -> bool:
        """Until a nudge, or (with `seen`) a hint, or `seconds`; True when it was a hint."""
        if seconds <= 0:
            return False
        self._nudge.clear()
        nudge = asyncio.ensure_future(self._nudge.wait())
        hint = asyncio.ensure_future(
            asyncio.sleep(seconds, False)
            if seen is None
            else self._store.hints.wait(seconds, seen, Topic.ENDINGS)
        )
        try:
            await asyncio.wait({nudge, hint}, return_when=asyncio.FIRST_COMPLETED)
            return hint.done() and not hint.cancelled() and not hint.exception() and hint.result()
        finally:
            nudge.cancel()
            hint.cancel()

    async def _look(self, *, everywhere: bool) -> None:
        """Asks which of the awaited ones have ended: after a hint the oldest first, as long as
        that finds any, and one page more in turn; everywhere at the poll floor."""
        awaited = list(self._waiters)
        pages = [awaited[start : start + MAX_BATCH] for start in range(0, len(awaited), MAX_BATCH)]
        self._turn += 1
        fruitful = True
        for number, page in enumerate(pages):
            in_turn = number == self._turn % len(pages)
            if everywhere or fruitful or in_turn:
                ended = await self._look_at(page, whole=everywhere and in_turn)
                fruitful = fruitful and ended

    async def _look_at(self, uuids: Sequence[UUID], *, whole: bool = True) -> bool:
        """Answers callers that wait for these; True if any of them has ended."""
        ended = False
        for start in range(0, len(uuids), MAX_BATCH):
            page = uuids[start : start + MAX_BATCH]
            try:
                answers = await self._awaited.look(page, whole=whole)
            except Exception as error:
                self._fail(page, error)
                continue
            for uuid, answer in answers.items():
                if isinstance(answer, Corruption):
                    self._fail([uuid], answer)
                else:
                    ended = self._tell(uuid, answer) or ended
        return ended

    def _tell(self, uuid: UUID, found: T | None) -> bool:
        """Answers callers if it has ended or is not there; True if it has ended."""
        ended = found is not None and self._awaited.has_ended(found)
        for future, id in self._waiters.get(uuid, {}).items():
            if future.done():
                continue
            if found is None or self._awaited.id_of(found) != id:
                future.set_exception(NotFound(self._awaited.noun, id))
            elif ended:
                future.set_result(found)
        return ended

    def _fail(self, uuids: Sequence[UUID], error: Exception) -> None:
        for uuid in uuids:
            for future in self._waiters.get(uuid, ()):
                if not future.done():
                    future.set_exception(error)

    def _forget(self, uuid: UUID, future: "asyncio.Future[T]") -> None:
        waiters = self._waiters.get(uuid)
        if waiters is not None:
            waiters.pop(future, None)
            if not waiters:
                del self._waiters[uuid]
