"""Waiting for the outside world inside a handler: signals, approvals, callbacks.

Every wait is a step. The change that satisfies or times it out records it, so what was waited for
survives the death of whoever is woken. Meanwhile the run needs no worker.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar, overload
from uuid import UUID

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import ApprovalOutdated, Invalid
from flowfabric.core.base.numbers import check_names, check_whole
from flowfabric.core.base.text import check_signal_name
from flowfabric.core.base.time import Millis, parse_span, to_datetime
from flowfabric.core.execution.step import Recorded
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
from flowfabric.core.wait.model import Behaviour, ResumePolicy, Signal, Terms, Waited
from flowfabric.core.wait.suspend import Binding, Wait, WaitpointUse
from flowfabric.core.wait.token import Token
from flowfabric.engine.wait.suspensions import MAX_APPROVERS, check_terms
from flowfabric.worker.api.approval import (
    APPROVED,
    DECISIONS,
    REJECTED,
    Verdict,
    about_digest,
    decisions_of,
    how_ended,
)
from flowfabric.worker.codec import decode
from flowfabric.worker.errors import WaitClosed, WaitTimeout
from flowfabric.worker.run.journal import Journal, StepPlace
from flowfabric.worker.run.scope import CallScope
from flowfabric.worker.run.steps import perform
from flowfabric.worker.run.until_available import until_available

T = TypeVar("T")
Span = str | float | timedelta

_LASTING = ResumePolicy(close_waitpoint_on_resume=False)


class Received(Struct, frozen=True):
    """A signal as a handler sees it."""

    name: str
    value: Any
    source: str
    at: datetime


class Callback(Generic[T]):
    """A door for one answer from outside. Hand `id` and `token.reveal()` to whoever will answer
    (a webhook, a person), then `await callback.result(...)`."""

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
    def result(self, *, timeout: Span | None = None) -> Coroutine[Any, Any, Any]: ...
    @overload
    def result(
        self, as_type: type[T], *, timeout: Span | None = None
    ) -> Coroutine[Any, Any, T]: ...
    def result(
        self, as_type: Any = Any, *, timeout: Span | None = None
    ) -> Coroutine[Any, Any, Any]:
        """The payload of the answer, without a worker slot until it is here; the same whenever
        it is asked for. The door is closed then, also when the time was over."""
        binding = _binding(self._waitpoint, self._key)
        asked = _Asked(Single(self._key), (binding,), "waiting_for_callback", _until(timeout))
        self._place = self._place or self._waits._journal.place(f"callback:{self._key}")
        return self._waits._one(self._place, asked, as_type)


class Approval:
    """An approval that was asked for: hand tokens out, then `await approval.verdict(...)`."""

    def __init__(self, waits: "WaitsApi", ask: "_Approving", at: "_Door") -> None:
        self._waits = waits
        self._ask = ask
        self._at = at
        self._place: StepPlace | None = None
        self.id = f"{waits._claim.id}/{at.id}"

    def __repr__(self) -> str:
        return f"Approval({self._ask.name!r}, {self.id})"

    async def token(self, approver: str | None = None, *, expires: Span | None = None) -> Token:
        """A token for one approver and one use; where no approvers are named also one for whoever
        has it, who all count as one. The same whenever the handler runs again: `expires` is counted
        from the first time this very call was made, which is recorded as a step."""
        waits, named = self._waits, self._ask.terms.approvers
        if named and approver not in named:
            given = "nobody" if approver is None else repr(str(approver)[:80])
            raise Invalid(f"a token is for one of the approvers, {given} is none")
        expires_at = None if expires is None else await self._expiry(parse_span(expires, "expires"))
        return await until_available(
            lambda: waits._engine.suspensions.token_again(
                waits._claim.uuid, self._at.id, approver=approver, expires_at=expires_at
            ),
            waits._journal.stopped,
        )

    async def _expiry(self, span: Millis) -> Millis:
        """So long after now, or after when this was first asked for."""
        waits = self._waits

        async def now() -> int:
            return waits._engine.now()

        place = waits._journal.place(f"token-for:{self._ask.name}")
        return Millis(await perform(waits._journal, place, now, int) + span)

    def verdict(self, *, timeout: Span | None = None) -> Coroutine[Any, Any, Verdict]:
        """What was decided, without a worker slot until then; the same whenever it is asked
        for."""
        self._place = self._place or self._waits._journal.place(f"approval:{self._ask.name}")
        return self._waits._verdict(self._place, self._ask, self._at, _until(timeout))


class _Asked(Struct, frozen=True):
    condition: Condition
    bindings: tuple[Binding, ...]
    reason: str
    timeout: Millis | None
    lasting: bool = False


class _Door(Struct, frozen=True):
    """Where an approval is decided."""

    id: UUID
    slot: UUID


class _Approving(Struct, frozen=True):
    """An approval as it was asked for."""

    name: str
    of: int
    terms: Terms

    @property
    def condition(self) -> Condition:
        """Enough approvals, or so many refusals that there cannot be enough any more."""
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

    @property
    def _journal(self) -> Journal:
        return self._scope.journal

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
        sent before anybody waited is not lost. Raises WaitTimeout when none came in time, and
        WaitClosed when an operator closed it."""
        asked = self._channels((name,), Single(name), timeout)
        return self._one(self._journal.place(f"signal:{name}"), asked, as_type)

    def wait_for_any(
        self, *names: str, timeout: Span | None = None
    ) -> Coroutine[Any, Any, Received]:
        """The first signal of any of these names. Those of the others are kept for later."""
        asked = self._channels(names, any_waitpoint(*names) if names else Single(""), timeout)
        place = self._journal.place(f"any:{','.join(names)[:150]}")
        return self._first(place, asked)

    def wait_for_all(
        self, *names: str, timeout: Span | None = None
    ) -> Coroutine[Any, Any, dict[str, Any]]:
        """One signal of each of these names: their payloads by name."""
        asked = self._channels(names, all_waitpoints(*names), timeout)
        place = self._journal.place(f"all:{','.join(names)[:150]}")
        return self._every(place, asked)

    def approval(
        self,
        name: str,
        *,
        of: int = 1,
        approvers: Sequence[str] = (),
        about: object = None,
        timeout: Span | None = None,
    ) -> Coroutine[Any, Any, Verdict]:
        """WaitsApi until `of` distinct approvers have approved, or so many have refused that this
        cannot be any more (without a list of approvers: the first one who refuses).

        `about` is the exact thing to be approved: what is approved is bound to it. If the handler
        asks about something else, or other approvers, when it runs again, it is asked anew; if it
        was decided about something else, ApprovalOutdated is raised.
        """
        asked = _approving(name, of, approvers, about)
        place = self._journal.place(f"approval:{name}")
        return self._verdict(place, asked, self._approval_at(place, asked), _until(timeout))

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
        asked = _approving(name, of, approvers, about)
        return self._request(self._journal.place(f"request:{name}"), asked)

    def callback(self, name: str = "callback") -> Coroutine[Any, Any, Callback[Any]]:
        """A door for one answer from outside: an id and a token to hand out, awaited later."""
        if not check_signal_name(name, "callback name"):
            raise Invalid("a callback has a name")
        return self._callback(self._journal.place(f"callback-for:{name}"), name)

    async def wait_at(self, place: StepPlace, name: str, timeout: Span | None) -> None:
        """Waits for a signal of this name; the wait is recorded at `place`."""
        await self._one(place, self._channels((name,), Single(name), timeout), Any)

    # -- how

    def _channels(
        self, names: tuple[str, ...], condition: Condition, timeout: Span | None
    ) -> _Asked:
        wanted = check_names(names, "signal names")
        if not wanted:
            raise Invalid("wait for at least one signal")
        for name in wanted:
            if not check_signal_name(name):
                raise Invalid("a signal has a name")
        if len(set(wanted)) != len(wanted):
            raise Invalid("a signal is named twice")
        bindings = tuple(
            Binding(
                id=channel_id(self._claim.snapshot, name),
                key=name,
                use=WaitpointUse.EITHER,
                lasting=True,
            )
            for name in names
        )
        return _Asked(condition, bindings, "waiting_for_signal", _until(timeout), lasting=True)

    async def _wait(self, place: StepPlace, asked: _Asked) -> tuple[Recorded, list[Signal]]:
        """How the wait ended and, if signals did it, which; while it goes on, nothing returns."""
        timeout = asked.timeout
        wait = Wait(
            condition=asked.condition,
            bindings=asked.bindings,
            timeout_at=None if timeout is None else Millis(self._engine.now() + timeout),
            behaviour=None if timeout is None else Behaviour.AUTO_RESUME,
            policy=_LASTING if asked.lasting else ResumePolicy(),
        )
        record = await self._scope.parking.wait(place, wait, asked.reason)
        if record.waited != Waited.SIGNALLED:
            return record, []
        return record, await self._signals(record, asked.bindings)

    async def _signals(self, record: Recorded, bindings: tuple[Binding, ...]) -> list[Signal]:
        """The signals that counted for a wait that is over, in the order they came; none of a
        waitpoint that is not waited at now, such as the approval of something else."""
        ids = {binding.id for binding in bindings}
        if record.signal is not None:
            return [record.signal] if record.signal.waitpoint in ids else []
        suspension = record.suspension
        if suspension is None:
            return []
        if suspension not in self._received:
            self._received[suspension] = await self._read(suspension)
        return [signal for signal in self._received[suspension] if signal.waitpoint in ids]

    async def _read(self, suspension: UUID) -> list[Signal]:
        return await self._looking(
            lambda: self._engine.suspensions.signals_of(self._claim.uuid, suspension)
        )

    async def _looking(self, work: Callable[[], Awaitable[T]]) -> T:
        """What must not be cut off by a sleep beside it."""
        self._journal.begin()
        try:
            return await until_available(work, self._journal.stopped)
        finally:
            self._journal.end()

    async def _one(self, place: StepPlace, asked: _Asked, as_type: Any) -> Any:
        record, signals = await self._wait(place, asked)
        _check_answered(place, record)
        return decode(signals[-1].payload or b"null", as_type) if signals else None

    async def _first(self, place: StepPlace, asked: _Asked) -> Received:
        record, signals = await self._wait(place, asked)
        _check_answered(place, record)
        if not signals:
            return Received("", None, "", to_datetime(self._engine.now()))
        return _received(signals[-1])

    async def _every(self, place: StepPlace, asked: _Asked) -> dict[str, Any]:
        record, signals = await self._wait(place, asked)
        _check_answered(place, record)
        return {signal.key: _received(signal).value for signal in signals}

    async def _verdict(
        self, place: StepPlace, ask: _Approving, at: "_Door", timeout: Millis | None
    ) -> Verdict:
        binding = Binding(
            id=at.id,
            key=ask.name,
            use=WaitpointUse.EITHER,
            terms=ask.terms,
            lasting=True,
            slot=at.slot,
        )
        asked = _Asked(ask.condition, (binding,), "waiting_for_approval", timeout)
        record, _ = await self._wait(place, asked)
        decided = record.signal.waitpoint if record.signal is not None else record.waitpoint
        if decided is not None and decided != at.id:
            await self._check_about(record, ask, decided)
            binding = msgspec.structs.replace(binding, id=decided)
        signals = await self._signals(record, (binding,))  # who had decided when it was over
        if record.waited == Waited.SIGNALLED and not signals:
            raise _outdated(ask)
        return Verdict(
            ask.name,
            how_ended(record, signals),
            decisions_of(signals),
            ask.terms.about,
            _closed_because(record),
        )

    async def _check_about(self, record: Recorded, ask: _Approving, waitpoint: UUID) -> None:
        """What was decided by others, or by fewer of them, stays decided; what was decided about
        something else does not."""
        terms = await self._looking(
            lambda: self._engine.suspensions.terms(self._claim.uuid, waitpoint)
        )
        same = terms is not None and terms.about == ask.terms.about
        if record.waited == Waited.SIGNALLED and not same:
            raise _outdated(ask)

    async def _request(self, place: StepPlace, ask: _Approving) -> Approval:
        at = self._approval_at(place, ask)

        async def create() -> str:
            await until_available(
                lambda: self._engine.suspensions.create_waitpoint(
                    self._claim, ask.name, id=at.id, terms=ask.terms, lasting=True, slot=at.slot
                ),
                self._journal.stopped,
            )
            return str(at.id)

        if UUID(await perform(self._journal, place, create, str)) != at.id:
            # Something else is to be approved than when it was recorded: it is asked anew.
            await self._looking(create)
        return Approval(self, ask, at)

    async def _callback(self, place: StepPlace, name: str) -> Callback[Any]:
        key = name if place.occurrence == 0 else f"{name}#{place.occurrence}"
        waitpoint = self._derived("callback", place)

        async def create() -> str:
            await until_available(
                lambda: self._engine.suspensions.create_waitpoint(
                    self._claim, key, id=waitpoint, lasting=True
                ),
                self._journal.stopped,
            )
            return str(waitpoint)

        known = UUID(await perform(self._journal, place, create, str))
        token = await until_available(
            lambda: self._engine.suspensions.token_again(self._claim.uuid, known),
            self._journal.stopped,
        )
        return Callback(self, f"{self._claim.id}/{known}", token, known, key)

    def _approval_at(self, place: StepPlace, ask: _Approving) -> "_Door":
        """Another thing to approve, or others to approve it, is another waitpoint in the same slot:
        what was decided there does not count."""
        asked = (ask.terms.about or "", str(ask.of), *sorted(ask.terms.approvers))
        slot = self._derived("slot", place)
        return _Door(self._derived("approval", place, *asked), slot)

    def _derived(self, what: str, place: StepPlace, *more: str) -> UUID:
        snapshot = self._claim.snapshot
        parts = (what, place.name, str(place.occurrence), *more)
        return waitpoint_id(snapshot.execution.uuid, snapshot.life.generation, *parts)


