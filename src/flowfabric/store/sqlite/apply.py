"""Writing what the core decided."""

from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import Active, Snapshot
from flowfabric.core.flow.progress import DownstreamChange
from flowfabric.store.queries import ChangedByEnds, ClaimCall
from flowfabric.store.rows import execution as rows
from flowfabric.store.rows import flow as flow_rows
from flowfabric.store.rows.execution import StateTable
from flowfabric.store.rows.wait import given_ids, writes_waits
from flowfabric.store.sqlite.claim import claims_before_ready, refused_fences
from flowfabric.store.sqlite.session import SqliteSession, id_bytes, keyed, plain
from flowfabric.store.sqlite.waits import owners as waitpoint_owners
from flowfabric.store.sqlite.waits import write as write_waits

_MOVED = {
    StateTable.READY: "moved_ready",
    StateTable.LEASE: "moved_lease",
    StateTable.PARKED: "moved_parked",
    StateTable.DONE: "moved_done",
}


class Decided:
    """A change that writes something, with what is asked of it more than once."""

    __slots__ = ("after", "before", "change", "id", "uuid")

    def __init__(self, change: Change[object], before: Snapshot, after: Snapshot) -> None:
        self.change = change
        self.before = before
        self.after = after
        self.uuid = before.execution.uuid
        self.id = self.uuid.bytes


def end(
    session: SqliteSession,
    changes: Sequence[Change[object]],
    now: Millis,
    downstreams: Sequence[DownstreamChange] = (),
    call: ClaimCall | None = None,
) -> ChangedByEnds:
    """`end` of the contract, and with a call `end_and_claim`."""
    decided = decided_of(changes)
    fences = [_fence(item) for item in decided]
    refused = {id for id, _, _ in refused_fences(session, fences, now)}
    ended = [item for item in decided if item.id not in refused] if refused else decided
    if ended:
        session.among("gone_lease", [item.id for item in ended])
        _write(session, ended, {StateTable.DONE: ended})
        _write_flows(session, ended)
    written = {item.uuid for item in ended}
    following = [
        each
        for each in downstreams
        if written.issuperset(each.upstreams) and not _has_more_edges(session, each)
    ]
    return _go_on(session, following, written, now, call) if following else ChangedByEnds(written)


def _go_on(
    session: SqliteSession,
    following: Sequence[DownstreamChange],
    ended: set[UUID],
    now: Millis,
    call: ClaimCall | None,
) -> ChangedByEnds:
    """Writes downstreams that go on with endings; those that the call takes become its leases."""
    claims = [each.claimed for each in following if each.claimed is not None]
    taken = claims_before_ready(session, claims, call, now) if call is not None else []
    ids = {item.uuid for item in decided_of(taken)}
    released = [each.change for each in following]
    others = [item.change for item in decided_of(released) if item.uuid not in ids]
    written = apply(session, [*taken, *others])
    if call is None or not ids:
        return ChangedByEnds(ended | written)
    rows = session.among("claimed_payloads", [uuid.bytes for uuid in ids], call.id.bytes)
    claimed = {UUID(bytes=id): payload for id, payload in rows}
    return ChangedByEnds(ended | written, claimed=claimed)


def apply(session: SqliteSession, changes: Sequence[Change[object]]) -> set[UUID]:
    standing = _without_rivals(session, standing_among(session, decided_of(changes)))
    write(session, standing)
    return {item.uuid for item in standing}


def write(session: SqliteSession, standing: list[Decided]) -> None:
    """Writes changes whose versions stand."""
    for place, items in _by(standing, _place_before).items():
        session.among(rows.GONE[place], [item.id for item in items])
    _write(session, standing, _by(standing, _place_after))
    _write_attempts(session, standing)
    _write_deadlines(session, standing)
    if waiting := [item for item in standing if writes_waits(item.change)]:
        write_waits(session, [(item.uuid, item.change) for item in waiting])
    _write_flows(session, standing)


def decided_of(changes: Sequence[Change[object]]) -> list[Decided]:
    return [
        Decided(change, change.before, change.after)
        for change in changes
        if change.before is not None and change.after is not None
    ]


def _fence(item: Decided) -> tuple[bytes, int, int, bytes]:
    head, state = item.before.head, item.before.state
    # No lease has an empty id, so anything that is not active is refused.
    claim = state.lease.id.bytes if isinstance(state, Active) else b""
    return item.id, head.version, head.epoch, claim


def _version(item: Decided) -> tuple[object, ...]:
    """What must still stand: the version, and for a lease its expiry."""
    head, state = item.before.head, item.before.state
    if isinstance(state, Active):
        return item.id, head.version, state.lease.expires_at
    return item.id, head.version


