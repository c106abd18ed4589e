"""Reclaim grants: a lost execution is reserved for one worker, which then takes it over.

Any claim may take a lost execution over (`takeover.py`). A grant keeps it for one worker, and may
have a cap of its own.
"""

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.grant import (
    Granted,
    Grantee,
    GrantNotFound,
    NotReclaimable,
    ReclaimCapExceeded,
    has_key,
    own_grant,
    own_lease,
    refuse_live_hold,
    reserve,
)
from flowfabric.core.execution.lease import Taking, lose, present, take
from flowfabric.core.execution.model import Active, Ended, Flags, Hold, Lost, Snapshot
from flowfabric.core.execution.routing import missing
from flowfabric.core.execution.takeover import end_lost, over_cap


def issue_reclaim_grant(
    snapshot: Snapshot | None, now: Millis, grantee: Grantee, cap: int | None = None
) -> "Change[Granted | NotReclaimable | ReclaimCapExceeded]":
    """Reserves a lost execution for one worker; an expired lease is first marked as lost."""
    snapshot = present(snapshot)
    expired = _expiry(snapshot, now)
    lost = present(expired.after)
    if not isinstance(lost.state, Lost):
        return unchanged(NotReclaimable(f"{lost.run} is not lost"))
    grant = _grant_lost(lost, now, lost.state, grantee, cap)
    if lost is snapshot:
        return grant
    events, attempts = expired.events, expired.attempts
    return Change(grant.outcome, snapshot, grant.after or lost, events, attempts)


def check_reclaimable(
    snapshot: Snapshot | None, now: Millis, cap: int | None = None
) -> "Change[NotReclaimable | ReclaimCapExceeded | None]":
    """What refuses a reclaim grant to every worker; None if nothing does."""
    lost = present(_expiry(present(snapshot), now).after)
    if not isinstance(lost.state, Lost):
        return unchanged(NotReclaimable(f"{lost.run} is not lost"))
    if _over(lost, cap):
        return unchanged(ReclaimCapExceeded(lost.reclaims))
    refuse_live_hold(lost, now, lost.state.hold)
    return unchanged(None)


def reclaim(
    snapshot: Snapshot | None, now: Millis, taking: Taking, cap: int | None = None
) -> "Change[Snapshot | GrantNotFound | NotReclaimable | ReclaimCapExceeded]":
    """Redeems a reclaim grant: a new attempt replaces the lost one. A repeat by the same caller
    gets the same lease."""
    if snapshot is not None and own_lease(snapshot, now, taking) is not None:
        return unchanged(snapshot)
    hold = None if snapshot is None else _reclaim_hold(snapshot)
    if snapshot is None or hold is None or hold.worker is None:
        return unchanged(GrantNotFound())
    if hold.worker != taking.worker.id:
        raise Invalid(f"the grant of {snapshot.run} is for worker {hold.worker!r}")
    if not hold.alive(now) or not has_key(snapshot, taking):
        return unchanged(GrantNotFound())
    if not isinstance(snapshot.state, Lost):
        return _forget_grant(snapshot)
    if _over(snapshot, snapshot.life.max_reclaims if cap is None else cap):
        ended = end_lost(snapshot, now, snapshot.state.next.attempt - 1)
        outcome = ReclaimCapExceeded(snapshot.life.losses)
        return Change(outcome, snapshot, ended.after, ended.events)
    return take(snapshot, now, snapshot.state.next, taking)


def _forget_grant(snapshot: Snapshot) -> "Change[NotReclaimable]":
    """Answers the redemption of a grant on a run that has ended since; the grant is used up."""
    after = snapshot.to(snapshot.state, life=replace(snapshot.life, grant=None))
    return Change(NotReclaimable(f"{snapshot.run} is not lost"), snapshot, after)


def _reclaim_hold(snapshot: Snapshot) -> Hold | None:
    """The hold of a reclaim grant that was not redeemed. A run that ended while it was lost has
    only the record of the grant: its rescuer hears that there is nothing to reclaim."""
    grant, lapsed = snapshot.life.grant, snapshot.life.lapsed
    match snapshot.state:
        case Lost(hold=hold):
            return hold
        case Ended(attempt=last) if grant is not None and lapsed is not None:
            was_lost = lapsed.index == last
            return Hold(grant.expires_at, grant.worker) if was_lost else None
        case _:
            return None


def _expiry(snapshot: Snapshot, now: Millis) -> "Change[object]":
    """The change that marks a lease as lost that has expired; otherwise one to the same state."""
    match snapshot.state:
        case Active(lease=lease) if lease.expires_at <= now:
            return lose(snapshot, now, lease, revoked=False)
        case _:
            return Change(None, snapshot, snapshot)


def _grant_lost(
    snapshot: Snapshot, now: Millis, state: Lost, grantee: Grantee, cap: int | None
) -> "Change[Granted | NotReclaimable | ReclaimCapExceeded]":
    if _over(snapshot, cap):
        return unchanged(ReclaimCapExceeded(snapshot.reclaims))
    if (granted := own_grant(snapshot, now, grantee)) is not None:
        return unchanged(granted)
    refuse_live_hold(snapshot, now, state.hold)
    if lacking := missing(snapshot.execution.route.capabilities, grantee.capabilities):
        return unchanged(NotReclaimable("capability_mismatch:" + ",".join(lacking)))
    flags = snapshot.head.flags  # one over the policy's cap stays SPENT: the grant may expire
    if not state.revoked:
        flags |= Flags.SUSPECT
    head = replace(snapshot.head, life=replace(snapshot.life, max_reclaims=cap), flags=flags)
    return reserve(snapshot, now, state, grantee, head)


def _over(snapshot: Snapshot, cap: int | None) -> bool:
    """Whether a takeover would exceed the cap; a given cap counts every loss."""
    if cap is None:
        return over_cap(snapshot.execution, snapshot.life)
    return snapshot.life.losses > cap
