"""Suspending: an owner gives its lease up until the outside world has answered.

A request names what to wait for in one or more arms; any of them wakes the execution. Signals that
arrived before count as if they came just after; if they satisfy an arm the lease is kept.
"""

from enum import StrEnum
from typing import cast
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    FenceRequired,
    InvalidWaitpoint,
    NoSigningKey,
    NotFound,
    WaitpointExists,
    WaitpointExpired,
    WaitpointNotPending,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import pause_attempt, released, same_release
from flowfabric.core.execution.attempts import closing_attempts
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import Owner, enter, fence_of, lease_event, present
from flowfabric.core.execution.model import Active, Flags, Lease, Snapshot, Suspended
from flowfabric.core.execution.policy import SuspensionPolicy
from flowfabric.core.execution.step import Step
from flowfabric.core.wait.condition import Condition, blank, check_references, write_condition
from flowfabric.core.wait.match import listen, mark_key, source_key
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
)
from flowfabric.core.wait.resume import CLOSED, RESUMED, Wake, close_suspension, steps_of
from flowfabric.core.wait.waitpoint import closed_because, closed_key, is_over

REPEAT_GRACE = Millis(60_000)
REPEAT_WINDOW = Millis(7 * 86_400_000)


class WaitpointUse(StrEnum):
    """FRESH is a new waitpoint, PENDING one that was made before, EITHER whichever it is. Only
    EITHER opens a closed one again: a handler asks for the very same thing (the id is made of what
    it asks for), and what was decided about that still counts. What an operator closed stays so."""

    FRESH = "fresh"
    PENDING = "pending"
    EITHER = "either"


class Binding(Struct, frozen=True, kw_only=True):
    """A waitpoint to wait at. A pending one brings its own key. A `lasting` one belongs to the
    execution and outlives the attempt. Pending ones with the same `slot` are over then."""

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


class Suspend(Struct, frozen=True, kw_only=True):
    """A request to suspend. `until` wakes it as well, whatever it waits for; `steps` are recorded
    by the change that suspends; `kid` names the key that signs what is fresh."""

    id: UUID
    waits: tuple[Wait, ...]
    reason: str = "waiting_for_signal"
    requested_by: str = "worker"
    continuation: str | None = None
    idempotency_key: str | None = None
    kid: str | None = None
    until: Millis | None = None
    steps: tuple[Step, ...] = ()


class NowSuspended(Struct, frozen=True):
    """The lease was given up. `waitpoints` in the order of the bindings."""

    suspension: UUID
    waitpoints: tuple[Waitpoint, ...]


class AlreadyMet(Struct, frozen=True):
    """What was to be waited for is here: the lease is kept, the worker goes on. `steps` are those
    that the waits have become, unknown to a repeat of the request."""

    suspension: UUID
    waitpoints: tuple[Waitpoint, ...]
    steps: tuple[Step, ...] = ()


class NotMet(Struct, frozen=True):
    """What is to be waited for is not here. `partly`: not among the signals that were looked at,
    but there are more."""

    partly: bool = False


def ask_to_suspend(
    snapshot: Snapshot | None, request: Suspend, *, few: bool = False
) -> Needs | None:
    """What must be remembered to decide the request: of each waitpoint all signals that were kept,
    or the first few."""
    if snapshot is None:
        return None
    bindings = [binding for wait in request.waits for binding in wait.bindings]
    pending = {p.id: p for p in (snapshot.life.waits or NO_WAITS).pending}
    key = _repeat_key(request)
    marks = [closed_key(binding.id) for binding in bindings if binding.use is WaitpointUse.EITHER]
    return Needs(
        execution=snapshot.execution.uuid,
        waitpoints=tuple(binding.id for binding in bindings),
        marks=tuple(marks if key is None else (key, *marks)),
        buffered=tuple(
            (b.id, pending[b.id].unwanted if b.id in pending else 0)
            for b in bindings
            if b.id in pending or b.use is WaitpointUse.EITHER
        ),
        few=few,
    )


