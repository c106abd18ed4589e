"""How the tests of the worker drive runs: by hand on a clock that stands still, or by a worker in
the background."""

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar

from flowfabric.core.base.errors import Unavailable
from flowfabric.core.base.time import Millis, to_datetime
from flowfabric.core.execution.retry import FixedBackoff
from flowfabric.core.execution.step import Step
from flowfabric.engine.engine import Engine
from flowfabric.fabric import Fabric
from flowfabric.store.clock import ManualClock
from flowfabric.worker.api.run import Run
from flowfabric.worker.run.branches import is_no_call
from flowfabric.worker.run.executor import Executor
from flowfabric.worker.run.loop import Worker
from flowfabric.worker.run.options import WorkerSettings

T = TypeVar("T")

TTL = Millis(30_000)

AGAIN: dict[str, Any] = {"retries": 9, "backoff": FixedBackoff(delay=0)}
"""Options of a task that is retried at once."""


class Bench:
    """One fabric on a manual clock: nothing happens but what is asked for."""

    def __init__(self, fabric: Fabric, engine: Engine, clock: ManualClock) -> None:
        self.fabric = fabric
        self.engine = engine
        self.clock = clock

    async def work(self, **options: Any) -> int:
        """Runs everything that can be claimed now; returns how many attempts that were."""
        worker = await self.fabric.worker(WorkerSettings(**{"ttl": TTL, **options}))
        return await worker.run_until_idle()

    async def work_once(self) -> int:
        """As `work`, but what comes back is not taken up again."""
        options = WorkerSettings(ttl=TTL)
        return await OneClaim(self.engine, self.fabric.tasks, options).run_until_idle()

    def moment(self, later: int = 0) -> datetime:
        """What the clock shows, or will show so many milliseconds later."""
        return to_datetime(Millis(self.clock.now() + later))

    async def pass_time(self, millis: int) -> None:
        self.clock.advance(millis)
        await self.engine.sweep.once()

    async def work_through(self, run: Run[Any], *, step: int = 3_600_000) -> None:
        """Works and lets time pass until the run has ended."""
        for _ in range(20):
            await self.work()
            if (await run.state()).value in ENDED:
                return
            await self.pass_time(step)
        raise AssertionError("the run does not end")

    async def lose(self) -> None:
        """Whoever holds a lease now loses it, as after a crash."""
        await self.pass_time(TTL)

    async def steps(self, run: Run[Any], generation: int = 0) -> list[Step]:
        return await self.engine.attempts.steps(run.id.uuid, generation)

    async def step_names(
        self, run: Run[Any], generation: int = 0, *, calls: bool = False
    ) -> list[str]:
        """With `calls` only those of calls, not of what is recorded beside them."""
        names = [step.name for step in await self.steps(run, generation)]
        return [name for name in names if not (calls and is_no_call(name))]


async def end_one(bench: Bench, **members: Any) -> str:
    """A run that has ended without having run: one event."""

    @bench.fabric.task(name=f"job{len(bench.fabric.tasks)}")
    async def job() -> None: ...

    run = await job.with_options(lane="elsewhere", **members).submit()
    await run.cancel()
    return str(run.id)


async def kinds(run: Run[Any]) -> list[str]:
    """What has happened to a run, by the names of its events."""
    return [event.kind.name for event in await run.events()]


class Log(list[Any]):
    """What the functions of a test did, in order."""

    def note(self, word: Any) -> Any:
        self.append(word)
        return word

    async def later(self, word: Any) -> Any:
        await asyncio.sleep(0)
        return self.note(word)


class OneClaim(Worker):
    """A worker that claims only once."""

    claimed = False

    async def _claim(self, executor: Executor) -> int:
        if self.claimed:
            return 0
        self.claimed = True
        return await super()._claim(executor)


ENDED = {"completed", "failed", "cancelled", "expired", "skipped"}


@asynccontextmanager
async def working(fabric: Fabric, **options: Any) -> AsyncIterator[Worker]:
    """A worker in the background; leaving the block stops it at once. It keeps its leases on a busy
    machine too; a test that is about them asks for brief ones."""
    worker = await fabric.worker(WorkerSettings(**{"ttl": TTL, **options}))
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        worker.stop()
        await asyncio.wait_for(running, 60)


async def gather_results(runs: list[Run[T]], timeout: float | None = None) -> list[T]:
    """The results of many runs, in order."""
    return await asyncio.gather(*(run.result(timeout) for run in runs))


async def renew_now(worker: Worker) -> None:
    """The heartbeat renews the worker's leases at once, not after a third of their time."""
    await until(lambda: worker._heartbeat and worker._heartbeat._store)
    heartbeat = worker._heartbeat
    assert heartbeat is not None
    renewal = asyncio.run_coroutine_threadsafe(heartbeat._renew_somehow(), heartbeat._loop)
    await asyncio.wrap_future(renewal)


async def until(true: Callable[[], Any], seconds: float = 60.0) -> None:
    """Waits until something is so; fails when it does not become so."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - anything may be waited for
            await asyncio.sleep(0.005)


class Wire:
    """What stands between an engine and its store: counts calls, and can be cut."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        self.cut = False

    def around(self, store: Any) -> Any:
        return _Wired(store, self)


class _Wired:
    def __init__(self, store: Any, wire: Wire) -> None:
        self._store = store
        self._wire = wire

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._wire.made[name] += 1
            if self._wire.cut and name != "close":
                raise Unavailable("the wire is cut")
            return await found(*args, **kwargs)

        return call
