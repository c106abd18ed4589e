"""Grants: an operator or a scheduler reserves an execution for one worker, which then takes it.

A grant is a hold on the ready row, never a state: it hides the execution from other workers until
it is redeemed or expires. An expired grant needs no cleanup.
"""

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    CapabilityMismatch,
    GrantExists,
    GrantExpired,
    InvalidGrant,
    LeaseConflict,
    NotEligible,
    NotLeaseable,
    NotResumed,
    StaleLease,
    UseClaimResumed,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, refused, unchanged
from flowfabric.core.execution.grant_record import (
    NO_NOTES,
    Grant,
    GrantKind,
    GrantNotes,
    grant_id_from_key,
    hash_capabilities,
)
from flowfabric.core.execution.lease import Taking, present, take
from flowfabric.core.execution.model import (
    Active,
    Head,
    Hold,
    Lease,
    Lost,
    Next,
    Ready,
    Snapshot,
    Start,
    Waiting,
    granted_hold,
)
from flowfabric.core.execution.routing import Capabilities, missing

OPERATOR = "operator"


class Granted(Struct, frozen=True):
    """`key` identifies the grant; the redeemer may present it, or only the worker's name."""

    id: ExecutionId
    worker: str
    expires_at: Millis
    instance: str = ""
    key: str = ""


class NotReclaimable(Struct, frozen=True):
    detail: str


class ReclaimCapExceeded(Struct, frozen=True):
    """`reclaims` is the stored count on issue, and the attempted count on redemption."""

    reclaims: int


class GrantNotFound(Struct, frozen=True):
    """The execution has no reclaim grant, or it has expired."""


class Grantee(Struct, frozen=True):
    """Who asks for a grant, for how long, under which key and why."""

    worker: str
    capabilities: Capabilities
    ttl: Millis
    instance: str = ""
    key: str = ""
    notes: GrantNotes = NO_NOTES


def issue_grant(snapshot: Snapshot | None, now: Millis, grantee: Grantee) -> "Change[Granted]":
    """Reserves an eligible execution. For an interrupted attempt, redeem with `claim_resumed`."""
    snapshot = present(snapshot)
    ready = _eligible(snapshot)
    if (granted := own_grant(snapshot, now, grantee)) is not None:
        return unchanged(granted)
    refuse_live_hold(snapshot, now, ready.hold)
    if lacking := missing(snapshot.execution.route.capabilities, grantee.capabilities):
        raise CapabilityMismatch(lacking)
    return reserve(snapshot, now, ready, grantee, snapshot.head)


def check_grantable(snapshot: Snapshot | None, now: Millis) -> "Change[None]":
    """Raises if the execution could not be granted to any worker."""
    snapshot = present(snapshot)
    refuse_live_hold(snapshot, now, _eligible(snapshot).hold)
    return unchanged(None)


def claim_granted(
    snapshot: Snapshot | None, now: Millis, taking: Taking, expected_attempt: int | None = None
) -> "Change[Snapshot]":
    """Redeems a grant: a new attempt starts. A repeat by the same caller gets the same lease."""
    snapshot = present(snapshot)
    if (lease := own_lease(snapshot, now, taking)) is not None:
        _check_attempt(snapshot, lease.attempt, expected_attempt)
        return unchanged(snapshot)
    ready = _leaseable(snapshot)
    if ready.next.start is Start.CONTINUE:
        raise UseClaimResumed(f"{snapshot.run} has an interrupted attempt: use claim_resumed")
    _check_grant(snapshot, now, ready.hold, taking)
    _check_attempt(snapshot, ready.next.attempt, expected_attempt)
    return take(snapshot, now, ready.next, taking)


def claim_resumed(snapshot: Snapshot | None, now: Millis, taking: Taking) -> "Change[Snapshot]":
    """Redeems a grant on an interrupted attempt: the same attempt continues under a new lease. A
    repeat by the same caller gets the same lease. A grant that has expired is deleted."""
    snapshot = present(snapshot)
    if own_lease(snapshot, now, taking) is not None:
        return unchanged(snapshot)
    match snapshot.state:
        case Ready(next=Next(start=Start.CONTINUE)) as ready:
            pass
        case Ready(next=next) | Waiting(next=next) if next.start is not Start.CONTINUE:
            raise NotResumed(f"{snapshot.run} has no interrupted attempt to continue")
        case _:  # also if a worker holds it: its claim has used the grant
            raise NotLeaseable(f"{snapshot.run} does not wait for a worker")
    try:
        _check_grant(snapshot, now, ready.hold, taking)
    except GrantExpired as expired:
        life = replace(snapshot.life, grant=None)
        after = snapshot.to(replace(ready, hold=None), life=life)
        return refused(Change(None, snapshot, after), expired)
    return take(snapshot, now, ready.next, taking)


