"""Retries of a step: counted in the journal, and without a slot while the next try is far away."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import (
    Context,
    Exponential,
    Fabric,
    Fail,
    Fixed,
    Invocation,
    PublicState,
    Retry,
    Run,
    RunFailed,
    SyncContext,
)
from flowfabric.core.execution.history import StepView
from flowfabric.worker.run.tries import SLOT_KEPT_BELOW
from tests.worker.bench import Bench, Log, Wire, until, working

pytestmark = pytest.mark.rules

MINUTE = 60_000
KINDS = pytest.mark.parametrize("kind", ["coroutine", "thread"])
FUNCTIONS = pytest.mark.parametrize("function", ["async", "plain"])


def ms(span: int) -> timedelta:
    return timedelta(milliseconds=span)


class Flaky:
    """A function that fails a number of times, and remembers its calls."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    def plain(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError(f"try {self.calls}")
        return f"answer {self.calls}"

    async def coroutine(self) -> str:
        return self.plain()

    def step(self, fabric: Fabric, function: str = "async", **options: Any) -> Any:
        chosen: Any = self.coroutine if function == "async" else self.plain
        given = {"name": "charge", "retries": 4, "backoff": Fixed(delay=ms(MINUTE)), **options}
        return fabric.step(**given)(chosen)


def task_of(fabric: Fabric, kind: str, step: Any, **options: Any) -> Any:
    """A task that makes one call of the step, in a coroutine or in a thread."""

    async def coroutine(ctx: Context) -> str:
        return str(await ctx.step(step))

    def plain(ctx: SyncContext) -> str:
        return str(ctx.step(step))

    return fabric.task(name="job", **options)(coroutine if kind == "coroutine" else plain)


async def shown(bench: Bench, run: Run[Any]) -> list[StepView]:
    return await bench.engine.views.steps(run.id)


# -- without a slot


@FUNCTIONS
@KINDS
async def test_a_long_pause_gives_the_slot_back(bench: Bench, kind: str, function: str) -> None:
    flaky = Flaky(2)
    job = task_of(bench.fabric, kind, flaky.step(bench.fabric, function))
    run = await job.submit()
    assert await bench.work() == 1
    assert await run.state() is PublicState.DELAYED
    assert (await run.describe()).lease is None
    await bench.pass_time(MINUTE - 1)
    assert (await bench.work(), flaky.calls) == (0, 1)
    await bench.pass_time(1)
    assert (await bench.work(), flaky.calls) == (1, 2)
    await bench.pass_time(MINUTE)
    await bench.work()
    assert (await run.result(), flaky.calls) == ("answer 3", 3)
    described = await run.describe()
    assert (described.attempts_made, described.retries) == (1, 0), "no attempt and no retry is used"


