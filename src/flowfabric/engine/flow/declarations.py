"""New flows that are written whole: small ones, many callers' in one commit."""

from uuid import UUID

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.flow.graph import NewFlow, Plan
from flowfabric.core.flow.model import Flow
from flowfabric.engine.commit.batch import Batcher
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.execution.executions import prepared

MAX_WHOLE = 500
"""A flow with no more members and no more edges is written in one commit."""
MEMBER_WEIGHT = 2048
"""What a member counts beside its payload: a batch has no more than about two thousand of them."""


class FlowDeclarations(Service):
    """Writes a flow with its edges and members, so that no part of it is ever seen alone."""

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        self._batcher: Batcher[NewFlow, bool] = Batcher(
            "declare", self._flush, keys=lambda new: (new.flow.id,), weight=_weight
        )

    async def lay(self, flow: Flow, laid: Plan) -> bool:
        """Creates the flow. False if that takes steps (it is large, or a run starts it), or if it
        may be there already; then nothing was written."""
        members = (*laid.rest, *laid.roots)
        if flow.parent is not None or max(len(members), len(laid.edges)) > MAX_WHOLE:
            return False
        try:
            for creation in members:
                await self._context.known_limits.check(creation.snapshot.execution.rules)
        except FlowFabricError:
            return False  # what would be refused today may be there since yesterday
        ready = tuple(prepared(self._context, creation) for creation in members)
        return await self._batcher.put(NewFlow(flow, laid.edges, ready))

    async def drain(self) -> None:
        await self._batcher.drain()

    async def _flush(self, flows: list[NewFlow]) -> list[bool]:
        written: set[UUID] = await self._context.store.lay_flows(flows, self._now())
        new = [each for each in flows if each.flow.id in written]
        self._context.known_edges.add(new)
        self._context.post_commit.created(
            creation.snapshot for each in new for creation in each.members
        )
        return [each.flow.id in written for each in flows]


def _weight(new: NewFlow) -> int:
    return sum(MEMBER_WEIGHT + len(creation.payload) for creation in new.members)
