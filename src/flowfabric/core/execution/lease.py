"""Ownership: the check of every owner operation, and how a lease is taken, lost and given back.

A lease belongs to the execution, not to the attempt. Each lease has a higher epoch than all before
it, and an owner with an older fence cannot change anything.
"""

from typing import Never
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    FenceRequired,
    LeaseExpired,
    LeaseRevoked,
    NotActive,
    NotFound,
    PartialFence,
    StaleLease,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.numbers import check_kind_of
from flowfabric.core.base.text import MAX_NAME, check_text
from flowfabric.core.base.time import NO_TIME, Millis
from flowfabric.core.execution.attempts import closing_attempts
from flowfabric.core.execution.change import Change, refused, unchanged
from flowfabric.core.execution.event import Event, EventKind
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Fence,
    Flags,
    Head,
    Hold,
    Lease,
    Lost,
    LostLease,
    Next,
    Snapshot,
    Source,
    Start,
    WorkerIdentity,
)
from flowfabric.core.execution.new_attempt import (
    AS_PLANNED,
    DeadlineBefore,
    GivenAttempt,
    NewAttempt,
)
from flowfabric.core.execution.status import vector
from flowfabric.core.execution.takeover import lost_life, marked, put_back

DEFAULT_TTL = Millis(30_000)
MAX_TTL = Millis(24 * 3_600_000)


class Owner(Struct, frozen=True):
    """The caller: either a whole fence, or no fence and an operator as the source."""

    lease_id: UUID | None = None
    epoch: int | None = None
    attempt_id: UUID | None = None
    source: str = Source.LEASE_HOLDER

    @property
    def fence(self) -> Fence | None:
        """The whole fence, or None if the caller presents none of it."""
        match (self.lease_id, self.epoch, self.attempt_id):
            case (None, None, None):
                return None
            case (UUID() as lease_id, int() as epoch, UUID() as attempt_id) if type(epoch) is int:
                return Fence(lease_id, epoch, attempt_id)
            case _:
                raise PartialFence("give lease id, epoch and attempt id together, or none of them")

    @classmethod
    def of(cls, fence: Fence) -> "Owner":
        return cls(fence.lease_id, fence.epoch, fence.attempt_id)


def check_owner(owner: object) -> Owner:
    """`owner` if it is an Owner and its source can be stored."""
    checked = check_kind_of(owner, Owner, "owner")
    check_text(checked.source, "source", limit=MAX_NAME)
    return checked


class Renewed(Struct, frozen=True):
    expires_at: Millis
    epoch: int


class Revoked(Struct, frozen=True):
    lease_id: UUID
    epoch: int


class AlreadySatisfied(Struct, frozen=True):
    """Nothing to do; `reason` says why."""

    reason: str


class MarkedExpired(Struct, frozen=True):
    id: ExecutionId


def fence_of(snapshot: Snapshot, lease: Lease) -> Fence:
    return Fence(lease.id, snapshot.head.epoch, snapshot.attempt_id_of(lease.attempt))


def ended_by(snapshot: Snapshot, fence: Fence | None) -> bool:
    """Whether the execution has ended under the lease of this fence."""
    match snapshot.state:
        case Ended(lease=Lease() as lease):
            return fence == fence_of(snapshot, lease)
        case _:
            return False


def present(snapshot: Snapshot | None, id: object = "") -> Snapshot:
    if snapshot is None:
        raise NotFound("execution", id)
    return snapshot


def unended(snapshot: Snapshot | None) -> Snapshot:
    snapshot = present(snapshot)
    if isinstance(snapshot.state, Ended):
        raise not_active(snapshot)
    return snapshot


def not_active(snapshot: Snapshot) -> NotActive:
    shape = vector(snapshot)
    return NotActive(
        phase=shape.phase,
        outcome=shape.outcome,
        epoch=snapshot.head.epoch,
        attempt_id=snapshot.attempt_id,
    )


def required_fence(owner: Owner) -> Fence | None:
    """The fence to compare, None for an operator's override."""
    fence = owner.fence
    if fence is None and owner.source != Source.OPERATOR:
        raise FenceRequired("only an operator may act without a fence")
    return fence


def enter(snapshot: Snapshot, now: Millis, owner: Owner) -> "Lease | Change[Never]":
    """The check of every owner operation: returns the lease, or the change that marks it as
    expired.

    The order is part of the contract: fence present, active, not revoked, not expired, current.
    An expired lease is marked as lost even though the caller gets an error.
    """
    fence = required_fence(owner)
    match snapshot.state:
        case Active(lease=lease):
            pass
        case Lost(revoked=True):
            raise LeaseRevoked(why_revoked(snapshot))
        case Lost():
            raise LeaseExpired(f"the lease of {snapshot.run} expired; a worker may take it over")
        case _:
            raise not_active(snapshot)
    if lease.expires_at <= now:
        expired = lose(snapshot, now, lease, revoked=False)
        return refused(expired, LeaseExpired(f"the lease of {snapshot.run} expired"))
    if fence is not None:
        check_current(snapshot, lease, fence)
    return lease


