"""What the store is doing now."""

from flowfabric.core.base.time import Millis
from flowfabric.store.activity import MOST, Activity, activity_of
from flowfabric.store.sqlite.session import SqliteSession


def read(session: SqliteSession, after: int, since: Millis) -> Activity:
    lanes = session.rows("lane_activity", (MOST,))
    events = session.rows("event_activity", (after, since, MOST))
    return activity_of(lanes, events)
