"""Creating executions."""

from collections.abc import Sequence
from typing import Any

from flowfabric.core.execution import Ready
from flowfabric.core.ids import ExecutionId
from flowfabric.core.submission import Creation
from flowfabric.core.time import Millis
from flowfabric.store import rows
from flowfabric.store.sqlite.session import Session, blobs, read_uuid, state_row


def submit(
    session: Session, creations: Sequence[Creation], now: Millis
) -> list[ExecutionId | None]:
    known = _known(session, creations, now)
    _insert(session, [c for c in creations if c.snapshot.execution.uuid.bytes not in known])
    return [known.get(c.snapshot.execution.uuid.bytes) for c in creations]


def _known(
    session: Session, creations: Sequence[Creation], now: Millis
) -> dict[bytes, ExecutionId]:
    """What each creation is a duplicate of, by the id it would have had: key first, then id."""
    ids = [creation.snapshot.execution.uuid.bytes for creation in creations]
    known = {row[0]: read_id(session, row) for row in session.among("known_executions", ids)}
    for creation in creations:
        if creation.key is None:
            continue
        execution = creation.snapshot.execution
        namespace = execution.route.namespace
        key = {"namespace": namespace, "key": creation.key, "now": now}
        if (row := session.row("live_key", key)) is not None:
            known[execution.uuid.bytes] = read_id(session, row)
    return known


def read_id(session: Session, row: Sequence[Any]) -> ExecutionId:
    """The id of an execution from (id, route, flow)."""
    id, route, flow = row[:3]
    if flow is not None:
        return ExecutionId.member(read_uuid(flow), read_uuid(id))
    if route not in session.names.routes:
        session.learn()
    return ExecutionId.solo(session.names.routes[route].lane, read_uuid(id))


def _insert(session: Session, creations: Sequence[Creation]) -> None:
    executions: list[rows.Row] = []
    states: dict[bool, list[rows.Row]] = {True: [], False: []}
    for creation in creations:
        snapshot = creation.snapshot
        states[isinstance(snapshot.state, Ready)].append(state_row(session, snapshot))
        executions.append(_execution_row(session, creation))
    session.insert("new_executions", executions)
    session.insert("new_ready", states[True])
    session.insert("new_parked", states[False])
    _insert_rest(session, creations)


def _insert_rest(session: Session, creations: Sequence[Creation]) -> None:
    """What few executions have: keys, tags, deadlines."""
    keys, tags, deadlines = [], [], []
    for creation in creations:
        execution = creation.snapshot.execution
        if creation.key is not None:
            namespace, id = execution.route.namespace, execution.uuid.bytes
            keys.append((namespace, creation.key, id, creation.key_until))
        for key, value in creation.tags.items():
            tags.append((execution.uuid.bytes, key, value, execution.created_at))
        if (at := creation.snapshot.deadline_at) is not None:
            deadlines.append((execution.uuid.bytes, at))
    session.insert("new_keys", keys)
    session.insert("new_tags", tags)
    session.insert("new_deadlines", deadlines)


def _execution_row(session: Session, creation: Creation) -> rows.Row:
    execution = creation.snapshot.execution
    number = session.intern_route(execution.route, execution.kind)
    id, created_at, _, *rest = blobs(rows.execution_row(creation, session.names))
    return (id, created_at, number, *rest)