def check_current(snapshot: Snapshot, lease: Lease, fence: Fence | None) -> None:
    """Raises unless the fence is that of the lease."""
    if fence != fence_of(snapshot, lease):
        epoch = snapshot.head.epoch
        raise StaleLease(f"{snapshot.run} is held under another fence, of epoch {epoch}")


def renew(
    snapshot: Snapshot | None, now: Millis, owner: Owner, ttl: Millis, *, record: bool = True
) -> "Change[Renewed]":
    """Extends a lease, or says why not. Never shortens one. Without `record` it is no event."""
    snapshot = present(snapshot)
    if owner.fence is None:
        raise FenceRequired("only the owner of a lease can renew it")
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    expires_at = Millis(max(lease.expires_at, now + ttl))
    after = snapshot.to(Active(replace(lease, expires_at=expires_at, renewed_at=now)))
    outcome = Renewed(expires_at, snapshot.head.epoch)
    event = lease_event(snapshot, now, lease, EventKind.LEASE_RENEWED)
    events = (event,) if record else ()
    return Change(outcome=outcome, before=snapshot, after=after, events=events)


def renew_claimed(
    snapshot: Snapshot | None, now: Millis, owner: Owner, ttl: Millis
) -> "Change[Renewed] | Change[Snapshot]":
    """Renews the lease of a claim that is answered again; the outcome is how it stands then."""
    change = renew(snapshot, now, owner, ttl, record=False)
    if change.after is None or not isinstance(change.outcome, Renewed):
        return change  # refused, such as one that has expired
    return change.answering(change.after)


def lose(
    snapshot: Snapshot,
    now: Millis,
    lease: Lease,
    *,
    revoked: bool,
    reason: str = "",
    grace: Millis = NO_TIME,
) -> "Change[Lease]":
    """Takes the lease away. Whether a worker may take over is decided at the takeover.

    The timer of the attempt goes on after a revocation. It ends with a lease that expired: the loss
    of a worker uses up no retry, however long no other worker comes."""
    if snapshot.head.flags & Flags.SPENT:
        return put_back(snapshot, lease)
    lapsed = _lost_lease(snapshot, now, lease, reason, revoked=revoked)
    attempts = closing_attempts(snapshot)
    timeout = snapshot.execution.rules.attempt_timeout
    life = replace(
        lost_life(snapshot.life, revoked=revoked),
        lapsed=lapsed,
        grant=None,  # a grant in the life of a lost execution is one on this loss
        paused=None,
        started_at=snapshot.started_at,
    )
    flags = marked(snapshot.execution, snapshot.head.flags, life, suspect=not revoked)
    hold = Hold(until=Millis(now + grace)) if grace else None
    next = Next(Start.RECLAIM, lease.attempt + 1, timeout)
    kind = EventKind.LEASE_REVOKED if revoked else EventKind.LEASE_EXPIRED
    return Change(
        outcome=lease,
        before=snapshot,
        after=snapshot.to(Lost(revoked, next, hold), life=life, flags=flags),
        events=(lease_event(snapshot, now, lease, kind, reason=reason or None),),
        attempts=attempts,
    )


def revoke(
    snapshot: Snapshot | None,
    now: Millis,
    *,
    reason: str,
    lease_id: UUID | None = None,
    instance: str = "",
) -> "Change[Revoked | AlreadySatisfied]":
    """An operator takes a lease away; optionally only a given lease id or instance."""
    snapshot = present(snapshot)
    match snapshot.state:
        case Lost(revoked=True):
            return unchanged(AlreadySatisfied("already_revoked"))
        case Lost():
            return unchanged(AlreadySatisfied("already_expired"))
        case Active(lease=lease):
            pass
        case _:
            raise not_active(snapshot)
    if instance and instance != lease.worker.instance:
        return unchanged(AlreadySatisfied("different_worker_instance_id"))
    if lease_id is not None and lease_id != lease.id:
        raise StaleLease(f"{snapshot.run} has another lease")
    change = lose(snapshot, now, lease, revoked=True, reason=reason)
    return change.answering(Revoked(lease.id, snapshot.head.epoch))


