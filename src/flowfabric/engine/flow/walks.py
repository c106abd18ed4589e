"""Reading flows page by page, and walking along their edges."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.pages import in_pages
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.flow.join import EdgeState
from flowfabric.store.contract import Store
from flowfabric.store.queries import EdgeQuery, MembersOf, Page

PAGE = 500
LIVING_PAGE = 250
"""Members that a cancel writes by one commit: the first of them soon, the last in little time."""


async def member_pages(
    store: Store, flow: UUID, *, living: bool = False, unreadable: list[UUID] | None = None
) -> AsyncIterator[list[Snapshot]]:
    """Members of a flow, or those that have not ended. The next page is read while the caller works
    on one. Those that cannot be read are in no page; they are added to `unreadable`."""
    limit = LIVING_PAGE if living else PAGE

    def read(after: UUID | None) -> "asyncio.Task[Page]":
        query = MembersOf(flow, after=after, limit=limit, living=living)
        return asyncio.create_task(store.page(query))

    reading = read(None)
    try:
        while ids := _ids(page := await reading):
            reading = read(max(ids))
            if unreadable is not None:
                unreadable += page.unreadable
            if page.items:
                yield list(page.items)
    finally:
        if not reading.cancel() and not reading.cancelled():
            reading.exception()  # seen: it must not cause a warning


def _ids(page: Page) -> list[UUID]:
    return [*(member.execution.uuid for member in page.items), *page.unreadable]


async def overlapping(
    pages: AsyncIterator[list[Snapshot]], work: Callable[[list[Snapshot]], Awaitable[None]]
) -> None:
    """Works on every page. The work on the next page begins while that on one is under way: this
    process decides while the database writes. No work goes on after the return."""
    under_way: deque[asyncio.Task[None]] = deque()
    try:
        async for page in pages:
            under_way.append(asyncio.ensure_future(work(page)))
            if len(under_way) > 1:
                await under_way.popleft()
        if under_way:
            await under_way.popleft()
    finally:  # a page could not be read, the work on one failed, or the caller was cancelled
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


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
    for page in in_pages(uuids, PAGE):
        found |= await store.load(page)
    return found


async def whole(store: Store, flow: UUID) -> tuple[dict[UUID, Snapshot], list[EdgeState]]:
    """Every member of a flow and every edge."""
    members = {
        member.execution.uuid: member async for page in member_pages(store, flow) for member in page
    }
    edges = [state async for page in edge_pages(store, EdgeQuery(flow=flow)) for state in page]
    return members, edges


async def reaches(store: Store, flow: UUID, start: UUID, goal: UUID) -> bool:
    """Whether `goal` depends on `start`, along edges of any length; no cap. Both ends are looked
    from in turns, since one of them mostly leads nowhere: what is behind the other is not read."""
    after, before = {start}, {goal}
    async with (
        aclosing(_along(store, flow, start)) as ahead,
        aclosing(_along(store, flow, goal, back=True)) as behind,
    ):
        while True:
            for walk, mine, others in ((ahead, after, before), (behind, before, after)):
                fresh = await anext(walk, None)
                if fresh is None:
                    return False
                mine |= fresh
                if not fresh.isdisjoint(others):
                    return True


async def _along(
    store: Store, flow: UUID, start: UUID, *, back: bool = False
) -> AsyncGenerator[set[UUID]]:
    """Every member that depends on `start`, or that it depends on, by pages; each member once."""
    seen, front = {start}, [start]
    while front:
        some, front = tuple(front[:PAGE]), front[PAGE:]
        query = EdgeQuery(flow=flow)
        query = replace(query, downstreams=some) if back else replace(query, upstreams=some)
        async for page in edge_pages(store, query):
            edges = [state.edge for state in page]
            fresh = {edge.upstream if back else edge.downstream for edge in edges} - seen
            seen |= fresh
            front += fresh
            yield fresh
