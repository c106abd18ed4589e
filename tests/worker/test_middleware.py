"""Middleware: functions around every call of a handler and of a step."""

import asyncio
import contextvars
import threading
from dataclasses import replace
from typing import Any

import pytest

from flowfabric import (
    Context,
    Fabric,
    Fixed,
    Invalid,
    Invocation,
    NextCall,
    RunExpired,
    RunFailed,
    SyncContext,
    SyncNextCall,
    testing,
)
from tests.worker import handlers
from tests.worker.bench import AGAIN, Bench, Log, until, working

pytestmark = pytest.mark.rules

span: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")


def add_async(fabric: Fabric, log: Log, name: str) -> None:
    @fabric.middleware
    async def layer(call: Invocation, next: NextCall) -> Any:
        log.note(f"{name}>{call.kind}:{call.name}")
        token = span.set(name)
        try:
            return await next(call)
        except Exception as error:
            log.note(f"{name}!{error}")
            raise
        finally:
            span.reset(token)
            log.note(f"{name}<{call.name}")


def add_plain(fabric: Fabric, log: Log, name: str) -> None:
    @fabric.middleware
    def layer(call: Invocation, next: SyncNextCall) -> Any:
        log.note(f"{name}>{call.kind}:{call.name}")
        token = span.set(name)
        try:
            return next(call)
        except Exception as error:
            log.note(f"{name}!{error}")
            raise
        finally:
            span.reset(token)
            log.note(f"{name}<{call.name}")


ADD = {"a": add_async, "p": add_plain}
MIXES = ["a", "p", "ap", "pa", "apap", "papa", "ppaa"]


@pytest.mark.parametrize("mix", MIXES)
async def test_the_first_is_the_outermost_around_a_coroutine(
    bench: Bench, log: Log, mix: str
) -> None:
    for number, kind in enumerate(mix):
        ADD[kind](bench.fabric, log, f"{kind}{number}")

    @bench.fabric.task()
    async def job(ctx: Context, number: int) -> str:
        log.note(f"in {span.get()}")
        return await ctx.step(double, number) + await ctx.step(later, number)

    run = await job.submit(4)
    await bench.work()
    assert await run.result() == "44"
    assert log == expected(mix, "attempt:job", [*around(mix, "double"), *around(mix, "later")])


@pytest.mark.parametrize("mix", MIXES)
async def test_the_first_is_the_outermost_around_a_plain_function(
    bench: Bench, log: Log, mix: str
) -> None:
    for number, kind in enumerate(mix):
        ADD[kind](bench.fabric, log, f"{kind}{number}")

    @bench.fabric.task()
    def job(ctx: SyncContext, number: int) -> str:
        log.note(f"in {span.get()}")
        return ctx.step(double, number) + ctx.step(later, number)

    run = await job.submit(4)
    await bench.work()
    assert await run.result() == "44"
    assert log == expected(mix, "attempt:job", [*around(mix, "double"), *around(mix, "later")])


def double(number: int) -> str:
    return str(number)


async def later(number: int) -> str:
    await asyncio.sleep(0)
    return str(number)


def around(mix: str, step: str) -> list[str]:
    names = [f"{kind}{number}" for number, kind in enumerate(mix)]
    return [f"{name}>step:{step}" for name in names] + [f"{name}<{step}" for name in names[::-1]]


def expected(mix: str, what: str, inside: list[str]) -> list[str]:
    names = [f"{kind}{number}" for number, kind in enumerate(mix)]
    before = [f"{name}>{what}" for name in names]
    after = [f"{name}<{what.partition(':')[2]}" for name in names[::-1]]
    return [*before, f"in {names[-1]}", *inside, *after]


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("plain", [False, True])
async def test_every_one_sees_the_error(bench: Bench, log: Log, mix: str, plain: bool) -> None:
    for number, kind in enumerate(mix):
        ADD[kind](bench.fabric, log, f"{kind}{number}")

    @bench.fabric.task(name="job")
    async def in_loop() -> None:
        raise ValueError("boom")

    @bench.fabric.task(name="plain")
    def in_thread() -> None:
        raise ValueError("boom")

    run = await (in_thread if plain else in_loop).submit()
    await bench.work()
    with pytest.raises(RunFailed, match="ValueError: boom"):
        await run.result()
    assert [word for word in log if "!" in word] == [
        f"{kind}{number}!boom" for number, kind in reversed(list(enumerate(mix)))
    ]


@pytest.mark.parametrize("mix", ["a", "p", "pa"])
async def test_around_a_process(bench: Bench, log: Log, mix: str) -> None:
    for number, kind in enumerate(mix):
        ADD[kind](bench.fabric, log, f"{kind}{number}")

    @bench.fabric.middleware
    async def one_more(call: Invocation, next: NextCall) -> Any:
        return await next(replace(call, args=(call.args[0] + 1,))) + 1

    square = bench.fabric.task(process=True)(handlers.square)
    run = await square.submit(2)
    await bench.work()
    assert await run.result() == 10
    assert len(log) == 2 * len(mix)


