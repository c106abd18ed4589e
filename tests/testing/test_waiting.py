"""Runs that wait for the outside world, on the bench: the test is the outside world."""

from typing import Any

import pytest

from flowfabric import (
    ApprovalOutdated,
    Context,
    Fabric,
    Invalid,
    PublicState,
    SyncContext,
    WaitTimeout,
)
from flowfabric.testing import Bench, Stuck


def add_publish(fabric: Fabric) -> Any:
    @fabric.task(retries=3)
    async def publish(ctx: Context, text: str) -> str:
        await ctx.sleep("1h")
        verdict = await ctx.approval("editor", about=text, timeout="1d")
        if not verdict.approved:
            return f"not published: {verdict.ended}"
        verdict.check(text)
        return f"published {text}"

    return publish


async def test_the_test_answers_what_a_run_waits_for(fabric: Fabric, bench: Bench) -> None:
    run = await add_publish(fabric).submit("hello")
    await bench.run_until(waits_for="editor")
    assert bench.state(run) is PublicState.SUSPENDED
    assert bench.waits_for(run) == ["editor"]
    with pytest.raises(ApprovalOutdated):
        await fabric.approve(run, "editor", approver="ada", about="something else")
    await fabric.approve(run, "editor", approver="ada", about="hello")
    assert await run.result() == "published hello"
    assert bench.waits_for(run) == []
    bench.assert_steps(run, ["sleep", "approval:editor"])
    bench.assert_attempts(run, 1)


async def test_the_clock_jumps_to_the_end_of_a_wait(fabric: Fabric, bench: Bench) -> None:
    before = bench.clock.now()
    assert await bench.run(add_publish(fabric), "hello") == "not published: timed_out"
    assert bench.clock.now() - before == 25 * 3_600_000


async def test_time_passes_as_far_as_the_test_wants(fabric: Fabric, bench: Bench) -> None:
    run = await add_publish(fabric).submit("hello")
    await bench.advance("24h59m")
    assert bench.state(run) is PublicState.SUSPENDED
    await bench.advance("1m")
    bench.assert_completed(run)


async def test_what_nobody_answers_is_told(fabric: Fabric, bench: Bench) -> None:
    @fabric.task()
    async def listen(ctx: Context) -> None:
        await ctx.wait_for_any("left", "right")

    with pytest.raises(Stuck, match="is suspended; nobody has sent left, right"):
        await bench.run(listen)
    with pytest.raises(Stuck, match="no run waits for 'middle'"):
        await bench.run_until(waits_for="middle")


async def test_signals_before_between_and_after(fabric: Fabric, bench: Bench) -> None:
    @fabric.task()
    def collect(ctx: SyncContext) -> list[Any]:
        found: list[Any] = []
        try:
            while True:
                found.append(ctx.wait_for_signal("item", timeout="1h"))
        except WaitTimeout:
            return found

    run = await collect.submit()
    await fabric.signal(run, "item", 1)
    await fabric.signal(run, "item", 2)
    await bench.run_until_idle()
    await fabric.signal(run, "item", 3)
    assert await bench.result(run) == [1, 2, 3]


async def test_a_crash_of_the_worker_that_was_woken(fabric: Fabric, bench: Bench) -> None:
    sent: list[str] = []

    async def send(text: str) -> None:
        sent.append(text)

    @fabric.task()
    async def pay(ctx: Context) -> str:
        callback = await ctx.callback()
        doors.append((callback.id, callback.token))
        answer = await callback.result()
        await ctx.step(send, answer)
        return str(answer)

    doors: list[Any] = []
    run = await pay.submit()
    await bench.run_until(waits_for="callback")
    id, token = doors[0]
    await fabric.signal(id, payload="paid", token=token)
    await bench.run_until(unrecorded="send")
    await bench.crash()
    assert await run.result() == "paid"
    assert sent == ["paid", "paid"]
    bench.assert_attempts(run, 2)
    bench.assert_steps(run, ["callback-for:callback", "callback:callback", "send"])


async def test_one_thing_at_a_time(bench: Bench) -> None:
    with pytest.raises(Invalid, match="either"):
        await bench.run_until()
    with pytest.raises(Invalid, match="either"):
        await bench.run_until(step="a", waits_for="b")
