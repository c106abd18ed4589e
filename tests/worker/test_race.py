"""`ctx.race`: the first of several branches wins, the others are closed and cancelled."""

import asyncio
from functools import partial
from typing import Any

import pytest

from flowfabric import (
    Context,
    Fabric,
    Fixed,
    Invalid,
    PublicState,
    RunFailed,
    SyncContext,
    WaitTimeout,
    Winner,
)
from flowfabric.core.base.errors import FlowFabricError, WaitpointClosed
from flowfabric.testing import harness
from tests.kit.connections import libraries
from tests.worker.bench import Bench

HOUR = 3_600_000


async def test_a_signal_wins_over_a_timer_and_nothing_runs_meanwhile(bench: Bench) -> None:
    calls: list[str] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        calls.append("called")
        name, value = await ctx.race(go=ctx.wait_for_signal("go", int), late=ctx.sleep("1h"))
        return [name, value]

    run = await job.submit()
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    await bench.work()
    assert calls == ["called"]
    await bench.fabric.signal(run, "go", 5)
    await bench.work()
    assert await run.result() == ["go", 5]


async def test_the_timer_wins_and_stays_the_winner(bench: Bench) -> None:
    """The signal comes later, and the handler runs again: the answer is the recorded one. The
    signal is kept for the next wait."""

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        first = await ctx.race(ctx.wait_for_signal("go"), ctx.sleep("1h"))
        await ctx.sleep("1h")
        return [*first, await ctx.wait_for_signal("go")]

    run = await job.submit()
    await bench.work()
    await bench.pass_time(HOUR)
    await bench.work()
    await bench.fabric.signal(run, "go", "kept")
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == ["1", None, "kept"]


async def test_a_callback_and_an_approval_that_lose_are_closed(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        callback = await ctx.callback("paid")
        winner = await ctx.race(
            paid=callback.result(int), allowed=ctx.approval("refund"), late=ctx.sleep("1h")
        )
        await ctx.sleep("1h")
        return winner.name

    run = await job.submit()
    await bench.work()
    assert {item.key for item in await bench.fabric.waitpoints(run.id)} == {"paid", "refund"}
    await bench.pass_time(HOUR)
    await bench.work()
    assert [item.state for item in await bench.fabric.waitpoints(run.id)] in ([], ["closed"] * 2)
    with pytest.raises(FlowFabricError):
        await bench.fabric.approve(run, "refund", approver="ann")
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == "late"


async def test_what_a_loser_has_handed_out_is_closed(bench: Bench) -> None:
    """Also if the branch had not come to wait for the answer: it would be accepted for nothing"""
    handed: dict[str, str] = {}

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        async def paid() -> object:
            callback = await ctx.callback("paid")
            approval = await ctx.request_approval("refund")
            handed[callback.id] = callback.token.reveal()
            handed[approval.id] = (await approval.token()).reveal()
            await ctx.sleep("1h")
            return await callback.result()

        winner = await ctx.race(paid=paid(), off=ctx.wait_for_signal("off"))
        await ctx.wait_for_signal("go on")
        return winner.name

    run = await job.submit()
    await bench.work()
    assert {item.key for item in await bench.fabric.waitpoints(run)} == {"paid", "refund", "off"}
    await bench.fabric.signal(run, "off")
    await bench.work()
    assert len(handed) == 2
    for id, token in handed.items():
        with pytest.raises(WaitpointClosed):
            await bench.fabric.signal(id, "approved", token=token)
    await bench.fabric.signal(run, "go on")
    await bench.work()
    assert await run.result() == "off"


async def test_an_approval_wins(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        winner = await ctx.first_of(allowed=ctx.approval("refund"), late=ctx.sleep("1h"))
        return [winner.name, winner.value is not None and winner.value.approved]

    run = await job.submit()
    await bench.work()
    await bench.fabric.approve(run, "refund", approver="ann")
    await bench.work()
    assert await run.result() == ["allowed", True]


@pytest.mark.parametrize("as_run", [True, False])
async def test_a_child_run_that_loses_is_cancelled(bench: Bench, as_run: bool) -> None:
    children: list[Any] = []

    @bench.fabric.task()
    async def child(ctx: Context) -> str:
        await ctx.wait_for_signal("never")
        return "done"

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        run = await ctx.submit(child)
        children.append(run)
        won = await ctx.race(child=run if as_run else run.result(), go=ctx.wait_for_signal("go"))
        return won.name

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "go")
    await bench.work()
    assert await run.result() == "go"
    assert await children[0].state() is PublicState.CANCELLED


async def test_a_child_run_wins_by_its_result_or_its_failure(bench: Bench) -> None:
    @bench.fabric.task()
    async def child(good: bool) -> int:
        if not good:
            raise ValueError("bad child")
        return 7

    @bench.fabric.task()
    async def job(ctx: Context, good: bool) -> list[Any]:
        run = await ctx.submit(child, good)
        try:
            won = await ctx.race(child=run, late=ctx.sleep("1h"))
        except RunFailed:
            return ["failed"]
        await ctx.sleep("1h")
        return list(won)

    good, bad = await job.submit(True), await job.submit(False)
    await bench.work()
    assert await bad.result() == ["failed"]
    assert await good.state() is PublicState.DELAYED  # in the sleep after the race
    await bench.pass_time(HOUR)
    await bench.work()
    assert await good.result() == ["child", 7]


async def test_a_map_that_loses_is_cancelled(bench: Bench) -> None:
    @bench.fabric.task()
    async def part(ctx: Context, number: int) -> int:
        await ctx.wait_for_signal("never")
        return number

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        return (await ctx.race(parts=ctx.map(part, [1, 2]), go=ctx.wait_for_signal("go"))).name

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "go")
    await bench.work()
    assert await run.result() == "go"
    engine = await bench.fabric.engine()
    counts = await engine.views.counts()
    assert counts.by_state[PublicState.CANCELLED] == 2


