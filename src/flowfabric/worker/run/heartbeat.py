"""One heartbeat for all leases of a worker, from a thread that user code cannot block.

The thread has its own event loop and its own way to the store, and only renews and looks. It
cannot beat C code that keeps the interpreter lock for longer than a lease. It also watches the
worker's event loop and says so when a handler blocks it.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.errors import Corruption, FlowFabricError, Locked, Unavailable
from flowfabric.core.base.pages import in_pages
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Active, Ended, Snapshot
from flowfabric.engine.commit.observer import watching
from flowfabric.store.clock import Clock
from flowfabric.store.contract import MAX_BATCH
from flowfabric.store.queries import Renewal
from flowfabric.store.readable import load_each, load_readable
from flowfabric.worker.run.cancelling import CancelNotice
from flowfabric.worker.run.lease import Key, Loss, WorkerLease

log = logging.getLogger("flowfabric.worker")

T = TypeVar("T")

BLOCKED_AFTER = 2.0
STOP_SECONDS = 1.0
LOOK_EVERY = 1.0
"""Seconds between two looks at a lease, so that the handler of a cancelled run stops soon."""


class LeaseKeeper(Protocol):
    """What a heartbeat renews leases with: a store, or a server in front of one."""

    @property
    def clock(self) -> Clock: ...

    async def renew(self, renewals: Sequence[Renewal], now: Millis) -> dict[UUID, Millis]: ...

    async def load(self, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]: ...

    async def close(self) -> None: ...


class _Lent(Struct):
    """What the worker's loop uses, seen from the heartbeat's thread."""

    store: LeaseKeeper
    loop: asyncio.AbstractEventLoop
    timeout: float

    @property
    def clock(self) -> Clock:
        return self.store.clock

    async def renew(self, renewals: Sequence[Renewal], now: Millis) -> dict[UUID, Millis]:
        return await self._there(self.store.renew(renewals, now))

    async def load(self, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        return await self._there(self.store.load(uuids))

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        asked = asyncio.run_coroutine_threadsafe(work, self.loop)
        async with asyncio.timeout(self.timeout):
            return await asyncio.wrap_future(asked)


class Heartbeat:
    """Renews every third of the lease. A lease that is gone, or that could not be renewed until a
    sixth before its end, is reported as lost in the worker's loop. `spare` is what the worker's
    loop uses: it renews where the heartbeat's own cannot be reached. If both are one, it is not the
    heartbeat that closes it."""

    def __init__(
        self,
        store: Callable[[], Awaitable[LeaseKeeper]],
        *,
        ttl: Millis,
        on_lost: Callable[[Key, Loss], None],
        on_cancelled: Callable[[Key, CancelNotice], None],
        spare: LeaseKeeper,
    ) -> None:
        self._open = store
        self._spare = spare
        self._ttl = ttl / 1000
        self._on_lost = on_lost
        self._on_cancelled = on_cancelled
        self._store: LeaseKeeper | None = None
        self._held: dict[Key, WorkerLease] = {}
        self._lock = threading.Lock()
        self._resting = False
        self._worker_loop = asyncio.get_running_loop()
        self._worker_thread = threading.get_ident()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._needed = asyncio.Event()
        self._ponged_at = time.monotonic()
        self._warned = False
        self._thread = threading.Thread(target=self._main, name="flowfabric-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        with suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._stopping.set)
        # No thread of the loop's pool: handlers may keep all of them.
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._ended.wait()
            self._thread.join(STOP_SECONDS)

    def hold(self, lease: WorkerLease) -> None:
        with self._lock:
            self._held[lease.key] = lease
            rested, self._resting = self._resting, False
        if rested:
            with suppress(RuntimeError):  # its loop is closed
                self._loop.call_soon_threadsafe(self._needed.set)

    def rest(self, key: Key) -> None:
        """Stops renewing this lease and looking at it. A transaction of the application has ended
        the run and keeps its row locked; a renewal would wait for it."""
        with self._lock:
            if (held := self._held.get(key)) is not None:
                held.resting = True

    def drop(self, key: Key) -> None:
        with self._lock:
            self._held.pop(key, None)

    # -- in the thread

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._beat())
        finally:
            with suppress(RuntimeError):  # the worker's loop is closed
                self._worker_loop.call_soon_threadsafe(self._ended.set)

    async def _beat(self) -> None:
        tasks = [asyncio.create_task(self._keep()), asyncio.create_task(self._watch())]
        await self._stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._store is not None and self._store is not self._spare:
            with suppress(FlowFabricError):
                await self._store.close()

    async def _keep(self) -> None:
        """Renews every third of a lease and looks in between, also after errors. Without leases
        nothing is kept, and there is no connection before the first one."""
        interval = self._ttl / 3
        next_beat = time.monotonic() + interval
        while True:
            if await self._rest():
                next_beat = time.monotonic() + interval
            await asyncio.sleep(max(0.001, min(LOOK_EVERY, next_beat - time.monotonic())))
            try:
                if time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + interval
                    await self._renew_somehow()
                await self._look(await self._reached())
            except FlowFabricError as error:
                log.debug("renewing leases failed; retrying: %s", error)
                next_beat = time.monotonic() + min(1.0, interval / 2)
            except Exception:
                log.exception("the heartbeat failed; retrying")
                next_beat = time.monotonic() + min(1.0, interval / 2)

    async def _rest(self) -> bool:
        """Waits while no lease is held; True if it had to."""
        with self._lock:
            if self._held:
                return False
            self._resting = True
            self._needed.clear()
        await self._needed.wait()
        return True

    async def _reached(self) -> LeaseKeeper:
        self._store = store = self._store or await self._open()
        return store

    async def _renew_somehow(self) -> None:
        """Uses the store of the worker if the server refuses the heartbeat a connection."""
        try:
            await self._renew(await self._reached())
        except Unavailable:
            if self._store is self._spare:
                raise
            await self._renew(_Lent(self._spare, self._worker_loop, self._ttl / 3))

    async def _renew(self, store: "LeaseKeeper | _Lent") -> None:
        for page in in_pages([held for held in self._all() if not held.resting], MAX_BATCH):
            await self._renew_page(store, page)

    async def _renew_page(self, store: "LeaseKeeper | _Lent", page: list[WorkerLease]) -> None:
        asked_at = time.monotonic()
        try:
            extended = await store.renew([held.renewal for held in page], store.clock.now())
        except Locked:
            # A transaction of the application locks one of them: neither renewed nor lost.
            if len(page) > 1:
                await asyncio.gather(*(self._renew_page(store, [held]) for held in page))
            return
        except FlowFabricError:
            watching().renewed(0, len(page))
            raise
        refused = []
        for held in page:
            if (expires_at := extended.get(held.renewal.uuid)) is None:
                refused.append(held)
            else:
                held.renewed(expires_at, asked_at)
        watching().renewed(len(page) - len(refused), 0)
        if refused:
            await self._lose_refused(store, refused)

    async def _lose_refused(self, store: "LeaseKeeper | _Lent", refused: list[WorkerLease]) -> None:
        """Asks the store which runs have ended: their leases are not lost."""
        found: dict[UUID, Snapshot] = {}
        with suppress(FlowFabricError):
            found = await load_readable(store.load, [held.renewal.uuid for held in refused])
        for held in refused:
            loss = _loss(found.get(held.renewal.uuid), held.renewal) or Loss.GONE
            if loss is not Loss.ENDED:
                watching().renewed(0, 1)
            self._lose(held, loss)

    async def _look(self, store: LeaseKeeper) -> None:
        """Loads runs whose lease was not checked for a while: one may have been cancelled."""
        limit = time.monotonic() - LOOK_EVERY * 0.9
        due = [held for held in self._all() if held.seen_at < limit and not held.resting]
        for page in in_pages(due, MAX_BATCH):
            asked_at = time.monotonic()
            found = await load_each(store.load, [held.renewal.uuid for held in page])
            for held in page:
                held.seen_at = asked_at
                run = found.get(held.renewal.uuid)
                if isinstance(run, Corruption):
                    continue  # its next renewal decides whether the lease holds
                if loss := _loss(run, held.renewal):
                    self._lose(held, loss)
                elif run is not None and (notice := CancelNotice.of(run)) is not None:
                    self._notify(held, notice)

    def _notify(self, held: WorkerLease, notice: CancelNotice) -> None:
        with suppress(RuntimeError):  # the loop is closed: no handler is left to be told
            self._worker_loop.call_soon_threadsafe(self._on_cancelled, held.key, notice)

    def _all(self) -> list[WorkerLease]:
        with self._lock:
            return list(self._held.values())

    def _lose(self, held: WorkerLease, loss: Loss) -> None:
        with self._lock:
            gone = self._held.pop(held.key, None)
        if gone is not None:
            with suppress(RuntimeError):  # the loop is closed: no handler is left to stop
                self._worker_loop.call_soon_threadsafe(self._on_lost, held.key, loss)

    # -- watching

    async def _watch(self) -> None:
        """Runs beside the renewals, which may hang as long as the store does."""
        pause = min(0.25, self._ttl / 12)
        while True:
            if await self._rest():
                self._ponged_at = time.monotonic()
            self._give_up_stale()
            self._watch_loop()
            await asyncio.sleep(pause)

    def _give_up_stale(self) -> None:
        """Gives up leases that could not be renewed, before another worker may take them over."""
        limit = time.monotonic() - self._ttl * 5 / 6
        for held in self._all():
            if held.renewed_at < limit:
                self._lose(held, Loss.UNRENEWED)

    def _watch_loop(self) -> None:
        blocked = time.monotonic() - self._ponged_at
        if blocked <= BLOCKED_AFTER:
            self._warned = False
            with suppress(RuntimeError):
                self._worker_loop.call_soon_threadsafe(self._pong)
        elif not self._warned:
            self._warned = True
            log.warning(
                "the event loop is blocked for %.1f s; leases are renewed, but no other run "
                "makes progress. Use a plain function (thread) or `await`.\n%s",
                blocked,
                self._where(),
            )

    def _pong(self) -> None:
        self._ponged_at = time.monotonic()

    def _where(self) -> str:
        frame = sys._current_frames().get(self._worker_thread)
        return "".join(traceback.format_stack(frame)[-3:]) if frame else ""


def _loss(found: Snapshot | None, renewal: Renewal) -> Loss | None:
    """How the lease was lost; None while it holds. Another epoch of the run is another lease."""
    match found:
        case Snapshot(state=Active(lease=lease), head=head):
            stands = (lease.id, head.epoch) == (renewal.lease_id, renewal.epoch)
            return None if stands else Loss.GONE
        case Snapshot(state=Ended()) | None:
            return Loss.ENDED
        case _:
            return Loss.GONE