def suspend(
    snapshot: Snapshot | None, owner: Owner, now: Millis, request: Suspend, memory: Loaded
) -> "Change[NowSuspended | AlreadyMet]":
    """Gives the lease up until an arm is satisfied, unless one is already."""
    snapshot = present(snapshot)
    known = _remembered(request, memory, now) or _repeated(snapshot, owner, request, memory)
    if known is not None:
        return unchanged(known)
    if owner.fence is None:
        raise FenceRequired("an execution is suspended by its owner only")
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    binder = _Binder(snapshot, lease, now, request, memory)
    arms = tuple(binder.arm(wait) for wait in request.waits)
    suspension = Suspension(
        id=request.id,
        attempt=lease.attempt,
        created_at=now,
        arms=arms,
        requested_by=request.requested_by,
        continuation=request.continuation,
        until=request.until,
    )
    made = _Made(snapshot, lease, now, request, binder)
    return made.decide(suspension, memory)


def go_on(
    snapshot: Snapshot | None,
    owner: Owner,
    now: Millis,
    request: Suspend,
    memory: Loaded,
    *,
    few: bool = False,
) -> "Change[AlreadyMet | NotMet]":
    """As `suspend` if the request is satisfied already; otherwise nothing changes. `memory` has
    all signals that were kept or the first few of each waitpoint."""
    last = _last_in_order(memory.signals) if few else None
    if last is not None:
        known = [heard for heard in memory.signals if heard.signal.number <= last]
        memory = Loaded(memory.waitpoints, memory.marks, known)
    change = suspend(snapshot, owner, now, request, memory)
    if isinstance(change.outcome, NowSuspended):
        return unchanged(NotMet(partly=last is not None))
    return cast("Change[AlreadyMet | NotMet]", change)


def _last_in_order(signals: list[ReceivedSignal]) -> int | None:
    """The number up to which none is missing among the first few; None when none is at all."""
    numbers: dict[UUID, list[int]] = {}
    for heard in signals:
        numbers.setdefault(heard.signal.waitpoint, []).append(heard.signal.number)
    return min((max(each) for each in numbers.values() if len(each) >= FEW_SIGNALS), default=None)


class _Binder:
    """Turns bindings into waitpoints: known pending ones, or new ones."""

    def __init__(
        self, snapshot: Snapshot, lease: Lease, now: Millis, request: Suspend, memory: Loaded
    ) -> None:
        self._execution = snapshot.execution.uuid
        self._rules = snapshot.execution.rules.suspension_policy or SuspensionPolicy()
        self._lease = lease
        self._now = now
        self._kid = request.kid
        self._memory = memory
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
            behaviour=wait.behaviour or Behaviour(self._rules.timeout_behavior),
            policy=wait.policy,
            step=wait.step,
        )

    def _is_closed(self, binding: Binding, wait: Wait) -> bool:
        """Whether an operator closed the waitpoint; a wait that is a step can do without."""
        reason = (
            closed_because(self._memory, binding.id) if binding.use is WaitpointUse.EITHER else None
        )
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
        waitpoint = self.fresh.get(binding.id) or self._memory.waitpoints.get(binding.id)
        if waitpoint is None:
            raise NotFound("waitpoint", binding.id)
        pending = self.pending.get(binding.id)
        if pending is None:
            if binding.id not in self.fresh:
                raise WaitpointNotPending(f"waitpoint {binding.id} is closed or in use")
            pending = Pending(waitpoint.id, waitpoint.key, slot=binding.slot)
        if pending.attempt is not None and pending.attempt != self._lease.attempt:
            raise InvalidWaitpoint(f"waitpoint {binding.id} belongs to another attempt")
        if pending.expires_at is not None and pending.expires_at <= self._now:
            raise WaitpointExpired(f"waitpoint {binding.id} ran out")
        self.bound.append(waitpoint)
        expires_at = timeout_at if pending.attempt is not None else pending.expires_at
        return replace(pending, expires_at=expires_at)

    def _bind_fresh(self, binding: Binding, timeout_at: Millis | None) -> Pending:
        if self._kid is None:
            raise NoSigningKey("seed a key before anything waits for signed signals")
        known = self._memory.waitpoints.get(binding.id)
        if binding.use is WaitpointUse.FRESH and (known is not None or binding.id in self.fresh):
            raise WaitpointExists(f"waitpoint {binding.id}")
        attempt = None if binding.lasting else self._lease.attempt
        waitpoint = known or Waitpoint(
            id=binding.id,
            execution=self._execution,
            key=binding.key,
            created_at=self._now,
            kid=self._kid,
            attempt=attempt,
            terms=binding.terms,
        )
        self.fresh[binding.id] = waitpoint
        self.bound.append(waitpoint)
        if binding.terms is not None and binding.slot is None:
            # What is to be approved has changed: what was asked before is over.
            self.outdated |= {p.id for p in self.pending.values() if p.key == binding.key}
        expires_at = None if binding.lasting else timeout_at
        return Pending(waitpoint.id, waitpoint.key, expires_at, attempt, slot=binding.slot)


