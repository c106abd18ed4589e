"""Lists and counts, on a connection of their own: none of them holds up the work."""

from collections import Counter
from functools import partial
from operator import itemgetter
from typing import Any
from uuid import UUID

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.pages import MAX_COUNTED
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.status import PublicState
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import PostgresSession
from flowfabric.store.queries import (
    MAX_EXAMINED,
    ByPartition,
    Claimable,
    Counts,
    ExpiredLease,
    FailedSince,
    MembersOf,
    Page,
    Query,
    SnapshotQuery,
    SuspendedIn,
)
from flowfabric.store.readable import readable, stands_in
from flowfabric.store.rows.execution import SNAPSHOT, Names, StateTable, read_life
from flowfabric.store.rows.state import OUTCOMES, PARKED, filter_of, state_of

_ID, _CREATED_AT = SNAPSHOT.index("id"), SNAPSHOT.index("created_at")

FIRST_ID = UUID(int=0)
LAST_ID = UUID(int=2**128 - 1)
"""The ends of the range of ids; a client may have given either of them."""


def start_after(cursor: UUID | None) -> UUID | None:
    """The id that a page after the cursor begins with; None (nothing equals it, and nothing is
    above it) after the last id of all."""
    if cursor is None:
        return FIRST_ID
    return None if cursor == LAST_ID else UUID(int=cursor.int + 1)


async def page(session: PostgresSession, query: Query | MembersOf) -> Page:
    if isinstance(query, MembersOf):
        return await _members(session, query)
    return await session.report.run(partial(_page, session, query))


async def snapshots(session: PostgresSession, query: SnapshotQuery) -> list[Snapshot]:
    values: tuple[object, ...]
    match query:
        case Claimable(lane, namespace, now, limit, offered):
            name = "candidates"
            values = (lane, namespace, now, limit, None if offered is None else list(offered))
        case SuspendedIn(namespace, after, limit):
            name, values = "suspended_executions", (*(after or (None, None)), namespace, limit)
        case FailedSince(earliest, before, limit):
            name, values = "failed_executions", (earliest, *(before or (None, None)), limit)
        case ByPartition(lanes, cursor, limit):
            name, values = "executions_by_partition", (list(lanes), cursor, limit)
        case MembersOf():
            return list((await _members(session, query)).items)
    return await session.snapshots(session.report, name, *values)


async def _members(session: PostgresSession, query: MembersOf) -> Page:
    text = session.queries["living_members" if query.living else "members"]
    values = (query.flow, start_after(query.after), query.limit)

    async def work(connection: Connection, repeated: bool) -> Page:
        damaged: list[UUID] = []
        rows = await connection.fetch(text, *values)
        found = await session.readable(connection, rows, lambda row: damaged.append(row[_ID]))
        return Page(tuple(found), None, tuple(damaged))

    return await session.load.run(work)


async def expired_leases(
    session: PostgresSession,
    as_of: Millis,
    after: tuple[Millis, UUID] | None,
    limit: int,
    namespace: str | None,
) -> list[ExpiredLease]:
    moment, uuid = after or (None, None)
    values = (as_of, moment, uuid, namespace, limit)
    return await session.report.run(partial(_expired, session, values))


async def counts(
    session: PostgresSession,
    namespace: str | None = None,
    lane: str | None = None,
    *,
    flow: UUID | None = None,
) -> Counts:
    window = 2 * MAX_COUNTED + 1
    if flow is not None:
        rows = await session.fetch(session.report, "member_counts", flow)
    else:
        others = [outcome for outcome in OUTCOMES if outcome]
        values = (namespace, lane, MAX_COUNTED + 1, others, window)
        rows = await session.fetch(session.report, "state_counts", *values)
    found: Counter[str] = Counter()
    capped: set[PublicState] = set()
    parked = 0
    for place, cell, blocked, count, seen in rows:
        state = state_of(place, cell, blocked)
        found[state] += count
        if place == StateTable.PARKED:
            parked += seen
        elif seen == window:
            capped.add(state)
    if parked == window:
        capped.update(PARKED)
    capped.update(state for state in PublicState if found[state] > MAX_COUNTED)
    return Counts(
        by_state={state: min(found[state], MAX_COUNTED) for state in PublicState},
        capped=frozenset(capped),
    )


async def _page(
    session: PostgresSession, query: Query, connection: Connection, repeated: bool
) -> Page:
    queries = session.queries
    way = "window_end_newest_first" if query.newest_first else "window_end"
    moment, uuid = query.after or (None, None)
    place = (moment, uuid, query.created_from, query.created_until)
    end = None
    if _filters(query):
        end = await connection.fetchrow(queries[way], *place, MAX_EXAMINED - 1)
    rows = await connection.fetch(
        queries["listed_executions_newest_first" if query.newest_first else "listed_executions"],
        *place,
        *(end or (None, None)),
        query.kind,
        query.namespace,
        query.lane,
        *(query.tag or (None, None)),
        *filter_of(query.states),
        query.limit + 1,
        query.flow,
    )
    shown, damaged = rows[: query.limit], list[UUID]()
    found = await session.readable(connection, shown, lambda row: damaged.append(row[0]))
    cursor = None if end is None else (Millis(end[0]), end[1])
    if len(rows) > query.limit:
        cursor = (Millis(shown[-1][_CREATED_AT]), shown[-1][_ID])
    wanted = tuple(snapshot for snapshot in found if _is_wanted(snapshot, query))
    return Page(wanted, cursor, tuple(damaged))


async def _expired(
    session: PostgresSession, values: tuple[Any, ...], connection: Connection, repeated: bool
) -> list[ExpiredLease]:
    rows = await connection.fetch(session.queries["expired_leases"], *values)
    newest = max((row[0] for row in rows), default=0)
    worker = max((row[7] or 0 for row in rows), default=0)
    await session.book.learn(connection, newest, worker)
    names = session.book.names
    return readable(rows, lambda row: _expired_lease(row, names), "the lease of", itemgetter(2))


def _filters(query: Query) -> bool:
    """Whether executions may be looked at and left out."""
    wanted = (query.namespace, query.lane, query.kind, query.tag, query.flow)
    return bool(query.states) or any(value is not None for value in wanted)


def _is_wanted(snapshot: Snapshot, query: Query) -> bool:
    return not query.states or stands_in(snapshot, query.states)


def _expired_lease(row: Any, names: Names) -> ExpiredLease:
    route, flow, uuid, expires_at, epoch, attempt, claim, worker, life = row
    lapsed = None if life is None else read_life(life).lapsed
    lane = names.routes[route].lane
    return ExpiredLease(
        id=ExecutionId.solo(lane, uuid) if flow is None else ExecutionId.member(flow, uuid),
        lease_id=claim if lapsed is None else lapsed.lease_id,
        epoch=epoch if lapsed is None else lapsed.epoch,
        instance=names.workers[worker].instance if lapsed is None else lapsed.worker.instance,
        expires_at=expires_at,
        attempt=attempt if lapsed is None else lapsed.index,
    )
