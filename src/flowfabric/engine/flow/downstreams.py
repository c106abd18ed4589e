"""What the ending of members means for their downstreams, decided before it is written: where they
are few, they go on by the very commit that ends their upstream. All others are brought the ending
from the outbox right after it (`resolver`), and so are those that a rival has changed meanwhile."""

import logging
from collections.abc import Sequence
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.flow.join import EdgeState
from flowfabric.core.flow.outbox import MemberEnding, OutboxKind
from flowfabric.core.flow.progress import FEW, DownstreamChange, settle_with
from flowfabric.engine.context import Service
from flowfabric.store.queries import Unsettled

log = logging.getLogger("flowfabric.flows")


class DownstreamChanges(Struct):
    """Changes of downstreams that count endings of one commit; `open` are the edges that these
    endings settle, by member."""

    changes: list[DownstreamChange] = field(default_factory=list)
    open: dict[UUID, list[EdgeState]] = field(default_factory=dict)

    def settled(self, written: set[UUID]) -> frozenset[UUID]:
        """Members whose edges are all settled, once these executions are written."""
        return frozenset(
            member
            for member, edges in self.open.items()
            if member in written and all(each.edge.downstream in written for each in edges)
        )


class Downstreams(Service):
    """Decides with the endings of members what becomes of their downstreams."""

    async def after(self, endings: Sequence[Change[object]], now: Millis) -> DownstreamChanges:
        """What to write together with these endings; nothing if that cannot be read."""
        members: dict[UUID, UUID] = {}
        ended: dict[UUID, MemberEnding] = {}
        known: list[Unsettled] = []
        for change in endings:
            for entry in change.outbox:
                if entry.kind is OutboxKind.ENDED and entry.outcome is not None:
                    members[entry.id] = entry.flow
                    ended[entry.id] = MemberEnding(entry.outcome, entry.number)
                    if change.before is not None:
                        known += self._context.known_edges.take(change.before.execution)
        for each in known:
            members.pop(each.state.edge.upstream, None)
        found = await self._read(members)
        return DownstreamChanges() if found is None else _progress(found, known, ended, now)

    async def _read(self, members: dict[UUID, UUID]) -> list[Unsettled] | None:
        """The open edges that leave these members, by flow; None if they cannot be read."""
        if not members:
            return []
        asked = [(flow, id) for id, flow in members.items()]
        try:
            limit = len(asked) * (FEW + 1)
            return await self._context.store.unsettled(asked, None, limit, FEW + 1)
        except FlowFabricError as error:
            log.info(
                "downstreams of %d members are resolved after their end: %s", len(asked), error
            )
            return None


def _progress(
    read: Sequence[Unsettled],
    known: Sequence[Unsettled],
    endings: dict[UUID, MemberEnding],
    now: Millis,
) -> DownstreamChanges:
    """A downstream of a member with many edges is left to the outbox as a whole."""
    progress = DownstreamChanges(open={member: [] for member in endings})
    by_child: dict[UUID, list[Unsettled]] = {}
    for each in (*read, *known):
        progress.open[each.state.edge.upstream].append(each.state)
        by_child.setdefault(each.state.edge.downstream, []).append(each)
    many = {member for member, edges in progress.open.items() if len(edges) > FEW}
    for open in by_child.values():
        edges = tuple(each.state for each in open)
        if not many or many.isdisjoint([each.edge.upstream for each in edges]):
            change = settle_with(open[0].downstream, now, edges, endings)
            if change is not None:
                counts = tuple(len(progress.open[id]) for id in change.upstreams) if known else ()
                progress.changes.append(replace(change, open=counts) if counts else change)
    return progress
