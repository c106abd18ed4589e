"""The worker: claims runs for its free slots, executes them, and drains when it is stopped."""

import asyncio
import logging
import multiprocessing
import os
import secrets
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.numbers import check_kind_of
from flowfabric.core.base.time import Millis, parse_span
from flowfabric.core.execution.model import Start, WorkerIdentity
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.versions import version_of
from flowfabric.engine.collector import rare_collections
from flowfabric.engine.commit.observer import watching
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim, check_ttl
from flowfabric.store.hints import Nudge
from flowfabric.worker.api.task import Task, fingerprints_of, handler_at, pins_of
from flowfabric.worker.errors import DRAIN, LOST
from flowfabric.worker.run.active import ActiveRun
from flowfabric.worker.run.attempt_log import log_takeover
from flowfabric.worker.run.cancelling import CancelNotice
from flowfabric.worker.run.claiming import Claimer
from flowfabric.worker.run.executor import Executor
from flowfabric.worker.run.exit import ExitGuard, forget
from flowfabric.worker.run.heartbeat import Heartbeat, LeaseKeeper
from flowfabric.worker.run.hooks import Hooks, WorkerHooks
from flowfabric.worker.run.lease import Key, Loss, WorkerLease
from flowfabric.worker.run.options import WorkerSettings
from flowfabric.worker.run.outcome import handing_back
from flowfabric.worker.run.probation import ProbationWard, is_suspect
from flowfabric.worker.run.processes import Processes
from flowfabric.worker.run.registration import PresenceKeeper
from flowfabric.worker.run.slot_follower import SlotFollower
from flowfabric.worker.run.slot_returns import SlotReturns
from flowfabric.worker.run.slots import Slots
from flowfabric.worker.run.threads import Threads
from flowfabric.worker.run.until_available import until_available

log = logging.getLogger("flowfabric.worker")

STOP_GRACE = 2.0
"""Seconds a handler has to end after it was cancelled, before its run is handed back without it."""
LAST_MOMENT = 4.0
"""Seconds after the drain until a stopping worker ends, even if handlers or the store hang."""
SIGN_OFF = 1.0
EXIT_AFTER = LAST_MOMENT + 4.0
"""Seconds after the drain until a process that was asked to stop by a signal is ended."""


_LOSSES = {
    Loss.GONE: "the lease of run %s was lost",
    Loss.UNRENEWED: "the lease of run %s was lost: it could not be renewed in time",
}


