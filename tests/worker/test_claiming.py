"""When a worker claims again by itself, without a hint that there is work."""

import asyncio

import pytest

from flowfabric import Fabric, Forbidden
from flowfabric.worker.run.claiming import StoreHealth
from tests.worker.bench import working


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
    async with asyncio.timeout(60), working(fabric, concurrency=8):
        assert [await run.result() for run in runs] == list(range(300))


@pytest.mark.inside
async def test_a_lone_run_begins_before_its_worker_prepares_to_wait(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a hint came during the claim, as the first ones of a worker may."""
    order: list[str] = []

    @fabric.task()
    async def job() -> None:
        order.append("handler")

    async with working(fabric) as worker:
        pause = worker._claimer._pause

        async def noted(seconds: float | None) -> None:
            order.append("pause")
            await pause(seconds)

        monkeypatch.setattr(worker._claimer, "_pause", noted)
        for _ in range(5):
            order.append("submit")
            await (await job.submit()).result()
    assert "submit handler pause" in " ".join(order)


def test_a_worker_that_may_not_work_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    health = StoreHealth()
    for _ in range(2):
        health.failed(Forbidden("the token has no scope work"))
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "ERROR",
        "the server gives this worker no runs; claiming is tried again: "
        "forbidden: the token has no scope work",
    )
