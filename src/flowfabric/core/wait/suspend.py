"""Suspending: an owner gives its lease up until the outside world has answered.

A request names what to wait for in one or more arms; any of them resumes the execution. Signals
that were received before count as if they came just after; if they satisfy an arm, the lease is
kept.
"""

from collections.abc import Mapping
from typing import cast
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import FenceRequired, Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import pause_attempt, released, same_release
from flowfabric.core.execution.attempts import closing_attempts
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.cleanup import is_unheard
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import Owner, enter, fence_of, lease_event, present
from flowfabric.core.execution.model import Active, Flags, Lease, Snapshot, Suspended
from flowfabric.core.execution.step import Step
from flowfabric.core.wait.bind import BoundWaits, bind
from flowfabric.core.wait.match import match_signal
from flowfabric.core.wait.model import (
    FEW_SIGNALS,
    DedupRecord,
    Loaded,
    Needs,
    ReceivedSignal,
    Suspension,
    Waitpoint,
    Waits,
    dedup_key,
)
from flowfabric.core.wait.request import Suspend, WaitpointUse
from flowfabric.core.wait.resume import (
    TIMED_OUT,
    SuspensionEnd,
    close_suspension,
    overdue_waits,
    steps_of,
    woken_for_cleanup,
)
from flowfabric.core.wait.waitpoint import closed_key

REPEAT_GRACE = Millis(60_000)
REPEAT_WINDOW = Millis(7 * 86_400_000)


class NowSuspended(Struct, frozen=True):
    """The lease was given up. `waitpoints` in the order of the bindings; `before` is the execution
    as the request found it."""

    suspension: UUID
    waitpoints: tuple[Waitpoint, ...]
    before: Snapshot


class AlreadyMet(Struct, frozen=True):
    """What was to be waited for is here: the lease is kept, the worker goes on. `steps` are those
    that the waits have become; a repeat of the request gets none."""

    suspension: UUID
    waitpoints: tuple[Waitpoint, ...]
    steps: tuple[Step, ...] = ()


class NotMet(Struct, frozen=True):
    """What is to be waited for is not here. `partly`: not among the signals that were read, but
    there are more."""

    partly: bool = False


def needs_to_suspend(
    snapshot: Snapshot | None, request: Suspend, *, few: bool = False
) -> Needs | None:
    """What `suspend` reads: of each waitpoint all signals that were kept, or the first few."""
    if snapshot is None:
        return None
    bindings = request.bindings
    pending = {p.id: p for p in snapshot.waits.pending}
    repeat = _repeat_key(request)
    closed = [closed_key(binding.id) for binding in bindings if binding.use is WaitpointUse.EITHER]
    return Needs(
        execution=snapshot.execution.uuid,
        waitpoints=tuple(binding.id for binding in bindings),
        dedup=tuple(closed if repeat is None else (repeat, *closed)),
        buffered=tuple(
            (b.id, pending[b.id].unwanted if b.id in pending else 0)
            for b in bindings
            if b.id in pending or b.use is WaitpointUse.EITHER
        ),
        few=few,
        unique=tuple(id for id in request.unique_ids if id not in pending),
    )


def known_to_suspend(
    snapshot: Snapshot | None, request: Suspend, rows: Mapping[tuple[UUID, UUID], Waitpoint]
) -> Loaded | None:
    """What `needs_to_suspend` would find, if that is known without reading it: no signal was
    received so far, and all waitpoints are pending (so none is closed) and among `rows`, which are
    known by execution and id. None if it has to be read."""
    waits = None if snapshot is None else snapshot.life.waits
    if snapshot is None or waits is None or waits.signals or request.idempotency_key:
        return None
    pending = [each.id for each in waits.pending]
    found: dict[UUID, Waitpoint] = {}
    for binding in request.bindings:
        row = rows.get((snapshot.execution.uuid, binding.id))
        if row is None or binding.id not in pending:
            return None
        found[binding.id] = row
    return Loaded(found, {}, [])


def suspend(
    snapshot: Snapshot | None, now: Millis, loaded: Loaded, owner: Owner, request: Suspend
) -> "Change[NowSuspended | AlreadyMet]":
    """Gives the lease up until an arm is satisfied, unless one is already."""
    return _suspend(snapshot, now, loaded, owner, request)


