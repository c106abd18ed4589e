"""`ctx.race` together with what else a handler does: tries of steps, gathers, clean-ups, signals
that are there already, replays and forks."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from flowfabric import (
    Cancelled,
    Context,
    Fixed,
    PublicState,
    SyncContext,
    WaitTimeout,
)
from flowfabric.core.base.errors import WaitpointClosed
from tests.worker.bench import Bench, Log

MINUTE = 60_000
HOUR = 3_600_000


class Flaky:
    """A step that fails some times, with a pause that gives the slot back."""

    def __init__(self, bench: Bench, failures: int) -> None:
        self.calls = 0
        self.step = bench.fabric.step(retries=5, backoff=Fixed(delay="1m"))(self.charge)
        self._failures = failures

    async def charge(self) -> str:
        self.calls += 1
        if self.calls <= self._failures:
            raise ValueError("not yet")
        return "charged"


# -- tries of a step


async def test_a_signal_wins_while_a_step_waits_for_its_next_try(bench: Bench) -> None:
    flaky = Flaky(bench, 99)

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return list(await ctx.race(step=ctx.step(flaky.step), go=ctx.wait_for_signal("go", int)))

    run = await job.submit()
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    await bench.fabric.signal(run, "go", 5)
    await bench.work()
    assert await run.result() == ["go", 5]
    assert flaky.calls == 1


async def test_a_timer_wins_while_a_step_waits_for_its_next_try(bench: Bench) -> None:
    flaky = Flaky(bench, 99)

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        return (await ctx.race(step=ctx.step(flaky.step), late=ctx.sleep("90s"))).name

    run = await job.submit()
    await bench.work()
    await bench.pass_time(MINUTE)
    await bench.work()
    await bench.pass_time(MINUTE // 2)
    await bench.work()
    assert await run.result() == "late"
    assert flaky.calls == 2


async def test_a_step_wins_at_a_later_try_and_what_it_raced_is_closed(bench: Bench) -> None:
    flaky = Flaky(bench, 2)

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        callback = await ctx.callback("paid")
        won = await ctx.race(
            step=ctx.step(flaky.step), paid=callback.result(), late=ctx.sleep("1h")
        )
        await ctx.sleep("1h")
        return list(won)

    run = await job.submit()
    for _ in range(3):
        await bench.work()
        await bench.pass_time(MINUTE)
    assert await bench.fabric.waitpoints(run.id) == []
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == ["step", "charged"]
    assert flaky.calls == 3


async def test_a_race_follows_one_whose_step_has_failed_for_good(bench: Bench) -> None:
    flaky = Flaky(bench, 99)

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        try:
            await ctx.race(step=ctx.step(flaky.step), late=ctx.sleep("9h"))
        except ValueError:
            return list(await ctx.race(go=ctx.wait_for_signal("go"), late=ctx.sleep("1h")))
        return []

    run = await job.submit()
    for _ in range(7):
        await bench.work()
        await bench.pass_time(MINUTE)
    assert flaky.calls == 6
    await bench.fabric.signal(run, "go", 1)
    await bench.work()
    assert await run.result() == ["go", 1]


# -- gathers


async def test_races_in_a_gather(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        first, second, third = await ctx.gather(
            ctx.race(x=ctx.wait_for_signal("x"), late=ctx.sleep("1h")),
            ctx.race(y=ctx.wait_for_signal("y"), late=ctx.sleep("2h")),
            ctx.step(str, 5),
        )
        await ctx.sleep("1h")
        return [*first, *second, third]

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "y", 1)
    for _ in range(3):
        await bench.work()
        await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == ["late", None, "y", 1, "5"]


async def test_a_gather_wins_as_soon_as_all_of_it_is_there(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def nested() -> list[Any]:
            return list(await ctx.gather(ctx.wait_for_signal("z"), ctx.step(str, 4)))

        return list(
            await ctx.race(
                all=ctx.gather(ctx.wait_for_signal("x"), ctx.wait_for_signal("y"), nested()),
                late=ctx.sleep("1h"),
            )
        )

    run = await job.submit()
    for value, name in enumerate("yzx"):
        await bench.work()
        await bench.fabric.signal(run, name, value)
    await bench.work()
    assert await run.result(timeout=60) == ["all", [2, 0, [1, "4"]]]


async def test_what_follows_a_gather_does_not_wait_for_a_sleep_beside_it(bench: Bench) -> None:
    """All of the inner gather is there: the sleep does not take the handler off its slot before the
    step after it."""
    calls: list[str] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        async def inner() -> None:
            await ctx.gather(ctx.wait_for_signal("x"), ctx.wait_for_signal("y"))
            await ctx.step(calls.append, "both are there")

        await ctx.gather(inner(), ctx.sleep("1h"))

    run = await job.submit()
    for name in "yx":
        await bench.work()
        await bench.fabric.signal(run, name)
    await bench.work()
    assert calls == ["both are there"]


async def test_a_gather_that_loses_is_over(bench: Bench) -> None:
    """Also in a later call of the handler, which never begins it."""

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        callback = await ctx.callback("paid")
        won = await ctx.race(
            both=ctx.gather(ctx.wait_for_signal("x"), callback.result()),
            other=ctx.race(ctx.wait_for_signal("y"), ctx.sleep("2h")),
            late=ctx.sleep("1h"),
        )
        await ctx.sleep("1h")
        return list(won)

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "x", 1)
    await bench.work()
    await bench.pass_time(HOUR)
    await bench.work()
    assert "paid" not in {item.key for item in await bench.fabric.waitpoints(run.id)}
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == ["late", None]


# -- signals that are there already


async def test_the_first_signal_wins_and_the_others_are_kept(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        won = await ctx.race(b=ctx.wait_for_signal("b"), a=ctx.wait_for_signal("a"))
        return [*won, await ctx.wait_for_signal("b", timeout="1h")]

    early, late = await job.submit(), await job.submit()
    await bench.fabric.signal(early, "a", 1)
    await bench.fabric.signal(early, "b", 2)
    await bench.work()
    await bench.fabric.signal(late, "a", 1)
    await bench.fabric.signal(late, "b", 2)
    await bench.work()
    assert await early.result(timeout=60) == ["a", 1, 2]
    assert await late.result(timeout=60) == ["a", 1, 2]


async def test_beside_a_step_the_signals_of_losers_are_kept_as_well(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def endless() -> None:
            await ctx.sleep("9h")

        won = await ctx.race(
            step=endless(),
            again=ctx.wait_for_signal("a"),
            b=ctx.wait_for_signal("b"),
            a=ctx.wait_for_signal("a"),
        )
        rest = [await ctx.wait_for_signal(name, timeout="1h") for name in ("a", "b")]
        return [*won, *rest]

    run = await job.submit()
    for name, value in (("a", 1), ("a", 2), ("b", 3)):
        await bench.fabric.signal(run, name, value)
    await bench.work()
    assert await run.result(timeout=60) == ["again", 1, 2, 3]


async def test_a_signal_that_resumed_the_run_wins_over_a_timer_that_was_over(bench: Bench) -> None:
    """The timer was over, but no sweep had seen it: the suspension took the signal. If the timer
    won, the signal would be lost."""

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return [*await ctx.race(late=ctx.sleep("1h"), go=ctx.wait_for_signal("go", int))]

    run = await job.submit()
    await bench.work()
    bench.clock.advance(HOUR + 1)
    assert (await bench.fabric.signal(run, "go", 5)).resumed
    await bench.work()
    assert await run.result() == ["go", 5]


@pytest.mark.inside
@pytest.mark.parametrize("names", [("a",), ("a", "b")])
async def test_what_a_look_has_found_wins_over_a_step_that_ends_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """The look was committed and not answered when the step ended. Several signals are read from
    the store after that."""
    suspensions, looked = bench.engine.suspensions, asyncio.Event()
    go_on = suspensions.go_on

    async def slowly(*args: Any) -> Any:
        met = await go_on(*args)
        looked.set()
        await asyncio.sleep(0.05)
        return met

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return [*await ctx.race(step=ctx.step(looked.wait), all=ctx.wait_for_all(*names))]

    monkeypatch.setattr(suspensions, "go_on", slowly)
    run = await job.submit()
    for name in names:
        await bench.fabric.signal(run, name, 1)
    await bench.work()
    assert await run.result() == ["all", dict.fromkeys(names, 1)]


@pytest.mark.inside
async def test_a_race_that_ends_during_a_look_takes_no_signal_from_others(
    bench: Bench, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loser looks for all waits of the run, and is cancelled when the look has been committed
    and not been answered"""
    suspensions, looked = bench.engine.suspensions, asyncio.Event()
    go_on = suspensions.go_on

    async def slowly(*args: Any) -> Any:
        met = await go_on(*args)
        looked.set()
        await asyncio.sleep(0.05)
        return met

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def other() -> int:
            value = await ctx.wait_for_signal("b", int)
            log.note(value)
            return value

        race = ctx.race(step=ctx.step(looked.wait), a=ctx.wait_for_signal("a"))
        (winner, _), first = await ctx.gather(race, other())
        return [winner, first, await ctx.wait_for_signal("b", int)]

    monkeypatch.setattr(suspensions, "go_on", slowly)
    run = await job.submit()
    for value in (1, 2):
        await bench.fabric.signal(run, "b", value)
    await bench.work()
    assert set(log) == {1}
    assert await run.state() is PublicState.COMPLETED
    assert await run.result() == ["step", 1, 2]


