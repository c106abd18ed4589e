"""Suspending: an owner gives its lease up until the outside world has answered.

A request names what to wait for in one or more arms; any of them wakes the execution. Signals that
arrived before count as if they came just after; if they satisfy an arm the lease is kept.
"""

from enum import StrEnum
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.attempt import pause_attempt, released, same_release
from flowfabric.core.change import Change, unchanged
from flowfabric.core.check import check_kind_of, check_whole
from flowfabric.core.condition import (
    Condition,
    OperatorOnly,
    Single,
    TimeoutOnly,
    blank,
    check_condition,
    keys_of,
    write_condition,
)
from flowfabric.core.errors import (
    FenceRequired,
    Invalid,
    InvalidWaitpoint,
    NoSigningKey,
    NotFound,
    WaitpointExists,
    WaitpointExpired,
    WaitpointNotPending,
)
from flowfabric.core.event import EventKind
from flowfabric.core.execution import Active, Flags, Lease, Snapshot, Suspended
from flowfabric.core.history import closing_attempts
from flowfabric.core.lease import Owner, enter, fence_of, lease_event, present
from flowfabric.core.listening import listen, mark_key, source_key
from flowfabric.core.step import Step
from flowfabric.core.text import MAX_KEY, MAX_NAME, MAX_REASON, check_text
from flowfabric.core.time import MAX_SPAN, Millis, check_moment
from flowfabric.core.waits import (
    NO_WAITS,
    Arm,
    Ask,
    Behaviour,
    Heard,
    Mark,
    Memory,
    Pending,
    ResumePolicy,
    Signal,
    StepRef,
    Suspension,
    Terms,
    Waited,
    Waitpoint,
    Waits,
)
from flowfabric.core.waking import RESUMED, Wake, close_suspension, steps_of

PAST_TOLERANCE = Millis(600_000)
REPEAT_GRACE = Millis(60_000)
REPEAT_WINDOW = Millis(7 * 86_400_000)
REQUESTERS = frozenset({"worker", "operator", "policy", "system_timeout_policy"})
MAX_BINDINGS = 1_000


class Use(StrEnum):
    """FRESH is a new waitpoint, PENDING one that was made before, EITHER whichever it is. Only
    EITHER opens a closed one again: a handler asks for the very same thing (the id is made of what
    it asks for), and what was decided about that still counts."""

    FRESH = "fresh"
    PENDING = "pending"
    EITHER = "either"


class Binding(Struct, frozen=True, kw_only=True):
    """A waitpoint to wait at. A pending one brings its own key. A `lasting` one belongs to the
    execution and outlives the attempt."""

    id: UUID
    key: str = ""
    use: Use = Use.FRESH
    terms: Terms | None = None
    lasting: bool = False

    @classmethod
    def fresh(cls, id: UUID) -> "Binding":
        return cls(id=id, key=f"wpk:{id}")


class Wait(Struct, frozen=True, kw_only=True):
    """One arm of a request; the first binding is the primary one."""

    condition: Condition
    bindings: tuple[Binding, ...]
    timeout_at: Millis | None = None
    behaviour: Behaviour = Behaviour.FAIL
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
    """What was to be waited for is here: the lease is kept, the worker goes on."""

    suspension: UUID
    waitpoints: tuple[Waitpoint, ...]


def check_suspend(request: Suspend, now: Millis) -> Suspend:
    """The request if it makes sense; refused before the store is touched otherwise."""
    if not request.waits:
        raise Invalid("waitpoints_empty")
    check_kind_of(request.id, UUID, "suspension id")
    if request.requested_by not in REQUESTERS:
        raise Invalid(f"requested_by is one of {', '.join(sorted(REQUESTERS))}")
    check_text(request.reason, "reason", limit=MAX_REASON)
    if request.continuation is not None:
        check_text(request.continuation, "continuation", limit=MAX_REASON)
    if request.idempotency_key is not None:
        check_text(request.idempotency_key, "idempotency key", limit=MAX_KEY)
    for wait in request.waits:
        _check_wait(check_kind_of(wait, Wait, "wait"), now)
    if request.until is not None:
        check_moment(request.until, "until")
    for step in request.steps:
        check_kind_of(step, Step, "step")
    return request


