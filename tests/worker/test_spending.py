"""Spending in a handler: counted once, however often it runs and wherever it crashes."""

import asyncio
from typing import Any

import pytest

from flowfabric import (
    BudgetExceeded,
    Context,
    Invalid,
    NotFound,
    Overrun,
    PublicState,
    Run,
    RunFailed,
    SoftBreach,
    Spent,
    SyncContext,
)
from flowfabric.core.base.errors import Unavailable
from flowfabric.core.base.text import MAX_NAME
from flowfabric.core.limit.budget import OnSoft
from tests.worker.bench import AGAIN, Bench, Log


async def used(bench: Bench, name: str = "team") -> tuple[int, int]:
    """Tokens that are spent, and that are set aside."""
    budget = await bench.fabric.budget_status(name)
    return budget.used.get("tokens", 0), budget.reserved.get("tokens", 0)


async def answer(bench: Bench, run: Run[Any], *, yes: bool) -> None:
    (asked,) = await bench.fabric.waitpoints(run)
    decide = bench.fabric.approve if yes else bench.fabric.reject
    await decide(f"{run.id}/{asked.id}", approver="ada")
    await bench.work()


# -- spend


async def test_spending_is_counted_once_whatever_happens_afterwards(bench: Bench) -> None:
    """C-T82, I-25: retries, a sleep and a replay of a failed run find it counted; a completed run
    that is replayed does its work anew, and spends anew."""
    await bench.fabric.budget("team", tokens=100)

    @bench.fabric.task(**AGAIN, budgets=["team"])
    async def job(ctx: Context) -> str:
        outcome = await ctx.spend(tokens=3)
        both = await ctx.gather(ctx.spend(tokens=1), ctx.spend({"tokens": 2}, calls=1))
        await ctx.sleep("1m")
        if ctx.info.attempt < 12:
            raise ValueError
        return repr([outcome, *both])

    run = await job.submit()
    await bench.work_through(run, step=60_000)
    assert await run.state() is PublicState.FAILED
    assert await used(bench) == (6, 0)
    await run.replay()
    await bench.work_through(run, step=60_000)
    assert await run.result() == "[Spent(), Spent(), Spent()]"
    assert await used(bench) == (6, 0)
    await run.replay()
    await bench.work_through(run, step=60_000)
    assert await used(bench) == (12, 0)
    assert (await bench.fabric.budget_status("team")).used["calls"] == 2


