"""Signals: how the outside world talks to an execution.

A signal that carries a token is authenticated before anything else is looked at, so that nobody
without one can find out what exists or how it stands. Then: was it delivered before, can it be
delivered at all, do the terms of an approval allow it, and what does the suspension make of it.
"""

from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    AlreadyDecided,
    ApprovalOutdated,
    NotAllowed,
    NotFound,
    NotSignalable,
    SignalLimitExceeded,
    TokenRevoked,
    TokenUsed,
    WaitpointClosed,
)
from flowfabric.core.base.time import NO_TIME, Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.ending import event_of
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import present
from flowfabric.core.execution.model import Ended, Snapshot
from flowfabric.core.wait.keyring import Keyring
from flowfabric.core.wait.match import Listened, listen, mark_key, source_key
from flowfabric.core.wait.model import (
    NO_WAITS,
    DedupRecord,
    Effect,
    Loaded,
    Needs,
    Pending,
    ReceivedSignal,
    Signal,
    Terms,
    Waited,
    Waitpoint,
    Waits,
)
from flowfabric.core.wait.resume import RESUMED, Wake, suspension_of, wake
from flowfabric.core.wait.token import Token, TokenClaims, verify

DEDUP_TTL = Millis(86_400_000)
MAX_SIGNAL_PAYLOAD = 256 * 1024
APPROVAL = "approval"


class Delivery(Struct, frozen=True, kw_only=True):
    """A signal on its way. `about` is the digest of what the sender believes to approve;
    `max_signals` comes before the policy of the execution, 0 is no limit. `internal` is the
    engine's own: no limit on signals holds for it, and it counts for none."""

    id: UUID
    waitpoint: UUID
    name: str
    category: str = ""
    source_type: str = ""
    source: str = ""
    payload: bytes | None = None
    encoding: str | None = None
    correlation: str | None = None
    idempotency_key: str | None = None
    scope: str = "waitpoint"
    created_at: Millis | None = None
    dedup_ttl: Millis = DEDUP_TTL
    delay: Millis | None = None
    max_signals: int | None = None
    about: str | None = None
    internal: bool = False


class Credential(Struct, frozen=True):
    """How a sender proves itself: by a token, checked with the keys of the store."""

    ring: Keyring
    token: Token | str | None


class Accepted(Struct, frozen=True):
    signal: UUID
    effect: Effect
    number: int


class DuplicateSignal(Struct, frozen=True):
    """The signal was delivered before; `signal` is the id of the first one."""

    signal: UUID


def ask_to_deliver(
    snapshot: Snapshot | None, delivery: Delivery, claims: TokenClaims | None = None
) -> Needs | None:
    """What must be remembered to deliver a signal. `claims` are what its token says, unverified."""
    if snapshot is None:
        return None
    sources = {delivery.source, "", claims.approver or "" if claims else ""}
    marks = [_signal_key(delivery), _revoked_key(delivery.waitpoint, "")]
    for source in sorted(sources):
        marks += [
            _approver_key(delivery, source),
            mark_key("source", delivery.source_type, source),
        ]
    if delivery.idempotency_key:
        marks.append(_repeat_key(delivery))
    if claims is not None:
        marks += [_revoked_key(delivery.waitpoint, claims.id), _used_key(delivery, claims)]
    return Needs(snapshot.execution.uuid, waitpoints=(delivery.waitpoint,), marks=tuple(marks))


def deliver(
    snapshot: Snapshot | None,
    now: Millis,
    delivery: Delivery,
    credential: Credential | None,
    memory: Loaded,
) -> "Change[Accepted | DuplicateSignal]":
    """Delivers a signal to a waitpoint. Without a credential the caller is trusted; with one an
    execution that does not exist is answered as a waitpoint that does not."""
    waitpoint = memory.waitpoints.get(delivery.waitpoint)
    claims = None
    if credential is not None:
        claims = verify(credential.ring, waitpoint, credential.token, now)
        _check_revoked(delivery.waitpoint, claims, waitpoint, memory)
    snapshot = present(snapshot)
    if waitpoint is None:
        raise NotFound("waitpoint", delivery.waitpoint)
    source = _identity(delivery, claims)
    if credential is not None and waitpoint.terms is not None:
        source = _approver(claims)
    delivery = replace(delivery, source=source)
    return _Deliver(snapshot, now, delivery, waitpoint, claims, memory).decide()


