"""The worker: claims as many executions as it has room for and runs them until told to stop."""

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from flowfabric.core.base.errors import FlowFabricError, Invalid
from flowfabric.core.base.numbers import check_flag, check_kind_of, check_whole
from flowfabric.core.base.text import check_lane, check_namespace, check_worker
from flowfabric.core.base.time import Span, parse_span
from flowfabric.core.execution.lease import DEFAULT_TTL
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.routing import check_capabilities
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import MAX_CLAIM, Claim, check_lanes, check_ttl
from flowfabric.store.contract import Store
from flowfabric.store.queries import Suspects
from flowfabric.worker.api.task import Task
from flowfabric.worker.errors import DRAIN, LOST
from flowfabric.worker.run.executor import ActiveRun, Executor
from flowfabric.worker.run.exit import ExitGuard, forget
from flowfabric.worker.run.heartbeat import Heartbeat
from flowfabric.worker.run.lease import Key, Loss, WorkerLease
from flowfabric.worker.run.outcome import handing_back
from flowfabric.worker.run.probation import ProbationWard, is_suspect
from flowfabric.worker.run.processes import Processes
from flowfabric.worker.run.registration import PresenceKeeper
from flowfabric.worker.run.slots import ClaimRequest, Slots
from flowfabric.worker.run.threads import Threads
from flowfabric.worker.run.until_available import until_available

log = logging.getLogger("flowfabric.worker")

REST = 30.0
"""Seconds after which a worker claims by itself. The sweep of its engine looks every second whether
there is work, and wakes it."""
MAX_BACKOFF = 10.0
STOP_GRACE = 2.0
"""Seconds a handler has to end after it was cancelled, before its run is handed back without it."""
LAST_MOMENT = 4.0
"""Seconds after the drain until a stopping worker ends, whatever handlers and the store do."""
SIGN_OFF = 1.0
EXIT_AFTER = LAST_MOMENT + 4.0
"""Seconds after the drain until a process that was asked to stop by a signal is ended."""


_LOSSES = {
    Loss.GONE: "the lease of %s was lost",
    Loss.UNRENEWED: "the lease of %s was lost: it could not be renewed in time",
}


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """How a worker behaves. `lanes` may have weights: {"fast": 3, "slow": 1}; none means all.

    `ttl` is the length of a lease ("30s", or milliseconds): how long a worker that died goes
    unnoticed. `drain` is how long a stopping worker waits for what it runs before it hands it back
    ("1m", or seconds); a process that was stopped by a signal has ended eight seconds after that.
    """

    name: str = "worker"
    instance: str | None = None
    concurrency: int = 100
    lanes: Sequence[str] | Mapping[str, int] = ()
    capabilities: Sequence[str] = ()
    namespace: str | None = None
    processes: int | None = None
    ttl: Span = DEFAULT_TTL
    drain: str | float | timedelta = 20.0
    heartbeat: bool = True

    def __post_init__(self) -> None:
        check_worker(self.name, "name")
        if self.instance is not None:
            check_worker(self.instance, "instance")
        check_whole(self.concurrency, "concurrency", 1)
        for lane in check_lanes(self.lanes):
            check_lane(lane)
        check_capabilities(self.capabilities, "worker")
        if self.namespace is not None:
            check_namespace(self.namespace)
        if self.processes is not None:
            check_whole(self.processes, "processes", 1)
        force_setattr(self, "ttl", check_ttl(self.ttl))
        parse_span(self.drain, "drain")
        check_flag(self.heartbeat, "heartbeat")


