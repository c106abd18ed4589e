"""Suspending: an owner gives its lease up until the outside world has answered.

A request names what to wait for in one or more arms; any of them resumes the execution. Signals
that were received before count as if they came just after; if they satisfy an arm, the lease is
kept.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import cast
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from flowfabric.core.base.errors import (
    FenceRequired,
    Invalid,
    InvalidWaitpoint,
    WaitpointExists,
    WaitpointExpired,
    WaitpointNotFound,
    WaitpointNotPending,
)
from flowfabric.core.base.numbers import check_kind_of, check_one_of
from flowfabric.core.base.shape import check_shape
from flowfabric.core.base.text import MAX_KEY, MAX_REASON, check_signal_name, check_text
from flowfabric.core.base.time import Millis, check_moment, check_span
from flowfabric.core.execution.attempt import pause_attempt, released, same_release
from flowfabric.core.execution.attempts import closing_attempts
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.cleanup import is_unheard
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import Owner, enter, fence_of, lease_event, present
from flowfabric.core.execution.model import Active, Flags, Lease, Snapshot, Suspended
from flowfabric.core.execution.policy import SuspensionPolicy
from flowfabric.core.execution.step import Step
from flowfabric.core.wait.condition.check import check_condition, check_names, check_references
from flowfabric.core.wait.condition.codec import write_condition
from flowfabric.core.wait.condition.match import blank
from flowfabric.core.wait.condition.model import Condition, Single, TimeoutOnly
from flowfabric.core.wait.match import match_signal
from flowfabric.core.wait.model import (
    FEW_SIGNALS,
    NO_WAITS,
    Arm,
    Behaviour,
    DedupRecord,
    Loaded,
    Needs,
    Pending,
    ReceivedSignal,
    ResumePolicy,
    StepRef,
    Suspension,
    Terms,
    Waited,
    Waitpoint,
    Waits,
    dedup_key,
)
from flowfabric.core.wait.resume import (
    CLOSED,
    TIMED_OUT,
    SuspensionEnd,
    close_suspension,
    overdue_waits,
    steps_of,
    woken_for_cleanup,
)
from flowfabric.core.wait.waitpoint import closed_because, closed_key, is_over, new_waitpoint

PAST_TOLERANCE = Millis(600_000)
REQUESTERS = frozenset({"worker", "operator", "policy", "system_timeout_policy"})
TARGETS = frozenset({"runnable"})
MAX_BINDINGS = 1_000

REPEAT_GRACE = Millis(60_000)
REPEAT_WINDOW = Millis(7 * 86_400_000)


class WaitpointUse(StrEnum):
    """FRESH is a new waitpoint, PENDING one that was made before, EITHER may be both. Only EITHER
    opens a closed one again: a handler asks for the very same thing (the id is made of what it asks
    for), and what was decided about that still counts. What an operator closed stays closed."""

    FRESH = "fresh"
    PENDING = "pending"
    EITHER = "either"


class Binding(Struct, frozen=True, kw_only=True):
    """A waitpoint to wait at. A pending one brings its own key. A `lasting` one belongs to the
    execution and outlives the attempt. It closes pending ones with the same `slot`."""

    id: UUID
    key: str = ""
    use: WaitpointUse = WaitpointUse.FRESH
    terms: Terms | None = None
    lasting: bool = False
    slot: UUID | None = None

    @classmethod
    def fresh(cls, id: UUID) -> "Binding":
        return cls(id=id, key=f"wpk:{id}")


class Wait(Struct, frozen=True, kw_only=True):
    """One arm of a request; the first binding is the primary one. What it does not say about a
    timeout the policy of the execution says."""

    condition: Condition
    bindings: tuple[Binding, ...]
    timeout_at: Millis | None = None
    behaviour: Behaviour | None = None
    policy: ResumePolicy = ResumePolicy()
    step: StepRef | None = None

    def __post_init__(self) -> None:
        if self.timeout_at == 0:  # not set, as every moment of zero
            force_setattr(self, "timeout_at", None)


class Suspend(Struct, frozen=True, kw_only=True):
    """A request to suspend. It is resumed at `until` at the latest; `steps` are recorded by the
    change that suspends; `kid` names the key that signs tokens of fresh waitpoints."""

    id: UUID
    waits: tuple[Wait, ...]
    reason: str = "waiting_for_signal"
    requested_by: str = "worker"
    continuation: str | None = None
    idempotency_key: str | None = None
    kid: str | None = None
    until: Millis | None = None
    steps: tuple[Step, ...] = ()

    @property
    def bindings(self) -> list[Binding]:
        return [binding for wait in self.waits for binding in wait.bindings]


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


def check_suspend(request: Suspend, now: Millis) -> Suspend:
    """The request if it makes sense; it is refused before the store is touched otherwise."""
    if not check_kind_of(request.waits, tuple, "waits"):
        raise Invalid("waitpoints_empty")
    check_kind_of(request.id, UUID, "suspension id")
    check_one_of(request.requested_by, REQUESTERS, "requested_by")
    check_text(request.reason, "reason", limit=MAX_REASON)
    if request.continuation is not None:
        check_text(request.continuation, "continuation", limit=MAX_REASON)
    if request.idempotency_key is not None:
        check_text(request.idempotency_key, "idempotency key", limit=MAX_KEY)
    for wait in request.waits:
        _check_wait(check_kind_of(wait, Wait, "wait"), now)
    if request.until is not None:
        check_moment(request.until, "until")
    for step in check_kind_of(request.steps, tuple, "steps"):
        check_shape(step, Step, "step")
    return request


def _check_wait(wait: Wait, now: Millis) -> None:
    if not check_kind_of(wait.bindings, tuple, "waitpoints"):
        raise Invalid("waitpoints_empty")
    if len(wait.bindings) > MAX_BINDINGS:
        raise Invalid(f"{len(wait.bindings)} waitpoints, the limit is {MAX_BINDINGS}")
    primary = check_shape(wait.bindings[0], Binding, "waitpoint")
    _check_bindings(wait)
    check_condition(wait.condition)
    if primary.use is not WaitpointUse.PENDING:
        check_references(wait.condition, [binding.key for binding in wait.bindings])
    if isinstance(wait.condition, TimeoutOnly) and wait.timeout_at is None:
        raise Invalid("timeout_only_without_deadline")
    check_names(wait.condition)
    if wait.timeout_at is not None:
        check_moment(wait.timeout_at, "timeout_at")
        if wait.timeout_at + PAST_TOLERANCE < now:
            raise Invalid("timeout_at_in_past")
    _check_ending(wait)


def _check_ending(wait: Wait) -> None:
    """Whether what happens after the wait can be stored."""
    if wait.behaviour is not None:
        check_kind_of(wait.behaviour, Behaviour, "behaviour")
    policy = check_shape(wait.policy, ResumePolicy, "resume policy")
    check_one_of(policy.target, TARGETS, "the target of a resume policy")
    delay = policy.resume_delay
    if delay is not None:
        check_span(delay, "resume_delay")
    if wait.step is not None:
        check_shape(wait.step, StepRef, "step")


def _check_bindings(wait: Wait) -> None:
    primary, condition = wait.bindings[0], wait.condition
    if isinstance(condition, Single) and primary.use is WaitpointUse.FRESH:
        key = condition.waitpoint
        if key != primary.key:
            raise Invalid(f"waitpoint_key_mismatch: {key!r} is not {primary.key!r}")
    for position, binding in enumerate(wait.bindings):
        check_shape(binding, Binding, "waitpoint")
        if binding.use is WaitpointUse.PENDING:
            if position:
                raise Invalid(f"additional_waitpoint_binding_must_be_fresh: waitpoints[{position}]")
            continue
        check_signal_name(binding.key, "waitpoint key")
        if not binding.key:
            if position:
                raise Invalid(f"additional_waitpoint_binding_empty_key: waitpoints[{position}]")
            raise Invalid("waitpoint_key_empty")


def needs_to_suspend(
    snapshot: Snapshot | None, request: Suspend, *, few: bool = False
) -> Needs | None:
    """What `suspend` reads: of each waitpoint all signals that were kept, or the first few."""
    if snapshot is None:
        return None
    bindings = request.bindings
    pending = {p.id: p for p in (snapshot.life.waits or NO_WAITS).pending}
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
        unique=tuple(id for id in unique_ids(request) if id not in pending),
    )


def unique_ids(request: Suspend) -> tuple[UUID, ...]:
    """The ids that no waitpoint of another execution may have. EITHER is for ids that are made of
    the execution's own, where the waitpoint is lasting: those need not be looked for."""
    either = WaitpointUse.EITHER
    bindings = request.bindings
    return tuple([each.id for each in bindings if each.use is not either or not each.lasting])


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
    return _suspend(snapshot, now, loaded, owner, request, expires=False)


