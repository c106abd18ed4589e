"""The harness ends runs exactly as a worker does, whatever their handlers do."""

import asyncio
from typing import Any

import pytest
from msgspec import Struct

from flowfabric import Fabric, RunError, testing
from flowfabric.testing import driver
from flowfabric.worker.api.run import Run
from tests.testing import endings
from tests.worker.bench import working

pytestmark = pytest.mark.rules


class Story(Struct, frozen=True):
    """How a run ended, as everybody can see it."""

    state: str
    told: str
    attempts: list[tuple[int, str | None, str | None]]
    events: list[str]
    steps: list[str]


async def story_of(run: Run[Any], fabric: Fabric) -> Story:
    try:
        told = repr(await run.result(60))
    except RunError as error:
        told = f"{type(error).__name__}: {str(error).partition(run.id)[2]}"
    engine, about = await fabric.engine(), await run.describe()
    steps = await engine.attempts.steps(run.id.uuid, 0)
    return Story(
        state=about.state.value,
        told=told,
        attempts=[_attempt(attempt) for attempt in await run.attempts()],
        events=[event.kind.name for event in await run.events()],
        steps=[step.name for step in steps],
    )


def _attempt(attempt: Any) -> tuple[int, str | None, str | None]:
    failure = attempt.failure
    return attempt.number, attempt.outcome and str(attempt.outcome), failure and failure.message


async def by_a_worker(url: str, case: str) -> Story:
    async with Fabric(url) as fabric:
        task, ready = endings.add(fabric, case), fabric.task()(endings.returns)
        async with working(fabric, processes=1):
            await (await ready.submit()).result(60)  # the worker takes the next one at once
            return await story_of(await task.submit(), fabric)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that hangs is taken for one soon."""
    monkeypatch.setattr(driver, "HANGS_AFTER", 3.0)


async def in_the_harness(case: str) -> Story:
    fabric = Fabric("sqlite://:memory:")
    task = endings.add(fabric, case)
    async with testing.harness(fabric):
        return await story_of(await task.submit(), fabric)


@pytest.mark.parametrize("case", endings.CASES)
async def test_the_bench_ends_a_run_as_a_worker_does(store_url: str, case: str) -> None:
    worker, harness = await asyncio.gather(by_a_worker(store_url, case), in_the_harness(case))
    assert harness == worker


@pytest.mark.parametrize("case", [case for case in endings.CASES if case.startswith("timed out")])
async def test_an_attempt_that_timed_out_has_expired(case: str) -> None:
    story = await in_the_harness(case)
    assert (story.state, story.told) == ("expired", "RunExpired: : attempt_timeout")
