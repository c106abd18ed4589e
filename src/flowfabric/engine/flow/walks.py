"""Walking along the edges of a flow, page by page."""

from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.execution.model import Snapshot
from flowfabric.core.flow.join import EdgeState
from flowfabric.engine.flow.resolver import PAGE
from flowfabric.store.contract import FlowStore
from flowfabric.store.queries import EdgeQuery


async def whole(store: FlowStore, flow: UUID) -> tuple[dict[UUID, Snapshot], list[EdgeState]]:
    """Every member of a flow and every edge."""
    members: dict[UUID, Snapshot] = {}
    after: UUID | None = None
    while page := await store.members(flow, after=after, limit=PAGE):
        members |= {member.execution.uuid: member for member in page}
        after = page[-1].execution.uuid
    edges: list[EdgeState] = []
    query = EdgeQuery(flow=flow, limit=PAGE)
    while found := await store.edges(query):
        edges += found
        query = replace(query, after=found[-1].edge.id)
    return members, edges


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
