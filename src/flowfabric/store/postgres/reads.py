"""Reading executions one by one."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Attempt, Snapshot
from flowfabric.core.execution.step import Step
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import PostgresSession, once
from flowfabric.store.queries import Detail, reported
from flowfabric.store.readable import named, readable
from flowfabric.store.rows.execution import SNAPSHOT, read_attempt

_WIDTH = len(SNAPSHOT)


async def load(session: PostgresSession, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
    return await session.load.run(partial(_load, session, uuids))


async def ended(session: PostgresSession, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
    return await session.load.run(partial(_load, session, uuids, query="ended_executions"))


async def detail(session: PostgresSession, uuid: UUID) -> Detail | None:
    return await session.load.run(partial(_detail, session, uuid))


async def tags(session: PostgresSession, uuids: Sequence[UUID]) -> list[dict[str, str]]:
    found: dict[UUID, dict[str, str]] = {}
    for uuid, key, value in await session.fetch(session.load, "tags_of", list(uuids)):
        found.setdefault(uuid, {})[key] = value
    return [found.get(uuid, {}) for uuid in uuids]


async def attempts(session: PostgresSession, uuid: UUID) -> list[Attempt]:
    rows = await session.fetch(session.load, "attempts_of", uuid)
    return [named("an attempt of", uuid, partial(read_attempt, doc)) for (doc,) in rows]


async def attempts_at(
    session: PostgresSession, asked: Sequence[tuple[UUID, int]]
) -> dict[UUID, Attempt]:
    uuids, indexes = [uuid for uuid, _ in asked], [index for _, index in asked]
    rows = await session.fetch(session.report, "attempts_at", uuids, indexes)
    read = readable(
        rows, lambda row: (row[0], read_attempt(row[1])), "an attempt of", itemgetter(0)
    )
    return dict(read)


async def steps(session: PostgresSession, asked: Sequence[tuple[UUID, int]]) -> list[list[Step]]:
    found: list[list[Step]] = [[] for _ in asked]
    uuids = [uuid for uuid, _ in asked]
    generations = [generation for _, generation in asked]
    link = session.load
    for at, *row in await session.fetch(link, "steps_of", uuids, once(generations)):
        found[at - 1].append(Step(*row))
    return found


async def set_tags(
    session: PostgresSession, uuid: UUID, tags: Mapping[str, str], now: Millis
) -> bool:
    keys = sorted(tags)
    values = [tags[key] for key in keys]
    return bool(await session.fetch(session.apply, "tagged_execution", uuid, keys, values, now))


async def _load(
    session: PostgresSession,
    uuids: Sequence[UUID],
    connection: Connection,
    repeated: bool,
    *,
    query: str = "snapshots",
) -> dict[UUID, Snapshot]:
    rows = await connection.fetch(session.queries[query], uuids)
    found = await session.read(connection, rows)
    return {snapshot.execution.uuid: snapshot for snapshot in found}


async def _detail(
    session: PostgresSession, uuid: UUID, connection: Connection, repeated: bool
) -> Detail | None:
    row = await connection.fetchrow(session.queries["details"], uuid)
    if row is None:
        return None
    (snapshot,) = await session.read(connection, [row])
    payload, keys, values, said, state_value, touched_at = row[_WIDTH:]
    return Detail(
        snapshot=snapshot,
        payload=payload,
        tags=dict(zip(keys, values, strict=True)),
        progress=reported(said),
        state_value=state_value,
        touched_at=touched_at,
    )
