"""Signals as the application sends them, and what is refused on either side."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric import (
    Context,
    Invalid,
    NotFound,
    NotSignalable,
    PublicState,
    RunCancelled,
    Unauthorized,
    WaitTimeout,
)
from flowfabric.core.base.errors import MissingToken, PayloadTooLarge
from flowfabric.worker.api.options import CallOptions
from tests.worker.bench import Bench, Wire


async def test_signals_by_code_without_an_event_loop(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    run = await job.submit()
    await bench.work()
    open_ones = await asyncio.to_thread(bench.fabric.waitpoints_sync, run)
    assert [(each.key, each.state) for each in open_ones] == [("go", "active")]
    sent = await asyncio.to_thread(bench.fabric.signal_sync, run, "go", 5, key="once")
    assert sent.resumed
    await bench.work()
    assert await run.result() == 5
    assert (await asyncio.to_thread(bench.fabric.run_sync, run.id)).id == run.id


async def test_tokens_by_code_without_an_event_loop(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        return (await ctx.approval("publish")).ended

    run, fabric = await job.submit(), bench.fabric
    await bench.work()
    (open_one,) = await fabric.waitpoints(run)
    asked = f"{run.id}/{open_one.id}"
    revoked = await asyncio.to_thread(fabric.waitpoint_token_sync, run, "publish", approver="ada")
    await asyncio.to_thread(fabric.revoke_tokens_sync, run, "publish")
    with pytest.raises(Unauthorized):
        await asyncio.to_thread(fabric.approve_sync, asked, token=revoked.reveal())
    token = await asyncio.to_thread(fabric.waitpoint_token_sync, run, "publish", approver="ada")
    await asyncio.to_thread(fabric.approve_sync, asked, token=token.reveal())
    await bench.work()
    assert await run.result() == "approved"


async def test_what_waits_can_be_listed_the_longest_first(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context, name: str) -> None:
        await ctx.wait_for_any(name, "other")

    runs = []
    for name in ("first", "second"):
        runs.append(await job.submit(name))
        await bench.work()
        bench.clock.advance(1)
    found = await bench.fabric.waitpoints()
    assert [each.execution for each in found] == [runs[0].id] * 2 + [runs[1].id] * 2
    assert {each.key for each in found} == {"first", "second", "other"}
    assert len(await bench.fabric.waitpoints(limit=3)) == 3
    assert {each.key for each in await bench.fabric.waitpoints(runs[1])} == {"second", "other"}


async def test_what_many_runs_wait_for_is_read_in_a_few_statements(
    bench: Bench, wire: Wire
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.approval("publish")

    await job.submit_many([()] * 30)
    await bench.work()
    wire.made.clear()
    assert len(await bench.fabric.waitpoints()) == 30
    assert wire.made["load_needs"] <= 3


async def test_a_run_that_ended_takes_no_signals(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    ended, cancelled = await job.submit(), await job.submit()
    await bench.work()
    await bench.fabric.signal(ended, "go")
    await bench.work()
    await cancelled.cancel("changed our mind")
    with pytest.raises(RunCancelled, match="changed our mind"):
        await cancelled.result()
    for run in (ended, cancelled):
        with pytest.raises(NotSignalable):
            await bench.fabric.signal(run, "go")
        for name in ("go", None):
            with pytest.raises(NotSignalable, match="has ended"):
                await bench.fabric.approve(run, name, approver="ada")
        assert await bench.fabric.waitpoints(run) == []


async def test_signals_that_make_no_sense_are_refused(bench: Bench) -> None:
    fabric = bench.fabric

    @fabric.task()
    async def job(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    run = await job.submit()
    await bench.work()
    waitpoint = (await fabric.waitpoints(run))[0]
    with pytest.raises(Invalid, match="needs a name"):
        await fabric.signal(run)
    with pytest.raises(Invalid, match="needs the name"):
        await fabric.signal(run, "")
    with pytest.raises(Invalid, match="not int"):
        await fabric.signal(7, "go")  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        await fabric.signal("no id", "go")
    with pytest.raises(Invalid, match="belongs to one callback"):
        await fabric.signal(run, "go", token="x:1")
    with pytest.raises(MissingToken):
        await fabric.signal(f"{run.id}/{waitpoint.id}", "go")
    with pytest.raises(PayloadTooLarge, match="the limit is 262144"):
        await fabric.signal(run, "go", "x" * 262_143)
    with pytest.raises(Invalid, match="object"):
        await fabric.signal(run, "go", object())
    with pytest.raises(NotFound):
        await fabric.signal(str(run.id)[:-4] + "0000", "go")
    assert await run.state() is PublicState.SUSPENDED
    assert (await fabric.signal(run, "go", "x" * 262_142)).resumed


@pytest.mark.rules
@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (lambda ctx: ctx.wait_for_signal(""), "a signal needs a name"),
        (lambda ctx: ctx.wait_for_signal("x" * 257), "signal name"),
        (lambda ctx: ctx.wait_for_signal(7), "signal name"),
        (lambda ctx: ctx.wait_for_signal("go\x00"), "signal name"),
        (lambda ctx: ctx.wait_for_any(), "at least one"),
        (lambda ctx: ctx.wait_for_all(), "at least one"),
        (lambda ctx: ctx.wait_for_any("a", ""), "a signal needs a name"),
        (lambda ctx: ctx.wait_for_all("a", "a"), "named twice"),
        (lambda ctx: ctx.wait_for_any("a", "a"), "named twice"),
        (lambda ctx: ctx.wait_for_signal("go", timeout="soon"), "timeout is not a duration"),
        (lambda ctx: ctx.wait_for_signal("go", timeout=-1), "timeout must be between"),
        (lambda ctx: ctx.wait_for_signal("go", timeout=True), "timeout is not a duration"),
    ],
)
async def test_waits_that_make_no_sense_are_refused_where_they_are_made(
    bench: Bench, ask: Any, complaint: str
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        with pytest.raises(Invalid, match=complaint):
            await ask(ctx)
        return str(await ctx.wait_for_signal("go"))

    run = await job.submit()
    await bench.fabric.signal(run, "go", "and on")
    await bench.work()
    assert await run.result() == "and on"


async def test_a_token_without_the_id_that_goes_with_it_is_told_where_it_belongs(
    bench: Bench,
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> bool:
        approval = await ctx.request_approval("pay")
        return (await approval.verdict()).approved

    run = await job.submit()
    await bench.work()
    token = await bench.fabric.waitpoint_token(run, "pay")
    for decide in (bench.fabric.approve, bench.fabric.reject):
        for target in (run, str(run.id)):
            with pytest.raises(Invalid, match=r"approval\.id"):
                await decide(target, "pay", token=token)
    (open_one,) = await bench.fabric.waitpoints(run)
    await bench.fabric.approve(f"{run.id}/{open_one.id}", token=token)
    await bench.work()
    assert await run.result() is True


@pytest.mark.parametrize("letter", ["x", "信"])
async def test_who_waits_and_who_sends_have_one_limit_of_names(bench: Bench, letter: str) -> None:
    """In characters, in any script."""
    longest, longer = letter * 256, letter * 257

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        for wait in (
            lambda: ctx.wait_for_signal(longer),
            lambda: ctx.wait_for_any("go", longer),
            lambda: ctx.approval(longer),
            lambda: ctx.callback(longer),
        ):
            with pytest.raises(Invalid):
                wait()
        found = [await ctx.wait_for_signal(longest)]
        found += [(await ctx.approval(longest)).approved]
        callback = await ctx.callback(longest)
        return [*found, len(callback.id) > 0]

    run = await job.submit()
    await bench.work()
    with pytest.raises(Invalid):
        await bench.fabric.signal(run, longer)
    await bench.fabric.signal(run, longest, 7)
    await bench.work()
    await bench.fabric.approve(run, longest)
    await bench.work()
    assert await run.result(timeout=60) == [7, True, True]


async def test_a_wait_without_a_timeout_has_that_of_the_policy(bench: Bench) -> None:
    """As a suspension without one has: §1.7, suspension_policy."""

    @bench.fabric.task()
    async def job(ctx: Context, timeout: str | None) -> str:
        try:
            await ctx.wait_for_signal("go", timeout=timeout)
        except WaitTimeout:
            return "timeout"
        return "signal"

    policies = [{"default_timeout_ms": 60_000, "timeout_behavior": word} for word in WORDS]
    ids = []
    for policy in policies:
        submission = job.submission(CallOptions(), (None,), {}, bench.engine.now())
        rules = replace(submission, policy={"suspension_policy": policy})
        ids.append((await bench.engine.executions.submit(rules)).id)
    own = await job.submit("2m")
    await bench.work()
    await bench.pass_time(60_000)
    await bench.work()
    states = [await bench.engine.views.state(id) for id in ids]
    assert states == [PublicState.FAILED, PublicState.CANCELLED, PublicState.COMPLETED]
    assert await bench.engine.views.result(ids[-1]) == b'"timeout"'
    assert await own.state() is PublicState.SUSPENDED


WORDS = ("fail", "cancel", "auto_resume_with_timeout_signal")
