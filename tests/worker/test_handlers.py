"""How a handler ends, and what becomes of its run: in the event loop, in a thread, in a process."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowfabric import (
    Context,
    Fabric,
    Fail,
    Fixed,
    PublicState,
    Retry,
    RunExpired,
    RunFailed,
    Submission,
    SyncContext,
)
from tests.worker import handlers
from tests.worker.bench import Bench, Log, Wire, until, working

pytestmark = pytest.mark.rules

SOON: dict[str, Any] = {"retries": 1, "backoff": Fixed(delay=0)}


async def failure(bench: Bench, run: Any) -> RunFailed:
    with pytest.raises(RunFailed) as caught:
        await run.result(60)
    return caught.value


# -- where it runs


async def test_a_coroutine_a_plain_function_and_a_process(bench: Bench) -> None:
    """E-T154"""

    @bench.fabric.task()
    async def coroutine(x: int) -> int:
        return x + 1

    @bench.fabric.task()
    def plain(x: int) -> str:
        return f"{x} in {threading.current_thread().name}"

    square = bench.fabric.task(process=True)(handlers.square)
    runs = [await coroutine.submit(1), await square.submit(3), await square.submit(4)]
    threaded = await plain.submit(2)
    await bench.work(processes=1)
    assert [await run.result() for run in runs] == [2, 9, 16]
    assert (await threaded.result()).startswith("2 in flowfabric-task")


async def test_a_plain_function_that_gives_something_to_await(bench: Bench) -> None:
    async def later() -> int:
        return 5

    @bench.fabric.task()
    def job() -> Any:
        return later()

    run = await job.submit()
    await bench.work()
    assert await run.result() == 5


async def test_a_coroutine_that_got_the_context_of_a_plain_function_does_not_stop_the_worker(
    bench: Bench,
) -> None:
    """Waiting in the event loop would stop every other run of the worker, for ever."""

    def logged(function: Any) -> Any:
        def call(ctx: SyncContext, x: int) -> Any:  # without functools.wraps
            return function(ctx, x)

        return call

    async def job(ctx: Context, x: int) -> int:
        return await ctx.step(abs, x)

    run = await bench.fabric.task(name="job")(logged(job)).submit(-1)
    await bench.work()
    assert "a decorator needs functools.wraps" in (await failure(bench, run)).message


async def test_processes_are_used_again_and_gone_when_the_worker_is(fabric: Fabric) -> None:
    whoami = fabric.task(process=True)(handlers.whoami)
    async with working(fabric, processes=1):
        pids = {await (await whoami.submit()).result(60) for _ in range(3)}
        assert len(pids) == 1
    await until(lambda: not handlers.alive(pids.copy().pop()))


# -- what it raises


async def test_an_exception_is_retried_as_the_task_says(bench: Bench) -> None:
    tries: list[int] = []

    @bench.fabric.task(retries=2, backoff=Fixed(delay="70ms"))
    async def job(ctx: Context) -> None:
        tries.append(ctx.info.attempt)
        raise ValueError("no luck")

    run = await job.submit()
    for _ in range(3):
        assert await bench.work() == 1
        await bench.pass_time(70)
    assert tries == [1, 2, 3]
    error = await failure(bench, run)
    assert (error.message, error.category) == ("ValueError: no luck", "handler_error")


@pytest.mark.parametrize("where", ["async", "thread", "process"])
async def test_fail_is_final_whatever_retries_are_left(bench: Bench, where: str) -> None:
    run = await raising(bench, where, "fail")
    error = await failure(bench, run)
    assert (error.message, error.category) == ("Fail: for good", "permanent")
    assert len(await run.attempts()) == 1


async def test_fail_is_final_whatever_caused_it(bench: Bench) -> None:
    tries: list[int] = []

    @bench.fabric.task(retries=3)
    async def job() -> None:
        tries.append(1)
        try:
            raise SystemExit(3)
        except SystemExit as error:
            raise Fail("for good") from error

    run = await job.submit()
    await bench.work()
    assert (await failure(bench, run)).category == "permanent"
    assert len(tries) == 1


@pytest.mark.parametrize("where", ["async", "thread", "process"])
async def test_retry_comes_when_it_was_asked_for(bench: Bench, where: str) -> None:
    run = await raising(bench, where, "retry")
    assert await run.state() is PublicState.DELAYED
    await bench.pass_time(3_599_999)
    assert await run.state() is PublicState.DELAYED
    await bench.pass_time(1)
    assert await run.state() is PublicState.WAITING
    (attempt,) = await run.attempts()
    assert attempt.failure is not None
    assert attempt.failure.message == "Retry: soon"


@pytest.mark.parametrize("where", ["async", "thread", "process"])
@pytest.mark.parametrize("what", ["plain", "picky", "exit", "closed", "base"])
async def test_every_exception_is_reported_and_harms_no_other_run(
    bench: Bench, where: str, what: str
) -> None:
    """E-T154, server-sdk.md 7.15"""
    run = await raising(bench, where, what)
    (attempt,) = await run.attempts()
    assert attempt.failure is not None
    words = {
        "plain": "ValueError: boom",
        "picky": "Picky: 7: odd",
        "exit": "handler panicked: SystemExit: 3",
        "closed": "handler panicked: GeneratorExit",
        "base": "handler panicked: BaseException: odd",
    }
    assert attempt.failure.message == words[what]
    assert attempt.failure.category == (
        "handler_error" if what in ("plain", "picky") else "handler_panic"
    )
    assert b"handlers.py" in (attempt.failure.detail or b"")


async def test_a_failure_names_what_the_error_was_raised_from(bench: Bench) -> None:
    """server-sdk.md 3.4: the chain of errors, joined"""

    @bench.fabric.task
    async def job() -> None:
        try:
            try:
                raise OSError("no route")
            except OSError as error:
                raise TimeoutError from error
        except TimeoutError as error:
            raise ValueError("no price") from error

    run = await job.submit()
    await bench.work()
    error = await failure(bench, run)
    assert error.message == "ValueError: no price: TimeoutError: OSError: no route"


async def test_a_failure_does_not_name_an_error_of_the_engine_twice(bench: Bench) -> None:
    await bench.fabric.budget("team", tokens=5)

    @bench.fabric.task(budgets=["team"])
    async def job(ctx: Context) -> None:
        await ctx.spend(tokens=8)

    run = await job.submit()
    await bench.work()
    said = "BudgetExceeded: budget team: 0 of 5 tokens are taken, 8 more do not fit"
    assert (await failure(bench, run)).message == said


async def raising(bench: Bench, where: str, what: str) -> Any:
    options: dict[str, Any] = {"name": "job", "retries": 1, "backoff": Fixed(delay="1ms")}
    if where == "process":
        task = bench.fabric.task(process=True, **options)(handlers.raises)
    elif where == "thread":
        task = bench.fabric.task(**options)(handlers.raises)
    else:

        async def coroutine(what: str) -> None:
            handlers.raises(what)

        task = bench.fabric.task(**options)(coroutine)
    run = await task.submit(what)
    assert await bench.work(processes=1) == 1
    return run


async def test_a_retry_that_cannot_be_understood_fails_the_run(bench: Bench) -> None:
    @bench.fabric.task(retries=5)
    async def job() -> None:
        raise Retry("x", after="soonish")

    run = await job.submit()
    await bench.work()
    assert "after is not a duration" in (await failure(bench, run)).message


async def test_an_error_that_cannot_say_what_it_is(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "flowfabric.worker")  # a report of pytest cannot carry \ud800

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    @bench.fabric.task()
    async def job() -> None:
        raise Mute

    @bench.fabric.task()
    async def odd() -> None:
        raise ValueError("nul \0 and \ud800 and " + "x" * 100_000)

    one, other = await job.submit(), await odd.submit()
    await bench.work()
    assert (await failure(bench, one)).message == "Mute"
    assert (await failure(bench, other)).message.startswith("ValueError: nul ␀ and ? and xxx")


async def test_a_plain_function_may_raise_stop_iteration(bench: Bench) -> None:
    """Which no future of an event loop can hold."""

    @bench.fabric.task()
    def job() -> None:
        next(iter([]))

    run = await job.submit()
    await asyncio.wait_for(bench.work(), 60)
    assert "StopIteration" in (await failure(bench, run)).message


async def test_an_error_about_another_run_is_not_taken_for_a_lost_lease(bench: Bench) -> None:
    @bench.fabric.task()
    async def other() -> None: ...

    ended = await other.submit()
    await bench.work()

    @bench.fabric.task()
    async def job() -> None:
        await ended.cancel()

    run = await job.submit()
    await bench.work()
    assert "AlreadyEnded" in (await failure(bench, run)).message


@pytest.mark.parametrize("how", ["raise", "cancel"])
async def test_a_handler_that_cancels_itself_has_failed(bench: Bench, how: str) -> None:
    @bench.fabric.task(**SOON)
    async def job(ctx: Context) -> str:
        if not ctx.info.first:
            return "second"
        if how == "raise":
            raise asyncio.CancelledError
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)
        return "first"

    run = await job.submit()
    await bench.work()
    assert await run.result() == "second"
    first, _ = await run.attempts()
    assert first.failure is not None
    assert first.failure.message == "the handler cancelled itself"


# -- what it is given, what it returns


async def test_a_poison_payload_fails_that_one_run(bench: Bench) -> None:
    @bench.fabric.task(retries=5)
    async def job(x: int) -> int:
        return x

    submit = bench.engine.executions.submit
    poisons = [
        await submit(Submission(kind="job", payload=p)) for p in (b"{", b'{"x": "one"}', b"")
    ]
    good = await job.submit(3)
    assert await bench.work() == 4
    assert await good.result() == 3
    for poison in poisons:
        error = await failure(bench, await bench.fabric.run(poison.id))
        assert "the arguments do not fit" in error.message
        assert (error.category, len(await good.attempts())) == ("extractor_payload_decode", 1)


async def test_a_task_this_worker_does_not_have_is_left_alone(bench: Bench) -> None:
    await bench.engine.executions.submit(Submission(kind="somebody else's"))
    bench.fabric.task(name="mine")(handlers.square)
    assert await bench.work() == 0
    assert (await bench.engine.views.counts()).by_state["waiting"] == 1


async def test_a_task_that_went_away_after_the_claim_is_given_back(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    task = bench.fabric.task(name="mine")(handlers.square)
    run = await task.submit(1)
    worker = await bench.fabric.worker()
    worker._tasks = {}
    assert await worker.run_until_idle() == 1
    assert await run.state() is PublicState.DELAYED
    assert "no task is named 'mine' here" in caplog.text
    await bench.pass_time(5_000)
    await bench.work()
    assert await run.result() == 1
    assert len(await run.attempts()) == 1


@pytest.mark.parametrize("process", [False, True])
async def test_a_result_that_cannot_be_stored_fails_the_run(bench: Bench, process: bool) -> None:
    task = bench.fabric.task(process=process, retries=3)(handlers.opaque)
    run = await task.submit()
    assert await bench.work() == 1
    error = await failure(bench, run)
    assert "what opaque returned cannot be stored: object" in error.message
    assert error.category == "permanent"


async def test_a_result_that_is_too_large_fails_the_run(bench: Bench) -> None:
    @bench.fabric.task(retries=3)
    async def job() -> str:
        return "x" * (1 << 20)

    run = await job.submit()
    assert await bench.work() == 1
    error = await failure(bench, run)
    assert "how it ended cannot be stored: result has 1048578 bytes" in error.message


# -- how long it may take


@pytest.mark.parametrize("retries", [0, 1])
async def test_a_coroutine_that_takes_too_long_is_stopped(fabric: Fabric, retries: int) -> None:
    stopped: list[str] = []

    @fabric.task(timeout="100ms", retries=retries, backoff=Fixed(delay=0))
    async def job(ctx: Context) -> str:
        if not ctx.info.first:
            return "second"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append("stopped")
            raise
        return "first"

    async with working(fabric):
        run = await job.submit()
        if retries:
            assert await run.result(60) == "second"
        else:
            with pytest.raises(RunExpired, match="attempt_timeout"):
                await run.result(60)
    assert stopped == ["stopped"]


async def test_a_process_that_takes_too_long_is_killed(fabric: Fabric, tmp_path: Path) -> None:
    nap = fabric.task(process=True, timeout="3s")(handlers.nap)
    square = fabric.task(process=True)(handlers.square)
    async with working(fabric, processes=1, ttl=30_000):
        await (await square.submit(1)).result(60)  # the process is there, so starting costs nothing
        run = await nap.submit(str(tmp_path / "pid"))
        await until(lambda: (tmp_path / "pid").exists())
        with pytest.raises(RunExpired):
            await run.result(60)
        await until(lambda: not handlers.alive(int((tmp_path / "pid").read_text())))
        assert await (await square.submit(2)).result(60) == 4


async def test_a_plain_function_that_takes_too_long_keeps_its_slot_until_it_ends(
    fabric: Fabric, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    @fabric.task(timeout="100ms")
    def stubborn(ctx: SyncContext) -> None:
        release.wait(30)
        try:
            ctx.step(log.note, "too late")
        except BaseException as error:
            log.note(type(error).__name__)
            raise

    @fabric.task()
    async def quick() -> str:
        return "done"

    async with working(fabric, concurrency=1) as worker:
        run = await stubborn.submit()
        with pytest.raises(RunExpired):
            await run.result(60)
        await until(lambda: not worker.active)
        waiting = await quick.submit()
        with pytest.raises(TimeoutError):
            await waiting.result(0.3)
        assert "its thread still runs" in caplog.text
        assert worker.presence.running == 1, "the registry says that the worker is busy"
        release.set()
        assert await waiting.result(60) == "done"
    assert log == ["Unwind"]


async def test_a_plain_function_can_ask_whether_it_should_stop(fabric: Fabric, log: Log) -> None:
    @fabric.task(timeout="100ms")
    def polite(ctx: SyncContext) -> None:
        try:
            while True:
                ctx.heartbeat()
                time.sleep(0.005)
        finally:
            log.note("stopped")

    async with working(fabric):
        run = await polite.submit()
        with pytest.raises(RunExpired):
            await run.result(60)
        await until(lambda: log == ["stopped"])


async def test_time_spent_asleep_does_not_count(bench: Bench) -> None:
    @bench.fabric.task(timeout="10s")
    async def job(ctx: Context) -> str:
        await ctx.sleep("1h")
        return "done"

    run = await job.submit()
    await bench.work_through(run)
    assert await run.result() == "done"


# -- a store that is away


async def test_how_it_ended_is_reported_when_the_store_is_back(
    fabric: Fabric, wire: Wire, log: Log
) -> None:
    @fabric.task()
    async def job() -> str:
        wire.cut = True
        asyncio.get_running_loop().call_later(0.3, setattr, wire, "cut", False)
        return str(log.note("done"))

    async with working(fabric):
        run = await job.submit()
        assert await run_result_through(run) == "done"
    assert (log, len(await run.attempts())) == (["done"], 1)


async def run_result_through(run: Any) -> Any:
    """The result, asked for again while the store is away."""
    from flowfabric import Unavailable

    async with asyncio.timeout(60):
        while True:
            try:
                return await run.result()
            except Unavailable:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("handler", "how"),
    [
        (handlers.crash, "SIGSEGV"),
        (handlers.run_out_of_memory, "SIGKILL, perhaps for lack of memory"),
        (handlers.leave, "exit code 3"),
    ],
)
async def test_a_process_that_dies_ends_no_other_run(
    bench: Bench, handler: Callable[[], None], how: str
) -> None:
    crash = bench.fabric.task(process=True, name="crash")(handler)
    square = bench.fabric.task(process=True)(handlers.square)
    run, other = await crash.submit(), await square.submit(5)
    await bench.work(processes=1)
    error = await failure(bench, run)
    message = f"the process that ran crash died: {how}"
    assert (error.message, error.category) == (message, "infra_crash")
    assert await other.result() == 25
