"""Runs: what they tell their submitter, in an event loop, in a script, to a type checker."""

import asyncio
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flowfabric import (
    Context,
    ExecutionId,
    Fabric,
    Fixed,
    Invalid,
    NotFound,
    PublicState,
    RunCancelled,
    RunFailed,
    Unavailable,
)
from flowfabric.worker.codec import Undecodable
from tests.worker.bench import Bench, working

ROOT = Path(__file__).parents[2]


def print_it(text: str = "") -> str:
    return text


# -- runs


async def test_what_a_run_tells(bench: Bench) -> None:
    @bench.fabric.task(retries=1, backoff=Fixed(delay=0))
    async def job(ctx: Context, x: int) -> int:
        await ctx.progress(40, "so far")
        if ctx.info.first:
            raise ValueError("first try")
        return x

    run = await job.submit(5)
    assert (repr(run), await run.state()) == (f"Run({run.id})", PublicState.WAITING)
    assert (await run.explain()).main.code == "no_worker"
    with pytest.raises(TimeoutError):
        await run.result(timeout=0.01)
    await bench.work()
    assert await run.result() == 5
    assert (await run.explain()).main.code == "ended"
    about = await run.describe()
    assert about.progress is not None
    assert (about.progress.percent, about.progress.message) == (40, "so far")
    assert [attempt.number for attempt in await run.attempts()] == [1, 2]
    assert [attempt.outcome.value for attempt in await run.attempts()] == [
        "ended_failure",
        "ended_success",
    ]
    kinds = [event.kind.name for event in await run.events()]
    assert kinds == ["CLAIMED", "RETRY_SCHEDULED", "CLAIMED", "COMPLETED"]
    assert [event.kind.name async for event in run.follow()] == kinds


async def test_a_run_can_be_found_again_by_its_id(bench: Bench) -> None:
    @bench.fabric.task()
    async def when() -> datetime:
        return datetime(2024, 1, 1, tzinfo=UTC)

    id = (await when.submit()).id
    await bench.work()
    found = await bench.fabric.run(id)
    assert await found.result() == datetime(2024, 1, 1, tzinfo=UTC)
    del bench.fabric.tasks["when"]
    assert await (await bench.fabric.run(id)).result() == "2024-01-01T00:00:00Z"
    with pytest.raises(NotFound):
        await bench.fabric.run(str(ExecutionId.solo("default", id.uuid.__class__(int=1))))


async def test_a_result_that_no_longer_fits_says_so(bench: Bench) -> None:
    @bench.fabric.task(name="job")
    async def old() -> str:
        return "text"

    run = await old.submit()
    await bench.work()
    del bench.fabric.tasks["job"]

    @bench.fabric.task(name="job")
    async def new() -> int:
        return 1

    with pytest.raises(Undecodable, match="Expected `int`, got `str`"):
        await (await bench.fabric.run(run.id)).result()


async def test_a_run_that_ended_otherwise_raises_how(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(x: int) -> int:
        raise KeyError(f"no {x}")

    failed, cancelled = await job.submit(1), await job.submit(2)
    await cancelled.cancel("not needed")
    await cancelled.cancel("twice is once")
    await bench.work()
    with pytest.raises(RunFailed, match="KeyError: 'no 1'") as caught:
        await failed.result()
    assert (caught.value.category, caught.value.id) == ("handler_error", failed.id)
    assert caught.value.traceback is not None
    assert 'raise KeyError(f"no {x}")' in caught.value.traceback
    with pytest.raises(RunCancelled, match="not needed"):
        await cancelled.result()


async def test_a_fabric_serves_one_event_loop_at_a_time(store_url: str) -> None:
    fabric = Fabric(store_url)
    task = fabric.task()(print_it)
    await task.submit("x")
    with pytest.raises(Invalid, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(fabric.engine()))
    with pytest.raises(Invalid, match="await the method without _sync"):
        task.submit_sync("y")
    await fabric.close()
    await fabric.close()
    run = await task.submit("opened again")
    assert await run.state() is PublicState.WAITING
    await fabric.close()


@pytest.mark.inside
async def test_a_store_that_cannot_be_opened_is_let_go(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    async def refuse(store: Any, **options: Any) -> None:
        close = store.close

        async def note() -> None:
            closed.append(store.name)
            await close()

        store.close = note
        raise Unavailable("not now")

    monkeypatch.setattr("flowfabric.fabric.Engine.open", refuse)
    with pytest.raises(Unavailable, match="not now"):
        await Fabric(store_url).engine()
    assert len(closed) == 1


# -- without an event loop


def test_a_script_without_an_event_loop(store_url: str) -> None:
    fabric = Fabric(store_url)
    task = fabric.task()(print_it)
    run = task.submit_sync("x")
    assert run.state_sync() is PublicState.WAITING
    assert task.with_options(key="k").submit_sync("y").cancel_sync().id
    asyncio.run(work_once(store_url))
    assert run.result_sync(timeout=60) == "x"
    fabric.close_sync()
    fabric.close_sync()
    assert task.submit_sync("and again").state_sync() is PublicState.WAITING
    fabric.close_sync()


async def work_once(url: str) -> None:
    async with Fabric(url) as fabric:
        fabric.task()(print_it)
        await (await fabric.worker()).run_until_idle()


async def test_a_task_in_a_thread_may_submit_and_wait(fabric: Fabric) -> None:
    """It uses the event loop of its worker, not one of its own."""
    child = fabric.task()(print_it)

    @fabric.task()
    def parent() -> str:
        return child.submit_sync("from a thread").result_sync(timeout=60)

    async with working(fabric):
        run = await parent.submit()
        assert await run.result(60) == "from a thread"


# -- the type checker


@pytest.mark.deep  # `make check` has it among all other files
def test_the_type_checker_knows_a_tasks_parameters_and_result() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "tests/worker/typed.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout


def test_a_script_needs_no_more_than_this(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        from flowfabric import Fabric
        fabric = Fabric("sqlite:///{tmp_path / "work.db"}")

        @fabric.task()
        def double(x: int) -> int:
            return 2 * x

        run = double.submit_sync(21)
        print(run.state_sync())
        """)
    )
    command = [sys.executable, "-W", "error", str(script)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert ran.stdout == "waiting\n"
    assert ran.stderr == ""
