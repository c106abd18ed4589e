"""Functions as steps: inside a run, inside a step, in a thread, after a lost lease."""

import asyncio
import functools
import threading
import time
from typing import Any

import pytest

from flowfabric import (
    Context,
    Fabric,
    Fail,
    Fixed,
    LeaseLost,
    PublicState,
    RunFailed,
    SyncContext,
)
from flowfabric.worker.errors import Unwind
from flowfabric.worker.run.steps import StepFacts, current_context
from tests.worker.bench import AGAIN, Bench, Log, working


async def a() -> str:
    return "a"


async def number() -> int:
    return 1


# -- functions that are steps


async def test_a_task_that_takes_a_context_is_no_step(bench: Bench) -> None:
    @bench.fabric.task
    async def part(ctx: Context, word: str = "") -> str:
        return word + ctx.info.task

    @bench.fabric.task
    async def whole(ctx: Context, given: str) -> str:
        match given:
            case "first":
                return await ctx.step(part, ctx, "x")
            case "by name":
                untyped: Any = part
                return str(await ctx.step(untyped, word="x", ctx=ctx))
            case _:
                return await ctx.step(part, "x")

    first, by_name, nowhere = await whole.submit_many(["first", "by name", "nowhere"])
    await bench.work()
    assert (await first.result(), await by_name.result()) == ("xwhole", "xwhole")
    with pytest.raises(RunFailed, match="'part' takes a context, so it cannot be a step: submit"):
        await nowhere.result()


async def test_a_step_function_is_a_step_in_a_run_and_a_function_elsewhere(
    bench: Bench, log: Log
) -> None:
    @bench.fabric.step(name="fetch.it")
    async def fetch(word: str) -> str:
        return str(log.note(word))

    @bench.fabric.step
    def plain(word: str) -> str:
        return str(log.note(word))

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> list[Any]:
        found = [await fetch("a"), await plain("b"), await ctx.step(fetch, "c")]
        if ctx.info.first:
            raise ValueError
        return found

    assert (await fetch("out"), plain("side")) == ("out", "side")
    run = await job.submit()
    await bench.work()
    assert await run.result() == ["a", "b", "c"]
    assert log == ["out", "side", "a", "b", "c"]
    assert (await bench.step_names(run))[0] == "fetch.it"
    assert getattr(fetch, "__name__", "") == "fetch"


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_step_function_is_a_step_without_a_context_too(
    bench: Bench, log: Log, kind: str
) -> None:
    tries: list[int] = []

    @bench.fabric.step()
    def fetch(word: str) -> str:
        return str(log.note(word))

    async def coroutine() -> str:
        return str(check(await fetch("a")))

    def plain() -> str:
        return str(check(fetch("a")))

    def check(found: str) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError
        return found

    function: Any = coroutine if kind == "async" else plain
    job = bench.fabric.task(**AGAIN)(function)
    run = await job.submit()
    await bench.work()
    assert (await run.result(), log, len(tries)) == ("a", ["a"], 2)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_inside_a_step_everything_belongs_to_that_step(
    bench: Bench, log: Log, kind: str
) -> None:
    @bench.fabric.step()
    def inner(word: str) -> str:
        return str(log.note(word))

    async def outer() -> list[str]:
        return [inner("a"), inner("b")]

    def plain_outer() -> list[str]:
        return [inner("a"), inner("b")]

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> Any:
        function: Any = outer if kind == "async" else plain_outer
        found = await ctx.step(function)
        found.append(await inner("c"))
        if ctx.info.first:
            raise ValueError
        return found

    run = await job.submit()
    await bench.work()
    assert (await run.result(), log) == (["a", "b", "c"], ["a", "b", "c"])
    assert len(await bench.steps(run)) == 2


async def test_a_step_cannot_ask_for_steps(bench: Bench) -> None:
    @bench.fabric.task(retries=3)
    async def job(ctx: Context) -> None:
        async def outer() -> None:
            await ctx.step(a)

        await ctx.step(outer)

    run = await job.submit()
    assert await bench.work() == 1
    with pytest.raises(RunFailed, match=r"'a' was asked for inside step .*outer"):
        await run.result()


async def test_contexts_do_not_leak_from_one_run_to_another(bench: Bench, log: Log) -> None:
    seen: list[Any] = []

    @bench.fabric.step()
    def fetch(word: str) -> str:
        return word

    @bench.fabric.task()
    def in_thread(word: str) -> str:
        return str(fetch(word))

    @bench.fabric.task(process=False)
    def bare() -> None:
        from flowfabric.worker.run.steps import current_context

        make_context = current_context.get()
        assert make_context is not None
        seen.append(make_context()._context.info.task)

    runs = [await in_thread.submit(f"w{n}") for n in range(20)]
    other = await bare.submit()
    await bench.work(concurrency=4)
    assert [await run.result() for run in runs] == [f"w{n}" for n in range(20)]
    assert [len(await bench.steps(run)) for run in runs] == [1] * 20
    await other.result()
    assert seen == ["bare"]


