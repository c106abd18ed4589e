"""The general way to write: lock every row decided on, compare, move, commit."""

from collections.abc import Collection, Sequence
from functools import partial
from itertools import groupby
from typing import Any
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import Active, Lost, Ready, Snapshot
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.direct import statement_for, values_of
from flowfabric.store.postgres.faults import WaitpointTaken, divide, each_of
from flowfabric.store.postgres.moves import RowMove, moves_of
from flowfabric.store.postgres.session import PostgresSession, columns
from flowfabric.store.postgres.waits import unproven
from flowfabric.store.rows import flow as flow_rows
from flowfabric.store.rows.execution import (
    GONE,
    NEW,
    Row,
    StateTable,
    attempt_row,
    event_row,
    place_of,
    state_row,
    step_key,
    step_row,
    workers_in,
)
from flowfabric.store.rows.wait import writes_waits, written_by

_ROWS = {
    StateTable.READY: "ready_rows",
    StateTable.LEASE: "lease_rows",
    StateTable.PARKED: "parked_rows",
    StateTable.DONE: "done_rows",
}


async def apply(session: PostgresSession, changes: Sequence[Change[object]]) -> set[UUID]:
    kinds: dict[str | None, list[RowMove]] = {}
    for move in await prepare(session, changes):
        kinds.setdefault(statement_for(move), []).append(move)
    # Each kind by itself: what is refused of one must not hide that another was written.
    sends = (partial(divide, moves, partial(_send, session, k)) for k, moves in kinds.items())
    return {uuid for answers in await each_of(sends) for some in answers for uuid in some}


async def _send(
    session: PostgresSession, statement: str | None, moves: Sequence[RowMove], patience: float
) -> set[UUID]:
    if statement is None:
        work = partial(_apply, session, moves)
    else:
        work = partial(_write_directly, session, statement, moves)
    try:
        return await session.apply.run(work, patience=patience)
    except WaitpointTaken:
        if len(moves) > 1:
            raise  # `divide` writes the others
        return set()


async def _write_directly(
    session: PostgresSession,
    statement: str,
    moves: Sequence[RowMove],
    connection: Connection,
    repeated: bool,
) -> set[UUID]:
    values = values_of(moves, session.book.names)
    rows = await connection.fetch(session.queries[statement], *values)
    return await _seen(session, moves, {uuid for (uuid,) in rows}, connection, repeated)


async def _apply(
    session: PostgresSession, moves: Sequence[RowMove], connection: Connection, repeated: bool
) -> set[UUID]:
    async with connection.transaction():
        stand = await standing(session, connection, [move.before for move in moves])
        written = [move for move, stands in zip(moves, stand, strict=True) if stands]
        if written:
            await Writer(session, connection).write(written)
    return await _seen(session, moves, {move.uuid for move in written}, connection, repeated)


async def _seen(
    session: PostgresSession,
    moves: Sequence[RowMove],
    applied: set[UUID],
    connection: Connection,
    repeated: bool,
) -> set[UUID]:
    """What was written, now or before its reply was lost."""
    if repeated and len(applied) < len(moves):
        changes = [move.change for move in moves]
        applied |= await recognise(session, connection, changes, applied)
    return applied


async def prepare(session: PostgresSession, changes: Sequence[Change[object]]) -> list[RowMove]:
    """What the changes move, in the order of ids; every name they need has a number."""
    moves = sorted(moves_of(changes), key=lambda move: move.uuid.int)
    await session.book.need_workers({worker for change in changes for worker in workers_in(change)})
    await session.book.need_routes(
        {
            move.after.execution.route
            for move in moves
            if isinstance(move.after.state, Ready | Lost | Active)
        }
    )
    return moves


async def standing(
    session: PostgresSession, connection: Connection, snapshots: Sequence[Snapshot]
) -> list[bool]:
    """Locks the rows and tells for each whether its version (and a lease's expiry, the only thing
    a renewal moves) stands in the same place."""
    ids: dict[StateTable, list[UUID]] = {place: [] for place in StateTable}
    for snapshot in snapshots:
        ids[place_of(snapshot.state)].append(snapshot.execution.uuid)
    rows = await connection.fetch(session.queries["state_versions"], *ids.values())
    found = {uuid: (version, expires_at) for uuid, version, expires_at in rows}
    return [found.get(s.execution.uuid) == _compared(s) for s in snapshots]


