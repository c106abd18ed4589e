"""Runs that are blocked by code, as workers and the test kit see them: two versions of a task."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import Context, Fabric, Run, SyncContext
from flowfabric.testing import Stuck, harness
from flowfabric.worker.run.fingerprint import fingerprint
from flowfabric.worker.run.loop import Worker
from flowfabric.worker.run.options import WorkerSettings
from tests.worker.bench import AGAIN, TTL, Bench, working


async def a() -> str:
    return "a"


async def b() -> str:
    return "b"


def old(fabric: Fabric) -> Any:
    @fabric.task(name="job", **AGAIN)
    async def job(ctx: Context) -> list[str]:
        found = [await ctx.step(a)]
        await ctx.sleep("1h")
        return found

    return job


def new(fabric: Fabric) -> Any:
    @fabric.task(name="job", **AGAIN)
    async def job(ctx: Context) -> list[str]:
        found = [await ctx.step(b)]
        await ctx.sleep("1h")
        return [*found, "new"]

    return job


def newest(fabric: Fabric) -> Any:
    @fabric.task(name="job", **AGAIN)
    async def job(ctx: Context) -> list[str]:
        found = [await ctx.step(a)]
        await ctx.sleep("1h")
        return [*found, "newest"]

    return job


async def work(bench: Bench, version: Callable[[Fabric], Any]) -> int:
    """A worker with this version of the code runs all that it can."""
    fabric = Fabric("sqlite://:memory:")
    version(fabric)
    return await Worker(bench.engine, fabric.tasks, WorkerSettings(ttl=TTL)).run_until_idle()


async def asleep(bench: Bench) -> Run[Any]:
    """A run of the old code whose sleep is over."""
    run: Run[Any] = await old(bench.fabric).submit()
    await bench.work()
    await bench.pass_time(3_600_000)
    return run


async def test_code_that_does_not_fit_leaves_the_run_to_code_that_does(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    run = await asleep(bench)
    caplog.set_level(logging.WARNING, "flowfabric")
    assert await work(bench, new) == 1
    assert (await run.state()).value == "waiting"
    assert "blocked by code" in caplog.text
    assert await work(bench, new) == 0, "it is not tried again with the same code"
    assert await work(bench, old) == 1
    assert await run.result() == ["a"]
    assert (await run.describe()).attempts_made == 1


async def test_a_fixed_deploy_continues_it(bench: Bench) -> None:
    run = await asleep(bench)
    await work(bench, new)
    assert await work(bench, newest) == 1
    assert await run.result() == ["a", "newest"]


async def test_a_worker_that_has_tried_it_gives_it_back_without_a_call(bench: Bench) -> None:
    run = await asleep(bench)
    await work(bench, new)
    await bench.engine.code_gate.release_to(await presence(bench, old))
    assert await work(bench, new) == 1
    reason = (await bench.engine.explain(run.id)).main
    assert reason.code == "blocked_by_code"
    await bench.pass_time(60_000)
    assert await work(bench, old) == 1
    assert await run.result() == ["a"]


async def presence(bench: Bench, version: Callable[[Fabric], Any]) -> Any:
    fabric = Fabric("sqlite://:memory:")
    version(fabric)
    return Worker(bench.engine, fabric.tasks, WorkerSettings(ttl=TTL)).presence


async def test_an_operator_lets_the_same_code_try_again(bench: Bench) -> None:
    run = await asleep(bench)
    await work(bench, new)
    await bench.engine.executions.unblock(run.id)
    assert await work(bench, new) == 1
    assert (await bench.engine.explain(run.id)).main.code == "blocked_by_code"


async def test_a_plain_function_is_blocked_too(bench: Bench) -> None:
    fabric = bench.fabric

    @fabric.task(**AGAIN)
    def job(ctx: SyncContext) -> None:
        ctx.step(len if ctx.info.first else str, "abc")
        if ctx.info.first:
            raise ValueError("deploy")

    run = await job.submit()
    await bench.work()
    assert (await bench.engine.explain(run.id)).main.code == "blocked_by_code"


async def test_live_workers_of_two_versions_finish_every_run(store_url: str) -> None:
    """Rolling deploy: either worker may claim first, and no run fails or is stuck."""

    def one_version(fabric: Fabric) -> Any:
        @fabric.task(name="job", **AGAIN)
        async def job(ctx: Context) -> str:
            found = await ctx.step(a)
            if ctx.info.first:
                raise ValueError("again")
            return found

        return job

    def other_version(fabric: Fabric) -> None:
        @fabric.task(name="job", **AGAIN)
        async def job(ctx: Context) -> str:
            found = await ctx.step(b)
            if ctx.info.first:
                raise ValueError("again")
            return found

    async with Fabric(store_url) as one, Fabric(store_url) as two:
        job = one_version(one)
        other_version(two)
        async with working(one, name="one", ttl="3s"), working(two, name="two", ttl="3s"):
            runs = [await job.submit() for _ in range(10)]
            found = await asyncio.gather(*(run.result(60) for run in runs))
    assert set(found) <= {"a", "b"}


async def test_a_worker_that_starts_releases_it(store_url: str) -> None:
    def waiting(fabric: Fabric) -> Any:
        @fabric.task(name="job", **AGAIN)
        async def job(ctx: Context) -> str:
            await ctx.step(a)
            await ctx.wait_for_signal("go")
            return "old"

        return job

    async with Fabric(store_url) as one, Fabric(store_url) as two:
        job = waiting(one)
        new(two)
        run = await job.submit()
        async with working(one, name="one"):
            await until_state(run, "suspended")
        async with working(two, name="two"):
            await one.signal(run.id, "go", None)
            await until_state(run, "waiting")
        async with working(one, name="one"):
            assert await run.result(60) == "old"


async def until_state(run: Run[Any], state: str) -> None:
    async with asyncio.timeout(60):
        while (await run.state()).value != state:  # noqa: ASYNC110 - another process may do it
            await asyncio.sleep(0.01)


# -- the test kit


async def test_in_the_test_kit_the_run_waits_and_the_error_says_why(bench: Bench) -> None:
    code: list[Callable[[], Awaitable[str]]] = [a]

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> str:
        found = await ctx.step(code[-1])
        await ctx.sleep("1h")
        return found

    async with harness(bench.fabric) as kit:
        run = await job.submit()
        await kit.run_until_idle()
        code.append(b)
        with pytest.raises(Stuck, match=r"blocked by code: step 0 was recorded as 'a'"):
            await kit.result(run)
        code.pop()
        await (await bench.fabric.engine()).executions.unblock(run.id)
        assert await kit.result(run) == "a"


async def test_in_the_test_kit_other_code_continues_the_run() -> None:
    fabric = Fabric("sqlite://:memory:")
    job = old(fabric)
    async with harness(fabric) as kit:
        run = await job.submit()
        await kit.run_until_idle()
        del fabric.tasks["job"]
        new(fabric)
        with pytest.raises(Stuck, match="blocked by code"):
            await kit.result(run)
        del fabric.tasks["job"]
        newest(fabric)
        assert await kit.result(run) == ["a", "newest"]


# -- fingerprints


def test_a_fingerprint_tells_code_apart() -> None:
    def one() -> int:
        return 1

    def again() -> int:
        return 1

    def other() -> int:
        return 2

    again.__code__ = one.__code__
    assert fingerprint(one) == fingerprint(again)
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one, "1") != fingerprint(one, "2")
    assert fingerprint(one) != fingerprint(one, "2")


def test_a_fingerprint_sees_nested_functions_and_constants() -> None:
    def make(source: str) -> Any:
        space: dict[str, Any] = {}
        exec(source, space)  # noqa: S102 - code without a module, as in a notebook
        return space["job"]

    inner = "lambda: {value} in {{'x', 'y', 'z'}}"
    text = f"def job():\n    return {inner}"
    assert fingerprint(make(text.format(value=1))) != fingerprint(make(text.format(value=2)))
    assert fingerprint(make(text.format(value=1))) == fingerprint(make(text.format(value=1)))


def test_callables_of_every_sort_have_a_fingerprint() -> None:
    class Callable_:
        def __call__(self) -> int:
            return 1

    assert fingerprint(Callable_())
    assert fingerprint(len)
