"""Looking at executions. Every function runs in one read transaction."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any
from uuid import UUID

import msgspec

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.pages import in_pages
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Attempt, Route, Snapshot
from flowfabric.core.execution.routing import satisfies
from flowfabric.core.execution.step import Step
from flowfabric.store.contract import MAX_BATCH
from flowfabric.store.queries import Claimable, Detail, ExpiredLease, reported
from flowfabric.store.readable import named, readable
from flowfabric.store.rows import execution as rows
from flowfabric.store.sqlite.claim import routes_for
from flowfabric.store.sqlite.lanes import lane_gates
from flowfabric.store.sqlite.session import SqliteSession, read_uuid
from flowfabric.store.sqlite.submit import read_id


def load(session: SqliteSession, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
    found = snapshots(session, [uuid.bytes for uuid in uuids])
    return {snapshot.execution.uuid: snapshot for snapshot in found.values()}


def ended(session: SqliteSession, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
    found = session.among("ended_executions", [uuid.bytes for uuid in uuids]) if uuids else ()
    return load(session, [read_uuid(id) for (id,) in found])


def snapshots(session: SqliteSession, ids: Sequence[bytes]) -> dict[bytes, Snapshot]:
    """By id, in the order of `ids`. Raises Corruption for one that cannot be read."""
    values = {row[0]: _read(session, row) for row in _rows(session, ids)}
    return {id: values[id] for id in ids if id in values}


def readable_snapshots(
    session: SqliteSession, ids: Sequence[bytes], left_out: Callable[[Any], None] = lambda row: None
) -> list[Snapshot]:
    """In the order of `ids`, without those that cannot be read."""
    found = {row[0]: row for row in _rows(session, ids)}
    return readable(
        [found[id] for id in ids if id in found],
        lambda row: _read(session, row),
        "execution",
        itemgetter(0),
        left_out,
    )


def detail(session: SqliteSession, uuid: UUID) -> Detail | None:
    found = snapshots(session, [uuid.bytes])
    row = session.row("details", {"id": uuid.bytes})
    if row is None or not found:
        return None
    payload, said, state_value, touched_at = row
    return Detail(
        snapshot=found[uuid.bytes],
        payload=payload,
        tags=dict(session.rows("tags_of", {"id": uuid.bytes})),
        progress=reported(msgspec.json.decode(said)),
        state_value=state_value,
        touched_at=touched_at,
    )


def tags(session: SqliteSession, uuids: Sequence[UUID]) -> list[dict[str, str]]:
    return [dict(session.rows("tags_of", {"id": uuid.bytes})) for uuid in uuids]


def attempts(session: SqliteSession, uuid: UUID) -> list[Attempt]:
    found = session.rows("attempts_of", (uuid.bytes,))
    return [named("an attempt of", uuid, partial(rows.read_attempt, doc)) for (doc,) in found]


def attempts_at(session: SqliteSession, asked: Sequence[tuple[UUID, int]]) -> dict[UUID, Attempt]:
    found = [
        (uuid, doc)
        for uuid, index in asked
        for (doc,) in session.rows("attempts_at", {"id": uuid.bytes, "index": index})
    ]
    read = readable(
        found, lambda row: (row[0], rows.read_attempt(row[1])), "an attempt of", itemgetter(0)
    )
    return dict(read)


def steps(session: SqliteSession, asked: Sequence[tuple[UUID, int]]) -> list[list[Step]]:
    values = [{"id": uuid.bytes, "generation": generation} for uuid, generation in asked]
    return [[Step(*row) for row in session.rows("steps_of", each)] for each in values]


def candidates(session: SqliteSession, query: Claimable) -> list[bytes]:
    lane, capabilities, limit = query.lane, query.capabilities, query.limit
    session.learn_routes()
    gate = lane_gates(session, [lane]).get(lane) if capabilities is not None else None
    if gate is not None and gate.shut:
        return []
    name = "begun_candidates_of_route" if gate and gate.drains else "candidates_of_route"
    found = [
        session.rows(name, {"route": number, "now": query.now, "limit": limit})
        for number, route in routes_for(session, [lane], query.namespace)
        if capabilities is None or satisfies(route.capabilities, capabilities)
    ]
    return [id for _, id in islice(merge(*found), limit)]


def expired_leases(
    session: SqliteSession,
    as_of: Millis,
    after: tuple[Millis, UUID] | None,
    limit: int,
    namespace: str | None,
) -> list[ExpiredLease]:
    at, id = (-1, b"") if after is None else (after[0], after[1].bytes)
    values = {
        "as_of": as_of,
        "expires_at": at,
        "id": id,
        "namespace": namespace,
        "limit": limit,
    }
    found = session.rows("expired_leases", values)
    return readable(found, lambda row: _read_expired(session, row), "the lease of", itemgetter(0))


def set_tags(session: SqliteSession, uuid: UUID, tags: Mapping[str, str], now: Millis) -> bool:
    """Writes, so it is run by the writer."""
    if not session.among("known_executions", [uuid.bytes]).fetchall():
        return False
    session.insert("new_tags", [(uuid.bytes, key, value, now) for key, value in tags.items()])
    return True


def _rows(session: SqliteSession, ids: Sequence[bytes]) -> list[Any]:
    found: list[Any] = []
    for page in in_pages(ids, MAX_BATCH):
        found += session.among("snapshots", page)
    return found


def _read(session: SqliteSession, row: Sequence[Any]) -> Snapshot:
    try:
        return rows.read_snapshot(row, session.names, read_uuid)
    except Corruption:
        # Another process has interned a name since.
        session.learn()
        return rows.read_snapshot(row, session.names, read_uuid)


def _read_expired(session: SqliteSession, row: Sequence[Any]) -> ExpiredLease:
    lease_id, epoch, instance, expires_at, attempt = row[3:]
    return ExpiredLease(
        id=read_id(session, row),
        lease_id=read_uuid(lease_id) if isinstance(lease_id, bytes) else UUID(lease_id),
        epoch=epoch,
        instance=instance,
        expires_at=expires_at,
        attempt=attempt,
    )


def numbers(values: Iterable[int] | None) -> str | None:
    """A JSON array of numbers for a query, None for no filter."""
    return None if values is None else f"[{','.join(map(str, map(int, values)))}]"


def route_numbers(session: SqliteSession, routes: Iterable[Route]) -> list[int]:
    """The numbers of those that have one."""
    known = session.names.route_numbers
    return [known[route] for route in routes if route in known]
