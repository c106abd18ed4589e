"""Signals that were kept before a handler asks for them: it goes on without being run again."""

from functools import partial
from typing import Any

import pytest

from flowfabric import Context, Fabric, PublicState, SyncContext, WaitTimeout
from flowfabric.core.base.errors import Unavailable
from flowfabric.core.wait.model import FEW_SIGNALS
from flowfabric.engine.engine import Engine
from tests.worker.bench import Bench, Log, Wire, working
from tests.worker.flows import Tasks, work
from tests.worker.test_waits_together import WAYS

MANY = 3 * FEW_SIGNALS


async def send(bench: Bench, run: Any, *names: str, number: int = 1) -> None:
    for n in range(number):
        for name in names:
            await bench.fabric.signal(run, name, n)


@pytest.mark.parametrize("plain", [False, True])
async def test_kept_signals_are_heard_in_one_run_of_the_handler(
    bench: Bench, log: Log, wire: Wire, plain: bool
) -> None:
    """As many calls of the store per signal, however many there are"""

    @bench.fabric.task()
    async def job(ctx: Context) -> list[int]:
        log.note("started")
        return [await ctx.wait_for_signal("go", int) for _ in range(MANY)]

    @bench.fabric.task()
    def plain_job(ctx: SyncContext) -> list[int]:
        log.note("started")
        return [ctx.wait_for_signal("go", int) for _ in range(MANY)]

    run = await (plain_job if plain else job).submit()
    await send(bench, run, "go", number=MANY)
    wire.made.clear()
    await bench.work()
    assert await run.result() == list(range(MANY))
    assert log == ["started"]
    assert (await run.describe()).attempts_made == 1
    assert wire.made["load_needs"] <= MANY + 2
    assert wire.made["steps"] <= 1
    assert [step.position for step in await bench.steps(run)] == list(range(MANY))


