"""The worker: claims as many executions as it has room for and runs them until told to stop."""

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from uuid import UUID

from msgspec import Struct

from flowfabric.core.errors import FlowFabricError, Invalid
from flowfabric.core.execution import Worker as Identity
from flowfabric.core.lease import DEFAULT_TTL
from flowfabric.core.time import Millis, parse_span
from flowfabric.engine.claims import MAX_CLAIM, Claim
from flowfabric.engine.engine import Engine
from flowfabric.store.contract import Store
from flowfabric.worker.execute import DRAIN, LOST, Active, Executor
from flowfabric.worker.heartbeat import Heartbeat
from flowfabric.worker.processes import Processes
from flowfabric.worker.task import Task

log = logging.getLogger("flowfabric.worker")

POLL_FLOOR = 1.0
MAX_BACKOFF = 10.0


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """How a worker behaves. `lanes` may have weights: {"fast": 3, "slow": 1}; none means all.

    `drain` is how long a stopping worker waits for what it runs before it hands it back.
    """

    name: str = "worker"
    instance: str | None = None
    concurrency: int = 100
    lanes: Sequence[str] | Mapping[str, int] = ()
    capabilities: Sequence[str] = ()
    namespace: str | None = None
    processes: int | None = None
    ttl: Millis = DEFAULT_TTL
    drain: str | float = 30.0
    heartbeat: bool = True


