"""What was waited for survives whatever happens to the run afterwards."""

import asyncio
import re
from typing import Any

import pytest

from flowfabric import (
    Context,
    Fabric,
    Options,
    PublicState,
    RunCancelled,
    RunFailed,
    SyncContext,
    WaitTimeout,
)
from flowfabric.core.base.errors import Unavailable
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.store.clock import ManualClock
from flowfabric.worker.run.loop import HandlerRuntime
from tests.worker.bench import AGAIN, TTL, Bench, Log, Wire, kinds, until, working

DOOMED = WorkerIdentity("doomed", "doomed")


# -- the death of a worker


async def test_an_approval_survives_the_death_of_the_worker_that_was_resumed(
    bench: Bench, log: Log
) -> None:
    """Killed between the claim and the end: its lease runs out, another attempt goes on."""
    fabric = bench.fabric

    @fabric.task()
    async def job(ctx: Context) -> list[Any]:
        verdict = await ctx.approval("deploy")
        value = await ctx.wait_for_signal("go")
        log.note(ctx.info.attempt)
        return [verdict.approved, verdict.decisions[0].approver, value]

    run = await job.submit()
    await bench.work()
    await fabric.approve(run, "deploy", approver="ada")
    await fabric.signal(run, "go", 1)
    await bench.engine.claims.claim(DOOMED, limit=1, ttl=TTL)
    assert await run.state() is PublicState.ACTIVE
    await bench.lose()
    await bench.work()
    assert await run.result() == [True, "ada", 1]
    assert log == [2]
    assert (await run.describe()).attempts_made == 2


async def test_a_new_attempt_and_a_retry_find_what_was_waited_for(bench: Bench, log: Log) -> None:
    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> list[Any]:
        found = [await ctx.wait_for_signal("go"), await ctx.wait_for_any("a", "b")]
        verdict = await ctx.approval("deploy", about={"version": 7})
        verdict.check({"version": 7})
        log.note(ctx.info.attempt)
        if ctx.info.attempt < 4:
            raise ConnectionError
        return [found[0], found[1].name, verdict.approved]

    run = await job.submit()
    await bench.fabric.signal(run, "go", 1)
    await bench.fabric.signal(run, "b", 2)
    await bench.work()
    await bench.fabric.approve(run, "deploy", approver="ada")
    await bench.work()
    assert await run.result() == [1, "b", True]
    assert log == [1, 2, 3, 4]


async def test_what_was_sent_but_not_yet_asked_for_outlives_the_attempt(bench: Bench) -> None:
    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> Any:
        if ctx.info.first:
            await bench.fabric.signal(ctx.info.id, "go", "kept")
            raise ConnectionError
        return await ctx.wait_for_signal("go")

    run = await job.submit()
    await bench.work()
    assert await run.result() == "kept"


async def test_half_an_approval_survives_a_lost_lease(bench: Bench, log: Log) -> None:
    fabric = bench.fabric

    @fabric.task()
    async def job(ctx: Context) -> list[str]:
        await ctx.gather(ctx.wait_for_signal("go"), approve(ctx))
        return list(log)

    async def approve(ctx: Context) -> None:
        verdict = await ctx.approval("deploy", of=2)
        log.extend(decision.approver for decision in verdict.decisions)

    run = await job.submit()
    await bench.work()
    await fabric.approve(run, "deploy", approver="ada")
    await fabric.signal(run, "go")
    await bench.engine.claims.claim(DOOMED, limit=1, ttl=TTL)
    await bench.lose()
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    await fabric.approve(run, "deploy", approver="bob")
    await bench.work()
    assert await run.result() == ["ada", "bob"]


async def test_a_worker_that_drains_hands_back_what_was_satisfied_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler is to run again under the same lease, and just then the worker stops."""

    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        await ctx.step(answer)
        return await ctx.wait_for_signal("go")

    async def answer() -> None:
        await bench.fabric.signal(run, "go", "kept")  # while the handler runs

    run = await job.submit()
    worker = await bench.fabric.worker()
    suspend = bench.engine.suspensions.suspend

    async def stopping(*args: Any) -> Any:
        answer = await suspend(*args)
        for active in worker.active.values():
            active.stop("worker stopping")
        return answer

    monkeypatch.setattr(bench.engine.suspensions, "suspend", stopping)
    await worker._claim(HandlerRuntime(worker).executor)
    await worker._all_done()
    monkeypatch.undo()
    assert await run.state() is PublicState.WAITING
    assert (await kinds(run))[-1] == "HANDED_BACK"
    await bench.work()
    assert await run.result() == "kept"
    assert (await run.describe()).attempts_made == 1


async def test_an_attempt_in_hand_when_the_worker_drains_is_suspended_all_the_same(
    fabric: Fabric, log: Log
) -> None:
    go_on = asyncio.Event()

    @fabric.task()
    async def job(ctx: Context) -> Any:
        log.note("top")
        await ctx.step(go_on.wait)
        return await ctx.wait_for_signal("go")

    run = await job.submit()
    async with working(fabric) as worker:
        await until(lambda: log)
        worker.stop()
        go_on.set()
        await until(lambda: not worker.active)
    assert await run.state() is PublicState.SUSPENDED
    async with working(fabric):
        await fabric.signal(run, "go", 1)
        assert await run.result(60) == 1


async def test_a_lost_reply_to_a_suspend_does_no_harm(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store suspended the run and the worker never heard of it: it asks again."""

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_signal("go"), await ctx.wait_for_signal("go")]

    calls = losing_replies(bench, monkeypatch)
    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "go", 1)
    await bench.work()
    await bench.fabric.signal(run, "go", 2)
    await bench.work()
    assert await run.result() == [1, 2]
    assert len(calls) == 4


