"""The rules of output streams: what an append adds and trims, and when a stream is closed."""

from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flowfabric.core.base.errors import Corruption, Invalid, RetentionLimitExceeded
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempts import closing_of
from flowfabric.core.execution.frame import FrameId, NewFrame, StreamMode
from flowfabric.core.execution.model import Attempt, AttemptOutcome, Failure, Start
from flowfabric.core.execution.outcome import CloseReason
from flowfabric.core.execution.stream import (
    MAX_BRANCHES,
    PAST_APPENDS,
    Appending,
    EmitPlace,
    Stream,
    StreamHeader,
    Summary,
    append,
    together,
)

RUN = UUID(int=1)
NEW = Stream(uuid=RUN, attempt=0)
NOW = Millis(1_000_000)


def durable(payload: bytes = b"x") -> NewFrame:
    return NewFrame(payload=payload)


def live(ttl: int = 5000, **members: object) -> NewFrame:
    return NewFrame(
        payload=b"x",
        mode=StreamMode.BEST_EFFORT,
        ttl=Millis(ttl),
        **members,  # type: ignore[arg-type]
    )


def patch(payload: bytes = b"{}") -> NewFrame:
    return NewFrame(payload=payload, mode=StreamMode.SUMMARY)


def at(now: int, stream: Stream, *frames: NewFrame, write: int = 0) -> Appending:
    """Every append has a number of its own, unless one is given."""
    return append(stream, Millis(now), frames, write or now * 1000 + stream.version)


# -- ids and counters


@given(st.lists(st.tuples(st.integers(0, 2_000_000), st.integers(1, 4)), max_size=30))
def test_ids_grow_whatever_the_clock_does(appends: list[tuple[int, int]]) -> None:
    stream, ids = NEW, list[FrameId]()
    for number, (now, count) in enumerate(appends):
        part = at(now, stream, *[durable()] * count, write=number + 1)
        ids += [answer.id for answer in part.answers]
        assert part.answers[-1].frame_count == len(ids)
        stream = part.stream
    assert ids == sorted(set(ids))
    assert all(FrameId(0, 0) < id for id in ids)
    assert [id.seq for id in ids] == list(range(1, len(ids) + 1))
    assert stream.header.frame_count == len(ids)
    assert stream.header.bytes == len(ids)


def test_a_stream_remembers_when_it_began_and_was_last_appended_to() -> None:
    first = at(NOW, NEW, durable()).stream
    second = at(NOW + 7, first, durable()).stream
    assert (second.header.created_at, second.header.last_at) == (NOW, NOW + 7)
    assert (first.version, second.version) == (1, 2)


def test_a_repeated_append_is_recognised_among_the_last_ones() -> None:
    frames = [durable(), patch(b'{"n":1}'), patch(b'{"n":2}'), durable()]
    first = append(NEW, NOW, frames, 7)
    stream = first.stream
    for number in range(PAST_APPENDS - 1):
        again = append(stream, Millis(NOW + 9), frames, 7)
        assert (again.answers, again.frames, again.stream) == (first.answers, (), stream)
        stream = append(stream, NOW, [patch()], 100 + number).stream
    assert append(stream, NOW, frames, 7).frames == ()
    forgotten = append(stream, NOW, [durable()], 200).stream
    assert len(append(forgotten, NOW, frames, 7).frames) == 4


def test_appends_written_at_once_are_remembered_together() -> None:
    stream = NEW
    for number in range(20):
        stream = append(stream, NOW, [durable()], number, at_once=20).stream
    for number in range(10):  # new ones, before the repeats
        stream = append(stream, NOW, [durable()], 100 + number).stream
    assert all(not append(stream, NOW, [durable()], number).frames for number in range(20))
    for number in range(22):
        stream = append(stream, NOW, [durable()], 200 + number).stream
    assert len(stream.header.writes) == PAST_APPENDS


