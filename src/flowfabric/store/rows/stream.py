"""Rows of output streams: headers, frames, and what was trimmed; the same for every store."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from flowfabric.core.base import document
from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.frame import Encoding, Frame, FrameId, StreamMode
from flowfabric.core.execution.stream import NumberedFrame, Stream, StreamHeader, Summary
from flowfabric.store.queries import FrameRows
from flowfabric.store.readable import UNREADABLE, readable, unreadable

Row = tuple[Any, ...]

STREAM = ("id", "attempt", "version", "doc", "summary", "expires_at")
FRAME = ("id", "attempt", "ms", "seq", "mode", "number", "head", "payload")

_MODES = tuple(StreamMode)
_DEFAULT_TYPE = "event"


class _Head(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What no query asks for. `at` is left out where it is the moment in the id."""

    type: str = _DEFAULT_TYPE
    at: Millis | None = None
    encoding: Encoding = Encoding.UTF8
    correlation: str | None = None
    summary_version: int | None = None
    ttl: Millis | None = None


_read_head = msgspec.json.Decoder(_Head).decode
_read_summary = msgspec.json.Decoder(Summary).decode


def stream_row(stream: Stream, *, summary: bool) -> Row:
    """`summary` says whether it is written; else the stored one stays."""
    return (
        stream.uuid,
        stream.attempt,
        stream.version,
        document.write(stream.header),
        msgspec.json.encode(stream.summary) if summary else None,
        stream.expires_at,
    )


def frame_row(stream: Stream, numbered: NumberedFrame) -> Row:
    frame = numbered.frame
    head = _Head(
        type=frame.type,
        at=None if frame.at == frame.id.ms else frame.at,
        encoding=frame.encoding,
        correlation=frame.correlation,
        summary_version=frame.summary_version,
        ttl=frame.ttl,
    )
    return (
        stream.uuid,
        stream.attempt,
        frame.id.ms,
        frame.id.seq,
        int(frame.mode),
        numbered.number,
        msgspec.json.encode(head),
        frame.payload,
    )


def read_stream(uuid: UUID, row: Sequence[Any]) -> Stream:
    """From the columns of `STREAM` after the id. Corruption names one that cannot be read."""
    attempt, version, doc, summary, expires_at = row
    try:
        return Stream(
            uuid=uuid,
            attempt=attempt,
            version=version,
            header=document.read(StreamHeader, doc),
            summary=None if summary is None else _read_summary(summary),
            expires_at=expires_at,
        )
    except UNREADABLE as error:
        raise unreadable("the stream of run", uuid, error) from None


def read_rows(
    uuid: UUID, stream: Sequence[Any] | None, gaps: Sequence[Row], frames: Sequence[Row]
) -> FrameRows | Corruption:
    """`stream` as for `read_stream`; of gaps (mode, ms, seq); of frames (ms, seq, mode, head,
    payload). A frame that cannot be read is left out."""
    try:
        header = None if stream is None else read_stream(uuid, stream)
    except Corruption as error:
        return error
    return FrameRows(
        stream=header,
        gaps=_read_gaps(gaps),
        frames=tuple(readable(frames, _read_frame, f"a frame of run {uuid}:", _frame_key)),
    )


def _read_gaps(gaps: Sequence[Row]) -> Mapping[StreamMode, FrameId]:
    return {_MODES[mode]: FrameId(ms, seq) for mode, ms, seq in gaps}


def _read_frame(row: Row) -> Frame:
    ms, seq, mode, data, payload = row
    head = _read_head(data)
    return Frame(
        id=FrameId(ms, seq),
        type=head.type,
        at=Millis(ms) if head.at is None else head.at,
        payload=payload,
        encoding=head.encoding,
        mode=_MODES[mode],
        correlation=head.correlation,
        summary_version=head.summary_version,
        ttl=head.ttl,
    )


def _frame_key(row: Row) -> object:
    return FrameId(row[0], row[1])
