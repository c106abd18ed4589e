"""`on_success` and `on_failure` of a task, and `fabric.on_attempt_end`: told once, when the end is
recorded, and without power over it."""

import asyncio
import logging
import threading
from typing import Any

import pytest

from flowfabric import AttemptEnd, Context, Fabric, Fixed, Invalid, testing
from tests.worker import handlers
from tests.worker.bench import AGAIN, Bench, Log, Wire, renew_now, until, working

pytestmark = pytest.mark.rules


async def test_success_and_failure_are_told_to_their_hook(bench: Bench, log: Log) -> None:
    async def well(end: AttemptEnd) -> None:
        log.note(("well", end.task, end.args, end.kwargs, end.result, end.attempt))

    def badly(end: AttemptEnd) -> None:
        log.note(("badly", end.outcome, repr(end.error), end.message, end.attempt))

    @bench.fabric.task(on_success=well, on_failure=badly, **AGAIN | {"retries": 1})
    async def divide(a: int, *, by: int) -> int:
        return a // by

    run = await divide.submit(6, by=2)
    await bench.work()
    assert await run.result() == 3
    await divide.submit(6, by=0)
    await bench.work()
    error = "integer division or modulo by zero"
    assert log == [
        ("well", "divide", (6,), {"by": 2}, 3, 1),
        (
            *("badly", "failed", f"ZeroDivisionError({error!r})"),
            *(f"ZeroDivisionError: {error}", 2),
        ),
    ], "a failure that is retried is not the end"


async def test_the_end_is_recorded_before_it_is_told(bench: Bench, log: Log) -> None:
    async def look(end: AttemptEnd) -> None:
        run = await bench.fabric.run(end.run.id)
        log.note((await run.state()).value)

    @bench.fabric.task(on_success=look, on_failure=look)
    async def job(fails: bool) -> None:
        if fails:
            raise ValueError

    for fails in (True, False):
        await job.submit(fails)
        await bench.work()
    assert log == ["failed", "completed"]


async def test_every_listener_is_told_of_every_end(bench: Bench, log: Log) -> None:
    @bench.fabric.on_attempt_end
    async def first(end: AttemptEnd) -> None:
        log.note((end.outcome, end.attempt, end.retry_at is not None, end.error_type))

    @bench.fabric.on_attempt_end
    def second(end: AttemptEnd) -> None:
        log.note(threading.current_thread() is threading.main_thread())

    @bench.fabric.task(retries=1, backoff=Fixed(delay=0))
    async def job(ctx: Context) -> None:
        if ctx.info.first:
            raise KeyError("x")

    await job.submit()
    await bench.work()
    assert log == [("retrying", 1, True, "KeyError"), False, ("completed", 2, False, ""), False]


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, BaseException])
async def test_a_hook_that_raises_changes_nothing_and_is_logged(
    bench: Bench, log: Log, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    @bench.fabric.on_attempt_end
    async def broken(end: AttemptEnd) -> None:
        raise kind("the hook is broken")

    @bench.fabric.task(on_success=lambda end: log.note("told"))
    async def job() -> int:
        return 1

    run = await job.submit()
    await bench.work()
    assert await run.result() == 1
    assert log == ["told"]
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.getMessage().endswith(f"failed for run {run.id}, which stays completed")
    assert "the hook is broken" in caplog.text


async def test_it_is_told_once_although_the_report_is_repeated(
    fabric: Fabric, wire: Wire, log: Log
) -> None:
    @fabric.task(on_success=log.note)
    async def job() -> None:
        wire.cut = True
        asyncio.get_running_loop().call_later(0.2, setattr, wire, "cut", False)

    async with working(fabric, ttl="30s"):
        await job.submit()
        await until(lambda: log)
    assert [end.outcome for end in log] == ["completed"]


async def test_a_slow_hook_does_not_make_its_run_look_lost(
    fabric: Fabric, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slow(end: AttemptEnd) -> None:
        entered.set()
        await go_on.wait()
        log.note("told")

    @fabric.task(on_success=slow)
    async def job() -> None: ...

    @fabric.task()
    async def beside() -> None:
        await go_on.wait()

    async with working(fabric) as worker:
        await beside.submit()  # so that there is something to renew
        await job.submit()
        await entered.wait()
        await until(lambda: len(worker.active) == 2)  # it keeps its slot
        for _ in range(3):
            await renew_now(worker)
        go_on.set()
        await until(lambda: not worker.active)
    assert log == ["told"]
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_the_result_of_a_process_is_told(bench: Bench, log: Log) -> None:
    square = bench.fabric.task(process=True, on_success=lambda end: log.note(end.result))(
        handlers.square
    )
    await square.submit(3)
    await bench.work()
    assert log == [9]


async def test_an_expired_run_is_a_failure_and_a_cancelled_one_is_not(
    fabric: Fabric, log: Log
) -> None:
    @fabric.on_attempt_end
    def all_of_them(end: AttemptEnd) -> None:
        log.note(f"all {end.task} {end.outcome}")

    def badly(end: AttemptEnd) -> None:
        log.note(f"{end.task} {end.error!r}")

    @fabric.task(timeout=0.05, on_failure=badly)
    async def slow() -> None:
        await asyncio.sleep(30)

    @fabric.task(on_failure=badly, on_success=badly)
    async def cancelled() -> None:
        await asyncio.sleep(30)

    async with working(fabric, ttl="30s") as worker:
        await slow.submit()
        await until(lambda: len(log) == 2)
        run = await cancelled.submit()
        await until(lambda: worker.active)
        await run.cancel()
        await until(lambda: not worker.active)
    assert log == [
        "all slow expired",
        "slow AttemptTimedOut('slow took longer than its timeout')",
        "all cancelled cancelled",
    ]


@pytest.mark.parametrize("name", ["on_success", "on_failure"])
async def test_what_is_no_function_is_refused(bench: Bench, name: str) -> None:
    options: dict[str, Any] = {name: "later"}
    with pytest.raises(Invalid, match=f"{name} must be a function, not str"):
        bench.fabric.task(**options)
    with pytest.raises(Invalid, match="a function is needed"):
        bench.fabric.on_attempt_end("later")  # type: ignore[type-var]


async def test_the_harness_waits_for_the_hooks(log: Log) -> None:
    fabric = Fabric("sqlite://:memory:")

    async def well(end: AttemptEnd) -> None:
        await (await note.submit(end.result)).result()

    def badly(end: AttemptEnd) -> None:
        log.note(end.message)

    @fabric.task(on_success=well, on_failure=badly)
    async def job(number: int) -> int:
        return 10 // number

    @fabric.task()
    async def note(number: int) -> None:
        log.note(number)

    async with testing.harness(fabric) as harness:
        assert await harness.run(job, 2) == 5
        assert log == [5]
        await harness.run_until_done(await job.submit(0))
        assert log[1:] == ["ZeroDivisionError: integer division or modulo by zero"]