class Worker:
    """One worker of one process. `run` returns after `stop` (or SIGTERM/SIGINT) and a drain."""

    def __init__(
        self,
        engine: Engine,
        tasks: Mapping[str, Task[Any, Any]],
        options: WorkerOptions,
        heartbeat_store: Callable[[], Awaitable[Store]] | None = None,
    ) -> None:
        if options.concurrency < 1:
            raise Invalid("concurrency must be at least 1")
        self.engine = engine
        self.options = options
        self.identity = Identity(options.name, options.instance or _instance())
        self.active: dict[UUID, Active] = {}
        self._tasks = tasks
        self._running: Counter[str] = Counter()
        self._freed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._heartbeat_store = heartbeat_store
        self._heartbeat: Heartbeat | None = None
        self._healthy = True
        self.completed = 0

    async def run(self) -> None:
        """Works until stopped, then drains: waits for what runs, hands back what does not end."""
        threads = ThreadPoolExecutor(
            self.options.concurrency + 32, thread_name_prefix="flowfabric-task"
        )
        processes = Processes(self.options.processes or os.cpu_count() or 1)
        executor = Executor(self.engine, threads, processes)
        self._start_heartbeat()
        self.engine.sweep.start()
        try:
            await self._claim_until_stopped(executor)
            await self._drain()
        finally:
            await self._finish(threads, processes)

    def stop(self) -> None:
        """Stops claiming; a second call also stops what runs, at once."""
        if self._stopping.is_set():
            self._stop_now.set()
        self._stopping.set()
        self._freed.set()

    def handle_signals(self) -> None:
        """SIGTERM and SIGINT drain; a second one stops now."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    async def run_until_idle(self, executor: Executor | None = None) -> int:
        """Runs everything that can be claimed now, one batch after the other; for tests."""
        done = 0
        threads = ThreadPoolExecutor(self.options.concurrency)
        processes = Processes(1)
        executor = executor or Executor(self.engine, threads, processes)
        try:
            while claims := await self._claim(self.options.concurrency):
                done += len(claims)
                for claim in claims:
                    self._launch(executor, claim)
                await self._all_done()
        finally:
            threads.shutdown(wait=False)
            processes.close()
        return done

    # -- claiming

    async def _claim_until_stopped(self, executor: Executor) -> None:
        backoff = 0.1
        while not self._stopping.is_set():
            room = self._room()
            if room <= 0:
                await self._wait_for_room()
                continue
            try:
                claims = await self._claim(room)
            except FlowFabricError as error:
                self._unhealthy(error)
                await self._pause(backoff)
                backoff = min(MAX_BACKOFF, backoff * 2)
                continue
            self._healthy_again()
            backoff = 0.1
            for claim in claims:
                self._launch(executor, claim)
            if len(claims) < room:
                await self._pause(None)

    async def _claim(self, room: int) -> list[Claim]:
        kinds = self._kinds_with_room()
        if not kinds:
            return []
        return await self.engine.claims.claim(
            self.identity,
            lanes=self.options.lanes,
            capabilities=self.options.capabilities,
            kinds=kinds,
            limit=min(room, MAX_CLAIM),
            ttl=self.options.ttl,
            namespace=self.options.namespace,
        )

    def _room(self) -> int:
        return self.options.concurrency - len(self.active)

    def _kinds_with_room(self) -> frozenset[str]:
        return frozenset(
            name
            for name, task in self._tasks.items()
            if task.options.concurrency is None or self._running[name] < task.options.concurrency
        )

    async def _wait_for_room(self) -> None:
        self._freed.clear()
        if self._room() <= 0 and not self._stopping.is_set():
            await self._freed.wait()

    async def _pause(self, seconds: float | None) -> None:
        """Until a hint says that work arrived, a stop, or `seconds` (None: the poll floor)."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        hint = asyncio.ensure_future(
            self.engine.store.wait_hint(POLL_FLOOR) if seconds is None else asyncio.sleep(seconds)
        )
        try:
            await asyncio.wait({stopping, hint}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            hint.cancel()
            with suppress(asyncio.CancelledError, FlowFabricError):
                await hint

    # -- running

    def _launch(self, executor: Executor, claim: Claim) -> None:
        active = Active(claim, self._tasks.get(claim.kind))
        self.active[claim.uuid] = active
        self._running[claim.kind] += 1
        if self._heartbeat is not None:
            self._heartbeat.hold(claim)
        active.job = asyncio.create_task(executor.run(active))
        active.job.add_done_callback(lambda _: self._done(active))

    def _done(self, active: Active) -> None:
        claim = active.claim
        if self.active.get(claim.uuid) is active:
            del self.active[claim.uuid]
            if self._heartbeat is not None:
                self._heartbeat.drop(claim.uuid)
        self._running[claim.kind] -= 1
        self.completed += 1
        self._freed.set()

    def _lost(self, uuid: UUID) -> None:
        active = self.active.get(uuid)
        if active is not None:
            log.warning("the lease of %s was lost; its handler is stopped", active.claim.id)
            active.stop(LOST)

    # -- health

    def _unhealthy(self, error: FlowFabricError) -> None:
        if self._healthy:
            log.warning("the store does not answer, claiming pauses: %s", error)
        self._healthy = False

    def _healthy_again(self) -> None:
        if not self._healthy:
            log.warning("the store answers again, claiming goes on")
        self._healthy = True

    # -- stopping

    async def _drain(self) -> None:
        if self.active:
            log.info(
                "stopping: %d running, up to %s to finish", len(self.active), self.options.drain
            )
        limit = parse_span(self.options.drain, "drain") / 1000
        stop_now = asyncio.ensure_future(self._stop_now.wait())
        finished = asyncio.ensure_future(self._all_done())
        await asyncio.wait({stop_now, finished}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        stop_now.cancel()
        for active in list(self.active.values()):
            active.stop(DRAIN)
        with suppress(TimeoutError):
            await asyncio.wait_for(finished, 10.0)

    async def _all_done(self) -> None:
        while jobs := [active.job for active in self.active.values() if active.job is not None]:
            await asyncio.wait(jobs)

    def _start_heartbeat(self) -> None:
        if not self.options.heartbeat or self._heartbeat_store is None:
            return
        self._heartbeat = Heartbeat(
            self._heartbeat_store,
            ttl=self.options.ttl,
            on_lost=self._lost,
            owns_store=self.engine.store.name != "sqlite",
        )
        self._heartbeat.start()

    async def _finish(self, threads: ThreadPoolExecutor, processes: Processes) -> None:
        if self._heartbeat is not None:
            await self._heartbeat.stop()
            self._heartbeat = None
        processes.close()
        threads.shutdown(wait=False, cancel_futures=True)
        await self.engine.sweep.stop()


def _instance() -> str:
    host = "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname()) or "host"
    return f"{host[:64]}-{os.getpid()}-{secrets.token_hex(3)}"