async def test_a_step_that_loses_is_stopped_and_one_that_wins_is_not_repeated(bench: Bench) -> None:
    stopped, calls = asyncio.Event(), list[str]()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def quick() -> str:
        calls.append("quick")
        return "now"

    @bench.fabric.task(retries=1, backoff=Fixed(delay=0))
    async def job(ctx: Context) -> list[Any]:
        won = await ctx.race(slow=ctx.step(slow), quick=ctx.step(quick), late=ctx.sleep("1h"))
        if ctx.info.first:
            raise ValueError
        return list(won)

    run = await job.submit()
    await bench.work()
    assert await run.result() == ["quick", "now"]
    assert stopped.is_set()
    assert calls == ["quick"]


async def test_a_tie_is_decided_once(bench: Bench) -> None:
    """Both signals are there before the run is resumed; the retry sees the same winner although the
    code lists the branches in the same order and both are recorded."""
    seen: list[str] = []

    @bench.fabric.task(retries=2, backoff=Fixed(delay=0))
    async def job(ctx: Context) -> None:
        won = await ctx.race(b=ctx.wait_for_signal("b"), a=ctx.wait_for_signal("a"))
        seen.append(won.name)
        if len(seen) < 3:
            raise ValueError

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "a")
    await bench.fabric.signal(run, "b")
    await bench.work()
    await run.result()
    assert len(seen) == 3
    assert len(set(seen)) == 1


async def test_branches_with_several_calls_and_what_they_have_recorded(bench: Bench) -> None:
    """A loser has recorded a step of its own: the handler need not ask for it again."""
    calls: list[str] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def patient() -> str:
            await ctx.step(calls.append, "patient")
            return str(await ctx.wait_for_signal("reply"))

        async def reminding() -> str:
            await ctx.sleep("1h")
            await ctx.step(calls.append, "reminding")
            return "reminded"

        won = await ctx.race(reply=patient(), reminder=reminding())
        await ctx.sleep("1h")
        return list(won)

    run = await job.submit()
    await bench.work()
    await bench.pass_time(HOUR)
    await bench.work()
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == ["reminder", "reminded"]
    assert calls == ["patient", "reminding"]


async def test_a_timeout_is_an_end_and_a_failing_step_is_not(bench: Bench) -> None:
    calls: list[str] = []

    async def failing() -> str:
        calls.append("failing")
        if len(calls) == 1:
            raise ValueError("first try")
        return "second try"

    @bench.fabric.task(retries=1, backoff=Fixed(delay=0))
    async def job(ctx: Context) -> list[Any]:
        try:
            await ctx.race(
                go=ctx.wait_for_signal("go", timeout="1h"), other=ctx.wait_for_signal("other")
            )
        except WaitTimeout:
            return list(await ctx.race(step=ctx.step(failing), late=ctx.sleep("1h")))
        return []

    run = await job.submit()
    await bench.work()
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == ["step", "second try"]
    assert calls == ["failing", "failing"]