def revoke(
    snapshot: Snapshot | None, now: Millis, waitpoint: UUID, token_id: str, memory: Loaded
) -> "Change[None]":
    """Takes a token back (by the id in its claims), or with an empty id every token of the
    waitpoint that was issued so far."""
    snapshot = present(snapshot)
    row = memory.waitpoints.get(waitpoint)
    if row is None:
        raise NotFound("waitpoint", waitpoint)
    if isinstance(snapshot.state, Ended) and row.attempt is not None:
        return unchanged(None)  # one that outlives attempts is opened again by a replay
    # After those were taken back, tokens are issued a moment later.
    before = revoked_at(waitpoint, memory)
    at = now if before is None else max(now, before + 1)
    mark = DedupRecord(_revoked_key(waitpoint, token_id), doc=msgspec.json.encode(at))
    # The version moves, so that a delivery decided before is decided again.
    return Change(None, snapshot, snapshot.to(snapshot.state), marks=(mark,))


class _Deliver:
    """One delivery to a waitpoint that exists, by somebody who may."""

    def __init__(
        self,
        snapshot: Snapshot,
        now: Millis,
        delivery: Delivery,
        waitpoint: Waitpoint,
        claims: TokenClaims | None,
        memory: Loaded,
    ) -> None:
        self._snapshot = snapshot
        self._now = now
        self._delivery = delivery
        self._waitpoint = waitpoint
        self._claims = claims
        self._memory = memory
        self._waits = snapshot.life.waits or NO_WAITS

    def decide(self) -> "Change[Accepted | DuplicateSignal]":
        known = self._delivered() or self._decided()
        if known is not None:
            return unchanged(DuplicateSignal(known))
        self._check_unused()
        if isinstance(self._snapshot.state, Ended):
            raise NotSignalable("the execution has ended")
        active = any(bound.id == self._waitpoint.id for bound in self._waits.active)
        if not active:
            self._check_pending()
        self._check_terms()
        if (limit := self._limit) and self._waits.sent >= limit:
            raise SignalLimitExceeded(f"{self._waits.sent} signals were accepted")
        return self._accept() if active else self._buffer()

    @property
    def _limit(self) -> int:
        """How many signals the execution accepts, 0 for any number: what the delivery says, or else
        the policy of the execution."""
        if self._delivery.internal:
            return 0
        given = self._delivery.max_signals
        rules = self._snapshot.execution.rules
        return rules.max_signals_per_execution if given is None else given

    def _delivered(self) -> UUID | None:
        """The signal this one repeats, by its id or its idempotency key."""
        known = self._seen(_signal_key(self._delivery))
        if known is None and self._delivery.idempotency_key:
            known = self._seen(_repeat_key(self._delivery))
        return known

    def _decided(self) -> UUID | None:
        """The signal with which this approver decided the same before: whoever never saw the answer
        asks again, also when that decision was the last one that was needed. What has become
        outdated is told otherwise."""
        delivery, terms = self._delivery, self._waitpoint.terms
        mark = self._memory.marks.get(_approver_key(delivery, delivery.source))
        if terms is None or mark is None or mark.doc[16:].decode() != delivery.name:
            return None
        if delivery.about not in (None, terms.about) or self._is_outdated():
            return None
        if self._claims and self._claims.decisions and delivery.name not in self._claims.decisions:
            return None
        return UUID(bytes=mark.doc[:16])

    def _check_unused(self) -> None:
        claims = self._claims
        if claims is None or not claims.single_use:
            return
        if self._seen(_used_key(self._delivery, claims)) is not None:
            raise TokenUsed("the token was for one use, and it was used")

    def _seen(self, key: bytes) -> UUID | None:
        """The signal that left a mark, if the mark still counts."""
        mark = self._memory.marks.get(key)
        if mark is None or not mark.stands(self._now):
            return None
        return UUID(bytes=mark.doc[:16])

    def _check_pending(self) -> None:
        for pending in self._waits.pending:
            if pending.id == self._waitpoint.id:
                if pending.expires_at is not None and pending.expires_at <= self._now:
                    raise WaitpointClosed("the waitpoint ran out before it was used")
                return
        if self._is_outdated():
            raise ApprovalOutdated("what is to be approved has changed since this was asked for")
        raise WaitpointClosed("the waitpoint accepts no signals any more")

    def _is_outdated(self) -> bool:
        """Whether another waitpoint has taken the place of this one."""
        if isinstance(self._snapshot.state, Ended):
            return False
        open_ones = (*self._waits.active, *self._waits.pending)
        if any(other.id == self._waitpoint.id for other in open_ones):
            return False
        return any(_outdates(other, self._waitpoint) for other in open_ones)

    def _check_terms(self) -> None:
        """Whether the terms allow this decision."""
        delivery, terms, claims = self._delivery, self._waitpoint.terms, self._claims
        if claims is not None and claims.decisions and delivery.name not in claims.decisions:
            raise NotAllowed(f"the token does not allow {delivery.name[:80]!r}")
        if terms is None:
            if delivery.about is not None:
                raise NotAllowed("nothing that can be approved is bound to this waitpoint")
            return
        _check_allowed(terms, delivery)
        mark = self._memory.marks.get(_approver_key(delivery, delivery.source))
        if mark is not None:
            raise AlreadyDecided(f"decided before: {mark.doc[16:].decode()[:80]}")

    def _buffer(self) -> "Change[Accepted | DuplicateSignal]":
        """Nobody waits yet: kept for whoever will. The version moves, so that a suspend that did
        not see this signal is decided again."""
        signal = self._signal(Effect.BUFFERED)
        after = self._snapshot.to(
            self._snapshot.state,
            life=replace(self._snapshot.life, waits=self._numbered(signal)),
        )
        return self._change(ReceivedSignal(signal), after)

    def _numbered(self, signal: Signal) -> Waits:
        internal = self._waits.internal + self._delivery.internal
        return replace(self._waits, signals=signal.number, internal=internal)

    def _accept(self) -> "Change[Accepted | DuplicateSignal]":
        suspension = suspension_of(self._snapshot)
        if suspension is None:
            raise NotSignalable("the execution is not suspended")
        signal = self._signal(Effect.APPENDED)
        heard = listen(suspension, signal, self._memory.marks.get(source_key(signal)))
        signal = replace(signal, effect=str(heard.effect))
        row = ReceivedSignal(signal, suspension.id if heard.counts else None)
        counted = self._numbered(signal)
        if heard.satisfied:
            return self._wake(row, heard, counted)
        life = replace(self._snapshot.life, waits=replace(counted, suspension=heard.suspension))
        after = self._snapshot.to(self._snapshot.state, life=life)
        return replace(self._change(row, after), marks=self._marks(row, heard.marks))

    def _wake(
        self, row: ReceivedSignal, heard: Listened, waits: Waits
    ) -> "Change[Accepted | DuplicateSignal]":
        arm = heard.suspension.arms[heard.satisfied[0]]
        delay = self._delivery.delay
        if delay is None:
            delay = arm.policy.resume_delay or NO_TIME
        head = replace(self._snapshot.head, life=replace(self._snapshot.life, waits=waits))
        over = Wake(
            reason=RESUMED,
            done=dict.fromkeys(heard.satisfied, Waited.SIGNALLED),
            closer=row.signal.id,
            delay=delay,
            signal=row.signal,
        )
        after, steps = wake(replace(self._snapshot, head=head), heard.suspension, self._now, over)
        change = self._change(row, after)
        return replace(change, steps=steps, marks=self._marks(row, heard.marks))

    def _change(self, row: ReceivedSignal, after: Snapshot) -> "Change[Accepted | DuplicateSignal]":
        signal = row.signal
        detail = {
            "signal": str(signal.id),
            "waitpoint": str(signal.waitpoint),
            "name": signal.name,
            "source": signal.source,
            "effect": signal.effect,
        }
        return Change(
            Accepted(signal.id, Effect(signal.effect), signal.number),
            self._snapshot,
            after,
            (event_of(self._snapshot, self._now, EventKind.SIGNALLED, detail),),
            signals=(row,),
            marks=self._marks(row, ()),
        )

    def _marks(self, row: ReceivedSignal, more: tuple[DedupRecord, ...]) -> tuple[DedupRecord, ...]:
        """What makes a repeat of this signal recognisable."""
        delivery, seen = self._delivery, row.signal.id.bytes
        marks = [DedupRecord(_signal_key(delivery), doc=seen), *more]
        if delivery.idempotency_key:
            until = Millis(self._now + delivery.dedup_ttl)
            marks.append(DedupRecord(_repeat_key(delivery), until, seen))
        if self._claims is not None and self._claims.single_use:
            marks.append(DedupRecord(_used_key(delivery, self._claims), doc=seen))
        if self._waitpoint.terms is not None:
            key = _approver_key(delivery, delivery.source)
            marks.append(DedupRecord(key, doc=seen + delivery.name.encode()))
        return tuple(marks)

    def _signal(self, effect: Effect) -> Signal:
        delivery = self._delivery
        return Signal(
            number=self._waits.signals + 1,
            id=delivery.id,
            waitpoint=self._waitpoint.id,
            key=self._waitpoint.key,
            name=delivery.name,
            accepted_at=self._now,
            category=delivery.category,
            source_type=delivery.source_type,
            source=delivery.source,
            payload=delivery.payload,
            encoding=delivery.encoding,
            correlation=delivery.correlation,
            idempotency_key=delivery.idempotency_key,
            scope=delivery.scope,
            created_at=delivery.created_at,
            effect=str(effect),
        )


