"""One heartbeat for all leases of a worker, from a thread that user code cannot block.

The thread has its own event loop and its own way to the store, and only renews. It cannot beat C
code that keeps the interpreter lock for longer than a lease. It also watches the worker's event
loop and says so when a handler blocks it.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.time import Millis
from flowfabric.engine.claims import Claim
from flowfabric.store.contract import MAX_BATCH, Renewal, Store

log = logging.getLogger("flowfabric.worker")

BLOCKED_AFTER = 2.0


class Heartbeat:
    """Renews every third of the lease. A lease that is gone, or that could not be renewed until a
    sixth before its end, is reported as lost in the worker's loop."""

    def __init__(
        self,
        store: Callable[[], Awaitable[Store]],
        *,
        ttl: Millis,
        on_lost: Callable[[UUID], None],
        owns_store: bool,
    ) -> None:
        self._open = store
        self._owns_store = owns_store
        self._ttl = ttl / 1000
        self._on_lost = on_lost
        self._held: dict[UUID, tuple[Renewal, float]] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._stop = threading.Event()
        self._ponged_at = time.monotonic()
        self._warned = False
        self._thread = threading.Thread(target=self._main, name="flowfabric-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, 5.0)

    def hold(self, claim: Claim) -> None:
        renewal = Renewal(claim.uuid, claim.lease.id, claim.epoch, claim.ttl)
        self._held[claim.uuid] = (renewal, time.monotonic())

    def drop(self, uuid: UUID) -> None:
        self._held.pop(uuid, None)

    def _main(self) -> None:
        with suppress(Exception):
            asyncio.run(self._beat())

    async def _beat(self) -> None:
        store: Store | None = None
        interval = self._ttl / 3
        next_beat = time.monotonic() + interval
        while not self._stop.is_set():
            self._watch_loop()
            await asyncio.sleep(min(0.25, interval / 4))
            if time.monotonic() < next_beat:
                continue
            next_beat = time.monotonic() + interval
            try:
                store = store or await self._open()
                await self._renew(store)
            except FlowFabricError as error:
                log.debug("the heartbeat missed a beat: %s", error)
                next_beat = time.monotonic() + min(1.0, interval)
            self._give_up_stale()
        if store is not None and self._owns_store:
            with suppress(FlowFabricError):
                await store.close()

    async def _renew(self, store: Store) -> None:
        entries = [renewal for renewal, _ in list(self._held.values())]
        for start in range(0, len(entries), MAX_BATCH):
            page = entries[start : start + MAX_BATCH]
            began = time.monotonic()
            extended = await store.renew(page, store.clock.now())
            for renewal in page:
                self._renewed(renewal, began, renewal.uuid in extended)

    def _renewed(self, renewal: Renewal, at: float, alive: bool) -> None:
        current = self._held.get(renewal.uuid)
        if current is None or current[0] is not renewal:
            return  # ended, or claimed again, while the renewal was under way
        if alive:
            self._held[renewal.uuid] = (renewal, at)
        else:
            self._lose(renewal.uuid)

    def _give_up_stale(self) -> None:
        """Without a renewal the worker stops by its own clock, before somebody else may start."""
        limit = time.monotonic() - self._ttl * 5 / 6
        for uuid, (_, renewed_at) in list(self._held.items()):
            if renewed_at < limit:
                self._lose(uuid)

    def _lose(self, uuid: UUID) -> None:
        if self._held.pop(uuid, None) is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self._on_lost, uuid)

    def _watch_loop(self) -> None:
        now = time.monotonic()
        if now - self._ponged_at > BLOCKED_AFTER:
            if not self._warned:
                self._warned = True
                frame = sys._current_frames().get(self._loop_thread)
                where = "".join(traceback.format_stack(frame)[-3:]) if frame else ""
                log.warning(
                    "the event loop is blocked for %.1f s; leases are kept, but nothing else "
                    "moves. Use a plain function (thread) or `await`.\n%s",
                    now - self._ponged_at,
                    where,
                )
            return
        self._warned = False
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._pong)

    def _pong(self) -> None:
        self._ponged_at = time.monotonic()