def grant_and_claim(snapshot: Snapshot | None, now: Millis, taking: Taking) -> "Change[Snapshot]":
    """An operator takes a waiting execution in one step, ignoring its requirements."""
    snapshot = present(snapshot)
    if own_lease(snapshot, now, taking) is not None:
        return unchanged(snapshot)
    match snapshot.state:
        case Ready() as ready:
            pass
        case Active():
            raise LeaseConflict(f"a worker holds the lease of {snapshot.run}")
        case state:
            if isinstance(state, Waiting):  # a grant outlives a block or a delay
                refuse_live_hold(snapshot, now, granted_hold(snapshot.head))
            raise NotEligible(f"{snapshot.run} does not wait for a worker, so it cannot be taken")
    refuse_live_hold(snapshot, now, ready.hold)
    return take(snapshot, now, ready.next, taking)


def own_lease(snapshot: Snapshot, now: Millis, taking: Taking) -> Lease | None:
    """The lease that the same call made before, if it still exists: the reply was lost."""
    match snapshot.state:
        case Active(lease=lease) if (lease.id, lease.worker) == (taking.lease_id, taking.worker):
            return lease if lease.expires_at > now else None
        case _:
            return None


def _check_attempt(snapshot: Snapshot, attempt: int, expected: int | None) -> None:
    if expected is not None and expected != attempt:
        raise StaleLease(f"{snapshot.run} is at attempt {attempt}, not {expected}")


def _eligible(snapshot: Snapshot) -> Ready:
    if not isinstance(snapshot.state, Ready):
        raise NotEligible(f"{snapshot.run} does not wait for a worker, so it cannot be granted")
    return snapshot.state


def _leaseable(snapshot: Snapshot) -> Ready:
    match snapshot.state:
        case Ready() as ready:
            return ready
        case Active():
            raise LeaseConflict(f"a worker holds the lease of {snapshot.run}")
        case _:
            raise NotLeaseable(f"{snapshot.run} does not wait for a worker")


def refuse_live_hold(snapshot: Snapshot, now: Millis, hold: Hold | None) -> None:
    if hold is not None and hold.alive(now):
        raise GrantExists(f"{snapshot.run} is granted until {hold.until}")


def _check_grant(snapshot: Snapshot, now: Millis, hold: Hold | None, taking: Taking) -> None:
    if hold is None or hold.worker != taking.worker.id:
        raise InvalidGrant(f"{snapshot.run} has no grant for this worker")
    if not has_key(snapshot, taking):
        raise InvalidGrant(f"the grant of {snapshot.run} has another key")
    if hold.until < now:
        raise GrantExpired(f"the grant of {snapshot.run} expired at {hold.until}")


def reserve(
    snapshot: Snapshot, now: Millis, state: Ready | Lost, grantee: Grantee, head: Head
) -> "Change[Granted]":
    """Puts the hold of a grant on the row, and its record into the life of the new `head`."""
    until = Millis(now + grantee.ttl)
    grant = _record(snapshot, now, state, grantee, until)
    held = replace(state, hold=Hold(until, grantee.worker))
    life = replace(head.life, grant=grant, touched_at=now)
    after = snapshot.to(held, life=life, flags=head.flags)
    return Change(outcome=_granted(snapshot, grant, grantee), before=snapshot, after=after)


def _record(
    snapshot: Snapshot, now: Millis, state: Ready | Lost, grantee: Grantee, until: Millis
) -> Grant:
    kind = GrantKind.RESUME if state.next.start is Start.CONTINUE else GrantKind.CLAIM
    notes = grantee.notes
    return Grant(
        id=grant_id_from_key(grantee.key) if grantee.key else "",
        kind=GrantKind.RECLAIM if isinstance(state, Lost) else kind,
        worker=grantee.worker,
        instance=grantee.instance,
        lane=snapshot.execution.route.lane,
        granted_at=now,
        expires_at=until,
        epoch=snapshot.head.epoch,
        capabilities=tuple(sorted(grantee.capabilities)),
        capability_hash=notes.capability_hash or hash_capabilities(grantee.capabilities),
        route_snapshot=notes.route_snapshot,
        admission_summary=notes.admission_summary,
    )


def _granted(snapshot: Snapshot, grant: Grant, grantee: Grantee) -> Granted:
    id = snapshot.execution.id
    return Granted(id, grant.worker, grant.expires_at, grant.instance, grantee.key)


def grant_at(snapshot: Snapshot, now: Millis) -> Grant | None:
    """The live grant; None if it was redeemed or has expired."""
    grant = snapshot.life.grant
    match snapshot.state:
        case Ready(hold=hold) | Lost(hold=hold):
            pass
        case _:
            return None
    if grant is None or hold is None or not hold.alive(now):
        return None
    same = (hold.worker, hold.until) == (grant.worker, grant.expires_at)
    return grant if same else None


def own_grant(snapshot: Snapshot, now: Millis, grantee: Grantee) -> Granted | None:
    """The grant that the same caller got under the same key: the reply was lost."""
    grant = grant_at(snapshot, now)
    if grant is None or not grantee.key or grant.id != grant_id_from_key(grantee.key):
        return None
    if (grant.worker, grant.instance) != (grantee.worker, grantee.instance):
        return None
    return _granted(snapshot, grant, grantee)


def has_key(snapshot: Snapshot, taking: Taking) -> bool:
    """Whether the grant has the presented key; True if none was presented."""
    grant = snapshot.life.grant
    return taking.grant is None or (grant is not None and grant.id == taking.grant)