async def test_a_crash_between_the_charge_and_its_record_counts_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T82, I-25: charged, and then the worker is gone; and charged, and then nobody heard."""
    await bench.fabric.budget("team", tokens=100)
    charged, report = asyncio.Event(), bench.engine.budgets.report
    calls: list[int] = []

    async def cut_off(*args: Any, **kwargs: Any) -> Any:
        outcome = await report(*args, **kwargs)
        calls.append(1)
        if len(calls) == 1:
            charged.set()
            await asyncio.Event().wait()
        if len(calls) == 2:
            raise Unavailable("the answer is lost")
        return outcome

    monkeypatch.setattr(bench.engine.budgets, "report", cut_off)

    @bench.fabric.task(budgets=["team"])
    async def job(ctx: Context) -> None:
        await ctx.spend(tokens=3)

    run = await job.submit()
    stale = asyncio.create_task(bench.work())
    await charged.wait()
    await bench.lose()
    await bench.work()
    assert await run.state() is PublicState.COMPLETED
    assert (len(calls), await used(bench)) == (3, (3, 0))
    stale.cancel()
    await asyncio.wait([stale])


async def test_what_does_not_fit_is_an_error_that_says_so_and_counts_nothing(bench: Bench) -> None:
    """C-T80: the handler may go on without it."""
    await bench.fabric.budget("org", tokens=8)
    await bench.fabric.budget("team", tokens=100, parent="org")

    @bench.fabric.task(budgets=["team"])
    async def careful(ctx: Context) -> list[Any]:
        try:
            await ctx.spend(tokens=9)
        except BudgetExceeded as error:
            found = [error.budget, error.dimension, error.used, error.limit, error.wanted]
        await ctx.spend(tokens=8)
        return found

    @bench.fabric.task(budgets=["team"])
    async def careless(ctx: Context) -> None:
        await ctx.spend(tokens=9)

    failed = await careless.submit()
    run = await careful.submit()
    await bench.work()
    assert await run.result() == ["org", "tokens", 0, 8, 9]
    with pytest.raises(RunFailed) as caught:
        await failed.result()
    assert "budget org: " in caught.value.message
    assert caught.value.message.endswith("of 8 tokens are taken, 9 more do not fit")
    assert await used(bench) == (8, 0)


async def test_one_budget_can_be_named_and_none_is_needed(bench: Bench) -> None:
    for name in ("team", "extra"):
        await bench.fabric.budget(name, tokens=10)

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        found: list[Any] = [repr(await ctx.spend(tokens=10**9))]
        async with ctx.reserve(tokens=10**9) as reserved:
            reserved.settle(tokens=7)
        found.append(repr(reserved.outcome))
        await ctx.spend(tokens=2, budget="extra")
        async with ctx.reserve(tokens=5, budget="extra") as reserved:
            reserved.settle(tokens=1)
        return found

    @bench.fabric.task()
    async def unknown(ctx: Context) -> None:
        await ctx.spend(tokens=1, budget="nope")

    run, wrong = await job.submit(), await unknown.submit()
    await bench.work()
    assert await run.result() == ["Spent()", "Spent()"]
    assert (await used(bench), await used(bench, "extra")) == ((0, 0), (3, 0))
    with pytest.raises(RunFailed, match="budget nope"):
        await wrong.result()


async def test_amounts_that_make_no_sense_are_refused_at_once(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        told: list[str] = []
        odd: list[Any] = [{}, {"tokens": -1}, {"tokens": 1.5}, {"tokens": True}, {"a b": 1}]
        for amounts in odd:
            for ask in (ctx.spend, ctx.reserve):
                with pytest.raises(Invalid) as caught:
                    ask(amounts)
                told.append(caught.value.detail)
        await ctx.spend(tokens=1)
        return told

    run = await job.submit()
    await bench.work()
    told = await run.result()
    assert told[0] == "no amount is given"
    assert told[-1] == "a dimension must be a word such as tokens or cost_cents"
    with pytest.raises(NotFound):
        await bench.fabric.spend("nope", tokens=1)


# -- asking a human


async def test_a_soft_limit_asks_before_it_goes_on(bench: Bench, log: Log) -> None:
    """C-T80, C-T88: yes allows so much more until the reset, no ends it; asked once each."""
    await bench.fabric.budget("team", soft={"tokens": 5}, more={"tokens": 5}, on_soft="approve")

    @bench.fabric.task(**AGAIN, budgets=["team"])
    async def job(ctx: Context) -> str:
        for n in range(20):
            await ctx.spend(tokens=1)
            await ctx.step(log.later, n)
        return "all"

    run = await job.submit()
    await bench.work()
    assert (await run.state(), log[-1]) == (PublicState.SUSPENDED, 4)
    await answer(bench, run, yes=True)
    assert (await run.state(), log[-1]) == (PublicState.SUSPENDED, 9)
    assert (await bench.fabric.budget_status("team")).soft("tokens") == 10
    await answer(bench, run, yes=False)
    assert await run.state() is PublicState.FAILED
    with pytest.raises(RunFailed, match="budget team: 11 of 10 tokens are taken"):
        await run.result()
    assert log == list(range(10))
    assert await used(bench) == (11, 0)


async def test_a_soft_limit_that_only_warns_is_told(bench: Bench) -> None:
    """C-T80: the outcome says so, and is the same when the handler runs again."""
    await bench.fabric.budget("team", soft={"tokens": 5})
    seen: list[Any] = []

    @bench.fabric.task(**AGAIN, budgets=["team"])
    async def job(ctx: Context) -> None:
        seen.append([await ctx.spend(tokens=5), await ctx.spend(tokens=1)])
        if ctx.info.first:
            raise ValueError

    await job.submit()
    await bench.work()
    assert seen == [[Spent(), SoftBreach("team", "tokens", 6, 5)]] * 2
    assert isinstance(await bench.fabric.spend("team", tokens=1), SoftBreach)


async def test_a_warning_does_not_keep_a_person_from_being_asked(bench: Bench) -> None:
    """C-T80: the smaller budget only warns, the larger one asks."""
    await bench.fabric.budget("org", soft={"tokens": 5}, on_soft="approve")
    await bench.fabric.budget("team", soft={"tokens": 3}, parent="org")

    @bench.fabric.task(**AGAIN, budgets=["team"])
    async def job(ctx: Context) -> str:
        return repr([await ctx.spend(tokens=4), await ctx.spend(tokens=2)])

    run = await job.submit()
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    await answer(bench, run, yes=True)
    asked = SoftBreach("org", "tokens", 6, 5, OnSoft.APPROVE)
    assert await run.result() == repr([SoftBreach("team", "tokens", 4, 3), asked])


@pytest.mark.parametrize("letter", ["b", "ü"])
async def test_a_budget_with_the_longest_name_asks_too(bench: Bench, letter: str) -> None:
    """C-T80: the name of the approval, which has a limit of its own, is made from it."""
    name = letter * (MAX_NAME // len(letter.encode()))
    await bench.fabric.budget(name, soft={"tokens": 5}, on_soft="approve")

    @bench.fabric.task(**AGAIN, budgets=[name])
    async def job(ctx: Context) -> str:
        await ctx.spend(tokens=6)
        return "done"

    run = await job.submit()
    await bench.work()
    assert await run.state() is PublicState.SUSPENDED
    await answer(bench, run, yes=True)
    assert await run.result() == "done"


async def test_a_person_is_asked_for_each_limit_of_one_call(bench: Bench) -> None:
    """C-T80, C-T81: first whether it may go on at the hard limit, then above the soft one."""
    limits: Any = {"soft": {"tokens": 3}, "on_hard": "suspend", "on_soft": "approve"}
    await bench.fabric.budget("team", tokens=5, **limits)

    @bench.fabric.task(**AGAIN, budgets=["team"])
    async def job(ctx: Context) -> str:
        return repr(await ctx.spend(tokens=8))

    run = await job.submit()
    await bench.work()
    assert (await run.state(), await used(bench)) == (PublicState.SUSPENDED, (0, 0))
    await bench.fabric.budget("team", tokens=20, **limits)
    await answer(bench, run, yes=True)
    assert (await run.state(), await used(bench)) == (PublicState.SUSPENDED, (8, 0))
    await answer(bench, run, yes=True)
    assert await run.result() == repr(SoftBreach("team", "tokens", 8, 3, OnSoft.APPROVE))
    assert (await bench.fabric.budget_status("team")).soft("tokens") == 6


@pytest.mark.parametrize("raised", [True, False])
async def test_a_hard_limit_may_wait_for_a_human(bench: Bench, raised: bool) -> None:
    """C-T81: who says yes has raised the limit, or it is refused after all."""
    await bench.fabric.budget("team", tokens=5, on_hard="suspend")

    @bench.fabric.task(**AGAIN, budgets=["team"])
    async def job(ctx: Context) -> str:
        try:
            await ctx.spend(tokens=8)
        except BudgetExceeded as error:
            return error.detail
        return "spent"

    run = await job.submit()
    await bench.work()
    assert (await run.state(), await used(bench)) == (PublicState.SUSPENDED, (0, 0))
    if raised:
        await bench.fabric.budget("team", tokens=10, on_hard="suspend")
    await answer(bench, run, yes=True)
    refused = "budget team: 0 of 5 tokens are taken, 8 more do not fit"
    assert await run.result() == ("spent" if raised else refused)
    assert await used(bench) == ((8, 0) if raised else (0, 0))


# -- reserve


async def test_an_estimate_is_set_aside_and_the_real_amount_counted(bench: Bench) -> None:
    """I-26: nobody else spends it meanwhile; settled once, however often the handler runs."""
    await bench.fabric.budget("team", tokens=10)
    seen: list[Any] = []

    @bench.fabric.task(**AGAIN, budgets=["team"])
    async def job(ctx: Context) -> str:
        async with ctx.reserve(tokens=6) as reserved:
            seen.append(await used(bench))
            if ctx.info.first:
                with pytest.raises(BudgetExceeded, match="6 of 10 tokens are taken, 5 more"):
                    await bench.fabric.spend("team", tokens=5)
            reserved.settle(tokens=9)
            reserved.settle(tokens=4)  # the last word counts
        seen.append(await used(bench))
        if ctx.info.first:
            raise ValueError
        return repr(reserved.outcome)

    run = await job.submit()
    await bench.work()
    assert await run.result() == "Spent()"
    assert seen[:2] == [(0, 6), (4, 0)]
    assert await used(bench) == (4, 0)


async def test_what_is_not_settled_is_given_back(bench: Bench) -> None:
    """I-26: after an exception too, and although more than one was open."""
    await bench.fabric.budget("team", tokens=10)

    @bench.fabric.task(budgets=["team"])
    async def job(ctx: Context) -> list[Any]:
        seen: list[Any] = []
        async with ctx.reserve(tokens=6):
            try:
                async with ctx.reserve(tokens=4):
                    seen.append(await used(bench))
                    raise ValueError
            except ValueError:
                seen.append(await used(bench))
        seen.append(await used(bench))
        return seen

    run = await job.submit()
    await bench.work()
    assert await run.result() == [[0, 10], [0, 6], [0, 0]]


async def test_more_than_was_reserved_is_counted_up_to_the_limit(bench: Bench) -> None:
    """I-24: the hard limit is never passed; what was consumed beyond it is kept apart."""
    await bench.fabric.budget("team", tokens=10)
    outcomes: list[Any] = []

    @bench.fabric.task(budgets=["team"])
    async def job(ctx: Context) -> None:
        async with ctx.reserve(tokens=6) as reserved:
            reserved.settle(tokens=13)
        outcomes.append(reserved.outcome)

    await job.submit()
    await bench.work()
    assert outcomes == [Overrun("team", "tokens", 10, 10, 3)]
    assert (await bench.fabric.budget_status("team")).overrun == {"tokens": 3}


async def test_a_reservation_goes_with_its_lease(bench: Bench) -> None:
    """I-26: when the run sleeps inside the block, and when its worker dies."""
    await bench.fabric.budget("team", tokens=10)
    reached, died = asyncio.Event(), asyncio.Event()

    @bench.fabric.task(budgets=["team"])
    async def job(ctx: Context) -> str:
        async with ctx.reserve(tokens=6) as reserved:
            await ctx.sleep("1h")
            if not reached.is_set():
                reached.set()
                await died.wait()
            reserved.settle(tokens=5)
        return repr(reserved.outcome)

    run = await job.submit()
    await bench.work()
    await bench.engine._limits.drain()
    assert (await run.state(), await used(bench)) == (PublicState.DELAYED, (0, 0))
    await bench.pass_time(3_600_000)
    stale = asyncio.create_task(bench.work())
    await reached.wait()
    assert await used(bench) == (0, 6)
    await bench.lose()
    await bench.engine.sweep.once()
    assert await used(bench) == (0, 0)
    await bench.work()
    assert await run.result() == "Spent()"
    died.set()
    await stale
    assert await used(bench) == (5, 0), "both consumed it, and it is the same work"


async def test_a_plain_function_spends_the_same_way(bench: Bench) -> None:
    await bench.fabric.budget("team", tokens=10)

    @bench.fabric.task(**AGAIN, budgets=["team"])
    def job(ctx: SyncContext) -> list[str]:
        found = [repr(ctx.spend(tokens=2))]
        with ctx.reserve(tokens=6) as reserved:
            reserved.settle(tokens=3)
        found.append(repr(reserved.outcome))
        try:
            with ctx.reserve(tokens=6):
                raise AssertionError("never reached")
        except BudgetExceeded as error:
            found.append(error.detail)
        if ctx.info.first:
            raise ValueError
        return found

    run = await job.submit()
    await bench.work()
    refused = "budget team: 5 of 10 tokens are taken, 6 more do not fit"
    assert await run.result() == ["Spent()", "Spent()", refused]
    assert await used(bench) == (5, 0)


@pytest.mark.parametrize("raised", [True, False])
async def test_an_estimate_that_does_not_fit_may_wait_for_a_human(
    bench: Bench, raised: bool
) -> None:
    """C-T81: as a spend does; what comes after it finds its place when the handler runs again."""
    await bench.fabric.budget("team", tokens=5, on_hard="suspend")
    steps: list[str] = []

    @bench.fabric.task(**AGAIN, budgets=["team"])
    async def job(ctx: Context) -> str:
        try:
            async with ctx.reserve(tokens=8) as reserved:
                reserved.settle(tokens=7)
        except BudgetExceeded as error:
            return error.detail
        await ctx.step(steps.append, "after")
        if ctx.info.first:
            raise ValueError
        return repr(reserved.outcome)

    run = await job.submit()
    await bench.work()
    assert (await run.state(), await used(bench)) == (PublicState.SUSPENDED, (0, 0))
    if raised:
        await bench.fabric.budget("team", tokens=10, on_hard="suspend")
    await answer(bench, run, yes=True)
    refused = "budget team: 0 of 5 tokens are taken, 8 more do not fit"
    assert await run.result() == ("Spent()" if raised else refused)
    assert await used(bench) == ((7, 0) if raised else (0, 0))
    assert steps == (["after"] if raised else [])


async def test_a_human_may_refuse_an_estimate(bench: Bench) -> None:
    await bench.fabric.budget("team", tokens=5, on_hard="suspend")

    @bench.fabric.task(**AGAIN, budgets=["team"])
    async def job(ctx: Context) -> str:
        with pytest.raises(BudgetExceeded):
            async with ctx.reserve(tokens=8):
                raise AssertionError
        return "refused"

    run = await job.submit()
    await bench.work()
    await bench.fabric.budget("team", tokens=10, on_hard="suspend")
    await answer(bench, run, yes=False)
    assert await run.result() == "refused"
