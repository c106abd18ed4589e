"""Reading flows page by page, and walking along their edges."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.execution.model import Snapshot
from flowfabric.core.flow.join import EdgeState
from flowfabric.store.contract import Store
from flowfabric.store.queries import EdgeQuery, MembersOf

PAGE = 500


async def member_pages(
    store: Store, flow: UUID, *, living: bool = False
) -> AsyncIterator[list[Snapshot]]:
    """Members of a flow, or those that have not ended. The next page is read while the caller works
    on one."""

    def read(after: UUID | None) -> "asyncio.Task[list[Snapshot]]":
        query = MembersOf(flow, after=after, limit=PAGE, living=living)
        return asyncio.create_task(store.snapshots(query))

    reading = read(None)
    try:
        while page := await reading:
            reading = read(page[-1].execution.uuid)  # a page is short without those unreadable
            yield page
    finally:
        reading.cancel()


async def edge_pages(store: Store, query: EdgeQuery) -> AsyncIterator[list[EdgeState]]:
    """Edges by id: one that is settled meanwhile hides no other."""
    while page := await store.edges(query):
        yield page
        if len(page) < query.limit:
            return
        query = replace(query, after=page[-1].edge.id)


async def load_all(store: Store, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
    """Executions as they stand, however many."""
    found: dict[UUID, Snapshot] = {}
    for start in range(0, len(uuids), PAGE):
        found |= await store.load(uuids[start : start + PAGE])
    return found


async def whole(store: Store, flow: UUID) -> tuple[dict[UUID, Snapshot], list[EdgeState]]:
    """Every member of a flow and every edge."""
    members = {
        member.execution.uuid: member async for page in member_pages(store, flow) for member in page
    }
    edges = [state async for page in edge_pages(store, EdgeQuery(flow=flow)) for state in page]
    return members, edges


async def reaches(store: Store, flow: UUID, start: UUID, goal: UUID) -> bool:
    """Whether `goal` depends on `start`, along edges of any length; no cap."""
    seen, front = {start}, [start]
    while front:
        upstreams, front = tuple(front[:PAGE]), front[PAGE:]
        async for page in edge_pages(store, EdgeQuery(flow=flow, upstreams=upstreams)):
            fresh = {state.edge.downstream for state in page} - seen
            if goal in fresh:
                return True
            seen |= fresh
            front += fresh
    return False
