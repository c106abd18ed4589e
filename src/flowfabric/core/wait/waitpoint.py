"""Waitpoints on their own: made before anybody waits, closed, expired, listed.

One that an operator closed has a mark, so that nobody opens it again: a handler that asks for the
same runs again and again.
"""

from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import FenceRequired, NoSigningKey, NotFound, WaitpointExists
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.ending import event_of
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import AlreadySatisfied, Owner, enter, present
from flowfabric.core.execution.model import Active, Ended, Flags, Snapshot
from flowfabric.core.wait.condition import names_for, possible, read_condition
from flowfabric.core.wait.keyring import Keyring
from flowfabric.core.wait.match import mark_key
from flowfabric.core.wait.model import (
    NO_WAITS,
    Arm,
    DedupRecord,
    Loaded,
    Needs,
    Pending,
    Terms,
    Waited,
    Waitpoint,
    Waits,
)
from flowfabric.core.wait.resume import CLOSED, Wake, suspension_of, wake
from flowfabric.core.wait.token import mint


class NewWaitpoint(Struct, frozen=True, kw_only=True):
    """A waitpoint to be made. A `lasting` one outlives the attempt, and asking for one that is
    there already gives that one, open or not. Those with the same `slot` are over then."""

    id: UUID
    key: str
    kid: str | None
    expires_in: Millis | None = None
    terms: Terms | None = None
    lasting: bool = False
    slot: UUID | None = None


class OpenWaitpoint(Struct, frozen=True):
    """A waitpoint that accepts signals, as people may see it: never with its token."""

    id: UUID
    execution: ExecutionId
    key: str
    state: str
    required_signal_names: tuple[str, ...]
    created_at: Millis
    activated_at: Millis | None
    expires_at: Millis | None
    token_kid: str
    token_fingerprint: str
    terms: Terms | None = None


class WaitpointsClosed(Struct, frozen=True):
    """The waitpoints that were closed."""

    ids: tuple[UUID, ...]


def ask_for(snapshot: Snapshot | None, *ids: UUID) -> Needs | None:
    return None if snapshot is None else Needs(snapshot.execution.uuid, waitpoints=ids)


def closed_key(waitpoint: UUID) -> bytes:
    return mark_key("closed", waitpoint.bytes)


def closed_because(memory: Loaded, waitpoint: UUID) -> str | None:
    """Why an operator closed the waitpoint, None if nobody did."""
    mark = memory.marks.get(closed_key(waitpoint))
    return None if mark is None else msgspec.json.decode(mark.doc, type=str)


def create(
    snapshot: Snapshot | None, owner: Owner, now: Millis, new: NewWaitpoint, memory: Loaded
) -> "Change[Waitpoint]":
    """Makes a waitpoint while the attempt runs, so that its token can be handed out before the
    execution suspends. Signals are kept for that suspension."""
    snapshot = present(snapshot)
    if owner.fence is None:
        raise FenceRequired("a waitpoint is made by the owner only")
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    known = memory.waitpoints.get(new.id)
    if known is not None:
        if new.lasting:
            return unchanged(known)
        raise WaitpointExists(f"waitpoint {new.id}")
    if new.kid is None:
        raise NoSigningKey("seed a key before a waitpoint is made")
    attempt = None if new.lasting else lease.attempt
    expires_at = None if new.expires_in is None else Millis(now + new.expires_in)
    waitpoint = Waitpoint(
        id=new.id,
        execution=snapshot.execution.uuid,
        key=new.key,
        created_at=now,
        kid=new.kid,
        attempt=attempt,
        terms=new.terms,
    )
    waits = snapshot.life.waits or NO_WAITS
    made = Pending(new.id, new.key, expires_at, attempt, slot=new.slot)
    pending = (*(p for p in waits.pending if new.slot is None or p.slot != new.slot), made)
    after = snapshot.to(
        Active(lease),
        life=replace(snapshot.life, waits=replace(waits, pending=pending)),
        flags=snapshot.head.flags | Flags.WAITPOINTS,
    )
    return Change(waitpoint, snapshot, after, waitpoints=(waitpoint,))