def standing_among(session: SqliteSession, decided: Sequence[Decided]) -> list[Decided]:
    """The changes whose version is still in the place it was decided on."""
    standing = []
    for place, items in _by(decided, _place_before).items():
        moved = {id for (id,) in session.given(_MOVED[place], [_version(item) for item in items])}
        standing += [item for item in items if item.id not in moved]
    return standing


def _without_rivals(session: SqliteSession, items: list[Decided]) -> list[Decided]:
    """The changes whose waitpoints have ids that no other execution uses."""
    made = {item.uuid: given_ids(item.change) for item in items if item.change.waitpoints}
    wanted = [id for ids in made.values() for id in ids]
    if not wanted:
        return items
    owners = dict(waitpoint_owners(session, wanted))
    for uuid, ids in made.items():
        for id in ids:
            owners.setdefault(id, uuid)  # of two changes at once the first has it
    return [i for i in items if all(owners[id] == i.uuid for id in made.get(i.uuid, ()))]


def _write(
    session: SqliteSession, items: list[Decided], places: dict[StateTable, list[Decided]]
) -> None:
    """New state rows and events."""
    try:
        states, events = _rows(session, items, places)
    except KeyError:
        # A worker or a route this process has not met.
        for item in items:
            session.intern_workers(rows.workers_in(item.change))
            session.intern_route(item.after.execution.route)
        states, events = _rows(session, items, places)
    for place, new in states.items():
        session.insert(rows.NEW[place], new)
    session.insert("new_events", events)


def _rows(
    session: SqliteSession, items: list[Decided], places: dict[StateTable, list[Decided]]
) -> tuple[dict[StateTable, list[rows.Row]], list[rows.Row]]:
    names = session.names
    states = {
        place: [rows.state_row(item.after, names, id_bytes) for item in moved]
        for place, moved in places.items()
    }
    events = [
        rows.event_row(event, names, id_bytes) for item in items for event in item.change.events
    ]
    return states, events


def _write_attempts(session: SqliteSession, items: Iterable[Decided]) -> None:
    attempts: list[rows.Row] = []
    steps: list[rows.Row] = []
    gone: list[rows.Row] = []
    for item in items:
        id, uuid, change = item.id, item.uuid, item.change
        gone += [keyed(id, rows.step_key(uuid, step)) for step in change.forgotten]
        attempts += [keyed(id, rows.attempt_row(uuid, attempt)) for attempt in change.attempts]
        steps += [keyed(id, rows.step_row(uuid, step)) for step in change.steps]
    session.insert("new_attempts", attempts)
    session.each("gone_steps", gone)
    session.insert("new_steps", steps)


def _write_deadlines(session: SqliteSession, items: Iterable[Decided]) -> None:
    """Only those that differ from what stands."""
    gone: list[bytes] = []
    new: list[tuple[bytes, Millis]] = []
    for item in items:
        old, at = item.before.alarm_at, item.change.alarm
        if at is not None and at != old:
            new.append((item.id, at))
        elif at is None and old is not None:
            gone.append(item.id)
    if gone:
        session.among("gone_deadlines", gone)
    session.insert("new_deadlines", new)


def _has_more_edges(session: SqliteSession, downstream: DownstreamChange) -> bool:
    """Whether an upstream has more open edges than were known when its downstream was decided."""
    before = downstream.change.before
    if not downstream.open or before is None or before.execution.flow is None:
        return False
    flow = before.execution.flow.bytes
    return any(
        len(session.rows("unsettled_edges_out", (upstream.bytes, flow, b"", 1, known + 1))) > known
        for upstream, known in zip(downstream.upstreams, downstream.open, strict=True)
    )


def _write_flows(session: SqliteSession, items: Iterable[Decided]) -> None:
    """How edges were settled, and what is owed to flows."""
    found = flow_rows.written_by(item.change for item in items)
    settled = plain(found.settled)
    if settled:
        session.each("settled_edges", [(outcome, *key) for *key, outcome in settled])
    session.insert("new_outbox", plain(found.outbox))


def _place_before(item: Decided) -> StateTable:
    return rows.place_of(item.before.state)


def _place_after(item: Decided) -> StateTable:
    return rows.place_of(item.after.state)


def _by(
    items: Iterable[Decided], place: Callable[[Decided], StateTable]
) -> dict[StateTable, list[Decided]]:
    found: dict[StateTable, list[Decided]] = {}
    for item in items:
        found.setdefault(place(item), []).append(item)
    return found
