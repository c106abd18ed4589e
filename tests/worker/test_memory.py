"""What a call of a handler has used is freed when it is over, without the garbage collector, which
would look through the memory of the whole application again and again."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from flowfabric import Context, Fabric, PublicState, SyncContext
from flowfabric.worker.run.active import ActiveRun
from flowfabric.worker.run.scope import CallScope
from tests.worker.bench import Bench, until, working

pytestmark = pytest.mark.rules


@pytest.fixture
def calls() -> Iterator[list["weakref.ref[Any]"]]:
    """What the calls of handlers have used; meanwhile nothing collects garbage."""
    gc.collect()
    gc.disable()
    yield []
    gc.enable()


def add(n: int) -> int:
    return n + 1


async def test_a_call_that_waits_and_the_one_that_goes_on_are_freed(
    fabric: Fabric, calls: list["weakref.ref[Any]"]
) -> None:
    @fabric.task()
    async def job(ctx: Context) -> Any:
        callback = await ctx.callback("go")
        calls.extend(weakref.ref(each) for each in (ctx, ctx._scope, ctx._scope.journal, callback))
        return await callback.result()

    async with working(fabric) as worker:
        run = await job.submit()
        await until(lambda: worker.completed == 1)
        assert await run.state() is PublicState.SUSPENDED
        await until(lambda: [each() for each in calls] == [None] * 4)
        (open_one,) = await fabric.waitpoints(run)
        token = await fabric.waitpoint_token(run)
        await fabric.signal(f"{run.id}/{open_one.id}", payload=7, token=token)
        assert await run.result(60) == 7
        await until(lambda: [each() for each in calls] == [None] * 8)


async def test_calls_that_return_are_freed(fabric: Fabric, calls: list["weakref.ref[Any]"]) -> None:
    @fabric.task()
    async def returns(ctx: Context) -> int:
        calls.extend((weakref.ref(ctx), weakref.ref(ctx._scope)))
        await ctx.compensate(add, 1)
        return await ctx.shield(add, await ctx.step(add, 1))

    @fabric.task()
    def plain(ctx: SyncContext) -> int:
        calls.append(weakref.ref(ctx._context._scope))
        return ctx.step(add, 1)

    async with working(fabric):
        for task in (returns, plain):
            await (await task.submit()).result(60)
        await until(lambda: [each() for each in calls] == [None] * 3)


async def test_a_plain_run_is_gone_when_it_has_ended(bench: Bench) -> None:
    @bench.fabric.task()
    async def double(n: int) -> int:
        return n * 2

    runs = await double.submit_many(range(20))
    gc.collect()
    gc.disable()
    try:
        before = _held()
        assert await bench.work() == 20
        assert _held() == before
    finally:
        gc.enable()
    assert [await run.result(60) for run in runs] == [n * 2 for n in range(20)]


def test_a_flow_is_freed_with_its_nodes(fabric: Fabric, calls: list["weakref.ref[Any]"]) -> None:
    task = fabric.task(name="add")(add)
    flow = fabric.flow("pair")
    first = flow.add(task, 1)
    calls.extend(map(weakref.ref, (flow, flow.add(task, 2, after=first), first)))
    id = first.id
    del flow
    assert calls[0]() is None
    assert first.id == id
    del first
    assert [each() for each in calls] == [None] * 3


def _held() -> int:
    return sum(type(each) in (ActiveRun, CallScope) for each in gc.get_objects())