@pytest.mark.parametrize(("pause", "kept"), [(SLOT_KEPT_BELOW - 1, True), (SLOT_KEPT_BELOW, False)])
async def test_five_seconds_are_a_long_pause(
    bench: Bench, pause: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(seconds: float, result: Any = None) -> Any:
        bench.clock.advance(round(seconds * 1000))

    flaky = Flaky(1)
    job = task_of(
        bench.fabric, "coroutine", flaky.step(bench.fabric, backoff=Fixed(delay=ms(pause)))
    )
    run = await job.submit()
    monkeypatch.setattr("flowfabric.worker.run.tries.asyncio", Sleeps(at_once))
    await bench.work()
    assert SLOT_KEPT_BELOW == 5_000
    assert (flaky.calls, await run.state() is PublicState.COMPLETED) == (
        (2, True) if kept else (1, False)
    )


class Sleeps:
    """Stands for asyncio where only its sleep is used."""

    def __init__(self, sleep: Callable[..., Any]) -> None:
        self.sleep = sleep


async def test_each_pause_decides_for_itself(bench: Bench) -> None:
    flaky = Flaky(4)
    backoff = Exponential(initial="1ms", multiplier=1000, maximum="100s")
    job = task_of(bench.fabric, "coroutine", flaky.step(bench.fabric, backoff=backoff))
    run = await job.submit()
    await bench.work()
    assert flaky.calls == 3, "pauses of 1 ms and 1 s are short, the third one is 100 s"
    await bench.pass_time(100_000)
    await bench.work()
    await bench.pass_time(100_000)
    await bench.work()
    assert (await run.result(), flaky.calls) == ("answer 5", 5)


async def test_the_slot_serves_others_meanwhile(bench: Bench, log: Log) -> None:
    flaky = Flaky(1)
    job = task_of(bench.fabric, "coroutine", flaky.step(bench.fabric))
    other = bench.fabric.task(name="other")(log.later)
    run = await job.submit()
    await other.submit("other")
    await bench.work(concurrency=1)
    assert log == ["other"]
    await bench.work_through(run, step=MINUTE)
    assert await run.result() == "answer 2"


# -- what is counted


@KINDS
async def test_the_last_failure_is_what_the_handler_sees(bench: Bench, kind: str) -> None:
    flaky = Flaky(99)
    job = task_of(bench.fabric, kind, flaky.step(bench.fabric, retries=2))
    run = await job.submit()
    await bench.work_through(run, step=MINUTE)
    with pytest.raises(RunFailed, match="ConnectionError: try 3"):
        await run.result()
    assert flaky.calls == 3
    (view,) = await shown(bench, run)
    assert (view.name, view.tries, view.attempt) == ("charge", 3, 1)


async def test_a_handler_can_catch_the_last_failure(bench: Bench, log: Log) -> None:
    flaky = Flaky(99)
    step = flaky.step(bench.fabric, retries=1)

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        try:
            return str(await ctx.step(step))
        except ConnectionError as error:
            return str(await ctx.step(log.later, f"instead of {error}"))

    run = await job.submit()
    await bench.work_through(run, step=MINUTE)
    assert await run.result() == "instead of try 2"
    fallback, given_up = await shown(bench, run)
    assert fallback.name == "Log.later"
    assert (given_up.tries, given_up.of, given_up.next_try_at) == (2, 2, None)


@KINDS
@pytest.mark.parametrize("error", [Fail("enough"), Retry("later", after="1h")])
async def test_an_error_that_ends_the_step_ends_it_at_any_try(
    bench: Bench, kind: str, error: Exception
) -> None:
    calls: list[int] = []

    @bench.fabric.step(retries=5, backoff=Fixed(delay=ms(MINUTE)))
    def hopeless() -> None:
        calls.append(1)
        raise ConnectionError if len(calls) == 1 else error

    job = task_of(bench.fabric, kind, hopeless, retries=1)
    run = await job.submit()
    await bench.work()
    await bench.pass_time(MINUTE)
    await bench.work()
    assert len(calls) == 2
    expected = PublicState.FAILED if isinstance(error, Fail) else PublicState.DELAYED
    assert await run.state() is expected
    assert (await run.describe()).retries == (0 if isinstance(error, Fail) else 1)


@pytest.mark.parametrize("delay", [0, MINUTE])
async def test_a_retry_of_the_run_starts_counting_from_zero(bench: Bench, delay: int) -> None:
    flaky = Flaky(5)
    step = flaky.step(bench.fabric, retries=2, backoff=Fixed(delay=ms(delay)))
    job = task_of(bench.fabric, "coroutine", step, retries=1, backoff=Fixed(delay=0))
    run = await job.submit()
    await bench.work_through(run, step=MINUTE)
    assert (await run.result(), flaky.calls) == ("answer 6", 6)
    described = await run.describe()
    assert (described.attempts_made, described.retries) == (2, 1)
    recorded, raised = await shown(bench, run)
    assert (recorded.tries, raised.tries, raised.attempt) == (3, 3, 1)


async def test_a_replay_starts_counting_from_zero(bench: Bench) -> None:
    flaky = Flaky(5)
    job = task_of(bench.fabric, "coroutine", flaky.step(bench.fabric, retries=2))
    run = await job.submit()
    await bench.work_through(run, step=MINUTE)
    assert await run.state() is PublicState.FAILED
    await run.replay()
    await bench.work_through(run, step=MINUTE)
    assert (await run.result(), flaky.calls) == ("answer 6", 6)

    flaky.calls, flaky.failures = 0, 2
    await run.replay()  # of a completed run: nothing recorded is kept
    await bench.work_through(run, step=MINUTE)
    assert (await run.result(), flaky.calls) == ("answer 3", 3)


async def test_every_call_of_a_step_has_its_own_tries(bench: Bench) -> None:
    calls: list[str] = []

    @bench.fabric.step(retries=1, backoff=Fixed(delay=ms(MINUTE)))
    async def ask(word: str) -> str:
        calls.append(word)
        if calls.count(word) == 1:
            raise ConnectionError
        return word

    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        return [await ctx.step(ask, "a"), await ask("b")]

    run = await job.submit()
    await bench.work_through(run, step=MINUTE)
    assert (await run.result(), calls) == (["a", "b"], ["a", "a", "b", "b"])
    assert [view.tries for view in await shown(bench, run)] == [2, 2]


async def test_jitter_spreads_the_tries(bench: Bench) -> None:
    flaky = Flaky(99)
    step = flaky.step(bench.fabric, backoff=Fixed(delay=ms(1_000_000), jitter=True))
    job = task_of(bench.fabric, "coroutine", step)
    runs = [await job.submit() for _ in range(4)]
    await bench.work()
    due = {(await shown(bench, run))[0].next_try_at for run in runs}
    assert len(due) > 1
    for moment in due:
        assert moment is not None
        assert 500_000 <= moment - bench.clock.now() <= 1_000_000


# -- crashes


@KINDS
@pytest.mark.parametrize("delay", [0, MINUTE])
async def test_a_crash_forgets_no_try(bench: Bench, kind: str, delay: int) -> None:
    """The worker is lost in the third of four tries: the next one makes the third again."""
    flaky, reached, go_on = Flaky(99), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def ask() -> str:
        if flaky.calls == 2 and not reached.is_set():
            reached.set()
            await go_on.wait()
        return flaky.plain()

    step = bench.fabric.step(retries=3, backoff=Fixed(delay=ms(delay)))(ask)
    job = task_of(bench.fabric, kind, step)
    run = await job.submit()
    for _ in range(0 if delay == 0 else 2):
        await bench.work()
        await bench.pass_time(delay)
    stale = asyncio.create_task(bench.work())
    await asyncio.wait_for(reached.wait(), 60)
    await bench.lose()
    await bench.work_through(run, step=MINUTE)
    assert flaky.calls == 4
    go_on.set()
    await stale
    assert loop is asyncio.get_running_loop()
    with pytest.raises(RunFailed, match="ConnectionError: try 4"):
        await run.result()
    described = await run.describe()
    assert (described.attempts_made, described.retries) == (2, 0)


async def test_a_try_is_recorded_however_long_the_store_is_away(bench: Bench, wire: Wire) -> None:
    flaky = Flaky(1)

    async def ask() -> str:
        if flaky.calls == 0:
            wire.cut = True
            asyncio.get_running_loop().call_later(0.15, setattr, wire, "cut", False)
        return flaky.plain()

    step = bench.fabric.step(retries=1, backoff=Fixed(delay=ms(MINUTE)))(ask)
    run = await task_of(bench.fabric, "coroutine", step).submit()
    await bench.work()
    assert await run.state() is PublicState.DELAYED
    await bench.work_through(run, step=MINUTE)
    assert (await run.result(), flaky.calls) == ("answer 2", 2)


@KINDS
async def test_a_worker_that_stops_in_a_short_pause_forgets_no_try(
    fabric: Fabric, kind: str
) -> None:
    flaky = Flaky(1)
    step = flaky.step(fabric, retries=1, backoff=Fixed(delay=ms(2_000)))
    run = await task_of(fabric, kind, step).submit()
    engine = await fabric.engine()
    async with working(fabric):
        async with asyncio.timeout(60):
            while not await engine.views.steps(run.id):  # noqa: ASYNC110 - the worker records it
                await asyncio.sleep(0.01)
    assert flaky.calls == 1
    async with working(fabric):
        assert await run.result(60) == "answer 2"
    (view,) = await engine.views.steps(run.id)
    assert (view.tries, flaky.calls) == (2, 2)


async def test_fewer_retries_in_new_code_leave_one_try(bench: Bench) -> None:
    flaky = Flaky(99)
    job = task_of(bench.fabric, "coroutine", flaky.step(bench.fabric, retries=9))
    run = await job.submit()
    for _ in range(3):
        await bench.work()
        await bench.pass_time(MINUTE)
    bench.fabric.tasks.clear()
    task_of(bench.fabric, "coroutine", flaky.step(bench.fabric, retries=1))
    await bench.work()
    with pytest.raises(RunFailed, match="try 4"):
        await run.result()


async def test_new_code_may_replace_a_step_that_keeps_failing(bench: Bench, log: Log) -> None:
    flaky = Flaky(99)
    job = task_of(bench.fabric, "coroutine", flaky.step(bench.fabric))
    run = await job.submit()
    await bench.work()
    bench.fabric.tasks.clear()

    @bench.fabric.task(name="job")
    async def mended(ctx: Context) -> str:
        if ctx.patched("other-bank"):
            return str(await ctx.step(log.later, "other"))
        return str(await ctx.step(flaky.step(bench.fabric)))

    await bench.pass_time(MINUTE)
    await bench.work()
    assert await run.result() == "other"


# -- beside other things


async def test_tries_in_a_gather_wait_together(bench: Bench) -> None:
    one, other = Flaky(1), Flaky(2)
    slow = other.step(bench.fabric, name="slow", backoff=Fixed(delay=ms(2 * MINUTE)))

    async def branch(ctx: Context, step: Any) -> str:
        return str(await ctx.step(step))

    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        steps = one.step(bench.fabric), slow
        return list(await ctx.gather(*(branch(ctx, step) for step in steps)))

    run = await job.submit()
    await bench.work()
    assert await run.state() is PublicState.DELAYED
    first, second = await shown(bench, run)
    assert [(view.name, view.tries, view.branch) for view in (first, second)] == [
        ("charge", 1, "0"),
        ("slow", 1, "1"),
    ]
    await bench.pass_time(MINUTE)
    assert await bench.work() == 1
    assert (one.calls, other.calls) == (2, 1), "each is tried at its time"
    await bench.pass_time(MINUTE)
    await bench.work()
    await bench.pass_time(2 * MINUTE)
    await bench.work()
    assert await run.result() == ["answer 2", "answer 3"]
    assert (one.calls, other.calls) == (2, 3)


async def test_a_try_waits_for_what_is_under_way_beside_it(bench: Bench, log: Log) -> None:
    flaky, failed, go_on = Flaky(1), asyncio.Event(), asyncio.Event()

    async def ask() -> str:
        failed.set()
        return flaky.plain()

    async def slow() -> str:
        await go_on.wait()
        return str(log.note("slow"))

    step = bench.fabric.step(name="charge", retries=3, backoff=Fixed(delay=ms(MINUTE)))(ask)

    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        return list(await ctx.gather(ctx.step(step), ctx.step(slow)))

    run = await job.submit()
    working = asyncio.create_task(bench.work())
    await failed.wait()
    await until(lambda: flaky.calls == 1)
    assert await run.state() is PublicState.ACTIVE
    go_on.set()
    await working
    assert await run.state() is PublicState.DELAYED
    await bench.work_through(run, step=MINUTE)
    assert (await run.result(), log) == (["answer 2", "slow"], ["slow"])


async def test_a_try_comes_at_its_time_also_while_something_else_is_under_way(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.worker.run.tries.SLOT_KEPT_BELOW", 0)
    flaky, answered = Flaky(2), asyncio.Event()

    async def ask() -> str:
        answer = flaky.plain()
        answered.set()
        return answer

    async def slow() -> str:
        await answered.wait()
        return "slow"

    step = fabric.step(retries=3, backoff=Fixed(delay=ms(20)))(ask)

    @fabric.task()
    async def job(ctx: Context) -> list[str]:
        return list(await ctx.gather(ctx.step(step), ctx.step(slow)))

    run = await job.submit()
    async with working(fabric):
        assert await run.result(60) == ["answer 3", "slow"]
    kinds = [event.kind.name for event in await run.events()]
    assert kinds == ["CLAIMED", "COMPLETED"], "the lease was kept"


async def test_a_signal_beside_a_pause_does_not_bring_the_try_forward(bench: Bench) -> None:
    flaky = Flaky(1)
    step = flaky.step(bench.fabric)

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return list(await ctx.gather(ctx.step(step), ctx.wait_for_signal("go", str)))

    run = await job.submit()
    await bench.work()
    await bench.pass_time(MINUTE // 2)
    await bench.fabric.signal(run, "go", "now")
    assert await bench.work() == 1
    assert (flaky.calls, await run.state()) == (1, PublicState.DELAYED)
    await bench.pass_time(MINUTE // 2)
    await bench.work()
    assert await run.result() == ["answer 2", "now"]


async def test_a_sleep_beside_a_pause_keeps_its_own_time(bench: Bench) -> None:
    flaky = Flaky(1)
    step = flaky.step(bench.fabric)

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        tried, _ = await ctx.gather(ctx.step(step), ctx.sleep("1h"))
        return str(tried)

    run = await job.submit()
    await bench.work()
    await bench.pass_time(MINUTE)
    await bench.work()
    assert (flaky.calls, await run.state()) == (2, PublicState.DELAYED)
    await bench.pass_time(59 * MINUTE)
    await bench.work()
    assert await run.result() == "answer 2"


async def test_tries_of_steps_that_asyncio_gathers(bench: Bench) -> None:
    one, other = Flaky(1), Flaky(1)

    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        steps = (ctx.step(each.step(bench.fabric)) for each in (one, other))
        return list(await asyncio.gather(*steps))

    run = await job.submit()
    await bench.work()
    assert (one.calls, other.calls) == (1, 1)
    assert len(await shown(bench, run)) == 2
    await bench.work_through(run, step=MINUTE)
    assert await run.result() == ["answer 2", "answer 2"]


# -- who sees what


async def test_a_step_that_succeeds_at_once_writes_only_its_result(
    bench: Bench, wire: Wire
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[str]:
        plain, eager = Flaky(0), Flaky(0)
        return [await ctx.step(plain.coroutine), await ctx.step(eager.step(bench.fabric))]

    run = await job.submit()
    before = wire.made.copy()
    await bench.work()
    assert await run.result() == ["answer 1", "answer 1"]
    assert wire.made["write_progress"] - before["write_progress"] == 2
    assert len(await bench.steps(run)) == 2


@KINDS
@FUNCTIONS
async def test_a_middleware_sees_every_try(bench: Bench, kind: str, function: str) -> None:
    seen: list[tuple[str, int, str]] = []

    @bench.fabric.middleware
    async def watch(call: Invocation, next: Any) -> Any:
        try:
            result = await next(call)
        except ConnectionError as error:
            seen.append((call.name, call.try_number, str(error)))
            raise
        if call.kind == "step":
            seen.append((call.name, call.try_number, "done"))
        return result

    flaky = Flaky(2)
    job = task_of(bench.fabric, kind, flaky.step(bench.fabric, function))
    run = await job.submit()
    await bench.work_through(run, step=MINUTE)
    assert seen == [("charge", 1, "try 1"), ("charge", 2, "try 2"), ("charge", 3, "done")]


async def test_the_log_says_which_try_failed_and_when_the_next_one_is(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "flowfabric.worker")
    flaky = Flaky(2)
    job = task_of(bench.fabric, "coroutine", flaky.step(bench.fabric))
    run = await job.submit()
    await bench.work_through(run, step=MINUTE)
    first, second = (each for each in caplog.records if "charge" in each.getMessage())
    assert f"step charge of run {run.id} of task job failed, try 1 of 5, next at " in first.message
    assert first.message.endswith("Z: ConnectionError: try 1")
    assert "try 2 of 5, next at " in second.message
    fields = vars(second)
    assert (fields["step"], fields["try"], fields["tries"]) == ("charge", 2, 5)
    assert (fields["run"], fields["task"], fields["attempt"]) == (str(run.id), "job", 1)
    assert (fields["error"], fields["error_type"]) == ("ConnectionError: try 2", "ConnectionError")
    traceback = caplog.text[caplog.text.rindex("Traceback") :]
    assert "flowfabric/worker" not in traceback, "it begins in the code of the step"
    assert (fields["retry_at"].timestamp() - bench.clock.now() / 1000) == 0


async def test_the_steps_of_a_run_show_its_tries(bench: Bench) -> None:
    flaky, began = Flaky(2), bench.clock.now()
    job = task_of(bench.fabric, "coroutine", flaky.step(bench.fabric))
    run = await job.submit()
    await bench.work()
    (waiting,) = await shown(bench, run)
    assert (waiting.name, waiting.tries, waiting.of) == ("charge", 1, 5)
    assert (waiting.error, waiting.attempt) == ("ConnectionError: try 1", 1)
    assert (waiting.started_at, waiting.next_try_at) == (began, began + MINUTE)
    assert (waiting.result, waiting.ended_at) == (None, None)
    await bench.work_through(run, step=MINUTE)
    (done,) = await shown(bench, run)
    assert (done.tries, done.error, done.next_try_at, done.of) == (3, None, None, None)
    assert (done.started_at, done.ended_at) == (began, began + 2 * MINUTE)


async def test_a_cancelled_run_shows_the_tries_it_made(bench: Bench) -> None:
    run = await task_of(bench.fabric, "coroutine", Flaky(9).step(bench.fabric)).submit()
    await bench.work()
    await run.cancel()
    (view,) = await shown(bench, run)
    assert (view.tries, view.of, view.next_try_at) == (1, 5, None)


async def test_huge_and_strange_errors_are_recorded(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "flowfabric.worker")  # pytest cannot print half a surrogate

    class Strange(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    errors = [ValueError("\0" + "x" * 100_000 + "\ud800"), Strange()]

    @bench.fabric.step(retries=2, backoff=Fixed(delay=ms(MINUTE)))
    async def ask() -> str:
        if errors:
            raise errors.pop(0)
        return "answer"

    run = await task_of(bench.fabric, "coroutine", ask).submit()
    await bench.work()
    (view,) = await shown(bench, run)
    assert view.error is not None
    assert 1000 < len(view.error) < 5000
    await bench.work_through(run, step=MINUTE)
    assert await run.result() == "answer"
