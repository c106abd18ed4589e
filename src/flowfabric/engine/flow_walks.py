"""Walking along the edges of a flow, page by page."""

from uuid import UUID

from msgspec.structs import replace

from flowfabric.engine.settling import PAGE
from flowfabric.store.contract import EdgeQuery, FlowStore


async def leads_to(store: FlowStore, flow: UUID, member: UUID, wanted: set[UUID]) -> bool:
    """Whether one of the wanted members waits for this one."""
    query = EdgeQuery(flow=flow, upstreams=(member,))
    while page := await store.edges(query):
        if any(state.edge.downstream in wanted for state in page):
            return True
        query = replace(query, after=page[-1].edge.id)
    return False


async def reaches(store: FlowStore, flow: UUID, start: UUID, goal: UUID) -> bool:
    """Whether `goal` depends on `start`, along edges of any length; no cap."""
    seen, front = {start}, [start]
    while front:
        page, front = tuple(front[:PAGE]), front[PAGE:]
        query = EdgeQuery(flow=flow, upstreams=page, limit=PAGE)
        while found := await store.edges(query):
            fresh = {state.edge.downstream for state in found} - seen
            if goal in fresh:
                return True
            seen |= fresh
            front += fresh
            if len(found) < PAGE:
                break
            query = replace(query, after=found[-1].edge.id)
    return False
