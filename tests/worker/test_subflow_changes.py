"""A run that asks for other flows than it has declared is blocked by code; what failed in them runs
again with a retry of the run, and never behind its back."""

from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import Context, Fail, Fixed, FlowFailed, PublicState, RunFailed
from tests.worker.bench import AGAIN, Bench, Log
from tests.worker.flows import Tasks, flows, members, work

ONCE: dict[str, Any] = {"retries": 1, "backoff": Fixed(delay=0)}


@pytest.fixture
def tasks(bench: Bench, log: Log) -> Tasks:
    return Tasks(bench.fabric, log)


async def refused(bench: Bench, run: Any) -> str:
    await work(bench)
    reason = (await bench.engine.explain(run.id)).main
    assert reason.code == "blocked_by_code"
    return reason.text


# -- other items

ITEMS: dict[str, tuple[list[Any], list[Any]]] = {
    "more": ([1, 2, 3], [1, 2, 3, 4]),
    "fewer": ([1, 2, 3], [1, 2]),
    "others": ([1, 2, 3], [1, 2, 4]),
    "order": ([1, 2], [2, 1]),
    "none": ([1], []),
    "some": ([], [1]),
}


@pytest.mark.rules
@pytest.mark.parametrize("when", ["waiting", "over"])
@pytest.mark.parametrize("items", ITEMS)
async def test_a_map_of_other_items_is_refused(
    bench: Bench, tasks: Tasks, items: str, when: str
) -> None:
    """While its flow runs, and when its results are recorded"""
    seen: list[int] = []

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> Any:
        seen.append(1)
        found = await ctx.map(
            tasks.plain, ITEMS[items][len(seen) > (1 if when == "waiting" else 2)]
        )
        if len(seen) <= 2:
            raise ConnectionError
        return found

    run = await job.submit()
    before = len(ITEMS[items][0])
    if when == "waiting" and not before:
        message = await refused(bench, run)
    else:
        message = await refused(bench, run)
    assert "map:plain" in message
    assert await members(bench) == before, "nothing was started for the others"


async def test_a_dict_in_another_order_is_the_same_item(bench: Bench, tasks: Tasks) -> None:
    given = [{"a": 1, "b": 2}, {"b": 2, "a": 1}]

    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        return await ctx.map(tasks.show, [given.pop()])

    run = await job.submit()
    await work(bench)
    assert (await run.result(60), given) == ([{"a": 1, "b": 2}], [])


Change = Callable[[Any, Tasks, bool], None]


def other_argument(flow: Any, tasks: Tasks, again: bool) -> None:
    flow.add(tasks.plain, 2 if again else 1, name="part")


def other_task(flow: Any, tasks: Tasks, again: bool) -> None:
    flow.add(tasks.show if again else tasks.plain, 1, name="part")


def other_name(flow: Any, tasks: Tasks, again: bool) -> None:
    flow.add(tasks.plain, 1, name="piece" if again else "part")


def other_edge(flow: Any, tasks: Tasks, again: bool) -> None:
    first = flow.add(tasks.plain, 1, name="first")
    flow.add(tasks.plain, 2, after=() if again else first, name="last")


def other_input(flow: Any, tasks: Tasks, again: bool) -> None:
    one, two = flow.add(tasks.plain, 1, name="one"), flow.add(tasks.plain, 1, name="two")
    flow.add(tasks.show, (two if again else one).output, after=[one, two])


def one_more(flow: Any, tasks: Tasks, again: bool) -> None:
    flow.add(tasks.plain, 1, name="part")
    if again:
        flow.add(tasks.plain, 2, name="more")


CHANGES = [other_argument, other_task, other_name, other_edge, other_input, one_more]


@pytest.mark.rules
@pytest.mark.parametrize("change", CHANGES)
async def test_another_flow_under_the_same_name_is_refused(
    bench: Bench, tasks: Tasks, change: Change
) -> None:
    again: list[bool] = []

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> Any:
        async with ctx.flow("parts") as flow:
            change(flow, tasks, bool(again))
        again.append(True)
        return await flow.result()

    message = await refused(bench, await job.submit())
    assert "'parts'" in message


async def test_other_options_are_no_other_flow(bench: Bench, tasks: Tasks) -> None:
    """A deploy may give a task more retries, or another delay"""
    again: list[bool] = []

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> Any:
        plain = tasks.plain.with_options(priority=len(again), delay=0.0)
        again.append(True)
        return await ctx.map(plain, [1])

    run = await job.submit()
    await work(bench)
    assert (await run.result(60), len(again)) == ([2], 2)


async def test_results_of_other_nodes_are_refused(bench: Bench, tasks: Tasks) -> None:
    """As many as before, but not those"""
    seen: list[int] = []

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> Any:
        async with ctx.flow("parts") as flow:
            nodes = [flow.add(tasks.plain, number) for number in range(3)]
        seen.append(1)
        found = await flow.results(nodes[:2] if len(seen) < 3 else nodes[1:])
        if len(seen) < 3:
            raise ConnectionError
        return found

    assert "parts" in await refused(bench, await job.submit())


