"""The output stream of an attempt: what an append adds, what it trims, and when a stream is closed.

A stream begins with its first frame and closes with its attempt. Closing is not written: it follows
from the record of the attempt (`closing`), so an ending costs nothing more. A suspended attempt
goes on later, and so does its stream.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.document import Document
from flowfabric.core.base.errors import (
    Corruption,
    FenceRequired,
    Invalid,
    NotFound,
    RetentionLimitExceeded,
    StaleOwner,
    StreamClosed,
)
from flowfabric.core.base.numbers import check_kind_of, check_whole
from flowfabric.core.base.text import MAX_STEP_NAME, check_text
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempts import (
    StreamClosing,
    closing_of,
    closing_of_run,
    inline_attempts,
)
from flowfabric.core.execution.change import Change, refused, unchanged
from flowfabric.core.execution.frame import (
    BEGINNING,
    MERGE_PATCH,
    Frame,
    FrameId,
    NewFrame,
    StreamMode,
    Visibility,
    encoding_of,
)
from flowfabric.core.execution.lease import Owner, fence_of, lose
from flowfabric.core.execution.merge_patch import merge, read_patch
from flowfabric.core.execution.model import Active, Attempt, Ended, Lost, Snapshot

KEPT_DURABLE = 10_000
KEPT_SUMMARY = 64
"""How many frames of these modes are kept, unless the policy of the run says otherwise."""

MAX_SUMMARY = 1 << 18
"""Bytes of a summary."""

PAST_APPENDS = 8
"""How many appends are remembered at least."""

MAX_BRANCHES = 256
"""For how many branches of a handler it is remembered how far they have come, the latest ones."""

_NONE = (0, 0, 0)


class Summary(Struct, frozen=True, kw_only=True):
    """What the summary frames of an attempt add up to. `document` is a JSON object."""

    document: msgspec.Raw = msgspec.Raw(b"{}")
    version: int = 0
    patch_kind: str = MERGE_PATCH
    first_applied_at: Millis = Millis(0)
    last_updated_at: Millis = Millis(0)


class PastAppend(Struct, frozen=True, array_like=True):
    """An append that was written: the number that its caller gave it, the id of its last frame, how
    many frames it had, and the version of the summary after it."""

    write: int
    last: FrameId
    frames: int
    summary_version: int


class EmitPlace(Struct, frozen=True):
    """Where a handler emits: in which of its branches, after how many calls of that branch, and how
    often it has emitted since. A handler that runs again in the same attempt comes to the same
    places in the same order; what it has emitted there is not emitted again."""

    branch: str
    calls: int
    number: int


class StreamHeader(Document, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a stream without its frames. `last` is the id of its newest frame.

    `counts` are the frames ever appended of each mode, `trimmed` says up to which of them they were
    trimmed. `maxlen` is how many durable frames are kept. `rate` is how many best-effort frames
    come in a second, `live_at` when the last one came, and `live_kept` how many of them are kept.
    `writes` are the last appends, at most `kept_writes`, so that one that is repeated is
    recognised. `emitted` is how far the handler has come in each of its branches: see `EmitPlace`.
    """

    created_at: Millis = Millis(0)
    last: FrameId = BEGINNING
    bytes: int = 0
    last_at: Millis = Millis(0)
    counts: tuple[int, int, int] = _NONE
    trimmed: tuple[int, int, int] = _NONE
    maxlen: int = KEPT_DURABLE
    rate: float = 0.0
    live_at: Millis | None = None
    live_kept: int = 0
    writes: tuple[PastAppend, ...] = ()
    kept_writes: int = PAST_APPENDS
    emitted: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)

    @property
    def frame_count(self) -> int:
        """The frames ever appended, trimmed ones included."""
        return self.last.seq

    @property
    def has_durable_frame(self) -> bool:
        return bool(self.counts[StreamMode.DURABLE] or self.counts[StreamMode.SUMMARY])


