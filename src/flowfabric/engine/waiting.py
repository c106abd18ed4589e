"""Waiting for executions to end: however many callers wait, one query per hint answers all."""

import asyncio
from collections.abc import Iterable
from itertools import islice
from uuid import UUID

from flowfabric.core.errors import NotFound, Unavailable
from flowfabric.core.execution import Ended, Snapshot
from flowfabric.core.ids import ExecutionId
from flowfabric.engine.arrivals import Arrivals
from flowfabric.store.contract import MAX_BATCH, Store

POLL_FLOOR = 1.0


class Waiting:
    def __init__(self, store: Store, arrivals: Arrivals) -> None:
        self._store = store
        self._arrivals = arrivals
        self._waiters: dict[UUID, dict[asyncio.Future[Snapshot], ExecutionId]] = {}
        self._nudged: set[UUID] = set()
        self._nudge = asyncio.Event()
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
            while self._waiters:
                everything = not await self._pause()
                wanted = list(self._waiters) if everything else self._take_nudged()
                await self._answer(wanted)
        finally:
            self._task = None

    async def _pause(self) -> bool:
        """True when only the nudged ones need a look, False after a hint or the poll floor."""
        if self._nudged:
            return True
        self._nudge.clear()
        nudge = asyncio.ensure_future(self._nudge.wait())
        hint = asyncio.ensure_future(self._store.wait_hint(POLL_FLOOR))
        try:
            await asyncio.wait({nudge, hint}, return_when=asyncio.FIRST_COMPLETED)
            return nudge.done() and not hint.done()
        finally:
            nudge.cancel()
            hint.cancel()

    def _take_nudged(self) -> list[UUID]:
        nudged, self._nudged = self._nudged, set()
        return [uuid for uuid in nudged if uuid in self._waiters]

    async def _answer(self, uuids: list[UUID]) -> None:
        rest = iter(uuids)
        while page := list(islice(rest, MAX_BATCH)):
            try:
                found = await self._arrivals.load(page)
            except Exception as error:
                self._fail(page, error)
                continue
            for uuid in page:
                self._tell(uuid, found.get(uuid))

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
