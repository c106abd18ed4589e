"""Rows of output streams: damaged ones, those of deleted runs, races for the lease, and lost
replies."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

import pytest

from flowfabric.core.base.errors import Corruption, LeaseLost, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.frame import BEGINNING, END, NewFrame, StreamMode
from flowfabric.store.queries import FrameQuery, FrameRows, FrameWrite
from tests.kit.damage import run_sql, spoil
from tests.kit.lab import Lab


def query(uuid: UUID) -> FrameQuery:
    return FrameQuery(uuid, 0, BEGINNING, END, 1000, tuple(StreamMode))


async def test_a_frame_that_cannot_be_read_costs_no_other(
    lab: Lab, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    claim = await lab.running()
    await lab.engine.streams.append(claim, [NewFrame(payload=b"%d" % n) for n in range(3)])
    await run_sql(store_url, "update frame set head = ? where id = ? and seq = 2", b"{", claim.uuid)
    with caplog.at_level(logging.ERROR, "flowfabric.store"):
        page = await lab.engine.streams.read(claim.id, 0)
    assert [frame.payload for frame in page.frames] == [b"0", b"2"]
    assert str(claim.uuid) in caplog.text


async def test_a_stream_that_cannot_be_read_is_named(lab: Lab, store_url: str) -> None:
    claim, other = await lab.running(), await lab.running()
    for each in (claim, other):
        await lab.engine.streams.append(each, NewFrame(payload=b"x"))
    await spoil(store_url, "stream", "doc", claim.id)
    damaged, whole = await asyncio.gather(
        lab.engine.streams.read(claim.id, 0),
        lab.engine.streams.read(other.id, 0),
        return_exceptions=True,
    )
    assert isinstance(damaged, Corruption)
    assert str(claim.uuid) in str(damaged)
    assert not isinstance(whole, BaseException)
    again = await Lab.open(lab.engine.store, lab.clock)  # one that remembers no header
    answers = await asyncio.gather(
        again.engine.streams.append(claim, NewFrame(payload=b"y")),
        again.engine.streams.append(other, NewFrame(payload=b"y")),
        return_exceptions=True,
    )
    assert isinstance(answers[0], Corruption)
    assert not isinstance(answers[1], BaseException)


async def test_a_summary_that_cannot_be_read_is_corruption(lab: Lab, store_url: str) -> None:
    claim = await lab.running()
    await lab.engine.streams.append(claim, NewFrame(payload=b"{}", mode=StreamMode.SUMMARY))
    await spoil(store_url, "stream", "summary", claim.id)
    with pytest.raises(Corruption):
        await lab.engine.streams.summary(claim.id, 0)


async def test_a_deleted_run_leaves_nothing_behind(lab: Lab) -> None:
    """F-56: header, frames, gaps and summary go with it"""
    claim = await lab.running()
    live = NewFrame(payload=b"x", mode=StreamMode.BEST_EFFORT, floor=1, ceiling=1)
    patch = NewFrame(payload=b"{}", mode=StreamMode.SUMMARY)
    await lab.engine.streams.append(claim, [live, live, patch])
    store = lab.engine.store
    (found,) = await store.read_frames([query(claim.uuid)])
    assert isinstance(found, FrameRows)
    assert (len(found.frames), len(found.gaps)) == (2, 1)
    await lab.complete(claim)
    await lab.pass_time(8 * 86_400_000)
    assert await lab.engine.sweep.trim() == 1
    assert await store.read_frames([query(claim.uuid)]) == [FrameRows(None, {}, ())]
    assert await store.streams([(claim.uuid, 0)]) == {}
    marks = await store.stream_marks([claim.uuid])
    assert (marks[claim.uuid].state, marks[claim.uuid].streams) == (None, {})


async def followed(lab: Lab, id: str) -> int:
    """How many frames a reader sees until the stream has ended."""
    seen, last = 0, BEGINNING
    while True:
        page = await lab.engine.streams.tail(id, 0, after=last, block=20)
        seen, last = seen + len(page.frames), page.cursor
        if page.ended:
            return seen


@pytest.mark.parametrize("turn", range(5))
async def test_no_frame_follows_the_end(lab: Lab, second_lab: Lab, turn: int) -> None:
    """I-37: however the race ends, a reader that has seen the end has seen every frame"""
    claim = await lab.running()

    async def emit() -> int:
        written = 0
        try:
            for _ in range(50):
                await lab.engine.streams.append(claim, NewFrame(payload=b"x"))
                written += 1
        except LeaseLost:
            return written
        return written

    async def cancel() -> None:
        for _ in range(turn * 3):
            await asyncio.sleep(0)
        await second_lab.engine.executions.cancel(claim.id, reason="enough")

    written, _, seen = await asyncio.gather(emit(), cancel(), followed(second_lab, claim.id))
    assert seen == written == (await lab.engine.streams.read(claim.id, 0)).frame_count


@pytest.mark.inside
async def test_a_stream_that_others_append_to_all_the_time_fails_no_append(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-36: another process with the same lease is faster again and again, and what rides with the
    append is written at its first try"""
    shared, other = await lab.running(), await lab.running()
    store, left = lab.engine.store, 15
    write = store.write_frames

    async def be_late(writes: Sequence[FrameWrite], now: Millis) -> set[tuple[UUID, int]]:
        nonlocal left
        if left and any(each.uuid == shared.uuid for each in writes):
            left -= 1
            await second_lab.engine.streams.append(shared, NewFrame(payload=b"rival"))
        return await write(writes, now)

    monkeypatch.setattr(store, "write_frames", be_late)
    append = lab.engine.streams.append
    late = asyncio.ensure_future(append(shared, NewFrame(payload=b"late")))
    (beside,) = await append(other, NewFrame(payload=b"beside"))
    assert (beside.id.seq, late.done()) == (1, False)
    assert [answer.id.seq for answer in await late] == [16]
    page = await lab.engine.streams.read(shared.id, 0)
    assert [frame.payload for frame in page.frames] == [b"rival"] * 15 + [b"late"]


@pytest.mark.inside
async def test_many_appends_that_lost_their_reply_together_change_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-39, I-40: the steps of a `ctx.gather` emit at once; new frames come before the repeats"""
    claim, store = await lab.running(), lab.engine.store
    honest, lost = store.write_frames, 0

    async def write_frames(writes: Sequence[FrameWrite], now: Millis) -> set[tuple[UUID, int]]:
        nonlocal lost
        written = await honest(writes, now)
        if len(writes[0].appending.frames) > 1 and not lost:
            lost = len(writes[0].appending.frames)
            raise Unavailable("the reply was lost")
        return written

    monkeypatch.setattr(store, "write_frames", write_frames)

    async def emit(number: int) -> None:
        frame = NewFrame(payload=b"%d" % number)
        with suppress(Unavailable):
            await lab.engine.streams.append(claim, frame, write=number)
            return
        await lab.engine.streams.append(claim, NewFrame(payload=b"new"), write=1000 + number)
        await lab.engine.streams.append(claim, frame, write=number)

    await asyncio.gather(*(emit(number) for number in range(20)))
    page = await lab.engine.streams.read(claim.id, 0)
    found = Counter(frame.payload for frame in page.frames)
    assert lost == 20
    assert found == {b"%d" % number: 1 for number in range(20)} | {b"new": lost}
