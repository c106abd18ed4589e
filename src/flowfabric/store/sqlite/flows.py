"""Flows, their edges and members, and what is owed to them."""

from collections.abc import Sequence
from uuid import UUID

from flowfabric.core.base.time import MAX_MILLIS, Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.flow.graph import NewFlow
from flowfabric.core.flow.join import EdgeState
from flowfabric.core.flow.model import Flow, FlowChange
from flowfabric.core.flow.outbox import OutboxEntry, OutboxKind
from flowfabric.store.queries import EdgeQuery, FlowQuery, Owing, Unsettled
from flowfabric.store.rows import flow as flow_rows
from flowfabric.store.rows.flow import EdgeSearch, read_outbox
from flowfabric.store.rows.record import FLOWS
from flowfabric.store.sqlite import apply, records, submit
from flowfabric.store.sqlite.apply import Decided
from flowfabric.store.sqlite.reads import readable_snapshots
from flowfabric.store.sqlite.session import SqliteSession, plain, read_uuid

_LISTED = {False: "listed_flows", True: "listed_flows_newest_first"}


def flow_page(session: SqliteSession, query: FlowQuery) -> list[Flow]:
    first = (MAX_MILLIS + 1, b"") if query.newest_first else (-1, b"")
    at, id = first if query.after is None else (query.after[0], query.after[1].bytes)
    key, value = query.tag or (None, None)
    values = {
        "after_at": at,
        "after_id": id,
        "namespace": query.namespace,
        "kind": query.kind,
        "states": ",".join(["", *query.states, ""]) if query.states else None,
        "tag_key": key,
        "tag_value": value,
        "limit": query.limit,
    }
    rows = session.rows(_LISTED[query.newest_first], values)
    return FLOWS.readable(rows)


def apply_flow(session: SqliteSession, change: FlowChange) -> bool:
    """Everything is compared before anything is written."""
    decided = apply.decided_of(change.changes)
    compared = [*decided, *(_looked_at(guard) for guard in change.guards)]
    if len(apply.standing_among(session, compared)) < len(compared):
        return False
    done = plain(flow_rows.outbox_keys(change.done))
    if done and session.given("missing_outbox", done).fetchall():
        return False
    if not _write_flow(session, change):
        return False
    session.each("gone_outbox", done)
    # Before the changes: they may settle an edge that is only just there.
    session.insert("new_edges", plain(flow_rows.edge_rows(change.edges)))
    session.each("changed_edges", plain(flow_rows.changed_edge_rows(change.applied)))
    apply.write(session, decided)
    session.each("joined_executions", plain(flow_rows.joined_rows(change.changes)))
    session.insert("new_outbox", plain(flow_rows.outbox_rows(change.owed)))
    return True


def lay_flows(session: SqliteSession, flows: Sequence[NewFlow], now: Millis) -> set[UUID]:
    laid = [each for each in flows if _write_flow(session, FlowChange(None, each.flow))]
    edges = [edge for each in laid for edge in each.edges]
    session.insert("new_edges", plain(flow_rows.edge_rows(edges)))
    submit.submit(session, [creation for each in laid for creation in each.members], now)
    return {each.flow.id for each in laid}


def edges(session: SqliteSession, query: EdgeQuery) -> list[EdgeState]:
    search = EdgeSearch(query)
    while not search.over:
        after = b"" if search.after is None else search.after.bytes
        asked = (query.flow.bytes, after, int(query.unsettled), query.limit)
        if search.keys is None:
            search.add(session.rows(search.name, asked))
        else:
            keys = [(key.bytes,) for key in search.keys]
            search.add(session.given(search.name, keys, *asked))
    return search.found


def unsatisfied(session: SqliteSession, flow: UUID, downstream: UUID) -> int:
    values = (flow.bytes, downstream.bytes, flow_rows.UNAPPLIED)
    ((found,),) = session.rows("unsatisfied_edges_in", values)
    return int(found)


def count_flows(
    session: SqliteSession, counts: Sequence[FlowChange], told: Sequence[OutboxEntry] = ()
) -> set[UUID]:
    session.each("gone_outbox", plain(flow_rows.outbox_keys(told)))
    return {change.after.id for change in counts if apply_flow(session, change)}


def unsettled(
    session: SqliteSession,
    endings: Sequence[tuple[UUID, UUID]],
    after: UUID | None,
    limit: int,
    each: int | None = None,
) -> list[Unsettled]:
    """By id over all of them, as many as are wanted."""
    found: list[EdgeState] = []
    for flow, upstream in endings:
        of_one = limit if each is None else each
        query = EdgeQuery(
            flow=flow, upstreams=(upstream,), unsettled=True, after=after, limit=of_one
        )
        found += edges(session, query)
    found.sort(key=lambda state: state.edge.id)
    del found[limit:]
    downstreams = _readable(session, list({state.edge.downstream for state in found}))
    return [Unsettled(state, downstreams.get(state.edge.downstream)) for state in found]


def _outbox(session: SqliteSession, flows: Sequence[UUID], limit: int) -> list[OutboxEntry]:
    found: list[OutboxEntry] = []
    for flow in flows:
        rows = session.rows("outbox", {"flow": flow.bytes, "limit": limit})
        found += read_outbox(rows, read_uuid)
    return found


def owing(session: SqliteSession, flows: Sequence[UUID], limit: int) -> Owing:
    found = records.get(session, FLOWS, flows)
    entries = _outbox(session, flows, limit)
    ended = {each.id: each.flow for each in entries if each.kind is OutboxKind.ENDED}
    open = {id for id, flow in ended.items() if _has_open_edge(session, flow, id)}
    return Owing(found, entries, open)


def owed_flows(session: SqliteSession, after: UUID | None, limit: int) -> list[UUID]:
    """Those after a flow, by id."""
    values = {"after": b"" if after is None else after.bytes, "limit": limit}
    return [read_uuid(id) for (id,) in session.rows("owed_flows", values)]


def _has_open_edge(session: SqliteSession, flow: UUID, upstream: UUID) -> bool:
    query = EdgeQuery(flow=flow, upstreams=(upstream,), unsettled=True, limit=1)
    return bool(edges(session, query))


def _readable(session: SqliteSession, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
    """Executions as they stand; one that cannot be read does not hide the others."""
    found = readable_snapshots(session, [uuid.bytes for uuid in uuids])
    return {snapshot.execution.uuid: snapshot for snapshot in found}


def _looked_at(guard: Snapshot) -> Decided:
    return Decided(Change(None, guard, guard), guard, guard)


def _write_flow(session: SqliteSession, change: FlowChange) -> bool:
    """The flow if its version stands; False when it does not."""
    before, after = change.before, change.after
    (row,) = plain([FLOWS.row(after)])
    if before is None:
        written = session.row("new_flow", row)
    else:
        written = session.row("changed_flow", (*row, before.version))
    if written is None:
        return False
    if after.tags != (before.tags if before is not None else {}):
        session.among("gone_flow_tags", [after.id.bytes])
        tags = [(after.id.bytes, key, value) for key, value in after.tags.items()]
        session.insert("new_flow_tags", tags)
    return True