async def test_losers_are_closed_although_the_worker_died_in_between(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await bench.fabric.engine()
    close, failures = engine.suspensions.close_waitpoint, [RuntimeError("killed")]

    async def dying(*args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return await close(*args, **kwargs)

    monkeypatch.setattr(engine.suspensions, "close_waitpoint", dying)

    @bench.fabric.task(retries=1, backoff=Fixed(delay=0))
    async def job(ctx: Context) -> str:
        callback = await ctx.callback("paid")
        won = await ctx.race(paid=callback.result(), late=ctx.sleep("1h"))
        await ctx.sleep("1h")
        return won.name

    run = await job.submit()
    await bench.work()
    await bench.pass_time(HOUR)
    await bench.work()
    assert not failures
    assert [item.state for item in await bench.fabric.waitpoints(run.id)] in ([], ["closed"])
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == "late"


async def test_what_cannot_race_is_refused(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        refused = []
        wrong: list[dict[str, Any]] = [{}, {"a": 5}, {"a": "text"}]
        wrong += [{name: ctx.sleep(1)} for name in ("a\0", "\ud800", "a" * 257, "")]
        for each in wrong:
            try:
                await ctx.race(**each)
            except Invalid as error:
                refused.append(str(error))
        return refused

    run = await job.submit()
    await bench.work()
    empty, number, text, *names = await run.result()
    assert "at least one branch" in empty
    assert "'a' of a race is of type int" in number
    assert "'a' of a race is of type str" in text
    assert len(names) == 4
    assert all("branch" in name for name in names)


async def test_races_in_the_test_kit() -> None:
    fabric = Fabric("sqlite://:memory:")

    @fabric.task()
    async def job(ctx: Context) -> Winner[Any]:
        return await ctx.race(go=ctx.wait_for_signal("go"), late=ctx.sleep("1d"))

    async with harness(fabric) as kit:
        assert await kit.run(job) == Winner("late", None)
        run = await job.submit()
        await kit.run_until(waits_for="go")
        await fabric.signal(run, "go", 1)
        assert await kit.result(run) == Winner("go", 1)


# -- what happens in between


async def test_what_came_first_wins_although_the_timer_is_over_as_well(bench: Bench) -> None:
    """The signal ended the suspension; the run was taken up again after the end of the timer, which
    is the first branch."""

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        return (await ctx.race(late=ctx.sleep("1h"), go=ctx.wait_for_signal("go"))).name

    run = await job.submit()
    await bench.work()
    await bench.pass_time(HOUR // 2)
    await bench.fabric.signal(run, "go")
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == "go"


async def test_the_end_of_a_child_is_told_although_its_worker_died(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that ended the child tells nobody: the sweep of another one finds it."""

    @bench.fabric.task()
    async def child(ctx: Context) -> int:
        return await ctx.wait_for_signal("end", int)

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        run = await ctx.submit(child)
        await ctx.set_state(str(run.id))
        return list(await ctx.race(child=run.result(), late=ctx.sleep("1d")))

    run = await job.submit()
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    monkeypatch.setattr(bench.engine._dispatcher, "committed", lambda commit: None)
    await bench.fabric.signal(str(await run.state_value()), "end", 4)
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    await bench.pass_time(0)
    await bench.work()
    assert await run.result() == ["child", 4]
    assert not await bench.engine.store.owed_flows(1)


@pytest.mark.inside
async def test_a_child_that_ends_in_a_transaction_is_told_as_well(
    bench: Bench, store_url: str
) -> None:
    awaited = asyncio.Event()

    @bench.fabric.task()
    async def child(ctx: Context, library: int) -> int:
        await awaited.wait()
        async with libraries(store_url)[library]() as connection:
            await ctx.complete_in(connection, library)
        return 0

    @bench.fabric.task()
    async def job(ctx: Context, library: int) -> list[Any]:
        run = await ctx.submit(child, library)
        return list(await ctx.race(child=run, late=ctx.sleep("1d")))

    for library in range(len(libraries(store_url))):
        awaited.clear()
        run = await job.submit(library)
        work = asyncio.create_task(bench.work())
        async with asyncio.timeout(60):
            while await run.state() is not PublicState.SUSPENDED:  # noqa: ASYNC110 - in the store
                await asyncio.sleep(0)
            awaited.set()
            await work
        await bench.pass_time(0)
        await bench.work()
        assert await run.result() == ["child", library]


async def test_a_deleted_child_and_one_that_was_replayed_end_as_they_did(bench: Bench) -> None:
    ends = ["one", "two"]

    @bench.fabric.task()
    async def child() -> str:
        return ends.pop(0)

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        run = await ctx.submit(child)
        won = await ctx.race(child=run, late=ctx.sleep("1d"))
        await ctx.set_state(run.id.tagged)
        await ctx.wait_for_signal("go")
        return list(won)

    run = await job.submit()
    await bench.work()
    await bench.engine.executions.replay(str(await run.state_value()))
    await bench.work()
    assert ends == []
    await bench.fabric.signal(run, "go")
    await bench.work()
    assert await run.result() == ["child", "one"]


async def test_a_child_that_is_too_late_keeps_its_timeout(bench: Bench) -> None:
    """The wait for the child times out, which ends its branch; that stays so when the child has
    ended."""

    @bench.fabric.task()
    async def child(ctx: Context) -> None:
        await ctx.sleep("2h")

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        run = await ctx.submit(child)
        try:
            await ctx.race(child=run.result(timeout="1h"), go=ctx.wait_for_signal("go"))
        except TimeoutError:
            await ctx.sleep("3h")
            return "late"
        return "in time"

    run = await job.submit()
    await bench.work_through(run)
    assert await run.result() == "late"


async def test_a_race_in_a_race(bench: Bench) -> None:
    """The losers of the inner race and those of the outer one are all over."""

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def inner() -> str:
            a, b = await ctx.callback("a"), await ctx.callback("b")
            return (await ctx.race(a=a.result(), b=b.result())).name

        won = await ctx.race(inner=inner(), late=ctx.sleep("1h"))
        await ctx.sleep("1h")
        return list(won)

    run = await job.submit()
    await bench.work()
    assert {item.key for item in await bench.fabric.waitpoints(run.id)} == {"a", "b"}
    await bench.pass_time(HOUR)
    await bench.work()
    assert await bench.fabric.waitpoints(run.id) == []
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == ["late", None]


async def test_a_child_that_another_branch_also_waits_for_is_not_cancelled(bench: Bench) -> None:
    @bench.fabric.task()
    async def child() -> int:
        return 1

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        run = await ctx.submit(child)
        won = await ctx.race(a=run.result(), b=run)
        return [won.value, str(await run.state())]

    run = await job.submit()
    await bench.work()
    assert await run.result() == [1, "completed"]


async def test_races_survive_the_loss_of_the_lease(bench: Bench) -> None:
    """The worker dies after the race was decided, and before: the winner is the recorded one."""
    calls: list[str] = []
    stuck = asyncio.Event()

    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        async def quick() -> str:
            calls.append("quick")
            return "quick"

        first = await ctx.race(go=ctx.wait_for_signal("go"), quick=ctx.step(quick))
        if len(calls) == 1 and not stuck.is_set():
            stuck.set()
            await asyncio.Event().wait()
        second = await ctx.race(go=ctx.wait_for_signal("go"), late=ctx.sleep("1h"))
        return [first.name, second.name]

    run = await job.submit()
    work = asyncio.create_task(bench.work())
    await stuck.wait()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    await bench.fabric.signal(run, "go")
    await bench.lose()
    await bench.work()
    assert await run.result() == ["quick", "go"]
    assert calls == ["quick"]


async def test_code_that_races_otherwise_is_blocked(bench: Bench) -> None:
    names = ["a", "b"]

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        won = await ctx.race(**{name: ctx.wait_for_signal(name) for name in names})
        await ctx.sleep("1h")
        return won.name

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "b")
    await bench.work()
    names[:] = ["a", "c"]
    await bench.pass_time(HOUR)
    await bench.work()
    assert (await run.explain()).main.code == "blocked_by_code"


# -- plain functions


async def test_a_plain_function_races(bench: Bench) -> None:
    @bench.fabric.task()
    async def child(ctx: Context) -> None:
        await ctx.wait_for_signal("never")

    @bench.fabric.task()
    def job(ctx: SyncContext) -> list[Any]:
        run = ctx.submit(child)
        callback = ctx.callback("paid")
        first = ctx.race(
            child=run,
            paid=lambda: callback.result(int),
            go=lambda: ctx.wait_for_signal("go", int),
            late=lambda: ctx.sleep("1h"),
        )
        second = ctx.first_of(partial(ctx.sleep, "1h"), lambda: ctx.step(str, 5))
        third = ctx.race(a=lambda: run.result_sync(), b=lambda: ctx.sleep("1h"))
        return [*first, *second, third.name]

    run = await job.submit()
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    await bench.fabric.signal(run, "go", 3)
    await bench.work()
    with pytest.raises(RunFailed, match="lost the race"):
        await run.result()


async def test_what_cannot_race_in_a_plain_function_is_refused(bench: Bench) -> None:
    @bench.fabric.task()
    def job(ctx: SyncContext) -> list[str]:
        refused = []
        wrong: list[Any] = [
            5,
            lambda: 5,
            lambda: ctx.step(str, ctx.sleep("1h")),
            lambda: ctx.callback("paid"),
            lambda: [ctx.sleep("1h")],
        ]
        for each in wrong:
            try:
                ctx.race(good=lambda: ctx.sleep("1h"), bad=each)
            except Invalid as error:
                refused.append(error.detail)
        return refused

    run = await job.submit()
    await bench.work()
    refused = await run.result()
    assert len(refused) == 5
    assert "of type int" in refused[0]
    assert all("one call of ctx" in refused[at] for at in (1, 2, 4))
    assert "callback cannot be a branch" in refused[3]
