"""Writing what the core decided."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from flowfabric.core.change import Change
from flowfabric.core.execution import Active, Ended, Snapshot
from flowfabric.core.time import Millis
from flowfabric.store import rows
from flowfabric.store.rows import Place
from flowfabric.store.sqlite.session import Session, blobs, state_row

_VERSIONS = {
    Place.READY: "ready_versions",
    Place.LEASE: "lease_versions",
    Place.PARKED: "parked_versions",
    Place.DONE: "done_versions",
}
_GONE = {
    Place.READY: "gone_ready",
    Place.LEASE: "gone_lease",
    Place.PARKED: "gone_parked",
    Place.DONE: "gone_done",
}
_NEW = {
    Place.READY: "new_ready",
    Place.LEASE: "new_lease",
    Place.PARKED: "new_parked",
    Place.DONE: "new_done",
}


class Decided:
    """A change that writes something, with what is asked of it more than once."""

    __slots__ = ("after", "before", "change", "id", "place", "uuid")

    def __init__(self, change: Change[object], before: Snapshot, after: Snapshot) -> None:
        self.change = change
        self.before = before
        self.after = after
        self.uuid = before.execution.uuid
        self.id = self.uuid.bytes
        self.place = rows.place_of(before.state)


def end(session: Session, changes: Sequence[Change[object]], now: Millis) -> set[UUID]:
    decided = _decided(changes)
    ids = [item.id for item in decided]
    fences = {row[0]: row[1:] for row in session.among("standing_leases", ids, now)}
    ended = [item for item in decided if fences.get(item.id) == _fence(item.before)]
    if ended:
        session.among("gone_lease", [item.id for item in ended])
        _write(session, ended, {Place.DONE: ended})
    return {item.uuid for item in ended}


def apply(session: Session, changes: Sequence[Change[object]]) -> set[UUID]:
    standing = _standing(session, _decided(changes))
    for place, items in _by(standing, lambda item: item.place).items():
        session.among(_GONE[place], [item.id for item in items])
    _write(session, standing, _by(standing, lambda item: rows.place_of(item.after.state)))
    _write_attempts(session, standing)
    _write_deadlines(session, standing)
    return {item.uuid for item in standing}


def _decided(changes: Sequence[Change[object]]) -> list[Decided]:
    return [
        Decided(change, change.before, change.after)
        for change in changes
        if change.before is not None and change.after is not None
    ]


def _fence(before: Snapshot) -> tuple[int, int, bytes] | None:
    if not isinstance(before.state, Active):
        return None
    return before.head.version, before.head.epoch, before.state.lease.id.bytes


def _version(before: Snapshot) -> tuple[int, ...]:
    """What must still stand: the version, and for a lease its expiry."""
    if isinstance(before.state, Active):
        return before.head.version, before.state.lease.expires_at
    return (before.head.version,)


def _standing(session: Session, decided: Sequence[Decided]) -> list[Decided]:
    """The changes whose version is still in the place it was decided on."""
    standing = []
    for place, items in _by(decided, lambda item: item.place).items():
        found = session.among(_VERSIONS[place], [item.id for item in items])
        versions = {row[0]: row[1:] for row in found}
        standing += [item for item in items if versions.get(item.id) == _version(item.before)]
    return standing


def _write(session: Session, items: list[Decided], places: dict[Place, list[Decided]]) -> None:
    """New state rows and events."""
    for item in items:
        session.intern_workers(rows.workers_in(item.change))
    names = session.names
    for place, moved in places.items():
        session.insert(_NEW[place], [state_row(session, item.after) for item in moved])
    events = [event for item in items for event in item.change.events]
    session.insert("new_events", [blobs(rows.event_row(event, names)) for event in events])


def _write_attempts(session: Session, items: Iterable[Decided]) -> None:
    attempts: list[tuple[Any, ...]] = []
    steps: list[tuple[Any, ...]] = []
    for item in items:
        attempts += [blobs(rows.attempt_row(item.uuid, one)) for one in item.change.attempts]
        steps += [blobs(rows.step_row(item.uuid, one)) for one in item.change.steps]
    session.insert("new_attempts", attempts)
    session.insert("new_steps", steps)


def _write_deadlines(session: Session, items: Iterable[Decided]) -> None:
    """Only those that differ from what stands."""
    gone: list[bytes] = []
    new: list[tuple[bytes, Millis]] = []
    for item in items:
        ended = isinstance(item.before.state, Ended)
        old, at = None if ended else item.before.deadline_at, item.change.deadline
        if at is not None and at != old:
            new.append((item.id, at))
        elif at is None and old is not None:
            gone.append(item.id)
    if gone:
        session.among("gone_deadlines", gone)
    session.insert("new_deadlines", new)


def _by(items: Iterable[Decided], place: Any) -> dict[Place, list[Decided]]:
    found: dict[Place, list[Decided]] = {}
    for item in items:
        found.setdefault(place(item), []).append(item)
    return found
