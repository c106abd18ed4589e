"""Hints wake those they concern, and none is missed between a look and the wait after it."""

import asyncio

import pytest

from flowfabric.store.hints import EVERYTHING, NOTHING, Hints, Nudge, Topic, Topics


async def started(hints: Hints, topics: Topics) -> "asyncio.Task[bool]":
    task = asyncio.create_task(hints.wait(30, hints.count, topics))
    await asyncio.wait([task], timeout=0)
    return task


async def test_a_hint_wakes_only_those_it_concerns() -> None:
    hints = Hints()
    work, endings = await started(hints, Topic.WORK), await started(hints, Topic.ENDINGS)
    either = await started(hints, Topic.WORK | Topic.INBOX)
    hints.send(Topic.WORK | Topic.SIGNALS)
    assert await work
    assert await either
    assert not endings.done()
    assert hints.waiting == 1
    hints.wake()
    assert await endings


async def test_a_hint_about_something_else_is_none_since_the_last_look() -> None:
    hints = Hints()
    seen = hints.count
    hints.send(Topic.ENDINGS)
    assert not await hints.wait(0, seen, Topic.WORK | Topic.INBOX)
    assert await hints.wait(0, seen, Topic.WORK | Topic.ENDINGS)
    assert await hints.wait(0, seen)
    assert not await hints.wait(0, hints.count)


async def test_before_the_first_look_everything_is_new() -> None:
    hints = Hints()
    assert await hints.wait(0, -1, Topic.INBOX)
    assert not await hints.wait(0, 0, Topic.INBOX)


@pytest.mark.parametrize("topics", [Topic.WORK, Topic.ENDINGS | Topic.SIGNALS, EVERYTHING])
async def test_other_processes_learn_the_topics(topics: Topics) -> None:
    told: list[Topics] = []
    hints = Hints(tell=told.append)
    hints.send(topics)
    hints.wake(topics)
    assert told == [topics]


async def test_a_nudge_ends_a_wait_before_a_hint_comes() -> None:
    hints, nudge = Hints(), Nudge()
    task = asyncio.create_task(hints.wait(60, hints.count, NOTHING, nudge))
    await asyncio.sleep(0)
    hints.send(EVERYTHING)
    assert hints.waiting == 1
    nudge.set()
    assert not await task
    assert not hints.waiting
    assert not nudge.waiters


async def test_a_nudge_that_was_given_before_ends_a_wait_at_once_unless_there_was_a_hint() -> None:
    hints, nudge = Hints(), Nudge()
    nudge.set()
    seen = hints.count
    assert not await hints.wait(60, seen, EVERYTHING, nudge)
    hints.send(Topic.WORK)
    assert await hints.wait(60, seen, EVERYTHING, nudge)
