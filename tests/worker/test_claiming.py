"""When a worker claims again by itself, without a hint that there is work."""

import asyncio
from typing import Any

import pytest

from flowfabric import Fabric
from tests.worker.bench import until, working


async def test_a_backlog_is_worked_off_without_a_hint(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs end while a claim is under way, which takes as many as it asked for: the slots that are
    free then are filled at once, not at the next poll."""
    monkeypatch.setattr("flowfabric.worker.run.claiming.REST", 3600.0)

    @fabric.task()
    async def job(n: int) -> int:
        for _ in range(n % 7):
            await asyncio.sleep(0)
        return n

    runs = await job.submit_many([(n,) for n in range(300)])
    async with asyncio.timeout(20), working(fabric, concurrency=8):
        assert [await run.result() for run in runs] == list(range(300))


@pytest.mark.parametrize(
    ("slots", "limit", "started"),
    [(3, None, 6), (1, None, 1), (3, 2, 2)],
    ids=["many_slots", "one_slot", "limited_task"],
)
async def test_the_next_runs_begin_while_ends_are_written(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, slots: int, limit: int | None, started: int
) -> None:
    """As many again as there are slots; one after the other where a worker or a task runs so."""
    engine = await fabric.engine()
    end, go_on, begun = engine.store.end, asyncio.Event(), list[int]()

    async def held_up(*args: Any) -> Any:
        await go_on.wait()
        return await end(*args)

    @fabric.task(worker_concurrency=limit)
    async def job(n: int) -> int:
        begun.append(n)
        return n

    monkeypatch.setattr(engine.store, "end", held_up)
    runs = await job.submit_many([(n,) for n in range(8)])
    async with asyncio.timeout(20), working(fabric, concurrency=slots):
        await until(lambda: len(begun) == started)
        await engine.claims.drain()  # the last claim has found no slot, or no run for it
        assert len(begun) == started
        go_on.set()
        assert [await run.result() for run in runs] == list(range(8))
    assert sorted(begun) == list(range(8))
