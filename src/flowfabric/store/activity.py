"""What a store is doing now, in two cheap statements: for people who watch it."""

from collections.abc import Mapping
from typing import cast

from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.store.contract import Store

UNKNOWN = 1 << 62
"""The cursor of a first look: it asks for no events, only for the last number."""

SUBMITTED, LAST = 0, -1
"""Beside the kinds of events: how many executions were created, and the last number of all."""


class LaneActivity(Struct, frozen=True):
    """What waits for a worker in a lane (up to `MAX_COUNTED` of each route), what runs, and when
    the first in line was created."""

    lane: str
    ready: int
    running: int
    oldest_at: Millis | None


class Activity(Struct, frozen=True):
    """`events` counts what happened after the cursor of the question; the next one asks with
    `cursor`. `submitted` were created after its moment."""

    lanes: tuple[LaneActivity, ...]
    events: Mapping[EventKind, int]
    submitted: int
    cursor: int


async def read_activity(store: Store, after: int, since: Millis) -> Activity:
    """What waits and runs now, and what has happened after an event and since a moment."""
    if store.name == "sqlite":
        from flowfabric.store.sqlite import activity as sqlite_activity
        from flowfabric.store.sqlite.store import SqliteStore

        reader = cast(SqliteStore, store).reader
        return await reader.run(lambda session: sqlite_activity.read(session, after, since))
    from flowfabric.store.postgres import activity as postgres_activity
    from flowfabric.store.postgres.store import PostgresStore

    return await postgres_activity.read(cast(PostgresStore, store).session, after, since)


def activity_of(
    lanes: list[tuple[str, int, int, int | None]], events: list[tuple[int, int, int | None]]
) -> Activity:
    """From the rows of `lane_activity` and `event_activity`."""
    counts = {kind: count for kind, count, _ in events}
    return Activity(
        lanes=tuple(
            LaneActivity(lane, int(ready), int(running), None if at is None else Millis(at))
            for lane, ready, running, at in lanes
        ),
        events={kind: counts[kind] for kind in EventKind if kind in counts},
        submitted=counts.get(SUBMITTED, 0),
        cursor=max((last or 0 for _, _, last in events), default=0),
    )