def ask_about_tokens(snapshot: Snapshot | None, waitpoint: UUID) -> Needs | None:
    """What must be remembered to hand a token out, or to take some back."""
    if snapshot is None:
        return None
    marks = (_revoked_key(waitpoint, ""),)
    return Needs(snapshot.execution.uuid, waitpoints=(waitpoint,), marks=marks)


def revoked_at(waitpoint: UUID, memory: Loaded) -> Millis | None:
    """When every token of a waitpoint issued so far was taken back, the last time."""
    everything = memory.marks.get(_revoked_key(waitpoint, ""))
    return None if everything is None else Millis(msgspec.json.decode(everything.doc, type=int))


def _check_revoked(
    waitpoint: UUID, claims: TokenClaims | None, row: Waitpoint | None, memory: Loaded
) -> None:
    until = revoked_at(waitpoint, memory)
    issued = claims.issued_at if claims is not None else row.created_at if row else NO_TIME
    if until is not None and issued <= until:
        raise TokenRevoked("every token issued before was taken back")
    if claims is not None and _revoked_key(waitpoint, claims.id) in memory.marks:
        raise TokenRevoked("the token was taken back")


def _identity(delivery: Delivery, claims: TokenClaims | None) -> str:
    """Who sends it: a token that names its approver speaks for that one and nobody else."""
    if claims is None or claims.approver is None:
        return delivery.source
    if delivery.source and delivery.source != claims.approver:
        raise NotAllowed("the token is for another approver")
    return claims.approver


