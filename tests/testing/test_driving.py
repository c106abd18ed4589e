"""The harness: runs are driven by the test, and time passes when the test says so."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flowfabric import (
    Context,
    Fabric,
    Fail,
    Invalid,
    PublicState,
    RunExpired,
    RunFailed,
    SyncContext,
    testing,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.schedule import CatchUp, Schedule
from flowfabric.core.execution.submission import Submission
from flowfabric.store.queries import Query
from flowfabric.testing import Harness, ManualClock, Stuck, driver, harness
from tests.worker import handlers

DAY = 86_400_000


def add_reminder(fabric: Fabric, span: str = "3d") -> Any:
    @fabric.task(retries=3)
    async def remind(ctx: Context, text: str) -> str:
        await ctx.sleep(span)
        return text

    return remind


# -- one run


async def test_a_task_is_submitted_driven_and_answered_in_one_call(
    fabric: Fabric, harness: Harness
) -> None:
    @fabric.task()
    async def double(n: int) -> int:
        return 2 * n

    @fabric.task()
    def half(n: int) -> float:
        return n / 2

    assert await harness.run(double, 21) == 42
    assert await harness.run(half.with_options(priority=5), n=5) == 2.5


async def test_what_a_run_raises_is_raised(fabric: Fabric, harness: Harness) -> None:
    @fabric.task(retries=9)
    async def pay() -> None:
        raise Fail("no money")

    with pytest.raises(RunFailed, match="no money"):
        await harness.run(pay)


async def test_the_clock_jumps_over_sleeps_delays_and_backoffs(
    fabric: Fabric, harness: Harness
) -> None:
    @fabric.task(retries=5)
    async def stubborn(ctx: Context) -> int:
        await ctx.sleep("3d")
        if ctx.info.attempt < 5:
            raise ConnectionError
        return ctx.info.attempt

    began = harness.clock.now()
    assert await harness.run(stubborn.with_options(delay="10d")) == 5
    backoffs = 1_000 + 2_000 + 4_000 + 8_000
    assert harness.clock.now() - began == 13 * DAY + backoffs


async def test_the_retries_of_a_step_follow_at_once(fabric: Fabric, harness: Harness) -> None:
    tries: list[int] = []

    @fabric.step(retries=3)
    async def flaky() -> int:
        tries.append(1)
        if len(tries) % 4:
            raise ConnectionError
        return len(tries)

    @fabric.task()
    async def job() -> int:
        return await flaky()

    @fabric.task()
    def plain(ctx: SyncContext) -> int:
        return ctx.step(flaky)

    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await harness.run(job) == 4
    assert await harness.run(plain) == 8
    assert loop.time() - began < 7.0  # the pauses take 14 seconds


async def test_waiting_for_a_result_drives_the_run(fabric: Fabric, harness: Harness) -> None:
    remind = add_reminder(fabric)
    runs = await remind.submit_many(["a", "b", "c"])
    assert await asyncio.gather(*(run.result() for run in runs)) == ["a", "b", "c"]


async def test_the_timeout_of_a_result_is_one_of_the_manual_clock(
    fabric: Fabric, harness: Harness
) -> None:
    remind = add_reminder(fabric, "1h")
    run = await remind.submit("late")
    began = harness.clock.now()
    with pytest.raises(TimeoutError, match="does not end within 600 s"):
        await run.result(timeout=600)
    assert harness.clock.now() - began == 600_000
    assert await run.result(timeout=3_000) == "late"


async def test_a_run_that_was_cancelled_while_it_is_held_is_stopped(
    fabric: Fabric, harness: Harness
) -> None:
    stopped: list[str] = []

    @fabric.task()
    async def job(ctx: Context) -> None:
        try:
            await ctx.step(str.upper, "a")
        finally:
            stopped.append("stopped")

    run = await job.submit()
    await harness.run_until(step="upper")
    await run.cancel("enough")
    await harness.run_until_idle()
    assert (harness.state(run), stopped) == (PublicState.CANCELLED, ["stopped"])


async def test_a_task_for_a_process_runs_in_the_test_itself(
    fabric: Fabric, harness: Harness
) -> None:
    whoami = fabric.task(process=True)(handlers.whoami)
    opaque = fabric.task(process=True)(handlers.opaque)
    raises = fabric.task(process=True)(handlers.raises)
    assert await harness.run(whoami) == handlers.whoami()
    with pytest.raises(RunFailed, match="opaque returned cannot be stored"):
        await harness.run(opaque)
    with pytest.raises(RunFailed, match="for good"):
        await harness.run(raises, "fail")


async def test_whatever_capability_a_task_demands_is_offered(
    fabric: Fabric, harness: Harness
) -> None:
    @fabric.task(capabilities=["gpu", "cuda"], lane="heavy", namespace="lab")
    async def train() -> str:
        return "trained"

    assert await harness.run(train) == "trained"


# -- runs that wait for others


async def test_a_handler_may_wait_for_a_child_that_sleeps(fabric: Fabric, harness: Harness) -> None:
    remind = add_reminder(fabric, "100d")

    @fabric.task()
    async def parent(ctx: Context) -> str:
        child = await ctx.submit(remind, "child")
        return f"{await child.result()} of a coroutine"

    @fabric.task()
    def plain(ctx: SyncContext) -> str:
        return f"{ctx.submit(remind, 'child').result_sync()} of a thread"

    assert await harness.run(parent) == "child of a coroutine"
    assert await harness.run(plain) == "child of a thread"


async def test_a_handler_that_waits_for_what_never_comes_is_told(
    fabric: Fabric, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "JUMPS", 20)

    @fabric.task(lane="closed")
    async def child() -> None: ...

    @fabric.task()
    async def parent(ctx: Context) -> None:
        await (await ctx.submit(child)).result()

    engine = await fabric.engine()
    await engine.lanes.pause("closed")
    with pytest.raises(Stuck, match=r"(?s)moved 20 times.*child .* is its lane open"):
        await harness.run(parent)


# -- time


async def test_idle_means_that_nothing_is_left_to_do_now(fabric: Fabric, harness: Harness) -> None:
    remind = add_reminder(fabric)
    now, later = await remind.submit("now"), await remind.with_options(delay="1s").submit("later")
    began = harness.clock.now()
    await harness.run_until_idle()
    assert harness.clock.now() == began
    assert (harness.steps(now), harness.steps(later)) == (["sleep"], [])
    assert harness.state(now) is PublicState.DELAYED


async def test_what_is_due_on_the_way_runs_at_its_time(fabric: Fabric, harness: Harness) -> None:
    seen: list[datetime] = []

    @fabric.task()
    async def tick(ctx: Context) -> None:
        seen.append(await ctx.now())

    engine = await fabric.engine()
    hourly = Schedule(name="hourly", kind="tick", every=Millis(3_600_000), catch_up=CatchUp.LATEST)
    await engine.schedules.put(hourly)
    began = datetime.fromtimestamp(harness.clock.now() / 1000, UTC)
    await harness.advance(timedelta(days=2))
    assert seen == [began + timedelta(hours=hour) for hour in range(1, 49)]


async def test_an_attempt_that_takes_too_long_is_given_up(fabric: Fabric, harness: Harness) -> None:
    @fabric.task(timeout="10m", deadline="1d")
    async def slow(ctx: Context) -> None:
        await ctx.step(str.upper, "a")
        await ctx.sleep("2d")

    run = await slow.submit()
    await harness.run_until(step="upper")
    await harness.advance("9m")
    assert harness.state(run) is PublicState.ACTIVE
    await harness.advance("1m")
    with pytest.raises(RunExpired, match="attempt_timeout"):
        await run.result()


async def test_a_deadline_ends_a_run_that_sleeps_too_long(fabric: Fabric, harness: Harness) -> None:
    @fabric.task(deadline="1d")
    async def late(ctx: Context) -> None:
        await ctx.sleep("2d")

    with pytest.raises(RunExpired):
        await harness.run(late)


async def test_a_clock_of_ones_own_says_when_it_is(fabric: Fabric) -> None:
    @fabric.task()
    async def today(ctx: Context) -> datetime:
        return await ctx.now()

    moment = datetime(2030, 2, 28, 12, tzinfo=UTC)
    clock = ManualClock(int(moment.timestamp() * 1000))
    async with testing.harness(fabric, clock=clock) as harness:
        assert await harness.run(today) == moment


# -- stuck


async def test_a_run_without_a_task_is_told_with_those_there_are(
    fabric: Fabric, harness: Harness
) -> None:
    add_reminder(fabric)
    engine = await fabric.engine()
    await engine.executions.submit(Submission(kind="renamed"))
    (info,) = (await engine.views.list(Query())).items
    with pytest.raises(Stuck, match=r"no task of that name is registered \(registered: remind\)"):
        await (await fabric.run(info.id)).result()


async def test_a_run_that_never_ends_is_told_with_its_last_error(
    fabric: Fabric, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "JUMPS", 20)

    @fabric.task(retries=10_000)
    async def hopeless() -> None:
        raise ConnectionError("nobody there")

    run = await hopeless.submit()
    with pytest.raises(Stuck) as caught:
        await harness.run_until_done(run)
    for part in ("moved 20 times", "waiting_for_retry_backoff", "nobody there"):
        assert part in str(caught.value)


async def test_a_handler_that_hangs_is_told(
    fabric: Fabric, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    @fabric.task()
    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(driver, "HANGS_AFTER", 0.01)
    with pytest.raises(Stuck, match="its handler runs and neither ends nor waits"):
        await harness.run(hang)


async def test_a_step_that_is_never_asked_for_is_told(fabric: Fabric, harness: Harness) -> None:
    remind = add_reminder(fabric)
    await remind.submit("x")
    with pytest.raises(Stuck, match="no run comes to step 'charge':\n  every run has ended"):
        await harness.run_until(step="charge")
    with pytest.raises(Invalid, match="either"):
        await harness.run_until()


# -- the Fabric of an application


async def test_the_store_of_an_application_is_not_touched(tmp_path: Path) -> None:
    fabric = Fabric(f"sqlite:///{tmp_path / 'production.db'}")
    remind = add_reminder(fabric)
    async with testing.harness(fabric) as harness:
        async with fabric:  # as an application does when it starts
            run = await remind.submit("hello")
        assert await harness.result(run) == "hello"
    assert list(tmp_path.iterdir()) == []


async def test_a_task_of_another_fabric_is_not_submitted_to_its_real_store(
    harness: Harness, tmp_path: Path
) -> None:
    """The fixture `fabric` was not overridden: the harness has a Fabric of its own."""
    remind = add_reminder(Fabric(f"sqlite:///{tmp_path / 'production.db'}"))
    for task in (remind, remind.with_options(key="7")):
        with pytest.raises(Invalid, match="task 'remind' is not of the Fabric in this harness"):
            await harness.run(task, "hello")
    assert list(tmp_path.iterdir()) == []


async def test_afterwards_a_fabric_is_as_it_was(tmp_path: Path) -> None:
    async with Fabric(f"sqlite:///{tmp_path / 'production.db'}") as fabric:
        remind = add_reminder(fabric)
        before = await remind.submit("before")
        async with testing.harness(fabric) as harness:
            await harness.run(remind, "during")
        assert await before.state() is PublicState.WAITING
        engine = await fabric.engine()
        assert (await engine.views.counts()).by_state["waiting"] == 1


async def test_a_block_left_in_the_middle_leaves_nothing_running(fabric: Fabric) -> None:
    ended: list[str] = []

    @fabric.task()
    async def job(ctx: Context) -> None:
        try:
            await ctx.step(str.upper, "a")
        finally:
            ended.append("ended")

    async with testing.harness(fabric) as harness:
        await job.submit()
        await harness.run_until(step="upper")
    assert ended == ["ended"]


def test_a_bench_belongs_to_one_event_loop(fabric: Fabric, harness: Harness) -> None:
    remind = add_reminder(fabric)
    assert asyncio.run(harness.run(remind, "x")) == "x"
    with pytest.raises(Invalid, match="event loop"):
        asyncio.run(harness.run(remind, "x"))


async def test_code_without_an_event_loop_submits_from_a_thread(fabric: Fabric) -> None:
    remind = add_reminder(fabric)
    async with testing.harness(fabric) as harness:
        run = await asyncio.to_thread(remind.submit_sync, "x")
        assert await harness.result(run) == "x"


async def test_following_output_drives_the_run() -> None:
    fabric = Fabric("sqlite:///:memory:")

    @fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.emit("begun")
        await ctx.sleep("1h")
        await ctx.emit("over")

    async with harness(fabric):
        run = await job.submit()
        assert [frame.value async for frame in run.stream(follow=False)] == []
        assert [frame.value async for frame in run.stream()] == ["begun", "over"]


async def test_two_runs_that_are_claimed_together_and_wait_for_their_children() -> None:
    fabric = Fabric("sqlite://")
    remind = add_reminder(fabric, "1h")

    @fabric.task()
    async def parent(ctx: Context, text: str) -> Any:
        return await (await ctx.submit(remind, text)).result()

    async with harness(fabric) as driven:
        runs = [await parent.submit(text) for text in ("a", "b")]
        assert [await driven.result(run) for run in runs] == ["a", "b"]
