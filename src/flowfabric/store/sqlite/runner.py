"""The threads that work on the database: whatever is queued shares one transaction.

There is one runner that writes and one that reads. Operations are plain functions of a session;
they may be run again, so all they leave behind is their answer and rows of the transaction.
"""

import asyncio
import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from traceback import clear_frames
from typing import Any, Protocol, TypeVar

from flowfabric.core.base.errors import Unavailable
from flowfabric.store.sqlite.connection import OpenFile, busy, translate
from flowfabric.store.sqlite.session import SqliteSession

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds to wait for another process before giving up."""

MAX_JOBS = 512
"""The most operations of one transaction, so that the lock is not held for long."""

_log = logging.getLogger(__name__)
_jitter = random.Random()  # noqa: S311 - spreads retries, protects nothing


class Job:
    """One operation under way, and where its answer goes."""

    __slots__ = ("error", "future", "loop", "result", "urgent", "work")

    def __init__(self, work: Callable[[SqliteSession], Any], urgent: bool) -> None:
        self.work = work
        self.urgent = urgent
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: Exception | None = None


class Watch(Protocol):
    """What happens around the transactions of a runner."""

    def before(self) -> None: ...
    def begun(self, session: SqliteSession) -> None: ...
    def ended(self, session: SqliteSession) -> None: ...
    def idle(self, session: SqliteSession) -> None: ...
    def pulse(self) -> float | None: ...


class NoWatch:
    """Nothing around the transactions of a runner that only reads."""

    def before(self) -> None: ...
    def begun(self, session: SqliteSession) -> None: ...
    def ended(self, session: SqliteSession) -> None: ...
    def idle(self, session: SqliteSession) -> None: ...
    def pulse(self) -> float | None:
        return None


class Runner:
    """Runs operations on one session: in a thread of its own, or inline in the caller."""

    def __init__(
        self, session: SqliteSession, path: str, begin: str, watch: Watch, file: OpenFile
    ) -> None:
        self.session = session
        self._path = path
        self._file = file
        self._begin = begin
        self._watch = watch
        self._pid = os.getpid()
        self._queue: SimpleQueue[Job | Callable[[SqliteSession], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self, name: str) -> None:
        """From now on a thread does the work; without it, every call does its own."""
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[SqliteSession], T], *, urgent: bool = False) -> T:
        """The answer of `work`, once everything it wrote is durable."""
        self._check_open()
        job = Job(work, urgent)
        if self._thread is None:
            self._commit([job])
            _settle([job])
        else:
            self._queue.put(job)
        result: T = await job.future
        return result

    def post(self, task: Callable[[SqliteSession], None]) -> None:
        """Runs `task` soon, outside any transaction; no caller waits for it."""
        if self._thread is None:
            self._attempt(task)
        else:
            self._queue.put(task)

    def nudge(self) -> None:
        """Has the thread ask its watch again how long it may sleep."""
        self._queue.put(_wake)

    async def close(self) -> None:
        """Finishes what is queued, then closes the connection. A call that was cancelled
        meanwhile can be repeated."""
        first, self._closed = not self._closed, True
        if self._thread is not None and self._pid == os.getpid():
            if first:
                self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
        self.session.connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"{self._path} was closed")
        if self._pid != os.getpid():
            raise Unavailable(
                f"{self._path} was opened before this process was forked; open it again"
            )

    # -- in the thread

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            jobs = [item for item in batch if isinstance(item, Job)]
            if jobs:
                self._commit(jobs)
                _deliver(jobs)
            for item in batch:
                if not isinstance(item, Job):
                    self._attempt(item)

    def _next_batch(self) -> "list[Job | Callable[[SqliteSession], None]] | None":
        """Everything queued, at least one item; None when the runner is to stop."""
        first = self._wait()
        if first is None:
            return None
        batch = [first]
        with suppress(Empty):
            while len(batch) < MAX_JOBS:
                item = self._queue.get_nowait()
                if item is None:
                    self._queue.put(None)
                    break
                batch.append(item)
        return batch

    def _wait(self) -> "Job | Callable[[SqliteSession], None] | None":
        while True:
            with suppress(Empty):
                return self._queue.get(timeout=self._watch.pulse())
            self._attempt(self._watch.idle)

    def _commit(self, jobs: list[Job]) -> None:
        """Runs the jobs in one transaction, or, when that fails, each in its own."""
        jobs.sort(key=_by_urgency)
        try:
            patiently(lambda: self._transaction(jobs))
        except Exception as error:
            if len(jobs) == 1 or busy(error):
                for job in jobs:
                    job.error = translate(error, self._path)
                return
            for job in jobs:
                self._commit([job])

    def _transaction(self, jobs: Sequence[Job]) -> None:
        session = self.session
        self._file.check()
        self._watch.before()
        session.connection.execute(self._begin)
        try:
            self._watch.begun(session)
            for job in jobs:
                job.result = job.work(session)
            session.connection.execute("commit")
        except BaseException as error:
            session.registry.forget()
            _close_cursors(error)
            if session.connection.in_transaction:
                session.connection.execute("rollback")
            raise
        session.registry.keep()
        self._file.check()  # before a caller hears that it is durable
        self._watch.ended(session)

    def _attempt(self, task: Callable[[SqliteSession], None]) -> None:
        """Runs a task that no caller waits for; if it fails, it is tried again later."""
        with suppress(Exception):
            task(self.session)


def patiently(work: Callable[[], T]) -> T:
    """Tries again, a little later and not in step with others, while the file is locked."""
    start, told = time.monotonic(), False
    while True:
        try:
            return work()
        except sqlite3.Error as error:
            waited = time.monotonic() - start
            if not busy(error) or waited > PATIENCE:
                raise
        if waited > 1 and not told:
            _log.warning(
                "another process has kept the database locked for a second; trying again. "
                "`flowfabric doctor` names it."
            )
            told = True
        time.sleep(_jitter.uniform(0.0002, 0.002))


def _close_cursors(error: BaseException) -> None:
    """Lets go of what an operation had in hand when it failed. A cursor that was not read to its
    end keeps the transaction open, and the connection would see the past from then on."""
    seen: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and each not in seen:
            seen.append(each)
            clear_frames(each.__traceback__)
            left += [each.__cause__, each.__context__]


def _wake(_: SqliteSession) -> None:
    """Does nothing: its arrival ends the wait."""


def _by_urgency(job: Job) -> bool:
    return not job.urgent


def _deliver(jobs: Sequence[Job]) -> None:
    """Hands the answers back, with one wake-up for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, settled in by_loop.items():
        # A closed loop has no waiting callers.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, settled)


def _settle(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)
