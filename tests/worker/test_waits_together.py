"""Waits beside steps, sleeps and other waits: each ends on its own, and none loses anything."""

import asyncio
from typing import Any

import pytest

from flowfabric import Context, PublicState, WaitTimeout
from tests.worker.bench import Bench, Log

HOUR = 3_600_000


async def together(ctx: Context, items: list[Any]) -> list[Any]:
    return await ctx.gather(*items)


async def plainly(ctx: Context, items: list[Any]) -> list[Any]:
    return list(await asyncio.gather(*items))


WAYS = [together, plainly]


@pytest.mark.parametrize("way", WAYS)
async def test_a_step_beside_a_wait_finishes_first(bench: Bench, log: Log, way: Any) -> None:
    async def slow(word: str) -> str:
        await asyncio.sleep(0.01)
        return str(log.note(word))

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def work() -> str:
            await ctx.step(slow, "one")
            return str(await ctx.step(slow, "two"))

        return list(await way(ctx, [ctx.wait_for_signal("go"), work()]))

    run = await job.submit()
    await bench.work()
    assert (await run.state(), log) == (PublicState.SUSPENDED, ["one", "two"])
    await bench.fabric.signal(run, "go", 1)
    await bench.work()
    assert (await run.result(), log) == ([1, "two"], ["one", "two"])