async def test_plain_middleware_shares_the_thread_of_a_plain_function(
    bench: Bench, log: Log
) -> None:
    @bench.fabric.middleware
    def outer(call: Invocation, next: SyncNextCall) -> Any:
        log.note(threading.current_thread().name)
        return next(call)

    add_async(bench.fabric, Log(), "between")

    @bench.fabric.middleware
    def inner(call: Invocation, next: SyncNextCall) -> Any:
        log.note(threading.current_thread().name)
        return next(call)

    def here() -> None:
        log.note(threading.current_thread().name)

    @bench.fabric.task()
    def job(ctx: SyncContext) -> None:
        here()
        ctx.step(here)

    @bench.fabric.task()
    async def in_loop(ctx: Context) -> None:
        await ctx.step(here)

    await job.submit()
    await bench.work()
    assert len(log) == 6
    assert len(set(log)) == 1
    log.clear()
    await in_loop.submit()
    await bench.work()
    assert len(set(log[2:])) == 1, "a plain step too"


async def test_it_sees_the_run_and_the_arguments(bench: Bench, log: Log) -> None:
    @bench.fabric.middleware
    async def look(call: Invocation, next: NextCall) -> Any:
        log.note((call.kind, call.name, call.args, call.kwargs, call.run.id, call.run.task))
        return await next(call)

    def add(a: int, b: int) -> int:
        return a + b

    @bench.fabric.task()
    async def job(ctx: Context, a: int, *, b: int) -> int:
        return await ctx.step(add, a, b=b)

    run = await job.submit(1, b=2)
    await bench.work()
    assert await run.result() == 3
    name = "test_it_sees_the_run_and_the_arguments.add"
    assert log == [
        ("attempt", "job", (1,), {"b": 2}, run.id, "job"),
        ("step", name, (1,), {"b": 2}, run.id, "job"),
    ]


@pytest.mark.parametrize("plain", [False, True])
async def test_what_it_returns_is_the_result(bench: Bench, plain: bool) -> None:
    """Also in place of an error, and also of a step, whose record it becomes."""

    @bench.fabric.middleware
    async def forgive(call: Invocation, next: NextCall) -> Any:
        try:
            return await next(call)
        except ZeroDivisionError:
            return 42 if call.kind == "step" else -1

    def divide(by: int) -> int:
        return 1 // by

    @bench.fabric.task(name="job")
    async def in_loop(ctx: Context) -> int:
        return await ctx.step(divide, 0)

    @bench.fabric.task(name="plain")
    def in_thread(ctx: SyncContext) -> int:
        return ctx.step(divide, 0)

    run = await (in_thread if plain else in_loop).submit()
    await bench.work()
    assert await run.result() == 42
    (step,) = await bench.steps(run)
    assert b"42" in step.doc


async def test_one_that_raises_fails_the_attempt(bench: Bench, log: Log) -> None:
    @bench.fabric.middleware
    def refuse(call: Invocation, next: SyncNextCall) -> Any:
        if call.run.first:
            raise PermissionError("not now")
        return next(call)

    @bench.fabric.task(**AGAIN)
    async def job() -> Any:
        return log.note("called")

    run = await job.submit()
    await bench.work()
    assert await run.result() == "called"
    assert log == ["called"]
    assert (await run.describe()).attempts_made == 2


async def test_a_recorded_step_calls_none(bench: Bench, log: Log) -> None:
    add_async(bench.fabric, log, "a")

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.step(double, 1)
        await ctx.sleep("1h")
        await ctx.step(later, 1)

    await bench.work_through(await job.submit())
    assert log == [
        *("a>attempt:job", "a>step:double", "a<double", "a<job"),
        *("a>attempt:job", "a>step:later", "a<later", "a<job"),
    ], "a parked run leaves without an Exception and comes back"


@pytest.mark.parametrize("plain", [False, True])
async def test_every_try_of_a_step_passes_it(bench: Bench, log: Log, plain: bool) -> None:
    add_plain(bench.fabric, log, "p")
    tries = iter([ValueError("one"), ValueError("two")])

    @bench.fabric.step(retries=2, backoff=Fixed(delay=0), name="odd")
    def odd() -> int:
        if (error := next(tries, None)) is not None:
            raise error
        return 1

    @bench.fabric.task(name="job")
    async def in_loop(ctx: Context) -> int:
        return int(await ctx.step(odd))

    @bench.fabric.task(name="plain")
    def in_thread(ctx: SyncContext) -> int:
        return int(ctx.step(odd))

    await (in_thread if plain else in_loop).submit()
    await bench.work()
    assert [word for word in log if "odd" in word or "!" in word] == [
        *("p>step:odd", "p!one", "p<odd"),
        *("p>step:odd", "p!two", "p<odd"),
        *("p>step:odd", "p<odd"),
    ]


