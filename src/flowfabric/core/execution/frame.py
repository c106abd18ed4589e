"""Frames: the pieces of output that an attempt writes, their ids, and the cursors that name places
between them.

A frame's id is `<ms>-<seq>`. `seq` numbers the frames of the stream, from 1 and without holes, and
`ms` never falls, so ids strictly increase however the clock behaves. `0-0` is before every frame.
"""

import base64
import re
from enum import IntEnum, StrEnum

from msgspec import Struct

from flowfabric.core.base.errors import Invalid, RetentionLimitExceeded
from flowfabric.core.base.numbers import check_kind_of, check_whole
from flowfabric.core.base.text import MAX_NAME, check_text
from flowfabric.core.base.time import Millis, check_moment, check_span

MAX_FRAME = 1 << 16
"""Bytes of a frame's payload, unless the engine is given another limit."""

MAX_FRAMES = 1000
"""Most frames of one append."""

MAX_CURSOR = (1 << 63) - 1

MERGE_PATCH = "json-merge-patch"
"""The only kind of patch that summary frames have."""

DEFAULT_TTL = Millis(60_000)
MAX_LENGTH = 1 << 20

_CONCRETE = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)


class FrameId(Struct, frozen=True, order=True, gc=False):
    ms: int
    seq: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    @property
    def next(self) -> "FrameId":
        """The first id after this one."""
        return FrameId(self.ms, self.seq + 1) if self.seq < MAX_CURSOR else FrameId(self.ms + 1, 0)

    @classmethod
    def parse(cls, text: object) -> "FrameId":
        """The concrete id in a text; `<ms>` alone is `<ms>-0`."""
        return _concrete(_cursor_text(text), 0)


BEGINNING = FrameId(0, 0)
END = FrameId(MAX_CURSOR, MAX_CURSOR)


def parse_lower(cursor: object) -> FrameId:
    """The first id that a range may contain: `start`, `<ms>` (from its first frame on), or
    `<ms>-<seq>`."""
    return _bound(cursor, 0)


def parse_upper(cursor: object) -> FrameId:
    """The last id that a range may contain: `end`, `<ms>` (all its frames), or `<ms>-<seq>`."""
    return _bound(cursor, MAX_CURSOR)


def parse_after(cursor: object) -> FrameId:
    """The id after which a tail begins. It has to be a concrete one: `0-0` is the beginning."""
    text = _cursor_text(cursor)
    if text in ("start", "end"):
        raise Invalid(f"a tail follows a concrete id, such as 0-0 for the beginning, not {text!r}")
    return _concrete(text, 0)


def _bound(cursor: object, seq: int) -> FrameId:
    match _cursor_text(cursor):
        case "start":
            return BEGINNING
        case "end":
            return END
        case text:
            return _concrete(text, seq)


def _cursor_text(cursor: object) -> str:
    if isinstance(cursor, FrameId):
        return str(cursor)
    text = check_text(cursor, "cursor")
    if not text:
        raise Invalid("a cursor must not be empty")
    if text in ("-", "+"):
        raise Invalid(f"{text!r} is a bare marker; a cursor is start, end, <ms> or <ms>-<seq>")
    return text


def _concrete(text: str, seq: int) -> FrameId:
    match = _CONCRETE.fullmatch(text) if len(text) <= 40 else None
    if match is None:
        raise Invalid(f"{text[:80]!r} is not a cursor: start, end, <ms> or <ms>-<seq>")
    found = FrameId(int(match[1]), seq if match[2] is None else int(match[2]))
    if max(found.ms, found.seq) > MAX_CURSOR:
        raise Invalid(f"the numbers of cursor {text!r} are too large")
    return found


class StreamMode(IntEnum):
    """How long a frame is kept. Each mode has its own room: a frame never pushes out one of another
    mode."""

    DURABLE = 0
    SUMMARY = 1
    """A patch of the attempt's summary, which outlives the frame."""
    BEST_EFFORT = 2

    @property
    def word(self) -> str:
        return self.name.lower()


MODES = {mode.word: mode for mode in StreamMode}


class Visibility(StrEnum):
    """Which frames a reader wants."""

    ALL = "all"
    EXCLUDE_BEST_EFFORT = "exclude_best_effort"


class FrameKind(StrEnum):
    """What a frame without a type of its own is called."""

    STDOUT = "stdout"
    STDERR = "stderr"
    EVENT = "event"
    BLOB = "blob"