def close(
    snapshot: Snapshot | None, now: Millis, id: UUID, reason: str, memory: Loaded
) -> "Change[WaitpointsClosed | AlreadySatisfied]":
    """Closes a waitpoint for good. A handler's wait that cannot be answered any more is over;
    whoever else waits at it waits for the rest of its condition."""
    snapshot = present(snapshot)
    if id not in memory.waitpoints:
        raise NotFound("waitpoint", id)
    if not _is_open(snapshot, id):
        return unchanged(AlreadySatisfied("already_closed"))
    left = _without(snapshot.life.waits or NO_WAITS, (id,))
    head = replace(snapshot.head, life=replace(snapshot.life, waits=left))
    detail = {"waitpoint": str(id), "name": memory.waitpoints[id].key, "reason": reason}
    change: Change[WaitpointsClosed | AlreadySatisfied] = Change(
        WaitpointsClosed((id,)),
        snapshot,
        snapshot.to(snapshot.state, life=head.life),
        (event_of(snapshot, now, EventKind.WAITPOINT_CLOSED, detail),),
        marks=(DedupRecord(closed_key(id), doc=msgspec.json.encode(reason)),),
    )
    done = _over(snapshot, left, id)
    if not done or left.suspension is None:
        return change
    why = Wake(reason=CLOSED, done=dict.fromkeys(done, Waited.CLOSED), note=reason)
    after, steps = wake(replace(snapshot, head=head), left.suspension, now, why)
    woken = event_of(snapshot, now, EventKind.WOKEN, {"reason": CLOSED})
    return replace(change, after=after, events=(*change.events, woken), steps=steps)


def is_over(arm: Arm) -> bool:
    """Whether a handler's wait can never be answered, since waitpoints of it are closed."""
    keys = {bound.key for bound in arm.bound}
    return arm.step is not None and not possible(read_condition(arm.condition), arm.tallies, keys)


def _over(snapshot: Snapshot, left: Waits, id: UUID) -> list[int]:
    """The arms that are over without the waitpoint; `left` is what is left without it."""
    before = suspension_of(snapshot)
    if before is None or left.suspension is None:
        return []
    arms = zip(before.arms, left.suspension.arms, strict=True)
    return [
        number
        for number, (had, arm) in enumerate(arms)
        if any(bound.id == id for bound in had.bound) and is_over(arm)
    ]


def expire_pending(
    snapshot: Snapshot, now: Millis
) -> "Change[WaitpointsClosed | AlreadySatisfied]":
    """Closes the pending waitpoints that ran out before anybody waited at them."""
    waits = snapshot.life.waits or NO_WAITS
    due = (p.id for p in waits.pending if p.expires_at is not None and p.expires_at <= now)
    gone = tuple(due)
    if not gone:
        return unchanged(AlreadySatisfied("not_yet_due"))
    life = replace(snapshot.life, waits=_without(waits, gone))
    return Change(WaitpointsClosed(gone), snapshot, snapshot.to(snapshot.state, life=life))


def describe(snapshot: Snapshot, rows: dict[UUID, Waitpoint], ring: Keyring) -> list[OpenWaitpoint]:
    """The open waitpoints of an execution, by id; one that has ended has none."""
    if isinstance(snapshot.state, Ended):
        return []
    waits = snapshot.life.waits or NO_WAITS
    names = _names(waits)
    active = {p.id for p in waits.active}
    since = None if waits.suspension is None else waits.suspension.created_at
    found = []
    for pending in {p.id: p for p in (*waits.pending, *waits.active)}.values():
        row = rows.get(pending.id)
        if row is None:
            continue
        found.append(
            OpenWaitpoint(
                id=row.id,
                execution=snapshot.execution.id,
                key=row.key,
                state="active" if row.id in active else "pending",
                required_signal_names=names.get(row.id, ()),
                created_at=row.created_at,
                activated_at=since if row.id in active else None,
                expires_at=_expiry(waits, pending),
                token_kid=row.kid,
                token_fingerprint=_fingerprint(ring, row),
                terms=row.terms,
            )
        )
    return sorted(found, key=lambda waitpoint: waitpoint.id)


def _fingerprint(ring: Keyring, row: Waitpoint) -> str:
    return mint(ring, row).fingerprint if row.kid in ring.keys else ""


def _names(waits: Waits) -> dict[UUID, tuple[str, ...]]:
    arms = waits.suspension.arms if waits.suspension is not None else ()
    return {
        bound.id: names_for(read_condition(arm.condition), bound.key)
        for arm in arms
        for bound in arm.bound
    }


def _expiry(waits: Waits, pending: Pending) -> Millis | None:
    """An active one is open as long as the arm that binds it."""
    arms = waits.suspension.arms if waits.suspension is not None else ()
    for arm in arms:
        if any(bound.id == pending.id for bound in arm.bound):
            return arm.timeout_at
    return pending.expires_at


def _is_open(snapshot: Snapshot, id: UUID) -> bool:
    if isinstance(snapshot.state, Ended):
        return False
    waits = snapshot.life.waits or NO_WAITS
    return any(p.id == id for p in (*waits.active, *waits.pending))


def _without(waits: Waits, ids: tuple[UUID, ...]) -> Waits:
    """What is waited for when these waitpoints are closed."""
    suspension = waits.suspension
    if suspension is not None:
        arms = tuple(
            replace(arm, bound=tuple(b for b in arm.bound if b.id not in ids))
            for arm in suspension.arms
        )
        suspension = replace(suspension, arms=arms)
    pending = tuple(p for p in waits.pending if p.id not in ids)
    return replace(waits, pending=pending, suspension=suspension)
