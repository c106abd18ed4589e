"""Waiting for the outside world inside a handler: signals, approvals, callbacks.

Every wait is a step. The change that satisfies it or times it out also records it, so the answer
survives the death of the worker that resumes the run. Meanwhile the run needs no worker.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar, overload
from uuid import UUID

import msgspec
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from flowfabric.core.base.errors import ApprovalOutdated, Invalid
from flowfabric.core.base.numbers import check_names, check_whole
from flowfabric.core.base.text import check_signal_name
from flowfabric.core.base.time import Millis, parse_span, to_datetime
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.step import Recorded
from flowfabric.core.execution.step_order import REPLACED
from flowfabric.core.wait.channel import channel_id, waitpoint_id
from flowfabric.core.wait.condition.model import (
    AnyTrue,
    ByName,
    Condition,
    Count,
    CountKind,
    Single,
    all_waitpoints,
    any_waitpoint,
)
from flowfabric.core.wait.model import (
    Behaviour,
    ResumePolicy,
    Signal,
    Terms,
    Waited,
    Waitpoint,
)
from flowfabric.core.wait.request import Binding, Wait, WaitpointUse
from flowfabric.core.wait.terms import MAX_APPROVERS, check_terms
from flowfabric.core.wait.token import Token
from flowfabric.worker.api.approval import (
    APPROVED,
    DECISIONS,
    REJECTED,
    Verdict,
    about_digest,
    about_text,
    decisions_of,
    how_ended,
)
from flowfabric.worker.api.options import Span
from flowfabric.worker.codec import decode
from flowfabric.worker.errors import WaitClosed, WaitTimeout
from flowfabric.worker.run.branches import StepPlace
from flowfabric.worker.run.race import racing
from flowfabric.worker.run.scope import CallScope
from flowfabric.worker.run.steps import perform

T = TypeVar("T")
U = TypeVar("U")

_LASTING = ResumePolicy(close_waitpoint_on_resume=False)


class Received(Struct, frozen=True):
    """A signal as a handler sees it."""

    name: str
    value: Any
    source: str
    at: datetime


class Callback(Generic[T]):
    """One answer from outside. Hand `id` and `token.reveal()` to the service or person that will
    answer, then `await callback.result(...)`."""

    def __init__(self, waits: "WaitsApi", id: str, token: Token, waitpoint: UUID, key: str) -> None:
        self.id = id
        self.token = token
        self._waits = waits
        self._waitpoint = waitpoint
        self._key = key
        self._place: StepPlace | None = None

    def __repr__(self) -> str:
        return f"Callback({self.id}, {self.token})"

    @overload
    def result(self, *, timeout: Span | None = None) -> Coroutine[Any, Any, T]: ...
    @overload
    def result(
        self, as_type: type[U], *, timeout: Span | None = None
    ) -> Coroutine[Any, Any, U]: ...
    def result(
        self, as_type: Any = Any, *, timeout: Span | None = None
    ) -> Coroutine[Any, Any, Any]:
        """The payload of the answer, without a worker slot until it is here; the same whenever it
        is asked for. Afterwards no further answer is accepted, even after a timeout."""
        binding = _binding(self._waitpoint, self._key)
        wanted = _Wanted(Single(self._key), (binding,), "waiting_for_callback", _span(timeout))
        self._place = self._place or self._waits._place(f"callback:{self._key}")
        return self._waits._one(self._place, wanted, as_type)


class Approval:
    """An approval that was asked for: hand tokens out, then `await approval.verdict(...)`."""

    def __init__(self, waits: "WaitsApi", asked: "_AskedApproval") -> None:
        self._waits = waits
        self._asked = asked
        self._place: StepPlace | None = None
        self.id = f"{waits._claim.uuid}/{asked.id}"

    def __repr__(self) -> str:
        return f"Approval({self._asked.name!r}, {self.id})"

    async def token(self, approver: str | None = None, *, expires: Span | None = None) -> Token:
        """A token for one approver and one use. An approval that names no approvers also has one
        for anyone, whose holders all count as one. The same whenever the handler runs again:
        `expires` is counted from the first time this very call was made, which is recorded as a
        step."""
        waits, named = self._waits, self._asked.terms.approvers
        if named and approver not in named:
            if approver is None:
                raise Invalid(
                    "a token is for one of the approvers: give the name of one of the approvers"
                )
            shown = repr(str(approver)[:80])
            raise Invalid(f"a token is for one of the approvers, which {shown} is not")
        span = None if expires is None else parse_span(expires, "expires")
        expires_at = None if span is None else Millis(await self._asked_at() + span)
        return await waits._token(self._asked.id, approver=approver, expires_at=expires_at)

    async def _asked_at(self) -> int:
        """Now, or when this was first asked for."""
        scope = self._waits._scope

        async def now() -> int:
            return scope.engine.now()

        place = scope.branches.place(f"token-for:{self._asked.name}")
        return int(await perform(scope.journal, place, now, int))

    def verdict(self, *, timeout: Span | None = None) -> Coroutine[Any, Any, Verdict]:
        """What was decided, without a worker slot until then; the same whenever it is asked
        for."""
        self._place = self._place or self._waits._place(f"approval:{self._asked.name}")
        return self._waits._verdict(self._place, self._asked, _span(timeout))


class _Wanted(Struct, frozen=True):
    """What a call waits for, and for how long."""

    condition: Condition
    bindings: tuple[Binding, ...]
    reason: str
    timeout: Millis | None
    lasting: bool = False


class _AskedApproval(Struct, frozen=True):
    """An approval as it was asked for: on which terms, and at which waitpoint. Another thing to
    approve, or others to approve it, is another waitpoint in the same slot: what was decided there
    does not count."""

    name: str
    of: int
    terms: Terms
    id: UUID
    slot: UUID

    @property
    def condition(self) -> Condition:
        """Enough approvals, or so many refusals that there cannot be enough any more: with 2 of 3
        approvers the second refusal decides."""
        approvers = len(self.terms.approvers)
        against = approvers - self.of + 1 if approvers else 1
        return AnyTrue(
            (
                Count(self.of, CountKind.SOURCES, (self.name,), ByName(APPROVED)),
                Count(against, CountKind.SOURCES, (self.name,), ByName(REJECTED)),
            )
        )


class WaitsApi:
    """The part of a context that waits."""

    def __init__(self, scope: CallScope) -> None:
        self._scope = scope
        self._engine = scope.engine
        self._claim = scope.claim
        self._received = scope.received
        self._made: dict[UUID, Waitpoint] = {}

    @overload
    def wait_for_signal(
        self, name: str, *, timeout: Span | None = None
    ) -> Coroutine[Any, Any, Any]: ...
    @overload
    def wait_for_signal(
        self, name: str, as_type: type[T], *, timeout: Span | None = None
    ) -> Coroutine[Any, Any, T]: ...
    def wait_for_signal(
        self, name: str, as_type: Any = Any, *, timeout: Span | None = None
    ) -> Coroutine[Any, Any, Any]:
        """The payload of the next signal of that name, in the order they were sent; one that was
        sent before this call is not lost. Raises WaitTimeout when none came in time, and
        WaitClosed when an operator closed it."""
        wanted = self._channels((name,), Single(name), timeout)
        return self._one(self._place(f"signal:{name}"), wanted, as_type)

    def wait_for_any(
        self, *names: str, timeout: Span | None = None
    ) -> Coroutine[Any, Any, Received]:
        """The first signal of any of these names. Those of the others are kept for later."""
        wanted = self._channels(names, any_waitpoint(*names), timeout)
        return self._first(self._place(f"any:{','.join(names)[:150]}"), wanted)

    def wait_for_all(
        self, *names: str, timeout: Span | None = None
    ) -> Coroutine[Any, Any, dict[str, Any]]:
        """One signal of each of these names: their payloads by name."""
        wanted = self._channels(names, all_waitpoints(*names), timeout)
        return self._every(self._place(f"all:{','.join(names)[:150]}"), wanted)

    def approval(
        self,
        name: str,
        *,
        of: int = 1,
        approvers: Sequence[str] = (),
        about: object = None,
        timeout: Span | None = None,
    ) -> Coroutine[Any, Any, Verdict]:
        """Waits until `of` distinct approvers have approved, or so many have refused that this
        cannot be any more (without a list of approvers: until the first one refuses).

        `about` is the exact thing to be approved: what is approved is bound to it. If the handler
        asks about something else, or other approvers, when it runs again, a new approval takes the
        place of the old one; if it was decided about something else, ApprovalOutdated is raised.
        """
        terms = approval_terms(name, of, approvers, about)
        place = self._place(f"approval:{name}")
        return self._verdict(
            place, _asked(self._claim.snapshot, place, name, of, terms), _span(timeout)
        )

    def request_approval(
        self,
        name: str,
        *,
        of: int = 1,
        approvers: Sequence[str] = (),
        about: object = None,
    ) -> Coroutine[Any, Any, Approval]:
        """The same in two parts: asks first, so that tokens can be handed to the approvers, and
        waits when `verdict()` is awaited."""
        terms = approval_terms(name, of, approvers, about)
        place = self._place(f"request:{name}")
        return self._request(place, _asked(self._claim.snapshot, place, name, of, terms))

    def callback(self, name: str = "callback") -> Coroutine[Any, Any, Callback[Any]]:
        """An id and a token to hand out, for one answer from outside that is awaited later."""
        if not check_signal_name(name, "callback name"):
            raise Invalid("a callback needs a name")
        return self._callback(self._place(f"callback-for:{name}"), name)

    async def wait_at(self, place: StepPlace, name: str, timeout: Span | None) -> None:
        """Waits for a signal of this name; the wait is recorded at `place`."""
        await self._one(place, self._channels((name,), Single(name), timeout), Any)

    # -- how

    def _place(self, name: str) -> StepPlace:
        return self._scope.branches.place(name)

    def _channels(
        self, names: tuple[str, ...], condition: Condition, timeout: Span | None
    ) -> _Wanted:
        wanted = check_names(names, "signal names")
        if not wanted:
            raise Invalid("wait for at least one signal")
        for name in wanted:
            if not check_signal_name(name):
                raise Invalid("a signal needs a name")
        if len(set(wanted)) != len(wanted):
            raise Invalid("a signal is named twice")
        snapshot = self._claim.snapshot
        bindings = tuple(_binding(channel_id(snapshot, name), name) for name in names)
        return _Wanted(condition, bindings, "waiting_for_signal", _span(timeout), lasting=True)

    async def _wait(self, place: StepPlace, wanted: _Wanted) -> Recorded:
        """How the wait ended; while it goes on, nothing returns."""
        if not wanted.lasting:
            _begin(*(binding.id for binding in wanted.bindings))
        record, limit = await self._scope.journal.recorded_wait(place)
        if record is not None:
            return record
        timeout = wanted.timeout
        wait = Wait(
            condition=wanted.condition,
            bindings=wanted.bindings,
            timeout_at=None if timeout is None else Millis(self._engine.now() + timeout),
            behaviour=None if timeout is None else Behaviour.AUTO_RESUME,
            policy=_LASTING if wanted.lasting else ResumePolicy(),
        )
        return await self._scope.parking.wait(place, wait, wanted.reason, limit)

    async def _signals(
        self, record: Recorded, waitpoints: set[UUID], keys: set[str]
    ) -> list[Signal]:
        """The signals that counted for a wait that is over, in the order they came; none of a
        waitpoint that is not waited at now, such as the approval of something else."""
        if record.carried is not None:  # its waitpoints are those of another run or generation
            return record.carried.received_for(keys)
        if record.signal is not None:
            found = [record.signal]
        elif record.suspension is None:
            return []
        else:
            found = record.received_of(await self._signals_of(record.suspension))
        return [signal for signal in found if signal.waitpoint in waitpoints]

    async def _signals_of(self, suspension: UUID) -> list[Signal]:
        if suspension not in self._received:
            with self._scope.branches.under_way():
                self._received[suspension] = await self._scope.until_available(
                    lambda: self._engine.suspensions.signals_of(self._claim.uuid, suspension)
                )
        return self._received[suspension]

    async def _answer(self, place: StepPlace, wanted: _Wanted) -> tuple[Recorded, list[Signal]]:
        """How a wait ended, and the signals that did it, none if an operator did; raises if none
        came."""
        record = await self._wait(place, wanted)
        if record.waited == Waited.TIMED_OUT:
            raise WaitTimeout(f"nothing came in time for {place}")
        if record.waited == Waited.CLOSED:
            raise WaitClosed(
                f"an operator closed what {place} waits for: {_closed_because(record)}"
            )
        if record.waited != Waited.SIGNALLED:
            return record, []
        bindings = wanted.bindings
        waitpoints, keys = {each.id for each in bindings}, {each.key for each in bindings}
        return record, await self._signals(record, waitpoints, keys)

    async def _one(self, place: StepPlace, wanted: _Wanted, as_type: Any) -> Any:
        _, signals = await self._answer(place, wanted)
        if not signals:
            return None
        return decode(signals[-1].payload or b"null", as_type, f"what came for {place}")

    async def _first(self, place: StepPlace, wanted: _Wanted) -> Received:
        record, signals = await self._answer(place, wanted)
        if not signals:
            return Received("", None, "", to_datetime(record.ended_at or self._engine.now()))
        return _received(signals[-1])

    async def _every(self, place: StepPlace, wanted: _Wanted) -> dict[str, Any]:
        _, signals = await self._answer(place, wanted)
        return {signal.key: _received(signal).value for signal in signals}

    async def _verdict(
        self, place: StepPlace, asked: _AskedApproval, timeout: Millis | None
    ) -> Verdict:
        binding = replace(_binding(asked.id, asked.name), terms=asked.terms, slot=asked.slot)
        wanted = _Wanted(asked.condition, (binding,), "waiting_for_approval", timeout)
        record = await self._wait(place, wanted)
        decided = record.signal.waitpoint if record.signal is not None else record.waitpoint
        if decided is not None and decided != asked.id:
            await self._check_about(record, asked, decided)
        signals = await self._signals(record, {decided or asked.id}, {asked.name})
        if record.waited == Waited.SIGNALLED and not signals:
            raise _outdated(asked)
        return Verdict(
            asked.name,
            how_ended(record, signals),
            decisions_of(signals),
            asked.terms.about,
            _closed_because(record),
        )

    async def _check_about(self, record: Recorded, asked: _AskedApproval, waitpoint: UUID) -> None:
        """What was decided by others, or by fewer of them, stays decided; what was decided about
        something else does not."""
        if record.carried is not None:
            same = record.carried.about == asked.terms.about
        else:
            with self._scope.branches.under_way():
                terms = await self._scope.until_available(
                    lambda: self._engine.suspensions.terms(self._claim.uuid, waitpoint)
                )
            same = terms is not None and terms.about == asked.terms.about
        if record.waited == Waited.SIGNALLED and not same:
            raise _outdated(asked)

    async def _request(self, place: StepPlace, asked: _AskedApproval) -> Approval:
        create = partial(self._create, asked.id, asked.name, terms=asked.terms, slot=asked.slot)
        _begin(asked.id)
        if UUID(await perform(self._scope.journal, place, create, str)) != asked.id:
            # The recorded waitpoint is of another approval: this one takes its place.
            with self._scope.branches.under_way():
                await create()
        return Approval(self, asked)

    async def _callback(self, place: StepPlace, name: str) -> Callback[Any]:
        key = name if place.occurrence == 0 else f"{name}#{place.occurrence}"
        own = _derived(self._claim.snapshot, place, "callback")
        create = partial(self._create, own, key)
        _begin(own)
        id: UUID = await perform(self._scope.journal, place, create, UUID)
        if id != own:  # made by another run, or before the run was replayed from a chosen step
            use = partial(_open_or_new, self._claim.snapshot, id, create)
            id = await perform(self._scope.journal, place.again(0, REPLACED), use, UUID)
            _begin(id)
        address = f"{to_builtins(self._claim.uuid)}/{to_builtins(id)}"
        return Callback(self, address, await self._token(id), id, key)

    async def _create(
        self, id: UUID, key: str, terms: Terms | None = None, slot: UUID | None = None
    ) -> str:
        scope = self._scope
        made = await scope.until_available(
            lambda: self._engine.suspensions.make_waitpoint(
                scope.lease.claim,
                key,
                id=id,
                terms=terms,
                lasting=True,
                slot=slot,
            )
        )
        self._made[id] = made.waitpoint
        if made.claim is not None:
            scope.lease.moved(made.claim)
        return str(id)

    async def _token(
        self, waitpoint: UUID, *, approver: str | None = None, expires_at: Millis | None = None
    ) -> Token:
        return await self._scope.until_available(
            lambda: self._engine.suspensions.token_again(
                self._claim.uuid,
                waitpoint,
                approver=approver,
                expires_at=expires_at,
                made=self._made.get(waitpoint),
            )
        )


def _begin(*waitpoints: UUID) -> None:
    """These are closed if the branch of a race that this code belongs to loses it: who has a token
    of one is not told that an answer was accepted which nothing receives."""
    if (branch := racing.get()) is not None:
        branch.begin(waitpoints=waitpoints)


async def _open_or_new(run: Snapshot, id: UUID, create: Callable[[], Awaitable[str]]) -> str:
    """The waitpoint that was handed out, if it is still open; otherwise another one."""
    pending = run.waits.pending
    return str(id) if any(each.id == id for each in pending) else await create()


def _asked(
    snapshot: Snapshot, place: StepPlace, name: str, of: int, terms: Terms
) -> _AskedApproval:
    parts = (terms.about or "", str(of), *sorted(terms.approvers))
    id = _derived(snapshot, place, "approval", *parts)
    return _AskedApproval(name, of, terms, id, slot=_derived(snapshot, place, "slot"))


def _derived(snapshot: Snapshot, place: StepPlace, what: str, *more: str) -> UUID:
    """An id that is the same whenever the handler asks for the same at this place."""
    parts = (what, place.name, str(place.occurrence), *more)
    return waitpoint_id(snapshot.execution.uuid, snapshot.life.generation, *parts)


def approval_terms(name: str, of: int, approvers: Sequence[str], about: object = None) -> Terms:
    """What an approval accepts; raises if nothing could ever approve it."""
    if not check_signal_name(name, "approval name"):
        raise Invalid("an approval needs a name")
    named = tuple(str(each) for each in check_names(approvers, "approvers"))
    check_whole(of, "of", 1, MAX_APPROVERS)
    if named and of > len(named):
        raise Invalid(f"{of} of {len(named)} approvers can never approve")
    digest = None if about is None else about_digest(about)
    value = None if about is None else about_text(about)
    return check_terms(Terms(about=digest, decisions=DECISIONS, approvers=named, value=value))


def _outdated(asked: _AskedApproval) -> ApprovalOutdated:
    return ApprovalOutdated(
        f"{asked.name!r} was decided about something else than the handler asks about now"
    )


def _span(timeout: Span | None) -> Millis | None:
    return None if timeout is None else parse_span(timeout, "timeout")


def _binding(waitpoint: UUID, key: str) -> Binding:
    return Binding(id=waitpoint, key=key, use=WaitpointUse.EITHER, lasting=True)


def _closed_because(record: Recorded) -> str:
    if record.waited != Waited.CLOSED:
        return ""
    return msgspec.json.decode(record.value, type=str | None) or ""


def _received(signal: Signal) -> Received:
    value = decode(signal.payload or b"null", Any)
    return Received(signal.key, value, signal.source, to_datetime(signal.accepted_at))