def _check_wait(wait: Wait, now: Millis) -> None:
    if not wait.bindings:
        raise Invalid("waitpoints_empty")
    if len(wait.bindings) > MAX_BINDINGS:
        raise Invalid(f"{len(wait.bindings)} waitpoints, the limit is {MAX_BINDINGS}")
    primary = check_kind_of(wait.bindings[0], Binding, "waitpoint")
    match wait.condition:
        case Single(waitpoint=key) if primary.use is Use.FRESH and key != primary.key:
            raise Invalid(f"waitpoint_key_mismatch: {key!r} is not {primary.key!r}")
        case _:
            pass
    _check_bindings(wait.bindings)
    check_condition(wait.condition)
    if primary.use is not Use.PENDING:
        _check_references(wait.condition, [binding.key for binding in wait.bindings])
    if isinstance(wait.condition, TimeoutOnly) and wait.timeout_at is None:
        raise Invalid("timeout_only_without_deadline")
    if wait.timeout_at is not None:
        check_moment(wait.timeout_at, "timeout_at")
        if wait.timeout_at + PAST_TOLERANCE < now:
            raise Invalid("timeout_at_in_past")
    _check_ending(wait)


def _check_ending(wait: Wait) -> None:
    """Whether what happens after the wait can be stored."""
    check_kind_of(wait.behaviour, Behaviour, "behaviour")
    delay = check_kind_of(wait.policy, ResumePolicy, "resume policy").resume_delay
    if delay is not None:
        check_whole(delay, "resume_delay", 0, MAX_SPAN)
    if wait.step is not None:
        check_kind_of(wait.step, StepRef, "step")


def _check_bindings(bindings: tuple[Binding, ...]) -> None:
    for position, binding in enumerate(bindings):
        check_kind_of(binding, Binding, "waitpoint")
        if binding.use is Use.PENDING:
            if position:
                raise Invalid(f"additional_waitpoint_binding_must_be_fresh: waitpoints[{position}]")
            continue
        check_text(binding.key, "waitpoint key", limit=MAX_NAME)
        if not binding.key:
            if position:
                raise Invalid(f"additional_waitpoint_binding_empty_key: waitpoints[{position}]")
            raise Invalid("waitpoint_key_empty")


def _check_references(condition: Condition, keys: list[str]) -> None:
    """Every key the condition names has a waitpoint, and every waitpoint is named by it."""
    named = keys_of(condition)
    for key in named:
        if key not in keys:
            raise Invalid(f"referenced_waitpoint_key_missing_binding: {key}")
    if isinstance(condition, OperatorOnly | TimeoutOnly) and len(keys) == 1:
        return
    for key in keys:
        if key not in named:
            raise Invalid(f"extra_binding_not_referenced_by_condition: {key}")
    if len(set(keys)) != len(keys):
        raise Invalid("duplicate_waitpoint_key")


def ask_to_suspend(snapshot: Snapshot | None, request: Suspend) -> Ask | None:
    """What must be remembered to decide the request."""
    if snapshot is None:
        return None
    bindings = [binding for wait in request.waits for binding in wait.bindings]
    pending = {p.id: p for p in (snapshot.life.waits or NO_WAITS).pending}
    key = _repeat_key(request)
    return Ask(
        execution=snapshot.execution.uuid,
        waitpoints=tuple(binding.id for binding in bindings),
        marks=() if key is None else (key,),
        buffered=tuple(
            (b.id, pending[b.id].taken if b.id in pending else 0)
            for b in bindings
            if b.id in pending or b.use is Use.EITHER
        ),
    )


def suspend(
    snapshot: Snapshot | None, owner: Owner, now: Millis, request: Suspend, memory: Memory
) -> "Change[NowSuspended | AlreadyMet]":
    """Gives the lease up until an arm is satisfied, unless one is already."""
    snapshot = present(snapshot)
    known = _remembered(request, memory, now) or _repeated(snapshot, owner, request, memory)
    if known is not None:
        return unchanged(known)
    if owner.fence is None:
        raise FenceRequired("an execution is suspended by its owner only")
    lease = enter(snapshot, owner, now)
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


