"""Group commit: calls that arrive during a flush share the next one.

There is no timer. An idle caller's item goes at once; a busy moment makes larger batches by itself.
Each caller waits only for its own item, and cancelling one caller does not affect the others: the
flush runs in the batcher's own task.

Callers that wait for one another's flushes fall into step: a hundred that submit, run and complete
all submit at once, then all complete at once, and while the database works the process does
nothing, and the other way round. A batcher with `halves` notices that (it was idle for longer than
its last flush took) and flushes half of what waits: from then on one half is prepared while the
other is written. That takes more statements, so it pays only while there is a processor for each of
the two (`cores`).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from time import monotonic
from typing import Generic, TypeVar

from flowfabric.core.base.errors import FlowFabricError, Invalid, Locked, Overloaded
from flowfabric.engine.access.actor import detached
from flowfabric.engine.commit.cores import Cores
from flowfabric.engine.commit.observer import watching

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_ITEMS = 500
MAX_BYTES = 4 << 20
CAPACITY = 50_000
FEW = 64
"""So many are never halved: a statement has a price of its own."""
IDLE = 1.5
"""A batcher is out of work when it was idle for so many times its last flush."""

Flush = Callable[[list[Item]], Awaitable[Sequence[Answer | Exception]]]


def _nothing(item: object) -> tuple[Hashable, ...]:
    return ()


def _weightless(item: object) -> int:
    return 0


class Batcher(Generic[Item, Answer]):
    """Collects items of one kind and flushes them with at most one flush in flight.

    `flush` answers for every item in order; an answer that is an exception is raised for that
    item's caller alone. `keys` names what must not occur twice in one batch: the second item
    rides the next one. `halves` is for a database that works in a process of its own.
    """

    def __init__(
        self,
        name: str,
        flush: Flush[Item, Answer],
        *,
        keys: Callable[[Item], tuple[Hashable, ...]] = _nothing,
        weight: Callable[[Item], int] = _weightless,
        capacity: int = CAPACITY,
        halves: bool = False,
    ) -> None:
        self.name = name
        self._flush = flush
        self._keys = keys
        self._weight = weight
        self._has_keys = keys is not _nothing
        self._is_plain = keys is _nothing and weight is _weightless
        self._capacity = capacity
        self._cores = Cores() if halves else None
        self._flushed_at = self._took = 0.0
        self._queue: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._alone: set[asyncio.Task[None]] = set()

    def put(self, item: Item) -> "asyncio.Future[Answer]":
        """Queues an item; the future is done when the item is durable or refused."""
        if len(self._queue) >= self._capacity:
            raise Overloaded(
                f"{len(self._queue)} calls wait for the store ({self.name})", retry_after=0.1
            )
        if self._task is None:
            self._task = asyncio.create_task(
                self._run(), name=f"flowfabric-{self.name}", context=detached()
            )
        # The running loop could be asked for as well, but each time that is a call of the system.
        future: asyncio.Future[Answer] = self._task.get_loop().create_future()
        self._queue.append((item, future))
        return future

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or under way."""
        return self._task is None and not self._queue and not self._alone

    async def drain(self) -> None:
        """Returns when everything queued so far was flushed."""
        while tasks := {*self._alone, *([] if self._task is None else [self._task])}:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        try:
            while self._queue:
                began = monotonic()
                batch = self._next_batch(self._most(began))
                await self._flush_one(batch)
                self._flushed_at = monotonic()
                self._took = self._flushed_at - began
                watching().flushed(self.name, len(batch), self._took)
        except BaseException:  # the loop ends: what waits is not flushed any more
            _abandon(self._queue)
            self._queue.clear()
            raise
        finally:
            self._task = None

    def _most(self, now: float) -> int:
        """How many items the next batch may have."""
        waiting = len(self._queue)
        if self._cores is None or waiting <= FEW or self._cores.crowded():
            return MAX_ITEMS
        out_of_work = now - self._flushed_at > self._took * IDLE
        return min(MAX_ITEMS, (waiting + 1) // 2) if out_of_work else MAX_ITEMS

    async def _flush_one(self, batch: list[tuple[Item, "asyncio.Future[Answer]"]]) -> None:
        try:
            answers = await self._flush([item for item, _ in batch])
        except (Invalid, Locked) as error:
            if len(batch) > 1:
                # Something in it cannot be written, or not yet. What can be was; asking again one
                # by one is harmless and tells each caller about its own item. Side by side: none
                # waits for the one that waits.
                for entry in batch:
                    task = asyncio.create_task(self._flush_one([entry]))
                    self._alone.add(task)
                    task.add_done_callback(self._alone.discard)
                return
            answers = [error]
        except Exception as error:
            answers = [error] * len(batch)
        except BaseException:
            _abandon(batch)
            raise
        for (_, future), answer in zip(batch, answers, strict=True):
            _settle(future, answer)

    def _next_batch(self, most: int) -> list[tuple[Item, "asyncio.Future[Answer]"]]:
        if self._is_plain:
            return [self._queue.popleft() for _ in range(min(most, len(self._queue)))]
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        later: list[tuple[Item, asyncio.Future[Answer]]] = []
        seen: set[Hashable] = set()
        size = 0
        # Not through the whole queue for one item, when many thousands share a key.
        while self._queue and len(batch) < most and len(later) < MAX_ITEMS:
            entry = self._queue.popleft()
            weight = self._weight(entry[0])
            if batch and size + weight > MAX_BYTES:
                later.append(entry)
                break
            if self._has_keys:
                keys = self._keys(entry[0])
                if not seen.isdisjoint(keys):
                    later.append(entry)
                    continue
                seen.update(keys)
            size += weight
            batch.append(entry)
        self._queue.extendleft(reversed(later))
        return batch


def _settle(future: "asyncio.Future[Answer]", answer: Answer | Exception) -> None:
    if future.done():  # its caller was cancelled; the item was written all the same
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _abandon(batch: Iterable[tuple[Item, "asyncio.Future[Answer]"]]) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(FlowFabricError("the engine was stopped; the effect is unknown"))
            future.exception()  # seen: a caller that is gone must not cause a warning
