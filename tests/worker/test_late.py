"""Workers that hear late from the store: nothing begins under a lease that may be over."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import Context, Fabric, PublicState, SyncContext, WorkerOptions
from flowfabric.core.base.errors import Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.engine.engine import Engine
from flowfabric.store.queries import ClaimCall, Taken
from flowfabric.worker.api.run import Run
from tests.worker import handlers
from tests.worker.bench import TTL, Bench, Log, Wire, until, working

OTHER = WorkerIdentity("other", "other-1")


async def other_completes(bench: Bench, run: Run[Any]) -> None:
    """Another worker takes the run over, its lease being over, and brings it to its end."""
    await bench.pass_time(TTL)
    (claim,) = await bench.engine.claims.claim(OTHER)
    assert claim.id == run.id
    await bench.engine.attempts.complete(claim, b'"other"')


async def test_a_claim_answered_after_its_lease_begins_nothing(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        log.note("begun")
        return "late"

    run = await job.submit()
    claim = bench.engine.claims.claim

    async def late(*args: Any, **kwargs: Any) -> Any:
        claims = await claim(*args, **kwargs)
        if claims:
            bench.engine.claims.claim = claim  # type: ignore[method-assign]
            await other_completes(bench, run)
        return claims

    bench.engine.claims.claim = late  # type: ignore[method-assign]
    await bench.work()
    assert (log, await run.result(60)) == ([], "other")


async def test_a_claim_answered_late_but_in_time_is_renewed_before_it_begins(
    bench: Bench, log: Log
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> None:
        found = (await bench.engine.store.load([ctx.info.id.uuid]))[ctx.info.id.uuid]
        log.note(found.state.lease.expires_at)  # type: ignore[union-attr]

    await job.submit()
    claim = bench.engine.claims.claim

    async def late(*args: Any, **kwargs: Any) -> Any:
        claims = await claim(*args, **kwargs)
        bench.clock.advance(TTL - 1 if claims else 0)
        return claims

    bench.engine.claims.claim = late  # type: ignore[method-assign]
    await bench.work()
    assert log == [bench.clock.now() + TTL]


async def nothing_more(ctx: Context, log: Log) -> None:
    await ctx.step(log.later, "stale")


async def sleep(ctx: Context, log: Log) -> None:
    await ctx.sleep("1h")


async def submit(ctx: Context, log: Log) -> None:
    (child,) = [task for task in log.tasks if task.name == "child"]  # type: ignore[attr-defined]
    await ctx.submit(child)


async def beside(ctx: Context, log: Log) -> None:
    await ctx.gather(ctx.step(log.later, "stale"), ctx.step(log.note, "stale"))


@pytest.mark.parametrize("begin", [nothing_more, sleep, submit, beside])
async def test_a_worker_that_was_away_for_a_lease_begins_no_step(
    bench: Bench, log: Log, begin: Callable[[Context, Log], Awaitable[None]]
) -> None:
    """The handler's own task goes on before anything could have stopped it."""

    @bench.fabric.task()
    async def child() -> None: ...

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        await ctx.step(log.later, "first")
        await other_completes(bench, run)
        try:
            await begin(ctx, log)
        except Exception as error:
            log.note(error)  # no `except Exception` may take it for a failure of the step
        return "late"

    log.tasks = [child]  # type: ignore[attr-defined]
    run = await job.submit()
    await bench.work()
    assert (log, await run.result(60)) == (["first"], "other")
    assert sum((await bench.engine.views.counts()).by_state.values()) == 1


async def test_a_plain_function_that_was_away_for_a_lease_begins_no_step(
    bench: Bench, log: Log
) -> None:
    @bench.fabric.task()
    def job(ctx: SyncContext) -> str:
        ctx.step(log.note, "first")
        bench.fabric.block_on(other_completes(bench, run))
        ctx.step(log.note, "stale")
        return "late"

    run = await job.submit()
    await bench.work()
    assert (log, await run.result(60)) == (["first"], "other")


