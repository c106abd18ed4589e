"""Stopping: what runs may finish, the rest is handed back whole, and nothing is left behind."""

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

from flowfabric import (
    Context,
    Fabric,
    Invalid,
    PublicState,
    SyncContext,
    Unavailable,
    WorkerOptions,
    testing,
)
from tests.worker import handlers
from tests.worker.bench import Bench, Log, Wire, kinds, until

pytestmark = [pytest.mark.rules, pytest.mark.long]

HANDED_BACK = ["CLAIMED", "HANDED_BACK"]


async def start(fabric: Fabric, **options: Any) -> tuple[Any, "asyncio.Task[None]"]:
    worker = await fabric.worker(WorkerOptions(**{"ttl": "30s", **options}))
    return worker, asyncio.create_task(worker.run())


async def handed_back(run: Any) -> None:
    """The run waits for the next worker, on the same attempt, no retry spent."""
    about = await run.describe()
    assert about.state is PublicState.WAITING
    assert (about.retries, about.attempts_made, await kinds(run)) == (0, 1, HANDED_BACK)


async def test_what_runs_may_finish(fabric: Fabric) -> None:
    go_on = asyncio.Event()

    @fabric.task()
    async def job() -> str:
        await go_on.wait()
        return "finished"

    worker, running = await start(fabric)
    run, late = await job.submit(), None
    await until(lambda: worker.active)
    worker.stop()
    late = await job.submit()
    await asyncio.sleep(0.05)
    assert not running.done()
    go_on.set()
    await asyncio.wait_for(running, 60)
    assert await run.result(60) == "finished"
    assert await late.state() is PublicState.WAITING, "a stopping worker claims nothing"


async def test_only_the_main_thread_can_handle_signals(fabric: Fabric) -> None:
    worker = await fabric.worker()

    async def elsewhere() -> None:
        worker.handle_signals()

    with pytest.raises(Invalid, match="only the main thread can handle signals"):
        await asyncio.to_thread(asyncio.run, elsewhere())


