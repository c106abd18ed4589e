"""A worker that acts only when a test calls it, without a heartbeat and without processes."""

import time
from typing import Any

from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.time import Millis
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.testing.watch import current_run
from flowfabric.worker.api.task import Task, pins_of
from flowfabric.worker.errors import LOST
from flowfabric.worker.run.active import ActiveRun
from flowfabric.worker.run.cancelling import CancelNotice
from flowfabric.worker.run.executor import Executor
from flowfabric.worker.run.hooks import WorkerHooks
from flowfabric.worker.run.loop import HandlerRuntime, Worker
from flowfabric.worker.run.options import WorkerSettings
from flowfabric.worker.run.processes import Answer, Processes, answer_of, call
from flowfabric.worker.run.threads import Threads
from flowfabric.worker.run.tries import skip_pauses

Tasks = dict[str, Task[Any, Any]]


class ManualWorker(Worker):
    """Serves every lane and offers every capability that its tasks demand."""

    def __init__(self, engine: Engine, tasks: Tasks, hooks: WorkerHooks) -> None:
        super().__init__(engine, tasks, WorkerSettings(name="harness", heartbeat=False))
        self.hooks = hooks
        self._runtime = HandlerRuntime(self)
        size = self.options.concurrency
        self._in_process = Threads(size, "flowfabric-process")
        self._runtime.executor.calls.processes = InThread(self._in_process, size)

    async def claim(self) -> int:
        """Starts every run that can be claimed now; returns how many."""
        every = [task for newest in self._tasks.values() for task in newest.versions.values()]
        offered = {word for task in every for word in task.options.capabilities}
        self._offered = (*sorted(offered), *pins_of(self._tasks))
        self._claimer.options = replace(self.options, capabilities=self._offered)
        await self.engine.code_gate.release_to(self.presence)
        return await self._claim(self._runtime.executor)

    async def renew(self, ttl: Millis | None = None) -> None:
        """Keeps every lease and stops the handlers of those that are gone, as a heartbeat would."""
        for active in list(self.active.values()):
            try:
                answer = await self.engine.claims.renew(active.claim, ttl, record=False)
                active.lease.renewed(answer.expires_at, time.monotonic())
                await self._notify_cancelled(active)
            except FlowFabricError:
                active.stop(LOST)

    async def _notify_cancelled(self, active: ActiveRun) -> None:
        """Tells the handler of a run that is being cancelled, as a heartbeat would."""
        found = await self.engine.store.load([active.claim.uuid])
        run = found.get(active.claim.uuid)
        if run is not None and (notice := CancelNotice.of(run)) is not None:
            active.notify(notice)

    async def crash(self) -> list[Claim]:
        """Drops every handler without a report; returns the claims it held."""
        dropped = [active.claim for active in self.active.values()]
        self.forsake()
        for active in list(self.active.values()):
            if active.handling and active.job is not None:
                active.job.cancel()
        await self._all_done()
        return dropped

    def forsake(self) -> None:
        """Makes every running handler powerless: the engine refuses what it asks for."""
        for active in self.active.values():
            active.stopped = LOST
            if active.scope is not None:
                active.scope.stop(LOST)

    @property
    def reporting(self) -> bool:
        """Whether a run has ended whose hooks have not returned yet."""
        return any(active.reporting for active in self.active.values())

    async def close(self) -> None:
        await self._hand_back()
        self.let_go()

    def let_go(self) -> None:
        self._runtime.close()
        self._in_process.close()

    def _launch(self, executor: Executor, claim: Claim, now: Millis) -> None:
        run = current_run.set((claim.uuid, claim.epoch))
        pauses = skip_pauses.set(True)
        try:
            super()._launch(executor, claim, now)
        finally:
            skip_pauses.reset(pauses)
            current_run.reset(run)


class InThread(Processes):
    """Runs tasks with `process=True` in a thread of the test, which can observe and patch them."""

    def __init__(self, threads: Threads, size: int) -> None:
        super().__init__(size)
        self._threads = threads

    async def _ask(self, handler: Task[Any, Any], payload: bytes) -> Answer:
        def work() -> bytes:
            return call(handler.function, handler.signature, payload, handler.name)

        answer: Answer = await self._threads.call(lambda: answer_of(work))
        return answer
