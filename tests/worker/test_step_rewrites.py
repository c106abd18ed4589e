"""Operators rename recorded steps, and supply the results of steps that are not to run."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import Context, Fixed, Run, RunFailed
from flowfabric.core.base.errors import Invalid, NotEligible, NotFound
from flowfabric.core.execution.event import EventKind
from tests.worker.bench import Bench

ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


async def a() -> str:
    ran.append("a")
    return "a"


async def b() -> str:
    ran.append("b")
    return "b"


async def c() -> str:
    ran.append("c")
    return "c"


async def fails() -> str:
    ran.append("fails")
    raise ValueError("never")


Body = Callable[[Context], Awaitable[Any]]


class Deployed:
    """A task whose code can be exchanged while a run of it sleeps."""

    def __init__(self, bench: Bench, body: Body) -> None:
        self.body = body
        self.bench = bench

        @bench.fabric.task(name="job", retries=1, backoff=Fixed(delay=0))
        async def job(ctx: Context) -> Any:
            return await self.body(ctx)

        self.job = job

    async def asleep(self) -> Run[Any]:
        """A run that sleeps after what its code has recorded."""
        run = await self.job.submit()
        await self.bench.work()
        assert (await run.state()).value == "delayed"
        return run

    async def awake(self, run: Run[Any], body: Body) -> None:
        self.body = body
        ran.clear()
        await self.bench.pass_time(86_400_000)
        await self.bench.work()


async def old(ctx: Context) -> list[str]:
    found = [await ctx.step(a), await ctx.step(b)]
    await ctx.sleep("1d")
    return [*found, await ctx.step(a)]


async def with_b_renamed(ctx: Context) -> list[str]:
    found = [await ctx.step(a), await ctx.step(c)]
    await ctx.sleep("1d")
    return [*found, await ctx.step(a)]


async def test_a_renamed_step_fits_to_the_code_that_has_renamed_it(bench: Bench) -> None:
    deployed = Deployed(bench, old)
    run = await deployed.asleep()
    done = await bench.engine.steps.rename(run.id, "b", "c", by="ada", reason="renamed in May")
    assert (done.id, done.steps) == (run.id, ("c",))
    await deployed.awake(run, with_b_renamed)
    assert (await run.result(60), ran) == (["a", "b", "a"], ["a"])
    (event,) = [each for each in await run.events() if each.kind is EventKind.STEP_RENAMED]
    assert event.operator == "step_renamed"
    assert event.detail == {"step": "b", "name": "c", "by": "ada", "reason": "renamed in May"}


async def test_a_run_that_is_blocked_by_code_continues(bench: Bench) -> None:
    deployed = Deployed(bench, old)
    run = await deployed.asleep()
    await deployed.awake(run, with_b_renamed)
    assert (await bench.engine.explain(run.id)).main.code == "blocked_by_code"
    await bench.engine.steps.rename(run.id, "b", "c")
    await bench.work()
    assert (await run.result(60), ran) == (["a", "b", "a"], ["a"])


async def test_all_calls_of_a_name_are_renamed_or_one(bench: Bench) -> None:
    async def twice(ctx: Context) -> str:
        found = await ctx.step(a) + await ctx.step(b) + await ctx.step(a)
        await ctx.sleep("1d")
        return found

    async def all_b(ctx: Context) -> str:
        found = await ctx.step(b) + await ctx.step(b) + await ctx.step(b)
        await ctx.sleep("1d")
        return found

    async def last_b(ctx: Context) -> str:
        found = await ctx.step(a) + await ctx.step(b) + await ctx.step(b)
        await ctx.sleep("1d")
        return found

    deployed = Deployed(bench, twice)
    one, two = await deployed.asleep(), await deployed.asleep()
    await bench.engine.steps.rename(one.id, "a", "b")
    assert await bench.step_names(one) == ["b", "b", "b", "sleep"]
    await bench.engine.steps.rename(two.id, "a#2", "b")
    assert await bench.step_names(two) == ["a", "b", "b", "sleep"]
    await deployed.awake(one, last_b)
    assert (await two.result(60), ran) == ("aba", [])
    deployed.body = all_b
    await bench.engine.executions.unblock(one.id)
    await bench.work()
    assert (await one.result(60), ran) == ("aba", [])


async def test_steps_of_branches_are_renamed_with_the_others(bench: Bench) -> None:
    async def branch(ctx: Context, step: Callable[[], Awaitable[str]]) -> str:
        return await ctx.step(step)

    async def before(ctx: Context) -> list[str]:
        found = await ctx.gather(branch(ctx, a), branch(ctx, a))
        await ctx.sleep("1d")
        return list(found)

    async def after(ctx: Context) -> list[str]:
        found = await ctx.gather(branch(ctx, c), branch(ctx, c))
        await ctx.sleep("1d")
        return list(found)

    deployed = Deployed(bench, before)
    run = await deployed.asleep()
    done = await bench.engine.steps.rename(run.id, "a", "c")
    assert sorted(done.steps) == ["0/c", "1/c"]
    await deployed.awake(run, after)
    assert (await run.result(60), ran) == (["a", "a"], [])


async def test_failed_tries_of_a_step_are_renamed_with_it_and_those_of_an_earlier_one_are_not(
    bench: Bench,
) -> None:
    failing = ["pay", "charge"]

    async def act() -> str:
        if failing:
            raise ValueError(failing.pop(0))
        return "done"

    def named(name: str) -> Body:
        step = bench.fabric.step(name=name, retries=3, backoff=Fixed(delay="1h"))(act)
        return lambda ctx: ctx.step(step)

    deployed = Deployed(bench, named("pay"))
    run = await deployed.asleep()
    deployed.body = named("charge")
    await bench.work_through(run)
    await bench.engine.steps.rename(run.id, "charge", "collect")
    names = await bench.step_names(run)
    assert sorted(names) == ["collect", "~/try/0.0/1/collect", "~/try/0.0/1/pay"]


async def test_what_cannot_be_renamed(bench: Bench) -> None:
    run = await Deployed(bench, old).asleep()
    with pytest.raises(NotFound, match="a, b, sleep"):
        await bench.engine.steps.rename(run.id, "x", "y")
    with pytest.raises(Invalid, match="a wait or a sleep"):
        await bench.engine.steps.rename(run.id, "sleep", "y")
    for wrong in ("", "0/x", "x" * 201, 5):
        with pytest.raises(Invalid):
            await bench.engine.steps.rename(run.id, "a", wrong)  # type: ignore[arg-type]
    assert (await bench.engine.steps.rename(run.id, "a", "a")).steps == ()
    assert [each for each in await run.events() if each.kind is EventKind.STEP_RENAMED] == []


# -- skip


async def test_a_step_that_cannot_succeed_is_skipped(bench: Bench) -> None:
    async def body(ctx: Context) -> list[str]:
        return [await ctx.step(a), await ctx.step(fails), await ctx.step(b)]

    run = await Deployed(bench, body).job.submit()
    await bench.work_through(run)
    with pytest.raises(RunFailed):
        await run.result(60)
    done = await bench.engine.steps.skip(run.id, "fails", b'"by hand"', by="ada", reason="paid")
    assert (done.step, done.recorded) == ("fails", False)
    ran.clear()
    await run.replay()
    await bench.work()
    assert (await run.result(60), ran) == (["a", "by hand", "b"], ["b"])
    (event,) = [each for each in await run.events() if each.kind is EventKind.STEP_SKIPPED]
    assert event.operator == "step_skipped"
    expected = {"step": "fails", "recorded": False, "by": "ada", "reason": "paid"}
    assert event.detail == expected
    (view,) = [view for view in await bench.engine.views.steps(run.id) if view.skipped]
    assert (view.name, view.result) == ("fails", b'"by hand"')


async def test_a_new_step_is_skipped_in_an_old_run(bench: Bench) -> None:
    async def with_one_more(ctx: Context) -> list[str]:
        found = [await ctx.step(a), await ctx.step(c), await ctx.step(b)]
        await ctx.sleep("1d")
        return [*found, await ctx.step(a)]

    deployed = Deployed(bench, old)
    run = await deployed.asleep()
    await bench.engine.steps.skip(run.id, "c", b'"none"')
    await deployed.awake(run, with_one_more)
    assert (await run.result(60), ran) == (["a", "none", "b", "a"], ["a"])


async def test_a_recorded_step_that_the_code_no_longer_has_is_skipped(bench: Bench) -> None:
    async def without_a(ctx: Context) -> list[str]:
        found = [await ctx.step(b)]
        await ctx.sleep("1d")
        return [*found, await ctx.step(c)]

    deployed = Deployed(bench, old)
    run = await deployed.asleep()
    assert (await bench.engine.steps.skip(run.id, "a")).recorded
    await deployed.awake(run, without_a)
    assert (await run.result(60), ran) == (["b", "c"], ["c"])


async def test_the_result_of_a_recorded_step_is_replaced(bench: Bench) -> None:
    deployed = Deployed(bench, old)
    run = await deployed.asleep()
    await bench.engine.steps.skip(run.id, "b", b'"wrong"')
    await bench.engine.steps.skip(run.id, "b", b'"right"')
    await deployed.awake(run, old)
    assert (await run.result(60), ran) == (["a", "right", "a"], ["a"])


async def test_a_run_that_has_not_begun_skips_a_step(bench: Bench) -> None:
    deployed = Deployed(bench, old)
    run = await deployed.job.submit()
    await bench.engine.steps.skip(run.id, "a", b'"x"')
    await bench.work()
    await deployed.awake(run, old)
    assert (await run.result(60), ran) == (["x", "b", "a"], ["a"])


async def test_forks_and_replays_skip_it_too(bench: Bench) -> None:
    async def body(ctx: Context) -> list[str]:
        return [await ctx.step(a), await ctx.step(b), await ctx.step(c)]

    run = await Deployed(bench, body).job.submit()
    await bench.work()
    await bench.engine.steps.skip(run.id, "b", b'"x"')
    fork = await run.fork("c")
    await run.replay("a")
    ran.clear()
    await bench.work()
    assert (await fork.result(60), await run.result(60)) == (["a", "x", "c"], ["a", "x", "c"])
    assert sorted(ran) == ["a", "c", "c"]
    await run.replay("b")
    await bench.work()
    assert await run.result(60) == ["a", "b", "c"]


async def test_a_wait_is_skipped_with_what_it_would_have_received(bench: Bench) -> None:
    async def body(ctx: Context) -> list[Any]:
        await ctx.sleep("1d")
        verdict = await ctx.approval("ok")
        return [await ctx.wait_for_signal("go"), verdict.approved]

    deployed = Deployed(bench, body)
    run = await deployed.asleep()
    await bench.engine.steps.skip(run.id, "signal:go", b"7")
    await bench.engine.steps.skip(run.id, "approval:ok", b"null")
    await deployed.awake(run, body)
    assert await run.result(60) == [7, False]


async def test_what_a_run_waits_for_now_is_not_skipped(bench: Bench) -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    run = await Deployed(bench, body).job.submit()
    await bench.work()
    with pytest.raises(NotEligible, match="waits at 'signal:go' now"):
        await bench.engine.steps.skip(run.id, "signal:go", b"7")
    await bench.engine.steps.skip(run.id, "later", b"7")
    await bench.fabric.signal(run.id, "go", 1)
    await bench.work()
    assert await run.result(60) == 1


async def test_what_is_no_result(bench: Bench) -> None:
    run = await Deployed(bench, old).asleep()
    for wrong in (b"", b"{", "1", 5, b'"\xff"', b"1" * (1 << 21)):
        with pytest.raises(Invalid):
            await bench.engine.steps.skip(run.id, "b", wrong)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="give its result"):
        await bench.engine.steps.skip(run.id, "c")
    assert await bench.step_names(run) == ["a", "b", "sleep"]
