"""Flows in the harness: waiting for one drives it."""

import pytest

from flowfabric import Context, Fabric, Fail, FlowFailed, FlowState
from flowfabric.testing import Harness, Stuck


async def test_waiting_for_a_flow_drives_it_over_sleeps(fabric: Fabric, harness: Harness) -> None:
    @fabric.task()
    async def extract(ctx: Context, day: str) -> int:
        await ctx.sleep("2h")
        return len(day)

    @fabric.task()
    async def load(rows: int) -> str:
        return f"{rows} rows"

    began = harness.clock.now()
    async with fabric.flow("nightly") as flow:
        rows = flow.add(extract, "monday")
        flow.add(load, rows.output)
    assert await flow.result() == "6 rows"
    assert harness.clock.now() - began >= 7_200_000


async def test_a_flow_that_fails_says_so(fabric: Fabric, harness: Harness) -> None:
    @fabric.task()
    async def broken() -> None:
        raise Fail("no")

    async with fabric.flow("nightly") as flow:
        first = flow.add(broken)
        flow.add(broken, after=first, name="second")
    with pytest.raises(FlowFailed, match="broken did not succeed"):
        await flow.result()
    assert await flow.state() is FlowState.FAILED


async def test_run_until_idle_runs_a_whole_flow(fabric: Fabric, harness: Harness) -> None:
    @fabric.task()
    async def noop() -> None:
        return None

    async with fabric.flow("chain") as flow:
        last = flow.add(noop)
        for n in range(20):
            last = flow.add(noop, after=last, name=str(n))
    await harness.run_until_idle()
    assert await flow.state() is FlowState.COMPLETED


async def test_a_run_that_maps_is_driven_with_its_parts(fabric: Fabric, harness: Harness) -> None:
    @fabric.task()
    async def double(n: int) -> int:
        return 2 * n

    @fabric.task()
    async def total(ctx: Context, upto: int) -> int:
        return sum(await ctx.map(double, range(upto)))

    assert await harness.run(total, 50) == 2450


async def test_a_flow_that_cannot_end_is_stuck(fabric: Fabric, harness: Harness) -> None:
    @fabric.task()
    async def waits(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    async with fabric.flow("patient") as flow:
        flow.add(waits)
    with pytest.raises(Stuck, match="the flow does not end"):
        await flow.result()
    with pytest.raises(TimeoutError, match="within 60 s"):
        await flow.result(timeout=60)