def _suspend(
    snapshot: Snapshot | None,
    now: Millis,
    loaded: Loaded,
    owner: Owner,
    request: Suspend,
    *,
    expires: bool,
) -> "Change[NowSuspended | AlreadyMet]":
    """`expires`: a wait whose time is over ends here, not after the suspension."""
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
    binder = _Binder(snapshot, now, loaded, lease, request)
    suspension = Suspension(
        id=request.id,
        attempt=lease.attempt,
        created_at=now,
        arms=tuple(binder.arm(wait) for wait in request.waits),
        requested_by=request.requested_by,
        continuation=request.continuation,
        until=request.until,
    )
    suspending = _Suspending(snapshot, now, lease, request, binder)
    return suspending.decide(suspension, loaded.signals, expires=expires)


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
    change = _suspend(snapshot, now, loaded, owner, request, expires=last is None)
    if isinstance(change.outcome, NowSuspended):
        return unchanged(NotMet(partly=last is not None))
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


class _Binder:
    """Turns bindings into waitpoints: known pending ones, or new ones."""

    def __init__(
        self, snapshot: Snapshot, now: Millis, loaded: Loaded, lease: Lease, request: Suspend
    ) -> None:
        self._snapshot = snapshot
        self._rules = snapshot.execution.rules.suspension_policy or SuspensionPolicy()
        self._lease = lease
        self._now = now
        self._kid = request.kid
        self._loaded = loaded
        self.pending = {p.id: p for p in (snapshot.life.waits or NO_WAITS).pending}
        self.bound: list[Waitpoint] = []
        self.fresh: dict[UUID, Waitpoint] = {}
        self.outdated: set[UUID] = set()
        self.closed: dict[UUID, str] = {}

    def arm(self, wait: Wait) -> Arm:
        left = [binding for binding in wait.bindings if not self._is_closed(binding, wait)]
        timeout_at, default = wait.timeout_at, self._rules.default_timeout_ms
        if timeout_at is None and default is not None:
            timeout_at = Millis(self._now + default)
        bound = tuple(self._bind(binding, timeout_at) for binding in left)
        if wait.bindings[0].use is WaitpointUse.PENDING:
            check_references(wait.condition, [item.key for item in bound])
        return Arm(
            condition=write_condition(wait.condition),
            bound=bound,
            tallies=blank(wait.condition),
            timeout_at=timeout_at,
            behaviour=wait.behaviour or self._rules.timeout_behavior,
            policy=wait.policy,
            step=wait.step,
        )

    def _is_closed(self, binding: Binding, wait: Wait) -> bool:
        """Whether an operator closed the waitpoint; a wait that is a step can do without."""
        if binding.use is not WaitpointUse.EITHER:
            return False
        reason = closed_because(self._loaded, binding.id)
        if reason is None:
            return False
        if wait.step is None:
            raise WaitpointNotPending(f"waitpoint {binding.id} was closed: {reason}")
        self.closed[binding.id] = reason
        return True

    def _bind(self, binding: Binding, timeout_at: Millis | None) -> Pending:
        if binding.slot is not None:
            rivals = (p for p in self.pending.values() if p.slot == binding.slot)
            self.outdated |= {p.id for p in rivals if p.id != binding.id}
        known = binding.id in self.pending or binding.id in self.fresh
        if binding.use is WaitpointUse.PENDING or (binding.use is WaitpointUse.EITHER and known):
            return self._bind_pending(binding, timeout_at)
        return self._bind_fresh(binding, timeout_at)

    def _bind_pending(self, binding: Binding, timeout_at: Millis | None) -> Pending:
        waitpoint = self.fresh.get(binding.id) or self._loaded.waitpoints.get(binding.id)
        if waitpoint is None and binding.id in self._loaded.taken:
            raise InvalidWaitpoint(f"waitpoint {binding.id} belongs to another run")
        if waitpoint is None:
            raise WaitpointNotFound("waitpoint", binding.id)
        pending = self.pending.get(binding.id)
        if pending is None:
            if binding.id not in self.fresh:
                raise WaitpointNotPending(f"waitpoint {binding.id} is closed or in use")
            pending = Pending(waitpoint.id, waitpoint.key, slot=binding.slot)
        if pending.attempt is not None and pending.attempt != self._lease.attempt:
            raise InvalidWaitpoint(f"waitpoint {binding.id} belongs to another attempt")
        if pending.has_expired(self._now):
            raise WaitpointExpired(f"waitpoint {binding.id} has expired")
        self.bound.append(waitpoint)
        expires_at = timeout_at if pending.attempt is not None else pending.expires_at
        return replace(pending, expires_at=expires_at)

    def _bind_fresh(self, binding: Binding, timeout_at: Millis | None) -> Pending:
        id, attempt = binding.id, None if binding.lasting else self._lease.attempt
        new = new_waitpoint(
            self._snapshot, self._now, id, binding.key, self._kid, attempt, binding.terms
        )
        known = self._loaded.waitpoints.get(id)
        if binding.use is WaitpointUse.FRESH and (known is not None or id in self.fresh):
            raise WaitpointExists(f"waitpoint {id}")
        if id in self._loaded.taken:
            raise WaitpointExists(f"waitpoint {id} belongs to another run")
        waitpoint = self.fresh[id] = known or new
        self.bound.append(waitpoint)
        if binding.terms is not None and binding.slot is None:
            # What is to be approved has changed: the approval that was asked for before is over.
            self.outdated |= {p.id for p in self.pending.values() if p.key == binding.key}
        expires_at = None if binding.lasting else timeout_at
        return Pending(waitpoint.id, waitpoint.key, expires_at, attempt, slot=binding.slot)