async def test_a_lost_reply_to_a_suspend_that_was_satisfied_at_once_does_no_harm(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    losing_replies(bench, monkeypatch)
    run = await job.submit()
    await bench.fabric.signal(run, "go", "there")
    await bench.work()
    assert await run.state() is PublicState.COMPLETED
    assert await run.result() == "there"


def losing_replies(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every other reply to a suspend is lost, the first one to begin with."""
    suspend = bench.engine.suspensions.suspend
    calls: list[str] = []

    async def lossy(*args: Any) -> Any:
        answer = await suspend(*args)
        calls.append("suspend")
        if len(calls) % 2:
            raise Unavailable("the reply was lost")
        return answer

    monkeypatch.setattr(bench.engine.suspensions, "suspend", lossy)
    return calls


async def test_a_store_that_is_away_while_the_run_is_suspended_is_waited_for(
    fabric: Fabric, wire: Wire, log: Log
) -> None:
    @fabric.task()
    def job(ctx: SyncContext) -> Any:
        if not log:
            wire.cut = bool(log.note("cut"))
        return ctx.wait_for_signal("go")

    run = await job.submit()
    async with working(fabric) as worker:
        await until(lambda: wire.cut)
        wire.cut = False
        await until(lambda: worker.completed)
        await fabric.signal(run, "go", 1)
        assert await run.result(60) == 1


# -- operators


async def test_a_replay_of_a_failed_run_keeps_what_was_waited_for(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        found = [await ctx.wait_for_signal("go")]
        log.note("ran")
        if len(log) == 1:
            raise ValueError("broken")
        return [*found, await ctx.wait_for_signal("go")]

    run = await job.submit()
    await bench.fabric.signal(run, "go", 1)
    await bench.work()
    with pytest.raises(RunFailed, match="broken"):
        await run.result()
    await run.replay()
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    await bench.fabric.signal(run, "go", 2)
    await bench.work()
    assert await run.result() == [1, 2]


async def test_a_replay_of_a_completed_run_waits_again(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        callback = await ctx.callback()
        tokens.append((callback.id, callback.token.reveal()))
        return [await ctx.wait_for_signal("go"), await callback.result()]

    tokens: list[tuple[str, str]] = []
    run = await job.submit()
    for number in (1, 2):
        await bench.work()
        assert await run.state() is PublicState.SUSPENDED
        await bench.fabric.signal(run, "go", number)
        id, token = tokens[-1]
        await bench.fabric.signal(id, payload=10 * number, token=token)
        await bench.work()
        assert await run.result() == [number, 10 * number]
        if number == 1:
            await run.replay()
    assert len(set(tokens)) == 2


@pytest.mark.parametrize("beside", [False, True])
async def test_a_replay_does_not_hear_again_what_was_used_up(bench: Bench, beside: bool) -> None:
    @bench.fabric.task()
    async def job(ctx: Context, fail: bool) -> list[Any]:
        first = await ctx.wait_for_signal("go")
        if fails.pop():
            raise ValueError
        if not beside:
            return [first, await ctx.wait_for_signal("go")]
        _, second = await ctx.gather(ctx.wait_for_signal("wake"), ctx.wait_for_signal("go"))
        return [first, second]

    fails = [False] * 9 + [True]
    run = await job.submit(True)
    await bench.fabric.signal(run, "go", "first")
    await bench.work()
    await run.replay()
    await bench.work()
    await bench.fabric.signal(run, "wake")
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    await bench.fabric.signal(run, "go", "second")
    await bench.work()
    assert await run.result() == ["first", "second"]


async def test_a_replay_finds_what_was_sent_and_not_used(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        first = await ctx.wait_for_signal("go")
        if not log:
            raise ValueError(log.note("broken"))
        return [first, await ctx.wait_for_signal("go")]

    run = await job.submit()
    await bench.fabric.signal(run, "go", "used")
    await bench.fabric.signal(run, "go", "unused")
    await bench.work()
    await run.replay()
    await bench.work()
    assert await run.state() is PublicState.COMPLETED
    assert await run.result() == ["used", "unused"]


async def test_a_run_that_was_cancelled_while_it_waited_can_be_replayed(bench: Bench) -> None:
    fabric = bench.fabric

    @fabric.task()
    async def job(ctx: Context) -> list[Any]:
        found = await ctx.wait_for_signal("go")
        verdict = await ctx.approval("deploy", of=2, approvers=["ada", "bob", "eve"])
        return [found, sorted(decision.approver for decision in verdict.decisions)]

    run = await job.submit()
    await fabric.signal(run, "go", 1)
    await bench.work()
    await fabric.approve(run, "deploy", approver="ada")
    await run.cancel("wrong day")
    with pytest.raises(RunCancelled):
        await run.result()
    await run.replay()
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    await fabric.approve(run, "deploy", approver="ada")
    await fabric.approve(run, "deploy", approver="bob")
    await bench.work()
    assert await run.state() is PublicState.COMPLETED
    assert await run.result() == [1, ["ada", "bob"]]


async def test_an_operator_resumes_a_run_without_an_answer(bench: Bench, log: Log) -> None:
    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> list[Any]:
        signal = await ctx.wait_for_signal("go")
        first = await ctx.wait_for_any("a", "b")
        log.note(first.at)
        every = await ctx.wait_for_all("a", "b")
        verdict = await ctx.approval("deploy")
        answer = await (await ctx.callback()).result()
        if ctx.info.first:
            raise ConnectionError
        return [signal, first.name, first.value, every, verdict.ended, verdict.approved, answer]

    run = await job.submit()
    for _ in range(5):
        await bench.work()
        assert await run.state() is PublicState.SUSPENDED
        bench.clock.advance(1000)
        await bench.engine.executions.resume(run.id)
    await bench.work()
    assert await run.result() == [None, "", None, {}, "resumed", False, None]
    assert len(log) > 1
    assert len(set(log)) == 1


# -- code and settings


async def test_a_wait_that_the_code_no_longer_asks_for_blocks_the_run(bench: Bench) -> None:
    names = ["go", "other"]

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> Any:
        await ctx.wait_for_signal(names.pop(0))
        raise ConnectionError

    run = await job.submit()
    await bench.fabric.signal(run, "go")
    await bench.work()
    names[:] = ["other"]
    await bench.work()
    reason = (await bench.engine.explain(run.id)).main
    assert reason.code == "blocked_by_code"
    assert re.search(r"recorded as 'signal:go' .* asks for 'signal:other'", reason.text)


async def test_a_wait_that_is_not_over_may_become_another_one(bench: Bench) -> None:
    """Nothing is recorded yet, so the code may change."""
    names = ["before", "after"]

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return list(await ctx.gather(ctx.wait_for_signal("go"), ctx.wait_for_signal(names.pop(0))))

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "go", 1)
    names.append("after")
    await bench.work()
    await bench.fabric.signal(run, "after", 2)
    await bench.work()
    assert await run.result() == [1, 2]


async def test_a_recorded_wait_that_is_left_out_is_missed(bench: Bench, log: Log) -> None:
    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> str:
        if not log:
            await ctx.wait_for_signal("go", timeout="1h")
            log.note("waited")
            raise ConnectionError
        return "without"

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "go")
    await bench.work()
    reason = (await bench.engine.explain(run.id)).main
    assert reason.code == "blocked_by_code"
    assert re.search(r"'signal:go' .* is recorded but the code no longer asks", reason.text)


@pytest.mark.parametrize("way", ["signal", "approval", "callback"])
@pytest.mark.inside
async def test_without_a_key_a_wait_fails_the_run_instead_of_trying_for_ever(
    store_url: str, way: str
) -> None:
    clock = ManualClock()
    async with Fabric(store_url, options=Options(make_keys=False), clock=clock) as fabric:

        @fabric.task()
        async def job(ctx: Context) -> None:
            if way == "signal":
                await ctx.wait_for_signal("go")
            elif way == "approval":
                await ctx.approval("deploy")
            else:
                await ctx.callback()

        bench = Bench(fabric, await fabric.engine(), clock)
        run = await job.submit()
        assert await bench.work() == 1
        with pytest.raises(RunFailed, match="seed a key"):
            await run.result()


async def test_a_timed_out_wait_fails_the_run_for_good_unless_it_is_caught(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go", timeout="1h")

    run = await job.submit()
    await bench.work_through(run)
    with pytest.raises(RunFailed, match="nothing came in time"):
        await run.result()
    assert WaitTimeout.code == "wait_timeout"