class _Binder:
    """Turns bindings into waitpoints: known pending ones, or new ones."""

    def __init__(
        self, snapshot: Snapshot, lease: Lease, now: Millis, request: Suspend, memory: Memory
    ) -> None:
        self._execution = snapshot.execution.uuid
        self._lease = lease
        self._now = now
        self._kid = request.kid
        self._memory = memory
        self.pending = {p.id: p for p in (snapshot.life.waits or NO_WAITS).pending}
        self.bound: list[Waitpoint] = []
        self.fresh: dict[UUID, Waitpoint] = {}
        self.outdated: set[UUID] = set()

    def arm(self, wait: Wait) -> Arm:
        bound = tuple(self._bind(binding, wait.timeout_at) for binding in wait.bindings)
        if wait.bindings[0].use is Use.PENDING:
            _check_references(wait.condition, [item.key for item in bound])
        return Arm(
            condition=write_condition(wait.condition),
            bound=bound,
            tallies=blank(wait.condition),
            timeout_at=wait.timeout_at,
            behaviour=wait.behaviour,
            policy=wait.policy,
            step=wait.step,
        )

    def _bind(self, binding: Binding, timeout_at: Millis | None) -> Pending:
        known = binding.id in self.pending or binding.id in self.fresh
        if binding.use is Use.PENDING or (binding.use is Use.EITHER and known):
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
            pending = Pending(waitpoint.id, waitpoint.key)
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
        if binding.use is Use.FRESH and (known is not None or binding.id in self.fresh):
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
        if binding.terms is not None:
            # What is to be approved has changed: what was asked before is over.
            self.outdated |= {p.id for p in self.pending.values() if p.key == binding.key}
        expires_at = None if binding.lasting else timeout_at
        return Pending(waitpoint.id, waitpoint.key, expires_at, attempt)


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
        self._marks: dict[bytes, Mark] = {}
        self._counted: list[tuple[int, UUID]] = []

    def decide(self, suspension: Suspension, memory: Memory) -> "Change[NowSuspended | AlreadyMet]":
        wanted = {bound.id: bound.taken for arm in suspension.arms for bound in arm.bound}
        for heard in memory.signals:
            if heard.signal.number <= wanted.get(heard.signal.waitpoint, heard.signal.number):
                continue
            suspension, satisfied = self._hear(suspension, heard)
            if satisfied:
                return self._go_on(suspension, satisfied, heard.signal)
        return self._park(suspension)

    def _hear(self, suspension: Suspension, heard: Heard) -> tuple[Suspension, tuple[int, ...]]:
        key = source_key(heard.signal)
        listened = listen(suspension, heard.signal, self._marks.get(key))
        self._marks |= {mark.key: mark for mark in listened.marks}
        if listened.counts:
            self._counted.append((heard.signal.number, suspension.id))
        return listened.suspension, listened.satisfied

    def _go_on(
        self, suspension: Suspension, satisfied: tuple[int, ...], closer: Signal
    ) -> "Change[NowSuspended | AlreadyMet]":
        done = dict.fromkeys(satisfied, Waited.SIGNALLED)
        over = Wake(reason=RESUMED, done=done, closer=closer.id, signal=closer)
        waits = close_suspension(self._waits(), suspension, self._now, over)
        outcome = AlreadyMet(suspension.id, tuple(self._binder.bound))
        steps = (*self._request.steps, *steps_of(suspension, over))
        life = replace(self._snapshot.life, waits=waits)
        after = self._snapshot.to(
            Active(self._lease), life=life, flags=self._snapshot.head.flags | Flags.WAITPOINTS
        )
        return self._change(outcome, after, steps)

    def _park(self, suspension: Suspension) -> "Change[NowSuspended | AlreadyMet]":
        snapshot, request, lease = self._snapshot, self._request, self._lease
        life, next = pause_attempt(snapshot, lease, self._now, "suspended")
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
            lease,
            EventKind.SUSPENDED,
            self._now,
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


class _Outcome(Struct, frozen=True):
    """An outcome as it is remembered: without tokens, which are made anew from their key."""

    met: bool
    suspension: UUID
    waitpoints: tuple[Waitpoint, ...]


def _repeat_key(request: Suspend) -> bytes | None:
    return mark_key("suspend", request.idempotency_key) if request.idempotency_key else None


def _remember(
    key: bytes, outcome: NowSuspended | AlreadyMet, request: Suspend, now: Millis
) -> Mark:
    moments = [wait.timeout_at for wait in request.waits if wait.timeout_at is not None]
    until = now + REPEAT_WINDOW
    if moments:
        until = min(until, max(now, min(moments)) + REPEAT_GRACE)
    met = isinstance(outcome, AlreadyMet)
    doc = msgspec.json.encode(_Outcome(met, outcome.suspension, outcome.waitpoints))
    return Mark(key, Millis(until), doc)


def _remembered(request: Suspend, memory: Memory, now: Millis) -> NowSuspended | AlreadyMet | None:
    """The outcome of an earlier call with the same key, before anything else is looked at."""
    key = _repeat_key(request)
    mark = None if key is None else memory.marks.get(key)
    if mark is None or not mark.stands(now):
        return None
    stored = msgspec.json.decode(mark.doc, type=_Outcome)
    made = AlreadyMet if stored.met else NowSuspended
    return made(stored.suspension, stored.waitpoints)


def _repeated(
    snapshot: Snapshot, owner: Owner, request: Suspend, memory: Memory
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