async def test_a_race_that_is_cancelled_while_its_loser_ends_waits_for_it(
    bench: Bench, log: Log
) -> None:
    """Otherwise the loser counts as under way for ever, and the run never gives its slot back"""

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        ending = asyncio.Event()

        async def loses() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ending.set()
                await asyncio.sleep(0.05)
                log.note("ended")

        async def fails() -> None:
            await ending.wait()
            raise ValueError

        race = ctx.race(wins=ctx.step(asyncio.sleep, 0.01), loses=ctx.step(loses))
        with suppress(ValueError):
            await ctx.gather(race, ctx.step(fails))
        log.note("goes on")
        await ctx.sleep("1h")

    run = await job.submit()
    async with asyncio.timeout(30):
        await bench.work()
    assert log == ["ended", "goes on"]
    assert await run.state() is PublicState.DELAYED


@pytest.mark.inside
async def test_a_race_that_is_cancelled_while_its_loser_looks_lets_it_look(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the look took for a wait that was given up is not given to another"""
    suspensions, looked = bench.engine.suspensions, asyncio.Event()
    go_on = suspensions.go_on

    async def slowly(*args: Any) -> Any:
        looked.set()
        await asyncio.sleep(0.1)
        return await go_on(*args)

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def fails() -> None:
            await looked.wait()
            await asyncio.sleep(0.05)
            raise ValueError

        race = ctx.race(step=ctx.step(looked.wait), a=ctx.wait_for_signal("a"))
        with suppress(ValueError):
            await ctx.gather(race, ctx.wait_for_signal("b"), ctx.step(fails))
        return [await ctx.wait_for_signal("b", int), await ctx.wait_for_signal("b", int)]

    monkeypatch.setattr(suspensions, "go_on", slowly)
    run = await job.submit()
    for value in (1, 2, 3):
        await bench.fabric.signal(run, "b", value)
    async with asyncio.timeout(30):
        await bench.work()
    assert await run.result() == [2, 3]


async def test_an_approval_that_came_before_the_timer_wins(bench: Bench) -> None:
    """Its decisions are read from the store, while the end of the timer is known at once."""

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        return (await ctx.race(late=ctx.sleep("1h"), allowed=ctx.approval("refund", of=2))).name

    run = await job.submit()
    await bench.work()
    await bench.pass_time(HOUR // 2)
    for person in ("ann", "bob"):
        await bench.fabric.approve(run, "refund", approver=person)
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == "allowed"


async def test_a_timer_and_a_timeout_of_the_same_length_end_the_same_way_always(
    bench: Bench,
) -> None:
    seen: list[str] = []

    @bench.fabric.task(retries=2, backoff=Fixed(delay=0))
    async def job(ctx: Context) -> None:
        try:
            wait = ctx.wait_for_signal("go", timeout="1h")
            seen.append((await ctx.race(go=wait, late=ctx.sleep("1h"))).name)
        except WaitTimeout:
            seen.append("timeout")
        if len(seen) < 3:
            raise ValueError

    run = await job.submit()
    await bench.work()
    await bench.pass_time(HOUR)
    await bench.work()
    await run.result()
    assert len(seen) == 3
    assert len(set(seen)) == 1


# -- what loses


async def test_the_token_of_an_approval_that_lost_is_refused(bench: Bench) -> None:
    handed_out: list[str] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        approval = await ctx.request_approval("refund", approvers=["ann"])
        handed_out[:] = [approval.id, (await approval.token("ann")).reveal()]
        won = await ctx.race(allowed=approval.verdict(), late=ctx.sleep("1h"))
        await ctx.sleep("1h")
        return won.name

    run = await job.submit()
    await bench.work()
    await bench.pass_time(HOUR)
    await bench.work()
    id, token = handed_out
    with pytest.raises(WaitpointClosed, match="accepts no signals any more"):
        await bench.fabric.approve(id, token=token)
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == "late"


async def test_a_child_is_cancelled_once_although_the_worker_died_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    executions = bench.engine.executions
    cancel, failures, cancelled = executions.cancel, [RuntimeError("killed")], list[str]()

    async def dying(id: str, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        cancelled.append(id)
        return await cancel(id, **kwargs)

    monkeypatch.setattr(executions, "cancel", dying)

    @bench.fabric.task()
    async def child(ctx: Context) -> None:
        await ctx.wait_for_signal("never")

    @bench.fabric.task(retries=2, backoff=Fixed(delay=0))
    async def job(ctx: Context) -> str:
        run = await ctx.submit(child)
        won = await ctx.race(child=run, go=ctx.wait_for_signal("go"))
        await ctx.sleep("1h")
        return f"{won.name} {await run.state()}"

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "go")
    await bench.work()
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == "go cancelled"
    assert len(cancelled) == 1


# -- clean-ups


async def test_what_a_branch_has_done_is_compensated(bench: Bench) -> None:
    """The cancel comes while the race is undecided, and the handler is called again: its branches
    go as far as they had come."""
    calls: list[str] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        async def paying() -> None:
            await ctx.step(calls.append, "charge")
            await ctx.compensate(calls.append, "refund")
            await ctx.wait_for_signal("go")

        await ctx.race(paid=paying(), late=ctx.sleep("1h"))

    run = await job.submit()
    await bench.work()
    await run.cancel(reason="enough")
    await bench.work()
    assert await run.state() is PublicState.CANCELLED
    assert calls == ["charge", "refund"]


async def test_a_run_that_is_being_cancelled_decides_no_race(bench: Bench) -> None:
    """The signal had ended the wait when the cancel came."""
    seen: list[str] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        async def waiting() -> None:
            await ctx.wait_for_signal("go")

        try:
            seen.append((await ctx.race(go=waiting(), late=ctx.sleep("1h"))).name)
        except Cancelled:
            await ctx.step(seen.append, "undone")
            raise

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "go")
    await run.cancel(reason="enough")
    await bench.work()
    assert await run.state() is PublicState.CANCELLED
    assert seen == ["undone"]
    assert not [name for name in await bench.step_names(run) if name.startswith("race:")]


async def test_a_cancel_after_a_race_is_raised_where_the_record_ends(bench: Bench) -> None:
    """What the losers had recorded is not waited for."""
    seen: list[str] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        async def losing() -> None:
            await ctx.step(seen.append, "losing")
            await ctx.wait_for_signal("never")

        try:
            await ctx.race(losing=losing(), late=ctx.sleep("1h"))
            await ctx.wait_for_signal("go")
        except Cancelled:
            won = await ctx.race(undo=ctx.step(seen.append, "undone"), late=ctx.sleep("10s"))
            seen.append(won.name)
            raise

    run = await job.submit()
    await bench.work()
    await bench.pass_time(HOUR)
    await bench.work()
    await run.cancel(reason="enough")
    await bench.work()
    assert await run.state() is PublicState.CANCELLED
    assert seen == ["losing", "undone", "undo"]


async def test_a_plain_function_cleans_up_after_a_race(bench: Bench) -> None:
    calls: list[str] = []

    @bench.fabric.task()
    def job(ctx: SyncContext) -> str:
        ctx.compensate(calls.append, "undone")
        try:
            told, late = lambda: ctx.wait_for_signal("go"), lambda: ctx.sleep("1h")
            return ctx.race(told=told, late=late).name
        except Cancelled:
            ctx.step(calls.append, "cleaned up")
            raise

    run = await job.submit()
    await bench.work()
    await run.cancel(reason="enough")
    await bench.work()
    assert await run.state() is PublicState.CANCELLED
    assert calls == ["cleaned up", "undone"]


# -- replays and forks


@pytest.mark.parametrize(("cut", "runs"), [(None, 2), ("quick", 2), ("second", 1)])
async def test_a_replay_decides_again_what_it_does_not_keep(
    bench: Bench, cut: str | None, runs: int
) -> None:
    calls: list[str] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def quick() -> int:
            calls.append("quick")
            return len(calls)

        async def second() -> None: ...

        callback = await ctx.callback("paid")
        won = await ctx.race(quick=ctx.step(quick), paid=callback.result(), late=ctx.sleep("1h"))
        await ctx.step(second)
        return list(won)

    run = await job.submit()
    await bench.work()
    assert await run.result() == ["quick", 1]
    if cut is None:
        await run.replay()
    else:
        await run.replay(from_step=cut)
    await bench.work()
    assert await run.result() == ["quick", runs]


async def test_a_fork_keeps_the_winner(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def second() -> None: ...

        won = await ctx.race(go=ctx.wait_for_signal("go"), allowed=ctx.approval("refund"))
        await ctx.step(second)
        return list(won)

    run = await job.submit()
    await bench.fabric.signal(run, "go", 3)
    await bench.work()
    fork = await run.fork(from_step="second")
    await bench.work()
    assert await fork.result(timeout=60) == await run.result() == ["go", 3]