def _suspend(
    snapshot: Snapshot | None,
    now: Millis,
    loaded: Loaded,
    owner: Owner,
    request: Suspend,
    *,
    expires: bool = False,
    partly: bool = False,
) -> "Change[NowSuspended | AlreadyMet]":
    """`expires`: a wait whose time is over ends here, not after the suspension. `partly`: there are
    more signals than were loaded."""
    snapshot = present(snapshot)
    known = _answered(snapshot, now, loaded, request)
    known = known or _repeated(snapshot, loaded, owner, request)
    if known is not None:
        return unchanged(known)
    if owner.fence is None:
        raise FenceRequired("only the owner of a run can suspend it")
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    _check_unused(snapshot, request)
    bound = bind(snapshot, now, loaded, lease.attempt, request)
    suspension = Suspension(
        id=request.id,
        attempt=lease.attempt,
        created_at=now,
        arms=bound.arms,
        requested_by=request.requested_by,
        continuation=request.continuation,
        until=request.until,
    )
    suspending = _Suspending(snapshot, now, lease, request, bound)
    return suspending.decide(suspension, loaded.signals, expires=expires, partly=partly)


def go_on(
    snapshot: Snapshot | None,
    now: Millis,
    loaded: Loaded,
    owner: Owner,
    request: Suspend,
    *,
    few: bool = False,
) -> "Change[AlreadyMet | NotMet]":
    """As `suspend` if the request is satisfied already, or if a wait has timed out that the handler
    goes on after; otherwise nothing changes. `loaded` has all signals that were kept or the first
    few of each waitpoint."""
    last = _last_in_order(loaded.signals) if few else None
    if last is not None:
        known = [row for row in loaded.signals if row.signal.number <= last]
        loaded = Loaded(loaded.waitpoints, loaded.dedup, known)
    partly = last is not None
    change = _suspend(snapshot, now, loaded, owner, request, expires=not partly, partly=partly)
    if isinstance(change.outcome, NowSuspended):
        return unchanged(NotMet(partly=partly))
    return cast("Change[AlreadyMet | NotMet]", change)


def _last_in_order(signals: list[ReceivedSignal]) -> int | None:
    """The number up to which none is missing among the first few; None when none is at all.

    Example: of two waitpoints the first 32 signals were read, up to number 40 of one and up to
    number 90 of the other. Number 41 may be of the first one, so the signals up to 40 are complete.
    """
    numbers: dict[UUID, list[int]] = {}
    for row in signals:
        numbers.setdefault(row.signal.waitpoint, []).append(row.signal.number)
    return min((max(each) for each in numbers.values() if len(each) >= FEW_SIGNALS), default=None)


class _Suspending:
    """The change that a request becomes once its waitpoints are bound."""

    def __init__(
        self, snapshot: Snapshot, now: Millis, lease: Lease, request: Suspend, bound: BoundWaits
    ) -> None:
        self._snapshot = snapshot
        self._now = now
        self._lease = lease
        self._request = request
        self._bound = bound
        self._dedup: dict[bytes, DedupRecord] = {}
        self._counted: list[tuple[int, UUID]] = []

    def decide(
        self,
        suspension: Suspension,
        signals: list[ReceivedSignal],
        *,
        expires: bool,
        partly: bool,
    ) -> "Change[NowSuspended | AlreadyMet]":
        """Offers the signals that were kept to the suspension until one satisfies an arm. What was
        decided of an approval before it was closed is part of its verdict."""
        if self._bound.over is not None and not partly:
            decisions = (s.signal for s in signals if s.signal.waitpoint in self._bound.undecided)
            self._counted = [(decision.number, suspension.id) for decision in decisions]
            return self._go_on(suspension, self._bound.over)
        bound = {bound.id: bound for arm in suspension.arms for bound in arm.bound}
        for signal in (row.signal for row in signals):
            if signal.waitpoint not in bound or not bound[signal.waitpoint].wants(signal.number):
                continue
            match = match_signal(suspension, signal, self._dedup)
            self._dedup |= {record.key: record for record in match.dedup}
            suspension = match.suspension
            if match.counts:
                self._counted.append((signal.number, suspension.id))
            if match.satisfied:
                return self._go_on(suspension, SuspensionEnd.by_signal(signal, match.satisfied))
        if expires and (done := overdue_waits(suspension, self._now)):
            return self._go_on(suspension, SuspensionEnd(reason=TIMED_OUT, done=done))
        return self._park(suspension)

    def _go_on(
        self, suspension: Suspension, end: SuspensionEnd
    ) -> "Change[NowSuspended | AlreadyMet]":
        """Something that was to be waited for is over: the lease is kept."""
        waits = close_suspension(self._waits(), self._now, suspension, end)
        if waits.last is not None:
            waits = replace(waits, last=replace(waits.last, epoch=self._snapshot.head.epoch))
        done = steps_of(suspension, self._now, end)
        outcome = AlreadyMet(suspension.id, self._bound.waitpoints, done)
        steps = (*self._request.steps, *done)
        life = replace(self._snapshot.life, waits=waits)
        after = self._snapshot.to(
            Active(self._lease), life=life, flags=self._snapshot.head.flags | Flags.WAITPOINTS
        )
        return self._change(outcome, after, steps, suspension)

    def _park(self, suspension: Suspension) -> "Change[NowSuspended | AlreadyMet]":
        snapshot, request, lease = self._snapshot, self._request, self._lease
        life, next = pause_attempt(snapshot, self._now, lease, "suspended")
        life = replace(
            life,
            waits=replace(self._waits(), suspension=suspension),
            released=released(snapshot, lease, _operation(request)),
        )
        state = Suspended(
            next=next,
            suspension=suspension.id,
            reason=request.reason,
            since=self._now,
            due_at=suspension.due_at,
        )
        after = snapshot.to(state, life=life, flags=snapshot.head.flags | Flags.WAITPOINTS)
        if is_unheard(snapshot):
            after = woken_for_cleanup(after, self._now)
        event = lease_event(
            snapshot,
            self._now,
            lease,
            EventKind.SUSPENDED,
            reason=request.reason,
            suspension=str(suspension.id),
        )
        outcome = NowSuspended(suspension.id, self._bound.waitpoints, snapshot)
        change = self._change(outcome, after, request.steps, suspension)
        return replace(change, events=(event,), attempts=closing_attempts(snapshot))

    def _change(
        self,
        outcome: NowSuspended | AlreadyMet,
        after: Snapshot,
        steps: tuple[Step, ...],
        suspension: Suspension,
    ) -> "Change[NowSuspended | AlreadyMet]":
        key = _repeat_key(self._request)
        dedup = list(self._dedup.values())
        if key is not None:
            dedup.append(_answer_record(key, outcome, suspension, self._now))
        return Change(
            outcome,
            self._snapshot,
            after,
            steps=steps,
            waitpoints=self._bound.fresh,
            counted=tuple(self._counted),
            dedup=tuple(dedup),
        )

    def _waits(self) -> Waits:
        """What waits apart from this suspension: what it binds is pending no longer."""
        waits = self._snapshot.waits
        left = tuple([p for p in waits.pending if p.id not in self._bound.gone])
        return replace(waits, pending=left)


