"""What a run tells in the types of the public API: `datetime`, attempts from 1, plain ids."""

import asyncio
from datetime import UTC, timedelta

import pytest

from flowfabric import (
    Context,
    Fabric,
    NotFound,
    PublicState,
    Run,
    RunAttempt,
    RunDescription,
    RunId,
)
from flowfabric.core.base.time import Millis, to_datetime
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.status import Blocking
from flowfabric.testing import ManualClock, harness
from flowfabric.worker.api.described import blocked_because
from flowfabric.worker.api.explained import RunExplanation
from tests.worker.bench import TTL, Bench

MINUTE = 60_000
NONE = "00000000-0000-7000-8000-000000000000"


async def test_a_description_has_datetimes_and_attempts_from_one(bench: Bench) -> None:
    seen: list[RunDescription] = []

    @bench.fabric.task(retries=1, deadline="1h")
    async def flaky(ctx: Context) -> None:
        seen.append(await (await bench.fabric.run(ctx.info.id)).describe())
        if ctx.info.first:
            raise ValueError("at first")

    began = bench.moment()
    run = await flaky.submit()
    fresh = await run.describe()
    assert (fresh.created_at, fresh.touched_at, fresh.attempt) == (began, began, None)
    assert (fresh.started_at, fresh.ended_at, fresh.lease) == (None, None, None)
    assert (fresh.deadline_at, fresh.created_at.tzinfo) == (began + timedelta(hours=1), UTC)
    assert (type(fresh.id), fresh.task, fresh.kind) == (RunId, "flaky", "flaky")

    await bench.work()
    waiting = await run.describe()
    assert (waiting.attempt, waiting.attempts_made, waiting.retries) == (None, 1, 1)
    await bench.pass_time(MINUTE)
    await bench.work()
    done = await run.describe()
    assert (done.state, done.attempt, done.attempts_made) == (PublicState.COMPLETED, 2, 2)
    assert (done.started_at, done.ended_at) == (began, began + timedelta(minutes=1))
    assert [each.attempt for each in seen] == [1, 2]
    (first, second) = [each.lease for each in seen]
    assert first is not None
    assert second is not None
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.expires_at - began == timedelta(milliseconds=TTL)


async def test_what_a_run_waits_for_is_a_sentence_for_people(bench: Bench) -> None:
    @bench.fabric.task(retries=1)
    async def failing() -> None:
        raise ValueError("no")

    at = bench.moment(MINUTE).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    later = await failing.with_options(delay="1m").submit()
    assert (await later.describe()).blocking_detail == f"delayed until {at}"
    run = await failing.submit()
    await bench.work()
    detail = (await run.describe()).blocking_detail
    assert detail is not None
    assert detail.startswith("attempt 1 failed, retry after 20")
    assert {each.because async for each in bench.fabric.runs()} == {detail, f"delayed until {at}"}
    of_engine = await bench.engine.views.describe(run.id)
    assert of_engine is not None
    assert "attempt 0 failed" in (of_engine.blocking_detail or "")


def test_what_an_operator_wrote_stays_as_it_is() -> None:
    text = "attempt 0 failed, retry after 1700000000000"
    assert blocked_because(Blocking.OPERATOR, text) == text
    assert blocked_because(Blocking.RETRY_BACKOFF, text) == (
        "attempt 1 failed, retry after 2023-11-14T22:13:20.000Z"
    )
    assert blocked_because(Blocking.DELAY, "delayed until 0", str) == "delayed until 0"
    assert blocked_because(Blocking.DELAY, None) is None


async def test_a_reservation_and_a_clean_up_have_datetimes(bench: Bench) -> None:
    @bench.fabric.task(on_cancel="cleanup", cleanup_timeout="10s")
    async def job(ctx: Context) -> None:
        await ctx.sleep("1h")

    began, run = bench.moment(), await job.submit()
    await bench.engine.grants.issue(run.id, "ada", ttl=Millis(5_000))
    grant = (await run.describe()).grant
    assert grant is not None
    assert (grant.granted_at, grant.expires_at) == (began, began + timedelta(seconds=5))
    await bench.pass_time(5_000)
    await bench.work_once()
    await run.cancel()
    cleanup = (await run.describe()).cleanup
    assert cleanup is not None
    assert (cleanup.since, cleanup.until - cleanup.since) == (
        bench.moment(),
        timedelta(seconds=10),
    )


async def test_attempts_count_from_one_and_have_datetimes(bench: Bench) -> None:
    @bench.fabric.task(retries=1)
    async def flaky(ctx: Context) -> int:
        await bench.pass_time(2_000)
        if ctx.info.first:
            raise ValueError("at first")
        return 7

    began, run = bench.moment(), await flaky.submit()
    assert await run.attempts() == []
    await bench.work()
    await bench.pass_time(MINUTE)
    await bench.work()
    first, second = await run.attempts()
    assert (first.number, first.previous, second.number, second.previous) == (1, None, 2, 1)
    assert (first.started_at, first.ended_at) == (began, began + timedelta(seconds=2))
    assert (first.took, second.took) == (timedelta(seconds=2), timedelta(seconds=2))
    assert first.failure is not None
    assert (first.failure.message, second.result) == ("ValueError: at first", b"7")
    assert not hasattr(first, "index")
    assert [each.index for each in await bench.engine.views.attempts(run.id)] == [0, 1]


