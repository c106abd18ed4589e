"""Flows inside runs: fan out, give the slot back, go on when all is done."""

from typing import Any

import pytest

from flowfabric import (
    Context,
    Fabric,
    Fail,
    FlowFailed,
    FlowState,
    PublicState,
    RunFailed,
    SyncContext,
    WaitTimeout,
)
from tests.worker.bench import AGAIN, Bench, Log, working
from tests.worker.flows import Tasks, flows, members, work


@pytest.fixture
def tasks(bench: Bench, log: Log) -> Tasks:
    return Tasks(bench.fabric, log)


# -- map


async def test_a_map_gives_results_in_the_order_of_its_items(bench: Bench, tasks: Tasks) -> None:
    @bench.fabric.task()
    async def job(ctx: Context, numbers: list[int]) -> list[int]:
        return await ctx.map(tasks.plain, numbers)

    run = await job.submit([5, 3, 9])
    await work(bench)
    assert await run.result(60) == [6, 4, 10]
    assert (await run.describe()).attempts_made == 1
    (flow,) = await flows(bench)
    assert (flow.kind, flow.state, flow.nodes) == ("map:plain", FlowState.COMPLETED, 3)


async def test_the_slot_is_free_while_the_items_run(fabric: Fabric) -> None:
    """With one slot, parent and items could never run at the same time"""
    log = Log()
    tasks = Tasks(fabric, log)

    @fabric.task()
    async def inner(ctx: Context, number: int) -> int:
        return sum(await ctx.map(tasks.plain, [number, number]))

    @fabric.task()
    async def outer(ctx: Context) -> list[int]:
        return await ctx.map(inner, [1, 2])

    run = await outer.submit()
    async with working(fabric, concurrency=1):
        assert await run.result(60) == [4, 6]


async def test_a_waiting_parent_is_suspended(bench: Bench, tasks: Tasks) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[int]:
        return await ctx.map(tasks.plain.with_options(delay="1h"), [1])

    run = await job.submit()
    await work(bench)
    assert await run.state() is PublicState.SUSPENDED
    await bench.pass_time(3_600_000)
    await work(bench)
    assert await run.result(60) == [2]


async def test_a_wide_map(bench: Bench, tasks: Tasks) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> int:
        return sum(await ctx.map(tasks.plain, range(200)))

    run = await job.submit()
    await work(bench)
    assert await run.result(60) == sum(range(1, 201))
    (flow,) = await flows(bench)
    assert (flow.nodes, flow.ended) == (200, {"success": 200})


async def test_an_empty_map_is_empty_and_makes_no_flow(bench: Bench, tasks: Tasks) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        empty = await ctx.map(tasks.plain, [])
        return [empty, await ctx.map(tasks.plain, [1])]

    run = await job.submit()
    await work(bench)
    assert await run.result(60) == [[], [2]]
    assert len(await flows(bench)) == 1


async def test_items_are_arguments(bench: Bench) -> None:
    """A tuple is the arguments of a call, anything else is its one argument"""

    @bench.fabric.task()
    async def show(value: Any, more: str = "") -> str:
        return f"{value}{more}"

    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        return await ctx.map(show, ["a", ("b", "!"), {"id": 1}, {"value": 2}, [3], None, ({},)])

    run = await job.submit()
    await work(bench)
    found = ["a", "b!", "{'id': 1}", "{'value': 2}", "[3]", "None", "{}"]
    assert await run.result(60) == found


async def test_the_result_of_a_flow_of_a_run_ignores_what_was_skipped(
    bench: Bench, tasks: Tasks
) -> None:
    """Also when it is asked for again after a crash"""

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> Any:
        async with ctx.flow("parts") as flow:
            part = flow.add(tasks.plain, 1)
            flow.add(tasks.plain, 2, after=part, on="failure", name="tidy")
        found = await flow.result()
        if ctx.info.first:
            raise ConnectionError
        return found

    run = await job.submit()
    await work(bench)
    assert await run.result(60) == 2