NEW = StreamHeader()


class Stream(Struct, frozen=True, kw_only=True):
    """The stream of one attempt at one version; version 0 is one that has no frame yet. All its
    frames expire at `expires_at`."""

    uuid: UUID
    attempt: int
    version: int = 0
    header: StreamHeader = NEW
    summary: Summary | None = None
    expires_at: Millis | None = None

    def expired(self, now: Millis) -> bool:
        return self.expires_at is not None and self.expires_at <= now


class NumberedFrame(Struct, frozen=True):
    """A new frame, and how many frames of its mode there are up to it."""

    frame: Frame
    number: int


class Trim(Struct, frozen=True):
    """Frames of a mode that go, the oldest first: numbered up to `through`, at most `most`."""

    mode: StreamMode
    through: int
    most: int


class AppendedFrame(Struct, frozen=True):
    """Where a frame was put, how many frames the stream has had with it, and the version of the
    summary after it if it was a patch of it."""

    id: FrameId
    frame_count: int
    summary_version: int | None = None


class Appending(Struct, frozen=True):
    """What one append does: the stream after it, its new frames, and the frames that go."""

    stream: Stream
    frames: tuple[NumberedFrame, ...]
    trims: tuple[Trim, ...]
    answers: tuple[AppendedFrame, ...]

    @property
    def patches(self) -> bool:
        """Whether it changes the summary."""
        return any(each.frame.mode is StreamMode.SUMMARY for each in self.frames)


def append(
    stream: Stream,
    now: Millis,
    frames: Sequence[NewFrame],
    write: int,
    place: EmitPlace | None = None,
    at_once: int = 1,
) -> Appending:
    """Appends checked frames, all of them or, if one is refused, none. `write` is the caller's
    number for this append: repeating it, because the reply was lost, appends nothing again. Nothing
    is appended at a `place` that the handler has come to before, and nothing answered. So many
    appends to the stream are written `at_once`."""
    past = next((past for past in stream.header.writes if past.write == write), None)
    if past is not None:
        return Appending(stream, (), (), _answers_of(past, frames))
    if place is not None and _was_reached(stream.header, place):
        return Appending(stream, (), (), ())
    gone = stream.header.counts[StreamMode.BEST_EFFORT] if stream.expired(now) else 0
    added: list[NumberedFrame] = []
    answers: list[AppendedFrame] = []
    after = stream
    if gone:  # the rate begins again with the next frame
        after = replace(stream, header=replace(stream.header, live_at=None, live_kept=0))
    for frame in frames:
        after, numbered = _append(after, now, frame)
        added.append(numbered)
        id, version = numbered.frame.id, numbered.frame.summary_version
        answers.append(AppendedFrame(id, id.seq, version))
    trims = tuple(_trims(after.header, gone))
    trimmed = {mode: after.header.trimmed[mode] for mode in StreamMode}
    trimmed |= {trim.mode: trim.through for trim in trims}
    patched = 0 if after.summary is None else after.summary.version
    past = PastAppend(write, after.header.last, len(added), patched)
    # They lose their reply together, and are repeated among new ones.
    kept = max(PAST_APPENDS, 2 * at_once, after.header.kept_writes - 1)
    writes = (*after.header.writes, past)[-kept:]
    header = replace(after.header, trimmed=_three(trimmed), writes=writes, kept_writes=kept)
    if place is not None:
        header = replace(header, emitted=_reached(header.emitted, place))
    after = replace(after, version=stream.version + 1, header=header)
    return Appending(after, tuple(added), trims, tuple(answers))


def check_place(value: object) -> EmitPlace:
    """`value` if it is a place that can be stored."""
    place = check_kind_of(value, EmitPlace, "place")
    check_text(place.branch, "branch", limit=MAX_STEP_NAME)
    check_whole(place.calls, "calls")
    check_whole(place.number, "number", 1)
    return place


