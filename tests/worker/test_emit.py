"""`ctx.emit`, `run.stream()` and `run.summary()`: the output of a run."""

import asyncio
from typing import Any

import pytest
from msgspec import Struct

from flowfabric import (
    Context,
    Fixed,
    Invalid,
    NotFound,
    Run,
    RunFrame,
    SyncContext,
)
from flowfabric.core.base.errors import RetentionLimitExceeded, Unavailable
from tests.worker.bench import Bench, working


class Token(Struct):
    text: str
    number: int


async def output(run: Run[Any], **given: Any) -> list[RunFrame]:
    async with asyncio.timeout(60):
        return [frame async for frame in run.stream(**given)]


async def values(run: Run[Any], **given: Any) -> list[Any]:
    return [frame.value for frame in await output(run, **given)]


async def test_what_is_emitted_comes_back_as_it_was(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.emit("text\n", type="stdout")
        await ctx.emit(b"\x00\xff")
        await ctx.emit(Token("a", 1), type="token", correlation="c-1")
        await ctx.emit(None)
        await ctx.emit(bytearray(b"x"), mode="best_effort", ttl="5s")

    run = await job.submit()
    await bench.work()
    frames = await output(run)
    assert [frame.value for frame in frames] == [
        "text\n",
        b"\x00\xff",
        {"text": "a", "number": 1},
        None,
        b"x",
    ]
    assert [frame.type for frame in frames] == ["stdout", "event", "token", "event", "event"]
    assert [frame.mode for frame in frames] == ["durable"] * 4 + ["best_effort"]
    assert {frame.attempt for frame in frames} == {1}
    assert frames[2].correlation == "c-1"
    assert frames[0].at.tzinfo is not None
    assert await values(run, best_effort=False) == await values(run, attempt=1, best_effort=False)
    assert len(await output(run, best_effort=False)) == 4


async def test_output_is_followed_while_the_run_goes_on(bench: Bench) -> None:
    """It ends when the run has ended, and not before all of it was read."""
    seen, go_on = asyncio.Event(), asyncio.Event()

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.emit("first")
        await go_on.wait()
        for number in range(3):
            await ctx.emit(number)

    run = await job.submit()
    found: list[Any] = []

    async def watch() -> None:
        async for frame in run.stream():
            found.append(frame.value)
            seen.set()

    watching = asyncio.create_task(watch())
    async with working(bench.fabric):
        await asyncio.wait_for(seen.wait(), 60)
        assert found == ["first"]
        go_on.set()
        await asyncio.wait_for(watching, 60)
    assert found == ["first", 0, 1, 2]


async def test_a_handler_that_runs_again_does_not_repeat_itself(bench: Bench) -> None:
    """After a wait the same attempt goes on with the same stream."""

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        async def work() -> str:
            await ctx.emit("in the step")
            return "done"

        await ctx.emit("begun")
        await ctx.emit(await ctx.step(work))
        await ctx.sleep("1h")
        await ctx.emit("slept")
        await ctx.sleep("1h")
        await ctx.emit("over")

    run = await job.submit()
    await bench.work()
    assert await values(run, follow=False) == ["begun", "in the step", "done"]
    await bench.pass_time(3_600_000)
    await bench.work()
    await bench.pass_time(3_600_000)
    await bench.work()
    assert await values(run) == ["begun", "in the step", "done", "slept", "over"]


async def test_branches_do_not_repeat_themselves(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        async def part(name: str, span: str) -> None:
            await ctx.emit(f"{name} begins")
            await ctx.sleep(span)
            await ctx.emit(f"{name} ends")

        await ctx.gather(part("a", "1h"), part("b", "2h"))
        await ctx.emit("both")

    run = await job.submit()
    await bench.work()
    await bench.pass_time(3_600_000)
    await bench.work()
    await bench.pass_time(3_600_000)
    await bench.work()
    found = await values(run)
    assert sorted(found[:2]) == ["a begins", "b begins"]
    assert found[2:] == ["a ends", "b ends", "both"]


async def test_a_coroutine_that_is_awaited_late_is_emitted(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        late = ctx.emit("late")
        both = [ctx.emit("a"), ctx.emit("b")]
        await asyncio.gather(*both)
        await ctx.random()
        await ctx.emit("in time")
        await late
        await ctx.sleep("1h")

    run = await job.submit()
    await bench.work()
    await bench.pass_time(3_600_000)
    await bench.work()
    assert await values(run) == ["a", "b", "in time", "late"]


async def test_a_handler_that_was_handed_back_does_not_repeat_itself(bench: Bench) -> None:
    """A worker that stops gives its runs back, and the same attempt goes on in another worker."""
    begun = asyncio.Event()

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.emit("begun")
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        await ctx.emit("over")

    run = await job.submit()
    async with working(bench.fabric):
        await asyncio.wait_for(begun.wait(), 60)
    await bench.work()
    await run.result()
    frames = await output(run)
    assert [(frame.attempt, frame.value) for frame in frames] == [(1, "begun"), (1, "over")]


async def test_every_attempt_is_followed(bench: Bench) -> None:
    """A new attempt emits what comes after the last recorded call."""

    @bench.fabric.task(retries=1, backoff=Fixed(delay=0))
    async def job(ctx: Context) -> None:
        await ctx.emit("recorded before")
        await ctx.random()
        await ctx.emit(f"attempt {ctx.info.attempt}")
        if ctx.info.first:
            raise ValueError

    run = await job.submit()
    await bench.work()
    frames = await output(run)
    assert [(frame.attempt, frame.value) for frame in frames] == [
        (1, "recorded before"),
        (1, "attempt 1"),
        (2, "attempt 2"),
    ]
    assert await values(run, attempt=2) == ["attempt 2"]
    for number, frame in enumerate(frames):
        rest = [each.value for each in frames[number + 1 :]]
        assert await values(run, after=frame.cursor) == rest


async def test_a_stream_that_is_not_followed_stops_at_once(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.emit("before")
        await ctx.sleep("1h")

    run = await job.submit()
    assert await values(run, follow=False) == []
    await bench.work()
    assert await values(run, follow=False) == ["before"]
    await run.cancel()
    assert await values(run) == ["before"]


async def test_a_run_that_never_ran_has_no_output(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> None: ...

    run = await job.submit()
    await run.cancel()
    assert await values(run) == []
    assert await run.summary() is None
    with pytest.raises(NotFound):
        await values(run, attempt=2)


async def test_summaries_add_up(bench: Bench) -> None:
    @bench.fabric.task(retries=1, backoff=Fixed(delay=0))
    async def job(ctx: Context) -> None:
        await ctx.emit({"done": 1, "note": "x"}, mode="summary")
        await ctx.emit({"done": 2, "note": None, "owner": "__ff_null__"}, mode="summary")
        await ctx.random()
        if ctx.info.first:
            raise ValueError

    run = await job.submit()
    await bench.work()
    assert await run.summary() == {"done": 2, "owner": None}
    assert await run.summary(1) == {"done": 2, "owner": None}
    assert await run.summary(2) is None
    assert [frame.summary_version for frame in await output(run)] == [1, 2]


async def test_plain_functions_emit_and_read(bench: Bench) -> None:
    @bench.fabric.task()
    def job(ctx: SyncContext) -> None:
        ctx.emit("from a thread")
        ctx.emit({"n": 1}, mode="summary")

    run = await job.submit()
    await bench.work()

    def read() -> tuple[list[Any], Any]:
        return [frame.value for frame in run.stream_sync()], run.summary_sync()

    assert await asyncio.to_thread(read) == (["from a thread", {"n": 1}], {"n": 1})


async def test_a_store_that_comes_back_has_every_frame_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply of the first try was lost: repeating it appends nothing again."""

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.emit("once")
        await ctx.emit("twice")

    run = await job.submit()
    engine = await bench.fabric.engine()
    write, lost = engine.store.write_frames, 0

    async def losing(*args: Any) -> Any:
        nonlocal lost
        answer = await write(*args)
        if lost < 1:
            lost += 1
            raise Unavailable("the reply was lost")
        return answer

    monkeypatch.setattr(engine.store, "write_frames", losing)
    await bench.work()
    assert (await values(run), lost) == (["once", "twice"], 1)


async def test_what_cannot_be_emitted_is_refused_where_it_is_called(bench: Bench) -> None:
    refused: list[str] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        wrong: list[dict[str, Any]] = [
            {"value": object()},
            {"value": "\ud800"},
            {"value": "x", "mode": "loud"},
            {"value": "x", "mode": None},
            {"value": "x", "ttl": "5s"},
            {"value": "x", "mode": "best_effort", "ttl": "soon"},
            {"value": "x", "type": "\0"},
            {"value": "x", "correlation": 7},
            {"value": [1], "mode": "summary"},
        ]
        for given in wrong:
            try:
                await ctx.emit(**given)
            except Invalid as error:
                refused.append(type(error).__name__)
        try:
            await ctx.emit("x" * 65_537)
        except RetentionLimitExceeded:
            refused.append("too large")

    run = await job.submit()
    await bench.work()
    await run.result()
    assert refused == ["Invalid"] * 9 + ["too large"]
    assert await values(run) == []


@pytest.mark.parametrize("after", ["", "1", "0:1-1", "1:1", "x:1-1", "1:1-1-1", 7])
async def test_bad_cursors(bench: Bench, after: Any) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> None: ...

    run = await job.submit()
    with pytest.raises(Invalid):
        await values(run, after=after)


async def test_a_deleted_run_has_no_stream(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.emit("gone")

    run = await job.submit()
    await bench.work()
    await bench.pass_time(8 * 86_400_000)
    assert await (await bench.fabric.engine()).sweep.trim() == 1
    with pytest.raises(NotFound):
        await values(run)
    with pytest.raises(NotFound):
        await run.summary()


async def test_deleted_frames_leave_a_gap(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.emit("kept")
        for number in range(70):
            await ctx.emit(number, mode="best_effort", ttl="1s")

    run = await job.submit()
    await bench.work()
    frames = await output(run)
    assert frames[0].value == "kept"
    gaps = [frame for frame in frames if frame.gap]
    assert len(gaps) == (1 if len(frames) < 71 else 0)
