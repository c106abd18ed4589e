"""A worker is in the registry while it works, and signs off when it stops."""

import asyncio
from typing import Any

import pytest

from flowfabric import Context, Fabric, Fixed, Retry, WorkerOptions
from flowfabric.core.execution.registry import Marked, Presence
from flowfabric.engine.engine import Engine
from tests.worker.bench import until


async def entry(engine: Engine, instance: str) -> Presence:
    """The live entry of a worker, as soon as it is there."""
    async with asyncio.timeout(60):
        while True:
            found = await engine.workers.get(instance)
            if found is not None and found.alive(engine.now()):
                return found
            await asyncio.sleep(0.01)


async def test_a_worker_registers_and_signs_off() -> None:
    fabric = Fabric("sqlite://:memory:")
    seen: list[tuple[str, tuple[str, ...], int]] = []

    @fabric.task(retries=100, backoff=Fixed(delay="1ms"))
    async def look() -> None:
        found = await (await fabric.engine()).workers.list()
        if not found:
            raise Retry("not registered yet", after=0.001)
        seen.extend((p.worker, p.kinds, p.concurrency) for p in found)

    async with fabric:
        worker = await fabric.worker(WorkerOptions(name="ada", concurrency=3))
        working = asyncio.create_task(worker.run())
        run = await look.submit()
        await run.result(60)
        worker.stop()
        await working
        assert seen == [("ada", ("look",), 3)]
        assert await (await fabric.engine()).workers.list() == []


async def test_a_live_worker_that_is_marked_dead_stops_what_it_lost_and_comes_back() -> None:
    """C-T131, F-61, F-69: through its lost leases; the registry itself stops nothing"""
    fabric = Fabric("sqlite://:memory:")
    attempts: list[str] = []
    stopped = asyncio.Event()

    @fabric.task()
    async def stay(ctx: Context) -> str:
        attempts.append(str(ctx.info.attempt))
        if len(attempts) == 1:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
        return "done"

    async with fabric:
        options = WorkerOptions(name="ada", instance="ada-1", ttl="6s")
        worker = await fabric.worker(options)
        working = asyncio.create_task(worker.run())
        run = await stay.submit()
        await until(lambda: attempts == ["1"])
        engine = await fabric.engine()
        old = await entry(engine, "ada-1")
        assert await engine.workers.mark_dead("ada-1", reason="", revoke=True) == Marked(1)
        await asyncio.wait_for(stopped.wait(), 60)
        assert await run.result(60) == "done"
        assert (await entry(engine, "ada-1")).registered_at > old.registered_at
        worker.stop()
        await working


async def test_an_instance_of_another_worker_is_left_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T132, F-61: said once, and the worker works on"""
    fabric = Fabric("sqlite://:memory:")
    async with fabric:
        engine = await fabric.engine()
        await engine.workers.register(Presence(worker="bob", instance="mine"))
        tries: list[str] = []
        honest = engine.workers.register

        async def counted(presence: Presence) -> Any:
            tries.append(presence.worker)
            return await honest(presence)

        monkeypatch.setattr(engine.workers, "register", counted)
        worker = await fabric.worker(WorkerOptions(name="ada", instance="mine", ttl="30ms"))
        working = asyncio.create_task(worker.run())
        await until(lambda: len(tries) > 3)
        worker.stop()
        await working
        found = await engine.workers.get("mine")
        assert found is not None
        assert found.worker == "bob"
    said = [text for text in caplog.messages if "refuses this worker" in text]
    assert len(said) == 1
    assert "belongs to worker 'bob'" in said[0]