def test_what_a_handler_has_emitted_at_a_place_is_not_emitted_again() -> None:
    def emit(stream: Stream, write: int, *place: int, branch: str = "") -> Appending:
        return append(stream, NOW, [durable()], write, EmitPlace(branch, *place))

    stream = emit(emit(NEW, 1, 0, 1).stream, 2, 0, 2).stream
    for known in ((0, 1), (0, 2)):
        assert emit(stream, 3, *known) == Appending(stream, (), (), ())
    assert emit(stream, 3, 0, 3).frames
    assert emit(stream, 3, 1, 1).frames
    assert emit(stream, 3, 0, 1, branch="1").frames


def test_only_so_many_branches_are_remembered() -> None:
    stream = NEW
    for number in range(MAX_BRANCHES + 10):
        place = EmitPlace(str(number), 0, 1)
        stream = append(stream, NOW, [durable()], number + 1, place).stream
    assert len(stream.header.emitted) == MAX_BRANCHES
    assert str(MAX_BRANCHES + 9) in stream.header.emitted
    assert "0" not in stream.header.emitted


# -- retention


def test_each_mode_is_trimmed_by_itself() -> None:
    """F-53: the room of one mode does not depend on the frames of another."""
    stream = replace(NEW, header=StreamHeader(maxlen=3))
    frames = [durable()] * 5 + [patch()] * 66 + [live(floor=2, ceiling=2)] * 4
    part = at(NOW, stream, *frames)
    assert {trim.mode: (trim.through, trim.most) for trim in part.trims} == {
        StreamMode.DURABLE: (2, 2),
        StreamMode.SUMMARY: (2, 2),
        StreamMode.BEST_EFFORT: (2, 2),
    }
    later = at(NOW, part.stream, durable(), write=1)
    assert [(trim.mode, trim.through, trim.most) for trim in later.trims] == [
        (StreamMode.DURABLE, 3, 1)
    ]


def test_appends_that_ride_together_trim_together() -> None:
    stream = replace(NEW, header=StreamHeader(maxlen=1))
    first = at(NOW, stream, durable(), durable(), write=1)
    second = at(NOW, first.stream, durable(), write=2)
    both = together([first, second])
    assert both.stream == second.stream
    assert [frame.number for frame in both.frames] == [1, 2, 3]
    assert [(trim.through, trim.most) for trim in both.trims] == [(2, 2)]
    assert both.answers == (*first.answers, *second.answers)


def test_the_number_of_best_effort_frames_follows_their_rate() -> None:
    """C-T123: it begins at the floor, a burst raises it, a pause lowers it, the ceiling holds."""
    kept, stream, now = [], NEW, int(NOW)
    for _ in range(50):
        stream = at(now, stream, live()).stream
        kept.append(stream.header.live_kept)
        now += 10
    assert kept[0] == 64
    assert kept == sorted(kept)
    assert 900 < kept[-1] <= 1000
    paused = at(now + 60_000, stream, live()).stream.header.live_kept
    assert 64 <= paused < kept[-1]
    for _ in range(100):
        stream = at(now, stream, live(ceiling=5000)).stream
    assert stream.header.live_kept == 5000


def test_the_rate_is_a_moving_average() -> None:
    """C-T123: K = ceil(rate x ttl in seconds x 2), the first frame seeds the floor"""
    first = at(NOW, NEW, live(ttl=1000, floor=10)).stream
    assert first.header.rate == 5.0
    second = at(NOW + 20, first, live(ttl=1000, floor=10)).stream
    assert second.header.rate == pytest.approx(0.2 * 50 + 0.8 * 5)
    assert second.header.live_kept == 28


def test_a_pure_best_effort_stream_has_a_moment_to_expire() -> None:
    """C-T122"""
    stream = at(NOW, NEW, live(ttl=1000)).stream
    assert stream.expires_at == NOW + 2000
    assert stream.expired(Millis(NOW + 2000))
    assert not stream.expired(Millis(NOW + 1999))
    later = at(NOW + 500, stream, live(ttl=3000)).stream
    assert later.expires_at == NOW + 6500
    for lasting in (durable(), patch()):
        kept = at(NOW, later, lasting).stream
        assert kept.expires_at is None
        assert at(NOW, kept, live(), write=5).stream.expires_at is None