async def test_the_attempts_and_events_of_no_run_are_not_found(bench: Bench) -> None:
    @bench.fabric.task()
    async def job() -> None: ...

    gone = f"{{fp:0}}:{NONE}"
    run: Run[None] = Run((await job.submit())._client, gone)
    with pytest.raises(NotFound, match=f"run {NONE}"):
        await run.attempts()
    with pytest.raises(NotFound, match=f"run {NONE}"):
        async with asyncio.timeout(60):
            await anext(run.follow())


async def test_an_attempt_that_runs_has_not_ended(bench: Bench) -> None:
    seen: list[RunAttempt] = []

    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        seen.extend(await (await bench.fabric.run(ctx.info.id)).attempts())

    await job.submit()
    await bench.work()
    (attempt,) = seen
    assert (attempt.number, attempt.outcome, attempt.ended_at, attempt.took) == (
        1,
        "started",
        None,
        None,
    )


async def test_events_have_datetimes_and_attempts_from_one(bench: Bench) -> None:
    @bench.fabric.task(retries=1, name="flaky")
    async def flaky(ctx: Context) -> None:
        if ctx.info.first:
            raise ValueError("at first")

    began, run = bench.moment(), await flaky.submit()
    assert await run.events() == []
    await bench.work()
    await bench.pass_time(MINUTE)
    await bench.work()
    claimed, retried, again, ended = events = await run.events()
    assert [event.attempt for event in events] == [1, 1, 2, 2]
    assert [event.at - began for event in events] == [timedelta()] * 2 + [timedelta(minutes=1)] * 2
    assert {type(event.id) for event in events} == {RunId}
    assert retried.detail is not None
    assert began < retried.detail["until"] <= began + timedelta(minutes=1)
    assert retried.detail["message"] == "ValueError: at first"
    assert (claimed.lease, retried.lease, again.lease) == ("acquired", "released", "acquired")
    assert (retried.reason, retried.completion) == ("failed_retry_scheduled", None)
    assert (ended.completion, ended.kind) == (Outcome.SUCCESS, EventKind.COMPLETED)
    assert [event async for event in run.follow()] == events
    of_engine = (await bench.engine.events.read(execution=run.id)).events
    assert [event.attempt for event in of_engine] == [0, 0, 1, 1]


async def test_what_an_operator_did_is_an_event(bench: Bench) -> None:
    @bench.fabric.task()
    async def job() -> None: ...

    run = await job.submit()
    await run.cancel("not needed")
    await run.replay()
    cancelled, replayed = await run.events()
    assert (cancelled.attempt, cancelled.reason) == (None, "not needed")
    assert (cancelled.completion, replayed.operator) == (Outcome.CANCELLED, "replayed")


def test_a_script_follows_a_run(store_url: str) -> None:
    fabric = Fabric(store_url)

    @fabric.task()
    def job() -> None: ...

    try:
        run = job.submit_sync()
        followed = run.follow_sync()
        fabric.block_on(work_once(fabric))
        assert next(followed).attempt == 1
        assert [event.kind.name for event in followed] == ["COMPLETED"]
        assert [event.kind.name for event in run.events_sync()] == ["CLAIMED", "COMPLETED"]
        left = run.follow_sync()
        next(left)
        left.close()
    finally:
        fabric.close_sync()


async def work_once(fabric: Fabric) -> None:
    await (await fabric.worker()).run_until_idle()


async def test_an_explanation_has_datetimes_and_attempts_from_one(bench: Bench) -> None:
    @bench.fabric.task(retries=1)
    async def flaky(ctx: Context) -> None:
        if ctx.info.first:
            raise ValueError("at first")
        seen.append(await (await bench.fabric.run(ctx.info.id)).explain())

    seen: list[RunExplanation] = []
    began, run = bench.moment(), await flaky.submit()
    await bench.work()
    waiting = await run.explain()
    assert (type(waiting.id), waiting.at) == (RunId, began)
    assert waiting.main.until is not None
    assert began < waiting.main.until <= began + timedelta(minutes=1)
    await bench.pass_time(MINUTE)
    await bench.work()
    (running,) = seen
    assert (running.main.code, running.main.detail["attempt"]) == ("leased", 2)
    assert running.main.since == bench.moment()
    assert running.main.detail["expires_at"] == bench.moment(TTL)


async def test_a_fork_names_its_source_by_its_plain_id(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        await ctx.step(str.upper, "a")

    run = await job.submit()
    await bench.work()
    facts = await (await run.fork()).describe()
    assert type(facts.forked_from) is RunId
    assert facts.tags == {"flowfabric.forked_from": str(run.id)}
    other = await job.with_options(tags={"app.ref": run.id.tagged}).submit()
    assert (await other.describe()).tags == {"app.ref": run.id.tagged}


def test_scripts_read_the_same(store_url: str) -> None:
    clock = ManualClock()
    fabric = Fabric(store_url, clock=clock)

    @fabric.task()
    def job() -> None: ...

    try:
        run = job.submit_sync()
        assert run.describe_sync().created_at == to_datetime(clock.now())
        assert run.attempts_sync() == []
    finally:
        fabric.close_sync()


async def test_the_kit_tells_the_same() -> None:
    fabric = Fabric("sqlite:///unused.db")

    @fabric.task(deadline="1h")
    async def job() -> None: ...

    async with harness(fabric) as kit:
        run = await job.submit()
        assert (await run.describe()).deadline_at == kit.now() + timedelta(hours=1)
