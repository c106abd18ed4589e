"""What the type checker must know, and must refuse, about tasks. Never run: only checked, by
`make check` and by a test. An `ignore` that is not needed is an error as well."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, assert_type

from starlette.requests import Request

from flowfabric import (
    Approval,
    AttemptEnd,
    Context,
    Exponential,
    Fabric,
    Fixed,
    Invocation,
    NextCall,
    Options,
    Received,
    Run,
    RunAttempt,
    RunDescription,
    RunEvent,
    SoftBreach,
    Spent,
    SyncContext,
    SyncNextCall,
    Task,
    Token,
    Verdict,
    Winner,
    WorkerOptions,
)
from flowfabric.agents import Toolbox, call_key, tool
from flowfabric.integrations import django, fastapi, starlette
from flowfabric.worker.api.described import RunCancel
from flowfabric.worker.api.explained import RunExplanation
from flowfabric.worker.api.signals import Sent

fabric = Fabric("sqlite://:memory:")


async def tasks_as_functions(ctx: Context, sync_ctx: SyncContext) -> None:
    plain(1.5)
    plain_with_context(sync_ctx, name="x")
    await bare_with_context(ctx, 1)
    await ctx.step(plain, 1.5)
    plain("one")  # type: ignore[call-overload]
    await bare_with_context(ctx, "one")  # type: ignore[call-overload]
    await ctx.step(plain, "one")  # type: ignore[call-overload]


@fabric.task()
async def with_context(ctx: Context, a: int, b: str = "") -> list[int]:
    assert_type(await ctx.step(plain_step, 1), str)
    assert_type(await ctx.step(async_step, 1), bytes)
    assert_type(await ctx.submit(plain, 1.5), Run[int])
    assert_type(await ctx.submit(plain.with_options(key="x"), 1.5), Run[int])
    assert_type(await ctx.step(own_step, 1), bytes)
    assert_type(await own_step(1), bytes)
    assert_type(await ctx.random(), float)
    assert_type(await ctx.patched("x"), bool)
    if ctx.patched("x"):
        ctx.patched(1)  # type: ignore[arg-type]
    assert_type(await ctx.map(plain, [1.5]), list[int])
    assert_type(await ctx.wait_for_signal("go", int), int)
    assert_type(await ctx.request_approval("release"), Approval)
    assert_type(await ctx.set_state({"a": [1]}), None)
    assert_type(await (await ctx.callback("paid")).result(int), int)
    assert_type(await (await ctx.callback("paid")).result(list[int], timeout="1h"), list[int])
    assert_type(await (await ctx.callback("paid")).result(), Any)
    assert_type(await ctx.gather(ctx.step(plain_step, 1)), tuple[str])
    assert_type(
        await ctx.gather(ctx.step(plain_step, 1), own_step(1), ctx.random()),
        tuple[str, bytes, float],
    )
    text, number, verdict, received, run, slept = await ctx.gather(
        ctx.step(plain_step, 1),
        ctx.wait_for_signal("go", int),
        ctx.approval("release"),
        ctx.wait_for_any("a", "b"),
        ctx.submit(plain, 1.5),
        ctx.sleep("1h"),
    )
    assert_type((text, number, verdict), tuple[str, int, Verdict])
    assert_type((received, run, slept), tuple[Received, Run[int], None])
    assert_type(await ctx.gather(*(ctx.step(plain_step, each) for each in range(3))), list[str])
    assert_type(await ctx.gather(*[ctx.random()] * 7), list[float])
    await ctx.gather(1, 2)  # type: ignore[call-overload]
    await own_step("one")  # type: ignore[call-overload]
    await ctx.step(plain_step, "one")  # type: ignore[call-overload]
    await ctx.submit(plain, "one")  # type: ignore[arg-type]
    return [a]


Fixed("5s", jitter=True)
Exponential(initial=timedelta(seconds=1), maximum="1h")
Exponential(initial=[1])  # type: ignore[arg-type]
Fixed(0.5)
assert_type(Fixed("5s").delay, timedelta)
assert_type(Exponential(maximum=60).maximum, timedelta)
WorkerOptions(ttl="30s", drain=timedelta(minutes=1))
WorkerOptions(ttl=b"30s")  # type: ignore[arg-type]
assert_type(WorkerOptions(ttl=2.5).ttl, timedelta)
assert_type(Options(retention=3600, aging="1m").aging, timedelta | None)
Fabric("sqlite://:memory:", options=Options(reclaim_grace=5))


@fabric.task(retries=3)
async def without_context(a: int) -> dict[str, int]:
    return {"a": a}


@fabric.task(lane="x", version="2", pin=False)
def plain(a: float) -> int:
    return int(a)


@fabric.task()
def plain_with_context(ctx: SyncContext, *, name: str) -> None:
    assert_type(ctx.step(plain_step, 1), str)
    assert_type(ctx.step(async_step, 1), bytes)
    assert_type(ctx.submit(plain, 1.5), Run[int])
    assert_type(ctx.map(plain, [1.5]), list[int])
    assert_type(ctx.random(), float)
    assert_type(ctx.patched("x"), bool)
    assert_type(ctx.wait_for_signal("go", int, timeout="1h"), int)
    assert_type(ctx.wait_for_any("go", "stop"), Received)
    assert_type(ctx.callback("paid").token, Token)
    assert_type(ctx.callback("paid").result(int), int)
    assert_type(ctx.callback("paid").result(), Any)
    assert_type(ctx.request_approval("release", of=2).token("ann"), Token)
    assert_type(ctx.request_approval("release", of=2).verdict(), Verdict)
    assert_type(ctx.spend(tokens=5), Spent | SoftBreach)
    assert_type(ctx.set_state([1]), None)
    with ctx.flow("parts") as flow, ctx.reserve(tokens=5) as reserve:
        assert_type(flow.add(plain, 1.5).output, int)
        reserve.settle(tokens=4)
    ctx.step(plain_step, "one")  # type: ignore[call-overload]
    ctx.submit(plain, "one")  # type: ignore[arg-type]
    ctx.sleep()  # type: ignore[call-arg]
    ctx.approval("release", off=2)  # type: ignore[call-arg]


@fabric.task()
async def nothing() -> None: ...


@fabric.task
async def bare_with_context(ctx: Context, a: int) -> str:
    return str(a)


@fabric.task
def bare_plain(a: float) -> int:
    return int(a)


async def of_bare_tasks() -> None:
    assert_type(await bare_with_context.submit(1), Run[str])
    assert_type(await (await bare_plain.submit(1.5)).result(), int)
    run = await bare_plain.submit(1.5)
    assert_type((await run.describe()).created_at, datetime)
    assert_type((await run.describe()).attempt, int | None)
    assert_type(run.describe_sync(), RunDescription)
    assert_type(run.explain_sync(), RunExplanation)
    assert_type([each.took for each in await run.attempts()], list[timedelta | None])
    assert_type(run.attempts_sync(), list[RunAttempt])
    assert_type([each.at for each in await run.events()], list[datetime])
    assert_type([each async for each in run.follow()], list[RunEvent])
    assert_type(list(run.follow_sync()), list[RunEvent])
    await bare_with_context.submit("one")  # type: ignore[arg-type]


def plain_step(a: int) -> str:
    return str(a)


async def async_step(a: int) -> bytes:
    return bytes(a)


@fabric.step(retries=2)
async def own_step(a: int) -> bytes:
    return bytes(a)


@fabric.middleware
async def async_middleware(call: Invocation, next: NextCall) -> Any:
    return await next(call)


@fabric.middleware
def plain_middleware(call: Invocation, next: SyncNextCall) -> Any:
    return next(call)


@fabric.on_attempt_end
async def on_end(end: AttemptEnd) -> None:
    assert_type(end.attempt, int)
    assert_type(end.error, BaseException | None)


@fabric.lifespan
@asynccontextmanager
async def lifespan(given: Fabric) -> AsyncIterator[str]:
    yield "value"


@fabric.lifespan
async def bare_lifespan(given: Fabric) -> AsyncIterator[str]:
    yield "value"


@fabric.task(on_success=on_end, on_failure=print)
async def with_hooks() -> None: ...


async def hooked() -> None:
    assert_type(await with_hooks.submit(), Run[None])
    fabric.middleware(hooked)  # type: ignore[type-var]
    fabric.on_attempt_end(hooked)  # type: ignore[type-var]
    fabric.lifespan(hooked)  # type: ignore[type-var]
    fabric.task(on_failure=hooked)  # type: ignore[arg-type]


async def submitted() -> None:
    assert_type(await with_context.submit(1, b="x"), Run[list[int]])
    assert_type(await (await with_context.submit(1)).result(), list[int])
    assert_type(await (await without_context.submit(a=1)).result(), dict[str, int])
    assert_type(await (await plain.submit(1.5)).result(), int)
    assert_type((await plain_with_context.submit(name="x")).result_sync(), None)
    assert_type(await nothing.submit(), Run[None])
    assert_type(await (await nothing.submit()).state_value(), Any)
    assert_type(await (await nothing.submit()).state_value(list[int]), list[int] | None)
    assert_type((await nothing.submit()).state_value_sync(), Any)
    assert_type(await plain.with_options(key="k", delay="1h").submit(2.0), Run[int])
    assert_type(await plain.submit_many([1.0, (2.0,), {"a": 3.0}]), list[Run[int]])
    assert_type(plain.submit_sync(1.0), Run[int])
    assert_type(plain.with_options(priority=3).submit_sync(1.0).result_sync(), int)
    assert_type(fabric.get_task("plain"), Task[Any, Any])
    assert_type(plain.submit_sync(1.0).cancel_sync(reason="enough"), RunCancel)
    assert_type(fabric.signal_sync("id", "go", {"a": 1}, key="once"), Sent)


async def refused() -> None:
    await with_context.submit("one")  # type: ignore[arg-type]
    await with_context.submit()  # type: ignore[call-arg]
    await with_context.submit(1, c=2)  # type: ignore[call-arg]
    await without_context.submit(1, 2)  # type: ignore[call-arg]
    await plain.submit("x")  # type: ignore[arg-type]
    await plain.with_options(key="k").submit("x")  # type: ignore[arg-type]
    await plain_with_context.submit("x")  # type: ignore[call-arg]
    await nothing.submit(1)  # type: ignore[call-arg]
    plain.submit_sync("x")  # type: ignore[arg-type]
    plain.with_options(colour="red")  # type: ignore[call-arg]
    fabric.task(retrys=1)  # type: ignore[call-overload]
    fabric.signal_sync("id", "go", kee="once")  # type: ignore[call-arg]
    plain.submit_sync(1.0).result_sync(timeout=[])  # type: ignore[arg-type]


@tool
async def bare_tool(a: int) -> str:
    return assert_type(call_key(), str)


@tool(retries=2, approval=lambda a: a > 1, reserve={"calls": 1})
def plain_tool(a: int, b: str = "") -> bytes:
    return b""


@fabric.task()
async def agent(ctx: Context) -> None:
    assert_type(await bare_tool.call(ctx, 1), str)
    assert_type(await plain_tool.call(ctx, 1, b="x"), bytes)
    assert_type(await Toolbox(bare_tool, plain_tool).call(ctx, "bare_tool", {"a": 1}), Any)
    await bare_tool.call(ctx, "1")  # type: ignore[arg-type]
    await plain_tool.call(ctx)  # type: ignore[call-arg]
    bare_tool.call_sync(ctx, 1)  # type: ignore[arg-type]
    tool(approval="yes")  # type: ignore[call-overload]


@django.fabric.task()
def of_django(ctx: SyncContext, a: int) -> str:
    assert_type(plain_tool.call_sync(ctx, a), bytes)
    return ""


async def integrated(request: Request, given: fastapi.FabricDependency) -> None:
    assert_type(given, Fabric)
    assert_type(starlette.get_fabric(request), Fabric)
    assert_type(django.get_fabric(), Fabric)
    starlette.lifespan(django.DjangoFabric())
    starlette.lifespan("sqlite:///x.db")  # type: ignore[arg-type]
    assert_type(await of_django.submit(1), Run[str])
    assert_type(django.submit_on_commit(of_django, 1), None)
    django.submit_on_commit(of_django.with_options(key="k"), a=1)
    django.submit_on_commit(of_django, "1")  # type: ignore[arg-type]
    django.submit_on_commit(of_django)  # type: ignore[call-arg]
    django.submit_on_commit(plain_step, 1)  # type: ignore[arg-type]


@fabric.task()
async def races(ctx: Context) -> None:
    child = await ctx.submit(plain, 1.5)
    callback = await ctx.callback("paid")
    assert_type(await ctx.race(ctx.step(plain_step, 1), ctx.sleep("1h")), Winner[str | None])
    assert_type(
        await ctx.race(child, ctx.approval("x"), ctx.sleep("1h")), Winner[int | Verdict | None]
    )
    assert_type(await ctx.race(paid=callback.result(int), late=ctx.sleep("1h")), Winner[int | None])
    assert_type(await ctx.first_of(child=child, late=ctx.sleep("1h")), Winner[int | None])
    name, value = await ctx.race(child=child.result(), go=ctx.wait_for_signal("go", int))
    assert_type((name, value), tuple[str, int])
    await ctx.race(1, 2)  # type: ignore[call-overload]
    await ctx.race(late="1h")  # type: ignore[call-overload]


@fabric.task()
def plain_races(ctx: SyncContext) -> None:
    child = ctx.submit(plain, 1.5)
    assert_type(
        ctx.race(lambda: ctx.step(plain_step, 1), lambda: ctx.sleep("1h")), Winner[str | None]
    )
    assert_type(ctx.first_of(child=child, late=lambda: ctx.sleep("1h")), Winner[int | None])
    ctx.race(late="1h")  # type: ignore[call-overload]