async def test_an_item_that_does_not_fit_fails_the_run_and_creates_nothing(
    bench: Bench, tasks: Tasks
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[int]:
        return await ctx.map(tasks.plain, [1, "x"])

    run = await job.submit()
    await work(bench)
    with pytest.raises(RunFailed, match="plain"):
        await run.result(60)
    assert await flows(bench) == []


async def test_a_failing_item_fails_the_map_and_is_named(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def odd(number: int) -> int:
        if number % 2:
            raise Fail("odd")
        return int(log.note(number))

    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        try:
            await ctx.map(odd, [0, 1, 2, 3])
        except FlowFailed as failed:
            return sorted(failed.members)
        return []

    run = await job.submit()
    await work(bench)
    assert await run.result(60) == ["1", "3"]
    assert sorted(log) == [0, 2], "the others were done all the same"


async def test_two_maps_side_by_side(bench: Bench, tasks: Tasks) -> None:
    """Of the same task, in one gather and in branches of their own"""

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def branch(start: int) -> int:
            found = await ctx.map(tasks.plain, [start, start + 1])
            return sum(await ctx.map(tasks.plain, found))

        maps = await ctx.gather(ctx.map(tasks.plain, [1]), ctx.map(tasks.plain, [2, 3]))
        return [*maps, *await ctx.gather(branch(10), branch(20))]

    run = await job.submit()
    await work(bench)
    assert await run.result(60) == [[2], [3, 4], 25, 45]
    assert len(await flows(bench)) == 6


async def test_a_map_beside_steps_and_waits(bench: Bench, tasks: Tasks, log: Log) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return list(
            await ctx.gather(
                ctx.map(tasks.plain, [1, 2]), ctx.wait_for_signal("go"), ctx.step(log.later, "s")
            )
        )

    run = await job.submit()
    await work(bench)
    assert await run.state() is PublicState.SUSPENDED
    await bench.fabric.signal(run, "go", "now")
    await work(bench)
    assert await run.result(60) == [[2, 3], "now", "s"]
    assert log == ["s"]


async def test_maps_inside_maps(bench: Bench, tasks: Tasks) -> None:
    @bench.fabric.task()
    async def middle(ctx: Context, width: int) -> int:
        return sum(await ctx.map(tasks.plain, range(width)))

    @bench.fabric.task()
    async def outer(ctx: Context) -> list[int]:
        return await ctx.map(middle, [1, 2, 3])

    run = await outer.submit()
    await work(bench)
    assert await run.result(60) == [1, 3, 6]
    assert await members(bench) == 9


# -- flow


async def test_a_flow_of_a_run(bench: Bench, tasks: Tasks) -> None:
    @bench.fabric.task()
    async def job(ctx: Context, number: int) -> Any:
        async with ctx.flow("parts") as flow:
            rows = flow.add(tasks.rows, number)
            flow.add(tasks.total, rows.output)
        return [await flow.result(), await flow.results([rows]), await flow.result()]

    run = await job.submit(3)
    await work(bench)
    rows = [{"id": n, "tags": [str(n)]} for n in range(3)]
    assert await run.result(60) == [3, [rows], 3]
    (flow,) = await flows(bench)
    assert (flow.kind, flow.parent.execution) == ("parts", run.id.tagged)


async def test_a_flow_of_a_run_has_no_result_before_its_block_ends(
    bench: Bench, tasks: Tasks
) -> None:
    """The run would wait for it for ever."""

    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        async with ctx.flow("parts") as flow:
            flow.add(tasks.one, "a")
            return await flow.result()

    @bench.fabric.task()
    def threaded(ctx: SyncContext) -> Any:
        with ctx.flow("parts") as flow:
            flow.add(tasks.one, "a")
            return flow.result()

    @bench.fabric.task()
    async def late(ctx: Context) -> Any:
        async with ctx.flow("parts") as flow:
            flow.add(tasks.one, "a")
        flow.add(tasks.one, "b")

    runs = [await job.submit(), await threaded.submit(), await late.submit()]
    await work(bench)
    for run in runs:
        with pytest.raises(RunFailed, match=r"InvalidGraph: .* block ends"):
            await run.result(60)


async def test_flows_of_one_name_are_told_apart(bench: Bench, tasks: Tasks) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        found = []
        for word in "abc":
            async with ctx.flow("parts") as flow:
                flow.add(tasks.one, word)
            found.append(await flow.result())
        return found

    runs = [await job.submit() for _ in range(2)]
    await work(bench)
    assert [await run.result(60) for run in runs] == [["a", "b", "c"]] * 2
    assert len(await flows(bench)) == 6


async def test_a_flow_may_end_before_a_caller_waits_for_it(
    bench: Bench, tasks: Tasks, log: Log
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        async with ctx.flow("parts") as flow:
            flow.add(tasks.one, "part")
        await ctx.wait_for_signal("go")
        return await flow.result()

    run = await job.submit()
    await work(bench)
    assert log == ["part"]
    await bench.fabric.signal(run, "go")
    await work(bench)
    assert await run.result(60) == "part"
    assert log == ["part"]


async def test_a_flow_that_is_not_waited_for_goes_on(bench: Bench, tasks: Tasks, log: Log) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        async with ctx.flow("aside") as flow:
            flow.add(tasks.one, "aside")
        return "done"

    run = await job.submit()
    await work(bench)
    assert (await run.result(60), log) == ("done", ["aside"])
    (flow,) = await flows(bench)
    assert flow.state is FlowState.COMPLETED


async def test_a_run_waits_no_longer_than_it_wants(bench: Bench, tasks: Tasks) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        async with ctx.flow("slow") as flow:
            flow.add(tasks.one.with_options(delay="2h"), "late")
        try:
            await flow.result(timeout=3600)
        except WaitTimeout:
            return "gave up"
        return "waited"

    run = await job.submit()
    await work(bench)
    await bench.pass_time(3_600_000)
    await work(bench)
    assert await run.result(60) == "gave up"
    (flow,) = await flows(bench)
    assert flow.state is FlowState.RUNNING


async def test_a_run_that_asks_again_after_a_timeout_waits_again(
    bench: Bench, tasks: Tasks
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        async with ctx.flow("slow") as flow:
            flow.add(tasks.one.with_options(delay="2h"), "late")
        for tries in range(9):
            try:
                return [tries, await flow.result(timeout=3000), await flow.result()]
            except WaitTimeout:
                await ctx.sleep("10m")
        return "gave up"

    run = await job.submit()
    for _ in range(20):
        await work(bench)
        await bench.pass_time(600_000)
    await work(bench)
    assert await run.result(60) == [2, "late", "late"]


async def test_a_flow_that_cannot_run_fails_the_run(bench: Bench, tasks: Tasks) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        async with ctx.flow("empty") as flow:
            pass
        return await flow.result()

    run = await job.submit()
    await work(bench)
    with pytest.raises(RunFailed, match="at least one"):
        await run.result(60)


async def test_a_plain_function_fans_out_too(bench: Bench, tasks: Tasks) -> None:
    @bench.fabric.task()
    def job(ctx: SyncContext, number: int) -> list[Any]:
        found = ctx.map(tasks.plain, range(number))
        with ctx.flow("parts") as flow:
            rows = flow.add(tasks.rows, number)
            flow.add(tasks.total, rows.output, plus=sum(found))
        return [found, flow.result(), ctx.map(tasks.plain, [])]

    run = await job.submit(3)
    await work(bench)
    assert await run.result(60) == [[1, 2, 3], 9, []]
    assert (await run.describe()).attempts_made == 1