class Worker:
    """A worker of this process. `run` returns after `stop` (or SIGTERM or SIGINT) and a drain."""

    def __init__(
        self,
        engine: Engine,
        tasks: Mapping[str, Task[Any, Any]],
        options: WorkerSettings,
        heartbeat_leases: Callable[[], Awaitable[LeaseKeeper]] | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        check_kind_of(options, WorkerSettings, "options of a worker")
        _check_main_is_guarded()
        self.engine = engine
        self.options = options
        self.identity = WorkerIdentity(options.name, options.instance or _instance())
        self.active: dict[Key, ActiveRun] = {}
        self._newest: dict[UUID, ActiveRun] = {}
        self._starting: list[tuple[ActiveRun, Coroutine[None, None, None], Context]] = []
        self.hooks = WorkerHooks(hooks or Hooks())
        self._left_behind: list[asyncio.Task[None]] = []
        self.completed = 0
        self._ttl = check_ttl(options.ttl)
        self._drain_for = parse_span(options.drain, "drain") / 1000
        self._tasks = tasks
        self._offered = (*options.capabilities, *pins_of(tasks))
        self._processes = options.processes or os.cpu_count() or 1
        self._slots = Slots(options.concurrency, self._processes, tasks)
        self._freed = Nudge()
        self._returns = SlotReturns(self._newest, self.hooks, self._slots, self._freed)
        self._stopping = Nudge()
        self._ward = ProbationWard(engine, self.active, self._freed.set)
        self._claimer = Claimer(
            engine,
            self.identity,
            replace(options, capabilities=self._offered),
            self._slots,
            self._ward,
            freed=self._freed,
            stopping=self._stopping,
        )
        self._stop_now = asyncio.Event()
        self._handed_back: asyncio.Event | None = None
        self._signals: list[int] = []
        self._exit: ExitGuard | None = None
        self._heartbeat_leases = heartbeat_leases
        self._heartbeat: Heartbeat | None = None
        self._task: asyncio.Task[Any] | None = None
        self._thread = 0

    async def run(self) -> None:
        """Executes runs until the worker is stopped. Then drains: waits for its runs, and hands
        back those that do not end in time. Cancelling `run` hands them back at once. The lifespan
        starts before the first claim and ends after the last run; if it cannot start, StartupFailed
        is raised. A worker runs once; `fabric.worker()` makes another one."""
        if self._task is not None:
            raise Invalid("this worker has run or is running; fabric.worker() makes another")
        self._task, self._thread = asyncio.current_task(), threading.get_ident()
        if not await self._start_lifespan():
            self._release_signals()
            return
        runtime = HandlerRuntime(self)
        self._start_heartbeat()
        self.engine.code_gate.join(self.identity, lambda: self.presence)
        self.engine.sweep.start()  # until the engine is closed: another worker may rely on it
        registry = PresenceKeeper(self.engine, self.presence, lambda: self._slots.taken)
        registry.start()
        self._handed_back = asyncio.Event()
        try:
            with rare_collections(), self._subscribed_to_commits(runtime.executor):
                await self._claimer.run(partial(self._claim, runtime.executor))
                await self._drain()
        finally:
            self._stopping.set()  # what a commit under way claims for a cancelled worker goes back
            self.engine.code_gate.leave(self.identity)
            try:
                await self._hand_back()
                await _sign_off(registry)
            finally:
                self._handed_back.set()
            await self.hooks.lifespan.stop()
            await self._finish(runtime)

    async def _start_lifespan(self) -> bool:
        """False if the worker was stopped before the lifespan had started."""
        starting = asyncio.ensure_future(self.hooks.lifespan.start())
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return False
            await starting
            return True
        except BaseException:
            self._release_signals()
            raise
        finally:
            stopped.cancel()
            if not starting.done():
                starting.cancel()
                await asyncio.wait([starting])

    def stop(self) -> None:
        """Stops claiming and drains. A second call stops the running handlers at once. Any thread
        may call it."""
        if self._task is not None and self._thread != threading.get_ident():
            with suppress(RuntimeError):  # the loop is closed: the worker has ended
                self._task.get_loop().call_soon_threadsafe(self.stop)
            return
        if self._stopping.is_set():
            self._stop_now.set()
        self._stopping.set()
        self._freed.set()

    async def hand_back(self) -> None:
        """Stops the worker and its handlers at once. Returns when the store has their runs back
        and the lifespan has ended: the store may be closed then."""
        self.stop()
        if self._handed_back is not None:
            self._stop_now.set()
            await self._handed_back.wait()
        await self.hooks.lifespan.stop()  # one that is starting is cancelled by `run`

    def handle_signals(self) -> None:
        """Makes SIGTERM and SIGINT call `stop`. The process ends within the time of the drain and a
        few seconds, even if a handler or a thread does not."""
        if threading.current_thread() is not threading.main_thread():
            raise Invalid(
                "only the main thread can handle signals; elsewhere call `worker.run()`, and "
                "`worker.stop()` to end it"
            )
        loop = asyncio.get_running_loop()
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
                self._signals.append(number)
        except NotImplementedError:
            raise Invalid(
                "signals cannot be handled on Windows: use WSL or a container, or call "
                "`worker.run()`, and `worker.stop()` to end it"
            ) from None
        self._exit = ExitGuard(self._drain_for + EXIT_AFTER)
        for handled in self._signals:
            # The loop reads signals from a pipe of its own, which it cannot do while it is blocked.
            signal.signal(handled, self._exit.on_signal)

    async def run_until_idle(self) -> int:
        """Executes everything that can be claimed now, and what follows in flows; for tests.
        Returns how many runs that were."""
        await self.hooks.lifespan.start()
        runtime = HandlerRuntime(self)
        done = 0
        try:
            await _settle(self)
            while count := await self._claim(runtime.executor):
                done += count
                await self._all_done()
                await _settle(self)
        finally:
            await self._hand_back()
            await self.hooks.lifespan.stop()
            runtime.close()
        return done

    @property
    def presence(self) -> Presence:
        """The entry of this worker in the registry."""
        options = self.options
        return Presence(
            worker=self.identity.id,
            instance=self.identity.instance,
            namespace=options.namespace or "default",
            everywhere=options.namespace is None,
            lanes=tuple(options.lanes),
            kinds=tuple(sorted(self._tasks)),
            capabilities=self._offered,
            code=fingerprints_of(self._tasks),
            concurrency=options.concurrency,
            running=self._slots.taken,
            ttl=self._ttl,
        )

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called: the worker claims nothing more."""
        return self._stopping.is_set()

    @property
    def is_running(self) -> bool:
        """Whether the worker has begun and still has runs, or may claim some."""
        return self._handed_back is not None and not self._handed_back.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether `run` was cancelled, perhaps together with everything else in the loop."""
        return self._task is not None and self._task.cancelling() > 0

    async def _claim(self, executor: Executor) -> int:
        """Starts what there is a slot for; returns how many runs that are."""
        return await self._claimer.claim(partial(self._launch, executor))

    # -- running

    @contextmanager
    def _subscribed_to_commits(self, executor: Executor) -> Iterator[None]:
        """Slots are free at the commit of an ending, or given to the run that follows."""
        options, context = self._claimer.options, copy_context()
        follower = SlotFollower(
            self._newest,
            self._slots,
            self._returns,
            self._ward,
            stopping=self._stopping,
            # A run has the context of its worker, however it was claimed.
            launch=lambda claim, now: context.run(self._launch, executor, claim, now),
        )
        following = self.engine.followed_by(
            follower,
            self.identity,
            lanes=options.lanes,
            capabilities=options.capabilities,
            kinds=frozenset(self._tasks),
            ttl=options.ttl,
            namespace=options.namespace,
        )
        with self.engine.watched_by(self._returns), following:
            yield

    def _launch(self, executor: Executor, claim: Claim, now: Millis) -> None:
        lease, handler = claim.lease, _handler(self._tasks, claim)
        age = now - (lease.expires_at - claim.ttl)
        held = WorkerLease(claim, age / 1000, record=self.options.record_renewals)
        active = ActiveRun(claim, handler, held)
        self._supersede(active)
        if lease.start is Start.RECLAIM:
            log_takeover(claim)
        self.active[active.key] = active
        self._slots.take(claim.kind)
        if self._heartbeat is not None:
            self._heartbeat.hold(active.lease)
            active.on_completed = self._heartbeat.rest
        if not self._starting:
            executor.loop.call_soon(self._start, executor)
        # Its task has the context of this call, however many are started together.
        self._starting.append((active, _work(active, executor, self._ward), copy_context()))
        if self._stopping.is_set():
            active.stop(DRAIN)

    def _start(self, executor: Executor) -> None:
        """Starts what was claimed together, one turn of the loop after the claim: the claim for the
        slots that are still free goes first, and the database works while handlers do."""
        starting, self._starting = self._starting, []
        for active, work, context in starting:
            active.job = job = executor.loop.create_task(work, context=context)
            job.add_done_callback(partial(self._done, active, executor))

    def _supersede(self, active: ActiveRun) -> None:
        """A new claim of a run proves that its old lease is gone, before the heartbeat notices."""
        uuid, _ = active.key
        old = self._newest.get(uuid)
        self._newest[uuid] = active
        if old is not None:
            if self._heartbeat is not None:
                self._heartbeat.drop(old.key)
            self._lost(old.key, Loss.GONE)

    def _done(self, active: ActiveRun, executor: Executor, job: "asyncio.Task[None]") -> None:
        if not active.entered and job.cancelled() and active.key in self.active:
            # By the end of the program, which cancels everything in the loop.
            active.stop(DRAIN)
            self._starting.append((active, executor.run(active), copy_context()))
            self._start(executor)
            return
        self.active.pop(active.key, None)
        uuid, _ = active.key
        if self._newest.get(uuid) is active:
            del self._newest[uuid]
        if self._heartbeat is not None:
            self._heartbeat.drop(active.key)
        self.completed += 1
        active.scope = active.job = active.raised = None  # they refer to each other: let them go
        if not job.cancelled() and (error := job.exception()) is not None:
            log.error(
                "the end of run %s could not be reported; its lease expires and another worker "
                "takes it over",
                active.claim.uuid,
                extra=active.fields,
                exc_info=error,
            )
        if active.thread is not None and active.lingers:
            log.warning(
                "run %s was stopped, but its thread still runs; its slot stays taken until the "
                "thread ends. Call ctx.heartbeat() in plain functions that run long.",
                active.claim.uuid,
                extra=active.fields,
            )
            self._returns.free_after_thread(active)
        else:
            self._returns.free(active)

    def _lost(self, key: Key, loss: Loss) -> None:
        """Stops the handler whose lease was lost. A report that is under way learns from the store
        what became of the run: usually this very report has ended the lease."""
        active = self.active.get(key)
        if active is None or (active.reporting and loss is not Loss.UNRENEWED):
            return
        if active.job is not None and active.job.done():
            return  # reported a moment ago
        if loss is Loss.ENDED:
            if active.completed:
                return  # by its handler, in the application's transaction
            log.debug("run %s was ended by others; its handler is stopped", active.claim.uuid)
        else:
            text = _LOSSES[loss] % active.claim.uuid
            log.warning("%s; its handler is stopped", text, extra=active.fields)
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
            if self.active:
                watching().shutdown_timed_out()
        finally:
            stop_now.cancel()
            done.cancel()

    async def _hand_back(self) -> None:
        """Stops what still runs; another worker continues the same attempts."""
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
        """Hands back the runs of handlers that do not end although they were cancelled. The fence
        refuses what such a handler reports later."""
        stuck = [active for active in self.active.values() if active.handling]
        for active in stuck:
            log.warning(
                "the handler of run %s does not stop; the run is handed back",
                active.claim.uuid,
                extra=active.fields,
            )
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
        while self.active:
            jobs = [active.job for active in self.active.values() if active.job is not None]
            await (asyncio.wait(jobs) if jobs else asyncio.sleep(0))

    def _start_heartbeat(self) -> None:
        if not self.options.heartbeat or self._heartbeat_leases is None:
            return
        self._heartbeat = Heartbeat(
            self._heartbeat_leases,
            ttl=self._ttl,
            on_lost=self._lost,
            on_cancelled=partial(_notify_cancelled, self.active),
            spare=self.engine.leases,
        )
        self._heartbeat.start()

    async def _finish(self, runtime: "HandlerRuntime") -> None:
        runtime.close()
        if self._heartbeat is not None:
            await self._heartbeat.stop()
            self._heartbeat = None
        self._release_signals()

    def _release_signals(self) -> None:
        for number in self._signals:
            asyncio.get_running_loop().remove_signal_handler(number)
        self._signals.clear()
        if self._exit is not None:
            self._exit.release(left=any(not job.done() for job in self._left_behind))
            self._exit = None


def _notify_cancelled(running: Mapping[Key, ActiveRun], key: Key, notice: CancelNotice) -> None:
    """A run is being cancelled: its handler may clean up."""
    if (active := running.get(key)) is not None:
        active.notify(notice)


def _work(
    active: ActiveRun, executor: Executor, ward: ProbationWard
) -> Coroutine[None, None, None]:
    if not is_suspect(active.claim) or ward.closed:
        return executor.run(active)
    return ward.run(ward.admit(active), executor)


def _check_main_is_guarded() -> None:
    """Refuses a worker in a process that was spawned for a task and executes the main module to
    find it. It would claim runs and fail them, since it cannot start processes."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise Invalid(
            "a process for tasks with process=True executes this program again:"
            ' make the worker below `if __name__ == "__main__":`'
        )


async def _sign_off(registry: PresenceKeeper) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(SIGN_OFF):
            await registry.stop()


async def _settle(worker: Worker) -> None:
    """Waits until everything that the worker can run now is ready."""
    await worker.engine.code_gate.release_to(worker.presence)
    await worker.engine.settle()


def _handler(tasks: Mapping[str, Task[Any, Any]], claim: Claim) -> Task[Any, Any] | None:
    """What runs the version that the run is pinned to."""
    task = tasks.get(claim.kind)
    return None if task is None else handler_at(task, version_of(claim.snapshot.execution.route))


class HandlerRuntime:
    """The threads and processes that a worker runs its handlers in."""

    def __init__(self, worker: Worker) -> None:
        size = worker.options.concurrency
        self._handlers = Threads(size, "flowfabric-task")
        self._steps = Threads(size + 32, "flowfabric-step")
        self._processes = Processes(worker._processes, worker.hooks.in_process)
        self.executor = Executor(
            worker.engine,
            handlers=self._handlers,
            steps=self._steps,
            processes=self._processes,
            hooks=worker.hooks,
            stopping=lambda: worker.stopping,
            cancelled=lambda: worker.cancelled,
        )

    def close(self) -> None:
        self._processes.close()
        self._handlers.close()
        self._steps.close()


def _instance() -> str:
    host = "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname()) or "host"
    return f"{host[:64]}-{os.getpid()}-{secrets.token_hex(3)}"
