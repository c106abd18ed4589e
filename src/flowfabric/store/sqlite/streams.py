"""Output streams: appending to them under a fence, reading, and letting them expire."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.frame import StreamMode
from flowfabric.core.execution.stream import Stream
from flowfabric.store.queries import FrameQuery, FrameRows, FrameWrite, StreamMarks
from flowfabric.store.rows.stream import STREAM, frame_row, read_rows, read_stream, stream_row
from flowfabric.store.sqlite.claim import standing
from flowfabric.store.sqlite.session import SqliteSession, keyed, read_uuid

Row = tuple[Any, ...]


def write_frames(
    session: SqliteSession, writes: Sequence[FrameWrite], now: Millis
) -> set[tuple[UUID, int]]:
    written: set[tuple[UUID, int]] = set()
    for write, id in standing(session, writes, now):
        if not _grow(session, id, write):
            continue
        stream = write.appending.stream
        frames = [keyed(id, frame_row(stream, frame)) for frame in write.appending.frames]
        session.insert("new_frames", frames)
        for trim in write.appending.trims:
            values = {
                "id": id,
                "attempt": stream.attempt,
                "mode": int(trim.mode),
                "through": trim.through,
                "most": trim.most,
            }
            _remember(session, id, stream.attempt, session.rows("trimmed_frames", values))
        written.add(write.key)
    return written


def streams(
    session: SqliteSession, keys: Sequence[tuple[UUID, int]]
) -> dict[tuple[UUID, int], Stream]:
    found = {}
    for uuid, attempt in keys:
        row = session.row("streams_of", {"id": uuid.bytes, "attempt": attempt})
        if row is not None:
            found[uuid, attempt] = read_stream(uuid, row)
    return found


def read_frames(
    session: SqliteSession, queries: Sequence[FrameQuery]
) -> list[FrameRows | Corruption]:
    return [_read(session, query) for query in queries]


def stream_marks(session: SqliteSession, uuids: Sequence[UUID]) -> dict[UUID, StreamMarks]:
    if not uuids:
        return {}
    ids = [uuid.bytes for uuid in uuids]
    marks = session.given("stream_marks", [(id,) for id in ids])
    states = {read_uuid(id): version for id, version in marks}
    versions: dict[UUID, dict[int, int]] = {}
    for id, attempt, version in session.among("stream_versions", ids):
        versions.setdefault(read_uuid(id), {})[attempt] = version
    return {uuid: StreamMarks(states.get(uuid), versions.get(uuid, {})) for uuid in uuids}


def expire_frames(session: SqliteSession, now: Millis, limit: int) -> int:
    due = session.rows("expiring_streams", (now, limit))
    for id, attempt in due:
        values = {"id": id, "attempt": attempt}
        _remember(session, id, attempt, session.rows("expired_frames", values))
        session.execute("expired_stream", values)
    return len(due)


def _grow(session: SqliteSession, id: bytes, write: FrameWrite) -> bool:
    """The header after the append; False if the stream has changed."""
    stream = write.appending.stream
    row = keyed(id, stream_row(stream, summary=write.appending.patches))
    if write.expected == 0:
        return session.execute("new_stream", row).rowcount == 1
    values = {**dict(zip(STREAM, row, strict=True)), "expected": write.expected}
    return session.execute("grown_stream", values).rowcount == 1


def _remember(session: SqliteSession, id: bytes, attempt: int, gone: Iterable[Row]) -> None:
    """Keeps the newest frame of each mode that is gone."""
    newest: dict[int, tuple[int, int]] = {}
    for mode, ms, seq in gone:
        newest[mode] = max((ms, seq), newest.get(mode, (ms, seq)))
    gaps = [(id, attempt, mode, *position) for mode, position in newest.items()]
    session.each("new_gaps", gaps)


def _read(session: SqliteSession, query: FrameQuery) -> FrameRows | Corruption:
    key = {"id": query.uuid.bytes, "attempt": query.attempt}
    header = session.row("stream_header", key)
    if header is None:
        return FrameRows(None, {}, ())
    between = {
        **key,
        "first_ms": query.first.ms,
        "first_seq": query.first.seq,
        "last_ms": query.last.ms,
        "last_seq": query.last.seq,
        "live": StreamMode.BEST_EFFORT in query.modes,
        "limit": query.limit,
    }
    gaps, frames = session.rows("stream_gaps", key), session.rows("frames_between", between)
    return read_rows(query.uuid, header, gaps, frames)