async def test_the_timeout_of_a_step_is_seen(bench: Bench, log: Log) -> None:
    @bench.fabric.middleware
    async def look(call: Invocation, next: NextCall) -> Any:
        try:
            return await next(call)
        except TimeoutError:
            return log.note(f"late {call.kind}")

    @bench.fabric.step(timeout=0.01)
    async def slow() -> str:
        await asyncio.sleep(30)
        return ""

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        return await slow()

    run = await job.submit()
    await bench.work()
    assert await run.result() == "late step"


async def test_it_cannot_record_anything(bench: Bench) -> None:
    """A step that a middleware calls is an ordinary call: it would not be there in a replay."""

    @bench.fabric.step()
    async def look_up() -> int:
        return 1

    @bench.fabric.middleware
    async def curious(call: Invocation, next: NextCall) -> Any:
        await look_up()
        result = await next(call)
        await look_up()
        return result

    @bench.fabric.task()
    async def job(ctx: Context) -> int:
        return await look_up()

    run = await job.submit()
    await bench.work()
    assert await run.result() == 1
    assert len(await bench.steps(run)) == 1


@pytest.mark.parametrize("mix", ["a", "p", "ap", "pa", "pap"])
async def test_a_cancelled_run_unwinds_through_it(fabric: Fabric, log: Log, mix: str) -> None:
    for number, kind in enumerate(mix):
        ADD[kind](fabric, log, f"{kind}{number}")

    @fabric.task()
    async def job() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            log.note("unwound")

    async with working(fabric, ttl="30s") as worker:
        run = await job.submit()
        await until(lambda: len(log) == len(mix))
        await run.cancel()
        await until(lambda: not worker.active)
    ends = [f"{kind}{number}<job" for number, kind in reversed(list(enumerate(mix)))]
    assert log[len(mix) :] == ["unwound", *ends], "and none of them sees an Exception"


async def test_a_plain_middleware_that_is_busy_is_left_behind(fabric: Fabric, log: Log) -> None:
    entered, go_on = threading.Event(), threading.Event()

    @fabric.middleware
    def slow(call: Invocation, next: SyncNextCall) -> Any:
        entered.set()
        go_on.wait(60)
        try:
            return next(call)
        except BaseException as error:
            log.note(type(error).__name__)
            raise

    @fabric.task()
    async def job() -> None:
        log.note("called")

    async with working(fabric, ttl="30s") as worker:
        run = await job.submit()
        await until(entered.is_set)
        await run.cancel()
        await until(lambda: not worker.active)
        go_on.set()
        await until(lambda: log)
    assert log == ["Unwind"], "the handler is not called for a run that was left"


@pytest.mark.parametrize("mix", ["p", "ap", "pa"])
async def test_a_timeout_ends_what_is_inside(fabric: Fabric, log: Log, mix: str) -> None:
    for number, kind in enumerate(mix):
        ADD[kind](fabric, log, f"{kind}{number}")

    @fabric.task(timeout=0.05)
    async def job() -> None:
        await asyncio.sleep(30)

    async with working(fabric, ttl="30s"):
        run = await job.submit()
        await until(lambda: len(log) == 2 * len(mix))
        with pytest.raises(RunExpired):
            await run.result()  # a worker that stops before it has reported hands the run back


async def test_system_exit_in_a_handler_does_not_end_the_worker(bench: Bench, log: Log) -> None:
    add_plain(bench.fabric, log, "p")

    @bench.fabric.task()
    async def job() -> None:
        raise SystemExit(3)

    run = await job.submit()
    await bench.work()
    with pytest.raises(RunFailed, match="SystemExit"):
        await run.result()


async def test_many_at_once_do_not_wait_for_each_other(fabric: Fabric, log: Log) -> None:
    add_plain(fabric, log, "p")
    add_async(fabric, log, "a")
    all_there = asyncio.Barrier(30)

    async def meet() -> None:
        await all_there.wait()

    @fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.step(meet)

    async with working(fabric, ttl="30s", concurrency=30):
        runs = await job.submit_many([()] * 30)
        await asyncio.gather(*(run.result(60) for run in runs))


async def test_what_is_no_function_is_refused(bench: Bench) -> None:
    with pytest.raises(Invalid, match="a function is needed"):
        bench.fabric.middleware(7)  # type: ignore[type-var]


async def test_the_harness_calls_it(log: Log) -> None:
    fabric = Fabric("sqlite://:memory:")
    add_async(fabric, log, "a")
    add_plain(fabric, log, "p")

    @fabric.task()
    async def job(ctx: Context) -> str:
        return await ctx.step(double, 1)

    async with testing.harness(fabric) as harness:
        assert await harness.run(job) == "1"
    assert log == [
        *("a>attempt:job", "p>attempt:job"),
        *("a>step:double", "p>step:double", "p<double", "a<double"),
        *("p<job", "a<job"),
    ]
