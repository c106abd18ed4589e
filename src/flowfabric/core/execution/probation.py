"""A suspect on probation: what its worker reports. `takeover.py` explains suspects."""

from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import Owner, enter, lease_event, present
from flowfabric.core.execution.model import Flags, Probation, Snapshot, excused


def watch(
    snapshot: Snapshot | None, now: Millis, owner: Owner, how: Probation
) -> "Change[Snapshot]":
    """The owner starts a suspect, alone in its process or beside older runs."""
    snapshot = present(snapshot)
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    if not snapshot.head.flags & Flags.SUSPECT or snapshot.life.probation is how:
        return unchanged(snapshot)
    after = snapshot.to(snapshot.state, life=replace(snapshot.life, probation=how))
    event = lease_event(snapshot, now, lease, EventKind.PROBATION, how=str(how))
    return Change(after, snapshot, after, (event,))


def clear(snapshot: Snapshot | None, now: Millis, owner: Owner, reason: str) -> "Change[bool]":
    """Clears a suspect that its owner has survived; `reason` says how far. False if it was no
    longer a suspect."""
    snapshot = present(snapshot)
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    if not snapshot.head.flags & Flags.SUSPECT:
        return unchanged(False)
    flags = snapshot.head.flags & ~Flags.SUSPECT
    after = snapshot.to(snapshot.state, life=excused(snapshot.life), flags=flags)
    event = lease_event(snapshot, now, lease, EventKind.CLEARED, reason=reason)
    return Change(True, snapshot, after, (event,))
