"""What the store is doing now."""

from flowfabric.core.base.pages import MAX_COUNTED
from flowfabric.core.base.time import Millis
from flowfabric.store.activity import Activity, activity_of
from flowfabric.store.sqlite.session import SqliteSession


def read(session: SqliteSession, after: int, since: Millis) -> Activity:
    lanes = session.rows("lane_activity", (MAX_COUNTED,))
    events = session.rows("event_activity", (after, since, MAX_COUNTED))
    return activity_of(lanes, events)
