"""Following events: from a cursor, without loss, whoever else writes or reads.

E-T335, E-T337, E-T338, E-T340, E-X27, INV-26; §3.63.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from flowfabric.core.base.errors import NotActive
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.event import EventKind, Family, StoredEvent
from flowfabric.core.execution.submission import Submission
from tests.kit import situations
from tests.kit.lab import TTL, W2, Lab
from tests.kit.situations import take

Stream = AsyncGenerator[StoredEvent, None]


async def first(stream: Stream, count: int) -> list[StoredEvent]:
    """The next events of a subscription, which stays open."""
    async with asyncio.timeout(60):
        return [await anext(stream) for _ in range(count)]


async def everything(lab: Lab, **filters: Any) -> list[StoredEvent]:
    return list((await lab.engine.events.read(**filters)).events)


async def end_one(lab: Lab, **members: Any) -> ExecutionId:
    return await situations.cancelled_unrun(lab, **members)


# -- following


async def test_a_subscriber_gets_what_happens_from_now_on(lab: Lab) -> None:
    """E-T338, C-T133, C-T138: receives, in order, each once"""
    await end_one(lab)
    async with aclosing(lab.engine.events.subscribe(family=Family.COMPLETION)) as stream:
        waiting = asyncio.create_task(first(stream, 2))
        await asyncio.wait([waiting], timeout=0.05)
        ids = [await end_one(lab) for _ in range(2)]
        assert [event.id for event in await waiting] == ids
        more = [await end_one(lab)]
        assert [event.id for event in await first(stream, 1)] == more


async def test_a_subscription_begins_with_the_call(lab: Lab) -> None:
    """What happens before the first look at it is part of it."""
    await end_one(lab)
    for _ in range(20):
        async with aclosing(lab.engine.events.subscribe(family=Family.COMPLETION)) as stream:
            ids = [await end_one(lab)]
            assert [event.id for event in await first(stream, 1)] == ids


async def test_a_page_of_no_events_is_empty_and_moves_no_cursor(lab: Lab) -> None:
    await end_one(lab)
    for after in (0, 1):
        for limit in (0, -1):
            page = await lab.engine.events.read(after=after, limit=limit)
            assert (page.events, page.cursor) == ((), after)


async def test_a_subscriber_may_begin_with_the_past(lab: Lab) -> None:
    ids = [await end_one(lab) for _ in range(3)]
    async with aclosing(lab.engine.events.subscribe(after=0)) as stream:
        assert [event.id for event in await first(stream, 3)] == ids


async def test_a_subscriber_resumes_exactly(lab: Lab) -> None:
    """E-T335, E-T338: dropped after each one it saw, and nothing twice or missed"""
    ids = [await end_one(lab) for _ in range(5)]
    seen: list[StoredEvent] = []
    for _ in range(8):
        after = seen[-1].seq if seen else 0
        async with aclosing(lab.engine.events.subscribe(after=after)) as stream:
            seen += await first(stream, 1)
        if len(seen) == 4:
            ids += [await end_one(lab) for _ in range(3)]
    assert [event.id for event in seen] == ids


async def test_a_burst_is_delivered_whole(lab: Lab) -> None:
    """E-T338, E-T340, C-T134: however few wake-ups there are"""
    async with aclosing(lab.engine.events.subscribe(family=Family.COMPLETION)) as stream:
        waiting = asyncio.create_task(first(stream, 1510))
        await asyncio.wait([waiting], timeout=0.05)
        await lab.engine.executions.submit_many([Submission(kind="job")] * 1510)
        claims = [claim for _ in range(4) for claim in await lab.claim(limit=500)]
        await asyncio.gather(*(lab.complete(claim) for claim in claims))
        events = await waiting
    assert sorted(str(event.id) for event in events) == sorted(claim.id for claim in claims)
    assert [event.seq for event in events] == sorted(event.seq for event in events)


async def test_two_subscribers_both_get_everything(lab: Lab, second_lab: Lab) -> None:
    """E-T338, C-T133: also in another engine"""
    streams = [each.engine.events.subscribe(after=0) for each in (lab, lab, second_lab)]
    tasks = [asyncio.create_task(first(stream, 10)) for stream in streams]
    await asyncio.wait(tasks, timeout=0.05)
    ids = [await end_one((lab, second_lab)[number % 2]) for number in range(10)]
    for task in tasks:
        assert [event.id for event in await task] == ids
    for stream in streams:
        await stream.aclose()


async def test_subscribers_are_isolated_by_their_filters(lab: Lab) -> None:
    """E-T337, E-T338, E-T339, C-T135, I-45"""
    tag = ("cairn.instance_id", "a")
    by_tag = lab.engine.events.subscribe(after=0, tag=tag)
    by_space = lab.engine.events.subscribe(after=0, namespace="n1")
    by_family = lab.engine.events.subscribe(after=0, family=Family.OPERATOR)
    one = await end_one(lab, tags=dict([tag]))
    await end_one(lab, tags={"cairn.instance_id": "b"})
    two = await end_one(lab, namespace="n1")
    three = await lab.submit(tags=dict([tag]), namespace="n1")
    await lab.engine.executions.change_priority(three, 5)
    assert [event.id for event in await first(by_tag, 2)] == [one, three]
    assert [event.id for event in await first(by_space, 2)] == [two, three]
    assert [event.id for event in await first(by_family, 1)] == [three]
    for stream in (by_tag, by_space, by_family):
        await stream.aclose()


async def test_a_subscriber_of_one_execution_sees_its_whole_life_in_order(lab: Lab) -> None:
    """Causal order per execution"""
    id = await lab.submit(policy=situations.RETRY_AT_ONCE)
    async with aclosing(lab.engine.events.subscribe(execution=id)) as stream:
        waiting = asyncio.create_task(first(stream, 6))
        await asyncio.wait([waiting], timeout=0.05)
        await end_one(lab)
        await lab.fail(await take(lab, id))
        await lab.lose(await take(lab, id))
        await end_one(lab)
        await lab.complete(await lab.claim_one(W2))
        events = await waiting
    assert [event.kind for event in events] == [
        EventKind.CLAIMED,
        EventKind.RETRY_SCHEDULED,
        EventKind.CLAIMED,
        EventKind.LEASE_EXPIRED,
        EventKind.RECLAIMED,
        EventKind.COMPLETED,
    ]
    assert [event.epoch for event in events] == [1, 1, 2, 2, 3, 3]


async def test_a_subscriber_stops_cleanly(lab: Lab) -> None:
    """E-T340, C-T134: whether it was reading or waiting"""
    stream = lab.engine.events.subscribe()
    waiting = asyncio.create_task(first(stream, 1))
    await asyncio.wait([waiting], timeout=0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    id = await end_one(lab)
    async with aclosing(lab.engine.events.subscribe(after=0)) as again:
        assert [event.id for event in await first(again, 1)] == [id]


async def test_a_subscriber_survives_retention(lab: Lab) -> None:
    """INV-26, INV-27: a cursor into what is forgotten continues with what is not"""
    await end_one(lab)
    cursor = (await everything(lab))[0].seq - 1
    tail = await lab.engine.events.tail()
    lab.clock.advance(8 * 86_400_000)
    assert await lab.engine.sweep.trim() == 1
    assert await lab.engine.events.tail() == tail
    id = await end_one(lab)
    async with aclosing(lab.engine.events.subscribe(after=cursor)) as stream:
        (event,) = await first(stream, 1)
    assert event.id == id
    assert event.seq > tail


# -- under load


async def work(lab: Lab, rounds: int) -> None:
    for number in range(rounds):
        await lab.submit(policy=situations.RETRY_AT_ONCE)
        for claim in await lab.claim(limit=2, ttl=TTL):
            try:
                await (lab.fail(claim) if number % 3 == 0 else lab.complete(claim))
            except NotActive:
                continue


class Reader:
    """Reads by small pages until the writers have stopped and there is nothing more."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.seen: list[StoredEvent] = []
        self.stop = asyncio.Event()

    async def run(self) -> None:
        cursor, finished = 0, False
        while not finished:
            stopping = self.stop.is_set()
            page = await self.lab.engine.events.read(after=cursor, limit=5)
            self.seen += page.events
            finished = stopping and page.cursor == cursor
            cursor = page.cursor