async def test_a_declaration_that_died_before_it_was_recorded_is_compared_too(
    bench: Bench, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    honest = bench.engine.flows._executions.put_all

    async def cut(creations: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError
        await honest(creations)

    monkeypatch.setattr(bench.engine.flows._executions, "put_all", cut)

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> Any:
        return await ctx.map(tasks.plain, [1, 2] if calls else [1])

    await refused(bench, await job.submit())


# -- retries


async def test_a_retry_of_the_run_runs_failed_items_again(bench: Bench, log: Log) -> None:
    """Only those: what succeeded stays, and the flow is the same one"""

    @bench.fabric.task()
    async def part(number: int) -> int:
        log.note(number)
        if number % 2 and log.count(number) == 1:
            raise Fail("odd")
        return number

    @bench.fabric.task(**ONCE)
    async def job(ctx: Context) -> list[int]:
        return await ctx.map(part, [0, 1, 2, 3])

    run = await job.submit()
    await work(bench)
    assert await run.result(60) == [0, 1, 2, 3]
    assert sorted(log) == [0, 1, 1, 2, 3, 3]
    assert (await run.describe()).attempts_made == 2
    assert len(await flows(bench)) == 1


async def test_every_retry_runs_them_once_more(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def part(number: int) -> int:
        log.note(number)
        raise Fail("never")

    @bench.fabric.task(retries=3, backoff=Fixed(delay=0))
    async def job(ctx: Context) -> list[int]:
        return await ctx.map(part, [7])

    run = await job.submit()
    await work(bench)
    with pytest.raises(RunFailed, match="0 did not succeed"):
        await run.result(60)
    assert log == [7] * 4


async def test_a_flow_of_a_run_is_mended_by_a_retry_with_what_was_skipped(
    bench: Bench, tasks: Tasks, log: Log
) -> None:
    @bench.fabric.task()
    async def shaky() -> int:
        if log.note("shaky") and len(log) == 1:
            raise Fail("not yet")
        return 1

    @bench.fabric.task(**ONCE)
    async def job(ctx: Context) -> Any:
        async with ctx.flow("parts") as flow:
            flow.add(tasks.plain, flow.add(shaky).output)
        return await flow.result()

    run = await job.submit()
    await work(bench)
    assert await run.result(60) == 2


async def test_a_replay_of_the_run_runs_failed_items_again(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def part(number: int) -> int:
        if log.note(number) and log.count(number) == 1:
            raise Fail("not yet")
        return number

    @bench.fabric.task()
    async def job(ctx: Context) -> list[int]:
        return await ctx.map(part, [1, 2])

    run = await job.submit()
    await work(bench)
    assert await run.state() is PublicState.FAILED
    await bench.engine.executions.replay(run.id)
    await work(bench)
    assert (await run.result(60), sorted(log)) == ([1, 2], [1, 1, 2, 2])


async def test_a_failure_the_handler_went_on_after_stays(bench: Bench, log: Log) -> None:
    """What it did then is recorded: the items do not run again, whatever the next attempt does"""

    @bench.fabric.task()
    async def part(number: int) -> int:
        log.note("part")
        raise Fail("no")

    @bench.fabric.task(**ONCE)
    async def job(ctx: Context) -> str:
        try:
            await ctx.map(part, [1])
        except FlowFailed as failed:
            await ctx.step(log.later, f"undo {failed.members}")
        if ctx.info.first:
            raise ConnectionError
        await ctx.sleep("1m")
        return "undone"

    run = await job.submit()
    await work(bench)
    await bench.pass_time(60_000)
    await work(bench)
    assert await run.result(60) == "undone"
    assert log == ["part", "undo ('0',)"]


async def test_a_handler_that_saw_the_failure_sees_it_again_in_the_same_attempt(
    bench: Bench, log: Log
) -> None:
    """Also when an operator has mended the flow meanwhile: it has gone another way"""

    @bench.fabric.task()
    async def part(number: int) -> int:
        if log.note("part") and log.count("part") == 1:
            raise Fail("no")
        return number

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        try:
            await ctx.map(part, [1])
        except FlowFailed:
            await ctx.wait_for_signal("go")
            return "failed"
        return "whole"

    run = await job.submit()
    await work(bench)
    (flow,) = await flows(bench)
    await bench.engine.flows.replay(flow.id)
    await work(bench)
    await bench.fabric.signal(run, "go")
    await work(bench)
    assert await run.result(60) == "failed"


async def test_a_cancelled_flow_is_not_run_again(bench: Bench, tasks: Tasks) -> None:
    @bench.fabric.task(**ONCE)
    async def job(ctx: Context) -> list[int]:
        return await ctx.map(tasks.plain.with_options(delay="1h"), [1])

    run = await job.submit()
    await work(bench)
    (flow,) = await flows(bench)
    await bench.engine.flows.cancel(flow.id, reason="enough")
    await work(bench)
    with pytest.raises(RunFailed, match="enough"):
        await run.result(60)


async def test_a_retry_beside_another_map_waits_for_both(bench: Bench, log: Log) -> None:
    """The map that failed is raised at once; the other one is found again"""

    @bench.fabric.task()
    async def part(number: int) -> int:
        if log.note(number) and number == 1 and log.count(1) == 1:
            raise Fail("not yet")
        return number

    @bench.fabric.task(**ONCE)
    async def job(ctx: Context) -> list[list[int]]:
        return list(
            await ctx.gather(
                ctx.map(part, [1, 2], name="one"),
                ctx.map(part.with_options(delay="1h"), [3], name="two"),
            )
        )

    run = await job.submit()
    await work(bench)
    assert await run.state() is PublicState.SUSPENDED
    await bench.pass_time(3_600_000)
    await work(bench)
    assert (await run.result(60), sorted(log)) == ([[1, 2], [3]], [1, 1, 2, 3])
