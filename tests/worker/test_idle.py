"""What a worker costs that has nothing to do."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric.core.execution.registry import Presence, Refreshed
from flowfabric.engine import sweep as sweep_module
from flowfabric.fabric import Fabric
from flowfabric.worker.run.heartbeat import Heartbeat
from flowfabric.worker.run.lease import WorkerLease
from tests.kit.proxy import proxied
from tests.worker.bench import TTL, until, working


async def test_an_idle_worker_sends_one_statement_a_second_at_most(
    fresh_database: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In ten seconds it glances eight times and renews its entry in the registry once."""
    monkeypatch.setattr(sweep_module, "LEASES_EVERY", 0)  # each turn comes 1.25 s after the last
    async with proxied(fresh_database()) as (proxy, url), Fabric(url) as fabric:
        engine = await fabric.engine()
        me = Presence(worker="w", instance="w-1", ttl=TTL)
        await engine.workers.register(me)
        for _ in range(2):  # the first round trims, the first heartbeat reads
            await engine.sweep._turn()
            assert isinstance(await engine.workers.heartbeat("w-1"), Refreshed)
        before = proxy.statements
        for _ in range(8):
            assert await engine.sweep._turn() == 1.25
        assert isinstance(await engine.workers.heartbeat("w-1"), Refreshed)
        assert proxy.statements - before <= 9


async def test_a_worker_without_leases_has_no_connection_for_its_heartbeat(
    fresh_database: Callable[..., str],
) -> None:
    async with proxied(fresh_database()) as (proxy, url), Fabric(url) as fabric:
        gate, started = asyncio.Event(), asyncio.Event()

        @fabric.task()
        async def job() -> None:
            started.set()
            await gate.wait()

        async with working(fabric, ttl="1500ms") as worker:
            await until(lambda: worker._heartbeat and worker._heartbeat._resting)
            assert worker._heartbeat is not None
            assert worker._heartbeat._store is None
            assert len(proxy.passages) <= 2
            run = await job.submit()
            await started.wait()
            await until(lambda: worker._heartbeat and worker._heartbeat._store)
            gate.set()
            await run.result(60)
            await until(lambda: worker._heartbeat and worker._heartbeat._resting)


async def test_a_heartbeat_at_rest_wakes_up_for_a_lease() -> None:
    async with Fabric("sqlite://:memory:") as fabric:

        @fabric.task()
        async def job() -> None: ...

        for _ in range(2):
            await job.submit()
        worker = await fabric.worker()
        engine = await fabric.engine()
        claims = await engine.claims.claim(worker.identity, limit=2)
    asked: list[int] = []
    renewed = threading.Event()

    class Store:
        clock = engine.store.clock

        async def renew(self, renewals: list[Any], now: int) -> dict[Any, int]:
            asked.append(len(renewals))
            renewed.set()
            return {renewal.uuid: now + 60_000 for renewal in renewals}

        async def load(self, uuids: list[Any]) -> dict[Any, Any]:
            return {}

    store: Any = Store()

    async def opened() -> Any:
        return store

    heartbeat = Heartbeat(
        opened,
        ttl=TTL,
        on_cancelled=lambda key, notice: None,
        on_lost=lambda *loss: None,
        spare=store,
    )
    heartbeat._ttl = 0.3
    heartbeat.start()
    for claim in claims:
        await until(lambda: heartbeat._resting)
        renewed.clear()
        heartbeat.hold(WorkerLease(claim, age=0.0))
        await until(renewed.is_set)
        heartbeat.drop((claim.uuid, claim.epoch))
    await heartbeat.stop()
    assert set(asked) == {1}
