"""Schedules: rows with a version, a next moment and a document."""

from flowfabric.core.base import document
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.schedule import Schedule
from flowfabric.store.readable import read_document, readable_documents
from flowfabric.store.sqlite.session import Session


def schedules(session: Session, after: str, limit: int) -> list[Schedule]:
    rows = session.rows("schedules", {"after": after, "limit": limit})
    return readable_documents(Schedule, "schedule", rows)


def schedule(session: Session, name: str) -> Schedule | None:
    row = session.row("named_schedule", {"name": name})
    return None if row is None else read_document(Schedule, "schedule", row)


def due_schedules(session: Session, now: Millis, limit: int) -> list[Schedule]:
    rows = session.rows("due_schedules", {"now": now, "limit": limit})
    return readable_documents(Schedule, "schedule", rows)


def next_schedule(session: Session) -> Millis | None:
    row = session.row("next_schedule")
    return None if row is None or row[0] is None else Millis(row[0])


def put_schedule(session: Session, schedule: Schedule, expected: int | None) -> bool:
    values = {
        "name": schedule.name,
        "version": schedule.version,
        "next_at": schedule.next_at,
        "doc": document.write(schedule),
    }
    if expected is None:
        return session.row("new_schedule", values) is not None
    return session.row("changed_schedule", {**values, "expected": expected}) is not None


def drop_schedule(session: Session, name: str) -> bool:
    return session.row("dropped_schedule", {"name": name}) is not None