def mark_expired(
    snapshot: Snapshot | None, now: Millis, grace: Millis = NO_TIME
) -> "Change[MarkedExpired | AlreadySatisfied]":
    """Marks an expired lease as lost; in any other state, changes nothing and says why."""
    if snapshot is None:
        return unchanged(AlreadySatisfied("execution_not_found"))
    match snapshot.state:
        case Lost(revoked=revoked):
            return unchanged(AlreadySatisfied("already_revoked" if revoked else "already_expired"))
        case Active(lease=lease) if lease.expires_at > now:
            return unchanged(AlreadySatisfied("not_yet_expired"))
        case Active(lease=lease):
            change = lose(snapshot, now, lease, revoked=False, grace=grace)
            return change.answering(MarkedExpired(snapshot.execution.id))
        case _:
            return unchanged(AlreadySatisfied("not_active"))


class Taking(Struct, frozen=True):
    """The arguments of a claim. Its id becomes the lease id of everything it takes. `grant` is the
    id of the grant it redeems, if it must be a particular one."""

    lease_id: UUID
    worker: WorkerIdentity
    ttl: Millis
    attempt: NewAttempt = AS_PLANNED
    grant: str | None = None


def take(snapshot: Snapshot, now: Millis, next: Next, taking: Taking) -> "Change[Snapshot]":
    """Gives the lease of a ready or lost execution to a worker.

    The store's claim statement does exactly this for many rows at once, without `NewAttempt`.
    """
    timeout = next.timeout if taking.attempt.timeout is None else taking.attempt.timeout
    lease = Lease(
        id=taking.lease_id,
        attempt=next.attempt,
        start=next.start,
        worker=taking.worker,
        started_at=now,
        expires_at=Millis(now + taking.ttl),
        times_out_at=None if timeout is None else Millis(now + timeout),
    )
    epoch, head = snapshot.head.epoch + 1, snapshot.head
    if taking.attempt is not AS_PLANNED:
        head = _with_given(head, next.attempt, taking.attempt)
    flags = head.flags & ~Flags.SPENT
    after = snapshot.to(Active(lease), epoch=epoch, life=head.life, flags=flags)
    event = lease_event(after, now, lease, _TAKEN.get(next.start, EventKind.CLAIMED))
    return Change(outcome=after, before=snapshot, after=after, events=(event,))


def _with_given(head: Head, index: int, attempt: NewAttempt) -> Head:
    """The head with what a claim gave its attempt. What the previous attempt was given is kept,
    because that attempt may not have a row yet."""
    life, flags = head.life, head.flags
    replaced = None
    if attempt.deadline_at is not None:
        replaced = DeadlineBefore(at=life.deadline_at, known=Flags.DEADLINE in flags)
        life, flags = replace(life, deadline_at=attempt.deadline_at), flags | Flags.DEADLINE
    if attempt.id is not None or attempt.policy is not None or replaced is not None:
        given = GivenAttempt(index=index, id=attempt.id, policy=attempt.policy, replaced=replaced)
        life = replace(life, given=(*[g for g in life.given if g.index == index - 1], given))
    return replace(head, life=life, flags=flags)


def without_given(snapshot: Snapshot, index: int) -> Head:
    """The head without what a claim gave the attempt of this index, which has not begun."""
    head, given = snapshot.head, snapshot.given_to(index)
    if given is None:
        return head
    life, flags = head.life, head.flags
    if given.replaced is not None:
        life = replace(life, deadline_at=given.replaced.at)
        flags = flags if given.replaced.known else flags & ~Flags.DEADLINE
    life = replace(life, given=tuple(each for each in life.given if each is not given))
    return replace(head, life=life, flags=flags)


_TAKEN = {Start.CONTINUE: EventKind.RESUMED, Start.RECLAIM: EventKind.RECLAIMED}


def lease_event(
    snapshot: Snapshot, now: Millis, lease: Lease, kind: EventKind, **detail: object
) -> Event:
    """An event about a lease that is in the given snapshot, or has just left it."""
    given = {key: value for key, value in detail.items() if value is not None} if detail else None
    return Event(
        uuid=snapshot.execution.uuid,
        at=now,
        kind=kind,
        epoch=snapshot.head.epoch,
        attempt=lease.attempt,
        worker=lease.worker,
        detail=given or None,
    )


def why_revoked(snapshot: Snapshot) -> str:
    """The reason that the operator gave who revoked the lease."""
    return snapshot.life.lapsed.reason if snapshot.life.lapsed else ""


def _lost_lease(
    snapshot: Snapshot, now: Millis, lease: Lease, reason: str, *, revoked: bool
) -> LostLease:
    paused = snapshot.life.paused if lease.start is Start.CONTINUE else None
    return LostLease(
        index=lease.attempt,
        type=paused.type if paused else lease.start,
        lease_id=lease.id,
        epoch=snapshot.head.epoch,
        worker=lease.worker,
        started_at=paused.started_at if paused else lease.started_at,
        expires_at=lease.expires_at,
        at=now,
        reason=reason,
        revoked=revoked,
        times_out_at=lease.times_out_at if revoked else None,
        suspended_at=paused.paused_at if paused else None,
        resumed_at=lease.started_at if paused else None,
    )
