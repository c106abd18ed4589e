"""What owners do: renew, end, write beside their lease."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, Locked
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.event import Event
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Head,
    Lease,
    Ready,
    Snapshot,
    Waiting,
)
from flowfabric.core.flow.outbox import OutboxKind
from flowfabric.core.flow.progress import DownstreamChange
from flowfabric.store.postgres.apply import prepare, recognise
from flowfabric.store.postgres.claim import takes_simply
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.faults import divide
from flowfabric.store.postgres.lists import FIRST_ID
from flowfabric.store.postgres.moves import RowMove
from flowfabric.store.postgres.session import Columns, PostgresSession, columns, insert_new, once
from flowfabric.store.queries import ChangedByEnds, ClaimCall, Progress, Renewal, SideWrite
from flowfabric.store.rows import flow as flow_rows
from flowfabric.store.rows.execution import (
    COLUMNS,
    EVENT,
    HEAD,
    Names,
    Row,
    StateTable,
    event_row,
    queue_number,
    state_row,
    write_life,
)
from flowfabric.store.rows.flow import OUTBOX, outbox_rows


class _Following(Struct, frozen=True):
    """Downstreams that go on with endings. Those in `claimed` become leases of `call`, if it may
    take them."""

    changes: Sequence[Change[object]]
    call: ClaimCall | None = None
    claimed: frozenset[UUID] = frozenset()
    links: Sequence[Row] | None = None
    """Where the endings are links of chains, (downstream, flow, version, life) for each."""
    moves: Sequence[RowMove] = ()
    upstreams: Sequence[Row] = ()
    """(downstream, upstream, flow, open edges) of all that the downstreams have counted."""


_RELEASED = tuple(
    dict.fromkeys(
        (*HEAD, "timeout", "queue", *COLUMNS[StateTable.READY], *COLUMNS[StateTable.PARKED])
    )
)
_RELEASED_SHARED = tuple(
    _RELEASED.index(name)
    for name in ("version", "epoch", "flags", "attempt", "start", "route", "held_until", "lost")
)
_OUTBOX_SHARED = tuple(OUTBOX.index(name) for name in ("number", "kind", "outcome", "spared"))
"""What members at the same place of like flows have in common."""
_NO_LINK = (None, None, None)
_LINK_SHARED = (2, 3)
"""Links of like chains have the same version and, as they go on at the same moment, life."""
_NO_EVENT = (None, None, None)
_END_WIDTH = 9 + len(_NO_EVENT)
_END_SHARED = (1, 2, 3, 4, 6, _END_WIDTH - 2)
"""Versions, epoch, claim, outcome and kind of event are mostly the same for all."""
_PROGRESS_WIDTH = 11
_PROGRESS_SHARED = (1, 2, 6, 7, 8, 9)
"""Claim and epoch, and of a step all but its document: runs that do the same are often at the same
place."""
_TTL = 3
_RENEWAL_WIDTH = 5

MIN_RENEW_SECONDS = 0.2
MAX_RENEW_SECONDS = 2.0
"""How long a renewal may take before another connection is tried: an eighth of the lease, so that
there is time for more than one."""


class _End(Struct, frozen=True, gc=False):
    """An ending as it is written: its row, and the events that do not ride with it."""

    change: Change[object]
    row: Row
    lease: Lease
    events: Sequence[Event] = ()


async def renew(
    session: PostgresSession, renewals: Sequence[Renewal], now: Millis
) -> dict[UUID, Millis]:
    rows = [(r.uuid, r.lease_id, r.epoch, r.ttl, r.record) for r in renewals]
    rows.sort(key=_number)
    extended: dict[UUID, Millis] = {}
    for found in await divide(rows, partial(_renew, session, now)):
        extended.update(found)
    return extended


async def end(
    session: PostgresSession,
    changes: Sequence[Change[object]],
    now: Millis,
    downstreams: Sequence[DownstreamChange] = (),
    call: ClaimCall | None = None,
) -> ChangedByEnds:
    """`end` of the contract, and with a call `end_and_claim`."""
    ends = sorted(map(_end_of, changes), key=_end_number)
    workers = {end.lease.worker for end in ends}
    workers.update(event.worker for end in ends for event in end.events if event.worker is not None)
    await session.book.need_workers(workers)
    if downstreams:
        following = await _following(session, ends, downstreams, call)
        work = partial(_end_with, session, ends, now, following)
        # Refused together: whatever it is, the endings do not wait for it.
        with suppress(Invalid, Locked):
            return await session.end.run(work, patience=0.0)
    parts = await divide(ends, partial(_send_ends, session, now))
    repeated = any([part.repeated for part in parts])
    return ChangedByEnds(chain.from_iterable(parts), repeated=repeated)


async def write_progress(
    session: PostgresSession, writes: Sequence[SideWrite], now: Millis
) -> set[UUID]:
    rows = sorted(map(_progress_row, _folded(writes)), key=_number)
    return set[UUID]().union(*await divide(rows, partial(_write_progress, session, now)))


async def _renew(
    session: PostgresSession, now: Millis, rows: Sequence[Row], patience: float
) -> dict[UUID, Millis]:
    *fences, record = columns(rows, _RENEWAL_WIDTH)
    name, values = "renewed_leases", (*fences, now)
    if any(record or ()):
        name, values = "recorded_renewals", (*fences, record, now)
    work = partial(_fetch, session, name, values)
    limit = min(MAX_RENEW_SECONDS, max(MIN_RENEW_SECONDS, min(r[_TTL] for r in rows) / 8000))
    patience = min(patience, limit)  # a renewal that comes late is none
    return dict(await session.renew.run(work, limit=limit, patience=patience))


async def _write_progress(
    session: PostgresSession, now: Millis, rows: Sequence[Row], patience: float
) -> set[UUID]:
    values = (*columns(rows, _PROGRESS_WIDTH, shared=_PROGRESS_SHARED), now)
    query = session.queries["progress_writes"]

    async def work(connection: Connection, repeated: bool) -> list[Any]:
        if repeated:
            return await connection.fetch(query, *values)
        return await insert_new(connection, query, values)

    return {uuid for (uuid,) in await session.end.run(work, patience=patience)}


async def _fetch(
    session: PostgresSession,
    name: str,
    values: Sequence[Any],
    connection: Connection,
    repeated: bool,
) -> list[Any]:
    return await connection.fetch(session.queries[name], *values)


async def _send_ends(
    session: PostgresSession, now: Millis, ends: Sequence[_End], patience: float
) -> ChangedByEnds:
    return await session.end.run(partial(_end, session, ends, now), patience=patience)


async def _end(
    session: PostgresSession,
    ends: Sequence[_End],
    now: Millis,
    connection: Connection,
    repeated: bool,
) -> ChangedByEnds:
    written = [end.change for end in ends]
    if any([end.events or end.change.outbox for end in ends]):
        query, values = "ended_leases", _end_values(ends, written, now, session.book.names)
    else:
        query, values = "ended_plainly", [*_end_columns(ends), now]
    rows = await connection.fetch(session.queries[query], *values)
    found = {uuid for (uuid,) in rows}
    if repeated and len(found) < len(written):
        found |= await recognise(session, connection, written, found)
    return ChangedByEnds(found, repeated=repeated)


async def _end_with(
    session: PostgresSession,
    ends: Sequence[_End],
    now: Millis,
    following: _Following,
    connection: Connection,
    repeated: bool,
) -> ChangedByEnds:
    call = following.call
    written = [*(end.change for end in ends), *following.changes]
    query, values = _with_following(session, ends, now, written, following)
    rows = await connection.fetch(session.queries[query], *values)
    found = {uuid for uuid, _ in rows}
    claimed = {uuid: payload for uuid, payload in rows if payload is not None}
    if repeated and len(found) < len(written):
        if call is not None:
            asked = session.queries["claimed_payloads"]
            rows = await connection.fetch(asked, list(following.claimed), call.id)
            claimed = {uuid: payload for uuid, payload in rows}
        found |= await recognise(session, connection, written, found) | claimed.keys()
    return ChangedByEnds(found, claimed=claimed, repeated=repeated)


def _with_following(
    session: PostgresSession,
    ends: Sequence[_End],
    now: Millis,
    written: Sequence[Change[object]],
    following: _Following,
) -> tuple[str, list[Any]]:
    """The statement that ends executions and lets their downstreams go on, and its values."""
    names, call, links = session.book.names, following.call, following.links
    claim = () if call is None else _claim_values(session, call)
    if links is not None:
        values = [*_end_columns(ends), now, *columns(links, 4, shared=_LINK_SHARED), FIRST_ID]
        return "ended_in_chains", [*values, *claim]
    values = [*_end_values(ends, written, now, names), *_release_values(following, names)]
    return "ended_with_downstreams" if call is None else "ended_and_claimed", [*values, *claim]


def _end_columns(ends: Sequence[_End]) -> Columns:
    return columns([end.row for end in ends], _END_WIDTH, shared=_END_SHARED)


def _end_values(
    ends: Sequence[_End], written: Sequence[Change[object]], now: Millis, names: Names
) -> list[Any]:
    """Endings, their events, and what all that is written owes to flows."""
    events = [event_row(event, names) for end in ends for event in end.events]
    owed = [row for each in written if (outbox := each.outbox) for row in outbox_rows(outbox)]
    return [
        *_end_columns(ends),
        now,
        *columns(events, len(EVENT)),
        *columns(owed, len(OUTBOX), shared=_OUTBOX_SHARED),
    ]


async def _following(
    session: PostgresSession,
    ends: Sequence[_End],
    downstreams: Sequence[DownstreamChange],
    call: ClaimCall | None,
) -> _Following:
    changes = [each.change for each in downstreams]
    if call is None or not takes_simply(session, call):
        call, claimed = None, frozenset[UUID]()
    else:
        befores = [each.change.before for each in downstreams if each.claimed is not None]
        claimed = frozenset([each.execution.uuid for each in befores if each is not None])
        if (links := _links(ends, downstreams)) is not None:
            return _Following(changes, call, claimed, links)
    moves = await prepare(session, changes)
    upstreams = [row for each in downstreams for row in _upstream_rows(each)]
    return _Following(changes, call, claimed, moves=moves, upstreams=upstreams)


def _links(ends: Sequence[_End], downstreams: Sequence[DownstreamChange]) -> list[Row] | None:
    """What the ending of each link of a chain lets go on. None if one of them is more than that:
    such endings need the general statement."""
    going_on: dict[int, Row] = {}
    for each in downstreams:
        link = _link(each)
        if link is None:
            return None
        going_on[each.upstreams[0].int] = link
    rows: list[Row] = []
    for end in ends:
        flow, outbox = None, end.change.outbox
        if end.events or len(outbox) > 1:
            return None
        if outbox:
            flow, owed = outbox[0].flow, outbox[0]
            if owed.kind is not OutboxKind.ENDED or owed.spared:
                return None
        id, *rest = going_on.get(end.row[0].int, _NO_LINK)
        rows.append((id, flow, *rest))
    return rows


def _link(downstream: DownstreamChange) -> Row | None:
    """The id, version and new life of a downstream that is claimed and goes on with one upstream;
    None if more of it changes."""
    change = downstream.change
    before, after = change.before, change.after
    if downstream.claimed is None or len(downstream.upstreams) > 1 or change.owed:
        return None
    if before is None or after is None:
        return None
    waits, ready = before.state, after.state
    if not isinstance(waits, Waiting) or not isinstance(ready, Ready) or waits.next != ready.next:
        return None
    old, new = before.head, after.head
    if new != replace(old, version=old.version + 1, life=new.life) or queue_number(after):
        return None
    return before.execution.uuid, old.version, write_life(new.life)


def _release_values(following: _Following, names: Names) -> list[Any]:
    """Downstreams that go on, which upstreams each has counted, its edges, and whether it is
    claimed."""
    moves, claimed = following.moves, following.claimed
    width = len(_RELEASED)
    edges = [(move.uuid, *row) for move in moves for row in flow_rows.settled_rows(move.change)]
    released = [_release_row(move, names) for move in moves]
    return [
        *columns(released, width + 1, shared=(*_RELEASED_SHARED, width)),
        *columns(following.upstreams, 4, shared=(3,)),
        *columns(edges, 4, shared=(3,)),
        FIRST_ID,
        once([move.uuid in claimed for move in moves]) if claimed else None,
    ]


def _claim_values(session: PostgresSession, call: ClaimCall) -> tuple[Any, ...]:
    """What the worker that ends the upstreams would claim, and with which lease."""
    book, worker = session.book, call.worker
    number = book.names.worker_numbers[worker]
    return book.suiting(call), book.newest_route, worker.id, call.id, number, call.ttl


def _upstream_rows(downstream: DownstreamChange) -> list[Row]:
    before = downstream.change.before
    if before is None:
        raise AssertionError("a downstream that waits is there")
    id, flow = before.execution.uuid, before.execution.flow
    counts = downstream.open or (None,) * len(downstream.upstreams)
    return [
        (id, upstream, flow, count)
        for upstream, count in zip(downstream.upstreams, counts, strict=True)
    ]


def _release_row(move: RowMove, names: Names) -> Row:
    """What both places a downstream may go to need, ready or another gate, and its version."""
    place = dict(zip(COLUMNS[move.target], state_row(move.after, names), strict=True))
    return (*map(place.get, _RELEASED), move.before.head.version)


def _end_of(change: Change[object]) -> _End:
    before, after = change.before, change.after
    if before is not None and after is not None:
        active, ended = before.state, after.state
        if isinstance(active, Active) and isinstance(ended, Ended):
            lease, epoch = active.lease, before.head.epoch
            event = _only_event(change.events, epoch, lease, ended.ended_at)
            row = (*_end_row(before, after.head, lease, ended), *event)
            return _End(change, row, lease, change.events if event is _NO_EVENT else ())
    raise AssertionError("only endings of a running attempt are written this way")


def _end_row(before: Snapshot, new: Head, lease: Lease, ended: Ended) -> Row:
    old = before.head
    return (
        before.execution.uuid,
        old.version,
        old.epoch,
        lease.id,
        new.version,
        None if new.life is old.life or new.life == old.life else write_life(new.life) or b"",
        int(ended.outcome),
        ended.ended_at,
        ended.result,
    )


def _only_event(events: Sequence[Event], epoch: int, lease: Lease, ended_at: Millis) -> Row:
    """The moment (None: that of the ending), kind and detail of an ending's event, if it has one,
    about its own lease."""
    if len(events) != 1:
        return _NO_EVENT
    event = events[0]
    if event.epoch != epoch or event.attempt != lease.attempt or event.worker != lease.worker:
        return _NO_EVENT
    detail = None if event.detail is None else msgspec.json.encode(event.detail)
    return (None if event.at == ended_at else event.at, int(event.kind), detail)


def _folded(writes: Sequence[SideWrite]) -> list[SideWrite]:
    """Progress and state value of one owner as one write, the last word first of all: a statement
    writes a row only once."""
    if not [each for each in writes if each.progress is not None or each.state_value is not None]:
        return list(writes)  # steps alone
    last: dict[tuple[UUID, UUID, int], tuple[Progress | None, bytes | None]] = {}
    for write in writes:
        fence = (write.uuid, write.lease_id, write.epoch)
        said, value = last.get(fence, (None, None))
        later = value if write.state_value is None else write.state_value
        last[fence] = (_later(said, write.progress), later)
    folded = []
    for write in writes:
        fence = (write.uuid, write.lease_id, write.epoch)
        progress, value = last.pop(fence, (None, None))
        same = progress is write.progress and value is write.state_value
        folded.append(write if same else replace(write, progress=progress, state_value=value))
    return folded


def _later(earlier: Progress | None, progress: Progress | None) -> Progress | None:
    if earlier is None or progress is None:
        return progress or earlier
    return Progress(
        percent=earlier.percent if progress.percent is None else progress.percent,
        message=earlier.message if progress.message is None else progress.message,
    )


def _progress_row(write: SideWrite) -> Row:
    progress, step = write.progress, write.step
    return (
        write.uuid,
        write.lease_id,
        write.epoch,
        None if progress is None else progress.percent,
        None if progress is None else progress.message,
        write.state_value,
        None if step is None else step.generation,
        None if step is None else step.name,
        None if step is None else step.occurrence,
        None if step is None else step.position,
        None if step is None else step.doc,
    )


def _number(row: Row) -> int:
    number: int = row[0].int
    return number


def _end_number(end: _End) -> int:
    number: int = end.row[0].int
    return number
