"""Work in the background: it coalesces, its failures are logged, and `drain` waits for it."""

import asyncio
import logging

import pytest

from flowfabric.core.base.errors import Unavailable
from flowfabric.engine.commit.background import Background, BackgroundBatches

log = logging.getLogger("flowfabric.test")


async def test_work_asked_for_while_it_runs_is_done_once_more() -> None:
    background, begun, go = Background("working on", log), 0, asyncio.Event()

    async def work() -> None:
        nonlocal begun
        begun += 1
        await go.wait()

    for _ in range(5):
        background.start_once("key", work)
        await asyncio.sleep(0)
    background.start_once("other key", work)
    await asyncio.sleep(0)
    assert (begun, len(background)) == (2, 2)
    go.set()
    await background.drain()
    assert (begun, len(background)) == (3, 0)


async def test_a_failure_is_logged_with_what_failed_and_what_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    background = Background("resolving flow", log)

    async def unavailable() -> None:
        raise Unavailable("no store")

    async def broken() -> None:
        raise ZeroDivisionError

    await background.start(unavailable, about="f1")
    await background.start(broken)
    assert caplog.messages == [
        "resolving flow f1 failed; the sweep tries again: unavailable: no store",
        "resolving flow failed unexpectedly; the sweep tries again",
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


async def test_the_key_is_free_again_after_a_failure() -> None:
    background, tries = Background("working on", log), 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        raise Unavailable("no store")

    for expected in (1, 2):
        background.start_once("key", work)
        await background.drain()
        assert tries == expected


async def test_what_is_under_way_can_be_cancelled() -> None:
    background = Background("waiting", log)
    task = background.start(asyncio.Event().wait)
    await asyncio.sleep(0)
    await background.cancel()
    assert task.cancelled()
    assert not background


async def test_keys_that_come_meanwhile_are_the_next_batch_also_after_a_failure() -> None:
    seen: list[list[int]] = []

    async def work(keys: list[int]) -> None:
        seen.append(keys)
        await asyncio.sleep(0)
        if keys == [1, 2]:
            batches.add([4, 3])
            raise Unavailable("no store")

    batches = BackgroundBatches("working", log, work, most=2)
    batches.add([1, 2, 3])
    await batches.drain()
    assert seen == [[1, 2], [3, 4]]
    batches.add([5])
    await batches.drain()
    assert seen[-1] == [5]
