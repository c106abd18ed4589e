"""Waitpoints on their own: made, closed, expired, listed.

Closing one leaves a dedup record, so that it stays closed: a handler that runs again asks for the
same waitpoint again.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    FenceRequired,
    InvalidSecret,
    NoSigningKey,
    NotFound,
    WaitpointExists,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.ending import event_of
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import AlreadySatisfied, Owner, enter, present
from flowfabric.core.execution.model import Active, Ended, Flags, Snapshot
from flowfabric.core.wait.condition.codec import read_condition
from flowfabric.core.wait.condition.match import possible
from flowfabric.core.wait.condition.model import names_for
from flowfabric.core.wait.keyring import Keyring
from flowfabric.core.wait.model import (
    Arm,
    DedupRecord,
    Loaded,
    Needs,
    Pending,
    Suspension,
    Terms,
    Waited,
    Waitpoint,
    Waits,
    dedup_key,
)
from flowfabric.core.wait.resume import CLOSED, SuspensionEnd, end_suspension, suspension_of
from flowfabric.core.wait.token import Token, TokenClaims, mint


class NewWaitpoint(Struct, frozen=True, kw_only=True):
    """A waitpoint to be made. A `lasting` one outlives the attempt, and asking for one that is
    there already gives that one, open or not. It closes those with the same `slot`. An id that the
    caller has `given` may be in use by another execution."""

    id: UUID
    key: str
    kid: str | None
    expires_in: Millis | None = None
    terms: Terms | None = None
    lasting: bool = False
    slot: UUID | None = None
    given: bool = False


class OpenWaitpoint(Struct, frozen=True):
    """A waitpoint that accepts signals, as people may see it: without its token. `about` is the
    value to be approved; `terms.about` is its digest, which the approval is bound to."""

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
    about: Any = None


class AskedDecision(Struct, frozen=True, kw_only=True):
    """What the holder of a token sees of a waitpoint: enough to decide, no more. `approver` is who
    alone may use the token, `decisions` are what it may say."""

    execution: ExecutionId
    waitpoint: UUID
    kind: str
    key: str
    open: bool
    about: Any
    about_digest: str | None
    decisions: tuple[str, ...]
    approver: str | None
    approvers: tuple[str, ...]
    asked_at: Millis
    expires_at: Millis | None


class WaitpointsClosed(Struct, frozen=True):
    """The waitpoints that were closed."""

    ids: tuple[UUID, ...]


def needs_waitpoints(snapshot: Snapshot | None, *ids: UUID) -> Needs | None:
    return None if snapshot is None else Needs(snapshot.execution.uuid, waitpoints=ids)


def needs_to_create(snapshot: Snapshot | None, new: NewWaitpoint) -> Needs | None:
    """What `create` reads."""
    needs = needs_waitpoints(snapshot, new.id)
    return replace(needs, unique=(new.id,)) if needs is not None and new.given else needs


def closed_key(waitpoint: UUID) -> bytes:
    return dedup_key("closed", waitpoint.bytes)


def closed_because(loaded: Loaded, waitpoint: UUID) -> str | None:
    """Why an operator closed the waitpoint, None if no operator did."""
    record = loaded.dedup.get(closed_key(waitpoint))
    return None if record is None else msgspec.json.decode(record.doc, type=str)


def new_waitpoint(
    snapshot: Snapshot,
    now: Millis,
    id: UUID,
    key: str,
    kid: str | None,
    attempt: int | None = None,
    terms: Terms | None = None,
) -> Waitpoint:
    """A waitpoint of this execution, whose tokens are signed with the key `kid`."""
    if kid is None:
        raise NoSigningKey("seed a key before anything waits for signals")
    return Waitpoint(id, snapshot.execution.uuid, key, now, kid, attempt, terms)


def with_pending(snapshot: Snapshot, pending: Pending) -> Snapshot:
    """The execution with one more pending waitpoint, which closes those in its slot."""
    waits, slot = snapshot.waits, pending.slot
    others = (p for p in waits.pending if slot is None or p.slot != slot)
    life = replace(snapshot.life, waits=replace(waits, pending=(*others, pending)))
    head = replace(snapshot.head, life=life, flags=snapshot.head.flags | Flags.WAITPOINTS)
    return replace(snapshot, head=head)


def create(
    snapshot: Snapshot | None, now: Millis, loaded: Loaded, owner: Owner, new: NewWaitpoint
) -> "Change[Waitpoint]":
    """Makes a waitpoint while the attempt runs, so that its token can be handed out before the
    execution suspends. Signals are kept for that suspension."""
    snapshot = present(snapshot)
    if owner.fence is None:
        raise FenceRequired("only the owner of a run can make a waitpoint")
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    known = loaded.waitpoints.get(new.id)
    if known is not None:
        if new.lasting:
            return unchanged(known)
        raise WaitpointExists(f"waitpoint {new.id}")
    if new.id in loaded.taken:
        raise WaitpointExists(f"waitpoint {new.id} belongs to another run")
    attempt = None if new.lasting else lease.attempt
    waitpoint = new_waitpoint(snapshot, now, new.id, new.key, new.kid, attempt, new.terms)
    expires_at = None if new.expires_in is None else Millis(now + new.expires_in)
    pending = Pending(new.id, new.key, expires_at, attempt, slot=new.slot)
    opened = with_pending(snapshot, pending)
    after = opened.to(Active(lease), life=replace(opened.life, touched_at=now))
    return Change(waitpoint, snapshot, after, waitpoints=(waitpoint,))


def close(
    snapshot: Snapshot | None, now: Millis, loaded: Loaded, id: UUID, reason: str
) -> "Change[WaitpointsClosed | AlreadySatisfied]":
    """Closes a waitpoint for good. A handler's wait that can never be answered any more is over;
    every other wait at it goes on with the rest of its condition."""
    snapshot = present(snapshot)
    if id not in loaded.waitpoints:
        raise NotFound("waitpoint", id)
    if not is_open(snapshot, id):
        return unchanged(AlreadySatisfied("already_closed"))
    left = _without(snapshot.waits, (id,))
    head = replace(snapshot.head, life=replace(snapshot.life, waits=left))
    detail = {"waitpoint": str(id), "name": loaded.waitpoints[id].key, "reason": reason}
    change: Change[WaitpointsClosed | AlreadySatisfied] = Change(
        WaitpointsClosed((id,)),
        snapshot,
        snapshot.to(snapshot.state, life=head.life),
        (event_of(snapshot, now, EventKind.WAITPOINT_CLOSED, detail),),
        dedup=(DedupRecord(closed_key(id), doc=msgspec.json.encode(reason)),),
    )
    done = _over(snapshot, left, id)
    if not done or left.suspension is None:
        return change
    end = SuspensionEnd(reason=CLOSED, done=dict.fromkeys(done, Waited.CLOSED), note=reason)
    after, steps = end_suspension(replace(snapshot, head=head), now, left.suspension, end)
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
    """Closes the pending waitpoints that expired before a suspension bound them."""
    waits = snapshot.waits
    gone = tuple(p.id for p in waits.pending if p.has_expired(now))
    if not gone:
        return unchanged(AlreadySatisfied("not_yet_due"))
    life = replace(snapshot.life, waits=_without(waits, gone), touched_at=now)
    return Change(WaitpointsClosed(gone), snapshot, snapshot.to(snapshot.state, life=life))


def describe(
    snapshot: Snapshot, now: Millis, rows: dict[UUID, Waitpoint], ring: Keyring
) -> list[OpenWaitpoint]:
    """The waitpoints of an execution that accept signals, by id; one that has ended has none."""
    if isinstance(snapshot.state, Ended):
        return []
    waits = snapshot.waits
    open_ones = {p.id: p for p in waits.active}
    open_ones |= {p.id: p for p in waits.pending if not p.has_expired(now)}
    arms = _arms_by_waitpoint(waits.suspension)
    return [
        _described(snapshot, rows[id], ring, open_ones[id], arms.get(id, ()))
        for id in sorted(open_ones)
        if id in rows
    ]


class _ReadArm:
    """An arm, whose condition is read once: it may be about a thousand waitpoints."""

    def __init__(self, arm: Arm) -> None:
        self.timeout_at = arm.timeout_at
        self._arm = arm

    @cached_property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The names of the signals it asks for, by the key of the waitpoint."""
        keys = [bound.key for bound in self._arm.bound]
        return names_for(read_condition(self._arm.condition), keys)


