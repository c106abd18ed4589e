"""What is due, what may be deleted, and who looks after it."""

import secrets
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import FOREVER
from flowfabric.core.execution.sweep_filter import EVERY_RUN, SweepFilter
from flowfabric.store.copy import secret_in
from flowfabric.store.queries import Glance
from flowfabric.store.sqlite.session import SqliteSession, read_uuid

FREE_PAGES = 1000
"""So many empty pages are kept for what comes next."""

CUT_PAGES = 4000
"""Most pages that are given back at a time."""

_BELONGINGS = (
    "gone_done",
    "gone_deadlines",
    "trimmed_attempts",
    "trimmed_steps",
    "trimmed_waitpoints",
    "trimmed_signals",
    "trimmed_marks",
    "trimmed_events",
    "trimmed_tags",
    "trimmed_progress",
    "trimmed_streams",
    "trimmed_stream_frames",
    "trimmed_stream_gaps",
    "trimmed_ledgers",
    "trimmed_executions",
)

_FLOW_BELONGINGS = ("trimmed_flow_edges", "trimmed_outbox", "gone_flow_tags", "trimmed_flows")


def due(
    session: SqliteSession,
    now: Millis,
    limit: int,
    *,
    leases: bool = True,
    wanted: SweepFilter = EVERY_RUN,
) -> list[UUID]:
    values = {"now": now, "limit": limit, "leases": leases, **_named(wanted)}
    return [read_uuid(id) for (id,) in session.rows("due_executions", values)]


def set_aside(session: SqliteSession, uuids: Sequence[UUID], now: Millis, until: Millis) -> None:
    ids = [uuid.bytes for uuid in uuids]
    for name in ("set_aside_ready", "set_aside_parked", "set_aside_deadlines"):
        session.among(name, ids, until)
    session.among("set_aside_leases", ids, now, until)


def next_due(session: SqliteSession, now: Millis, *, leases: bool = True) -> Millis | None:
    row = session.row("next_due_moment", (now, leases))
    return None if row is None or row[0] is None else Millis(row[0])


def trim(
    session: SqliteSession,
    ended_before: Millis,
    now: Millis,
    limit: int,
    unread_from: Millis,
    wanted: SweepFilter = EVERY_RUN,
) -> int:
    values = {
        "ended_before": ended_before,
        "now": now,
        "limit": limit,
        "unread_from": unread_from,
        **_named(wanted),
    }
    ids = [id for (id,) in session.rows("trimmable_executions", values)]
    if len(ids) < limit:
        ids += _trim_edges(session, {**values, "limit": limit - len(ids)})
    if ids:
        session.each("trimmed_keys", session.among("held_keys", ids).fetchall())
        session.execute("forgotten", session.among("newly_forgotten", ids).fetchone())
        for name in _BELONGINGS:
            session.among(name, ids)
    if flows := [id for (id,) in session.rows("trimmable_flows", values)]:
        for name in _FLOW_BELONGINGS:
            session.among(name, flows)
    if old := session.rows("old_registry_events", values):
        session.each("trimmed_registry_events", old)
        session.execute("forgotten", old[-1])
    session.execute("lapsed_keys", {"now": now, "limit": limit})
    return len(ids)


def shrink(session: SqliteSession) -> None:
    """Gives some of the disk back when much of the file is empty; a little each time, because
    writing waits for it. Outside any transaction: the driver runs this pragma to its end only as a
    script, which commits first."""
    free, pages = (
        session.connection.execute(f"pragma {name}").fetchone()[0]
        for name in ("freelist_count", "page_count")
    )
    if free > FREE_PAGES and free * 2 > pages:
        session.connection.executescript(f"pragma incremental_vacuum({CUT_PAGES})")


def _named(wanted: SweepFilter) -> dict[str, str | None]:
    return dict(zip(("namespace", "tag_key", "tag_value"), wanted.values, strict=True))


def _trim_edges(session: SqliteSession, values: dict[str, Any]) -> list[bytes]:
    """The members that may go now; the edges into them are gone."""
    ids = [id for (id,) in session.rows("trimmable_members", values)]
    if ids:
        session.among("trimmed_edges", ids)
    return ids


def glance(
    session: SqliteSession,
    duty: str,
    holder: str,
    now: Millis,
    until: Millis,
    *,
    ready: bool = True,
    leases: bool = True,
) -> Glance:
    values = {"name": duty, "holder": holder, "now": now, "until": until}
    has_duty = bool(session.rows("duty_holder", values))
    asked = {"now": now, "has_duty": has_duty, "ready": ready, "leases": leases}
    row = session.row("glance", {**asked, "forever": FOREVER})
    assert row is not None  # noqa: S101 - it always gives one
    inbox, ready, blocked, busy, lines = map(bool, row[:5])
    return Glance(has_duty, inbox, ready, blocked, busy, lines, *row[5:])


def drop_duty(session: SqliteSession, duty: str, holder: str) -> None:
    session.execute("dropped_duty", (duty, holder))


def correction(session: SqliteSession) -> bytes | None:
    row = session.row("clock_correction")
    return None if row is None else bytes(row[0])


def put_correction(session: SqliteSession, value: bytes, expected: bytes | None) -> bool:
    values = {"value": value, "expected": expected}
    return session.row("new_clock_correction", values) is not None


def secret(session: SqliteSession) -> bytes:
    found = secret_in(session.rows("secret"))
    if found is None:
        found = secrets.token_bytes(32)
        session.execute("new_secret", (found,))
    return found