class _Answer(Struct, frozen=True):
    """An outcome as it is stored: without tokens, which are minted from their key again."""

    met: bool
    suspension: UUID
    waitpoints: tuple[Waitpoint, ...]


def _repeat_key(request: Suspend) -> bytes | None:
    return dedup_key("suspend", request.idempotency_key) if request.idempotency_key else None


def _answer_record(
    key: bytes, outcome: NowSuspended | AlreadyMet, suspension: Suspension, now: Millis
) -> DedupRecord:
    moments = [arm.timeout_at for arm in suspension.arms if arm.timeout_at is not None]
    until = now + REPEAT_WINDOW
    if moments:
        until = min(until, max(now, min(moments)) + REPEAT_GRACE)
    met = isinstance(outcome, AlreadyMet)
    doc = msgspec.json.encode(_Answer(met, outcome.suspension, outcome.waitpoints))
    return DedupRecord(key, Millis(until), doc)


def _answered(
    snapshot: Snapshot, now: Millis, loaded: Loaded, request: Suspend
) -> NowSuspended | AlreadyMet | None:
    """The outcome of an earlier call with the same key, before anything else is looked at."""
    key = _repeat_key(request)
    record = None if key is None else loaded.dedup.get(key)
    if record is None or not record.stands(now):
        return None
    stored = msgspec.json.decode(record.doc, type=_Answer)
    if stored.met:
        return AlreadyMet(stored.suspension, stored.waitpoints)
    return NowSuspended(stored.suspension, stored.waitpoints, snapshot)


def _repeated(
    snapshot: Snapshot, loaded: Loaded, owner: Owner, request: Suspend
) -> NowSuspended | AlreadyMet | None:
    """The outcome again for the very request that was decided before (a lost reply)."""
    parked = same_release(snapshot, owner.fence, _operation(request)) is not None
    if not parked and not _met(snapshot, owner, request):
        return None
    ids = (binding.id for binding in request.bindings)
    known = tuple(loaded.waitpoints[id] for id in ids if id in loaded.waitpoints)
    if parked:
        return NowSuspended(request.id, known, snapshot)
    return AlreadyMet(request.id, known)


def _met(snapshot: Snapshot, owner: Owner, request: Suspend) -> bool:
    """Whether this request was satisfied at once, and its owner went on with its lease."""
    last = snapshot.waits.last
    if not isinstance(snapshot.state, Active) or last is None or last.id != request.id:
        return False
    kept = last.epoch == snapshot.head.epoch
    return kept and owner.fence == fence_of(snapshot, snapshot.state.lease)


def _check_unused(snapshot: Snapshot, request: Suspend) -> None:
    """A suspension that is over is not begun again under its id: what was counted for it would
    count for the new one as well."""
    last = snapshot.waits.last
    if last is not None and last.id == request.id:
        raise Invalid(f"suspension {request.id} is over: a new one needs an id of its own")


def _operation(request: Suspend) -> str:
    return f"suspend:{request.id}"
