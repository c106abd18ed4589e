"""The log of attempts: each one that ended is told once, with what comes next."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import Context, Fabric, Fail, Fixed, Retry, Run, SyncContext, testing
from flowfabric.core.base.time import to_datetime
from flowfabric.core.execution.model import WorkerIdentity
from tests.worker import handlers
from tests.worker.bench import TTL, Bench, Wire, until, working

pytestmark = pytest.mark.rules

LOGGER = "flowfabric.worker"
FIVE_MINUTES: Any = "5m"


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)


def told(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """The records about ends of attempts."""
    return [record for record in caplog.records if hasattr(record, "outcome")]


def levels(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.outcome) for record in told(caplog)]


async def test_a_failed_attempt_says_when_it_is_retried(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.fabric.task(retries=1, backoff=Fixed(delay=FIVE_MINUTES))
    async def charge(order: int) -> None:
        raise ValueError(f"order {order} is odd\nand more")

    run = await charge.submit(7)
    await bench.work()
    (record,) = told(caplog)
    retry_at = to_datetime(bench.clock.now()) + timedelta(minutes=5)
    when = retry_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert record.getMessage() == (
        f"run {run.id} of task charge failed in attempt 1: ValueError: order 7 is odd; "
        f"attempt 2 starts at {when}"
    )
    assert (record.run, record.task, record.attempt) == (str(run.id), "charge", 1)
    assert (record.error, record.error_type) == (
        "ValueError: order 7 is odd\nand more",
        "ValueError",
    )
    assert (record.outcome, record.retry_at, record.levelname) == ("retrying", retry_at, "WARNING")
    assert "in charge" in caplog.text, "the traceback leads to the line"

    caplog.clear()
    await bench.pass_time(300_000)
    await bench.work()
    (record,) = told(caplog)
    assert record.getMessage() == (
        f"run {run.id} of task charge failed in attempt 2: ValueError: order 7 is odd; "
        "it has failed and is not retried"
    )
    assert (record.attempt, record.outcome, record.retry_at) == (2, "failed", None)
    assert (record.levelname, record.exc_info[0]) == ("ERROR", ValueError)
    first = record.exc_info[2].tb_frame.f_code
    assert first.co_name == "charge", "the traceback begins in the code of the user"


@pytest.mark.parametrize("error", [Fail("no"), Retry("later", after="1h")])
async def test_what_a_handler_raises_on_purpose_is_a_failed_attempt_too(
    bench: Bench, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    @bench.fabric.task(retries=3)
    async def job() -> None:
        raise error

    await job.submit()
    await bench.work()
    (record,) = told(caplog)
    assert record.error_type == type(error).__name__
    assert record.outcome == ("failed" if isinstance(error, Fail) else "retrying")


async def test_a_plain_function_is_told_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.fabric.task()
    def job(ctx: SyncContext) -> None:
        ctx.step(handlers.raises, "plain")

    await job.submit()
    await bench.work()
    assert levels(caplog) == [("ERROR", "failed")]
    assert caplog.text.count("ValueError: boom") == 2, "in the text and in the traceback"


async def test_a_function_in_a_process_is_told_once_with_its_own_traceback(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    raises = bench.fabric.task(process=True)(handlers.raises)
    await raises.submit("plain")
    await bench.work()
    (record,) = told(caplog)
    assert (record.error_type, record.error) == ("ValueError", "ValueError: boom")
    assert "handlers.py" in caplog.text
    assert "raise errors[what]" in caplog.text


async def test_a_process_that_dies_is_told(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    crash = bench.fabric.task(process=True)(handlers.crash)
    await crash.submit()
    await bench.work()
    (record,) = told(caplog)
    assert (record.outcome, record.category) == ("failed", "infra_crash")


async def test_failures_without_an_exception_of_the_handler_are_told(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.fabric.task()
    async def opaque() -> Any:
        return object()

    @bench.fabric.task()
    async def picky(number: int) -> None: ...

    @bench.fabric.task()
    async def leaves() -> None:
        raise asyncio.CancelledError

    await opaque.submit()
    await bench.fabric.tasks["picky"].submit(1)
    await bench.work()
    assert levels(caplog) == [("ERROR", "failed"), ("DEBUG", "completed")]
    assert "what opaque returned cannot be stored" in told(caplog)[0].getMessage()
    caplog.clear()
    await leaves.submit()
    await bench.work()
    assert "the handler cancelled itself" in told(caplog)[0].getMessage()


async def test_success_is_told_at_debug(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    @bench.fabric.task()
    async def job() -> int:
        return 1

    run = await job.submit()
    await bench.work()
    assert levels(caplog) == [("DEBUG", "completed")]
    assert told(caplog)[0].getMessage() == f"run {run.id} of task job completed in attempt 1"
    caplog.clear()
    caplog.set_level(logging.INFO, LOGGER)
    await job.submit()
    await bench.work()
    assert not caplog.records


@pytest.mark.parametrize("retries", [0, 1])
async def test_a_timeout_is_told_at_info(
    fabric: Fabric, caplog: pytest.LogCaptureFixture, retries: int
) -> None:
    @fabric.task(timeout=0.05, retries=retries, backoff=Fixed(delay=FIVE_MINUTES))
    async def slow() -> None:
        await asyncio.sleep(30)

    run = await slow.submit()
    async with working(fabric, ttl="30s"):
        await until(lambda: told(caplog))
    (record,) = told(caplog)
    assert (record.levelname, record.category) == ("INFO", "timeout")
    why = "slow took longer than its timeout"
    what = f"run {run.id} of task slow ran out of time in attempt 1: {why}"
    if retries:
        assert record.getMessage().startswith(f"{what}; attempt 2 starts at ")
    else:
        assert record.getMessage() == f"{what}; it has expired"


async def test_a_deadline_that_passes_is_told_by_the_worker_that_runs_it(
    fabric: Fabric, caplog: pytest.LogCaptureFixture
) -> None:
    @fabric.task()
    async def ready() -> None: ...

    @fabric.task(deadline="2s")
    async def slow() -> None:
        await asyncio.sleep(30)

    async with working(fabric, ttl="30s"):
        await ready.submit()
        await until(lambda: told(caplog))  # the worker takes the next one at once
        caplog.clear()
        run = await slow.submit()
        await until(lambda: told(caplog))
    (record,) = told(caplog)
    assert (record.levelname, record.outcome) == ("INFO", "expired")
    assert record.getMessage() == (
        f"run {run.id} of task slow ran out of time in attempt 1: the run has passed its "
        "deadline; it has expired"
    )


async def test_a_cancel_is_told_at_info_with_its_reason(
    fabric: Fabric, caplog: pytest.LogCaptureFixture
) -> None:
    @fabric.task()
    async def job() -> None:
        await asyncio.sleep(30)

    async with working(fabric, ttl="30s") as worker:
        run = await job.submit()
        await until(lambda: worker.active)
        await run.cancel(reason="ordered twice")
        await until(lambda: told(caplog))
    (record,) = told(caplog)
    assert (record.levelname, record.outcome, record.error) == (
        "INFO",
        "cancelled",
        "ordered twice",
    )
    assert record.getMessage() == (
        f"run {run.id} of task job was cancelled in attempt 1; its handler was stopped: "
        "ordered twice"
    )
    assert not [each for each in caplog.records if each.levelno > logging.INFO]


async def test_a_hand_back_is_told_at_info(
    fabric: Fabric, caplog: pytest.LogCaptureFixture
) -> None:
    @fabric.task()
    async def job() -> None:
        await asyncio.sleep(30)

    async with working(fabric, ttl="30s") as worker:
        run = await job.submit()
        await until(lambda: worker.active)
        await asyncio.sleep(0)
    assert levels(caplog) == [("INFO", "handed_back")]
    assert told(caplog)[0].getMessage() == (
        f"run {run.id} of task job was handed back in attempt 1; another worker continues it"
    )


async def test_a_run_that_sleeps_is_told_once_when_it_ends(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.sleep("1m")
        await ctx.sleep(0)
        raise ValueError("late")

    await bench.work_through(await job.submit())
    assert levels(caplog) == [("ERROR", "failed")]


async def test_a_report_that_is_repeated_is_told_once(
    fabric: Fabric, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    @fabric.task()
    async def job() -> None:
        wire.cut = True
        asyncio.get_running_loop().call_later(0.2, setattr, wire, "cut", False)
        raise ValueError("boom")

    async with working(fabric, ttl="30s"):
        await job.submit()
        await until(lambda: told(caplog))
    assert levels(caplog) == [("ERROR", "failed")]


@pytest.mark.parametrize("revoked", [False, True])
async def test_a_lost_attempt_is_told_by_the_worker_that_takes_over(
    bench: Bench, caplog: pytest.LogCaptureFixture, revoked: bool
) -> None:
    """The worker that lost it may be dead."""

    @bench.fabric.task()
    async def job() -> None: ...

    run = await job.submit()
    dead = WorkerIdentity("mailer", "mailer-1")
    await bench.engine.claims.claim(dead, kinds=["job"], limit=1, ttl=TTL)
    if revoked:
        await bench.engine.claims.revoke(run.id, reason="host lost")
    else:
        await bench.lose()
    await bench.work()
    first, second = told(caplog)
    reason = " (host lost)" if revoked else ""
    assert first.getMessage() == (
        f"run {run.id} of task job was lost by worker mailer-1 in attempt 1{reason}; "
        "attempt 2 starts here"
    )
    assert (first.levelname, first.outcome, first.attempt) == ("WARNING", "lost", 1)
    assert (second.outcome, second.attempt) == ("completed", 2)


async def test_the_harness_tells_the_same_once(caplog: pytest.LogCaptureFixture) -> None:
    fabric = Fabric("sqlite://:memory:")

    @fabric.task(retries=1)
    async def job(ctx: Context) -> None:
        raise ValueError("boom")

    square = fabric.task(process=True)(handlers.raises)
    async with testing.harness(fabric) as harness:
        runs: list[Run[None]] = [await job.submit(), await square.submit("plain")]
        for run in runs:
            await harness.run_until_done(run)
    assert sorted((record.task, record.attempt, record.outcome) for record in told(caplog)) == [
        ("job", 1, "retrying"),
        ("job", 2, "failed"),
        ("raises", 1, "failed"),
    ]