async def test_a_system_without_signals_is_named(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the event loop of Windows answers."""

    def refuse(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", refuse)
    with pytest.raises(Invalid, match="on Windows: use WSL or a container"):
        (await fabric.worker()).handle_signals()


@pytest.fixture
async def strict_loop() -> AsyncIterator[None]:
    """The event loop refuses calls that are not thread-safe. It is slow, and all tests share it."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    yield
    loop.set_debug(False)


@pytest.mark.usefixtures("strict_loop")
async def test_any_thread_may_stop_a_worker(fabric: Fabric) -> None:
    """Such as a plain function that it runs."""
    workers: list[Any] = []

    @fabric.task()
    def last() -> str:
        workers[0].stop()
        return "the last one"

    worker, running = await start(fabric)
    workers.append(worker)
    run = await last.submit()
    await asyncio.wait_for(running, 60)
    assert await run.result(60) == "the last one"
    await asyncio.to_thread(worker.stop)


@pytest.mark.parametrize("twice", [False, True])
async def test_what_does_not_finish_in_time_is_handed_back(
    fabric: Fabric, log: Log, twice: bool
) -> None:
    @fabric.task()
    async def job(ctx: Context) -> str:
        log.note(await ctx.step(log.later, "step"))
        if len(log) < 3:
            await asyncio.sleep(60)
        return "done"

    worker, running = await start(fabric, drain="60s" if twice else "100ms")
    run = await job.submit()
    await until(lambda: len(log) == 2)
    worker.stop()
    if twice:
        worker.stop()
    await asyncio.wait_for(running, 60)
    await handed_back(run)
    worker, running = await start(fabric)
    assert await run.result(60) == "done"
    worker.stop()
    await running
    assert log == ["step", "step", "step"], "done once, seen twice"
    assert len(await run.attempts()) == 1


async def test_a_plain_function_that_does_not_end_keeps_no_caller_waiting(fabric: Fabric) -> None:
    release = threading.Event()

    @fabric.task()
    def job(ctx: SyncContext) -> None:
        release.wait(60)

    worker, running = await start(fabric, drain=0.05)
    run = await job.submit()
    await until(lambda: worker.active)
    worker.stop()
    await asyncio.wait_for(running, 60)
    await handed_back(run)
    release.set()


@pytest.mark.parametrize("beside", [False, True])
async def test_a_handler_that_swallows_its_cancellation_is_left_behind(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, log: Log, beside: bool
) -> None:
    """The run is handed back without it, and what it reports later does not count."""
    monkeypatch.setattr("flowfabric.worker.run.loop.STOP_GRACE", 0.2)
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                log.note("no")

    @fabric.task()
    async def job(ctx: Context) -> str:
        await ctx.gather(stubborn()) if beside else await stubborn()
        log.note("over")
        return "stale"

    worker, running = await start(fabric, drain=0.05)
    run = await job.submit()
    await until(lambda: [each for each in worker.active.values() if each.job is not None])
    job_task = next(iter(worker.active.values())).job
    worker.stop()
    await asyncio.wait_for(running, 60)
    await handed_back(run)
    assert "no" in log
    assert job_task not in asyncio.all_tasks(), "the end of asyncio.run would wait for it"
    release.set()
    await asyncio.wait([job_task])
    await handed_back(run)


async def test_a_process_that_does_not_end_is_killed_and_handed_back(
    fabric: Fabric, tmp_path: Path
) -> None:
    nap = fabric.task(process=True)(handlers.nap)
    worker, running = await start(fabric, drain=0.05)
    run = await nap.submit(str(tmp_path / "pid"))
    await until(lambda: (tmp_path / "pid").exists())
    worker.stop()
    await asyncio.wait_for(running, 60)
    await handed_back(run)
    await until(lambda: not handlers.alive(int((tmp_path / "pid").read_text())))


async def test_a_process_that_dies_with_the_worker_is_handed_back(
    fabric: Fabric, tmp_path: Path
) -> None:
    """A signal to the whole group reaches the processes too; that is nobody's failure."""
    nap = fabric.task(process=True)(handlers.nap)
    worker, running = await start(fabric)
    run = await nap.submit(str(tmp_path / "pid"))
    await until(lambda: (tmp_path / "pid").exists())
    worker.stop()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
    await asyncio.wait_for(running, 60)
    await handed_back(run)


async def test_an_error_while_being_stopped_spends_no_retry(fabric: Fabric) -> None:
    @fabric.task()
    async def job() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("while cleaning up") from None

    worker, running = await start(fabric, drain=0)
    run = await job.submit()
    await until(lambda: worker.active)
    worker.stop()
    await asyncio.wait_for(running, 60)
    await handed_back(run)


async def test_a_handler_that_finishes_while_being_stopped_has_finished(fabric: Fabric) -> None:
    @fabric.task()
    async def job() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "just in time"
        return ""

    worker, running = await start(fabric, drain=0)
    run = await job.submit()
    await until(lambda: worker.active)
    worker.stop()
    await asyncio.wait_for(running, 60)
    assert await run.result(60) == "just in time"


async def test_a_claim_that_arrives_after_the_stop_is_handed_back_unbegun(
    fabric: Fabric, log: Log
) -> None:
    @fabric.task()
    async def job() -> None:
        log.note("begun")

    run = await job.submit()
    engine = await fabric.engine()
    claim = engine.claims.claim
    worker, running = await start(fabric)

    async def slow(*args: Any, **kwargs: Any) -> Any:
        found = await claim(*args, **kwargs)
        worker.stop()
        return found

    engine.claims.claim = slow  # type: ignore[method-assign]
    await asyncio.wait_for(running, 60)
    assert log == []
    await handed_back(run)


async def test_a_stop_while_the_end_is_being_reported_loses_no_result(
    fabric: Fabric, wire: Wire, log: Log
) -> None:
    @fabric.task()
    async def job() -> str:
        wire.cut = True
        return str(log.note("result"))

    worker, running = await start(fabric, drain=0)
    run = await job.submit()
    await until(lambda: log)
    worker.stop()
    worker.stop()
    await asyncio.sleep(0.05)
    wire.cut = False
    await asyncio.wait_for(running, 60)
    assert (await run.result(60), await kinds(run)) == ("result", ["CLAIMED", "COMPLETED"])


async def test_a_sleeping_run_is_not_handed_back(fabric: Fabric) -> None:
    @fabric.task()
    async def job(ctx: Context) -> None:
        try:
            await ctx.sleep("1h")
        finally:
            unwinding.set()
            await asyncio.sleep(0.1)  # the stop arrives while it unwinds

    unwinding = asyncio.Event()
    worker, running = await start(fabric, drain=0)
    run = await job.submit()
    await unwinding.wait()
    worker.stop()
    await asyncio.wait_for(running, 60)
    assert await run.state() is PublicState.DELAYED


async def test_cancelling_the_worker_hands_everything_back(fabric: Fabric) -> None:
    @fabric.task()
    async def job() -> None:
        await asyncio.sleep(60)

    worker, running = await start(fabric)
    run = await job.submit()
    await until(lambda: worker.active)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await handed_back(run)


async def test_what_is_cancelled_before_its_handler_has_begun_is_handed_back(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a program may come in the turn of the loop between a claim and its handlers."""

    @fabric.task()
    async def job() -> None: ...

    worker = await fabric.worker()
    launch, loop = worker._launch, asyncio.get_running_loop()

    def cut(*given: Any) -> None:
        launch(*given)
        loop.call_soon(end)

    def end() -> None:
        (active,) = worker.active.values()
        assert active.job is not None
        assert not active.entered
        running.cancel()
        active.job.cancel()

    monkeypatch.setattr(worker, "_launch", cut)
    running = asyncio.create_task(worker.run())
    run = await job.submit()
    with suppress(asyncio.CancelledError):
        await running
    await handed_back(run)


def test_a_program_that_just_ends_hands_everything_back(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of `asyncio.run` cancels every task at once, in no particular order."""

    async def program() -> list[str]:
        fabric = Fabric(store_url)

        @fabric.task()
        async def job() -> None:
            await asyncio.sleep(60)

        worker, running = await start(fabric)
        left.append(running)
        runs = await job.submit_many([()] * 10)
        await until(lambda: len(worker.active) == 10)
        return [run.id for run in runs]

    async def look(ids: list[str]) -> None:
        async with Fabric(store_url) as fabric:
            for id in ids:
                await handed_back(await fabric.run(id))

    left: list[Any] = []
    with warnings.catch_warnings():
        # It does not even close its store: connections complain when they are collected.
        warnings.simplefilter("ignore", ResourceWarning)
        monkeypatch.setattr("sys.unraisablehook", lambda complaint: None)
        ids = asyncio.run(program())
        left.clear()
        gc.collect()
        monkeypatch.undo()
    asyncio.run(look(ids))


def test_a_program_that_is_interrupted_hands_everything_back(store_url: str) -> None:
    """As Ctrl-C does it: the block of the fabric ends while the worker runs."""
    ids: list[str] = []

    async def program() -> None:
        async with Fabric(store_url) as fabric:

            @fabric.task()
            async def job() -> None:
                await asyncio.sleep(60)

            worker, running = await start(fabric)
            ids.extend(run.id for run in await job.submit_many([()] * 3))
            await until(lambda: len(worker.active) == 3)
            left.append(running)
            raise KeyError

    async def look() -> None:
        async with Fabric(store_url) as fabric:
            assert await fabric.workers.list() == []
            for id in ids:
                await handed_back(await fabric.run(id))

    left: list[Any] = []
    with pytest.raises(KeyError):
        asyncio.run(program())
    # The end of the loop may cancel what the worker tidies up once it has handed everything back.
    assert [running.cancelled() or running.exception() for running in left] in ([None], [True])
    asyncio.run(look())


async def test_a_handler_that_closes_its_fabric_stops_its_worker(fabric: Fabric) -> None:
    @fabric.task()
    async def job() -> None:
        await fabric.close()

    _, running = await start(fabric)
    run = await job.submit()
    await asyncio.wait_for(running, 60)
    await handed_back(run)


async def test_a_block_inside_another_one_closes_nothing() -> None:
    async with Fabric("sqlite://:memory:") as fabric:
        engine = await fabric.engine()
        async with fabric, testing.harness(fabric):
            await fabric.lanes.list()
        assert await fabric.engine() is engine
    with pytest.raises(Unavailable):
        await engine.ping()


async def test_a_block_in_a_handler_closes_nothing(store_url: str) -> None:
    """Nor does it where the program has no block of its own: `asyncio.run(fabric.run_worker())`."""
    fabric = Fabric(store_url)

    @fabric.task()
    async def job() -> int:
        async with fabric:
            return len(await fabric.lanes.list())

    worker, running = await start(fabric)
    try:
        assert await (await job.submit()).result(10) == 1
        assert worker.is_running
        worker.stop()
        await asyncio.wait_for(running, 60)
        async with fabric:
            engine = await fabric.engine()
        with pytest.raises(Unavailable):
            await engine.ping()
    finally:
        await fabric.close()


async def test_a_worker_stopped_before_it_runs_does_nothing(bench: Bench) -> None:
    run = await bench.fabric.task()(handlers.square).submit(1)
    worker = await bench.fabric.worker()
    worker.stop()
    await asyncio.wait_for(worker.run(), 60)
    assert await run.state() is PublicState.WAITING


async def test_a_process_that_looks_for_a_task_makes_no_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It executes the main module, which starts a worker unless it asks for `__main__`."""
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(Invalid, match='below `if __name__ == "__main__":`'):
        await bench.fabric.worker()


async def test_a_worker_runs_once(bench: Bench) -> None:
    worker = await bench.fabric.worker()
    working = asyncio.ensure_future(worker.run())
    await asyncio.sleep(0)
    with pytest.raises(Invalid, match="has run or is running"):
        await worker.run()
    worker.stop()
    await asyncio.wait_for(working, 60)
    with pytest.raises(Invalid, match="has run or is running"):
        await worker.run()


async def test_a_store_that_is_away_does_not_keep_a_worker_from_stopping(
    fabric: Fabric, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.worker.run.loop.LAST_MOMENT", 0.5)
    monkeypatch.setattr("flowfabric.worker.run.loop.STOP_GRACE", 0.2)

    @fabric.task()
    async def job() -> None:
        await asyncio.sleep(60)

    worker, running = await start(fabric, drain=0)
    await job.submit()
    await until(lambda: worker.active)
    wire.cut = True
    worker.stop()
    await asyncio.wait_for(running, 60)
    wire.cut = False


# -- the process


class Program:
    """A worker in a process of its own, with handlers that do not end."""

    def __init__(self, url: str, *tasks: str) -> None:
        command = [sys.executable, "-m", "tests.worker.apps.stubborn", url, *tasks]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def until_begun(self, count: int) -> list[str]:
        """The ids of the runs."""
        assert self.process.stdout is not None
        begun: list[str] = []
        for line in self.process.stdout:
            begun += [line.split()[1]] if line.startswith("begun") else []
            if len(begun) == count:
                return begun
        raise AssertionError("the program has ended")

    def end(self, signals: int = 1) -> int:
        for _ in range(signals):
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize(
    "tasks",
    [
        ("swallows", "thread"),
        ("pool_thread",),
        ("swallows", "swallows_beside", "thread", "pool_thread", "own_thread", "full_pool"),
    ],
    ids=len,
)
async def test_a_process_whose_handlers_do_not_end_ends_in_time(
    store_url: str, tasks: tuple[str, ...]
) -> None:
    """In the loop, beside it, in threads of all kinds: all is handed back and left behind."""
    with Program(store_url, *tasks) as program:
        ids = await asyncio.to_thread(program.until_begun, len(tasks))
        assert await asyncio.to_thread(program.end) == 0
    async with Fabric(store_url) as fabric:
        for id in ids:
            await handed_back(await fabric.run(id))


async def test_a_process_whose_event_loop_is_blocked_ends_in_time(store_url: str) -> None:
    """Nothing can be handed back; the lease runs out."""
    with Program(store_url, "blocks") as program:
        (id,) = await asyncio.to_thread(program.until_begun, 1)
        assert await asyncio.to_thread(program.end) == 1
    async with Fabric(store_url) as fabric:
        assert await (await fabric.run(id)).state() is PublicState.ACTIVE
