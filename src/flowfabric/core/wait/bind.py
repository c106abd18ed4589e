"""Binding the waits of a request to waitpoints: known ones, or new ones."""

from collections.abc import Sequence
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    InvalidWaitpoint,
    WaitpointExists,
    WaitpointExpired,
    WaitpointNotFound,
    WaitpointNotPending,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.policy import SuspensionPolicy
from flowfabric.core.wait.condition.check import check_references
from flowfabric.core.wait.condition.codec import write_condition
from flowfabric.core.wait.condition.match import blank
from flowfabric.core.wait.model import Arm, Loaded, Pending, Waited, Waitpoint
from flowfabric.core.wait.request import Binding, Suspend, Wait, WaitpointUse
from flowfabric.core.wait.resume import CLOSED, SuspensionEnd
from flowfabric.core.wait.waitpoint import closed_because, is_over, new_waitpoint


class BoundWaits(Struct, frozen=True):
    """The waits of a request as arms of a suspension.

    `waitpoints` are those of all bindings in their order, `fresh` the new ones among them. `gone`
    are no longer pending: an arm binds them, or another waitpoint has taken their place. `over`
    ends the waits that can never be answered, since an operator closed what they wait at;
    `undecided` are the approvals among these waitpoints.
    """

    arms: tuple[Arm, ...]
    waitpoints: tuple[Waitpoint, ...]
    fresh: tuple[Waitpoint, ...]
    gone: frozenset[UUID]
    over: SuspensionEnd | None
    undecided: frozenset[UUID] = frozenset()


def bind(
    snapshot: Snapshot, now: Millis, loaded: Loaded, attempt: int, request: Suspend
) -> BoundWaits:
    """Binds every wait, or raises an error that names the first waitpoint that cannot be bound."""
    binder = _Binder(snapshot, now, loaded, attempt, request.kid)
    arms = [binder.arm(wait) for wait in request.waits]
    over = _end_by_closing(request.waits, arms, binder.closed)
    ended = [request.waits[number] for number in over.done] if over is not None else []
    approvals = (b.id for wait in ended for b in wait.bindings if b.terms is not None)
    return BoundWaits(
        tuple(arms),
        tuple(binder.bound),
        tuple(binder.fresh),
        frozenset(binder.outdated.union(waitpoint.id for waitpoint in binder.bound)),
        over,
        frozenset(id for id in approvals if id in binder.closed),
    )


class _Binder:
    """Binds one wait after the other: they may share waitpoints."""

    def __init__(
        self, snapshot: Snapshot, now: Millis, loaded: Loaded, attempt: int, kid: str | None
    ) -> None:
        self._snapshot = snapshot
        self._now = now
        self._loaded = loaded
        self._attempt = attempt
        self._kid = kid
        self._rows = dict(loaded.waitpoints)
        self._pending = {p.id: p for p in snapshot.waits.pending}
        self.bound: list[Waitpoint] = []
        self.fresh: list[Waitpoint] = []
        self.outdated: set[UUID] = set()
        self.closed: dict[UUID, str] = {}

    def arm(self, wait: Wait) -> Arm:
        rules = self._snapshot.execution.rules.suspension_policy or SuspensionPolicy()
        left = [binding for binding in wait.bindings if not self._is_closed(binding, wait)]
        timeout_at, default = wait.timeout_at, rules.default_timeout_ms
        if timeout_at is None and default is not None:
            timeout_at = Millis(self._now + default)
        bound = tuple([self._bind(binding, timeout_at) for binding in left])
        if wait.bindings[0].use is WaitpointUse.PENDING:
            check_references(wait.condition, [item.key for item in bound])
        return Arm(
            condition=write_condition(wait.condition),
            bound=bound,
            tallies=blank(wait.condition),
            timeout_at=timeout_at,
            behaviour=wait.behaviour or rules.timeout_behavior,
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
            rivals = (p for p in self._pending.values() if p.slot == binding.slot)
            self.outdated |= {p.id for p in rivals if p.id != binding.id}
        pending = self._find(binding.id) if self._is_known(binding) else self._open(binding)
        self.bound.append(self._rows[binding.id])
        expires_at = pending.expires_at if pending.attempt is None else timeout_at
        return replace(pending, expires_at=expires_at)

    def _is_known(self, binding: Binding) -> bool:
        """Whether the waitpoint was opened before, by the request itself as well."""
        either = binding.use is WaitpointUse.EITHER
        return binding.use is WaitpointUse.PENDING or (either and binding.id in self._pending)

    def _find(self, id: UUID) -> Pending:
        """The pending waitpoint of that id, if this attempt may bind it."""
        if id not in self._rows:
            if id in self._loaded.taken:
                raise InvalidWaitpoint(f"waitpoint {id} belongs to another run")
            raise WaitpointNotFound("waitpoint", id)
        pending = self._pending.get(id)
        if pending is None:
            raise WaitpointNotPending(f"waitpoint {id} is closed or in use")
        if pending.attempt is not None and pending.attempt != self._attempt:
            raise InvalidWaitpoint(f"waitpoint {id} belongs to another attempt")
        if pending.has_expired(self._now):
            raise WaitpointExpired(f"waitpoint {id} has expired")
        return pending

    def _open(self, binding: Binding) -> Pending:
        """A new waitpoint, or a known one that is opened again."""
        id, attempt = binding.id, None if binding.lasting else self._attempt
        if binding.use is WaitpointUse.FRESH or id not in self._rows:
            self._make(binding, attempt)
        if binding.terms is not None and binding.slot is None:
            # What is to be approved has changed: the approval that was asked for before is over.
            self.outdated |= {p.id for p in self._pending.values() if p.key == binding.key}
        pending = Pending(id, self._rows[id].key, attempt=attempt, slot=binding.slot)
        self._pending[id] = pending
        return pending

    def _make(self, binding: Binding, attempt: int | None) -> None:
        id = binding.id
        new = new_waitpoint(
            self._snapshot, self._now, id, binding.key, self._kid, attempt, binding.terms
        )
        if id in self._rows:
            raise WaitpointExists(f"waitpoint {id}")
        if id in self._loaded.taken:
            raise WaitpointExists(f"waitpoint {id} belongs to another run")
        self._rows[id] = new
        self.fresh.append(new)


def _end_by_closing(
    waits: Sequence[Wait], arms: Sequence[Arm], closed: dict[UUID, str]
) -> SuspensionEnd | None:
    pairs = enumerate(zip(waits, arms, strict=True))
    done = {
        number: Waited.CLOSED
        for number, (wait, arm) in pairs
        if len(arm.bound) < len(wait.bindings) and is_over(arm)
    }
    note = next(iter(closed.values()), "")
    return SuspensionEnd(reason=CLOSED, done=done, note=note) if done else None
