"""Durable steps: what was recorded never happens again, whatever happens to the handler."""

import asyncio
import threading
from datetime import datetime
from typing import Any

import pytest

from flowfabric import (
    Context,
    Fail,
    Fixed,
    Invalid,
    PublicState,
    Retry,
    Run,
    RunFailed,
)
from tests.worker.bench import AGAIN, Bench, Log, Wire


async def boom(message: str = "boom") -> None:
    raise ValueError(message)


async def number() -> int:
    return 1


# -- recorded once


async def test_a_recorded_step_does_not_run_again_after_a_retry(bench: Bench, log: Log) -> None:
    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> list[str]:
        a = await ctx.step(log.later, "a")
        b = await ctx.step(log.note, "b")
        if ctx.info.attempt < 3:
            raise ValueError
        return [a, b, await ctx.step(log.later, "c")]

    run = await job.submit()
    assert await bench.work() == 3
    assert await run.result() == ["a", "b", "c"]
    assert log == ["a", "b", "c"]
    assert await bench.step_names(run) == ["Log.later", "Log.note", "Log.later"]


async def test_a_recorded_step_does_not_run_again_after_a_crash(bench: Bench, log: Log) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        a = await ctx.step(log.later, "a")
        if ctx.info.first:
            reached.set()
            await go_on.wait()
        return str(a) + str(await ctx.step(log.later, "b"))

    run = await job.submit()
    stale = asyncio.create_task(bench.work())
    await reached.wait()
    await bench.lose()
    assert await bench.work() == 1
    go_on.set()
    await stale
    assert await run.result() == "ab"
    assert log == ["a", "b"]  # the stale one begins no further step
    assert len(await bench.steps(run)) == 2
    kinds = [event.kind.name for event in await run.events()]
    kinds = [kind for kind in kinds if kind != "CLEARED"]  # the run may end before
    assert kinds == ["CLAIMED", "LEASE_EXPIRED", "RECLAIMED", "PROBATION", "COMPLETED"]


