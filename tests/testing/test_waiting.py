"""Runs that wait for the outside world, in the harness: the test is the outside world."""

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
from flowfabric.testing import Harness, Stuck


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


async def test_the_test_answers_what_a_run_waits_for(fabric: Fabric, harness: Harness) -> None:
    run = await add_publish(fabric).submit("hello")
    await harness.run_until(waits_for="editor")
    assert harness.state(run) is PublicState.SUSPENDED
    assert harness.waits_for(run) == ["editor"]
    with pytest.raises(ApprovalOutdated):
        await fabric.approve(run, "editor", approver="ada", about="something else")
    await fabric.approve(run, "editor", approver="ada", about="hello")
    assert await run.result() == "published hello"
    assert harness.waits_for(run) == []
    harness.assert_steps(run, ["sleep", "approval:editor"])
    harness.assert_attempts(run, 1)


async def test_the_clock_jumps_to_the_end_of_a_wait(fabric: Fabric, harness: Harness) -> None:
    before = harness.clock.now()
    assert await harness.run(add_publish(fabric), "hello") == "not published: timed_out"
    assert harness.clock.now() - before == 25 * 3_600_000


async def test_time_passes_as_far_as_the_test_wants(fabric: Fabric, harness: Harness) -> None:
    run = await add_publish(fabric).submit("hello")
    await harness.advance("24h59m")
    assert harness.state(run) is PublicState.SUSPENDED
    await harness.advance("1m")
    harness.assert_completed(run)


async def test_a_missing_answer_is_reported(fabric: Fabric, harness: Harness) -> None:
    @fabric.task()
    async def listen(ctx: Context) -> None:
        await ctx.wait_for_any("left", "right")

    with pytest.raises(Stuck, match="is suspended; it waits for left, right"):
        await harness.run(listen)
    with pytest.raises(Stuck, match="no run waits for 'middle'"):
        await harness.run_until(waits_for="middle")


async def test_signals_before_between_and_after(fabric: Fabric, harness: Harness) -> None:
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
    await harness.run_until_idle()
    await fabric.signal(run, "item", 3)
    assert await harness.result(run) == [1, 2, 3]


async def test_a_crash_of_the_worker_that_was_woken(fabric: Fabric, harness: Harness) -> None:
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
    await harness.run_until(waits_for="callback")
    id, token = doors[0]
    await fabric.signal(id, payload="paid", token=token)
    await harness.run_until(unrecorded="send")
    await harness.crash()
    assert await run.result() == "paid"
    assert sent == ["paid", "paid"]
    harness.assert_attempts(run, 2)
    harness.assert_steps(run, ["callback-for:callback", "callback:callback", "send"])


async def test_one_thing_at_a_time(harness: Harness) -> None:
    with pytest.raises(Invalid, match="either"):
        await harness.run_until()
    with pytest.raises(Invalid, match="either"):
        await harness.run_until(step="a", waits_for="b")