def _was_reached(header: StreamHeader, place: EmitPlace) -> bool:
    return header.emitted.get(place.branch, (-1, 0)) >= (place.calls, place.number)


def _reached(
    emitted: Mapping[str, tuple[int, int]], place: EmitPlace
) -> dict[str, tuple[int, int]]:
    others = [each for each in emitted.items() if each[0] != place.branch]
    latest = others[len(others) + 1 - MAX_BRANCHES :] if len(others) >= MAX_BRANCHES else others
    return dict([*latest, (place.branch, (place.calls, place.number))])


def _answers_of(past: PastAppend, frames: Sequence[NewFrame]) -> tuple[AppendedFrame, ...]:
    """What the append was answered when it was written. All its frames have the same moment."""
    answers: list[AppendedFrame] = []
    version = past.summary_version
    for back, frame in enumerate(reversed(frames[-past.frames :])):
        id = FrameId(past.last.ms, past.last.seq - back)
        patches = frame.mode is StreamMode.SUMMARY
        answers.append(AppendedFrame(id, id.seq, version if patches else None))
        version -= patches
    return tuple(reversed(answers))


def together(parts: Sequence[Appending]) -> Appending:
    """Appends to one stream, each decided on the one before, as one."""
    trims: dict[StreamMode, Trim] = {}
    for trim in (trim for part in parts for trim in part.trims):
        before = trims.get(trim.mode)
        trims[trim.mode] = replace(trim, most=trim.most + (before.most if before else 0))
    return Appending(
        parts[-1].stream,
        tuple(frame for part in parts for frame in part.frames),
        tuple(trims.values()),
        tuple(answer for part in parts for answer in part.answers),
    )


def _append(stream: Stream, now: Millis, new: NewFrame) -> tuple[Stream, NumberedFrame]:
    header, mode = stream.header, new.mode
    id = FrameId(max(now, header.last.ms), header.last.seq + 1)
    counts = _three({each: header.counts[each] + (each is mode) for each in StreamMode})
    summary = _summarised(stream.summary, now, new) if mode is StreamMode.SUMMARY else None
    frame = Frame(
        id=id,
        type=new.type or new.kind.value,
        at=now if new.at is None else new.at,
        payload=new.payload,
        encoding=encoding_of(new),
        mode=mode,
        correlation=new.correlation,
        summary_version=None if summary is None else summary.version,
        ttl=new.ttl if mode is StreamMode.BEST_EFFORT else None,
    )
    header = replace(
        header,
        created_at=header.created_at or now,
        last=id,
        bytes=header.bytes + len(new.payload),
        last_at=now,
        counts=counts,
    )
    if mode is StreamMode.BEST_EFFORT:
        header = _paced(header, now, new)
    durable = header.has_durable_frame
    after = replace(
        stream,
        header=header,
        summary=summary or stream.summary,
        expires_at=None if durable else Millis(now + 2 * new.ttl),
    )
    return after, NumberedFrame(frame, counts[mode])


def _paced(header: StreamHeader, now: Millis, new: NewFrame) -> StreamHeader:
    """How many best-effort frames are kept at the present rate, which is a moving average.

    With a ttl of 5 s, 100 frames a second settle at 100 x 5 x 2 = 1000 kept frames; a pause of a
    minute counts as 0.02 frames a second and lowers that by a fifth (alpha 0.2).
    """
    seconds = new.ttl / 1000 * 2
    if header.live_at is None:
        return replace(header, live_at=now, rate=new.floor / seconds, live_kept=new.floor)
    newest = 1000 / max(1, now - header.live_at)
    rate = new.alpha * newest + (1 - new.alpha) * header.rate
    kept = min(max(ceil(rate * seconds), new.floor), new.ceiling)
    return replace(header, live_at=max(now, header.live_at), rate=rate, live_kept=kept)