async def test_a_recorded_step_does_not_run_again_after_a_sleep(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        a = await ctx.step(log.later, "a")
        await ctx.sleep("1h")
        b = await ctx.step(log.later, "b")
        await ctx.sleep("30d")
        return [a, b]

    run = await job.submit()
    await bench.work()
    assert await run.state() is PublicState.DELAYED
    await bench.pass_time(3_599_999)
    assert await bench.work() == 0
    await bench.pass_time(1)
    assert await bench.work() == 1
    await bench.pass_time(30 * 86_400_000)
    await bench.work()
    assert await run.result() == ["a", "b"]
    assert log == ["a", "b"]
    assert (await run.describe()).attempts_made == 1, "a sleep spends no attempt"


async def test_a_sleep_survives_a_crash_of_the_worker_that_woke(bench: Bench) -> None:
    reached = asyncio.Event()

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        await ctx.sleep("1h")
        if ctx.info.first:
            reached.set()
            await asyncio.sleep(60)
        return "awake"

    run = await job.submit()
    await bench.work()
    await bench.pass_time(3_600_000)
    stale = asyncio.create_task(bench.work())
    await reached.wait()
    await bench.lose()
    await bench.work()
    assert await run.result() == "awake"
    stale.cancel()
    await asyncio.wait([stale])


async def test_the_first_run_sees_what_every_later_one_sees(bench: Bench) -> None:
    seen: list[Any] = []

    def pair() -> tuple[int, str]:
        return 1, "a"

    def untyped():  # type: ignore[no-untyped-def]
        return (1, "a")

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> None:
        seen.append((await ctx.step(pair), await ctx.step(untyped)))
        if ctx.info.first:
            raise ValueError

    run = await job.submit()
    await bench.work()
    await run.result()
    assert seen == [((1, "a"), [1, "a"])] * 2


async def test_steps_are_recorded_however_long_the_store_is_away(
    bench: Bench, log: Log, wire: Wire
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        wire.cut = True
        asyncio.get_running_loop().call_later(0.15, setattr, wire, "cut", False)
        return str(await ctx.step(log.later, "a"))

    run = await job.submit()
    assert await bench.work() == 1
    assert (await run.result(), log) == ("a", ["a"])
    assert len(await run.attempts()) == 1


# -- a step's own retries and timeout


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_step_has_retries_of_its_own(bench: Bench, kind: str) -> None:
    tries: list[int] = []

    def plain() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError
        return "done"

    async def coroutine() -> str:
        return plain()

    step = bench.fabric.step(retries=2, backoff=Fixed(delay="1ms"))
    function: Any = step(coroutine) if kind == "async" else step(plain)

    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        return await ctx.step(function)

    run = await job.submit()
    await bench.work()
    assert (await run.result(), len(tries)) == ("done", 3)


async def test_a_step_that_fails_too_often_raises_what_it_raised_last(bench: Bench) -> None:
    tries: list[int] = []

    @bench.fabric.step(retries=2, backoff=Fixed(delay=0))
    async def fragile() -> None:
        tries.append(1)
        raise ValueError(f"try {len(tries)}")

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        try:
            await fragile()
        except ValueError as error:
            return str(error)
        return ""

    run = await job.submit()
    await bench.work()
    assert await run.result() == "try 3"
    assert await bench.step_names(run, calls=True) == []


@pytest.mark.parametrize("error", [Fail("enough"), Retry("later", after="1m")])
async def test_a_step_can_say_that_its_retries_are_pointless(
    bench: Bench, error: Exception
) -> None:
    tries: list[int] = []

    @bench.fabric.step(retries=5, backoff=Fixed(delay=0))
    async def hopeless() -> None:
        tries.append(1)
        raise error

    @bench.fabric.task(retries=1)
    async def job(ctx: Context) -> None:
        await hopeless()

    run = await job.submit()
    await bench.work()
    assert len(tries) == 1
    expected = PublicState.FAILED if isinstance(error, Fail) else PublicState.DELAYED
    assert await run.state() is expected


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_step_has_a_timeout_of_its_own(bench: Bench, kind: str) -> None:
    begun: list[int] = []
    release = threading.Event()

    async def slow() -> str:
        begun.append(1)
        if len(begun) == 1:
            await asyncio.sleep(60)
        return "second"

    def slow_plain() -> str:
        begun.append(1)
        if len(begun) == 1:
            release.wait(30)
        return "second"

    step = bench.fabric.step(retries=1, backoff=Fixed(delay=0), timeout="500ms")
    function: Any = step(slow) if kind == "async" else step(slow_plain)

    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        return await ctx.step(function)

    run = await job.submit()
    await bench.work()
    release.set()
    assert (await run.result(), len(begun)) == ("second", 2)


async def test_a_step_without_retries_times_out(bench: Bench) -> None:
    @bench.fabric.step(timeout=0.02)
    async def slow() -> None:
        await asyncio.sleep(60)

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await slow()

    run = await job.submit()
    await bench.work()
    with pytest.raises(RunFailed, match="TimeoutError"):
        await run.result()


def test_step_options_that_make_no_sense_are_refused_when_they_are_given(bench: Bench) -> None:
    for options in ({"timeout": "soon"}, {"retries": -1}, {"name": ""}, {"name": "3.1/x"}):
        with pytest.raises(Invalid):
            bench.fabric.step(**options)(boom)


# -- other things that are recorded


async def test_time_and_chance_are_recorded(bench: Bench) -> None:
    seen: list[tuple[datetime, float, float]] = []

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> None:
        seen.append((await ctx.now(), await ctx.random(), await ctx.random()))
        bench.clock.advance(5)
        if ctx.info.attempt < 3:
            raise ValueError

    run = await job.submit()
    await bench.work()
    await run.result()
    assert seen[0] == seen[1] == seen[2]
    moment, one, other = seen[0]
    assert moment.timestamp() * 1000 == bench.clock.now() - 15
    assert 0 <= one < 1
    assert one != other


async def test_children_are_submitted_once(bench: Bench) -> None:
    @bench.fabric.task()
    async def child(number: int) -> int:
        return number * 10

    @bench.fabric.task(**AGAIN)
    async def parent(ctx: Context) -> int:
        children = await ctx.gather(*(ctx.submit(child, number) for number in range(3)))
        await ctx.submit(child.with_options(delay="1h", tags={"app.late": "1"}), 7)
        if ctx.info.first:
            raise ValueError
        return sum([await run.result() for run in children])

    run = await parent.submit()
    worker = asyncio.create_task(bench.work())
    assert await run.result(60) == 30
    await worker
    counts = (await bench.engine.views.counts()).by_state
    assert (counts["completed"], counts["delayed"]) == (4, 1)


async def test_a_crash_between_a_childs_submission_and_its_record_makes_no_second_child(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    children: list[Run[int]] = []

    @bench.fabric.task()
    async def child(number: int) -> int:
        return number

    @bench.fabric.task(**AGAIN)
    async def parent(ctx: Context) -> None:
        children.append(await ctx.submit(child, 1))

    record = bench.engine.attempts.record_step

    async def dies_once(*args: Any) -> None:
        monkeypatch.setattr(bench.engine.attempts, "record_step", record)
        raise RuntimeError("the plug was pulled")

    monkeypatch.setattr(bench.engine.attempts, "record_step", dies_once)
    run = await parent.submit()
    assert await bench.work() == 3
    await run.result()
    assert len(await run.attempts()) == 2
    assert (await bench.engine.views.counts()).by_state["completed"] == 2
    assert await children[0].result() == 1


# -- replay


async def test_replay_after_a_failure_keeps_the_steps(bench: Bench, log: Log) -> None:
    broken = [True]

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        found = await ctx.step(log.later, "a")
        if broken[0]:
            raise Fail("not yet")
        return str(found)

    run = await job.submit()
    await bench.work()
    broken[0] = False
    await run.replay()
    await bench.work()
    assert (await run.result(), log) == ("a", ["a"])


async def test_replay_after_a_success_starts_afresh(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> int:
        await ctx.step(log.later, len(log))
        child = await ctx.submit(other)
        return int(child.id.uuid.int % 1000)

    @bench.fabric.task()
    async def other() -> None: ...

    run = await job.submit()
    await bench.work()
    first = await run.result()
    await run.replay()
    await bench.work()
    assert log == [0, 1]
    assert await run.result() != first, "the child is another one"
    assert len(await bench.steps(run, 0)) == len(await bench.steps(run, 1)) == 2


# -- many


@pytest.mark.rules
async def test_ten_thousand_steps_are_loaded_once_and_appended(bench: Bench, wire: Wire) -> None:
    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> int:
        total = 0
        for _ in range(20):
            total += sum(await ctx.gather(*(ctx.step(number) for _ in range(500))))
        if ctx.info.first:
            raise ValueError
        return total

    run = await job.submit()
    wire.made.clear()
    assert await bench.work() == 2
    assert await run.result() == 10_000
    assert wire.made["steps"] == 1
    assert wire.made["write_progress"] <= 20 * 3
    assert len(await bench.steps(run)) == 10_000


async def test_a_run_without_steps_asks_for_none(bench: Bench, wire: Wire) -> None:
    @bench.fabric.task()
    async def job() -> int:
        return 1

    runs = await job.submit_many([()] * 10)
    wire.made.clear()
    await bench.work()
    assert [await run.result() for run in runs] == [1] * 10
    assert (wire.made["steps"], wire.made["write_progress"]) == (0, 0)