class _Suspending:
    """The change that a request becomes once its waitpoints are bound."""

    def __init__(
        self, snapshot: Snapshot, now: Millis, lease: Lease, request: Suspend, binder: _Binder
    ) -> None:
        self._snapshot = snapshot
        self._now = now
        self._lease = lease
        self._request = request
        self._binder = binder
        self._dedup: dict[bytes, DedupRecord] = {}
        self._counted: list[tuple[int, UUID]] = []

    def decide(
        self, suspension: Suspension, signals: list[ReceivedSignal], *, expires: bool
    ) -> "Change[NowSuspended | AlreadyMet]":
        """Offers the signals that were kept to the suspension until one satisfies an arm."""
        if end := _end_by_closing(self._request, suspension, self._binder.closed):
            return self._go_on(suspension, end)
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
        outcome = AlreadyMet(suspension.id, tuple(self._binder.bound), done)
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
        outcome = NowSuspended(suspension.id, tuple(self._binder.bound), snapshot)
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
            waitpoints=tuple(self._binder.fresh.values()),
            counted=tuple(self._counted),
            dedup=tuple(dedup),
        )

    def _waits(self) -> Waits:
        """What waits apart from this suspension: what it binds is pending no longer."""
        waits = self._snapshot.life.waits or NO_WAITS
        gone = {waitpoint.id for waitpoint in self._binder.bound} | self._binder.outdated
        return replace(waits, pending=tuple(p for p in waits.pending if p.id not in gone))