class _Made:
    """The change a request becomes once its waitpoints are bound."""

    def __init__(
        self, snapshot: Snapshot, lease: Lease, now: Millis, request: Suspend, binder: _Binder
    ) -> None:
        self._snapshot = snapshot
        self._lease = lease
        self._now = now
        self._request = request
        self._binder = binder
        self._marks: dict[bytes, DedupRecord] = {}
        self._counted: list[tuple[int, UUID]] = []

    def decide(self, suspension: Suspension, memory: Loaded) -> "Change[NowSuspended | AlreadyMet]":
        if over := _closed(self._request, suspension, self._binder.closed):
            return self._go_on(suspension, over)
        bound = {bound.id: bound for arm in suspension.arms for bound in arm.bound}
        for heard in memory.signals:
            signal = heard.signal
            if signal.waitpoint not in bound or not bound[signal.waitpoint].wants(signal.number):
                continue
            suspension, satisfied = self._hear(suspension, heard)
            if satisfied:
                done = dict.fromkeys(satisfied, Waited.SIGNALLED)
                over = Wake(reason=RESUMED, done=done, closer=signal.id, signal=signal)
                return self._go_on(suspension, over)
        return self._park(suspension)

    def _hear(
        self, suspension: Suspension, heard: ReceivedSignal
    ) -> tuple[Suspension, tuple[int, ...]]:
        key = source_key(heard.signal)
        listened = listen(suspension, heard.signal, self._marks.get(key))
        self._marks |= {mark.key: mark for mark in listened.marks}
        if listened.counts:
            self._counted.append((heard.signal.number, suspension.id))
        return listened.suspension, listened.satisfied

    def _go_on(self, suspension: Suspension, over: Wake) -> "Change[NowSuspended | AlreadyMet]":
        """Something that was to be waited for is over: the lease is kept."""
        waits = close_suspension(self._waits(), suspension, self._now, over)
        done = steps_of(suspension, over)
        outcome = AlreadyMet(suspension.id, tuple(self._binder.bound), done)
        steps = (*self._request.steps, *done)
        life = replace(self._snapshot.life, waits=waits)
        after = self._snapshot.to(
            Active(self._lease), life=life, flags=self._snapshot.head.flags | Flags.WAITPOINTS
        )
        return self._change(outcome, after, steps)

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
        event = lease_event(
            snapshot,
            self._now,
            lease,
            EventKind.SUSPENDED,
            reason=request.reason,
            suspension=str(suspension.id),
        )
        outcome = NowSuspended(suspension.id, tuple(self._binder.bound))
        change = self._change(outcome, after, request.steps)
        return replace(change, events=(event,), attempts=closing_attempts(snapshot))

    def _change(
        self, outcome: NowSuspended | AlreadyMet, after: Snapshot, steps: tuple[Step, ...]
    ) -> "Change[NowSuspended | AlreadyMet]":
        key = _repeat_key(self._request)
        marks = list(self._marks.values())
        if key is not None:
            marks.append(_remember(key, outcome, self._request, self._now))
        return Change(
            outcome,
            self._snapshot,
            after,
            steps=steps,
            waitpoints=tuple(self._binder.fresh.values()),
            counted=tuple(self._counted),
            marks=tuple(marks),
        )

    def _waits(self) -> Waits:
        """What waits apart from this suspension: what it binds is pending no longer."""
        waits = self._snapshot.life.waits or NO_WAITS
        gone = {waitpoint.id for waitpoint in self._binder.bound} | self._binder.outdated
        return replace(waits, pending=tuple(p for p in waits.pending if p.id not in gone))