class Worker:
    """One worker of one process. `run` returns after `stop` (or SIGTERM/SIGINT) and a drain."""

    def __init__(
        self,
        engine: Engine,
        tasks: Mapping[str, Task[Any, Any]],
        options: WorkerOptions,
        heartbeat_store: Callable[[], Awaitable[Store]] | None = None,
    ) -> None:
        check_kind_of(options, WorkerOptions, "options of a worker")
        self.engine = engine
        self.options = options
        self.identity = WorkerIdentity(options.name, options.instance or _instance())
        self.active: dict[Key, ActiveRun] = {}
        self._newest: dict[UUID, ActiveRun] = {}
        self._left_behind: list[asyncio.Task[None]] = []
        self.completed = 0
        self._ttl = check_ttl(options.ttl)
        self._drain_for = parse_span(options.drain, "drain") / 1000
        self._tasks = tasks
        self._processes = options.processes or os.cpu_count() or 1
        self._room = Slots(options.concurrency, self._processes, tasks)
        self._freed = asyncio.Event()
        self._ward = ProbationWard(engine, self.active, self._freed.set)
        self._stopping = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._signals: list[int] = []
        self._exit: ExitGuard | None = None
        self._hint: asyncio.Future[bool] | None = None
        self._heartbeat_store = heartbeat_store
        self._heartbeat: Heartbeat | None = None
        self._task: asyncio.Task[Any] | None = None
        self._health = Health()

    async def run(self) -> None:
        """Works until stopped, then drains: waits for what runs, hands back what does not end.
        Cancelling it hands everything back at once."""
        runtime = HandlerRuntime(self)
        self._task = asyncio.current_task()
        self._start_heartbeat()
        self.engine.sweep.start()  # until the engine is closed: another worker may rely on it
        registry = PresenceKeeper(self.engine, self.presence, lambda: len(self.active))
        registry.start()
        try:
            await self._claim_until_stopped(runtime.executor)
            await self._drain()
        finally:
            await self._hand_back()
            with suppress(TimeoutError):
                await asyncio.wait_for(registry.stop(), SIGN_OFF)
            await self._finish(runtime)

    def stop(self) -> None:
        """Stops claiming; a second call also stops what runs, at once."""
        if self._stopping.is_set():
            self._stop_now.set()
        self._stopping.set()
        self._freed.set()

    def handle_signals(self) -> None:
        """SIGTERM and SIGINT drain; a second one stops now. The process ends within the time of the
        drain and a few seconds, even if a handler or a thread does not."""
        loop = asyncio.get_running_loop()
        self._exit = ExitGuard(self._drain_for + EXIT_AFTER)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
            # The loop hears of signals through a pipe of its own, when it is not blocked.
            signal.signal(number, self._exit.on_signal)
            self._signals.append(number)

    async def run_until_idle(self) -> int:
        """Runs everything that can be claimed now, one batch after the other, also what follows
        in flows; for tests."""
        runtime = HandlerRuntime(self)
        done = 0
        try:
            await _settled(self.engine)
            while count := await self._claim(runtime.executor):
                done += count
                await self._all_done()
                await _settled(self.engine)
        finally:
            await self._hand_back()
            runtime.close()
        return done

    @property
    def presence(self) -> Presence:
        """What this worker says of itself in the registry."""
        options = self.options
        return Presence(
            worker=self.identity.id,
            instance=self.identity.instance,
            namespace=options.namespace or "default",
            everywhere=options.namespace is None,
            lanes=tuple(options.lanes),
            kinds=tuple(sorted(self._tasks)),
            capabilities=tuple(options.capabilities),
            concurrency=options.concurrency,
            ttl=self._ttl,
        )

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether `run` itself was cancelled, perhaps together with everything in the loop."""
        return self._task is not None and self._task.cancelling() > 0

    # -- claiming

    async def _claim_until_stopped(self, executor: Executor) -> None:
        backoff = 0.1
        while not self._stopping.is_set():
            self._freed.clear()
            if self._room.left <= 0 or self._ward.closed:
                await self._freed.wait()
                continue
            await self._listen()
            try:
                count = await self._claim(executor)
            except Invalid:
                raise  # it will not become valid by waiting
            except Exception as error:
                self._health.failed(error)
                await self._pause(backoff)
                backoff = min(MAX_BACKOFF, backoff * 2)
                continue
            self._health.well()
            backoff = 0.1
            if count < MAX_CLAIM and self._room.left > 0 and not self._ward.closed:
                await self._pause(None)

    async def _claim(self, executor: Executor) -> int:
        """Starts a suspect if it is the turn of one, or else what there is room for. A worker with
        nothing else to do takes suspects out of turn."""
        asked = self._ward.has_turn and self.engine.store.suspects_seen()
        if asked and await self._claim_suspect(executor):
            return 1
        count = await self._claim_others(executor)
        if count or asked or self.active or not self.engine.store.suspects_seen():
            return count
        return await self._claim_suspect(executor)

    async def _claim_suspect(self, executor: Executor) -> int:
        for wish in self._room.wishes():
            one = replace(wish, limit=min(1, wish.limit))
            if count := await self._claim_wish(executor, one, Suspects.ONLY):
                return count
        return 0

    async def _claim_others(self, executor: Executor) -> int:
        """Tasks with a limit of their own are asked for one by one; all others come in the order
        the store has for them."""
        count = 0
        for wish in self._room.wishes():
            count += await self._claim_wish(executor, wish, Suspects.NONE)
        return count

    async def _claim_wish(self, executor: Executor, wish: ClaimRequest, suspects: Suspects) -> int:
        limit = min(wish.limit, self._room.left, MAX_CLAIM)
        if limit <= 0 or not wish.kinds:
            return 0
        claims = await self.engine.claims.claim(
            self.identity,
            lanes=self.options.lanes,
            capabilities=self.options.capabilities,
            kinds=wish.kinds,
            limit=limit,
            ttl=self._ttl,
            namespace=self.options.namespace,
            suspects=suspects,
        )
        for claim in claims:
            self._launch(executor, claim)
        return len(claims)

    async def _listen(self) -> None:
        """Before the claim, so that a hint about work that arrives meanwhile is not lost."""
        if self._hint is None or self._hint.done():
            self._hint = asyncio.ensure_future(self.engine.store.hints.wait(REST))
            self._hint.add_done_callback(_seen)
            await asyncio.sleep(0)

    async def _pause(self, seconds: float | None) -> None:
        """Until a hint says that work arrived, a stop, or `seconds` (None: at rest). Room
        for a task with a limit of its own is a reason to look again as well."""
        events = [self._stopping, self._freed] if self._room.limited else [self._stopping]
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        watched: list[asyncio.Future[Any]] = list(waits)
        if seconds is None and self._hint is not None:
            watched.append(self._hint)
        try:
            await asyncio.wait(
                watched,
                timeout=REST if seconds is None else seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for wait in waits:
                wait.cancel()

    # -- running

    def _launch(self, executor: Executor, claim: Claim) -> None:
        age = self.engine.now() - (claim.expires_at - claim.ttl)
        active = ActiveRun(claim, self._tasks.get(claim.kind), WorkerLease(claim, age / 1000))
        self._supersede(active)
        self.active[active.key] = active
        self._room.take(claim.kind)
        if self._heartbeat is not None:
            self._heartbeat.hold(active.lease)
            active.on_completed = partial(self._heartbeat.rest, active.key)
        active.job = asyncio.create_task(self._work(active, executor))
        active.job.add_done_callback(lambda job: self._done(active, job))
        if self._stopping.is_set():
            active.stop(DRAIN)

    def _work(self, active: ActiveRun, executor: Executor) -> Coroutine[None, None, None]:
        if not is_suspect(active.claim) or self._ward.closed:
            return executor.run(active)
        return self._ward.run(self._ward.admit(active), executor)

    def _supersede(self, active: ActiveRun) -> None:
        """A new claim of a run proves that the old lease is gone, before any heartbeat asks."""
        old = self._newest.get(active.claim.uuid)
        self._newest[active.claim.uuid] = active
        if old is not None:
            if self._heartbeat is not None:
                self._heartbeat.drop(old.key)
            self._lost(old.key, Loss.GONE)

    def _done(self, active: ActiveRun, job: "asyncio.Task[None]") -> None:
        self.active.pop(active.key, None)
        if self._newest.get(active.claim.uuid) is active:
            del self._newest[active.claim.uuid]
        if self._heartbeat is not None:
            self._heartbeat.drop(active.key)
        self.completed += 1
        active.scope = active.job = None  # they refer to each other: let them go
        if not job.cancelled() and (error := job.exception()) is not None:
            log.error("%s ended unreported", active.claim.id, exc_info=error)
        if active.thread is not None and active.lingers:
            log.warning(
                "%s goes on in its thread although it was stopped; its slot stays taken until it "
                "ends. Call ctx.heartbeat() in plain functions that run long.",
                active.claim.id,
            )
            loop = asyncio.get_running_loop()
            active.thread.add_done_callback(lambda _: self._free_from_thread(loop, active))
        else:
            self._free(active)

    def _free(self, active: ActiveRun) -> None:
        self._room.give(active.claim.kind)
        self._freed.set()

    def _free_from_thread(self, loop: asyncio.AbstractEventLoop, active: ActiveRun) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody needs the slot
            loop.call_soon_threadsafe(self._free, active)

    def _lost(self, key: Key, loss: Loss) -> None:
        """Stops the handler. A report that is under way hears from the store itself what became of
        the run: most often it is the very report that has ended the lease."""
        active = self.active.get(key)
        if active is None or (active.reporting and loss is not Loss.UNRENEWED):
            return
        if loss is Loss.ENDED:
            if active.completed:
                return  # by its handler, in the application's transaction
            log.info("%s has ended meanwhile; its handler is stopped", active.claim.id)
        else:
            log.warning("%s; its handler is stopped", _LOSSES[loss] % active.claim.id)
        active.stop(LOST)

    # -- stopping

    async def _drain(self) -> None:
        if self.active:
            log.info("stopping: %d running, up to %s s", len(self.active), self._drain_for)
        stop_now = asyncio.ensure_future(self._stop_now.wait())
        done = asyncio.ensure_future(self._all_done())
        try:
            await asyncio.wait(
                {stop_now, done}, timeout=self._drain_for, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stop_now.cancel()
            done.cancel()

    async def _hand_back(self) -> None:
        """Stops what still runs; the same attempt goes on in another worker."""
        for active in list(self.active.values()):
            active.stop(DRAIN)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_MOMENT):
                done = asyncio.ensure_future(self._all_done())
                await asyncio.wait([done], timeout=STOP_GRACE)
                done.cancel()
                await self._leave_behind()
                await until_available(self.engine.claims.recover, give_up=lambda: False)
                await self._all_done()

    async def _leave_behind(self) -> None:
        """Handlers that do not end although they were cancelled do not keep the worker: their runs
        are handed back, and the fence refuses what they report later."""
        stuck = [active for active in self.active.values() if active.handling]
        for active in stuck:
            log.warning("%s does not stop; it is handed back without its handler", active.claim.id)
            del self.active[active.key]
            if active.job is not None:
                self._left_behind.append(active.job)
                forget(active.job)
        reports = [partial(handing_back(active.claim), self.engine) for active in stuck]
        await asyncio.gather(
            *(until_available(report, give_up=lambda: False) for report in reports),
            return_exceptions=True,
        )

    async def _all_done(self) -> None:
        while jobs := [active.job for active in self.active.values() if active.job is not None]:
            await asyncio.wait(jobs)

    def _start_heartbeat(self) -> None:
        if not self.options.heartbeat or self._heartbeat_store is None:
            return
        self._heartbeat = Heartbeat(
            self._heartbeat_store,
            ttl=self._ttl,
            on_lost=self._lost,
            owns_store=self.engine.store.name != "sqlite",
            spare=self.engine.store,
        )
        self._heartbeat.start()

    async def _finish(self, runtime: "HandlerRuntime") -> None:
        for number in self._signals:
            asyncio.get_running_loop().remove_signal_handler(number)
        self._signals.clear()
        if self._hint is not None:
            self._hint.cancel()
            await asyncio.gather(self._hint, return_exceptions=True)
        runtime.close()
        if self._heartbeat is not None:
            await self._heartbeat.stop()
            self._heartbeat = None
        if self._exit is not None:
            self._exit.release(left=any(not job.done() for job in self._left_behind))
            self._exit = None


class HandlerRuntime:
    """What a worker runs its handlers on."""

    def __init__(self, worker: Worker) -> None:
        size = worker.options.concurrency
        self._handlers = Threads(size, "flowfabric-task")
        self._steps = Threads(size + 32, "flowfabric-step")
        self._processes = Processes(worker._processes)
        self.executor = Executor(
            worker.engine,
            handlers=self._handlers,
            steps=self._steps,
            processes=self._processes,
            stopping=lambda: worker.stopping,
            cancelled=lambda: worker.cancelled,
        )

    def close(self) -> None:
        self._processes.close()
        self._handlers.close()
        self._steps.close()


class Health:
    """Says once that the store does not answer, and once that it does again."""

    def __init__(self) -> None:
        self._well = True

    def failed(self, error: Exception) -> None:
        if self._well and isinstance(error, FlowFabricError):
            log.warning("the store does not answer, claiming pauses: %s", error)
        elif self._well:
            log.error("claiming stumbled and pauses", exc_info=error)
        self._well = False

    def well(self) -> None:
        if not self._well:
            log.warning("the store answers again, claiming goes on")
        self._well = True


async def _settled(engine: Engine) -> None:
    """Until what can be claimed now is there to be claimed."""
    await engine.inbox.admit()
    await engine.flows.drain()
    await engine._limits.drain()


def _seen(hint: "asyncio.Future[bool]") -> None:
    """If the store is in trouble, the claim will find out and say so."""
    if not hint.cancelled():
        hint.exception()


def _instance() -> str:
    host = "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname()) or "host"
    return f"{host[:64]}-{os.getpid()}-{secrets.token_hex(3)}"