def test_how_steps_are_named() -> None:
    class Thing:
        def method(self) -> None: ...

        def __call__(self) -> None: ...

    names = [
        StepFacts.of(function).name
        for function in (a, Thing().method, Thing(), functools.partial(a), lambda: None)
    ]
    here = "test_how_steps_are_named"
    assert names == ["a", f"{here}.Thing.method", "Thing", "a", f"{here}.<lambda>"]


async def test_any_callable_can_be_a_step(bench: Bench) -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

        def __call__(self) -> int:
            return 3

    task = bench.fabric.task(name="other")(number)

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return [
            await ctx.step(Unhashable()),
            await ctx.step(functools.partial(max, 1), 4),
            await ctx.step("abc".upper),
            await ctx.step(task),
            await ctx.step(lambda: number()),
        ]

    run = await job.submit()
    await bench.work()
    assert await run.result() == [3, 4, "ABC", 1, 1]


# -- in a thread


async def test_a_step_of_a_handler_that_takes_no_context_is_recorded_in_its_order(
    bench: Bench, log: Log
) -> None:
    @bench.fabric.step()
    async def fetch(word: str) -> str:
        return str(log.note(word))

    @bench.fabric.task(**AGAIN)
    async def job() -> list[str]:
        found = [*await asyncio.gather(fetch("a"), fetch("b")), await fetch("c")]
        if log.count("tried") == 0:
            log.note("tried")
            raise ValueError
        return found

    run = await job.submit()
    await bench.work()
    assert await run.result() == ["a", "b", "c"]
    assert log == ["a", "b", "c", "tried"]


async def test_a_step_after_the_end_of_a_handler_that_takes_no_context_is_refused(
    bench: Bench, log: Log
) -> None:
    left: list[asyncio.Task[Any]] = []
    go_on = asyncio.Event()

    @bench.fabric.step()
    async def fetch(word: str) -> str:
        return str(log.note(word))

    @bench.fabric.task()
    async def job() -> str:
        async def stray() -> None:
            await go_on.wait()
            await fetch("stray")

        left.append(asyncio.create_task(stray()))
        await asyncio.sleep(0)
        return "over"

    run = await job.submit()
    await bench.work()
    go_on.set()
    with pytest.raises(Unwind):
        await left[0]
    assert (await run.result(), log, await bench.steps(run)) == ("over", [], [])


async def test_what_the_first_call_left_behind_is_refused_while_the_handler_is_called_again(
    fabric: Fabric, log: Log
) -> None:
    """What it waits for is there, so the handler is called again under the same lease."""
    left: list[asyncio.Task[Any]] = []
    waits, sent, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @fabric.step()
    async def fetch(word: str) -> str:
        return str(log.note(word))

    @fabric.task()
    async def job() -> Any:
        async def stray() -> None:
            await go_on.wait()
            await fetch("stray")

        make_context = current_context.get()
        assert make_context is not None
        if not left:
            left.append(asyncio.create_task(stray()))
            waits.set()
            await sent.wait()
        else:
            go_on.set()
            await asyncio.wait(left)
        return await make_context().wait_for_signal("ok")

    async with working(fabric):
        run = await job.submit()
        await waits.wait()
        await fabric.signal(run.id, "ok", 1)
        sent.set()
        assert await run.result(60) == 1
    assert isinstance(left[0].exception(), Unwind)
    assert log == []


async def test_threads_that_ask_at_the_same_moment_share_the_scope_of_their_run(
    bench: Bench,
) -> None:
    together = threading.Barrier(4)

    def ask() -> object:
        make_context = current_context.get()
        assert make_context is not None
        together.wait(60)
        return make_context()._scope

    @bench.fabric.task()
    async def job() -> int:
        return len(
            {id(each) for each in await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(4)))}
        )

    run = await job.submit()
    await bench.work()
    assert await run.result() == 1


