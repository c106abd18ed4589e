"""Flows, their edges and members, and what is owed to them."""

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.flow.graph import NewFlow
from flowfabric.core.flow.join import EdgeState
from flowfabric.core.flow.model import Flow, FlowChange
from flowfabric.core.flow.outbox import OutboxEntry
from flowfabric.store.postgres import submit
from flowfabric.store.postgres.apply import Writer, prepare, standing
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.faults import PATIENCE_SECONDS
from flowfabric.store.postgres.lists import FIRST_ID, start_after
from flowfabric.store.postgres.moves import RowMove
from flowfabric.store.postgres.session import PostgresSession, columns, insert_new, same
from flowfabric.store.queries import EdgeQuery, FlowQuery, Owing, Unsettled
from flowfabric.store.readable import log_unreadable
from flowfabric.store.rows import flow as flow_rows
from flowfabric.store.rows.execution import SNAPSHOT, read_snapshot
from flowfabric.store.rows.flow import EDGE, OUTBOX, EdgeSearch, read_outbox
from flowfabric.store.rows.record import FLOWS

_WIDTH = len(SNAPSHOT)
_OPEN, _DOC = len(OUTBOX), len(OUTBOX) + 1


async def flow_page(session: PostgresSession, query: FlowQuery) -> list[Flow]:
    name = "listed_flows_newest_first" if query.newest_first else "listed_flows"
    values = (
        *(query.after or (None, None)),
        query.namespace,
        query.kind,
        [str(state) for state in query.states],
        *(query.tag or (None, None)),
        query.limit,
    )
    rows = await session.fetch(session.report, name, *values)
    return FLOWS.readable(rows)


async def apply_flow(session: PostgresSession, change: FlowChange) -> bool:
    stamp = UUID(bytes=secrets.token_bytes(16))
    moves = await prepare(session, change.changes)
    return await session.apply.run(partial(_apply, session, change, moves, stamp))


async def lay_flows(session: PostgresSession, flows: Sequence[NewFlow], now: Millis) -> set[UUID]:
    routes = {each.snapshot.execution.route for new in flows for each in new.members}
    await session.book.need_routes(routes)
    stamp = UUID(bytes=secrets.token_bytes(16))
    patience = PATIENCE_SECONDS if len(flows) == 1 else 0.0  # the engine tries one by one then
    ordered = sorted(flows, key=lambda new: new.flow.id)
    return await session.submit.run(partial(_lay, session, ordered, now, stamp), patience=patience)


async def edges(session: PostgresSession, query: EdgeQuery) -> list[EdgeState]:
    search = EdgeSearch(query)
    while not search.over:
        asked = (query.flow, start_after(search.after), query.unsettled, query.limit)
        keys = () if search.keys is None else (search.keys,)
        search.add(await session.fetch(session.load, search.name, *asked, *keys))
    return search.found


async def unsatisfied(session: PostgresSession, flow: UUID, downstream: UUID) -> int:
    values = (flow, downstream, FIRST_ID, flow_rows.UNAPPLIED)
    ((found,),) = await session.fetch(session.load, "unsatisfied_edges_in", *values)
    return int(found)


async def count_flows(
    session: PostgresSession, changes: Sequence[FlowChange], told: Sequence[OutboxEntry] = ()
) -> set[UUID]:
    if told:
        keys = columns(flow_rows.outbox_keys(told), 4)
        await session.fetch(session.apply, "gone_outbox", *keys)
    if not changes:
        return set()
    counts = sorted(changes, key=lambda change: change.after.id)
    return await session.apply.run(partial(_count, session, counts))


async def unsettled(
    session: PostgresSession,
    endings: Sequence[tuple[UUID, UUID]],
    after: UUID | None,
    limit: int,
    each: int | None = None,
) -> list[Unsettled]:
    flows, upstreams = [flow for flow, _ in endings], [upstream for _, upstream in endings]
    values = (flows, upstreams, start_after(after), limit if each is None else each, limit)
    return await session.load.run(partial(_unsettled, session, values))


async def owing(session: PostgresSession, flows: Sequence[UUID], limit: int) -> Owing:
    rows = await session.fetch(session.load, "owing_flows", list(flows), limit, FIRST_ID)
    entries = [row for row in rows if row[_DOC] is None]
    return Owing(
        FLOWS.by_key((row[0], row[2], row[_DOC]) for row in rows if row[_DOC] is not None),
        read_outbox((row[:_OPEN] for row in entries), same),
        {row[1] for row in entries if row[_OPEN]},
    )


async def _unsettled(
    session: PostgresSession, values: tuple[Any, ...], connection: Connection, repeated: bool
) -> list[Unsettled]:
    rows = await connection.fetch(session.queries["unsettled_edges"], *values)
    await session.learn(connection, rows)
    seen: dict[UUID, Snapshot | None] = {}
    found = []
    for row in rows:
        downstream, doc = row[_WIDTH:]
        if downstream not in seen:
            seen[downstream] = _readable(row, session)
        found.append(Unsettled(flow_rows.read_edge(doc, None), seen[downstream]))
    return found