def _check_allowed(terms: Terms, delivery: Delivery) -> None:
    if delivery.about is not None and delivery.about != terms.about:
        raise ApprovalOutdated("what is to be approved is not what the sender approves")
    if terms.decisions and delivery.name not in terms.decisions:
        raise NotAllowed(f"{delivery.name[:80]!r} is none of {', '.join(terms.decisions)}")
    if terms.approvers and delivery.source not in terms.approvers:
        raise NotAllowed("the sender is not one of the approvers")


def _approver(claims: TokenClaims | None) -> str:
    """Who decides by a token: whom it names, never whom its holder claims to be. All holders of
    tokens that name nobody are one source, and none of those who are named as approvers."""
    return "" if claims is None or claims.approver is None else claims.approver


def _outdates(other: Pending, waitpoint: Waitpoint) -> bool:
    """Whether another waitpoint has taken the place of this one."""
    return waitpoint.terms is not None and other.key == waitpoint.key


def _signal_key(delivery: Delivery) -> bytes:
    return mark_key("signal", delivery.waitpoint.bytes, delivery.id.bytes)


def _repeat_key(delivery: Delivery) -> bytes:
    return mark_key("repeat", delivery.waitpoint.bytes, delivery.idempotency_key or "")


def _used_key(delivery: Delivery, claims: TokenClaims) -> bytes:
    return mark_key("used", delivery.waitpoint.bytes, claims.id)


def _approver_key(delivery: Delivery, approver: str) -> bytes:
    return mark_key("approver", delivery.waitpoint.bytes, approver)


def _revoked_key(waitpoint: UUID, token_id: str) -> bytes:
    return mark_key("revoked", waitpoint.bytes, token_id)
