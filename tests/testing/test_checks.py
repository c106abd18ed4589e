"""What a test says about a run, and what it is told when that is not so."""

from datetime import timedelta

import pytest

from flowfabric import Context, Fabric, Fail, NotFound, PublicState, RunId
from flowfabric.testing import Harness, Stuck
from flowfabric.worker.api.run import Run


@pytest.fixture
async def good(fabric: Fabric, harness: Harness) -> Run[str]:
    @fabric.task()
    async def good(ctx: Context) -> str:
        await ctx.step(str.upper, "a")
        await ctx.sleep("1h")
        first, second = await ctx.gather(ctx.step(str.lower, "B"), both(ctx))
        return f"{first}{second}{await ctx.random()}"

    async def both(ctx: Context) -> str:
        return await ctx.step(str.title, "c") + await ctx.step(str.strip, "d ")

    return await harness.run_until_done(await good.submit())


@pytest.fixture
async def bad(fabric: Fabric, harness: Harness) -> Run[None]:
    @fabric.task(retries=1)
    async def bad(ctx: Context) -> None:
        raise Fail("out of stock") if not ctx.info.first else ValueError("at first")

    return await harness.run_until_done(await bad.submit())


async def test_how_a_run_ended(harness: Harness, good: Run[str], bad: Run[None]) -> None:
    harness.assert_completed(good)
    harness.assert_failed(bad)
    harness.assert_failed(bad, match="out of .*ck")
    with pytest.raises(AssertionError, match=r"expected completed, but bad .* out of stock"):
        harness.assert_completed(bad)
    with pytest.raises(AssertionError, match=r"expected failed, but good .* is completed"):
        harness.assert_failed(good)
    with pytest.raises(AssertionError, match=r"(?s)out of stock.*does not match 'too late'"):
        harness.assert_failed(bad, match="too late")


async def test_what_a_run_recorded(harness: Harness, good: Run[str], bad: Run[None]) -> None:
    names = ["str.upper", "sleep", "str.lower", "random", "str.title", "str.strip"]
    assert harness.steps(good) == names
    harness.assert_steps(good, names)
    harness.assert_steps(good, ["upper", "sleep", "lower", "random", "title", "strip"])
    harness.assert_steps(bad, [])
    with pytest.raises(AssertionError, match=r"(?s)expected steps \['upper'\].*recorded steps \["):
        harness.assert_steps(good, ["upper"])
    with pytest.raises(AssertionError, match="recorded steps"):
        harness.assert_steps(good, list(reversed(names)))


async def test_a_part_of_a_word_is_no_name(harness: Harness, good: Run[str]) -> None:
    with pytest.raises(AssertionError, match="recorded steps"):
        harness.assert_steps(good, ["per", "sleep", "lower", "random", "title", "strip"])


async def test_steps_are_those_of_the_last_replay(harness: Harness, good: Run[str]) -> None:
    await good.replay()
    assert harness.steps(good) == []
    await harness.run_until_idle()
    assert harness.steps(good) == ["str.upper", "sleep"]


async def test_how_often_a_run_was_attempted(harness: Harness, bad: Run[None]) -> None:
    harness.assert_attempts(bad, 2)
    with pytest.raises(AssertionError, match=r"(?s)expected attempts 1.*made 2"):
        harness.assert_attempts(bad, 1)


async def test_moments_are_datetimes_and_attempts_count_from_one(
    fabric: Fabric, harness: Harness
) -> None:
    @fabric.task(retries=1)
    async def flaky(ctx: Context) -> None:
        if ctx.info.first:
            raise ValueError("at first")

    began = harness.now()
    run = await flaky.submit()
    await harness.run_until_idle()
    waiting = harness.describe(run)
    assert (waiting.created_at, waiting.started_at, waiting.attempt) == (began, began, None)
    assert (waiting.blocking_detail or "").startswith("attempt 1 failed, retry after 20")
    await harness.run_until_done(run)
    done = harness.describe(run)
    assert (done.ended_at, done.attempt) == (harness.now(), 2)
    assert type(done.id) is RunId
    assert done == await run.describe()
    assert isinstance(harness.now() - began, timedelta)


async def test_a_run_of_elsewhere_is_not_found(harness: Harness, good: Run[str]) -> None:
    with pytest.raises(NotFound):
        harness.describe(str(good.id).replace("0", "1"))


async def test_a_run_is_shown_while_its_budget_admits_it(fabric: Fabric, harness: Harness) -> None:
    """C-T93: a look of the harness cannot wait, as other reads do, for what follows the change"""
    await fabric.budget("team", tokens=5)
    await fabric.spend("team", tokens=5)

    @fabric.task(budgets=["team"])
    async def convert() -> None: ...

    run = await convert.submit()
    with pytest.raises(Stuck, match="budget team"):
        await harness.run_until_done(run)
    await fabric.budget("team", tokens=6)
    assert harness.state(run) in (PublicState.RATE_LIMITED, PublicState.WAITING)
    harness.assert_completed(await harness.run_until_done(run))