class Subscriber(Reader):
    """Follows a subscription until the last event it is told of."""

    async def run(self) -> None:
        async with aclosing(self.lab.engine.events.subscribe(after=0)) as stream:
            async for event in stream:
                self.seen.append(event)
                if event.kind is EventKind.PRIORITY_CHANGED:
                    return


async def test_a_reader_misses_nothing_while_others_write(lab: Lab, second_lab: Lab) -> None:
    """E-X27, INV-26: whatever the order of commits, a cursor skips no event"""
    readers = [Reader(lab), Reader(second_lab), Subscriber(lab), Subscriber(second_lab)]
    reading = [asyncio.create_task(reader.run()) for reader in readers]
    await asyncio.gather(*(work(each, 25) for each in (lab, second_lab) for _ in range(4)))
    await lab.engine.executions.change_priority(await lab.submit(), 1)
    for reader in readers:
        reader.stop.set()
    async with asyncio.timeout(30):
        await asyncio.gather(*reading)
    whole = await everything(lab)
    assert 300 < len(whole) < 1000
    for reader in readers:
        assert reader.seen == whole
    by_execution: dict[ExecutionId | None, list[StoredEvent]] = {}
    for event in whole:
        by_execution.setdefault(event.id, []).append(event)
    for events in by_execution.values():
        epochs = [event.epoch for event in events]
        assert epochs == sorted(epochs)
        ends = [event.completion is not None for event in events]
        assert not any(ends[:-1])
