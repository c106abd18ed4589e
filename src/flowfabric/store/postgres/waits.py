"""What executions wait for: waitpoints, signals and dedup records."""

from collections.abc import Iterable, Sequence
from functools import partial
from uuid import UUID

from flowfabric.core.execution.change import Change
from flowfabric.core.wait.model import Loaded, Needs, ReceivedSignal
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import PostgresSession, columns, same, without_ids
from flowfabric.store.readable import readable
from flowfabric.store.rows.wait import NeedsLoader, leaves_proof, proof_of, proves, read_signal


async def load_needs(session: PostgresSession, needs: Sequence[Needs]) -> list[Loaded]:
    loader = NeedsLoader(needs)
    if not loader.wants_nothing:
        await session.load.run(partial(_load_needs, session, loader))
    return loader.loaded()


async def signals(
    session: PostgresSession,
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
    return readable(rows, lambda row: read_signal(*row), "a signal of execution", lambda row: uuid)


async def _load_needs(
    session: PostgresSession, loader: NeedsLoader, connection: Connection, repeated: bool
) -> None:
    await fill(loader, session, connection)


async def fill(loader: NeedsLoader, session: PostgresSession, connection: Connection) -> None:
    """Reads everything that is looked for, in one round trip."""
    waitpoints = columns(loader.waitpoints, 2)
    values = (
        *waitpoints,
        *without_ids(columns(loader.dedup, 2), waitpoints[0]),
        *columns(loader.buffers, 4),
        *columns(loader.edges, 2),
        *columns(loader.incoming, 1),
    )
    for row in await connection.fetch(session.queries["needed"], *values):
        loader.add(row, same)
    if loader.unique:
        for row in await connection.fetch(session.queries["waitpoint_owners"], loader.unique):
            loader.add_owner(*row)


async def unproven(
    session: PostgresSession, connection: Connection, changes: Iterable[tuple[UUID, Change[object]]]
) -> set[UUID]:
    """Of changes whose state row is there, those whose other rows are not: a rival wrote an equal
    state row, but another signal, or settled another edge."""
    asked = [(uuid, change) for uuid, change in changes if leaves_proof(change)]
    loader = NeedsLoader([proof_of(*item) for item in asked])
    if not loader.wants_nothing:
        await fill(loader, session, connection)
    return {
        uuid
        for (uuid, change), loaded in zip(asked, loader.loaded(), strict=True)
        if not proves(loaded, change)
    }