def _approving(name: str, of: int, approvers: Sequence[str], about: object) -> _Approving:
    if not check_signal_name(name, "approval name"):
        raise Invalid("an approval has a name")
    named = tuple(str(each) for each in check_names(approvers, "approvers"))
    check_whole(of, "of", 1, MAX_APPROVERS)
    if named and of > len(named):
        raise Invalid(f"{of} of {len(named)} approvers can never approve")
    digest = None if about is None else about_digest(about)
    terms = check_terms(Terms(about=digest, decisions=DECISIONS, approvers=named))
    return _Approving(name, of, terms)


def _outdated(ask: _Approving) -> ApprovalOutdated:
    return ApprovalOutdated(
        f"{ask.name!r} was decided about something else than the handler asks about now"
    )


def _until(timeout: Span | None) -> Millis | None:
    return None if timeout is None else parse_span(timeout, "timeout")


def _binding(waitpoint: UUID, key: str) -> Binding:
    return Binding(id=waitpoint, key=key, use=WaitpointUse.EITHER, lasting=True)


def _check_answered(place: StepPlace, record: Recorded) -> None:
    """Raises for a wait that ended without an answer; one that an operator ended has none."""
    if record.waited == Waited.TIMED_OUT:
        raise WaitTimeout(f"nothing came in time for {place}")
    if record.waited == Waited.CLOSED:
        raise WaitClosed(f"an operator closed what {place} waits for: {_closed_because(record)}")


def _closed_because(record: Recorded) -> str:
    if record.waited != Waited.CLOSED:
        return ""
    return msgspec.json.decode(record.value, type=str | None) or ""


def _received(signal: Signal) -> Received:
    value = decode(signal.payload or b"null", Any)
    return Received(signal.key, value, signal.source, to_datetime(signal.accepted_at))
