"""Flows of runs that end without success, and what a replay of such a run does with them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import Context, Fail, FlowState, PublicState, RunFailed, SyncContext, Task
from flowfabric.worker.api.run import Run
from tests.kit.flow_lab import settle
from tests.worker.bench import Bench, Log, until
from tests.worker.flows import Tasks, flows, work

HOUR = 3_600_000
CANCELLED, COMPLETED = FlowState.CANCELLED, FlowState.COMPLETED


@pytest.fixture
def tasks(bench: Bench, log: Log) -> Tasks:
    return Tasks(bench.fabric, log)


async def states(bench: Bench) -> list[FlowState]:
    return sorted(flow.state for flow in await flows(bench))


def by_map(bench: Bench, tasks: Tasks) -> Task[..., Any]:
    @bench.fabric.task()
    async def parent(ctx: Context) -> list[str]:
        return await ctx.map(tasks.one.with_options(delay="1h"), ["a", "b"])

    return parent


def by_flow(bench: Bench, tasks: Tasks) -> Task[..., Any]:
    @bench.fabric.task()
    async def parent(ctx: Context) -> list[str]:
        async with ctx.flow("parts") as flow:
            first = flow.add(tasks.one.with_options(delay="1h"), "a", name="first")
            flow.add(tasks.one, "b", after=first, name="last")
            flow.add(tasks.show, 1, after=first, name="extra")
        return ["a", (await flow.results([flow.nodes["last"]]))[0]]

    return parent


def by_sync_flow(bench: Bench, tasks: Tasks) -> Task[..., Any]:
    @bench.fabric.task()
    def parent(ctx: SyncContext) -> list[str]:
        with ctx.flow("parts") as flow:
            flow.add(tasks.one.with_options(delay="1h"), "a", name="a")
            flow.add(tasks.one.with_options(delay="1h"), "b", name="b")
        found = flow.result()
        return [found["a"], found["b"]]

    return parent


Parent = Callable[[Bench, Tasks], "Task[..., Any]"]


@pytest.mark.parametrize("of", [by_map, by_flow, by_sync_flow])
async def test_a_run_that_is_cancelled_takes_its_flow_along_and_has_a_new_one_when_replayed(
    bench: Bench, tasks: Tasks, log: Log, of: Parent
) -> None:
    """The run waits for its flow, and again after each replay"""
    run = await of(bench, tasks).submit()
    await work(bench)
    for round in range(1, 3):
        assert await run.state() is PublicState.SUSPENDED
        await run.cancel()
        await bench.engine.flows.drain()
        assert await states(bench) == [CANCELLED] * round
        await bench.pass_time(HOUR)
        await work(bench)
        assert log == []
        await run.replay()
        await work(bench)
    await bench.pass_time(HOUR)
    await work(bench)
    assert await run.result(60) == ["a", "b"]
    assert await states(bench) == [CANCELLED, CANCELLED, COMPLETED]
    assert sorted(word for word in log if isinstance(word, str)) == ["a", "b"]
    assert not await bench.engine.store.owed_flows(1)


async def test_a_replay_uses_a_flow_that_had_completed_and_runs_again_one_that_was_cancelled(
    bench: Bench, tasks: Tasks, log: Log
) -> None:
    broken = [True]

    @bench.fabric.task()
    async def parent(ctx: Context) -> list[Any]:
        done = await ctx.map(tasks.one, ["a", "b"])
        async with ctx.flow("more") as more:
            more.add(tasks.one.with_options(delay="1h"), "c")
        if broken[0]:
            raise Fail("not now")
        return [*done, await more.result()]

    run = await parent.submit()
    await work(bench)
    with pytest.raises(RunFailed, match="not now"):
        await run.result(60)
    assert await states(bench) == [CANCELLED, COMPLETED]
    broken[0] = False
    await run.replay()
    await work(bench)
    await bench.pass_time(HOUR)
    await work(bench)
    assert await run.result(60) == ["a", "b", "c"]
    assert sorted(log) == ["a", "b", "c"]
    assert await states(bench) == [CANCELLED, COMPLETED, COMPLETED]


async def test_a_replay_uses_a_flow_that_completed_as_its_run_ended(
    bench: Bench, tasks: Tasks, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could tell the run: it need not wait for it either"""

    @bench.fabric.task()
    async def parent(ctx: Context) -> list[str]:
        return await ctx.map(tasks.one.with_options(delay="1h"), ["a"])

    run = await parent.submit()
    await work(bench)
    await bench.pass_time(HOUR)
    with monkeypatch.context() as dead:
        dead.setattr(bench.engine._dispatcher, "kick", lambda flows: None)
        await bench.work()
        assert log == ["a"]
        await run.cancel()
    await settle(bench.engine)
    assert await states(bench) == [COMPLETED]
    await run.replay()
    await work(bench)
    assert await run.result(60) == ["a"]
    assert (log, await states(bench)) == (["a"], [COMPLETED])


