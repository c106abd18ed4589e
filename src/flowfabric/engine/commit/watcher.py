"""Waiting for executions to end: however many callers wait, one query per hint answers all."""

import asyncio
import time
from collections.abc import Iterable
from itertools import islice
from uuid import UUID

from flowfabric.core.base.errors import Corruption, NotFound, Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.model import Ended, Snapshot
from flowfabric.engine.execution.inbox import Inbox
from flowfabric.store.contract import MAX_BATCH, Store
from flowfabric.store.readable import load_each

POLL_FLOOR = 1.0
LONGEST_REST = 0.05


class Waiting:
    def __init__(self, store: Store, inbox: Inbox) -> None:
        self._store = store
        self._inbox = inbox
        self._waiters: dict[UUID, dict[asyncio.Future[Snapshot], ExecutionId]] = {}
        self._nudged: set[UUID] = set()
        self._nudge = asyncio.Event()
        self._turn = 0
        self._task: asyncio.Task[None] | None = None

    async def end_of(self, id: ExecutionId) -> Snapshot:
        """The execution once it has ended. NotFound if it does not exist."""
        uuid = id.uuid
        future: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(uuid, {})[future] = id
        self._nudged.add(uuid)
        self._nudge.set()
        if self._task is None:
            self._task = asyncio.create_task(self._watch(), name="flowfabric-waiting")
        try:
            return await future
        finally:
            self._forget(uuid, future)

    def ended(self, uuids: Iterable[UUID]) -> None:
        """This process ended these: whoever waits for one of them is answered at once."""
        mine = [uuid for uuid in uuids if uuid in self._waiters]
        if mine:
            self._nudged.update(mine)
            self._nudge.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._fail(list(self._waiters), Unavailable("the engine was closed"))

    async def _watch(self) -> None:
        try:
            seen = self._store.hints.count
            while self._waiters:
                if self._nudged:
                    await self._answer(self._take_nudged())
                    continue
                hinted = await self._pause(POLL_FLOOR, seen)
                if self._nudged:
                    continue
                seen = self._store.hints.count
                began = time.monotonic()
                await self._look(everywhere=not hinted)
                # However many wait and however often others hint: no more than half the time.
                await self._pause(min(LONGEST_REST, time.monotonic() - began), None)
        finally:
            self._task = None

    async def _pause(self, seconds: float, seen: int | None) -> bool:
        """Until a nudge, or (with `seen`) a hint, or `seconds`; True when it was a hint."""
        self._nudge.clear()
        nudge = asyncio.ensure_future(self._nudge.wait())
        hint = asyncio.ensure_future(
            asyncio.sleep(seconds, False) if seen is None else self._store.hints.wait(seconds, seen)
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
                ended = await self._ended(page)
                fruitful = fruitful and bool(ended)
                await self._answer(page if everywhere and in_turn else list(ended))

    async def _ended(self, uuids: list[UUID]) -> set[UUID]:
        try:
            return await self._store.ended(uuids)
        except Exception as error:
            self._fail(uuids, error)
            return set()

    def _take_nudged(self) -> list[UUID]:
        nudged, self._nudged = self._nudged, set()
        return [uuid for uuid in nudged if uuid in self._waiters]

    async def _answer(self, uuids: list[UUID]) -> None:
        rest = iter(uuids)
        while page := list(islice(rest, MAX_BATCH)):
            try:
                found = await load_each(self._inbox.load, page)
            except Exception as error:
                self._fail(page, error)
                continue
            for uuid in page:
                answer = found.get(uuid)
                if isinstance(answer, Corruption):
                    self._fail([uuid], answer)
                else:
                    self._tell(uuid, answer)

    def _tell(self, uuid: UUID, snapshot: Snapshot | None) -> None:
        for future, id in self._waiters.get(uuid, {}).items():
            if future.done():
                continue
            if snapshot is None or snapshot.execution.id != id:
                future.set_exception(NotFound("execution", id))
            elif isinstance(snapshot.state, Ended):
                future.set_result(snapshot)

    def _fail(self, uuids: list[UUID], error: Exception) -> None:
        for uuid in uuids:
            for future in self._waiters.get(uuid, ()):
                if not future.done():
                    future.set_exception(error)

    def _forget(self, uuid: UUID, future: "asyncio.Future[Snapshot]") -> None:
        waiters = self._waiters.get(uuid)
        if waiters is not None:
            waiters.pop(future, None)
            if not waiters:
                del self._waiters[uuid]
