"""Creating executions."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from flowfabric.core.base.errors import Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Flags, Gate, Ready, Snapshot, Start, Waiting
from flowfabric.core.execution.submission import Creation
from flowfabric.core.limit.at_submission import NOT_ADMITTED, Admissions
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.faults import divide
from flowfabric.store.postgres.session import PostgresSession, columns, insert_new
from flowfabric.store.queries import InboxEntry
from flowfabric.store.rows.execution import (
    COLUMNS,
    EXECUTION,
    STEP,
    Names,
    Row,
    StateTable,
    execution_row,
    state_row,
    step_row,
    write_life,
)

Answers = dict[UUID, ExecutionId | None]

MAX_ROUNDS = 5

_FRESH = (1, 0, 0, Start.INITIAL, None)
_NOT_READY = (None, None, None, None, None, None)
_WIDTH = len(EXECUTION) + 1 + len(_NOT_READY)
_SHARED = (EXECUTION.index("route"), len(EXECUTION) + 1, len(EXECUTION) + 2)
"""Route, lead and flags are mostly the same for all."""
_OF_READY = (*range(7), *range(8, 12))
_BESIDE_READY = (7, 12, 17, 31, 33, 37)
"""Of `values_of`: the columns of executions that wait for a worker only, and those that tell of
anything else: a key, a row of `parked`, a deadline, tags, a queue."""
_PARKED = COLUMNS[StateTable.PARKED]
_SHARED_PARKED = tuple(
    map(_PARKED.index, ("version", "epoch", "flags", "attempt", "start", "gate"))
)


async def submit(
    session: PostgresSession, creations: Sequence[Creation], now: Millis
) -> list[ExecutionId | None]:
    book = session.book
    await book.need_routes({creation.snapshot.execution.route for creation in creations})
    ordered = sorted(creations, key=number)
    found: Answers = {}
    for answers in await divide(ordered, partial(_send, session, now)):
        found.update(answers)
    if not any(found.values()):
        return [None] * len(creations)  # most batches: all are new
    return [found[_uuid(creation)] for creation in creations]


async def submit_and_admit(
    session: PostgresSession, creations: Sequence[Creation], admissions: Admissions, now: Millis
) -> tuple[list[ExecutionId | None], bool]:
    await session.book.need_routes({creation.snapshot.execution.route for creation in creations})
    ordered = sorted(creations, key=number)
    parts = await divide(ordered, partial(_send_admitted, session, admissions, now))
    found: Answers = {}
    for answers, _ in parts:
        found.update(answers)
    stood = all([stood for _, stood in parts])
    if not any(found.values()):
        return [None] * len(creations), stood  # nearly always: all are new
    return [found.get(_uuid(creation)) for creation in creations], stood


async def _send_admitted(
    session: PostgresSession,
    admissions: Admissions,
    now: Millis,
    creations: Sequence[Creation],
    patience: float,
) -> tuple[Answers, bool]:
    work = partial(_create_admitted, session, creations, admissions, now)
    return await session.submit.run(work, patience=patience)


async def _create_admitted(
    session: PostgresSession,
    creations: Sequence[Creation],
    admissions: Admissions,
    now: Millis,
    connection: Connection,
    repeated: bool,
) -> tuple[Answers, bool]:
    """After a lost reply it is not known what stood: they wait, unless they exist already."""
    if repeated:
        return await _create(session, creations, now, connection, repeated), False
    values = admitted_values(creations, admissions, now, session.book.names)
    made = await insert_new(connection, session.queries["admitted_executions"], values)
    if len(made) == len(creations):
        return {}, made[0][1]
    answers: Answers = dict.fromkeys([id for id, _ in made])
    if rest := [creation for creation in creations if _uuid(creation) not in answers]:
        answers |= await _known(session, connection, rest, now, repeated)
    return answers, all(stands for _, stands in made)


async def _send(
    session: PostgresSession, now: Millis, creations: Sequence[Creation], patience: float
) -> Answers:
    work = partial(_create, session, creations, now)
    return await session.submit.run(work, patience=patience)


async def _create(
    session: PostgresSession,
    creations: Sequence[Creation],
    now: Millis,
    connection: Connection,
    repeated: bool,
) -> Answers:
    answers: Answers = {}
    rest = creations
    for _ in range(MAX_ROUNDS):
        made = await _insert(session, connection, rest, now, repeated)
        answers.update(dict.fromkeys(made))
        if len(answers) == len(creations):
            return answers
        rest = [creation for creation in rest if _uuid(creation) not in answers]
        if rest:
            answers |= await _known(session, connection, rest, now, repeated)
            rest = [creation for creation in rest if _uuid(creation) not in answers]
        if not rest:
            return answers
    # Each time, another submission with the key came and went between the two statements.
    raise Unavailable("submissions with the same key came and went; try again")


async def _insert(
    session: PostgresSession,
    connection: Connection,
    creations: Sequence[Creation],
    now: Millis,
    repeated: bool,
) -> list[UUID]:
    """The executions that were created, with the steps of forks among them."""
    name, values = _statement(values_of(creations, now, session.book.names))
    query = session.queries[name]
    if not any(creation.steps for creation in creations):
        if not repeated and all(creation.minted for creation in creations):
            return _ids(await insert_new(connection, query, values))
        return _ids(await connection.fetch(query, *values))
    async with connection.transaction():
        made = _ids(await connection.fetch(query, *values))
        new = [creation for creation in creations if _uuid(creation) in made]
        steps = [step_row(_uuid(creation), step) for creation in new for step in creation.steps]
        if steps:
            await connection.fetch(session.queries["new_steps"], *columns(steps, len(STEP)))
    return made


def _statement(values: list[Any]) -> tuple[str, list[Any]]:
    """The smallest statement that writes all of these values, and its parameters."""
    if any(values[column] for column in _BESIDE_READY):
        return "submitted_executions", values
    return "ready_executions", [values[column] for column in _OF_READY]


def _ids(rows: Sequence[Any]) -> list[UUID]:
    return [uuid for (uuid,) in rows]


async def _known(
    session: PostgresSession,
    connection: Connection,
    creations: Sequence[Creation],
    now: Millis,
    repeated: bool,
) -> Answers:
    """What was there already. After a lost reply that may be what this call created."""
    asked = [
        (_uuid(creation), creation.snapshot.execution.route.namespace, creation.key)
        for creation in creations
    ]
    rows = await connection.fetch(session.queries["known_executions"], *columns(asked, 3), now)
    created_at = {_uuid(creation): creation.snapshot.execution.created_at for creation in creations}
    return {
        uuid: None
        if repeated and uuid == found and at == created_at[uuid]
        else _execution_id(found, lane, flow)
        for uuid, found, lane, flow, at in rows
    }


async def known(
    session: PostgresSession, id: UUID | None, namespace: str, key: str | None, now: Millis
) -> ExecutionId | None:
    rows = await session.fetch(session.load, "known_executions", [id], [namespace], [key], now)
    return _execution_id(*rows[0][1:4]) if rows else None


async def inbox(
    session: PostgresSession, uuids: Sequence[UUID] | None, limit: int
) -> list[InboxEntry]:
    if uuids is None:
        rows = await session.fetch(session.load, "inbox", limit)
    else:
        rows = await session.fetch(session.load, "inbox_among", list(uuids[:limit]))
    return [InboxEntry(*row) for row in rows]


async def admit(session: PostgresSession, creations: Sequence[Creation], now: Millis) -> int:
    await session.book.need_routes({c.snapshot.execution.route for c in creations})
    ordered = sorted(creations, key=number)
    done = await divide(ordered, partial(_send_admission, session, now))
    return sum(done)


async def _send_admission(
    session: PostgresSession, now: Millis, creations: Sequence[Creation], patience: float
) -> int:
    work = partial(_admit, session, creations, now)
    return await session.apply.run(work, patience=patience)


async def _admit(
    session: PostgresSession,
    creations: Sequence[Creation],
    now: Millis,
    connection: Connection,
    repeated: bool,
) -> int:
    """The second caller finds the inbox entries gone, also after a lost reply."""
    queries = session.queries
    async with connection.transaction():
        ids = [_uuid(creation) for creation in creations]
        here = {row[0] for row in await connection.fetch(queries["admitted_inbox"], ids)}
        admitted = [creation for creation in creations if _uuid(creation) in here]
        if admitted:
            values = values_of(admitted, now, session.book.names)
            await connection.fetch(queries["submitted_executions"], *values)
    return len(admitted)


def _execution_id(uuid: UUID, lane: str, flow: UUID | None) -> ExecutionId:
    return ExecutionId.solo(lane, uuid) if flow is None else ExecutionId.member(flow, uuid)


def _uuid(creation: Creation) -> UUID:
    return creation.snapshot.execution.uuid


def number(creation: Creation) -> int:
    return creation.snapshot.execution.uuid.int


def values_of(
    creations: Sequence[Creation],
    now: Millis,
    names: Names,
    admitted: Mapping[int, Snapshot] = NOT_ADMITTED,
) -> list[Any]:
    """The parameters of the statement: one array per column of every table. `admitted` are
    executions as they are if their admission stands, by the number of their id."""
    executions: list[Row] = []
    parked: list[Row] = []
    keys, deadlines, tags = [], [], []
    for creation in creations:
        snapshot = creation.snapshot
        execution = snapshot.execution
        waits = _first_part(snapshot, admitted)
        if waits is _NOT_READY:
            parked.append(state_row(snapshot, names))
        keyed = creation.key is not None or None
        executions.append((*execution_row(creation, names), keyed, *waits))
        if creation.key is not None:
            key = (execution.route.namespace, creation.key, execution.uuid, creation.key_until)
            keys.append(key)
        if snapshot.head.flags is not Flags.NONE and snapshot.deadline_at is not None:
            deadlines.append((execution.uuid, snapshot.deadline_at))
        for name, value in creation.tags.items():
            tags.append((execution.uuid, name, value, execution.created_at))
    keys.sort(key=lambda key: key[:2])
    given = columns(executions, _WIDTH, shared=_SHARED)
    return [
        *given[:-2],
        *columns(keys, 4),
        now,
        *columns(parked, len(_PARKED), shared=_SHARED_PARKED),
        *columns(deadlines, 2),
        *columns(tags, 4),
        *given[-2:],
    ]


def admitted_values(
    creations: Sequence[Creation], admissions: Admissions, now: Millis, names: Names
) -> list[Any]:
    """The same of the statement that also admits."""
    return [
        *values_of(creations, now, names, admissions.admitted),
        *columns(sorted(admissions.versions.items()), 2),
    ]


def _first_part(snapshot: Snapshot, admitted: Mapping[int, Snapshot]) -> Row:
    """What can differ between two executions that were just created and wait for a worker or for
    their limits; the statement knows the rest."""
    head, state, execution = snapshot.head, snapshot.state, snapshot.execution
    queue = at = hold = None
    if isinstance(state, Ready):
        hold = state.hold
    elif isinstance(state, Waiting) and state.gate is Gate.LIMIT:
        queue = execution.rules.queue
        if (ready := admitted.get(execution.uuid.int)) is not None:
            at = execution.created_at + ready.head.rank - head.rank
    else:
        return _NOT_READY
    next = state.next
    if (head.version, head.epoch, next.attempt, next.start, hold) != _FRESH:
        raise AssertionError("an execution that was just created has no past")
    lead = head.rank - execution.created_at
    return (lead, int(head.flags), write_life(head.life), next.timeout, queue, at)
