"""Flows inside runs that crash, are retried, cancelled or replayed."""

import asyncio
from typing import Any

import pytest

from flowfabric import (
    Context,
    Fabric,
    Fail,
    PublicState,
    RunFailed,
)
from flowfabric.worker.api.run import Run
from tests.worker.bench import AGAIN, Bench, Log, Wire, until, working
from tests.worker.flows import Tasks, flows, members, work


@pytest.fixture
def tasks(bench: Bench, log: Log) -> Tasks:
    return Tasks(bench.fabric, log)


# -- crashes and retries


async def test_a_rerun_declares_nothing_twice(bench: Bench, tasks: Tasks, log: Log) -> None:
    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> list[Any]:
        found = await ctx.map(tasks.one, ["a", "b"])
        if ctx.info.attempt < 3:
            raise ConnectionError
        return found

    run = await job.submit()
    await work(bench)
    assert await run.result(60) == ["a", "b"]
    assert (sorted(log), await members(bench)) == (["a", "b"], 2)
    assert (await run.describe()).attempts_made == 3


async def test_what_a_flow_gave_outlives_the_flow(bench: Bench, tasks: Tasks, log: Log) -> None:
    """Retention takes the flow of a run that sleeps longer than that; the run has its results."""

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async with ctx.flow("parts") as flow:
            flow.add(tasks.one, "part")
        found = [await ctx.map(tasks.one, ["a", "b"]), await flow.result()]
        await ctx.sleep("30d")
        return found

    run = await job.submit()
    await work(bench)
    bench.clock.advance(8 * 86_400_000)
    assert await bench.engine.sweep.trim() == 3
    await bench.engine.sweep.trim()
    assert await flows(bench) == []
    bench.clock.advance(30 * 86_400_000)
    await work(bench)
    assert await run.result(60) == [["a", "b"], "part"]
    assert sorted(log) == ["a", "b", "part"]


async def test_a_parent_that_dies_between_declaring_and_waiting_goes_on(
    bench: Bench, tasks: Tasks, log: Log
) -> None:
    died: list[bool] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        async with ctx.flow("parts") as flow:
            flow.add(tasks.one, "part")
        if not died:
            died.append(True)
            await asyncio.Event().wait()
        return await flow.result()

    run = await job.submit()
    worker = await bench.fabric.worker()
    dying = asyncio.create_task(worker.run_until_idle())
    await until(lambda: died)
    dying.cancel()
    await asyncio.wait([dying])
    await bench.lose()
    await work(bench)
    assert await run.result(60) == "part"
    assert (log, await members(bench)) == (["part"], 1)


@pytest.mark.parametrize("put", range(3))
async def test_a_declaration_that_was_cut_off_is_finished_by_the_next_attempt(
    bench: Bench, tasks: Tasks, log: Log, monkeypatch: pytest.MonkeyPatch, put: int
) -> None:
    """The flow, some of its members, or all of them were there; the step was not recorded"""
    calls = []
    honest = bench.engine.flows._executions.put_all

    async def cut(creations: Any) -> None:
        calls.append(1)
        if len(calls) == put + 1:
            raise ConnectionError
        await honest(creations)

    monkeypatch.setattr(bench.engine.flows._executions, "put_all", cut)

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> Any:
        async with ctx.flow("parts") as flow:
            flow.add(tasks.show, flow.add(tasks.one, "part").output)
        return await flow.result()

    run = await job.submit()
    await work(bench)
    assert await run.result(60) == "part"
    assert (log, await members(bench)) == (["part", "part"], 2)


async def test_a_cut_wire_while_a_flow_is_declared_is_waited_out(
    fabric: Fabric, wire: Wire, log: Log
) -> None:
    tasks = Tasks(fabric, log)

    @fabric.task()
    async def job(ctx: Context) -> list[str]:
        if not log:
            log.note("cut")
            wire.cut = True
            asyncio.get_running_loop().call_later(0.05, setattr, wire, "cut", False)
        return await ctx.map(tasks.one, ["a", "b"])

    run = await job.submit()
    async with working(fabric):
        await until(lambda: log and not wire.cut)
        assert await run.result(60) == ["a", "b"]


# -- steering


async def parent_of(bench: Bench, tasks: Tasks) -> tuple[Run[Any], Any]:
    """A run that waits for its flow, whose members wait for an hour."""

    @bench.fabric.task()
    async def parent(ctx: Context) -> list[str]:
        return await ctx.map(tasks.one.with_options(delay="1h"), ["a", "b"])

    run = await parent.submit()
    await work(bench)
    assert await run.state() is PublicState.SUSPENDED
    (flow,) = await flows(bench)
    return run, flow


async def test_a_flow_that_is_cancelled_wakes_its_run(bench: Bench, tasks: Tasks) -> None:
    run, flow = await parent_of(bench, tasks)
    await bench.engine.flows.cancel(flow.id, reason="enough")
    await work(bench)
    with pytest.raises(RunFailed, match="enough"):
        await run.result(60)


async def test_after_a_flow_was_replayed_its_run_can_be_replayed(bench: Bench, log: Log) -> None:
    broken = [True]

    @bench.fabric.task()
    async def flaky(word: str) -> str:
        if broken[0]:
            raise Fail("not now")
        return str(log.note(word))

    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        return await ctx.map(flaky, ["a", "b"])

    run = await job.submit()
    await work(bench)
    with pytest.raises(RunFailed):
        await run.result(60)
    broken[0] = False
    (flow,) = await flows(bench)
    await bench.engine.flows.replay(flow.id)
    await work(bench)
    assert sorted(log) == ["a", "b"]
    await run.replay()
    await work(bench)
    assert await run.result(60) == ["a", "b"]
    assert (len(log), len(await flows(bench))) == (2, 1)


async def test_a_run_that_succeeded_and_is_replayed_makes_a_new_flow(
    bench: Bench, tasks: Tasks, log: Log
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        return await ctx.map(tasks.one, ["a"])

    run = await job.submit()
    await work(bench)
    await run.replay()
    await work(bench)
    assert await run.result(60) == ["a"]
    assert (log, len(await flows(bench))) == (["a", "a"], 2)
