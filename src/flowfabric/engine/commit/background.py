"""Work beside the callers: tasks that are kept until they end, and whose failures are logged."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Generic, TypeVar

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.engine.access.actor import detached

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

Work = Callable[[], Awaitable[object]]


def begun(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """A task that its caller awaits later. If it never does, an error causes no warning."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


class Background:
    """Tasks of one kind. `what` says in the log what failed, such as "resolving flow"; the sweep
    does again what failed here, so a failure costs time and nothing else."""

    def __init__(self, what: str, log: logging.Logger) -> None:
        self._what = what
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._keys: set[Hashable] = set()
        self._again: dict[Hashable, Work] = {}

    def __len__(self) -> int:
        """How many tasks are under way."""
        return len(self._tasks)

    def start(self, work: Work, about: object = "") -> "asyncio.Task[None]":
        """A task of its own for this work; the log names what it is about if it fails."""
        name = f"flowfabric {self._what}"
        task = asyncio.create_task(self._run(work, about), name=name, context=detached())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)  # also one that was cancelled unstarted
        return task

    def start_once(self, key: K, work: Work) -> None:
        """The same, one at a time for each key: asked for while it is under way the work is done
        once more afterwards, however often it was asked for."""
        if key in self._keys:
            self._again[key] = work
        else:
            self._keys.add(key)
            self.start(lambda: self._keyed(key, work), key)

    async def attempt(self, work: Awaitable[object], about: object = "") -> None:
        """Does the work here and now; a failure is logged and ends nothing."""
        what = f"{self._what} {about}" if about else self._what
        try:
            await work
        except FlowFabricError as error:
            self._log.warning("%s failed; the sweep tries again: %s", what, error)
        except Exception:
            self._log.exception("%s failed unexpectedly; the sweep tries again", what)

    async def drain(self) -> None:
        """Returns when nothing is under way any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """Ends everything that is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, work: Work, about: object) -> None:
        try:
            await self.attempt(work(), about)
        finally:
            # Here and not later: a caller that finds nothing under way starts the next task.
            with suppress(RuntimeError):  # there is no loop any more
                if (task := asyncio.current_task()) is not None:
                    self._tasks.discard(task)

    async def _keyed(self, key: K, work: Work) -> None:
        try:
            await work()
        finally:
            self._keys.discard(key)
            if (again := self._again.pop(key, None)) is not None:
                self.start_once(key, again)


class BackgroundBatches(Generic[K]):
    """One task that works on keys, many at a time, while there are any: those that come while a
    batch is under way are the next one."""

    def __init__(
        self,
        what: str,
        log: logging.Logger,
        work: Callable[[list[K]], Awaitable[object]],
        most: int,
    ) -> None:
        self._background = Background(what, log)
        self._work = work
        self._most = most
        self._pending: dict[K, None] = {}

    def __len__(self) -> int:
        return len(self._background)

    def add(self, keys: Iterable[K]) -> None:
        self._pending.update(dict.fromkeys(keys))
        if self._pending and not self._background:
            self._background.start(self._run)

    async def drain(self) -> None:
        await self._background.drain()

    async def _run(self) -> None:
        while self._pending:
            batch = list(islice(self._pending, self._most))
            for key in batch:
                del self._pending[key]
            await self._background.attempt(self._work(batch))