class Encoding(StrEnum):
    """What the bytes of a payload are. They are stored as they are, whatever this says."""

    UTF8 = "utf8"
    JSON = "json"
    BINARY = "binary"


class NewFrame(Struct, frozen=True, kw_only=True):
    """A frame to append. `type` is any text; if empty it is the name of the `kind`. `encoding` is
    found out if it is not given: text if the payload is valid UTF-8. `at` is when the content came
    about, now if it is not given.

    `patch` is for summary frames, the rest for best-effort frames: after twice the `ttl` without
    another frame they expire, and so many are kept as come in twice the `ttl` at the present rate,
    at least `floor` and at most `ceiling`; `alpha` is the weight of the newest frame in that rate.
    """

    payload: bytes
    type: str = ""
    kind: FrameKind = FrameKind.EVENT
    mode: StreamMode = StreamMode.DURABLE
    correlation: str | None = None
    encoding: Encoding | None = None
    at: Millis | None = None
    patch: str = MERGE_PATCH
    ttl: Millis = DEFAULT_TTL
    alpha: float = 0.2
    floor: int = 64
    ceiling: int = 16_384


class Frame(Struct, frozen=True, kw_only=True):
    """A stored frame."""

    id: FrameId
    type: str
    at: Millis
    payload: bytes
    encoding: Encoding
    mode: StreamMode
    correlation: str | None = None
    summary_version: int | None = None
    ttl: Millis | None = None

    @property
    def fields(self) -> dict[str, str]:
        """The frame as a flat map of texts. A payload that is not text is in base64, and its
        encoding says so."""
        binary = self.encoding is Encoding.BINARY
        fields = {
            "frame_type": self.type,
            "ts": str(self.at),
            "payload": base64.b64encode(self.payload).decode() if binary else self.payload.decode(),
            "encoding": "base64" if binary else "utf8",
            "source": "worker",
            "mode": self.mode.word,
        }
        if self.correlation is not None:
            fields["correlation_id"] = self.correlation
        if self.summary_version is not None:
            fields["summary_version"] = str(self.summary_version)
        if self.ttl is not None:
            fields["ttl_ms"] = str(self.ttl)
        return fields


def check_frame(value: object, limit: int = MAX_FRAME) -> NewFrame:
    """`value` if it is a frame that can be stored; only its patch is still to be looked at."""
    frame = check_kind_of(value, NewFrame, "frame")
    if not isinstance(frame.payload, bytes):
        raise Invalid(f"the payload must be bytes, not {type(frame.payload).__name__}")
    if len(frame.payload) > limit:
        raise RetentionLimitExceeded("frame", len(frame.payload), limit)
    check_kind_of(frame.kind, FrameKind, "kind")
    check_kind_of(frame.mode, StreamMode, "mode")
    check_text(frame.type, "frame type", limit=MAX_NAME)
    if frame.correlation is not None:
        check_text(frame.correlation, "correlation", limit=MAX_NAME)
    if frame.at is not None:
        check_moment(frame.at, "time of a frame")
    _check_encoding(frame)
    if frame.mode is StreamMode.BEST_EFFORT:
        _check_best_effort(frame)
    return frame


def encoding_of(frame: NewFrame) -> Encoding:
    if frame.mode is StreamMode.SUMMARY:
        return Encoding.JSON
    if frame.encoding is not None:
        return frame.encoding
    return Encoding.UTF8 if _is_text(frame.payload) else Encoding.BINARY


def _check_encoding(frame: NewFrame) -> None:
    if frame.encoding is None:
        return
    check_kind_of(frame.encoding, Encoding, "encoding")
    if frame.encoding is not Encoding.BINARY and not _is_text(frame.payload):
        raise Invalid(f"the payload is not {frame.encoding} text; its encoding is binary")


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_best_effort(frame: NewFrame) -> None:
    check_span(frame.ttl, "ttl", 1)
    check_whole(frame.floor, "floor", 1, MAX_LENGTH)
    check_whole(frame.ceiling, "ceiling", frame.floor, MAX_LENGTH)
    if isinstance(frame.alpha, bool) or not isinstance(frame.alpha, int | float):
        raise Invalid("alpha must be a number")
    if not 0 < frame.alpha <= 1:
        raise Invalid("alpha must be greater than 0 and at most 1")
