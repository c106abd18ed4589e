"""Lists and counts, by public state.

A spot is a number that tells where an execution stands, as the queries give it: a gate, or one
of the numbers below. Only for a blocked execution the public state depends on more.
"""

import json
from collections import Counter
from collections.abc import Collection
from uuid import UUID

from flowfabric.core.base.pages import MAX_COUNTED
from flowfabric.core.base.time import MAX_MILLIS, Millis
from flowfabric.core.execution.model import Gate, Snapshot, Waiting
from flowfabric.core.execution.status import PublicState
from flowfabric.store.queries import (
    MAX_EXAMINED,
    ByPartition,
    Claimable,
    Counts,
    FailedSince,
    MembersOf,
    Page,
    Query,
    SnapshotQuery,
    SuspendedIn,
)
from flowfabric.store.readable import stands_in
from flowfabric.store.rows import state as states
from flowfabric.store.rows.execution import SUSPENDED
from flowfabric.store.sqlite.claim import routes_for
from flowfabric.store.sqlite.reads import candidates, numbers, readable_snapshots
from flowfabric.store.sqlite.session import SqliteSession, read_uuid

READY, LOST, LEASED, ENDED = 30, 31, 32, 40

_PUBLIC: dict[int, PublicState] = {
    READY: states.WAITING,
    LOST: states.LOST,
    LEASED: states.LEASED,
    **states.GATES,
    **{ENDED + outcome: public for outcome, public in states.OUTCOMES.items()},
}
"""The public state of a spot; that of a blocked one depends on the reason."""

SPOTS: dict[PublicState, tuple[int, ...]] = {
    public: (
        *(spot for spot, found in _PUBLIC.items() if found is public),
        *((Gate.BLOCKED,) if public in states.BLOCKS.values() else ()),
    )
    for public in PublicState
}
"""Where executions of a public state may be."""

_PLACES = (frozenset({READY, LOST}), frozenset({LEASED}), frozenset({*Gate, SUSPENDED}))
"""Spots that share a table, and so a window when they are counted; endings have one each."""

_LISTED = {False: "listed_executions", True: "listed_executions_newest_first"}
_WINDOW_END = {False: "window_end", True: "window_end_newest_first"}


def page(session: SqliteSession, query: Query | MembersOf) -> Page:
    if isinstance(query, MembersOf):
        return _members(session, query)
    values = _filter(session, query)
    found = session.rows(_LISTED[query.newest_first], values)
    keys = found[: query.limit]
    damaged: list[UUID] = []
    ids = [id for _, id in keys]
    items = readable_snapshots(session, ids, lambda row: damaged.append(read_uuid(row[0])))
    more = len(found) > query.limit
    end = keys[-1] if more else session.row(_WINDOW_END[query.newest_first], values)
    return Page(
        items=tuple(item for item in items if _wanted(item, query.states)),
        unreadable=tuple(damaged),
        cursor=None if end is None else (Millis(end[0]), read_uuid(end[1])),
    )


def snapshots(session: SqliteSession, query: SnapshotQuery) -> list[Snapshot]:
    match query:
        case Claimable():
            ids = candidates(session, query)
        case SuspendedIn(namespace, after, limit):
            since, id = (-1, b"") if after is None else (after[0], after[1].bytes)
            values = {"since": since, "id": id, "namespace": namespace, "limit": limit}
            ids = [id for (id,) in session.rows("suspended_executions", values)]
        case FailedSince(earliest, before, limit):
            at, last = (MAX_MILLIS + 1, b"") if before is None else (before[0], before[1].bytes)
            values = {"since": earliest, "at": at, "id": last, "limit": limit}
            ids = [id for (id,) in session.rows("failed_executions", values)]
        case MembersOf():
            ids = _member_ids(session, query)
        case ByPartition(lanes, cursor, limit):
            first = b"" if cursor is None else cursor.bytes
            page = {"lanes": json.dumps(lanes), "after": first, "limit": limit}
            ids = [id for (id,) in session.rows("executions_by_partition", page)]
    return readable_snapshots(session, ids)