@pytest.mark.parametrize("way", WAYS)
async def test_what_follows_a_wait_is_done_while_the_others_wait_on(
    bench: Bench, log: Log, way: Any
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def branch(name: str) -> str:
            found = await ctx.wait_for_signal(name)
            return str(await ctx.step(log.later, f"{name} {found}"))

        return list(await way(ctx, [branch("a"), branch("b"), branch("c")]))

    run = await job.submit()
    await bench.work()
    for count, name in enumerate("cab", 1):
        await bench.fabric.signal(run, name, count)
        await bench.work()
        assert len(log) == count
    assert log == ["c 1", "a 2", "b 3"]
    assert await run.result() == ["a 2", "b 3", "c 1"]
    assert (await run.describe()).attempts_made == 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_sleep_beside_a_wait_wakes_the_run_too(bench: Bench, log: Log, way: Any) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def remind() -> str:
            await ctx.sleep("1h")
            return str(await ctx.step(log.later, "reminded"))

        return list(await way(ctx, [ctx.wait_for_signal("go"), remind()]))

    run = await job.submit()
    await bench.work()
    await bench.pass_time(HOUR)
    await bench.work()
    assert (await run.state(), log) == (PublicState.SUSPENDED, ["reminded"])
    await bench.pass_time(HOUR)
    assert await bench.work() == 0
    await bench.fabric.signal(run, "go", 1)
    await bench.work()
    assert (await run.result(), log) == ([1, "reminded"], ["reminded"])


async def test_a_signal_wakes_the_run_before_a_sleep_is_over_and_the_sleep_goes_on(
    bench: Bench,
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def nap() -> float:
            await ctx.sleep("1h")
            return (await ctx.now()).timestamp()

        return list(await ctx.gather(ctx.wait_for_signal("go"), nap()))

    run = await job.submit()
    end = (bench.clock.now() + HOUR) / 1000
    await bench.work()
    await bench.pass_time(HOUR // 2)
    await bench.fabric.signal(run, "go", 1)
    await bench.work()
    assert await run.state() is PublicState.DELAYED
    await bench.pass_time(HOUR // 2)
    await bench.work()
    assert await run.result() == [1, end]


@pytest.mark.parametrize("early", [0, 1, 2])
async def test_two_waits_for_one_name_take_one_signal_each(bench: Bench, early: int) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return list(await ctx.gather(ctx.wait_for_signal("go"), ctx.wait_for_signal("go")))

    run = await job.submit()
    for number in range(early):
        await bench.fabric.signal(run, "go", number)
    await bench.work()
    for number in range(early, 2):
        assert await run.state() is PublicState.SUSPENDED
        await bench.fabric.signal(run, "go", number)
        await bench.work()
    assert await run.result() == [0, 1]


async def test_two_signals_before_a_worker_came_wake_two_waits(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return list(await ctx.gather(ctx.wait_for_signal("a"), ctx.wait_for_signal("b")))

    run = await job.submit()
    await bench.work()
    assert (await bench.fabric.signal(run, "a", 1)).resumed
    assert not (await bench.fabric.signal(run, "b", 2)).resumed, "it is awake already"
    assert await bench.work() == 1
    assert await run.result() == [1, 2]


async def test_one_wait_times_out_while_another_goes_on(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def hasty() -> str:
            try:
                return str(await ctx.wait_for_signal("hasty", timeout="1h"))
            except WaitTimeout:
                return str(await ctx.step(log.later, "given up"))

        return list(await ctx.gather(hasty(), ctx.wait_for_all("a", "b")))

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "a", 1)
    await bench.pass_time(HOUR)
    await bench.work()
    assert (await run.state(), log) == (PublicState.SUSPENDED, ["given up"])
    await bench.fabric.signal(run, "b", 2)
    await bench.work()
    assert await run.result() == ["given up", {"a": 1, "b": 2}]


async def test_an_approval_that_is_half_given_stays_so_while_others_end(bench: Bench) -> None:
    fabric = bench.fabric

    @fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def approved() -> list[str]:
            verdict = await ctx.approval("deploy", of=2)
            assert verdict.approved
            return [decision.approver for decision in verdict.decisions]

        return list(await ctx.gather(ctx.wait_for_signal("go"), approved(), ctx.sleep("1h")))

    run = await job.submit()
    await bench.work()
    await fabric.approve(run, "deploy", approver="ada")
    await fabric.signal(run, "go", 1)
    await bench.work()
    await bench.pass_time(HOUR)
    await bench.work()
    assert (await fabric.approve(run, "deploy", approver="ada")).duplicate
    assert await run.state() is PublicState.SUSPENDED
    assert (await fabric.approve(run, "deploy", approver="bob")).resumed
    await bench.work()
    assert await run.result() == [1, ["ada", "bob"], None]


async def test_approvals_of_one_name_about_different_things_are_apart(bench: Bench) -> None:
    fabric = bench.fabric

    @fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def approved(thing: str) -> list[str]:
            asked = await ctx.request_approval("ship", of=2, about=thing)
            for who in ("ada", "bob"):
                tokens[thing, who] = asked.id, (await asked.token(who)).reveal()
            verdict = await asked.verdict()
            verdict.check(thing)
            return [decision.approver for decision in verdict.decisions]

        return list(await ctx.gather(approved("tea"), approved("rum")))

    tokens: dict[tuple[str, str], tuple[str, str]] = {}

    async def approve(thing: str, who: str) -> bool:
        id, token = tokens[thing, who]
        return (await fabric.approve(id, token=token)).resumed

    run = await job.submit()
    await bench.work()
    assert not await approve("tea", "ada")
    assert not await approve("rum", "bob")
    assert await approve("rum", "ada")
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    assert await approve("tea", "bob")
    await bench.work()
    assert await run.result() == [["ada", "bob"], ["bob", "ada"]]


async def test_callbacks_side_by_side_are_apart(bench: Bench) -> None:
    doors: dict[str, tuple[str, str]] = {}

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def ask(what: str) -> Any:
            callback = await ctx.callback()
            doors[what] = callback.id, callback.token.reveal()
            return await callback.result()

        return list(await ctx.gather(ask("left"), ask("right")))

    run = await job.submit()
    await bench.work()
    assert doors["left"] != doors["right"]
    for what in ("right", "left"):
        id, token = doors[what]
        await bench.fabric.signal(id, payload=what, token=token)
        await bench.work()
    assert await run.result() == ["left", "right"]


async def test_waits_within_branches_within_branches(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def leaf(name: str) -> str:
            first = await ctx.wait_for_signal(name)
            return f"{first}{await ctx.wait_for_signal(name)}"

        async def branch(name: str) -> list[Any]:
            return list(await ctx.gather(leaf(name), leaf(2 * name)))

        return list(await ctx.gather(branch("a"), branch("b")))

    run = await job.submit()
    for round in (1, 2):
        for name in ("bb", "a", "b", "aa"):
            await bench.work()
            await bench.fabric.signal(run, name, round)
    await bench.work()
    assert await run.result() == [["12", "12"], ["12", "12"]]


@pytest.mark.timeout(60)
async def test_a_branch_that_fails_as_the_others_settle_fails_the_run(bench: Bench) -> None:
    """What sleeps beside it is cancelled although it was about to look again"""

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        async def fails() -> None:
            await ctx.wait_for_any("a", "b")
            raise ConnectionError

        async def inner() -> None:
            await ctx.gather(fails(), ctx.sleep("1s"), ctx.step(int))

        await ctx.gather(inner(), ctx.wait_for_all("c"))

    run = await job.submit()
    await bench.fabric.signal(run, "b")
    await bench.work()
    assert await run.state() is PublicState.FAILED


async def test_no_except_can_swallow_a_wait(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        try:
            async with asyncio.timeout(30):
                await ctx.wait_for_signal("go")
        except Exception:
            log.note("swallowed")
        log.note("after")
        return "awake"

    run = await job.submit()
    await bench.work()
    assert (log, await run.state()) == ([], PublicState.SUSPENDED)
    await bench.fabric.signal(run, "go")
    await bench.work()
    assert (await run.result(), log) == ("awake", ["after"])


async def test_a_wait_that_was_given_up_by_the_handler_is_no_wait(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        async def impatient() -> str:
            try:
                async with asyncio.timeout(0.01):
                    return str(await ctx.wait_for_signal("go"))
            except TimeoutError:
                return "given up"

        async def busy() -> None:
            await asyncio.sleep(0.05)

        return str((await ctx.gather(impatient(), busy()))[0])

    run = await job.submit()
    assert await bench.work() == 1
    assert await run.result() == "given up"


async def test_a_wait_inside_a_step_is_refused(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        async def step() -> str:
            return str(await ctx.wait_for_signal("go"))

        try:
            return await ctx.step(step)
        except Exception as error:
            return str(error)

    run = await job.submit()
    await bench.work()
    assert "'signal:go' was asked for inside step" in await run.result()