async def test_signals_that_come_while_the_handler_runs_cost_one_more_run(
    bench: Bench, log: Log
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> int:
        log.note("started")
        total = 0
        for _ in range(20):
            await ctx.step(answer)
            total += await ctx.wait_for_signal("go", int)
        return total

    async def answer() -> None:
        await bench.fabric.signal(run, "go", 1)

    run = await job.submit()
    await bench.work()
    assert (await run.result(), log) == (20, ["started", "started"])


async def test_the_handler_waits_for_what_is_not_there_yet(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[int]:
        log.note("started")
        return [await ctx.wait_for_signal("go", int) for _ in range(3)]

    run = await job.submit()
    await send(bench, run, "go", number=2)
    await bench.work()
    assert (await run.state(), log) == (PublicState.SUSPENDED, ["started"])
    assert await bench.step_names(run) == ["signal:go"] * 2
    await bench.fabric.signal(run, "go", 9)
    await bench.work()
    assert (await run.result(), log) == ([0, 1, 9], ["started"] * 2)


@pytest.mark.parametrize("way", WAYS)
async def test_branches_go_on_with_kept_signals_side_by_side(
    bench: Bench, log: Log, way: Any
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        log.note("started")

        async def branch(name: str) -> list[Any]:
            found = [await ctx.wait_for_signal(name, int) for _ in range(5)]
            return [name, found]

        return list(await way(ctx, [branch("a"), branch("b"), branch("c")]))

    run = await job.submit()
    await send(bench, run, "c", "a", "b", number=5)
    await bench.work()
    assert await run.result() == [[name, [0, 1, 2, 3, 4]] for name in "abc"]
    if way is WAYS[0]:
        assert log == ["started"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_sleep_beside_kept_signals_keeps_its_time(bench: Bench, log: Log, way: Any) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        log.note("started")

        async def hear() -> list[int]:
            return [await ctx.wait_for_signal("go", int) for _ in range(5)]

        async def remind() -> str:
            await ctx.sleep("1h")
            return "reminded"

        return list(await way(ctx, [hear(), remind()]))

    run = await job.submit()
    await send(bench, run, "go", number=5)
    await bench.work()
    assert (await run.state(), log) == (PublicState.DELAYED, ["started"])
    await bench.pass_time(3_600_000)
    await bench.work()
    assert await run.result() == [[0, 1, 2, 3, 4], "reminded"]


async def test_all_and_any_go_on_as_well(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        log.note("started")
        every = await ctx.wait_for_all("a", "b")
        first = await ctx.wait_for_any("b", "c")
        return [every, first.name, first.value]

    run = await job.submit()
    await send(bench, run, "a", "c", "b")
    await bench.work()
    assert (await run.result(), log) == ([{"a": 0, "b": 0}, "c", 0], ["started"])


async def test_the_first_of_many_kept_signals_counts_whatever_its_name(bench: Bench) -> None:
    """Only the first few of each name are looked at: none that came later may overtake the rest"""

    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        return [(await ctx.wait_for_any("a", "b")).name for _ in range(MANY + 2)]

    run = await job.submit()
    await send(bench, run, "a", number=MANY)
    await send(bench, run, "b", "a")
    await bench.work()
    assert await run.result() == [*["a"] * MANY, "b", "a"]


async def test_more_than_a_few_signals_may_be_needed(bench: Bench) -> None:
    """A quorum of approvers that begins behind those that are looked at first"""
    approvers = [f"p{n}" for n in range(MANY)]

    @bench.fabric.task()
    async def job(ctx: Context) -> int:
        asked = await ctx.request_approval("ship", of=MANY, approvers=approvers)
        await ctx.step(decide)
        return len((await asked.verdict()).decisions)

    async def decide() -> None:
        for name in approvers:
            await bench.fabric.approve(run, "ship", approver=name)

    run = await job.submit()
    await bench.work()
    assert await run.result() == MANY


async def test_a_wait_with_a_time_limit_goes_on_too(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        first = await ctx.wait_for_signal("go", timeout="1m")
        try:
            await ctx.wait_for_signal("go", timeout="1m")
        except WaitTimeout:
            return [first, "late"]
        return []

    run = await job.submit()
    await send(bench, run, "go")
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    await bench.pass_time(60_000)
    await bench.work()
    assert await run.result() == [0, "late"]


async def test_a_lost_reply_is_no_second_signal(
    bench: Bench, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = bench.engine.suspensions.go_on

    async def deaf(*args: Any) -> Any:
        answer = await honest(*args)
        if len(log) == 1:
            log.note("lost")
            raise Unavailable("the reply is lost")
        return answer

    monkeypatch.setattr(bench.engine.suspensions, "go_on", deaf)

    @bench.fabric.task()
    async def job(ctx: Context) -> list[int]:
        log.note("started")
        return [await ctx.wait_for_signal("go", int) for _ in range(3)]

    run = await job.submit()
    await send(bench, run, "go", number=3)
    await bench.work()
    assert (await run.result(), log) == ([0, 1, 2], ["started", "lost"])


async def test_a_worker_that_drains_in_between_loses_nothing(bench: Bench) -> None:
    """The wait that was ended is recorded, the handler is not: it is handed back and goes on"""
    jobs: list[Any] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> list[int]:
        found = [await ctx.wait_for_signal("go", int)]
        if not jobs:
            for active in worker.active.values():
                jobs.append(active.job)
                active.stop("worker stopping")
        return [*found, await ctx.wait_for_signal("go", int)]

    run = await job.submit()
    await send(bench, run, "go", number=2)
    worker = await bench.fabric.worker()
    assert await worker.run_until_idle() == 2
    assert await run.result() == [0, 1]
    assert not any(job.cancelled() for job in jobs)  # only the handler, never the report


async def test_a_real_worker_hears_all_of_them(fabric: Fabric) -> None:
    @fabric.task()
    async def job(ctx: Context) -> int:
        return sum([await ctx.wait_for_signal("go", int) for _ in range(60)])

    run = await job.submit()
    async with working(fabric):
        for _ in range(60):
            await fabric.signal(run, "go", 1)
        assert await run.result(60) == 60


# -- the engine's own signals


async def test_a_run_with_all_its_signals_hears_that_its_flow_ended(
    bench: Bench, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is one of what others send"""
    tasks = Tasks(bench.fabric, log)

    @bench.fabric.task()
    async def job(ctx: Context) -> list[int]:
        found = await ctx.map(tasks.plain.with_options(delay="1h"), [1, 2])
        return [*found, *[await ctx.wait_for_signal("go", int) for _ in range(3)]]

    run = await job.submit()
    await work(bench)
    await send(bench, run, "go", number=3)
    monkeypatch.setattr(bench.engine.signals, "delivery", limited(bench.engine, 3))
    await bench.pass_time(3_600_000)
    await work(bench)
    assert await run.result() == [2, 3, 0, 1, 2]


def limited(engine: Engine, most: int) -> Any:
    """Deliveries of an engine that allows so many signals."""
    honest = engine.signals.delivery
    return lambda *args: partial(honest(*args), max_signals=most)
