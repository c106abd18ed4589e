"""Output streams of attempts: appending under the fence, ranges, retention by mode."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    FenceRequired,
    Invalid,
    NotFound,
    RetentionLimitExceeded,
    StaleOwner,
    StreamClosed,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempts import StreamClosing
from flowfabric.core.execution.frame import (
    Encoding,
    FrameId,
    FrameKind,
    NewFrame,
    StreamMode,
    Visibility,
)
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.outcome import CloseReason
from flowfabric.core.execution.policy import Policy, StreamPolicy
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.execution.streams import FramePage
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from tests.kit.lab import W2, Lab
from tests.kit.situations import RETRY_AT_ONCE

NOT_BINARY = b"caf\xc3\xa9"
BINARY = b"\x00\xff\xfe"


def durable(payload: bytes = b"x", **given: Any) -> NewFrame:
    return NewFrame(payload=payload, **given)


def live(payload: bytes = b"x", **given: Any) -> NewFrame:
    return NewFrame(payload=payload, mode=StreamMode.BEST_EFFORT, **given)


def patch(payload: bytes) -> NewFrame:
    return NewFrame(payload=payload, mode=StreamMode.SUMMARY)


async def read(lab: Lab, claim: Claim, **given: Any) -> FramePage:
    return await lab.engine.streams.read(claim.id, claim.lease.attempt, **given)


def payloads(page: FramePage) -> list[bytes]:
    return [frame.payload for frame in page.frames]


# -- appending and reading


async def test_all_fields_of_a_frame_come_back(lab: Lab) -> None:
    """C-T112"""
    claim = await lab.running()
    frames = [
        durable(b"line", kind=FrameKind.STDOUT),
        durable(b'{"n":1}', type="step.done", correlation="c-7", encoding=Encoding.JSON),
        durable(BINARY, kind=FrameKind.BLOB, at=Millis(5)),
        live(NOT_BINARY, ttl=Millis(1000)),
    ]
    answers = await lab.engine.streams.append(claim, frames)
    assert [answer.frame_count for answer in answers] == [1, 2, 3, 4]
    page = await read(lab, claim)
    assert [frame.id for frame in page.frames] == [answer.id for answer in answers]
    now = lab.clock.now()
    first, second, third, fourth = page.frames
    assert (first.type, first.at, first.encoding) == ("stdout", now, Encoding.UTF8)
    assert (second.type, second.correlation, second.encoding) == ("step.done", "c-7", Encoding.JSON)
    assert (third.payload, third.encoding, third.at) == (BINARY, Encoding.BINARY, 5)
    assert (fourth.payload, fourth.mode, fourth.ttl) == (NOT_BINARY, StreamMode.BEST_EFFORT, 1000)
    assert first.fields == {
        "frame_type": "stdout",
        "ts": str(now),
        "payload": "line",
        "encoding": "utf8",
        "source": "worker",
        "mode": "durable",
    }
    assert third.fields["payload"] == "AP/+"
    assert third.fields["encoding"] == "base64"
    assert fourth.fields["ttl_ms"] == "1000"
    assert second.fields["correlation_id"] == "c-7"


async def test_a_stream_without_frames_is_empty_and_open(lab: Lab) -> None:
    """C-T112, C-T121: also one of an attempt that has not begun; no summary is None"""
    claim = await lab.running()
    assert await read(lab, claim) == FramePage(frames=(), cursor=FrameId(0, 0))
    assert await lab.engine.streams.read(claim.id, 3) == FramePage((), FrameId(0, 0))
    assert await lab.engine.streams.summary(claim.id, 0) is None


async def test_the_stream_of_an_unknown_execution_is_not_found(lab: Lab) -> None:
    """C-T112 and Q-10: what never was, or was deleted, is not an empty stream"""
    id = await lab.submit()
    claim = await lab.claim_one()
    await lab.engine.streams.append(claim, durable())
    await lab.complete(claim)
    unknown = id[:-1] + ("0" if id[-1] != "0" else "1")
    for wrong in (unknown, id):
        if wrong == id:
            await lab.pass_time(8 * 86_400_000)
            assert await lab.engine.sweep.trim() == 1
        with pytest.raises(NotFound):
            await lab.engine.streams.read(wrong, 0)
        with pytest.raises(NotFound):
            await lab.engine.streams.tail(wrong, 0, block=5)
        with pytest.raises(NotFound):
            await lab.engine.streams.summary(wrong, 0)


async def test_slices_and_resuming_by_id(lab: Lab) -> None:
    """C-T112: bounds are inclusive, and the last id read continues"""
    claim = await lab.running()
    ids = []
    for number in range(6):
        lab.clock.advance(10 if number % 2 else 0)
        answers = await lab.engine.streams.append(claim, durable(b"%d" % number))
        ids.append(answers[0].id)
    whole = await read(lab, claim)
    assert payloads(whole) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    middle = await read(lab, claim, start=str(ids[1]), end=str(ids[3]))
    assert payloads(middle) == [b"1", b"2", b"3"]
    first = await read(lab, claim, limit=2)
    assert (payloads(first), first.more, first.cursor) == ([b"0", b"1"], True, ids[1])
    rest = await lab.engine.streams.tail(claim.id, 0, after=first.cursor)
    assert payloads(rest) == [b"2", b"3", b"4", b"5"]
    assert not rest.more


async def test_a_millisecond_as_a_bound_takes_all_its_frames(lab: Lab) -> None:
    """C-T112: as the upper bound too"""
    claim = await lab.running()
    first, second = lab.clock.now(), lab.clock.now() + 5
    await lab.engine.streams.append(claim, [durable(b"a"), durable(b"b")])
    lab.clock.advance(5)
    await lab.engine.streams.append(claim, [durable(b"c"), durable(b"d")])
    assert payloads(await read(lab, claim, end=str(first))) == [b"a", b"b"]
    assert payloads(await read(lab, claim, start=str(second))) == [b"c", b"d"]
    assert payloads(await read(lab, claim, start=str(second), end=str(second))) == [b"c", b"d"]


async def test_every_attempt_has_a_stream_of_its_own(lab: Lab) -> None:
    """C-T112"""
    claim = await lab.running(policy=RETRY_AT_ONCE)
    await lab.engine.streams.append(claim, durable(b"first"))
    await lab.fail(claim)
    again = await lab.claim_one()
    await lab.engine.streams.append(again, durable(b"second"))
    assert payloads(await read(lab, claim)) == [b"first"]
    assert payloads(await read(lab, again)) == [b"second"]


async def test_ids_grow_though_the_clock_is_set_back(lab: Lab) -> None:
    """I-36"""
    claim = await lab.running()
    first = await lab.engine.streams.append(claim, [durable(), durable()])
    lab.clock.advance(-10_000)
    second = await lab.engine.streams.append(claim, durable())
    ids = [answer.id for answer in (*first, *second)]
    assert ids == sorted(set(ids))
    assert [answer.frame_count for answer in second] == [3]


async def test_concurrent_appends_lose_nothing(lab: Lab) -> None:
    """I-36: many calls of one owner, folded into few writes"""
    claim = await lab.running()
    answers = await asyncio.gather(
        *(lab.engine.streams.append(claim, [durable(b"%d" % n)] * 2) for n in range(50))
    )
    page = await read(lab, claim)
    assert [frame.id for frame in page.frames] == sorted(
        answer.id for each in answers for answer in each
    )
    assert page.frame_count == 100
    assert {answer.frame_count for each in answers for answer in each} == set(range(1, 101))


async def test_two_processes_with_one_lease_share_a_stream(lab: Lab, second_lab: Lab) -> None:
    """F-52: a version that has moved is decided again"""
    claim = await lab.running()
    for number in range(3):
        await lab.engine.streams.append(claim, durable(b"a%d" % number))
        await second_lab.engine.streams.append(claim, durable(b"b%d" % number))
    page = await read(lab, claim)
    assert payloads(page) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]
    assert [frame.id.seq for frame in page.frames] == [1, 2, 3, 4, 5, 6]


async def test_a_repeated_append_changes_nothing(lab: Lab, second_lab: Lab) -> None:
    claim = await lab.running()
    frames = [durable(b"a"), patch(b'{"n":1}'), patch(b'{"n":2}')]
    first = await lab.engine.streams.append(claim, frames, write=7)
    await lab.engine.streams.append(claim, durable(b"b"), write=8)
    assert await lab.engine.streams.append(claim, frames, write=7) == first
    assert await second_lab.engine.streams.append(claim, frames, write=7) == first
    assert len((await read(lab, claim)).frames) == 4


async def test_appending_by_a_handle_and_by_a_fence(lab: Lab) -> None:
    claim = await lab.running()
    await lab.engine.streams.append(lab.engine.attempts.seal(claim), durable(b"handle"))
    await lab.engine.streams.append(FencedExecution(claim.id, claim.owner), durable(b"fence"))
    assert payloads(await read(lab, claim)) == [b"handle", b"fence"]
    with pytest.raises(FenceRequired):
        await lab.engine.streams.append(FencedExecution(claim.id), durable())


# -- the fence


async def test_no_frame_after_the_end(lab: Lab) -> None:
    """C-T113, E-T152: the stream is closed"""
    claim = await lab.running()
    await lab.engine.streams.append(claim, durable(b"in time"))
    await lab.complete(claim)
    with pytest.raises(StreamClosed):
        await lab.engine.streams.append(claim, durable(b"late"))
    with pytest.raises(StreamClosed):
        await lab.engine.streams.append(claim, live(b"late"))
    with pytest.raises(StreamClosed):
        await lab.engine.streams.append(lab.engine.attempts.seal(claim), durable(b"late"))
    assert payloads(await read(lab, claim)) == [b"in time"]


async def test_no_frame_of_an_owner_that_lost_its_lease(lab: Lab) -> None:
    """C-T113, I-37: expired, lost, taken over"""
    claim = await lab.running()
    await lab.engine.streams.append(claim, durable(b"mine"))
    lab.clock.advance(claim.ttl)
    with pytest.raises(StaleOwner):
        await lab.engine.streams.append(claim, durable())
    await lab.pass_time(0)
    with pytest.raises(StaleOwner):
        await lab.engine.streams.append(claim, durable())
    again = await lab.claim_one(W2)
    with pytest.raises(StaleOwner):
        await lab.engine.streams.append(claim, durable())
    assert payloads(await read(lab, claim)) == [b"mine"]
    assert (await read(lab, again)).frames == ()


async def test_no_frame_with_a_wrong_fence(lab: Lab) -> None:
    """C-T113"""
    claim = await lab.running()
    other = await lab.running()
    owner = claim.owner
    for wrong in (
        replace(owner, epoch=7),
        replace(owner, lease_id=other.lease.id),
        replace(owner, attempt_id=other.attempt_id),
    ):
        with pytest.raises(StaleOwner):
            await lab.engine.streams.append(FencedExecution(claim.id, wrong), durable())
    assert (await read(lab, claim)).frames == ()


async def test_the_fence_counts_before_the_patch(lab: Lab) -> None:
    """§5.1: the order of the checks"""
    claim = await lab.running()
    with pytest.raises(Invalid, match="JSON"):
        await lab.engine.streams.append(claim, patch(b"{"))
    await lab.complete(claim)
    with pytest.raises(StreamClosed):
        await lab.engine.streams.append(claim, patch(b"{"))
    with pytest.raises(RetentionLimitExceeded):
        await lab.engine.streams.append(claim, durable(b"x" * 65_537))


async def test_a_stale_and_a_present_owner_in_one_batch(lab: Lab) -> None:
    """C-T113: the same attempt goes on under another lease"""
    claim = await lab.running()
    await lab.engine.attempts.hand_back(claim)
    again = await lab.claim_one(W2)
    assert again.lease.attempt == claim.lease.attempt
    old, new = await asyncio.gather(
        lab.engine.streams.append(claim, durable(b"old")),
        lab.engine.streams.append(again, durable(b"new")),
        return_exceptions=True,
    )
    assert isinstance(old, StaleOwner)
    assert not isinstance(new, BaseException)
    assert payloads(await read(lab, claim)) == [b"new"]


# -- limits


async def test_a_payload_over_the_limit_is_refused(lab: Lab) -> None:
    """C-T114"""
    claim = await lab.running()
    await lab.engine.streams.append(claim, durable(b"x" * 65_536))
    with pytest.raises(RetentionLimitExceeded):
        await lab.engine.streams.append(claim, [durable(), durable(b"x" * 65_537)])
    assert (await read(lab, claim)).frame_count == 1


async def test_the_limit_of_a_payload_can_be_set(store: Store, clock: ManualClock) -> None:
    """C-T114"""
    lab = await Lab.open(store, clock, max_frame=10)
    claim = await lab.running()
    await lab.engine.streams.append(claim, durable(b"x" * 10))
    with pytest.raises(RetentionLimitExceeded):
        await lab.engine.streams.append(claim, durable(b"x" * 11))
    await lab.engine.close()


async def test_an_explicit_length_is_kept_exactly(lab: Lab) -> None:
    """C-T114: and a reader sees that frames are gone"""
    policy = Policy(stream_policy=StreamPolicy(retention_maxlen=5))
    claim = await lab.running(policy=policy)
    for start in range(0, 12, 3):
        await lab.engine.streams.append(
            claim, [durable(b"%d" % number) for number in range(start, start + 3)]
        )
    page = await read(lab, claim)
    assert payloads(page) == [b"7", b"8", b"9", b"10", b"11"]
    assert page.frame_count == 12
    assert page.gap is not None
    assert page.gap.seq == 7
    followed = await lab.engine.streams.tail(claim.id, 0, after=page.gap)
    assert (len(followed.frames), followed.gap) == (5, None)


async def test_the_default_length(lab: Lab) -> None:
    """C-T114: 10,000 durable frames"""
    claim = await lab.running()
    for _ in range(11):
        await lab.engine.streams.append(claim, [durable(b"")] * 1000)
    page = await read(lab, claim, limit=10_000)
    assert (len(page.frames), page.frame_count, page.more) == (10_000, 11_000, False)
    assert page.frames[0].id.seq == 1001


@pytest.mark.parametrize("limit", [0, -1, 10_001, True])
async def test_limits_of_a_page(lab: Lab, limit: int) -> None:
    """C-T115"""
    claim = await lab.running()
    with pytest.raises(Invalid):
        await read(lab, claim, limit=limit)
    with pytest.raises(Invalid):
        await lab.engine.streams.tail(claim.id, 0, limit=limit)


# -- modes


async def test_modes_do_not_push_each_other_out(lab: Lab) -> None:
    """F-53, I-38, C-T124; C-T121: the summary survives the frames that made it"""
    policy = Policy(stream_policy=StreamPolicy(retention_maxlen=3))
    claim = await lab.running(policy=policy)
    await lab.engine.streams.append(claim, [durable(b"d1"), durable(b"d2"), durable(b"d3")])
    await lab.engine.streams.append(claim, [live(b"l", floor=2, ceiling=2)] * 10)
    await lab.engine.streams.append(claim, [patch(b'{"n":%d}' % n) for n in range(70)])
    page = await read(lab, claim, limit=1000)
    kinds = [frame.mode for frame in page.frames]
    assert kinds.count(StreamMode.DURABLE) == 3
    assert kinds.count(StreamMode.BEST_EFFORT) == 2
    assert kinds.count(StreamMode.SUMMARY) == 64
    summary = await lab.engine.streams.summary(claim.id, 0)
    assert summary is not None
    assert (bytes(summary.document), summary.version) == (b'{"n":69}', 70)
    assert page.frame_count == 83


async def test_summary_frames_add_up(lab: Lab) -> None:
    """C-T119, C-T120: interleaved with durable frames; null deletes, the sentinel stores null"""
    claim = await lab.running()
    began = lab.clock.now()
    first = await lab.engine.streams.append(
        claim, [durable(b"a"), patch(b'{"a":1,"b":{"c":2}}'), durable(b"b")]
    )
    assert [answer.summary_version for answer in first] == [None, 1, None]
    lab.clock.advance(100)
    await lab.engine.streams.append(claim, patch(b'{"a":null,"b":{"d":"__ff_null__"}}'))
    (third,) = await lab.engine.streams.append(claim, patch(b'{"b":{}}'))
    assert third.summary_version == 3
    summary = await lab.engine.streams.summary(claim.id, 0)
    assert summary is not None
    assert bytes(summary.document) == b'{"b":{"c":2,"d":null}}'
    assert (summary.version, summary.patch_kind) == (3, "json-merge-patch")
    assert (summary.first_applied_at, summary.last_updated_at) == (began, began + 100)
    page = await read(lab, claim)
    assert [frame.summary_version for frame in page.frames] == [None, 1, None, 2, 3]
    assert page.frames[1].fields["summary_version"] == "1"


@pytest.mark.parametrize(
    "payload", [b"{", b"[1]", b"null", b'"x"', b"\xff", b"1", b'{"a":' * 17 + b"1" + b"}" * 17]
)
async def test_a_bad_patch_is_refused(lab: Lab, payload: bytes) -> None:
    """C-T119: and nothing of its append is written"""
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.streams.append(claim, [durable(), patch(payload)])
    assert (await read(lab, claim)).frame_count == 0
    with pytest.raises(Invalid):
        await lab.engine.streams.append(
            claim, NewFrame(payload=b"{}", mode=StreamMode.SUMMARY, patch="json-patch")
        )


async def test_a_refused_append_does_not_affect_its_neighbours(lab: Lab) -> None:
    claim = await lab.running()
    answers = await asyncio.gather(
        lab.engine.streams.append(claim, durable(b"a")),
        lab.engine.streams.append(claim, patch(b"[]")),
        lab.engine.streams.append(claim, durable(b"b")),
        return_exceptions=True,
    )
    assert [isinstance(answer, Invalid) for answer in answers] == [False, True, False]
    assert payloads(await read(lab, claim)) == [b"a", b"b"]


async def test_a_pure_best_effort_stream_expires(lab: Lab) -> None:
    """C-T122: twice its ttl after the last frame; what is gone can be seen to be gone"""
    claim = await lab.running()
    await lab.engine.streams.append(claim, live(b"old", ttl=Millis(1000)))
    lab.clock.advance(1999)
    assert payloads(await read(lab, claim)) == [b"old"]
    lab.clock.advance(1)
    page = await read(lab, claim)
    assert (page.frames, page.frame_count) == ((), 1)
    assert page.gap is not None
    await lab.engine.sweep.trim()
    assert await read(lab, claim) == page
    assert await lab.engine.streams.expire() == 0
    await lab.engine.streams.append(claim, live(b"new", ttl=Millis(1000)))
    assert payloads(await read(lab, claim)) == [b"new"]


async def test_expired_frames_do_not_come_back(lab: Lab) -> None:
    """C-T122: also if no sweep has deleted them"""
    claim = await lab.running()
    await lab.engine.streams.append(claim, [live(b"old", ttl=Millis(1000))] * 100)
    lab.clock.advance(2000)
    await lab.engine.streams.append(claim, live(b"new", ttl=Millis(1000)))
    page = await read(lab, claim)
    assert payloads(page) == [b"new"]
    assert page.gap is not None
    assert page.gap.seq == 100


async def test_the_first_durable_frame_keeps_a_stream(lab: Lab) -> None:
    """C-T122"""
    claim = await lab.running()
    await lab.engine.streams.append(claim, live(b"live", ttl=Millis(1000)))
    await lab.engine.streams.append(claim, durable(b"kept"))
    await lab.engine.streams.append(claim, live(b"later", ttl=Millis(1000)))
    lab.clock.advance(10_000)
    await lab.engine.sweep.trim()
    assert payloads(await read(lab, claim)) == [b"live", b"kept", b"later"]


async def test_the_filter_comes_before_the_limit(lab: Lab) -> None:
    """C-T124: a page of durable frames is full if there are enough"""
    claim = await lab.running()
    await lab.engine.streams.append(claim, [live(b"l"), live(b"l"), durable(b"a"), live(b"l")])
    await lab.engine.streams.append(claim, [durable(b"b"), live(b"l"), patch(b"{}")])
    only = Visibility.EXCLUDE_BEST_EFFORT
    page = await read(lab, claim, limit=2, visibility=only)
    assert (payloads(page), page.more) == ([b"a", b"b"], True)
    rest = await lab.engine.streams.tail(claim.id, 0, after=page.cursor, visibility=only)
    assert payloads(rest) == [b"{}"]


async def test_a_gap_counts_only_for_readers_that_would_have_seen_it(lab: Lab) -> None:
    """Q-10"""
    claim = await lab.running()
    await lab.engine.streams.append(claim, [live(b"l", floor=1, ceiling=1)] * 3 + [durable(b"d")])
    assert (await read(lab, claim)).gap == FrameId(lab.clock.now(), 2)
    only = Visibility.EXCLUDE_BEST_EFFORT
    assert (await read(lab, claim, visibility=only)).gap is None


async def test_a_gap_is_told_where_it_is_though_more_was_trimmed_later(lab: Lab) -> None:
    """F-55: a page that ends before the newest trimmed frame does not hide what is missing in it"""
    claim = await lab.running()
    one = live(b"l", floor=1, ceiling=1)
    await lab.engine.streams.append(claim, [durable(b"1"), one, one, durable(b"4"), one, one])
    now = lab.clock.now()
    third, fifth = FrameId(now, 3), FrameId(now, 5)
    first = await read(lab, claim, limit=2)
    assert (payloads(first), first.gap) == ([b"1", b"4"], third)
    rest = await lab.engine.streams.tail(claim.id, 0, after=first.cursor)
    assert (payloads(rest), rest.gap) == ([b"l"], fifth)
    for start, end, gap in (
        (1, 4, third),
        (2, 3, third),
        (2, 5, fifth),
        (4, 4, None),
        (3, 3, third),
    ):
        page = await read(lab, claim, start=f"{now}-{start}", end=f"{now}-{end}")
        assert page.gap == gap, (start, end)
    only = Visibility.EXCLUDE_BEST_EFFORT
    assert (await read(lab, claim, limit=1, visibility=only)).gap is None


async def test_expired_frames_are_no_gap_for_readers_that_leave_them_out(lab: Lab) -> None:
    """Q-10: the same before a sweep has deleted them and afterwards"""
    claim = await lab.running()
    await lab.engine.streams.append(claim, live(b"l", ttl=Millis(1000)))
    lab.clock.advance(2000)
    for _ in range(2):
        page = await read(lab, claim, visibility=Visibility.EXCLUDE_BEST_EFFORT)
        assert (page.gap, page.cursor) == (None, FrameId(0, 0))
        assert (await read(lab, claim)).gap is not None
        await lab.engine.streams.expire()


# -- closing


async def test_a_stream_without_frames_closes_with_its_attempt(lab: Lab) -> None:
    """C-T117: also if nothing was ever written to it"""
    claim = await lab.running()
    assert (await read(lab, claim)).closed is None
    lab.clock.advance(5)
    await lab.complete(claim)
    page = await read(lab, claim)
    assert page.closed == StreamClosing(lab.clock.now(), CloseReason.SUCCESS)
    assert page.ended
    with pytest.raises(NotFound):
        await lab.engine.streams.read(claim.id, 1)


async def test_the_reason_of_a_failed_attempt(lab: Lab) -> None:
    """C-T117: the attempt is over though the run goes on"""
    claim = await lab.running(policy=RETRY_AT_ONCE)
    await lab.fail(claim)
    failed = StreamClosing(lab.clock.now(), CloseReason.FAILURE)
    assert (await read(lab, claim)).closed == failed
    assert (await lab.engine.streams.read(claim.id, 1)).closed is None
    lab.clock.advance(10)
    again = await lab.claim_one()
    await lab.engine.executions.cancel(claim.id, reason="enough")
    assert (await read(lab, claim)).closed == failed
    assert (await read(lab, again)).closed == StreamClosing(lab.clock.now(), CloseReason.CANCELLED)


async def test_lease_expiry_closes_a_stream_for_good(lab: Lab) -> None:
    """C-T117, E-T099: the reason stays when the run is taken over, ends, and is replayed"""
    claim = await lab.running()
    await lab.lose(claim)
    lost = StreamClosing(lab.clock.now(), CloseReason.LEASE_EXPIRED)
    assert (await read(lab, claim)).closed == lost
    lab.clock.advance(100)
    again = await lab.claim_one(W2)
    assert (await read(lab, claim)).closed == lost
    assert (await read(lab, again)).closed is None
    await lab.complete(again)
    assert (await read(lab, claim)).closed == lost
    await lab.engine.executions.replay(claim.id)
    assert (await read(lab, claim)).closed == lost
    assert (await read(lab, again)).closed == StreamClosing(lab.clock.now(), CloseReason.SUCCESS)


async def test_a_revoked_lease_and_a_cancel_after_the_loss(lab: Lab) -> None:
    """C-T117"""
    claim = await lab.running()
    await lab.engine.claims.revoke(claim.id, reason="stuck")
    revoked = StreamClosing(lab.clock.now(), CloseReason.LEASE_REVOKED)
    assert (await read(lab, claim)).closed == revoked
    lab.clock.advance(5)
    await lab.engine.executions.cancel(claim.id, reason="enough")
    assert (await read(lab, claim)).closed == revoked


async def test_timeouts_close_a_stream_as_expired(lab: Lab) -> None:
    """C-T117: of an attempt, and of the whole run; also after a replay"""
    from flowfabric.core.execution.policy import TimeoutPolicy

    timeouts = Policy(timeout_policy=TimeoutPolicy(attempt_timeout_ms=100))
    claim = await lab.running(policy=timeouts)
    await lab.pass_time(100)
    expired = StreamClosing(lab.clock.now(), CloseReason.EXPIRED)
    assert (await read(lab, claim)).closed == expired
    await lab.engine.executions.replay(claim.id)
    assert (await read(lab, claim)).closed == expired
    again = await lab.claim_one()
    await lab.engine.executions.cancel(again.id, reason="enough")
    deadline = Policy(timeout_policy=TimeoutPolicy(execution_deadline_ms=100))
    other = await lab.running(policy=deadline)
    await lab.pass_time(100)
    assert (await read(lab, other)).closed == StreamClosing(lab.clock.now(), CloseReason.EXPIRED)


async def test_a_run_that_never_ran_closes_the_stream_it_was_to_have(lab: Lab) -> None:
    """C-T117"""
    id = await lab.submit()
    assert (await lab.engine.streams.read(id, 0)).closed is None
    await lab.engine.executions.cancel(id, reason="enough")
    page = await lab.engine.streams.read(id, 0)
    assert page.closed == StreamClosing(lab.clock.now(), CloseReason.CANCELLED)
    with pytest.raises(NotFound):
        await lab.engine.streams.read(id, 1)


async def test_an_interrupted_attempt_keeps_its_stream_open(lab: Lab) -> None:
    """§5.2: the same attempt goes on with the same stream"""
    claim = await lab.running()
    await lab.engine.streams.append(claim, durable(b"before"))
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 100))
    assert (await read(lab, claim)).closed is None
    with pytest.raises(StreamClosed):
        await lab.engine.streams.append(claim, durable(b"meanwhile"))
    await lab.pass_time(100)
    again = await lab.claim_one()
    await lab.engine.streams.append(again, durable(b"after"))
    assert payloads(await read(lab, again)) == [b"before", b"after"]


# -- bad input


@pytest.mark.parametrize(
    "given",
    [
        {"start": ""},
        {"start": "-"},
        {"end": "+"},
        {"start": "12-"},
        {"end": "x"},
        {"start": "-5"},
        {"end": "1-2-3"},
        {"start": str(1 << 63)},
        {"start": None},
        {"visibility": "all frames"},
    ],
)
async def test_bad_ranges(lab: Lab, given: dict[str, Any]) -> None:
    """§5.3: the grammar of cursors"""
    claim = await lab.running()
    with pytest.raises(Invalid):
        await read(lab, claim, **given)


@pytest.mark.parametrize(
    "frame",
    [
        "text",
        NewFrame(payload="text"),  # type: ignore[arg-type]
        NewFrame(payload=b"", type="\0"),
        NewFrame(payload=b"", type="x" * 257),
        NewFrame(payload=b"", correlation="x" * 257),
        NewFrame(payload=b"\xff", encoding=Encoding.UTF8),
        NewFrame(payload=b"", at=Millis(-1)),
        live(ttl=Millis(0)),
        live(alpha=0.0),
        live(alpha=2.0),
        live(floor=0),
        live(floor=10, ceiling=9),
        NewFrame(payload=b"", mode="durable"),  # type: ignore[arg-type]
    ],
)
async def test_bad_frames(lab: Lab, frame: Any) -> None:
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.streams.append(claim, [frame])
    assert (await read(lab, claim)).frame_count == 0


async def test_too_many_frames_and_none(lab: Lab) -> None:
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.streams.append(claim, [durable(b"")] * 1001)
    assert await lab.engine.streams.append(claim, []) == ()
    await lab.complete(claim)
    with pytest.raises(StreamClosed):
        await lab.engine.streams.append(claim, [])


async def test_an_owner_without_a_claim_is_checked(lab: Lab) -> None:
    claim = await lab.running()
    with pytest.raises(FenceRequired):
        await lab.engine.streams.append(
            FencedExecution(claim.id, Owner(source="operator_override")), durable()
        )