def _members(session: SqliteSession, query: MembersOf) -> Page:
    damaged: list[UUID] = []
    ids = _member_ids(session, query)
    items = readable_snapshots(session, ids, lambda row: damaged.append(read_uuid(row[0])))
    return Page(tuple(items), None, tuple(damaged))


def _member_ids(session: SqliteSession, query: MembersOf) -> list[bytes]:
    name = "living_members" if query.living else "members"
    first = b"" if query.after is None else query.after.bytes
    page = {"flow": query.flow.bytes, "after": first, "limit": query.limit}
    return [id for (id,) in session.rows(name, page)]


def counts(
    session: SqliteSession,
    namespace: str | None = None,
    lane: str | None = None,
    *,
    flow: UUID | None = None,
) -> Counts:
    window = 2 * MAX_COUNTED + 1
    if flow is not None:
        rows = session.rows("member_counts", {"flow": flow.bytes})
    else:
        routes = numbers(_routes(session, namespace, lane))
        filtered = routes is not None
        # Each outcome is a place of its own: unless rows are left out, no more need be read.
        ended = window if filtered else MAX_COUNTED + 1
        rows = session.rows("state_counts", {"routes": routes, "window": window, "ended": ended})
    found: Counter[str] = Counter()
    for spot, reason, count in rows:
        found[public_of(spot, reason)] += count
    capped = {state for state, count in found.items() if count > MAX_COUNTED}
    if flow is None:
        for (full,) in session.rows("full_windows", {"window": window, "filtered": filtered}):
            capped |= {_PUBLIC[spot] for spot in _sharing(full) if spot in _PUBLIC}
    return Counts(
        by_state={state: min(found[state], MAX_COUNTED) for state in PublicState},
        capped=frozenset(capped),
    )


def _filter(session: SqliteSession, query: Query) -> dict[str, object]:
    first = (MAX_MILLIS + 1, b"") if query.newest_first else (-1, b"")
    at, id = first if query.after is None else (query.after[0], query.after[1].bytes)
    key, value = query.tag or (None, None)
    spots = {spot for state in query.states for spot in SPOTS[state]}
    return {
        "after_at": at,
        "after_id": id,
        "created_from": -1 if query.created_from is None else query.created_from,
        "created_until": MAX_MILLIS + 1 if query.created_until is None else query.created_until,
        "routes": numbers(_routes(session, query.namespace, query.lane, query.kind)),
        "tag_key": key,
        "tag_value": value,
        "flow": None if query.flow is None else query.flow.bytes,
        "spots": numbers(spots) if query.states else None,
        "limit": query.limit + 1,
        "window": MAX_EXAMINED,
    }


def _routes(
    session: SqliteSession, namespace: str | None, lane: str | None, kind: str | None = None
) -> list[int] | None:
    """The routes a filter lets through, None when there is no filter."""
    if namespace is None and lane is None and kind is None:
        return None
    session.learn_routes()
    lanes = () if lane is None else (lane,)
    return [
        number
        for number, route in routes_for(session, lanes, namespace)
        if kind is None or route.kind == kind
    ]


def _wanted(snapshot: Snapshot, states: Collection[PublicState]) -> bool:
    """What the query could not tell."""
    match snapshot.state:
        case Waiting(gate=Gate.BLOCKED):
            return not states or stands_in(snapshot, states)
        case _:
            return True


def public_of(spot: int, reason: str | None) -> PublicState:
    return states.blocked_state(reason) if spot == Gate.BLOCKED else _PUBLIC[spot]


def _sharing(spot: int) -> frozenset[int]:
    """The spots counted in the same window as this one."""
    return next((place for place in _PLACES if spot in place), frozenset({spot}))
