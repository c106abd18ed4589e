"""Lanes: which there are."""

from flowfabric.store.postgres.session import Session


async def lanes(session: Session, after: str | None, limit: int) -> list[str]:
    rows = await session.fetch(session.report, "lane_names", after, limit)
    return [lane for (lane,) in rows]
