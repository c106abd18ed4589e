"""What a run tells in the types of the public API: `datetime`, attempts from 1, plain ids."""

from datetime import UTC, timedelta

from flowfabric import Context, Fabric, PublicState, RunDescription, RunId
from flowfabric.core.base.time import Millis, to_datetime
from flowfabric.core.execution.status import Blocking
from flowfabric.testing import ManualClock, harness
from flowfabric.worker.api.described import blocked_because
from tests.worker.bench import TTL, Bench

MINUTE = 60_000


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
        facts = job.submit_sync().describe_sync()
        assert facts.created_at == to_datetime(clock.now())
    finally:
        fabric.close_sync()


async def test_the_kit_tells_the_same() -> None:
    fabric = Fabric("sqlite:///unused.db")

    @fabric.task(deadline="1h")
    async def job() -> None: ...

    async with harness(fabric) as kit:
        run = await job.submit()
        assert (await run.describe()).deadline_at == kit.now() + timedelta(hours=1)