def _closed(request: Suspend, suspension: Suspension, closed: dict[UUID, str]) -> Wake | None:
    """The waits that can never be answered, since an operator closed what they wait at."""
    arms = enumerate(zip(request.waits, suspension.arms, strict=True))
    done = {
        number: Waited.CLOSED
        for number, (wait, arm) in arms
        if len(arm.bound) < len(wait.bindings) and is_over(arm)
    }
    return Wake(reason=CLOSED, done=done, note=next(iter(closed.values()))) if done else None


class _Outcome(Struct, frozen=True):
    """An outcome as it is remembered: without tokens, which are made anew from their key."""

    met: bool
    suspension: UUID
    waitpoints: tuple[Waitpoint, ...]


def _repeat_key(request: Suspend) -> bytes | None:
    return mark_key("suspend", request.idempotency_key) if request.idempotency_key else None


def _remember(
    key: bytes, outcome: NowSuspended | AlreadyMet, request: Suspend, now: Millis
) -> DedupRecord:
    moments = [wait.timeout_at for wait in request.waits if wait.timeout_at is not None]
    until = now + REPEAT_WINDOW
    if moments:
        until = min(until, max(now, min(moments)) + REPEAT_GRACE)
    met = isinstance(outcome, AlreadyMet)
    doc = msgspec.json.encode(_Outcome(met, outcome.suspension, outcome.waitpoints))
    return DedupRecord(key, Millis(until), doc)


def _remembered(request: Suspend, memory: Loaded, now: Millis) -> NowSuspended | AlreadyMet | None:
    """The outcome of an earlier call with the same key, before anything else is looked at."""
    key = _repeat_key(request)
    mark = None if key is None else memory.marks.get(key)
    if mark is None or not mark.stands(now):
        return None
    stored = msgspec.json.decode(mark.doc, type=_Outcome)
    made = AlreadyMet if stored.met else NowSuspended
    return made(stored.suspension, stored.waitpoints)


def _repeated(
    snapshot: Snapshot, owner: Owner, request: Suspend, memory: Loaded
) -> NowSuspended | AlreadyMet | None:
    """The outcome again for the very request that was decided before (a lost reply)."""
    parked = same_release(snapshot, owner.fence, _operation(request)) is not None
    if not parked and not _met(snapshot, owner, request):
        return None
    ids = [binding.id for wait in request.waits for binding in wait.bindings]
    known = tuple(memory.waitpoints[id] for id in ids if id in memory.waitpoints)
    return NowSuspended(request.id, known) if parked else AlreadyMet(request.id, known)


def _met(snapshot: Snapshot, owner: Owner, request: Suspend) -> bool:
    """Whether this request was satisfied at once, and its owner went on with its lease."""
    last = (snapshot.life.waits or NO_WAITS).last
    if not isinstance(snapshot.state, Active) or last is None or last.id != request.id:
        return False
    return owner.fence == fence_of(snapshot, snapshot.state.lease)


def _operation(request: Suspend) -> str:
    return f"suspend:{request.id}"
