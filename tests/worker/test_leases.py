"""Leases under running handlers: kept while they run, and the end of them when they are lost."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from flowfabric import Context, Fabric, PublicState, RunCancelled, SyncContext
from flowfabric.core.base.time import Millis
from flowfabric.worker.api.task import Task
from flowfabric.worker.errors import Unwind
from flowfabric.worker.run.heartbeat import Heartbeat
from flowfabric.worker.run.loop import Worker
from tests.worker import handlers
from tests.worker.bench import Log, Wire, renew_now, until, working

pytestmark = pytest.mark.long


def ends_when(event: asyncio.Event, fabric: Fabric) -> Task[[], str]:
    @fabric.task()
    async def job() -> str:
        await event.wait()
        return "done"

    return job


async def heartbeat_of(worker: Worker) -> Heartbeat:
    await until(lambda: worker._heartbeat)
    assert worker._heartbeat is not None
    return worker._heartbeat


async def test_a_handler_that_takes_longer_than_its_lease_keeps_it(fabric: Fabric) -> None:
    @fabric.task()
    async def job() -> str:
        await asyncio.sleep(5.0)
        return "done"

    @fabric.task()
    def plain() -> str:
        time.sleep(5.0)
        return "done"

    async with working(fabric, ttl=Millis(4_500)):
        runs = [await job.submit(), await plain.submit()]
        assert [await run.result(60) for run in runs] == ["done", "done"]
    for run in runs:
        assert (await run.describe()).epoch == 1


async def test_a_handler_whose_lease_was_revoked_is_stopped_and_counts_no_more(
    fabric: Fabric, log: Log
) -> None:
    begun = asyncio.Event()

    @fabric.task()
    async def job(ctx: Context) -> str:
        log.note(f"begun {ctx.info.attempt}")
        if not ctx.info.first:
            return "second"
        begun.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            log.note("stopped")
            for name, call in stale_calls(ctx).items():
                with pytest.raises(Unwind):
                    call()
                log.note(name)
        return "first"

    def stale_calls(ctx: Context) -> dict[str, Callable[[], Any]]:
        return {
            "step": lambda: ctx.step(log.later, "never"),
            "sleep": lambda: ctx.sleep("1h"),
            "submit": lambda: ctx.submit(job),
        }

    engine = await fabric.engine()
    async with working(fabric):
        run = await job.submit()
        await begun.wait()
        await engine.claims.revoke(run.id, reason="by hand")
        assert await run.result(60) == "second"
        await until(lambda: len(log) == 6)
    assert [word for word in log if "begun" not in word] == ["stopped", "step", "sleep", "submit"]
    assert (await engine.views.counts()).by_state["completed"] == 1


async def test_a_revoked_lease_stops_a_process(fabric: Fabric, tmp_path: Path) -> None:
    nap = fabric.task(process=True)(handlers.nap)
    engine = await fabric.engine()
    async with working(fabric, processes=1) as worker:
        run = await nap.submit(str(tmp_path / "pid"))
        await until((tmp_path / "pid").exists)
        await run.cancel()
        await until(lambda: not worker.active)
        await until(lambda: not handlers.alive(int((tmp_path / "pid").read_text())))
    assert await engine.views.state(run.id) is PublicState.CANCELLED


async def test_cancelling_a_run_stops_its_handler_long_before_the_lease_ends(
    fabric: Fabric, log: Log
) -> None:
    @fabric.task()
    async def job() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            log.note("stopped")

    async with working(fabric, ttl=Millis(60_000)) as worker:
        run = await job.submit()
        await until(lambda: worker.active)
        await run.cancel("enough")
        await until(lambda: log == ["stopped"])
        await until(lambda: not worker.active)
        with pytest.raises(RunCancelled, match="enough"):
            await run.result()


async def test_a_worker_that_claims_again_what_it_lost_runs_both_apart(
    fabric: Fabric, log: Log
) -> None:
    """The first handler takes its time to stop; the second must not be stopped in its place."""
    stopping, go_on = threading.Event(), threading.Event()

    @fabric.task()
    def job(ctx: SyncContext) -> str:
        if not ctx.info.first:
            return f"attempt {ctx.info.attempt}"
        stopping.set()
        go_on.wait(60)
        return "stale"

    engine = await fabric.engine()
    async with working(fabric):
        run = await job.submit()
        await until(stopping.is_set)
        await engine.claims.revoke(run.id, reason="by hand")
        assert await run.result(60) == "attempt 2"
        go_on.set()
    assert [event.kind.name for event in await run.events()] == [
        "CLAIMED",
        "LEASE_REVOKED",
        "RECLAIMED",
        "COMPLETED",
    ]


@pytest.mark.parametrize("seen_by", ["renewal", "look"])
async def test_a_worker_that_claims_again_what_it_lost_stops_the_old_handler(
    fabric: Fabric, log: Log, monkeypatch: pytest.MonkeyPatch, seen_by: str
) -> None:
    """The store renews the new lease of the same execution, which says nothing of the old one."""
    if seen_by == "renewal":
        monkeypatch.setattr(Heartbeat, "_look", AsyncMock())
    begun, go_on = asyncio.Event(), asyncio.Event()

    @fabric.task()
    async def job(ctx: Context) -> str:
        log.note(f"begun {ctx.info.attempt}")
        begun.set()
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            log.note(f"stopped {ctx.info.attempt}")
            raise
        return f"attempt {ctx.info.attempt}"

    engine = await fabric.engine()
    async with working(fabric) as worker:
        run = await job.submit()
        await begun.wait()
        await engine.claims.revoke(run.id, reason="by hand")
        await until(lambda: "begun 2" in log)
        if seen_by == "renewal":
            await renew_now(worker)
        await until(lambda: "stopped 1" in log)
        go_on.set()
        assert await run.result(60) == "attempt 2"
    assert "stopped 2" not in log


@pytest.mark.rules
async def test_without_a_store_a_worker_stops_its_handlers_before_the_lease_ends(
    fabric: Fabric, wire: Wire, log: Log
) -> None:
    moments: dict[str, float] = {}

    @fabric.task()
    async def job(ctx: Context) -> str:
        if not ctx.info.first:
            return "second"
        wire.cut = True
        moments["cut"] = time.monotonic()
        try:
            await asyncio.sleep(30)
        finally:
            moments["stopped"] = time.monotonic()
        return "first"

    async with working(fabric, ttl=Millis(6_000)):
        run = await job.submit()
        await until(lambda: "stopped" in moments)
        wire.cut = False
        assert await run.result(60) == "second"
    assert moments["stopped"] - moments["cut"] < 6.0


@pytest.mark.rules
async def test_a_renewal_that_hangs_does_not_hide_that_leases_run_out(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    @fabric.task()
    async def job(ctx: Context) -> str:
        if not ctx.info.first:
            return "second"
        try:
            await asyncio.sleep(30)
        finally:
            log.note("stopped")
        return "first"

    async def hang(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(30)

    async with working(fabric, ttl=Millis(900)) as worker:
        monkeypatch.setattr(await heartbeat_of(worker), "_renew", hang)
        run = await job.submit()
        await until(lambda: log == ["stopped"])
        monkeypatch.undo()
        assert await run.result(60) == "second"


@pytest.mark.rules
async def test_a_heartbeat_that_stumbles_goes_on(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    renewed = asyncio.Event()

    job = ends_when(renewed, fabric)
    async with working(fabric, ttl=Millis(6_000)) as worker:
        heartbeat, loop = await heartbeat_of(worker), asyncio.get_running_loop()
        renew, failed = heartbeat._renew, list[int]()

        async def stumble(store: Any) -> None:
            if not failed:
                failed.append(1)
                raise ZeroDivisionError
            await renew(store)
            loop.call_soon_threadsafe(renewed.set)

        monkeypatch.setattr(heartbeat, "_renew", stumble)
        run = await job.submit()
        assert await run.result(60) == "done"
    assert (await run.describe()).epoch == 1
    assert "the heartbeat failed; retrying" in caplog.text


@pytest.mark.parametrize("record", [True, False])
async def test_a_worker_records_renewals_only_if_asked(fabric: Fabric, record: bool) -> None:
    """D-12: thousands of leases are renewed every few seconds"""
    renewed = asyncio.Event()

    job = ends_when(renewed, fabric)
    async with working(fabric, record_renewals=record) as worker:
        run = await job.submit()
        await until(lambda: worker.active)
        await renew_now(worker)
        renewed.set()
        assert await run.result(60) == "done"
    engine = await fabric.engine()
    page = await engine.events.read(execution=run.id)
    assert ("renewed" in [event.lease for event in page.events]) is record


@pytest.mark.parametrize("ending", ["complete", "fail", "delay"])
async def test_a_lease_that_ended_with_its_run_is_not_called_lost(
    fabric: Fabric,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
) -> None:
    """The heartbeat asks for the lease after the report was written and before it was answered."""
    engine = await fabric.engine()
    report = getattr(engine.attempts, ending)

    async def slow(*args: Any, **kwargs: Any) -> Any:
        answer = await report(*args, **kwargs)
        await renew_now(worker)
        return answer

    monkeypatch.setattr(engine.attempts, ending, slow)

    @fabric.task()
    async def job(ctx: Context) -> None:
        if ending == "delay":
            await ctx.sleep("1h")
        assert ending == "complete"

    @fabric.task()
    async def beside() -> None:
        await asyncio.sleep(30)

    async with working(fabric) as worker:
        await beside.submit()  # so that there is something to renew
        run = await job.submit()
        await until(lambda: len(worker.active) == 2)
        await until(lambda: len(worker.active) == 1)
    assert await run.state() in {PublicState.COMPLETED, PublicState.FAILED, PublicState.DELAYED}
    told = [record for record in caplog.records if record.levelname != "INFO"]
    assert [vars(record)["error_type"] for record in told] == ["AssertionError"] * (
        ending == "fail"
    )


async def test_a_cancelled_run_is_no_reason_to_warn(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @fabric.task()
    async def job() -> None:
        await asyncio.sleep(30)

    caplog.set_level("INFO")
    for seen_by in ("renewal", "look"):
        async with working(fabric) as worker:
            run = await job.submit()
            await until(lambda: worker.active)
            if seen_by == "renewal":
                monkeypatch.setattr(await heartbeat_of(worker), "_look", AsyncMock())
                await renew_now(worker)
            await run.cancel()
            if seen_by == "renewal":
                await renew_now(worker)
            await until(lambda: not worker.active)
    assert caplog.text.count("was cancelled in attempt 1; its handler was stopped") == 2
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
