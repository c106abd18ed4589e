"""Quotas, the queues before them, and letting work through."""

from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Gate, Route, Start
from flowfabric.core.limit.quota import Quota, Uses
from flowfabric.core.limit.release import Candidate, Key, Line, QuotaView, Release, StartsBack
from flowfabric.store.contract import MAX_BATCH
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import Columns, PostgresSession, columns
from flowfabric.store.queries import (
    Crowd,
    LinesRequest,
    MovedByRelease,
    OtherVersion,
    QueueCount,
    QuotaViewRequest,
    ServedLines,
)
from flowfabric.store.readable import log_unreadable, readable
from flowfabric.store.rows.limit import (
    QUEUE,
    known_uses,
    queue_rows,
    read_uses,
    servable,
    served_lines,
)
from flowfabric.store.rows.record import QUOTAS

FEW_SLOTS = 2000
"""So many slots of all quotas are faster counted together than queue by queue."""


async def put_queues(session: PostgresSession, queues: Sequence[tuple[int, Uses]]) -> None:
    rows = {row[:2]: row for id, uses in queues for row in queue_rows(id, uses)}
    values = [rows[place] for place in sorted(rows)]
    if values:
        await session.fetch(session.limit, "new_queues", *columns(values, len(QUEUE)))


async def quota_view(session: PostgresSession, ask: QuotaViewRequest) -> QuotaView:
    queues = None if ask.queues is None else list(ask.queues)
    shut = (_numbers(session, ask.closed), _numbers(session, ask.draining))
    values = (ask.quota, queues, *shut, ask.now, FEW_SLOTS, ask.lines, ask.depth)
    rows = await session.fetch(session.limit, "quota_view", *values)
    return _standing(ask.quota, rows)


async def release(session: PostgresSession, release: Release) -> MovedByRelease | None:
    if len(release.moves) > MAX_BATCH:
        raise AssertionError(f"a release moves at most {MAX_BATCH}")
    return await session.limit.run(partial(_release, session, release))


async def serve(session: PostgresSession, ask: LinesRequest) -> ServedLines | OtherVersion | None:
    """After a lost reply it admits what there is room for then."""
    return await session.limit.run(partial(_serve, session, ask))


async def take_starts_back(session: PostgresSession, starts: Sequence[StartsBack]) -> None:
    rows = sorted((b.quota, b.key, b.since, b.count) for b in starts)
    await session.limit.run(partial(_take_starts_back, session, columns(rows, 4)))


async def crowds(session: PostgresSession, after: int, limit: int) -> list[Crowd]:
    rows = await session.fetch(session.limit, "crowds", after, limit)
    return [Crowd(queue, Gate(gate), first, known_uses(doc)) for queue, gate, first, doc in rows]


async def queue_counts(session: PostgresSession, quota: str, limit: int) -> list[QueueCount]:
    rows = await session.fetch(session.report, "queue_counts", quota, limit)
    return readable(
        rows,
        lambda row: QueueCount(read_uses(row[0]), *row[1:]),
        "a line of quota",
        lambda _: quota,
    )


async def ahead_of(session: PostgresSession, queue: int, rank: int, uuid: UUID, limit: int) -> int:
    values = (queue, rank, uuid, limit)
    ((count,),) = await session.fetch(session.report, "ahead_of", *values)
    return int(count)


async def trim_limits(session: PostgresSession, now: Millis, forgotten: Millis, limit: int) -> int:
    idle = await session.fetch(session.sweep, "idle_queues", limit)
    quotas, queues = sorted({row[0] for row in idle}), sorted({row[1] for row in idle})
    trimmed = 0
    if queues:
        trimmed = await session.sweep.run(partial(_trim_queues, session, quotas, queues))
    for name, moment in (("trimmed_admissions", forgotten), ("trimmed_charges", now)):
        left = max(0, limit - trimmed)
        trimmed += len(await session.fetch(session.sweep, name, moment, left))
    return trimmed


def _numbers(session: PostgresSession, routes: Sequence[Route]) -> list[int]:
    """Of the routes this process has seen: the asking one has read all there are."""
    known = session.book.names.route_numbers
    return [known[route] for route in routes if route in known]


async def _trim_queues(
    session: PostgresSession,
    quotas: list[str],
    queues: list[int],
    connection: Connection,
    repeated: bool,
) -> int:
    """Finding idle queues may take long, so the quotas are not locked for that."""
    async with connection.transaction():
        await connection.fetch(session.queries["locked_quotas"], quotas)
        return len(await connection.fetch(session.queries["trimmed_queues"], quotas, queues))


