"""Output streams: appending to them under a fence, reading, and letting them expire."""

from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.frame import StreamMode
from flowfabric.core.execution.stream import Stream
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.faults import divide
from flowfabric.store.postgres.session import PostgresSession, columns
from flowfabric.store.queries import FrameQuery, FrameRows, FrameWrite, StreamMarks
from flowfabric.store.rows.stream import (
    FRAME,
    STREAM,
    frame_row,
    read_rows,
    read_stream,
    stream_row,
)

Key = tuple[UUID, int]

_WRITE_WIDTH = len(STREAM) + 3
_HEADER, _GAP, _FRAME = range(3)


async def write_frames(
    session: PostgresSession, writes: Sequence[FrameWrite], now: Millis
) -> set[Key]:
    ordered = sorted(writes, key=lambda write: (write.uuid.int, write.key[1]))
    return set[Key]().union(*await divide(ordered, partial(_send, session, now)))


async def streams(session: PostgresSession, keys: Sequence[Key]) -> dict[Key, Stream]:
    rows = await session.fetch(session.load, "streams_of", *columns(keys, 2))
    return {(uuid, row[0]): read_stream(uuid, row) for uuid, *row in rows}


async def read_frames(
    session: PostgresSession, queries: Sequence[FrameQuery]
) -> list[FrameRows | Corruption]:
    asked = [
        (q.uuid, q.attempt, q.first.ms, q.first.seq, q.last.ms, q.last.seq, _live(q), q.limit)
        for q in queries
    ]
    found: list[tuple[list[Any], list[Any], list[Any]]] = [([], [], []) for _ in queries]
    for at, kind, first, version, ms, seq, head, payload in await session.fetch(
        session.load, "frames_between", *columns(asked, 8)
    ):
        match kind:
            case 0:
                found[at - 1][_HEADER].append((first, version, head, None, ms))
            case 1:
                found[at - 1][_GAP].append((first, ms, seq))
            case _:
                found[at - 1][_FRAME].append((ms, seq, first, head, payload))
    return [
        read_rows(query.uuid, headers[0] if headers else None, gaps, frames)
        for query, (headers, gaps, frames) in zip(queries, found, strict=True)
    ]


async def stream_marks(session: PostgresSession, uuids: Sequence[UUID]) -> dict[UUID, StreamMarks]:
    rows = await session.fetch(session.load, "stream_marks", list(uuids))
    return {
        uuid: StreamMarks(state, dict(zip(attempts, versions, strict=True)))
        for uuid, state, attempts, versions in rows
    }


async def expire_frames(session: PostgresSession, now: Millis, limit: int) -> int:
    return await session.sweep.run(partial(_expire, session, now, limit))


async def _send(
    session: PostgresSession, now: Millis, writes: Sequence[FrameWrite], patience: float
) -> set[Key]:
    return await session.end.run(partial(_write, session, now, writes), patience=patience)


async def _write(
    session: PostgresSession,
    now: Millis,
    writes: Sequence[FrameWrite],
    connection: Connection,
    repeated: bool,
) -> set[Key]:
    """One statement; if frames have to go for the new ones, two in a transaction."""
    if not any(write.appending.trims for write in writes):
        written = await _insert(session, now, writes, connection)
    else:
        async with connection.transaction():
            written = await _insert(session, now, writes, connection)
            trims = [
                (*write.key, int(trim.mode), trim.through, trim.most)
                for write in writes
                if write.key in written
                for trim in write.appending.trims
            ]
            if trims:
                await connection.execute(session.queries["trimmed_frames"], *columns(trims, 5))
    if repeated and len(written) < len(writes):
        written |= await _recognise(session, writes, connection)
    return written


async def _insert(
    session: PostgresSession, now: Millis, writes: Sequence[FrameWrite], connection: Connection
) -> set[Key]:
    headers = [
        (
            *stream_row(write.appending.stream, summary=write.appending.patches),
            write.lease_id,
            write.epoch,
            write.expected,
        )
        for write in writes
    ]
    frames = [
        frame_row(write.appending.stream, frame)
        for write in writes
        for frame in write.appending.frames
    ]
    rows = await connection.fetch(
        session.queries["written_frames"],
        *columns(headers, _WRITE_WIDTH),
        now,
        *columns(frames, len(FRAME)),
    )
    return {(uuid, attempt) for uuid, attempt in rows}


async def _recognise(
    session: PostgresSession, writes: Sequence[FrameWrite], connection: Connection
) -> set[Key]:
    """The reply of an earlier try was lost: what it has written."""
    keys = [write.key for write in writes]
    rows = await connection.fetch(session.queries["streams_of"], *columns(keys, 2))
    stored = {(uuid, row[0]): read_stream(uuid, row).header for uuid, *row in rows}
    return {w.key for w in writes if stored.get(w.key) == w.appending.stream.header}


async def _expire(
    session: PostgresSession, now: Millis, limit: int, connection: Connection, repeated: bool
) -> int:
    async with connection.transaction():
        due = await connection.fetch(session.queries["expiring_streams"], now, limit)
        if due:
            await connection.execute(
                session.queries["expired_frames"], *columns([tuple(row) for row in due], 2)
            )
    return len(due)


def _live(query: FrameQuery) -> bool:
    return StreamMode.BEST_EFFORT in query.modes
