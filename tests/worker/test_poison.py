"""A run that ends its process: found, and nobody else pays for it."""

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from flowfabric import Context, Fabric, Run, RunFailed
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.worker.run import probation
from tests.worker.bench import until, working

ROOT = Path(__file__).parents[2]
DEAD = WorkerIdentity("dead", "dead-1")

APP = """
    import asyncio, os, sys
    from flowfabric import Fabric, WorkerOptions

    fabric = Fabric(sys.argv[1])

    @fabric.task()
    async def innocent(number: int) -> int:
        await asyncio.sleep(0.1)
        return number

    @fabric.task()
    async def poison() -> None:
        os._exit(9)

    async def main() -> None:
        async with fabric:
            await fabric.run_worker(WorkerOptions(ttl=2, concurrency=50))

    asyncio.run(main())
"""


class Fleet:
    """Worker processes that are started again when they die, as an orchestrator does."""

    def __init__(self, url: str, folder: Path, count: int) -> None:
        self._script = folder / "app.py"
        self._script.write_text(textwrap.dedent(APP))
        self._url = url
        self.deaths = 0
        self._processes = [self._start() for _ in range(count)]

    def tend(self) -> None:
        for place, process in enumerate(self._processes):
            if process.poll() is not None:
                assert process.returncode == 9, "died of something else"
                self.deaths += 1
                self._processes[place] = self._start()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [sys.executable, str(self._script), self._url],
            env={**os.environ, "PYTHONPATH": paths},
            stderr=subprocess.DEVNULL,
        )


async def innocent(number: int) -> int:
    raise AssertionError("only the processes run it")


async def poison() -> None:
    raise AssertionError("only the processes run it")


@pytest.mark.long
@pytest.mark.rules
async def test_poison_is_found_and_every_other_run_completes(
    fabric: Fabric, store_url: str, tmp_path: Path
) -> None:
    """20 runs share a worker with one that ends it: it dies once with all of them, then alone"""
    task = fabric.task()(innocent)
    good = [await task.submit(number) for number in range(20)]
    bad = await fabric.task()(poison).submit()
    everybody: list[Run[Any]] = [*good, bad]
    fleet = Fleet(store_url, tmp_path, count=2)
    try:
        give_up_at = time.monotonic() + 100
        while time.monotonic() < give_up_at:
            fleet.tend()
            if all([await run.state() in ("completed", "failed") for run in everybody]):
                break
            await asyncio.sleep(0.1)
    finally:
        fleet.close()
    assert [await run.result(60) for run in good] == list(range(20))
    with pytest.raises(RunFailed, match="max_reclaims_exceeded"):
        await bad.result(60)
    assert fleet.deaths == 4
    assert (await bad.describe()).reclaims == 4


# -- in one worker


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a turn."""
    monkeypatch.setattr(probation, "SHORTEST_TURN", 0.01)


async def lose_all(fabric: Fabric, count: int) -> None:
    """What was submitted is lost with its worker."""
    engine = await fabric.engine()
    claims = await engine.claims.claim(DEAD, limit=count, ttl=Millis(1))
    assert len(claims) == count
    await asyncio.sleep(0.01)
    for claim in claims:
        await engine.claims.mark_expired(claim.id)


async def test_suspects_run_one_at_a_time_and_nothing_begins_beside_them(
    fabric: Fabric, quick: None
) -> None:
    running: set[Any] = set()
    beside: dict[Any, set[Any]] = {}

    @fabric.task()
    async def job(name: str) -> None:
        beside[name] = set(running)
        running.add(name)
        await asyncio.sleep(0.02)
        running.discard(name)

    lost = [await job.submit(f"lost-{number}") for number in range(4)]
    await lose_all(fabric, 4)
    others = [await job.submit(f"other-{number}") for number in range(10)]
    async with working(fabric):
        for run in (*lost, *others):
            await run.result(60)
    for name, seen in beside.items():
        if name.startswith("lost"):
            assert seen == set(), f"{name} began beside {seen}"
        else:
            assert not any(it.startswith("lost") for it in seen), f"{name} began beside {seen}"
    assert max(len(seen) for name, seen in beside.items() if name.startswith("other")) > 0


async def test_a_recorded_step_clears_a_suspect_and_lets_others_begin(fabric: Fabric) -> None:
    @fabric.task()
    async def job(ctx: Context) -> str:
        await ctx.step(str.upper, "done")
        await others_done.wait()
        return "survived"

    @fabric.task()
    async def other() -> None:
        others_done.set()

    others_done = asyncio.Event()
    run = await job.submit()
    await lose_all(fabric, 1)
    async with working(fabric):
        await until_probation(run)
        await other.submit()
        assert await run.result(60) == "survived"
    kinds = [event.kind for event in await run.events()]
    assert kinds[-4:] == [
        EventKind.RECLAIMED,
        EventKind.PROBATION,
        EventKind.CLEARED,
        EventKind.COMPLETED,
    ]


async def until_probation(run: Any) -> None:
    async with asyncio.timeout(60):
        while all(  # noqa: ASYNC110 - the store is asked, whoever writes
            event.kind is not EventKind.PROBATION for event in await run.events()
        ):
            await asyncio.sleep(0.01)


async def test_a_suspect_that_outlives_its_lost_attempt_is_cleared(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a long run without steps does not keep a worker for itself"""
    monkeypatch.setattr(probation, "lifetime", lambda claim: 0.05)

    @fabric.task()
    async def job() -> None:
        await others_done.wait()

    @fabric.task()
    async def other() -> None:
        others_done.set()

    others_done = asyncio.Event()
    run = await job.submit()
    await lose_all(fabric, 1)
    async with working(fabric):
        await until_probation(run)
        await other.submit()
        await run.result(60)
    cleared = [event for event in await run.events() if event.kind is EventKind.CLEARED]
    assert [event.reason for event in cleared] == ["it outlived the attempt that was lost"]


async def test_a_suspect_waits_for_what_runs_already(fabric: Fabric, quick: None) -> None:
    order: list[str] = []

    @fabric.task()
    async def old() -> None:
        order.append("old begins")
        await may_end.wait()
        order.append("old ends")

    @fabric.task(lane="later")
    async def job() -> None:
        order.append("suspect begins")

    may_end = asyncio.Event()
    engine = await fabric.engine()
    run = await job.submit()
    await lose_all(fabric, 1)
    await engine.lanes.pause("later")
    async with working(fabric) as worker:
        await old.submit()
        await until(lambda: order)
        await engine.lanes.resume("later")
        await until(lambda: worker._ward.closed)
        may_end.set()
        await run.result(60)
    assert order == ["old begins", "old ends", "suspect begins"]
