"""Creating executions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec.json import encode

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Ready, Snapshot
from flowfabric.core.execution.submission import Creation
from flowfabric.core.limit.at_submission import NOT_ADMITTED, Admissions
from flowfabric.store.queries import InboxEntry
from flowfabric.store.rows import execution as rows
from flowfabric.store.sqlite.session import SqliteSession, id_bytes, keyed, read_uuid


def submit(
    session: SqliteSession,
    creations: Sequence[Creation],
    now: Millis,
    admitted: Mapping[int, Snapshot] = NOT_ADMITTED,
) -> list[ExecutionId | None]:
    by_id = {creation.snapshot.execution.uuid.bytes: creation for creation in creations}
    known = _known(session, by_id, now)
    if known:
        new = {id: item for id, item in by_id.items() if id not in known}
        _insert(session, new, admitted)
    else:
        _insert(session, by_id, admitted)
    return [known.get(id) for id in by_id]


def submit_and_admit(
    session: SqliteSession, creations: Sequence[Creation], admissions: Admissions, now: Millis
) -> tuple[list[ExecutionId | None], bool]:
    """The writer is alone, so comparing is enough. A run that waits in one of the lines may have
    come after the last look, and is not overtaken."""
    queues = encode([queue for lines in admissions.taken.values() for queue in lines]).decode()
    if (
        session.given("quota_versions", list(admissions.versions.items())).fetchall()
        or session.row("occupied_queues", {"queues": queues}) is not None
    ):
        return submit(session, creations, now), False
    names = encode(list(admissions.versions)).decode()
    session.execute("counted_quotas", {"names": names})
    return submit(session, creations, now, admissions.admitted), True


def read_id(session: SqliteSession, row: Sequence[Any]) -> ExecutionId:
    """The id of an execution from (id, route, flow)."""
    id, route, flow = row[:3]
    if flow is not None:
        return ExecutionId.member(read_uuid(flow), read_uuid(id))
    if route not in session.names.routes:
        session.learn()
    return ExecutionId.solo(session.names.routes[route].lane, read_uuid(id))


def _known(
    session: SqliteSession, creations: Mapping[bytes, Creation], now: Millis
) -> dict[bytes, ExecutionId]:
    """What each creation is a duplicate of, by the id it would have had: key first, then id."""
    found = _by_id(session, list(creations)) if creations else {}
    for id, creation in creations.items():
        if creation.key is None:
            continue
        namespace = creation.snapshot.execution.route.namespace
        if (holder := _holder(session, namespace, creation.key, now)) is not None:
            found[id] = holder
    return found


def known(
    session: SqliteSession, id: UUID | None, namespace: str, key: str | None, now: Millis
) -> ExecutionId | None:
    holder = None if key is None else _holder(session, namespace, key, now)
    if holder is not None or id is None:
        return holder
    return _by_id(session, [id.bytes]).get(id.bytes)


def _by_id(session: SqliteSession, ids: Sequence[bytes]) -> dict[bytes, ExecutionId]:
    """Of these ids those that exist."""
    return {row[0]: read_id(session, row) for row in session.among("known_executions", ids)}


def _holder(session: SqliteSession, namespace: str, key: str, now: Millis) -> ExecutionId | None:
    """The execution that holds a live key."""
    row = session.row("live_key", {"namespace": namespace, "key": key, "now": now})
    if row is None:
        return None
    id, route, _, lane = row
    return ExecutionId.solo(lane, read_uuid(id)) if route is None else read_id(session, row)


def inbox(session: SqliteSession, uuids: Sequence[UUID] | None, limit: int) -> list[InboxEntry]:
    if uuids is None:
        found: Iterable[Any] = session.rows("inbox", (limit,))
    else:
        found = session.among("inbox_among", [uuid.bytes for uuid in uuids[:limit]])
    return [InboxEntry(read_uuid(id), *rest) for id, *rest in found]


def admit(session: SqliteSession, creations: Sequence[Creation], now: Millis) -> int:
    """The second caller finds the inbox entry gone. An id that was submitted in the meantime exists
    already and is not admitted again."""
    by_id = {creation.snapshot.execution.uuid.bytes: creation for creation in creations}
    here = {id for (id,) in session.among("known_inbox", list(by_id))} if by_id else set()
    if here:
        session.among("admitted_inbox", list(here))
        new = here - {row[0] for row in session.among("known_executions", list(here))}
        _insert(session, {id: creation for id, creation in by_id.items() if id in new})
    return len(here)


def _insert(
    session: SqliteSession,
    creations: Mapping[bytes, Creation],
    admitted: Mapping[int, Snapshot] = NOT_ADMITTED,
) -> None:
    """Those of `admitted`, by the numbers of their ids, as they are there."""
    executions: list[rows.Row] = []
    ready: list[rows.Row] = []
    parked: list[rows.Row] = []
    names = session.names
    for creation in creations.values():
        snapshot = creation.snapshot
        if admitted:
            snapshot = admitted.get(snapshot.execution.uuid.int, snapshot)
        session.intern_route(snapshot.execution.route)
        place = ready if isinstance(snapshot.state, Ready) else parked
        place.append(rows.state_row(snapshot, names, id_bytes))
        executions.append(rows.execution_row(creation, names, id_bytes))
    session.insert("new_executions", executions)
    session.insert("new_ready", ready)
    session.insert("new_parked", parked)
    _insert_rest(session, creations)


def _insert_rest(session: SqliteSession, creations: Mapping[bytes, Creation]) -> None:
    """What few executions have: keys, tags, deadlines, steps."""
    keys, tags, deadlines = [], [], []
    steps: list[rows.Row] = []
    for id, creation in creations.items():
        execution = creation.snapshot.execution
        if creation.key is not None:
            keys.append((execution.route.namespace, creation.key, id, creation.key_until))
        if creation.tags:
            tags += [(id, key, value, execution.created_at) for key, value in creation.tags.items()]
        if (at := creation.snapshot.deadline_at) is not None:
            deadlines.append((id, at))
        if creation.steps:
            steps += [keyed(id, rows.step_row(execution.uuid, step)) for step in creation.steps]
    session.insert("new_keys", keys)
    session.insert("new_tags", tags)
    session.insert("new_deadlines", deadlines)
    session.insert("new_steps", steps)