def _arms_by_waitpoint(suspension: Suspension | None) -> dict[UUID, list[_ReadArm]]:
    found: dict[UUID, list[_ReadArm]] = defaultdict(list)
    for arm in () if suspension is None else suspension.arms:
        read = _ReadArm(arm)
        for id in {bound.id for bound in arm.bound}:
            found[id].append(read)
    return found


def _described(
    snapshot: Snapshot, row: Waitpoint, ring: Keyring, pending: Pending, arms: Sequence[_ReadArm]
) -> OpenWaitpoint:
    suspension = snapshot.waits.suspension
    names = arms[-1].names.get(row.key, ()) if arms else ()
    token = _mintable(ring, row)
    return OpenWaitpoint(
        id=row.id,
        execution=snapshot.execution.id,
        key=row.key,
        state="active" if arms else "pending",
        required_signal_names=names,
        created_at=row.created_at,
        activated_at=suspension.created_at if suspension and arms else None,
        expires_at=arms[0].timeout_at if arms else pending.expires_at,
        token_kid=token.kid,
        token_fingerprint=token.fingerprint,
        terms=row.terms,
        about=_value(row.terms),
    )


def _mintable(ring: Keyring, row: Waitpoint) -> Token:
    """The token of a waitpoint; an empty one if its key is gone or cannot be used, so that the
    waitpoints are listed in any case."""
    try:
        return mint(ring, row)
    except (NoSigningKey, InvalidSecret):
        return Token("")