async def test_the_same_words_in_a_thread(bench: Bench, log: Log) -> None:
    seen: list[Any] = []

    @bench.fabric.task()
    async def child(x: int) -> int:
        return x

    @bench.fabric.task(**AGAIN)
    def job(ctx: SyncContext, x: int) -> list[Any]:
        here = threading.get_ident()
        thread = ctx.step(threading.get_ident)
        ctx.progress(10, "begun")
        ctx.heartbeat()
        ctx.log.info("hello")
        later = ctx.step(log.later, "coroutine")
        ctx.sleep("1h")
        run = ctx.submit(child, x)
        seen.append((ctx.now(), ctx.random(), run.id, later, thread))
        if ctx.info.first:
            seen.append(here == thread)
            raise ValueError
        return [later, ctx.info.attempt]

    run = await job.submit(5)
    await bench.work()
    assert await run.state() is PublicState.DELAYED
    await bench.pass_time(3_600_000)
    await bench.work()
    assert await run.result() == ["coroutine", 2]
    assert log == ["coroutine"]
    assert seen[0] == seen[2]
    progress = (await run.describe()).progress
    assert progress is not None
    assert (progress.percent, progress.message) == (10, "begun")


async def test_a_plain_step_runs_in_the_handlers_thread_without_an_event_loop(
    bench: Bench,
) -> None:
    def step() -> tuple[int, int]:
        return threading.get_ident(), asyncio.run(number())

    @bench.fabric.task()
    def job(ctx: SyncContext) -> list[Any]:
        thread, found = ctx.step(step)
        return [thread == threading.get_ident(), found]

    run = await job.submit()
    await bench.work()
    assert await run.result() == [True, 1]


async def test_retries_and_timeouts_of_steps_in_a_thread(bench: Bench) -> None:
    tries: list[str] = []
    release = threading.Event()

    @bench.fabric.step(retries=2, backoff=Fixed(delay="1ms"))
    def fragile() -> str:
        tries.append("fragile")
        if len(tries) < 3:
            raise ValueError
        return "done"

    @bench.fabric.step(timeout="30ms")
    def slow() -> None:
        release.wait(60)

    @bench.fabric.step(retries=5)
    def hopeless() -> None:
        tries.append("hopeless")
        raise Fail("no use")

    @bench.fabric.task()
    def job(ctx: SyncContext) -> list[str]:
        found = [fragile()]
        for step in (slow, hopeless):
            try:
                ctx.step(step)
            except (TimeoutError, Fail) as error:
                found.append(type(error).__name__)
        return found

    run = await job.submit()
    await bench.work()
    release.set()
    assert await run.result() == ["done", "TimeoutError", "Fail"]
    assert tries == ["fragile"] * 3 + ["hopeless"]


async def test_no_except_exception_in_a_thread_can_swallow_a_sleep(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    def job(ctx: SyncContext) -> str:
        try:
            ctx.sleep("1h")
        except Exception:
            log.note("swallowed")
        return "awake"

    run = await job.submit()
    await bench.work_through(run)
    assert (await run.result(), log) == ("awake", [])


async def test_changed_code_in_a_thread_blocks_the_run(bench: Bench, log: Log) -> None:
    @bench.fabric.task(**AGAIN)
    def job(ctx: SyncContext) -> None:
        if ctx.info.first:
            ctx.step(log.note, "before")
            raise ValueError
        ctx.step(time.monotonic)

    run = await job.submit()
    await bench.work()
    info = await run.describe()
    assert info.state == "waiting"
    assert "'Log.note' (call 1) but the code now asks for 'monotonic'" in str(info.blocking_detail)


# -- a lease that was lost


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_step_after_a_lost_lease_raises_and_writes_nothing(
    bench: Bench, log: Log, kind: str
) -> None:
    errors: list[BaseException] = []

    async def coroutine(ctx: Context) -> str:
        await ctx.step(log.later, "a")
        await bench.engine.claims.revoke(ctx.info.id, reason="test")
        for word in ("b", "c"):
            try:
                await ctx.step(log.later, word)
            except BaseException as error:
                errors.append(error)
        return "stale"

    def plain(ctx: SyncContext) -> str:
        ctx.step(log.note, "a")
        revoked = bench.engine.claims.revoke(ctx.info.id, reason="test")
        asyncio.run_coroutine_threadsafe(revoked, loop).result()
        for word in ("b", "c"):
            try:
                ctx.step(log.note, word)
            except BaseException as error:
                errors.append(error)
        return "stale"

    loop = asyncio.get_running_loop()
    function: Any = coroutine if kind == "async" else plain
    run = await bench.fabric.task(name="job")(function).submit()
    assert await bench.work_once() == 1
    assert log == ["a", "b"], "the worker learned of it when it recorded b, and did not begin c"
    assert isinstance(errors[0], LeaseLost)
    assert isinstance(errors[1], Unwind)
    assert len(await bench.steps(run)) == 1
    assert (await run.describe()).vector.ownership.value == "lease_revoked"
