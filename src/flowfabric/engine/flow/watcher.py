"""Waiting for flows to end: however many callers wait, one query per hint answers all. What this
process ends itself is told without any."""

import asyncio
import time
from uuid import UUID

from flowfabric.core.base.errors import NotFound, Unavailable
from flowfabric.core.flow.model import Flow
from flowfabric.store.contract import MAX_BATCH, Store
from flowfabric.store.rows.record import FLOWS

POLL_FLOOR = 1.0
REST = 0.02
"""Hints come with every ending of anything; flows end more seldom, and most in this process."""


class FlowWaiting:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: dict[UUID, set[asyncio.Future[Flow]]] = {}
        self._fresh: set[UUID] = set()
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def end_of(self, id: UUID) -> Flow:
        """The flow once it has ended. NotFound if there is none."""
        future: asyncio.Future[Flow] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(id, set()).add(future)
        self._fresh.add(id)
        self._came.set()
        if self._task is None:
            self._task = asyncio.create_task(self._watch(), name="flowfabric-flow-waiting")
        try:
            return await future
        finally:
            self._forget(id, future)

    def ended(self, flow: Flow) -> None:
        """This process has written that it ended."""
        self._tell(flow.id, flow)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._fail(list(self._waiters), Unavailable("the engine was closed"))

    async def _watch(self) -> None:
        try:
            seen, rested = self._store.hints.count, 0.0
            while self._waiters:
                if self._fresh:
                    fresh, self._fresh = self._fresh, set()
                    await self._look([id for id in fresh if id in self._waiters])
                    continue
                await self._pause(rested - time.monotonic(), None)
                if not self._fresh:
                    await self._pause(POLL_FLOOR, seen)
                if not self._fresh:
                    seen = self._store.hints.count
                    await self._look(list(self._waiters))
                    rested = time.monotonic() + REST
        finally:
            self._task = None

    async def _look(self, awaited: list[UUID]) -> None:
        for start in range(0, len(awaited), MAX_BATCH):
            page = awaited[start : start + MAX_BATCH]
            try:
                found = await self._store.records.get(FLOWS, page)
            except Exception as error:
                self._fail(page, error)
                continue
            for id in page:
                self._tell(id, found.get(id))

    async def _pause(self, seconds: float, seen: int | None) -> None:
        """Until somebody else begins to wait, or `seconds`; with `seen` also until a hint."""
        if seconds <= 0:
            return
        self._came.clear()
        waits: list[asyncio.Future[bool]] = [asyncio.ensure_future(self._came.wait())]
        if seen is not None:
            waits.append(asyncio.ensure_future(self._store.hints.wait(seconds, seen)))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _tell(self, id: UUID, flow: Flow | None) -> None:
        for future in self._waiters.get(id, ()):
            if future.done():
                continue
            if flow is None:
                future.set_exception(NotFound("flow", id))
            elif flow.ended_at is not None:
                future.set_result(flow)

    def _fail(self, ids: list[UUID], error: Exception) -> None:
        for id in ids:
            for future in self._waiters.get(id, ()):
                if not future.done():
                    future.set_exception(error)

    def _forget(self, id: UUID, future: "asyncio.Future[Flow]") -> None:
        waiters = self._waiters.get(id, set())
        waiters.discard(future)
        if not waiters:
            self._waiters.pop(id, None)
