"""What executions wait for: waitpoints, signals and marks, and the keys that sign tokens."""

from collections.abc import Iterable, Sequence
from functools import partial
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.wait.model import Loaded, Needs, ReceivedSignal
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import Session, columns, same
from flowfabric.store.readable import readable
from flowfabric.store.rows.wait import Recollection, leaves_proof, proof_of, proves, read_heard


async def load_needs(session: Session, asks: Sequence[Needs]) -> list[Loaded]:
    recollection = Recollection(asks)
    if not recollection.wants_nothing:
        await session.load.run(partial(_load_needs, session, recollection))
    return recollection.memories()


async def signals(
    session: Session,
    uuid: UUID,
    *,
    suspension: UUID | None = None,
    after: int = 0,
    limit: int = 1000,
) -> list[ReceivedSignal]:
    if suspension is None:
        rows = await session.fetch(session.load, "signals_of", uuid, after, limit)
    else:
        values = (uuid, after, limit, suspension)
        rows = await session.fetch(session.load, "signals_counted", *values)
    return readable(rows, lambda row: read_heard(*row), "a signal of execution", lambda row: uuid)


async def suspended(
    session: Session, namespace: str | None, after: tuple[Millis, UUID] | None, limit: int
) -> list[Snapshot]:
    values = (*(after or (None, None)), namespace, limit)
    return await session.snapshots(session.report, "suspended_executions", *values)


async def keyring(session: Session) -> tuple[int, bytes | None]:
    rows = await session.fetch(session.load, "keyring")
    return (rows[0][0], bytes(rows[0][1])) if rows else (0, None)


async def put_keyring(session: Session, doc: bytes, expected: int) -> bool:
    return await session.apply.run(partial(_put_keyring, session, doc, expected))


async def _load_needs(
    session: Session, recollection: Recollection, connection: Connection, repeated: bool
) -> None:
    await fill(recollection, session, connection)


async def _put_keyring(
    session: Session, doc: bytes, expected: int, connection: Connection, repeated: bool
) -> bool:
    queries = session.queries
    if expected:
        rows = await connection.fetch(queries["changed_keyring"], doc, expected)
    else:
        rows = await connection.fetch(queries["new_keyring"], doc)
    if repeated and not rows:
        # Refused, unless it is this very document that was written before the reply was lost.
        found = await connection.fetchrow(queries["keyring"])
        return found is not None and tuple(found) == (expected + 1, doc)
    return bool(rows)


async def fill(recollection: Recollection, session: Session, connection: Connection) -> None:
    """Reads everything that is looked for, in one round trip."""
    values = (
        *columns(recollection.waitpoints, 2),
        *columns(recollection.marks, 2),
        *columns(recollection.buffers, 4),
        *columns(recollection.edges, 2),
        *columns(recollection.incoming, 1),
    )
    for row in await connection.fetch(session.queries["recalled"], *values):
        recollection.add(row, same)


async def unproven(
    session: Session, connection: Connection, changes: Iterable[tuple[UUID, Change[object]]]
) -> set[UUID]:
    """Of changes whose state row is there, those whose other rows are not: a rival wrote an equal
    state row, but another signal, or settled another edge."""
    asked = [(uuid, change) for uuid, change in changes if leaves_proof(change)]
    recollection = Recollection([proof_of(*item) for item in asked])
    if not recollection.wants_nothing:
        await fill(recollection, session, connection)
    return {
        uuid
        for (uuid, change), memory in zip(asked, recollection.memories(), strict=True)
        if not proves(memory, change)
    }
