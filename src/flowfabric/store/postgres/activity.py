"""What the store is doing now."""

from flowfabric.core.base.pages import MAX_COUNTED
from flowfabric.core.base.time import Millis
from flowfabric.store.activity import Activity, activity_of
from flowfabric.store.postgres.session import PostgresSession


async def read(session: PostgresSession, after: int, since: Millis) -> Activity:
    lanes = await session.fetch(session.report, "lane_activity", MAX_COUNTED)
    events = await session.fetch(session.report, "event_activity", after, since, MAX_COUNTED)
    return activity_of(lanes, events)