class Writer:
    """Writes moves whose rows are locked; only tables with something to write are asked."""

    def __init__(self, session: PostgresSession, connection: Connection) -> None:
        self._queries = session.queries
        self._names = session.book.names
        self._connection = connection

    async def write(self, moves: Sequence[RowMove]) -> None:
        await self._take_out(moves)
        await self._put_in(moves)
        await self._rewrite([move for move in moves if _in_place(move)])
        changes = [move.change for move in moves]
        attempts = {
            (move.uuid, attempt.index): attempt_row(move.uuid, attempt)
            for move in moves
            for attempt in move.change.attempts
        }
        await self.send("new_attempts", list(attempts.values()))
        await self.send(
            "gone_steps",
            [step_key(move.uuid, step) for move in moves for step in move.change.forgotten],
        )
        await self.send(
            "new_steps", [step_row(move.uuid, step) for move in moves for step in move.change.steps]
        )
        await self._write_waits([move for move in moves if writes_waits(move.change)])
        await self.send(
            "new_events",
            [event_row(event, self._names) for change in changes for event in change.events],
        )
        await self._set_deadlines(moves)
        await self._write_flows(changes)

    async def _take_out(self, moves: Sequence[RowMove]) -> None:
        for place in StateTable:
            gone = [(move.uuid,) for move in moves if move.origin is place and not _in_place(move)]
            deleted = await self.send(GONE[place], gone)
            if len(deleted) != len(gone):
                raise AssertionError("another session moved a locked row")

    async def _put_in(self, moves: Sequence[RowMove]) -> None:
        for place in StateTable:
            rows = [
                state_row(move.after, self._names)
                for move in moves
                if move.target is place and not _in_place(move)
            ]
            await self.send(NEW[place], rows)

    async def _rewrite(self, moves: Sequence[RowMove]) -> None:
        rows = [(*state_row(move.after, self._names), move.before.head.version) for move in moves]
        await self.send("changed_lease", rows)

    async def _write_waits(self, moves: Sequence[RowMove]) -> None:
        rows = written_by((move.uuid, move.change) for move in moves)
        await self.send("new_waitpoints", rows.waitpoints)
        await self.send("new_signals", rows.signals)
        await self.send("counted_signals", rows.counted)
        await self.send("new_dedup_records", rows.dedup)

    async def _set_deadlines(self, moves: Sequence[RowMove]) -> None:
        moved = [move for move in moves if move.change.alarm != move.before.alarm_at]
        new = [(m.uuid, m.change.alarm) for m in moved if m.change.alarm is not None]
        gone = [(m.uuid,) for m in moved if m.change.alarm is None]
        await self.send("new_deadlines", new)
        await self.send("gone_deadlines", gone)

    async def _write_flows(self, changes: Sequence[Change[object]]) -> None:
        rows = flow_rows.written_by(changes)
        await self.send("settled_edges", rows.settled)
        await self.send("new_outbox", rows.outbox)

    async def send(self, name: str, rows: Sequence[Row]) -> list[Any]:
        """Runs a query for many rows, if there are any."""
        if not rows:
            return []
        return await self._connection.fetch(self._queries[name], *columns(rows, len(rows[0])))


async def recognise(
    session: PostgresSession,
    connection: Connection,
    changes: Sequence[Change[object]],
    applied: Collection[UUID],
) -> set[UUID]:
    """After a lost reply: the changes that look refused because they were written before."""
    left = [move for move in moves_of(changes) if move.uuid not in applied]
    left.sort(key=lambda move: move.target)
    names = session.book.names
    found = set[UUID]()
    for place, moves in groupby(left, key=lambda move: move.target):
        wanted = {move.uuid: state_row(move.after, names) for move in moves}
        rows = await connection.fetch(session.queries[_ROWS[place]], list(wanted))
        found |= {row[0] for row in rows if tuple(row) == wanted[row[0]]}
    seen = [(move.uuid, move.change) for move in left if move.uuid in found]
    return found - await unproven(session, connection, seen)


def _compared(snapshot: Snapshot) -> tuple[int, Millis | None]:
    match snapshot.state:
        case Active(lease=lease):
            return snapshot.head.version, lease.expires_at
        case _:
            return snapshot.head.version, None


def _in_place(move: RowMove) -> bool:
    return move.origin is StateTable.LEASE and move.target is StateTable.LEASE