def _summarised(summary: Summary | None, now: Millis, new: NewFrame) -> Summary:
    if new.patch != MERGE_PATCH:
        raise Invalid(f"{str(new.patch)[:80]!r} is not a kind of patch; use {MERGE_PATCH}")
    patch = read_patch(new.payload)
    before = summary or Summary(first_applied_at=now)
    document = msgspec.json.encode(merge(read_document(before), patch))
    if len(document) > MAX_SUMMARY:
        raise RetentionLimitExceeded("summary", len(document), MAX_SUMMARY)
    return replace(
        before, document=msgspec.Raw(document), version=before.version + 1, last_updated_at=now
    )


def read_document(summary: Summary) -> dict[str, object]:
    """The document of a summary; Corruption if no release of this engine wrote it."""
    try:
        return msgspec.json.decode(summary.document, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corruption(f"the summary of a stream cannot be read: {error}") from None


def _trims(header: StreamHeader, expired: int) -> Iterator[Trim]:
    """What has to go so that each mode keeps as many as it may; of best-effort frames also those
    that have expired."""
    kept = {
        StreamMode.DURABLE: header.maxlen,
        StreamMode.SUMMARY: KEPT_SUMMARY,
        StreamMode.BEST_EFFORT: header.live_kept,
    }
    for mode, room in kept.items():
        through = header.counts[mode] - room
        if mode is StreamMode.BEST_EFFORT:
            through = max(through, expired)
        if (most := through - header.trimmed[mode]) > 0:
            yield Trim(mode, through, most)


def _three(numbers: Mapping[StreamMode, int]) -> tuple[int, int, int]:
    durable, summary, best_effort = (numbers[mode] for mode in StreamMode)
    return durable, summary, best_effort


def may_append(snapshot: Snapshot | None, now: Millis, owner: Owner) -> "Change[int]":
    """The index of the attempt whose stream its owner may append to; else why not, in this order:
    the run goes on, its lease was not lost, has not expired, and is the caller's."""
    fence = owner.fence
    if fence is None:
        raise FenceRequired("only the owner of a lease can append to its stream")
    match snapshot:
        case Snapshot(state=Active(lease=lease)):
            pass
        case Snapshot(state=Lost()):
            raise StaleOwner(f"the lease of {snapshot.run} was lost")
        case Snapshot():
            raise StreamClosed(f"no attempt of {snapshot.run} is running")
        case None:
            raise StreamClosed("the run does not exist")
    if lease.expires_at <= now:
        expired = lose(snapshot, now, lease, revoked=False)
        return refused(expired, StaleOwner(f"the lease of {snapshot.run} expired"))
    if fence != fence_of(snapshot, lease):
        raise StaleOwner(f"{snapshot.run} has a newer lease, epoch {snapshot.head.epoch}")
    return unchanged(lease.attempt)


def attempt_in(snapshot: Snapshot, index: int) -> Attempt | None:
    """The record of an attempt that has no row in history yet."""
    return next((each for each in inline_attempts(snapshot) if each.index == index), None)


def closing(snapshot: Snapshot, index: int, past: Attempt | None) -> StreamClosing | None:
    """When and why the stream of an attempt closed; None while it is open, also before the attempt
    begins. `past` is the record of the attempt in history, if there is one. NotFound for an attempt
    that an ended run has not had; one that it was to have closes with the run."""
    attempt = attempt_in(snapshot, index) or past
    if attempt is not None:
        return closing_of(attempt)
    state = snapshot.state
    if not isinstance(state, Ended):
        return None
    never_began = state.pending is not None or state.attempt is None
    if index < snapshot.attempts_made or (never_began and index == snapshot.attempts_made):
        return closing_of_run(snapshot, state)
    raise NotFound("attempt", index)


def visible_modes(visibility: Visibility) -> tuple[StreamMode, ...]:
    """The modes of the frames that a reader wants."""
    if visibility is Visibility.ALL:
        return tuple(StreamMode)
    return (StreamMode.DURABLE, StreamMode.SUMMARY)
