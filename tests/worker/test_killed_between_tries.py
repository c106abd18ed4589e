"""Worker processes that die between two tries of a step: the next one goes on counting."""

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flowfabric import Context, Fabric
from flowfabric.engine.engine import Engine

ROOT = Path(__file__).parents[2]

APP = """
    import asyncio, os, sys
    from flowfabric import Context, Fabric, Fixed, WorkerOptions
    from flowfabric.worker.run import tries

    tries.SLOT_KEPT_BELOW = 2_500
    fabric = Fabric(sys.argv[1])
    book = sys.argv[2]

    @fabric.step(name="charge", retries=3, backoff=Fixed(delay=float(sys.argv[3])))
    def charge() -> str:
        with open(book, "a") as file:
            print(os.getpid(), file=file)
        calls = len(open(book).readlines())
        if calls < 4:
            raise ConnectionError(f"try {calls}")
        return f"answer {calls}"

    @fabric.task()
    async def job(ctx: Context) -> str:
        return await ctx.step(charge)

    async def main() -> None:
        async with fabric:
            await fabric.run_worker(WorkerOptions(ttl=2))

    asyncio.run(main())
"""


class WorkerProcess:
    """A worker in a process of its own."""

    def __init__(self, folder: Path, url: str, delay: float) -> None:
        script = folder / "app.py"
        script.write_text(textwrap.dedent(APP))
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, str(script), url, str(folder / "book"), str(delay)],
            env={**os.environ, "PYTHONPATH": paths},
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    async def until_tried(self, engine: Engine, id: str, tries: int) -> None:
        async with asyncio.timeout(60):
            while [view.tries for view in await engine.views.steps(id)] != [tries]:
                assert self._process.poll() is None
                await asyncio.sleep(0.02)


@pytest.mark.long
@pytest.mark.rules
@pytest.mark.parametrize("delay", [2.4, 2.5], ids=["with_the_slot", "without_the_slot"])
async def test_a_killed_process_forgets_no_try(
    fabric: Fabric, store_url: str, tmp_path: Path, delay: float
) -> None:
    """A process is killed after each of the first two tries."""

    async def job(ctx: Context) -> str:
        raise AssertionError("only the processes run it")

    run, engine = await fabric.task(name="job")(job).submit(), await fabric.engine()
    for tries in (1, 2):
        with WorkerProcess(tmp_path, store_url, delay) as process:
            await process.until_tried(engine, run.id, tries)
    with WorkerProcess(tmp_path, store_url, delay):
        assert await run.result(60) == "answer 4"
    calls = (tmp_path / "book").read_text().split()
    assert (len(calls), len(set(calls))) == (4, 3), "each process has made a try"
    (view,) = await engine.views.steps(run.id)
    assert view.tries == 4
    assert (await run.describe()).retries == 0
