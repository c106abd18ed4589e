"""What a newcomer types first: the bare decorator, ids that are none, a result that is not there
yet, a cancel that comes too late, a decision without a name."""

import pytest

from flowfabric import AlreadyEnded, Context, Fabric, Invalid, NotFound, ResultTimeout, SyncContext
from flowfabric.core.base.errors import InvalidId
from flowfabric.testing import harness
from tests.worker.bench import Bench

# -- the bare decorator


async def test_a_task_needs_no_parentheses(bench: Bench) -> None:
    @bench.fabric.task
    async def double(x: int) -> int:
        return 2 * x

    @bench.fabric.task
    def triple(ctx: SyncContext, x: int) -> int:
        return 3 * x

    assert set(bench.fabric.tasks) == {"double", "triple"}
    runs = [await double.submit(4), await triple.submit(4)]
    await bench.work()
    assert [await run.result() for run in runs] == [8, 12]


@pytest.mark.parametrize("wrong", ["name", 3, object()])
async def test_the_bare_decorator_refuses_what_is_no_function(bench: Bench, wrong: object) -> None:
    with pytest.raises(Invalid, match="a function is needed"):
        bench.fabric.task(wrong)  # type: ignore[call-overload]
    assert not bench.fabric.tasks


async def test_an_option_that_does_not_exist_is_a_type_error(bench: Bench) -> None:
    with pytest.raises(TypeError, match="retrys"):
        bench.fabric.task(retrys=3)  # type: ignore[call-overload]


# -- a result that does not come in time


async def test_a_timeout_says_what_the_run_waits_for(bench: Bench) -> None:
    @bench.fabric.task
    async def deploy(ctx: Context) -> None:
        await ctx.approval("release")

    run = await deploy.submit()
    with pytest.raises(ResultTimeout, match="no live worker"):
        await run.result(timeout=0)
    await bench.work()
    with pytest.raises(TimeoutError) as caught:
        await run.result(timeout="1ms")
    error = caught.value
    assert isinstance(error, ResultTimeout)
    assert (error.id, error.state, error.code) == (run.id, "suspended", "result_timeout")
    assert "release" in error.why
    assert error.why in str(error)
    assert run.id in str(error)


async def test_a_timeout_of_a_flow_names_its_nodes(bench: Bench) -> None:
    @bench.fabric.task
    async def part(x: int) -> int:
        return x

    async with bench.fabric.flow("parts") as flow:
        for number in range(7):
            flow.add(part, number)
    with pytest.raises(ResultTimeout, match=r"part \(waiting\).* and 2 more") as caught:
        await flow.result(0.001)
    assert caught.value.id == str(flow.id)


async def test_the_harness_raises_the_same_timeout() -> None:
    fabric = Fabric("sqlite://:memory:")

    @fabric.task
    async def deploy(ctx: Context) -> None:
        await ctx.approval("release")

    async with harness(fabric):
        run = await deploy.submit()
        with pytest.raises(ResultTimeout, match="release"):
            await run.result(timeout="1h")


# -- a cancel that comes too late


async def test_an_ended_run_cannot_be_cancelled(bench: Bench) -> None:
    @bench.fabric.task
    async def job() -> int:
        return 1

    run = await job.submit()
    await bench.work()
    with pytest.raises(AlreadyEnded) as caught:
        await run.cancel()
    assert (caught.value.id, caught.value.outcome) == (run.id, "success")
    assert run.id in str(caught.value)
    assert await run.result() == 1


async def test_cancelling_twice_is_one_cancel(bench: Bench) -> None:
    @bench.fabric.task
    async def job() -> None: ...

    run = await job.submit()
    assert await run.cancel() == await run.cancel()


# -- ids that are none


@pytest.mark.parametrize("text", ["", "17", "order-17", "{fp:999}:x", "{fp:7}:x"])
async def test_an_id_that_is_none_says_what_one_looks_like(bench: Bench, text: str) -> None:
    with pytest.raises(InvalidId, match=r"looks like .*01a1e105-7c1b-7d3e-8a52-3f0c9e4b6d71"):
        await bench.fabric.run(text)


# -- decisions without a name


async def test_one_approval_needs_no_name(bench: Bench) -> None:
    @bench.fabric.task
    async def deploy(ctx: Context) -> str:
        return str((await ctx.approval("release")).ended)

    first, second = await deploy.submit(), await deploy.submit()
    with pytest.raises(NotFound, match=f"no approval that run .*{first.id[-12:]} waits for"):
        await bench.fabric.reject(first, approver="ada")
    await bench.work()
    await bench.fabric.reject(first, approver="ada")
    await bench.fabric.approve(second, approver="ada")
    await bench.work()
    assert [await first.result(), await second.result()] == ["rejected", "approved"]


async def test_of_several_approvals_one_is_named(bench: Bench) -> None:
    @bench.fabric.task
    async def deploy(ctx: Context) -> None:
        await ctx.gather(ctx.approval("code"), ctx.approval("budget"))

    run = await deploy.submit()
    await bench.work()
    with pytest.raises(Invalid, match=r"which approval\? .* waits for budget, code"):
        await bench.fabric.reject(run, approver="ada")


# -- what completion shows


async def test_a_context_shows_only_what_users_call(bench: Bench) -> None:
    @bench.fabric.task
    async def names(ctx: Context) -> list[str]:
        return dir(ctx)

    @bench.fabric.task
    def sync_names(ctx: SyncContext) -> list[str]:
        return dir(ctx)

    runs = [await names.submit(), await sync_names.submit()]
    await bench.work()
    for run in runs:
        shown = await run.result()
        assert {"step", "sleep", "submit", "info", "approval", "spend"} <= set(shown)
        assert not [name for name in shown if name.startswith("_")]