def _end_by_closing(
    request: Suspend, suspension: Suspension, closed: dict[UUID, str]
) -> SuspensionEnd | None:
    """Ends the waits that can never be answered, since an operator closed what they wait at."""
    arms = enumerate(zip(request.waits, suspension.arms, strict=True))
    done = {
        number: Waited.CLOSED
        for number, (wait, arm) in arms
        if len(arm.bound) < len(wait.bindings) and is_over(arm)
    }
    note = next(iter(closed.values()), "")
    return SuspensionEnd(reason=CLOSED, done=done, note=note) if done else None


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
    last = (snapshot.life.waits or NO_WAITS).last
    if not isinstance(snapshot.state, Active) or last is None or last.id != request.id:
        return False
    kept = last.epoch == snapshot.head.epoch
    return kept and owner.fence == fence_of(snapshot, snapshot.state.lease)


def _check_unused(snapshot: Snapshot, request: Suspend) -> None:
    """A suspension that is over is not begun again under its id: what was counted for it would
    count for the new one as well."""
    last = (snapshot.life.waits or NO_WAITS).last
    if last is not None and last.id == request.id:
        raise Invalid(f"suspension {request.id} is over: a new one needs an id of its own")


def _operation(request: Suspend) -> str:
    return f"suspend:{request.id}"