def test_a_stream_that_has_expired_goes_on_without_its_frames() -> None:
    stream = at(NOW, NEW, *[live(ttl=1000)] * 100).stream
    part = at(NOW + 2000, stream, live(ttl=1000))
    assert [(trim.through, trim.most) for trim in part.trims] == [(100, 100)]
    assert part.stream.header.frame_count == 101
    assert part.stream.header.live_kept == 64


# -- summaries


def test_three_patches_add_up() -> None:
    """C-T119, I-39"""
    part = at(NOW, NEW, patch(b'{"a":1}'), patch(b'{"b":{"c":2}}'), patch(b'{"b":{"d":3}}'))
    summary = part.stream.summary
    assert summary is not None
    assert msgspec.json.decode(summary.document) == {"a": 1, "b": {"c": 2, "d": 3}}
    assert [answer.summary_version for answer in part.answers] == [1, 2, 3]
    assert (summary.first_applied_at, summary.last_updated_at) == (NOW, NOW)
    assert part.patches
    later = at(NOW + 5, part.stream, durable()).stream.summary
    assert later == summary


def test_an_unreadable_document_is_corruption() -> None:
    """§5.1, 8"""
    broken = replace(NEW, summary=Summary(document=msgspec.Raw(b"[1]"), version=1))
    with pytest.raises(Corruption):
        at(NOW, broken, patch())


def test_a_summary_has_a_limit() -> None:
    patches = [patch(msgspec.json.encode({str(n): "x" * 60_000})) for n in range(5)]
    stream = at(NOW, NEW, *patches[:4]).stream
    with pytest.raises(RetentionLimitExceeded):
        at(NOW, stream, patches[4])


def test_an_unknown_kind_of_patch_is_refused() -> None:
    with pytest.raises(Invalid):
        at(NOW, NEW, replace(patch(), patch="json-patch"))


# -- closing


def attempt(outcome: AttemptOutcome, **members: object) -> Attempt:
    return Attempt(
        index=0,
        type=Start.INITIAL,
        outcome=outcome,
        ended_at=NOW,
        **members,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (attempt(AttemptOutcome.SUCCESS), CloseReason.SUCCESS),
        (attempt(AttemptOutcome.FAILURE, failure=Failure("boom")), CloseReason.FAILURE),
        (
            attempt(AttemptOutcome.FAILURE, failure=Failure("attempt_timeout", "timeout")),
            CloseReason.EXPIRED,
        ),
        (
            attempt(AttemptOutcome.FAILURE, failure=Failure("attempt_timeout")),
            CloseReason.FAILURE,
        ),
        (attempt(AttemptOutcome.CANCELLED), CloseReason.CANCELLED),
        (attempt(AttemptOutcome.RECLAIMED), CloseReason.RECLAIMED),
        (
            attempt(AttemptOutcome.CANCELLED, closed=CloseReason.DEPENDENCY_IMPOSSIBLE),
            CloseReason.DEPENDENCY_IMPOSSIBLE,
        ),
    ],
)
def test_why_a_stream_was_closed(record: Attempt, reason: CloseReason) -> None:
    """§5.2"""
    closing = closing_of(record)
    assert closing is not None
    assert (closing.at, closing.reason) == (NOW, reason)


@pytest.mark.parametrize("outcome", [AttemptOutcome.STARTED, AttemptOutcome.SUSPENDED])
def test_an_attempt_that_goes_on_keeps_its_stream_open(outcome: AttemptOutcome) -> None:
    assert closing_of(attempt(outcome)) is None
    lost = attempt(outcome, closed=CloseReason.LEASE_EXPIRED, closed_at=Millis(5))
    closing = closing_of(lost)
    assert closing is not None
    assert closing.at == 5