async def _take_starts_back(
    session: PostgresSession, values: Columns, connection: Connection, repeated: bool
) -> None:
    if repeated:
        return  # it may have been written before the reply was lost, and once is enough
    queries = session.queries
    async with connection.transaction():
        await connection.fetch(queries["locked_quotas"], list(values[0] or ()))
        await connection.execute(queries["taken_back_starts"], *values)


async def _release(
    session: PostgresSession, release: Release, connection: Connection, repeated: bool
) -> MovedByRelease | None:
    versions = columns(sorted(release.versions.items()), 2)
    moves = columns(sorted((move.uuid, move.version, move.at) for move in release.moves), 3)
    compared = (*versions, *moves[:2])
    values = (
        *columns(sorted((*place, turn) for place, turn in release.turns.items()), 3),
        *columns(sorted((*noted, count) for noted, count in release.admissions.items()), 4),
        *columns(sorted(release.forget.items()), 2),
        moves[2],
    )
    rows = await connection.fetch(session.queries["released"], *compared, *values)
    if repeated and not rows[0][0]:
        # Refused, unless it was written before the reply was lost. To say so by mistake is
        # harmless to a caller that then keeps nothing it knew: a rival may have moved the versions.
        rows = await connection.fetch(session.queries["released_before"], *compared)
    if not rows[0][0]:
        return None
    moved = (uuid for _, uuid in rows if uuid is not None)
    return MovedByRelease(moved, repeated=repeated)


async def _serve(
    session: PostgresSession, ask: LinesRequest, connection: Connection, repeated: bool
) -> ServedLines | OtherVersion | None:
    """If a rival was faster, the lock is taken before the statement that reads."""
    query = session.queries["served_lines"]
    shut = (_numbers(session, ask.closed), _numbers(session, ask.draining))
    lines = (list(ask.lines), list(ask.lines.values()))
    values = (ask.quota, lines[0], *shut, ask.now, ask.most, lines[1], ask.version)
    rows = await connection.fetch(query, *values)
    if rows and rows[0][0] is None:
        if ask.version is not None:
            return OtherVersion()
        async with connection.transaction():
            await connection.fetch(session.queries["locked_quotas"], [ask.quota])
            rows = await connection.fetch(query, *values)
    if not rows:
        return None
    version, turn, queues, rooms, picked, moved = rows[0]
    return served_lines(version, turn, dict(zip(queues, rooms, strict=True)), picked, moved)


def _standing(asked: str, rows: Sequence[Any]) -> QuotaView:
    quotas: dict[str, Quota] = {}
    lines: dict[int, tuple[int, Uses]] = {}
    held: dict[int, tuple[Uses, int]] = {}
    admitted: dict[Key, list[tuple[Millis, int]]] = {}
    damaged: set[str] = set()
    for kind, name, key, a, b, _, _, _, doc in rows:
        try:
            match kind:
                case 0:
                    quotas[name] = QUOTAS.by_key([(name, a, doc)])[name]
                case 1:
                    lines[a] = (b, read_uses(doc))
                case 3:
                    held[a] = (read_uses(doc), b)
                case 4:
                    admitted.setdefault((name, key), []).append((a, b))
                case _:
                    pass
        except Corruption as error:
            log_unreadable(error)
            damaged.add(name)
    waiting = _waiting(rows)
    found = [Line(id, uses, turn, waiting.get(id, [])) for id, (turn, uses) in lines.items()]
    return QuotaView(
        quotas=quotas,
        lines=[] if asked in damaged else servable(found, damaged),
        held=list(held.values()),
        admitted={key: window for key, window in admitted.items()},
        served={row[1]: row[3] for row in rows if row[0] == 5},
    )


def _waiting(rows: Sequence[Any]) -> dict[int, list[Candidate]]:
    """The candidates of each line in their order."""
    found: dict[int, list[Candidate]] = {}
    more: dict[int, list[Candidate]] = {}
    for kind, _, _, queue, version, rank, start, id, _ in rows:
        if kind == 2:
            candidate = Candidate(id, version, rank, start != Start.CONTINUE)
            found.setdefault(queue, []).append(candidate)
        elif kind == 6:
            more.setdefault(queue, []).append(Candidate(id, version, rank, starts=False))
    for queue, continuing in more.items():
        found[queue] = sorted({*found.get(queue, ()), *continuing}, key=_place_in_line)
    return found


def _place_in_line(candidate: Candidate) -> tuple[int, UUID]:
    return candidate.rank, candidate.uuid
