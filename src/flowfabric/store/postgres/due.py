"""What time has made due, who looks after it, and what is old enough to go."""

from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import FOREVER
from flowfabric.core.execution.sweep_filter import EVERY_RUN, SweepFilter
from flowfabric.store.clock import OffsetClock
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import PostgresSession
from flowfabric.store.queries import Glance

GLANCE_SECONDS = 3.0
"""At rest it is the only statement, so the one that notices a connection that fell silent."""

_TRIMMED = (
    "trimmed_keys",
    "trimmed_tags",
    "trimmed_attempts",
    "trimmed_steps",
    "trimmed_progress",
    "trimmed_streams",
    "trimmed_stream_frames",
    "trimmed_stream_gaps",
    "trimmed_waitpoints",
    "trimmed_signals",
    "trimmed_marks",
    "trimmed_ledgers",
    "trimmed_events",
    "trimmed_done",
    "trimmed_executions",
)

_FLOW_TRIMMED = ("trimmed_flow_edges", "trimmed_outbox", "gone_flow_tags", "trimmed_flows")


_PASSED = (
    "ready", "lease", "parked", "done", "execution", "event", "attempt", "step", "progress", "tag",
    "dedup", "deadline", "submission_inbox", "waitpoint", "signal", "dedup_record", "edge",
    "flow_outbox", "admission", "stream", "frame", "frame_gap",
)  # fmt: skip
"""Tables that work passes through."""

LARGE = 8 << 20
"""Bytes from which an empty table is given back to the disk."""


async def due(
    session: PostgresSession,
    now: Millis,
    limit: int,
    *,
    leases: bool = True,
    wanted: SweepFilter = EVERY_RUN,
) -> list[UUID]:
    values = (*wanted.values, now, limit, leases)
    rows = await session.fetch(session.sweep, "due_executions", *values)
    return [uuid for (uuid,) in rows]


async def set_aside(
    session: PostgresSession, uuids: Sequence[UUID], now: Millis, until: Millis
) -> None:
    await session.fetch(session.sweep, "set_aside", list(uuids), now, until)


async def next_due(session: PostgresSession, now: Millis, *, leases: bool = True) -> Millis | None:
    ((moment,),) = await session.fetch(session.sweep, "next_due_moment", now, leases)
    return None if moment is None else Millis(moment)


async def trim(
    session: PostgresSession,
    ended_before: Millis,
    now: Millis,
    limit: int,
    unread_from: Millis = FOREVER,
    wanted: SweepFilter = EVERY_RUN,
) -> int:
    work = partial(_trim, session, ended_before, now, limit, unread_from, wanted)
    trimmed = await session.sweep.run(work)
    if trimmed < limit:
        # The last page: what is empty now need not stay large.
        await session.fetch(session.sweep, "shrunk_tables", _PASSED, LARGE)
    return trimmed


async def glance(
    session: PostgresSession,
    duty: str,
    holder: str,
    now: Millis,
    until: Millis,
    *,
    ready: bool = True,
    leases: bool = True,
) -> Glance:
    values = (duty, holder, now, until, FOREVER, leases, ready)
    work = partial(_glance, session, values)
    return await session.sweep.run(work, limit=GLANCE_SECONDS)


async def drop_duty(session: PostgresSession, duty: str, holder: str) -> None:
    await session.fetch(session.sweep, "dropped_duty", duty, holder)


async def _glance(
    session: PostgresSession, values: tuple[Any, ...], connection: Connection, repeated: bool
) -> Glance:
    clock = session.clock.source
    sent = OffsetClock.steady()
    row = await connection.fetchrow(session.queries["glance"], *values)
    if row is None:
        raise AssertionError("a glance always has an answer")
    *seen, correction, moment = row
    session.learned.correction = (correction, sent)
    if isinstance(clock, OffsetClock):
        clock.sample(sent, clock.steady(), moment)
    return Glance(*seen)


async def _trim(
    session: PostgresSession,
    ended_before: Millis,
    now: Millis,
    limit: int,
    unread_from: Millis,
    wanted: SweepFilter,
    connection: Connection,
    repeated: bool,
) -> int:
    queries = session.queries
    async with connection.transaction():
        query, whose = queries["trimmable_executions"], wanted.values
        rows = await connection.fetch(query, *whose, ended_before, now, limit, unread_from)
        if len(rows) < limit:
            values = (*whose, ended_before, now, limit - len(rows))
            rows += await _trim_edges(session, connection, values)
        if rows:
            ids = sorted((uuid for (uuid,) in rows), key=lambda uuid: int(uuid.int))
            for name in _TRIMMED:
                await connection.execute(queries[name], ids)
        flows = await connection.fetch(queries["trimmable_flows"], *whose, ended_before, limit)
        if flows:
            for name in _FLOW_TRIMMED:
                await connection.execute(queries[name], [uuid for (uuid,) in flows])
        await connection.execute(queries["trimmed_registry_events"], ended_before, limit)
        await connection.execute(queries["lapsed_keys"], now, limit)
    return len(rows)


async def _trim_edges(
    session: PostgresSession, connection: Connection, values: tuple[Any, ...]
) -> list[Any]:
    """The members that may go now; the edges into them are gone."""
    queries = session.queries
    rows = await connection.fetch(queries["trimmable_members"], *values)
    if rows:
        await connection.execute(queries["trimmed_edges"], [uuid for (uuid,) in rows])
    return rows