async def _count(
    session: PostgresSession, changes: Sequence[FlowChange], connection: Connection, repeated: bool
) -> set[UUID]:
    """A process that changes a flow owns its outbox entries, which are deleted with the version. A
    repeat after a lost reply finds every version changed, and the entries gone."""
    rows = [
        (*FLOWS.row(change.after), change.before.version)
        for change in changes
        if change.before is not None
    ]
    done = [key for change in changes for key in flow_rows.outbox_keys(change.done)]
    owed = [row for change in changes for row in flow_rows.outbox_rows(change.owed)]
    values = (*columns(rows, 9), *columns(done, 4), *columns(owed, 6))
    found = await connection.fetch(session.queries["counted_flows"], *values)
    return {id for (id,) in found}


async def owed_flows(session: PostgresSession, limit: int) -> list[UUID]:
    return await session.learned.turn.take(partial(_owing, session), limit)


async def _owing(session: PostgresSession, after: UUID | None, limit: int) -> list[UUID]:
    values = (start_after(after), limit)
    rows = await session.fetch(session.load, "owed_flows", *values)
    return [flow for (flow,) in rows]


async def _apply(
    session: PostgresSession,
    change: FlowChange,
    moves: list[RowMove],
    stamp: UUID,
    connection: Connection,
    repeated: bool,
) -> bool:
    try:
        async with connection.transaction():
            await Flush(session, connection, change, moves, stamp).write()
    except _Moved:
        return repeated and await _is_mine(session, change.after, stamp, connection)
    return True


async def _lay(
    session: PostgresSession,
    flows: Sequence[NewFlow],
    now: Millis,
    stamp: UUID,
    connection: Connection,
    repeated: bool,
) -> set[UUID]:
    """New flows with their edges and members: one statement."""
    members = sorted((m for new in flows for m in new.members), key=submit.number)
    edges = [edge for new in flows for edge in new.edges]
    tags = [(new.flow.id, *tag) for new in flows for tag in sorted(new.flow.tags.items())]
    values = (
        *submit.values_of(members, now, session.book.names),
        *columns([FLOWS.row(new.flow) for new in flows], 8),
        stamp,
        *columns(tags, 3),
        *columns(flow_rows.edge_rows(edges), len(EDGE)),
    )
    query = session.queries["laid_flows"]
    if not repeated:
        return {id for (id,) in await insert_new(connection, query, values)}
    laid = {id for (id,) in await connection.fetch(query, *values)}
    for new in flows:
        if new.flow.id not in laid and await _is_mine(session, new.flow, stamp, connection):
            laid.add(new.flow.id)
    return laid


async def _is_mine(
    session: PostgresSession, flow: Flow, stamp: UUID, connection: Connection
) -> bool:
    """Whether a change that looks refused was written before its reply was lost."""
    found = await connection.fetchval(session.queries["flow_stamp"], flow.id)
    return bool(found == stamp)


class _Moved(Exception):
    """Something is not what it was when the change was decided."""


class Flush:
    """Writes a change of a flow, in a transaction: the flow itself first, so that no other process
    changes it in the meantime, then everything else as it is compared."""

    def __init__(
        self,
        session: PostgresSession,
        connection: Connection,
        change: FlowChange,
        moves: list[RowMove],
        stamp: UUID,
    ) -> None:
        self._session = session
        self._connection = connection
        self._change = change
        self._moves = moves
        self._stamp = stamp
        self._writer = Writer(session, connection)

    async def write(self) -> None:
        change = self._change
        await self._write_flow()
        await self._compare()
        done = flow_rows.outbox_keys(change.done)
        _check(len(await self._writer.send("gone_outbox", done)) == len(done))
        # Before the changes: they may settle an edge that is only just there.
        await self._writer.send("new_edges", flow_rows.edge_rows(change.edges))
        await self._writer.send("changed_edges", flow_rows.changed_edge_rows(change.applied))
        if self._moves:
            await self._writer.write(self._moves)
        await self._writer.send("joined_executions", flow_rows.joined_rows(change.changes))
        await self._writer.send("new_outbox", flow_rows.outbox_rows(change.owed))

    async def _write_flow(self) -> None:
        before, after = self._change.before, self._change.after
        queries, values = self._session.queries, (*FLOWS.row(after), self._stamp)
        if before is None:
            _check(await self._connection.fetch(queries["new_flow"], *values))
        else:
            query = queries["changed_flow"]
            _check(await self._connection.fetch(query, *values, before.version))
        if after.tags != (before.tags if before is not None else {}):
            await self._connection.execute(queries["gone_flow_tags"], [after.id])
            tags = [(after.id, key, value) for key, value in after.tags.items()]
            await self._writer.send("new_flow_tags", tags)

    async def _compare(self) -> None:
        compared = [*(move.before for move in self._moves), *self._change.guards]
        if compared:
            _check(all(await standing(self._session, self._connection, compared)))


def _readable(row: Any, session: PostgresSession) -> Snapshot | None:
    """None for one that is not there, or cannot be read: it must not hide the others."""
    if row[0] is None:
        return None
    try:
        return read_snapshot(row, session.book.names, same)
    except Corruption as error:
        log_unreadable(error)
        return None


def _check(stands: object) -> None:
    if not stands:
        raise _Moved
