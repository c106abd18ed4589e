"""How flows become rows and rows become flows, the same for every store.

A flow and an edge are a document each, beside the columns they are looked for by. The document of
an edge is written again only when the edge is applied; the one of a flow keeps what a newer release
put into it.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct, field

from flowfabric.core.base.errors import Corruption
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.flow.join import Edge, EdgeState
from flowfabric.core.flow.outbox import OutboxEntry, OutboxKind
from flowfabric.store.queries import EdgeQuery
from flowfabric.store.readable import readable
from flowfabric.store.rows.execution import Row

EDGE = ("flow", "id", "upstream", "downstream", "doc")
OUTBOX = ("flow", "id", "number", "kind", "outcome", "spared")

UNAPPLIED = b'"unapplied":true'
"""Only the document of an unapplied edge contains this: in the name of an input a quote is
escaped."""

_encode = msgspec.json.Encoder().encode
_edges = msgspec.json.Decoder(Edge)


class FlowWrites(Struct):
    """The rows that changes of members write for their flows: outbox, and (flow, edge, outcome)."""

    outbox: list[Row] = field(default_factory=list)
    settled: list[Row] = field(default_factory=list)


def written_by(changes: Iterable[Change[object]]) -> FlowWrites:
    """No key is there twice: of folded changes the last wins."""
    rows = FlowWrites()
    for change in changes:
        if outbox := change.outbox:
            rows.outbox += outbox_rows(outbox)
        rows.settled += settled_rows(change)
    return rows


def settled_rows(change: Change[object]) -> list[Row]:
    """(flow, edge, outcome) of the edges that a change settles."""
    if not change.settled or change.after is None:
        return []
    flow = change.after.execution.flow
    return [(flow, edge, _number(outcome)) for edge, outcome in dict(change.settled).items()]


def joined_rows(changes: Iterable[Change[object]]) -> list[Row]:
    """(flow, id) of executions that join a flow they were not created for."""
    return [
        (change.after.execution.flow, change.after.execution.uuid)
        for change in changes
        if change.before is not None
        and change.after is not None
        and change.before.execution.flow != change.after.execution.flow
    ]


def edge_row(edge: Edge) -> Row:
    return (edge.flow, edge.id, edge.upstream, edge.downstream, _encode(edge))


def edge_rows(edges: Iterable[Edge]) -> list[Row]:
    """Each id once, the first of it, in the order of ids: of their numbers, which are compared
    without a call of Python."""
    found: dict[tuple[int, int], Edge] = {}
    for edge in edges:
        found.setdefault((edge.flow.int, edge.id.int), edge)
    return [edge_row(found[key]) for key in sorted(found)]


def changed_edge_rows(edges: Iterable[Edge]) -> list[Row]:
    """(document, flow, edge) of edges that are there."""
    return [(_encode(edge), edge.flow, edge.id) for edge in edges]


def read_edge(doc: bytes, outcome: int | None) -> EdgeState:
    try:
        return EdgeState(_edges.decode(doc), None if outcome is None else Outcome(outcome))
    except (msgspec.DecodeError, ValueError) as error:
        raise Corruption(f"an edge: {error}") from None


class EdgeSearch:
    """Reads the edges a query asks for, page by page: by the narrowest list it gives; the others
    leave out of a page what they do not name. `name` is the query, `keys` that list."""

    def __init__(self, query: EdgeQuery) -> None:
        self._limit = query.limit
        lists = (query.ids, query.upstreams, query.downstreams)
        self._lists = [None if ids is None else frozenset(ids) for ids in lists]
        self.name, keys = _narrowest(query)
        self.keys = None if keys is None else sorted(set(keys))
        self.after = query.after
        self.found: list[EdgeState] = []
        self.over = self.keys == []

    def add(self, page: Iterable[Sequence[Any]]) -> None:
        """Rows (doc, outcome), as many as the limit of the query if there are."""
        edges = [read_edge(doc, outcome) for doc, outcome in page]
        self.found += [found for found in edges if self._is_wanted(found.edge)]
        self.over = len(edges) < self._limit or len(self.found) >= self._limit
        self.after = edges[-1].edge.id if edges else self.after
        del self.found[self._limit :]

    def _is_wanted(self, edge: Edge) -> bool:
        named = (edge.id, edge.upstream, edge.downstream)
        pairs = zip(named, self._lists, strict=True)
        return all(wanted is None or id in wanted for id, wanted in pairs)


def _narrowest(query: EdgeQuery) -> tuple[str, tuple[UUID, ...] | None]:
    if query.ids is not None:
        return "edges_by_id", query.ids
    if query.upstreams is not None:
        return "unsettled_edges_out" if query.unsettled else "edges_out", query.upstreams
    if query.downstreams is not None:
        return "edges_in", query.downstreams
    return "edges_of_flow", None


class Turn:
    """Whose turn it is: the next call continues where the last one stopped, so that a flow whose
    outbox cannot be worked off does not hide the others."""

    def __init__(self) -> None:
        self._after: UUID | None = None

    async def take(
        self, following: Callable[[UUID | None, int], Awaitable[list[UUID]]], limit: int
    ) -> list[UUID]:
        """The next flows in turn; `following` gives those after a flow, by id."""
        start = self._after
        found = await following(start, limit)
        if start is not None and len(found) < limit:
            again = await following(None, limit - len(found))
            found += [id for id in again if id <= start]
        self._after = found[-1] if found else None
        return found


def outbox_rows(outbox: Sequence[OutboxEntry]) -> list[Row]:
    """Each entry once, in the order of keys."""
    if len(outbox) > 1:
        found = _by_key(outbox)
        outbox = [found[key] for key in sorted(found)]
    return [
        (each.flow, each.id, each.number, int(each.kind), _number(each.outcome), each.spared)
        for each in outbox
    ]


def outbox_keys(outbox: Iterable[OutboxEntry]) -> list[Row]:
    return sorted(_by_key(outbox))


def read_outbox(rows: Iterable[Sequence[Any]], uuid: Callable[[Any], UUID]) -> list[OutboxEntry]:
    return readable(
        rows, lambda row: _read_entry(row, uuid), "an outbox entry of flow", itemgetter(0)
    )


def _read_entry(row: Sequence[Any], uuid: Callable[[Any], UUID]) -> OutboxEntry:
    flow, id, number, kind, outcome, spared = row
    return OutboxEntry(
        flow=uuid(flow),
        id=uuid(id),
        number=number,
        kind=OutboxKind(kind),
        outcome=None if outcome is None else Outcome(outcome),
        spared=bool(spared),
    )


def _by_key(outbox: Iterable[OutboxEntry]) -> dict[tuple[UUID, UUID, int, int], OutboxEntry]:
    return {(c.flow, c.id, c.number, int(c.kind)): c for c in outbox}


def _number(outcome: Outcome | None) -> int | None:
    return None if outcome is None else int(outcome)
