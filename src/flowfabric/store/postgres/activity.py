"""What the store is doing now."""

from flowfabric.core.base.time import Millis
from flowfabric.store.activity import MOST, Activity, activity_of
from flowfabric.store.postgres.session import PostgresSession


async def read(session: PostgresSession, after: int, since: Millis) -> Activity:
    lanes = await session.fetch(session.report, "lane_activity", MOST)
    events = await session.fetch(session.report, "event_activity", after, since, MOST)
    return activity_of(lanes, events)
