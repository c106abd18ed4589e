"""`ctx.patched`: runs that went past a change keep to the old code, all others take the new one."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import Context, Fixed, RunFailed, SyncContext
from flowfabric.testing import harness
from flowfabric.worker.run.branches import BranchSpot
from flowfabric.worker.run.patches import Patches
from tests.worker.bench import AGAIN, Bench, Log

Body = Callable[[Context], Awaitable[Any]]


def deploys(bench: Bench, *bodies: Body) -> Any:
    """A task whose body fails at the end of each attempt but the last, and is another then."""

    @bench.fabric.task(name="job", retries=len(bodies), backoff=Fixed(delay=0))
    async def job(ctx: Context) -> Any:
        found = await bodies[ctx.info.attempt - 1](ctx)
        if ctx.info.attempt < len(bodies):
            raise ValueError("deploy")
        return found

    return job


async def a() -> str:
    return "a"


async def b() -> str:
    return "b"


async def new() -> str:
    return "new"


async def old_code(ctx: Context) -> list[str]:
    return [await ctx.step(a), await ctx.step(b)]


async def only_a(ctx: Context) -> list[str]:
    return [await ctx.step(a)]


async def patched_code(ctx: Context) -> list[str]:
    found = [await ctx.step(a)]
    if ctx.patched("new-first"):
        found.append(await ctx.step(new))
    return [*found, await ctx.step(b)]


async def test_a_run_that_went_past_the_patch_keeps_to_the_old_code(bench: Bench) -> None:
    run = await deploys(bench, old_code, patched_code, patched_code).submit()
    await bench.work()
    assert await run.result() == ["a", "b"]


async def test_a_run_that_has_not_come_to_the_patch_takes_it_for_ever(bench: Bench) -> None:
    run = await deploys(bench, only_a, patched_code, patched_code).submit()
    await bench.work()
    assert await run.result() == ["a", "new", "b"]


async def test_a_new_run_takes_the_patch(bench: Bench) -> None:
    run = await deploys(bench, patched_code, patched_code).submit()
    await bench.work()
    assert await run.result() == ["a", "new", "b"]


async def test_the_patch_may_be_removed_once_every_run_has_taken_it(bench: Bench) -> None:
    async def cleaned(ctx: Context) -> list[str]:
        return [await ctx.step(a), await ctx.step(new), await ctx.step(b)]

    run = await deploys(bench, patched_code, cleaned).submit()
    await bench.work()
    assert await run.result() == ["a", "new", "b"]


async def test_the_first_answer_holds_for_later_calls_of_the_same_name(bench: Bench) -> None:
    async def loop(ctx: Context, times: int) -> list[bool]:
        found = []
        for _ in range(times):
            found.append(await ctx.patched("x"))
            await ctx.step(a)
        return found

    async def before(ctx: Context) -> None:
        await ctx.step(a)

    async def after(ctx: Context) -> list[bool]:
        return await loop(ctx, 3)

    run = await deploys(bench, before, after, after).submit()
    await bench.work()
    assert await run.result() == [False, False, False]


async def test_two_patches_are_decided_apart(bench: Bench) -> None:
    async def first(ctx: Context) -> list[bool]:
        one = bool(ctx.patched("one"))
        await ctx.step(a)
        return [one]

    async def second(ctx: Context) -> list[bool]:
        two = bool(ctx.patched("two"))
        one = bool(ctx.patched("one"))
        await ctx.step(a)
        return [one, two, bool(ctx.patched("three"))]

    run = await deploys(bench, first, second, second).submit()
    await bench.work()
    assert await run.result() == [True, False, True]


async def test_each_branch_of_a_gather_decides_for_itself(bench: Bench) -> None:
    async def one(ctx: Context) -> str:
        await ctx.step(a)
        return await ctx.step(b)

    async def two(ctx: Context) -> str:
        return await ctx.step(a)

    async def before(ctx: Context) -> None:
        await ctx.gather(one(ctx), two(ctx))

    async def changed(ctx: Context, then: Callable[[], Awaitable[str]]) -> str:
        await ctx.step(a)
        return await ctx.step(new) if ctx.patched("x") else await ctx.step(then)

    async def after(ctx: Context) -> list[str]:
        return list(await ctx.gather(changed(ctx, b), changed(ctx, b)))

    run = await deploys(bench, before, after, after).submit()
    await bench.work()
    assert await run.result() == ["b", "new"]


async def test_what_branches_have_recorded_is_beyond_a_patch_before_them(bench: Bench) -> None:
    async def one(ctx: Context) -> str:
        return await ctx.step(a)

    async def before(ctx: Context) -> None:
        await ctx.gather(one(ctx), one(ctx))

    async def after(ctx: Context) -> list[bool]:
        earlier = bool(ctx.patched("x"))

        async def inside() -> bool:
            await ctx.step(a)
            return bool(ctx.patched("x"))

        within = await ctx.gather(inside(), inside())
        return [earlier, *within, bool(ctx.patched("later"))]

    run = await deploys(bench, before, after, after).submit()
    await bench.work()
    assert await run.result() == [False, False, False, True]


async def test_a_run_that_waits_has_gone_past_a_patch_before_its_wait(
    bench: Bench, log: Log
) -> None:
    code: list[Body] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        return await code[-1](ctx)

    async def before(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    async def after(ctx: Context) -> Any:
        took = bool(ctx.patched("x"))
        return [took, await ctx.wait_for_signal("go")]

    code.append(before)
    run = await job.submit()
    await bench.work()
    code.append(after)
    await bench.fabric.signal(run.id, "go", 1)
    await bench.work()
    assert await run.result() == [False, 1]


@pytest.mark.parametrize("wait", ["sleep", "signal"])
async def test_a_patch_is_recorded_with_the_sleep_or_wait_after_it(bench: Bench, wait: str) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[bool]:
        found = bool(ctx.patched("x"))
        if wait == "sleep":
            await ctx.sleep("1h")
        else:
            await ctx.wait_for_signal("go", timeout="1h")
        return [found, bool(ctx.patched("x"))]

    run = await job.submit()
    await bench.work()
    assert "~/patched/x" in await bench.step_names(run)
    if wait == "signal":
        await bench.fabric.signal(run.id, "go", None)
    await bench.pass_time(3_600_000)
    await bench.work()
    assert await run.result() == [True, True]


async def test_a_patch_alone_is_not_recorded(bench: Bench) -> None:
    """A worker with older code may still take the run: nothing of the new code has happened."""

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> bool:
        taken = bool(ctx.patched("x"))
        if ctx.info.first:
            raise ValueError("before anything was done")
        return taken

    run = await job.submit()
    await bench.work()
    assert await run.result() is True
    assert await bench.steps(run) == []


async def test_a_plain_function_has_it_too(bench: Bench) -> None:
    @bench.fabric.task(**AGAIN)
    def job(ctx: SyncContext) -> list[Any]:
        ctx.step(len, "abc")
        if ctx.info.attempt > 2:
            late = ctx.patched("late")
        if ctx.info.attempt > 1:
            early = ctx.patched("early")
        ctx.step(len, "abcd")
        if ctx.info.attempt < 3:
            raise ValueError("again")
        return [late, early, type(late).__name__]

    run = await job.submit()
    await bench.work()
    assert await run.result() == [False, False, "bool"]


@pytest.mark.parametrize("name", ["", 5, None, "~/x", "x" * 300, "\ud800"])
async def test_bad_names_are_refused(bench: Bench, name: Any) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        ctx.patched(name)

    run = await job.submit()
    await bench.work()
    with pytest.raises(RunFailed):
        await run.result()


async def test_a_step_cannot_ask_for_a_patch(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        async def inner() -> None:
            ctx.patched("x")

        await ctx.step(inner)

    run = await job.submit()
    await bench.work()
    with pytest.raises(RunFailed, match="inside step"):
        await run.result()


async def test_in_the_test_kit(bench: Bench) -> None:
    fabric = bench.fabric

    @fabric.task(**AGAIN)
    async def job(ctx: Context) -> list[bool]:
        found = [bool(ctx.patched("x"))]
        await ctx.step(a)
        return found

    async with harness(fabric) as kit:
        run = await job.submit()
        await kit.run_until(step="a")
        await kit.crash()
        assert await kit.result(run) == [True]
        kit.assert_steps(run, ["a"])


@pytest.mark.parametrize(
    ("path", "position", "beyond"),
    [
        ("", 1, False),
        ("", 2, True),
        ("~", 2, True),
        ("~", 1, False),
        ("0", 5, False),
        ("0.3", 5, False),
        ("1", 0, True),
        ("1.0", 0, True),
        ("~1", 0, True),
        ("1~", 0, True),
        ("~again/0", 2, True),
        ("0~again/0", 2, False),
        ("~patched/other", 2, True),
    ],
)
def test_what_is_beyond_a_spot(path: str, position: int, beyond: bool) -> None:
    """The spot is after two calls and one branch of the handler itself."""
    taken = Patches().answer("x", BranchSpot("", 2, 1), [(path, position)])
    assert taken is not beyond


@pytest.mark.parametrize(
    ("path", "position", "beyond"),
    [
        ("", 9, False),
        ("0.1", 1, False),
        ("0.1", 2, True),
        ("0.10", 9, False),
        ("0.1.0", 0, False),
        ("0.1.1", 0, True),
        ("0.1~", 2, True),
        ("0.2", 9, False),
    ],
)
def test_what_is_beyond_a_spot_in_a_branch(path: str, position: int, beyond: bool) -> None:
    taken = Patches().answer("x", BranchSpot("0.1", 2, 1), [(path, position)])
    assert taken is not beyond
