"""Following output streams: waking on frames and on the end, limits of readers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid, Overloaded, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.frame import NewFrame, StreamMode, Visibility
from flowfabric.core.execution.outcome import CloseReason
from flowfabric.engine.commit import watcher
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.execution.streams import FramePage
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from tests.kit.lab import W2, Lab
from tests.kit.situations import RETRY_AT_ONCE
from tests.kit.waits import in_, suspend, wait_on

LONG = 60.0
"""Seconds that no test waits: what it waits for comes before."""


def durable(payload: bytes = b"x") -> NewFrame:
    return NewFrame(payload=payload)


def live(payload: bytes = b"x") -> NewFrame:
    return NewFrame(payload=payload, mode=StreamMode.BEST_EFFORT)


async def parked(lab: Lab, claim: Claim, count: int = 1, **given: Any) -> list[Any]:
    """Tails that have looked once and wait now."""
    attempt = claim.lease.attempt
    tails = [
        asyncio.create_task(lab.engine.streams.tail(claim.id, attempt, block=LONG, **given))
        for _ in range(count)
    ]
    while not all(tail.done() for tail in tails) and _waiting(lab) < count:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return tails


def _waiting(lab: Lab) -> int:
    return sum(len(each) for each in lab.engine.streams.watcher.waiting.values())


async def done(tails: list[Any]) -> list[FramePage]:
    async with asyncio.timeout(60):
        return list(await asyncio.gather(*tails))


async def test_frames_that_are_there_are_returned_at_once(lab: Lab) -> None:
    """C-T116"""
    claim = await lab.running()
    await lab.engine.streams.append(claim, [durable(b"a"), durable(b"b")])
    page = await lab.engine.streams.tail(claim.id, 0, block=LONG)
    assert [frame.payload for frame in page.frames] == [b"a", b"b"]


async def test_a_tail_without_a_block_looks_once(lab: Lab) -> None:
    """C-T116"""
    claim = await lab.running()
    page = await lab.engine.streams.tail(claim.id, 0)
    assert (page.frames, page.closed) == ((), None)


async def test_a_tail_times_out_empty_and_open(lab: Lab) -> None:
    """C-T116"""
    claim = await lab.running()
    page = await lab.engine.streams.tail(claim.id, 0, block=0.01)
    assert (page.frames, page.closed) == ((), None)
    assert lab.engine.streams.readers == 0


async def test_a_tail_wakes_on_an_append(lab: Lab) -> None:
    """C-T116, C-T118: the append does not wait for it"""
    claim = await lab.running()
    await lab.engine.streams.append(claim, durable(b"old"))
    after = (await lab.engine.streams.read(claim.id, 0)).cursor
    tails = await parked(lab, claim, after=after)
    await lab.engine.streams.append(claim, durable(b"new"))
    (page,) = await done(tails)
    assert [frame.payload for frame in page.frames] == [b"new"]


async def test_a_tail_wakes_on_an_append_of_another_process(lab: Lab, second_lab: Lab) -> None:
    """C-T116"""
    claim = await lab.running()
    tails = await parked(second_lab, claim)
    await lab.engine.streams.append(claim, durable(b"new"))
    (page,) = await done(tails)
    assert [frame.payload for frame in page.frames] == [b"new"]


@pytest.mark.parametrize("cursor", ["start", "end", "", "-", "+", "x"])
async def test_open_cursors_are_refused(lab: Lab, cursor: str) -> None:
    """C-T116"""
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.streams.tail(claim.id, 0, after=cursor)


@pytest.mark.parametrize("block", [-1, 601, "soon", True])
async def test_bad_times_to_wait(lab: Lab, block: Any) -> None:
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.streams.tail(claim.id, 0, block=block)


async def completes(lab: Lab, claim: Claim) -> None:
    await lab.complete(claim)


async def fails(lab: Lab, claim: Claim) -> None:
    await lab.fail(claim, "permanent")


async def is_cancelled(lab: Lab, claim: Claim) -> None:
    await lab.engine.executions.cancel(claim.id, reason="enough")


async def is_retried(lab: Lab, claim: Claim) -> None:
    await lab.fail(claim)


async def is_revoked(lab: Lab, claim: Claim) -> None:
    await lab.engine.claims.revoke(claim.id, reason="stuck")


async def is_lost(lab: Lab, claim: Claim) -> None:
    await lab.lose(claim)


ENDINGS = [
    (completes, CloseReason.SUCCESS),
    (fails, CloseReason.FAILURE),
    (is_cancelled, CloseReason.CANCELLED),
    (is_retried, CloseReason.FAILURE),
    (is_revoked, CloseReason.LEASE_REVOKED),
    (is_lost, CloseReason.LEASE_EXPIRED),
]


@pytest.mark.parametrize(("ends", "reason"), ENDINGS)
async def test_a_tail_wakes_when_the_stream_closes(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    ends: Callable[[Lab, Claim], Awaitable[None]],
    reason: CloseReason,
) -> None:
    """C-T117, F-55: by the commit, not by the poll floor; also one that was never written to"""
    monkeypatch.setattr(watcher, "POLL_FLOOR", LONG)
    claim = await lab.running(policy=RETRY_AT_ONCE)
    tails = await parked(lab, claim)
    await ends(lab, claim)
    (page,) = await done(tails)
    assert page.frames == ()
    assert page.closed is not None
    assert page.closed.reason is reason
    assert page.ended


@pytest.mark.parametrize(("ends", "reason"), ENDINGS)
async def test_a_tail_in_another_process_wakes_when_the_stream_closes(
    lab: Lab,
    second_lab: Lab,
    ends: Callable[[Lab, Claim], Awaitable[None]],
    reason: CloseReason,
) -> None:
    """C-T117, F-55"""
    claim = await lab.running(policy=RETRY_AT_ONCE)
    tails = await parked(second_lab, claim)
    await ends(lab, claim)
    (page,) = await done(tails)
    assert page.closed is not None
    assert page.closed.reason is reason


async def test_a_wait_that_times_out_closes_the_stream(lab: Lab) -> None:
    """C-T117: while it waits the stream stays open"""
    claim = await lab.running()
    await suspend(lab, claim, wait_on(lab, timeout_at=in_(lab, 100)))
    assert (await lab.engine.streams.tail(claim.id, 0)).closed is None
    tails = await parked(lab, claim)
    await lab.pass_time(100)
    (page,) = await done(tails)
    assert page.closed is not None
    assert page.closed.reason is CloseReason.SUSPENSION_TIMEOUT


async def test_the_last_frames_come_with_the_end(lab: Lab) -> None:
    """I-40: nothing is missed, whenever the stream closes"""
    claim = await lab.running()
    await lab.engine.streams.append(claim, [durable(b"%d" % n) for n in range(5)])
    await lab.complete(claim)
    first = await lab.engine.streams.tail(claim.id, 0, limit=3, block=LONG)
    assert (len(first.frames), first.more, first.ended) == (3, True, False)
    rest = await lab.engine.streams.tail(claim.id, 0, after=first.cursor, limit=3, block=LONG)
    assert ([frame.payload for frame in rest.frames], rest.ended) == ([b"3", b"4"], True)
    last = await lab.engine.streams.tail(claim.id, 0, after=rest.cursor, block=LONG)
    assert (last.frames, last.ended) == ((), True)


async def test_a_filtered_tail_sleeps_through_best_effort_frames(lab: Lab) -> None:
    """C-T124"""
    claim = await lab.running()
    tails = await parked(lab, claim, visibility=Visibility.EXCLUDE_BEST_EFFORT)
    await lab.engine.streams.append(claim, live())
    await lab.engine.streams.append(claim, durable(b"kept"))
    (page,) = await done(tails)
    assert [frame.payload for frame in page.frames] == [b"kept"]


async def test_a_tail_of_the_next_attempt_waits_for_it(lab: Lab) -> None:
    claim = await lab.running(policy=RETRY_AT_ONCE)
    waits = asyncio.create_task(lab.engine.streams.tail(claim.id, 1, block=LONG))
    await lab.fail(claim)
    again = await lab.claim_one()
    await lab.engine.streams.append(again, durable(b"second"))
    (page,) = await done([waits])
    assert [frame.payload for frame in page.frames] == [b"second"]


async def test_many_tails_cost_few_queries(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-T118: one query per hint answers all of them"""
    monkeypatch.setattr(watcher, "POLL_FLOOR", LONG)
    claim = await lab.running()
    tails = await parked(lab, claim, count=300)
    asked = 0
    marks, reads = lab.engine.store.stream_marks, lab.engine.store.read_frames

    async def counted_marks(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return await marks(*args)

    async def counted_reads(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return await reads(*args)

    monkeypatch.setattr(lab.engine.store, "stream_marks", counted_marks)
    monkeypatch.setattr(lab.engine.store, "read_frames", counted_reads)
    await lab.engine.streams.append(claim, durable())
    pages = await done(tails)
    assert {len(page.frames) for page in pages} == {1}
    assert asked <= 10


async def test_parallel_tails_do_not_delay_each_other(lab: Lab) -> None:
    """C-T118: a parked tail keeps nothing from readers and writers"""
    first, second = await lab.running(), await lab.running(W2)
    tails = await parked(lab, first, count=50)
    await lab.engine.streams.append(second, durable(b"other"))
    page = await lab.engine.streams.tail(second.id, 0, block=LONG)
    assert len(page.frames) == 1
    await lab.complete(first)
    assert {page.ended for page in await done(tails)} == {True}


async def test_more_readers_than_are_served(store: Store, clock: ManualClock) -> None:
    """C-T125: refused at once, with a time to come back"""
    lab = await Lab.open(store, clock, stream_readers=2)
    claim = await lab.running()
    tails = await parked(lab, claim, count=2)
    with pytest.raises(Overloaded) as refused:
        await lab.engine.streams.tail(claim.id, 0, block=LONG)
    assert refused.value.retry_after > 0
    with pytest.raises(Overloaded):
        await lab.engine.streams.read(claim.id, 0)
    await lab.engine.streams.append(claim, durable())
    await done(tails)
    assert len((await lab.engine.streams.read(claim.id, 0)).frames) == 1
    await lab.engine.close()


async def test_closing_ends_the_tails(store: Store, clock: ManualClock) -> None:
    """C-T125"""
    lab = await Lab.open(store, clock)
    claim = await lab.running()
    tails = await parked(lab, claim, count=3)
    await lab.engine.streams.close()
    pages = await done(tails)
    assert {(page.frames, page.closed) for page in pages} == {((), None)}
    with pytest.raises(Unavailable):
        await lab.engine.streams.tail(claim.id, 0)
    with pytest.raises(Unavailable):
        await lab.engine.streams.read(claim.id, 0)
    await lab.engine.close()


@pytest.mark.inside
async def test_a_cancelled_tail_gives_its_place_back(lab: Lab) -> None:
    claim = await lab.running()
    (tail,) = await parked(lab, claim)
    tail.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tail
    assert lab.engine.streams.readers == 0
    assert not lab.engine.streams.watcher.waiting


async def test_a_reader_that_was_too_slow_sees_the_gap(lab: Lab) -> None:
    """F-55: frames that were trimmed before they were read"""
    claim = await lab.running()
    first = NewFrame(payload=b"1", mode=StreamMode.BEST_EFFORT, floor=2, ceiling=2)
    await lab.engine.streams.append(claim, first)
    page = await lab.engine.streams.tail(claim.id, 0)
    await lab.engine.streams.append(claim, [first] * 5)
    late = await lab.engine.streams.tail(claim.id, 0, after=page.cursor)
    assert late.gap is not None
    assert (late.gap.seq, [frame.id.seq for frame in late.frames]) == (4, [5, 6])
    assert Millis(late.gap.ms) == lab.clock.now()