async def test_a_replay_before_the_flow_was_cancelled_has_a_new_one(
    bench: Bench, tasks: Tasks, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that cancelled the run died; the replayed run sees to its flow first"""
    run = await by_map(bench, tasks).submit()
    await work(bench)
    with monkeypatch.context() as dead:
        dead.setattr(bench.engine._dispatcher, "kick", lambda flows: None)
        dead.setattr(bench.engine._dispatcher, "committed", lambda commit: None)
        await run.cancel()
        await run.replay()
        await bench.work()
    assert await states(bench) == [CANCELLED, FlowState.RUNNING]
    await bench.pass_time(HOUR)
    await work(bench)
    assert await run.result(60) == ["a", "b"]
    assert sorted(log) == ["a", "b"]


async def test_a_run_that_succeeds_leaves_its_flow_alone(
    bench: Bench, tasks: Tasks, log: Log
) -> None:
    @bench.fabric.task()
    async def parent(ctx: Context) -> str:
        async with ctx.flow("later") as flow:
            flow.add(tasks.one.with_options(delay="1h"), "a")
        return "started"

    run = await parent.submit()
    await work(bench)
    assert await run.result(60) == "started"
    await bench.pass_time(HOUR)
    await work(bench)
    assert (log, await states(bench)) == (["a"], [COMPLETED])


async def test_flows_of_flows_are_cancelled_and_run_again_by_themselves(
    bench: Bench, tasks: Tasks, log: Log
) -> None:
    inner = by_map(bench, tasks)

    @bench.fabric.task()
    async def outer(ctx: Context) -> list[list[str]]:
        return await ctx.map(inner, [(), ()])

    run = await outer.submit()
    await work(bench)
    await run.cancel()
    await bench.engine.flows.drain()
    assert await states(bench) == [CANCELLED] * 3
    await run.replay()
    await work(bench)
    await bench.pass_time(HOUR)
    await work(bench)
    assert await run.result(60) == [["a", "b"], ["a", "b"]]
    assert (sorted(log), await states(bench)) == (
        ["a", "a", "b", "b"],
        [CANCELLED] * 3 + [COMPLETED] * 3,
    )


async def test_a_handler_whose_run_was_cancelled_starts_no_flow(
    bench: Bench, tasks: Tasks, log: Log
) -> None:
    go, ready = asyncio.Event(), []

    @bench.fabric.task()
    async def parent(ctx: Context) -> list[str]:
        ready.append(True)
        await go.wait()
        return await ctx.map(tasks.one, ["a"])

    run: Run[Any] = await parent.submit()
    working = asyncio.create_task(bench.work())
    await until(lambda: ready)
    await run.cancel()
    go.set()
    await working
    await work(bench)
    assert (log, await flows(bench)) == ([], [])
    assert await run.state() is PublicState.CANCELLED