def asked_decision(
    snapshot: Snapshot, now: Millis, row: Waitpoint, claims: TokenClaims | None
) -> AskedDecision:
    """What a waitpoint asks of the holder of a token with these claims."""
    terms = row.terms or Terms()
    allowed = terms.decisions if claims is None or not claims.decisions else claims.decisions
    return AskedDecision(
        execution=snapshot.execution.id,
        waitpoint=row.id,
        kind=snapshot.execution.kind,
        key=row.key,
        open=accepts_signals(snapshot, now, row.id),
        about=_value(row.terms),
        about_digest=terms.about,
        decisions=allowed,
        approver=None if claims is None else claims.approver,
        approvers=terms.approvers,
        asked_at=row.created_at,
        expires_at=None if claims is None else claims.expires_at,
    )


def _value(terms: Terms | None) -> Any:
    """What is to be approved. Only the digest counts, so a text that cannot be read is not an
    error."""
    if terms is None or terms.value is None:
        return None
    try:
        return json.loads(terms.value)
    except (ValueError, RecursionError):
        return terms.value


def is_open(snapshot: Snapshot, id: UUID) -> bool:
    """Whether the waitpoint is pending or active, even if it expired a moment ago."""
    waits = snapshot.waits
    return not isinstance(snapshot.state, Ended) and any(p.id == id for p in waits.open)


def accepts_signals(snapshot: Snapshot, now: Millis, id: UUID) -> bool:
    """Whether the waitpoint is open and has not expired before a suspension bound it."""
    pending = snapshot.waits.pending
    return is_open(snapshot, id) and not any(p.id == id and p.has_expired(now) for p in pending)


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
