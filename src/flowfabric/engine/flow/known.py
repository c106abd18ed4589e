"""Edges that this process has written itself, so that the end of their upstream need not read them.

A downstream with one upstream is as it was created until that upstream ends, unless a caller
changes it: then its version has moved, and it goes on by way of the outbox as any other that a
rival has changed. Whether more edges leave an upstream by now is looked at by the very statement
that ends it.
"""

from collections.abc import Iterable
from uuid import UUID

from flowfabric.core.execution.model import Execution
from flowfabric.core.flow.graph import NewFlow
from flowfabric.core.flow.join import EdgeState
from flowfabric.core.flow.progress import FEW
from flowfabric.store.queries import Unsettled

MAX_MEMBERS = 2000
"""Of how many members the edges are kept; the oldest are forgotten first."""


class KnownEdges:
    """The open edges that leave members, with their downstreams, in a process that ends members."""

    def __init__(self) -> None:
        self._ends_members = False
        self._open: dict[UUID, list[Unsettled]] = {}

    def add(self, flows: Iterable[NewFlow]) -> None:
        """Remembers flows that were written just now. Members of which nothing is remembered:
        those with many edges, with none, and with a downstream that waits for others as well."""
        if not self._ends_members:
            return
        for new in flows:
            for member in new.members:  # a flow of this id may have been deleted since
                self._open.pop(member.snapshot.execution.uuid, None)
            snapshots = {each.snapshot.execution.uuid: each.snapshot for each in new.members}
            leaving: dict[UUID, list[Unsettled]] = {}
            for edge in new.edges:
                open = Unsettled(EdgeState(edge), snapshots[edge.downstream])
                leaving.setdefault(edge.upstream, []).append(open)
            self._open.update({id: edges for id, edges in leaving.items() if _is_kept(edges)})
        while len(self._open) > MAX_MEMBERS:
            del self._open[next(iter(self._open))]

    def take(self, member: Execution) -> list[Unsettled]:
        """The edges of a member that is about to end; none if they are not known. A flow has one
        moment of creation: other edges are those of a deleted flow with the same id."""
        self._ends_members = True
        open = self._open.pop(member.uuid, [])
        return [each for each in open if each.state.edge.created_at == member.created_at]


def _is_kept(edges: list[Unsettled]) -> bool:
    if len(edges) > FEW:
        return False
    downstreams = [each.downstream for each in edges]
    joins = [None if each is None else each.head.life.join for each in downstreams]
    return all([join is not None and join.n == 1 for join in joins])
