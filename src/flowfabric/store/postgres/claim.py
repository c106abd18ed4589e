"""Taking work."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple, cast
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Active, Snapshot
from flowfabric.core.execution.step import Step
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.low_water import Look
from flowfabric.store.postgres.session import PostgresSession, once
from flowfabric.store.queries import ClaimCall, Suspects, Taken
from flowfabric.store.readable import SET_ASIDE
from flowfabric.store.rows.execution import SNAPSHOT

MERGED_ROUTES = 64
"""So many routes are merged as they are; of more, only those that can have one of the best."""

MAX_ROUNDS = 4
SPARE = 16
"""How many more candidates than it can take a claim looks at, in case others lock some of them."""
RIVALS_FOR = 1000
"""Milliseconds after a claim had met rows that others had locked, in which claims look at half as
many candidates more: a second look costs a statement."""
MAX_NUMBER = 2**31 - 1
"""Above every route there can be."""
MAX_TRIES = 30
"""How often a lane with a concurrency is tried while others take from it."""
MAX_REMEMBERED = 1000

_CALLS = 5
"""Where the ids of the calls are among the values of a claim."""
_PAYLOAD = len(SNAPSHOT)
_STEPS = _PAYLOAD + 1
_NEWEST, _CANDIDATES, _SUSPECTS, _SPECIAL, _HELD, _MISSED = range(_STEPS + 1, _STEPS + 7)
_FIRSTS = _MISSED

_MARK = "(q.flags & 64) is not null"
_MARKED = {
    Suspects.ANY: _MARK,
    Suspects.NONE: "(q.flags & 64) = 0",
    Suspects.ONLY: "(q.flags & 64) <> 0",
}
"""The part of the statements that tells suspects from others. It is text, so that each kind of call
has a plan of its own: there is an index of suspects alone."""


_PLACE = "row_number() over (order by t.rank, t.id)"
"""Where a row stands among those that several calls share out. One call gets them all, so that they
need not be sorted."""


@lru_cache(maxsize=64)
def _marked(query: str, suspects: Suspects, *, shared: bool = True) -> str:
    found = query.replace(_MARK, _MARKED[suspects])
    return found if shared else found.replace(_PLACE, "1::bigint")


async def claim(session: PostgresSession, call: ClaimCall, now: Millis) -> list[Taken]:
    (taken,) = await claim_all(session, [call], now)
    return taken


async def claim_all(
    session: PostgresSession, calls: Sequence[ClaimCall], now: Millis
) -> list[list[Taken]]:
    await session.book.need_workers([call.worker for call in calls])
    taken = await session.claim.run(partial(_claim, session, calls, now))
    if taken:
        session.learned.second_look.took()
    taken.sort(key=_order)
    if len(calls) == 1:
        return [taken]
    found: dict[int, list[Taken]] = {call.id.int: [] for call in calls}
    for item in taken:
        found[_lease_id(item).int].append(item)
    return list(found.values())


def takes_simply(session: PostgresSession, call: ClaimCall) -> bool:
    """Whether the call takes the best of a few routes, with no mark to look from and, as far as is
    known, no lane that needs a count."""
    learned = session.learned
    if learned.low_water.engaged or call.lanes in learned.special:
        return False
    return len(session.book.suiting(call)) <= MERGED_ROUTES


async def _claim(
    session: PostgresSession,
    calls: Sequence[ClaimCall],
    now: Millis,
    connection: Connection,
    repeated: bool,
) -> list[Taken]:
    book = session.book
    asked = [call for call in calls if repeated or call.repeated]
    taken = await _taken_before(session, connection, asked, now) if asked else []
    left, behind = MAX_ROUNDS, 0
    while left and (open := _with_room(calls, taken)):
        left -= 1
        # Work of a route that was just added may be better than all that is known; only the
        # last round takes what it can.
        known = book.newest_route if left else MAX_NUMBER
        reply = await _take(session, connection, open, now, known, behind)
        if reply.held:
            return taken + await _claim_each(session, connection, open, now)
        found, damaged = await _read(session, connection, open, now, reply.rows)
        taken += found
        if reply.newest > known:
            await book.learn(connection, reply.newest)
        elif damaged:
            left += 1  # each is set aside, so this comes to an end
        elif len(reply.rows) == _room(open) or not reply.more:
            return taken
        else:
            # Farther each time: a call for one run gets past hundreds that another call takes.
            behind = reply.locked * (MAX_ROUNDS - left)
    if _with_room(calls, taken):
        session.learned.second_look.plan(session.hints)
    return taken


async def _taken_before(
    session: PostgresSession, connection: Connection, calls: Sequence[ClaimCall], now: Millis
) -> list[Taken]:
    query = session.queries["leases_by_claim"]
    rows = await connection.fetch(query, [call.id for call in calls], now)
    taken, _ = await _read(session, connection, calls, now, rows)
    return [replace(item, again=True) for item in taken]


async def _claim_each(
    session: PostgresSession, connection: Connection, calls: Sequence[ClaimCall], now: Millis
) -> list[Taken]:
    """Where a row is held for one of several workers: it and no other may take it."""
    taken: list[Taken] = []
    for call in calls:
        taken += await _claim(session, [replace(call, repeated=False)], now, connection, False)
    return taken


def _with_room(calls: Sequence[ClaimCall], taken: Sequence[Taken]) -> list[ClaimCall]:
    """The calls that may take more, each with the limit it has left."""
    if not taken:
        return [call for call in calls if call.limit > 0]
    counts = Counter(map(_lease_id, taken))
    return [
        call if not counts[call.id] else replace(call, limit=call.limit - counts[call.id])
        for call in calls
        if counts[call.id] < call.limit
    ]


def _room(calls: Sequence[ClaimCall]) -> int:
    return sum([call.limit for call in calls])


class _Reply(NamedTuple):
    """The rows taken, the newest route, whether there were more candidates than looked at
    (others may have locked those in front) or a lane others were taking from, whether nothing
    was taken because a row is held for one of several workers, and how many candidates others have
    locked."""

    rows: list[Any]
    newest: int
    more: bool
    held: bool
    locked: int


async def _take(
    session: PostgresSession,
    connection: Connection,
    calls: Sequence[ClaimCall],
    now: Millis,
    known: int,
    behind: int,
) -> _Reply:
    """Looks at so many more candidates, `behind` those that others had locked a moment ago: two
    workers that claim hundreds at a time would otherwise find the same rows again and again."""
    learned = session.learned
    call, limits, ttls = calls[0], [each.limit for each in calls], [each.ttl for each in calls]
    room = sum(limits)
    workers = list({each.worker.id: None for each in calls})
    spare = SPARE + (room // 2 if now < learned.rivals_until else 0)
    candidates = room + spare + behind
    numbers = session.book.names.worker_numbers
    routes = await _routes(session, connection, call, now, workers, candidates)
    values = (
        routes,
        now,
        workers,
        candidates,
        room,
        [each.id for each in calls],
        [numbers[each.worker] for each in calls],
        once(ttls),
        known,
        [] if room == len(calls) else list(accumulate(limits[:-1], initial=0)),
    )
    rows: list[Any] = []
    missed = False
    if call.lanes not in learned.special:
        rows = await _take_marked(session, connection, call, values)
    if not rows or rows[0][_SPECIAL]:
        rows = await _take_by_lane(session, connection, call, values)
        missed = rows[0][_MISSED]
    first = rows[0]
    learned.suspects = first[_SUSPECTS]
    taken = [] if first[0] is None else rows
    found = first[_CANDIDATES]
    more = missed or found == candidates
    if len(taken) < min(room, found):
        learned.rivals_until = Millis(now + RIVALS_FOR)
    return _Reply(taken, first[_NEWEST] or 0, more, first[_HELD], found - len(taken))


async def _take_marked(
    session: PostgresSession, connection: Connection, call: ClaimCall, values: tuple[Any, ...]
) -> list[Any]:
    """Skips rows that are dead but cannot be removed, if there are many (`low_water.py`)."""
    marks, routes, now = session.learned.low_water, values[0], values[1]
    if marks.engaged and (block := marks.due(now)) is not None:
        await _look_behind(session, connection, now, block)
    ranges = marks.ranges(routes)
    shared = len(values[_CALLS]) > 1
    query = _marked(session.queries["taken_leases"], call.suspects, shared=shared)
    began = time.perf_counter()
    asked = (ranges.routes, *values[1:], ranges.lows, ranges.highs, marks.learns(routes, now))
    rows = await connection.fetch(query, *asked)
    if (firsts := rows[0][_FIRSTS]) is not None:
        marks.learn(ranges, firsts, now)
    elif marks.wonders(now, time.perf_counter() - began):
        (counts,) = await connection.fetch(session.queries["walked_ready"])
        marks.walked(now, *counts)
    return rows


async def _look_behind(
    session: PostgresSession, connection: Connection, now: Millis, block: int
) -> None:
    """Finds rows that claims would skip, in the table from this block on."""
    marks = session.learned.low_water
    began = time.perf_counter()
    rows = await connection.fetch(session.queries["stray_ready"], (block, 0), *marks.skipped)
    look = Look(time.perf_counter() - began, rows[0]["blocks"], rows[0]["dead"])
    marks.looked(now, block, look, [(row["number"], row["rank"]) for row in rows if row["number"]])


async def _take_by_lane(
    session: PostgresSession, connection: Connection, call: ClaimCall, values: tuple[Any, ...]
) -> list[Any]:
    """Where lanes drain or have a concurrency. From one with a concurrency only one process
    takes at a time; the others try again."""
    shared = len(values[_CALLS]) > 1
    query = _marked(session.queries["taken_leases_by_lane"], call.suspects, shared=shared)
    rows = await connection.fetch(query, *values)
    if len(session.learned.special) > MAX_REMEMBERED:
        session.learned.special.clear()
    if rows[0][_SPECIAL]:
        session.learned.special.add(call.lanes)
    else:
        session.learned.special.discard(call.lanes)
    tries = 1
    while rows[0][0] is None and rows[0][_MISSED] and tries < MAX_TRIES:
        await asyncio.sleep(secrets.randbelow(1000) / 1_000_000 * min(tries, 5))
        rows = await connection.fetch(query, *values)
        tries += 1
    return rows


async def _routes(
    session: PostgresSession,
    connection: Connection,
    call: ClaimCall,
    now: Millis,
    workers: list[str],
    candidates: int,
) -> list[int]:
    """The routes the first `candidates` rows are in, and perhaps others."""
    routes = session.book.suiting(call)
    if len(routes) <= MERGED_ROUTES:
        return routes
    values = (routes, now, workers, candidates)
    query = _marked(session.queries["waiting_routes"], call.suspects)
    rows = await connection.fetch(query, *values)
    return [number for (number,) in rows]


async def _read(
    session: PostgresSession,
    connection: Connection,
    calls: Sequence[ClaimCall],
    now: Millis,
    rows: list[Any],
) -> tuple[list[Taken], bool]:
    """What was taken, and whether some of it cannot be read: that goes back, set aside."""
    damaged: list[UUID] = []
    snapshots = await session.readable(connection, rows, lambda row: damaged.append(row[0]))
    if damaged:
        query = session.queries["returned_leases"]
        await connection.fetch(query, damaged, [call.id for call in calls], now + SET_ASIDE)
        rows = [row for row in rows if row[0] not in damaged]
    taken = [
        Taken(snapshot, row[_PAYLOAD], row[_STEPS] and _recorded(snapshot, row[_STEPS]))
        for snapshot, row in zip(snapshots, rows, strict=True)
    ]
    return taken, bool(damaged)


def _recorded(snapshot: Snapshot, columns: Sequence[Sequence[Any]]) -> tuple[Step, ...]:
    """The steps of its generation, in order."""
    generation = snapshot.life.generation
    steps = [Step(*each) for each in zip(*columns, strict=True) if each[0] == generation]
    return tuple(sorted(steps, key=attrgetter("position")))


def _lease_id(taken: Taken) -> UUID:
    return cast(Active, taken.snapshot.state).lease.id


def _order(taken: Taken) -> tuple[int, int]:
    return taken.snapshot.head.rank, taken.snapshot.execution.uuid.int
