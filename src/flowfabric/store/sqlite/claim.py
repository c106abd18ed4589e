"""Taking, keeping and using leases."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar
from uuid import UUID

from msgspec.json import encode

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import Active, Flags, Head, Lease, Route, Snapshot, Start
from flowfabric.core.execution.routing import satisfies
from flowfabric.store.queries import (
    ClaimCall,
    FrameWrite,
    Progress,
    Renewal,
    SideWrite,
    Suspects,
    Taken,
)
from flowfabric.store.readable import SET_ASIDE, UNREADABLE, log_unreadable, readable, unreadable
from flowfabric.store.rows import execution as rows
from flowfabric.store.sqlite.lanes import LaneGate, lane_gates
from flowfabric.store.sqlite.session import SqliteSession, keyed, read_uuid

_STARTS = tuple(Start)
_SPENT = int(Flags.SPENT)

_HELD = 15
"""The column that says that a row is held for one of the workers."""

_FEW = 8
"""Calls that take fewer than so many each share a statement. One of its own takes 6 µs, but a row
of it takes a little less than a row of the shared one."""

Row = tuple[Any, ...]
_Found = dict[bytes, tuple[ClaimCall, Taken]]
Fenced = TypeVar("Fenced", Renewal, SideWrite, FrameWrite)


def claim(session: SqliteSession, call: ClaimCall, now: Millis) -> list[Taken]:
    (taken,) = claim_all(session, [call], now)
    return taken


def claim_all(session: SqliteSession, calls: Sequence[ClaimCall], now: Millis) -> list[list[Taken]]:
    session.learn_routes()
    session.registry.suspects_seen = session.row("any_suspect") is not None
    # By the number of the id: a UUID takes its hash in Python.
    found = {
        call.id.int: _taken_before(session, call, now) if call.repeated else [] for call in calls
    }
    # One element for each execution that may be taken: the call that gets it.
    slots = [call for call in calls for _ in range(call.limit - len(found[call.id.int]))]
    fresh = _fresh(session, slots, now)
    if fresh is None:  # held for one of several workers: it and no other may take it
        alone = [[slot for slot in slots if slot is call] for call in calls]
        parts = (_fresh(session, slots, now) or {} for slots in alone)
        fresh = {id: taken for part in parts for id, taken in part.items()}
    for call, taken in fresh.values():
        found[call.id.int].append(taken)
    return list(found.values())


def claims_before_ready(
    session: SqliteSession, claims: Sequence[Change[object]], call: ClaimCall, now: Millis
) -> list[Change[object]]:
    """Those of these claims, of executions that are not ready yet, that the call would make before
    it takes anything that is."""
    session.learn_routes()
    search = _Search([call], now, lane_gates(session, call.lanes))
    routes = {session.names.routes[number] for number in _open_routes(session, search)[0]}
    if not routes or any(door.drains or door.room is not None for door in search.closed.values()):
        return []
    best = [(row[7], row[0]) for row in _choose(session, search)]
    after = [each.after for each in claims]
    return [
        claim
        for claim, each in zip(claims, after, strict=True)
        if each is not None
        and each.execution.route in routes
        and all((each.head.rank, each.execution.uuid.bytes) < place for place in best)
    ]


def renew(session: SqliteSession, renewals: Sequence[Renewal], now: Millis) -> dict[UUID, Millis]:
    by_ttl: dict[Millis, dict[bytes, UUID]] = {}
    recorded: list[bytes] = []
    for renewal, id in standing(session, renewals, now):
        by_ttl.setdefault(renewal.ttl, {})[id] = renewal.uuid
        if renewal.record:
            recorded.append(id)
    renewed: dict[UUID, Millis] = {}
    for ttl, uuids in by_ttl.items():
        ids, until = list(uuids), Millis(now + ttl)
        renewed |= dict.fromkeys(uuids.values(), until)
        renewed |= {uuids[id]: at for id, at in session.among("later_leases", ids, until)}
        session.among("renewed_leases", ids, until, now)
    if recorded:
        session.among("recorded_renewals", recorded)
    return renewed


def write_progress(session: SqliteSession, writes: Sequence[SideWrite], now: Millis) -> set[UUID]:
    steps, progress, written = [], [], set()
    for write, id in standing(session, writes, now):
        written.add(write.uuid)
        if write.step is not None:
            steps.append(keyed(id, rows.step_row(write.uuid, write.step)))
        if write.progress is not None or write.state_value is not None:
            said = write.progress or Progress()
            progress.append((id, said.percent, said.message, write.state_value, now))
    session.insert("new_steps", steps)
    session.each("new_progress", progress)
    return written


def refused_fences(
    session: SqliteSession, fences: Sequence[tuple[bytes, int | None, int, bytes]], now: Millis
) -> set[Row]:
    """Of (id, version or None, epoch, claim) those that do not stand, without the version."""
    return set(session.given("refused_fences", fences, now)) if fences else set()


def standing(
    session: SqliteSession, items: Sequence[Fenced], now: Millis
) -> list[tuple[Fenced, bytes]]:
    """The items whose lease stands, with the id of their execution."""
    fences = [(item.uuid.bytes, None, item.epoch, item.lease_id.bytes) for item in items]
    refused = refused_fences(session, fences, now)
    return [
        (item, id)
        for item, (id, _, epoch, claim) in zip(items, fences, strict=True)
        if (id, epoch, claim) not in refused
    ]


def routes_for(
    session: SqliteSession, lanes: Sequence[str], namespace: str | None
) -> Iterator[tuple[int, Route]]:
    """The routes in these lanes (empty: all) and this namespace, with their numbers."""
    # A copy: the other thread may learn a route meanwhile.
    for number, route in list(session.names.routes.items()):
        if lanes and route.lane not in lanes:
            continue
        if namespace is None or route.namespace == namespace:
            yield number, route


def _fresh(session: SqliteSession, slots: Sequence[ClaimCall], now: Millis) -> "_Found | None":
    """What the calls take, by id. Rows that cannot be read are set aside, and others are chosen.
    None if there are several workers, and a row is held for one of them."""
    if not slots:
        return {}
    search = _Search(slots, now, lane_gates(session, slots[0].lanes))
    while True:
        found, spoiled = _read(session, search)
        if found is None:
            return None
        if not spoiled:
            break
        session.among("set_aside_ready", spoiled, now + SET_ASIDE)
    if found:
        _move(session, now, found)
    return found


def _read(session: SqliteSession, search: "_Search") -> tuple["_Found | None", list[bytes]]:
    """What can be taken of the chosen rows, and which of them cannot be read."""
    found: _Found = {}
    spoiled: list[bytes] = []
    left = {name: door.room for name, door in search.closed.items() if door.room is not None}
    for row in _choose(session, search):
        lane = session.names.routes[row[2]].lane if left else ""
        if len(found) == search.limit or left.get(lane) == 0:
            continue
        if row[_HELD] and len(search.workers) > 1:
            return None, []
        call = search.slots[len(found)]
        try:
            found[row[0]] = call, _take(session, call, search.now, row)
        except UNREADABLE as error:
            log_unreadable(unreadable("execution", row[0], error))
            spoiled.append(row[0])
            continue
        if lane in left:
            left[lane] -= 1
    return found, spoiled


class _Search:
    """What is looked for: one element of `slots` for each execution that may be taken, which is
    the call it goes to. The calls differ only in worker, id and ttl. `closed` are lanes that are
    not simply open."""

    def __init__(
        self, slots: Sequence[ClaimCall], now: Millis, closed: Mapping[str, LaneGate]
    ) -> None:
        self.slots = slots
        self.call = slots[0]
        self.limit = len(slots)
        self.workers = list({call.worker.id: None for call in slots})
        self.now = now
        self.closed = closed

    @property
    def capped(self) -> bool:
        """Whether some lane has only so much room."""
        return any(door.room is not None for door in self.closed.values())

    def most(self, lane: str) -> int:
        """How many rows of a lane are worth reading."""
        door = self.closed.get(lane)
        return self.limit if door is None or door.room is None else min(self.limit, door.room)


def _choose(session: SqliteSession, search: _Search) -> list[Row]:
    """The best rows over all routes. Each route is read no further than it is needed."""
    call, names = search.call, session.names.routes
    suspects = call.suspects is not Suspects.NONE
    workers = encode(search.workers).decode()
    values = {"now": search.now, "workers": workers, "suspects": suspects}
    routes = _wanted_routes(session, search, values)
    cursors = [
        session.execute(query, {**values, "route": route, "limit": search.most(names[route].lane)})
        for route, query in routes.items()
    ]
    if len(cursors) == 1:
        return cursors[0].fetchall()
    rows = _merged(cursors)
    if search.capped:
        rows = _within(rows, session, search)
    chosen = list(islice(rows, search.limit))
    for cursor in cursors:
        cursor.close()
    return chosen


def _wanted_routes(
    session: SqliteSession, search: _Search, values: Mapping[str, object]
) -> dict[int, str]:
    """The routes the best rows are in, each with the query to read it by."""
    free, draining = _open_routes(session, search)
    if search.call.suspects is Suspects.ONLY:
        return dict.fromkeys((*free, *draining), "suspect_executions")
    if len(free) > 1:
        # Where a lane has only so much room, the best routes may not give enough.
        limit = len(free) if search.capped else search.limit
        asked = {**values, "limit": limit, "routes": encode(free).decode()}
        free = [route for route, _, _ in session.rows("waiting_routes", asked)]
    return {
        **dict.fromkeys(free, "claimable_executions"),
        **dict.fromkeys(draining, "begun_executions"),
    }


def _open_routes(session: SqliteSession, search: _Search) -> tuple[list[int], list[int]]:
    """The routes the worker satisfies: those of open lanes, and those of lanes that drain."""
    call = search.call
    free: list[int] = []
    draining: list[int] = []
    for number, route in routes_for(session, call.lanes, call.namespace):
        door = search.closed.get(route.lane)
        if door is not None and door.shut:
            continue
        if call.kinds is not None and route.kind not in call.kinds:
            continue
        if satisfies(route.capabilities, call.capabilities):
            (draining if door is not None and door.drains else free).append(number)
    return free, draining


def _within(rows: Iterable[Row], session: SqliteSession, search: _Search) -> Iterator[Row]:
    """The rows their lanes have room for."""
    seen: Counter[str] = Counter()
    for row in rows:
        lane = session.names.routes[row[2]].lane
        if seen[lane] < search.most(lane):
            seen[lane] += 1
            yield row


def _merged(cursors: Sequence[Iterator[Row]]) -> Iterator[Row]:
    return merge(*cursors, key=lambda row: (row[7], row[0]))


def _move(session: SqliteSession, now: Millis, found: _Found) -> None:
    calls = {call.id.int: call for call, _ in found.values()}
    session.intern_workers([call.worker for call in calls.values()])
    numbers, ids = session.names.worker_numbers, list(found)
    if len(calls) > 1 and len(ids) < _FEW * len(calls):
        leases = [
            (id, call.id.bytes, numbers[call.worker], now, now + call.ttl)
            for id, (call, _) in found.items()
        ]
        session.insert("shared_leases", leases)
    else:
        taken: dict[int, list[bytes]] = {id: [] for id in calls}
        for id, (call, _) in found.items():
            taken[call.id.int].append(id)
        for number, call in calls.items():
            values = (call.id.bytes, numbers[call.worker], now, now + call.ttl, now)
            session.among("taken_leases", taken[number], *values)
    session.among("taken_events", ids)
    session.among("gone_ready", ids)


def _take(session: SqliteSession, call: ClaimCall, now: Millis, row: Row) -> Taken:
    """As `core.execution.lease.take`, from a row of claimable_executions."""
    payload, rank, version, epoch, flags, attempt, start, life, timeout = row[6:_HELD]
    lease = Lease(
        call.id,
        attempt,
        _STARTS[start],
        call.worker,
        now,
        Millis(now + call.ttl),
        None if timeout is None else Millis(now + timeout),
    )
    issued = epoch + (not flags & _SPENT)
    head = Head(version + 1, issued, rank, rows.read_flags(flags), rows.read_life(life))
    execution = rows.read_execution(row, session.names, read_uuid)
    return Taken(Snapshot(execution, head, Active(lease)), payload)


def _taken_before(session: SqliteSession, call: ClaimCall, now: Millis) -> list[Taken]:
    values = {"claim": call.id.bytes, "now": now}
    rows = session.rows("leases_by_claim", values)
    return readable(rows, lambda row: _taken(session, call, row), "execution", itemgetter(0))


def _taken(session: SqliteSession, call: ClaimCall, row: Row) -> Taken:
    payload, rank, version, epoch, flags, attempt, start, life, *times = row[6:]
    lease = Lease(call.id, attempt, _STARTS[start], call.worker, *times)
    head = Head(version, epoch, rank, rows.read_flags(flags), rows.read_life(life))
    execution = rows.read_execution(row, session.names, read_uuid)
    return Taken(Snapshot(execution, head, Active(lease)), payload, again=True)