@pytest.mark.parametrize("plain", [False, True])
async def test_a_step_is_not_tried_again_under_a_lease_that_is_over(
    bench: Bench, log: Log, plain: bool
) -> None:
    @bench.fabric.step(retries=3)
    def fails() -> None:
        log.note("tried")
        bench.fabric.block_on(other_completes(bench, run))
        raise ValueError

    async def coroutine(ctx: Context) -> Any:
        await ctx.step(fails)

    def function(ctx: SyncContext) -> Any:
        ctx.step(fails)

    job = bench.fabric.task()(function) if plain else bench.fabric.task()(coroutine)
    run = await job.submit()
    await bench.work()
    assert (log, await run.result(60)) == (["tried"], "other")


async def test_a_lease_that_stands_after_all_lets_the_step_begin(bench: Bench, log: Log) -> None:
    """Only the worker's view was old: the lease had been renewed."""

    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        claims = await bench.engine.claims.held_by(worker.identity.instance)
        assert claims == [run.id]
        active = next(iter(worker.active.values()))
        await bench.engine.claims.renew(active.claim, Millis(2 * TTL))
        bench.clock.advance(TTL)
        return str(await ctx.step(log.later, "done"))

    worker = await bench.fabric.worker(WorkerOptions(ttl="30s"))
    run = await job.submit()
    await worker.run_until_idle()
    assert (log, await run.result(60)) == (["done"], "done")


# -- replies that are lost


def lose_reply(engine: Engine, monkeypatch: pytest.MonkeyPatch, times: int = 1) -> list[ClaimCall]:
    """The store takes what is asked for, and its answer does not arrive."""
    lost: list[ClaimCall] = []
    claim = engine.store.claim

    async def lossy(call: ClaimCall, now: Millis) -> list[Taken]:
        taken = await claim(call, now)
        if taken and len(lost) < times:
            lost.append(call)
            raise Unavailable("the reply was lost")
        return taken

    monkeypatch.setattr(engine.store, "claim", lossy)
    return lost


@pytest.mark.parametrize("lanes", [(), {"default": 2, "other": 1}])
async def test_a_claim_whose_reply_was_lost_is_found_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, lanes: Any
) -> None:
    runs = await bench.fabric.task()(handlers.square).submit_many([(1,), (2,), (3,)])
    lose_reply(bench.engine, monkeypatch, times=2)
    claims = bench.engine.claims
    for limit in (2, 1):
        with pytest.raises(Unavailable):
            await claims.claim(OTHER, lanes=lanes, limit=limit)
    found = await claims.claim(OTHER, lanes=lanes, limit=9)
    assert {claim.uuid for claim in found} == {run.id.uuid for run in runs}
    assert {claim.attempt for claim in found} == {0}, "no attempt is spent"
    assert await claims.claim(OTHER, lanes=lanes, limit=9) == []


async def test_a_lost_reply_costs_other_workers_no_lease_either(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this process cannot run any more goes to one that can."""
    (run,) = await bench.fabric.task()(handlers.square).submit_many([(1,)])
    lose_reply(bench.engine, monkeypatch)
    with pytest.raises(Unavailable):
        await bench.engine.claims.claim(OTHER)
    assert await bench.engine.claims.claim(OTHER, kinds=["another"]) == []
    (found,) = await bench.engine.claims.claim(WorkerIdentity("third", "third-1"))
    assert found.id == run.id


async def test_a_lost_reply_is_not_forgotten_while_the_store_is_away(
    bench: Bench, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = await bench.fabric.task()(handlers.square).submit_many([(1,)])
    lose_reply(bench.engine, monkeypatch)
    with pytest.raises(Unavailable):
        await bench.engine.claims.claim(OTHER)
    wire.cut = True
    for _ in range(3):
        with pytest.raises(Unavailable):
            await bench.engine.claims.claim(OTHER)
    wire.cut = False
    (found,) = await bench.engine.claims.claim(OTHER)
    assert found.id == run.id


async def test_a_worker_runs_what_it_claimed_before_the_link_broke(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await fabric.engine()
    lost = lose_reply(engine, monkeypatch)
    run = await fabric.task()(handlers.square).submit(3)
    async with working(fabric, ttl=Millis(60_000)):
        assert await run.result(60) == 9
    assert len(lost) == 1


async def test_a_worker_that_stops_gives_back_what_it_never_heard_of(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await fabric.engine()
    lost = lose_reply(engine, monkeypatch)
    run = await fabric.task()(handlers.square).submit(3)
    async with working(fabric, ttl=Millis(60_000)) as worker:
        await until(lambda: lost)
        worker.stop()
    assert await run.state() is PublicState.WAITING
