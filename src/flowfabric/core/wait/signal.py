"""Signals to a waitpoint: by token from outside, or by name (`channel`) from the application.

A token is checked before anything else about the waitpoint is looked at, so that a sender without
a valid one cannot find out which waitpoints exist. Then `deliver` asks in this order: was it
delivered before, can it be delivered at all, do the terms of an approval allow it? Last, `match`
says which waits it counts for, and `resume` continues an execution that it satisfies.
"""

from uuid import UUID

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    AlreadyDecided,
    ApprovalOutdated,
    NotAllowed,
    NotFound,
    NotSignalable,
    SignalLimitExceeded,
    TokenUsed,
    WaitpointClosed,
)
from flowfabric.core.base.time import NO_TIME, Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.ending import event_of
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import present
from flowfabric.core.execution.model import Ended, Snapshot, Suspended
from flowfabric.core.execution.step import Step
from flowfabric.core.wait.credential import Credential, check_token, revocation_keys
from flowfabric.core.wait.match import SignalMatch, id_key, match_signal, source_key
from flowfabric.core.wait.model import (
    DedupRecord,
    Effect,
    Loaded,
    Needs,
    ReceivedSignal,
    Signal,
    Terms,
    Waitpoint,
    Waits,
    dedup_key,
)
from flowfabric.core.wait.resume import SuspensionEnd, end_suspension
from flowfabric.core.wait.token import TokenClaims, verify

DEDUP_TTL = Millis(86_400_000)
MAX_SIGNAL_PAYLOAD = 256 * 1024
APPROVAL = "approval"


class Delivery(Struct, frozen=True, kw_only=True):
    """A signal on its way. `about` is the digest of what the sender believes to approve;
    `max_signals` comes before the policy of the execution, 0 means no limit. `internal` is the
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


class Accepted(Struct, frozen=True):
    signal: UUID
    effect: Effect
    number: int


class DuplicateSignal(Struct, frozen=True):
    """The signal was delivered before; `signal` is the id of the first one."""

    signal: UUID


SignalAnswer = Accepted | DuplicateSignal


def needs_to_deliver(
    snapshot: Snapshot | None, delivery: Delivery, claims: TokenClaims | None = None
) -> Needs | None:
    """What `deliver` reads. `claims` are what the token says, unverified."""
    if snapshot is None:
        return None
    keys = list(revocation_keys(delivery.waitpoint, claims))
    waits = snapshot.waits
    if waits.signals:
        keys += _keys_of_signals(delivery, claims)
        if len(waits.active) > 1:
            keys.append(id_key(delivery.id))
    return Needs(snapshot.execution.uuid, waitpoints=(delivery.waitpoint,), dedup=tuple(keys))


def _keys_of_signals(delivery: Delivery, claims: TokenClaims | None) -> list[bytes]:
    """The dedup records that only an accepted signal can have left."""
    keys = [_signal_key(delivery)]
    for source in sorted({delivery.source, "", claims.approver or "" if claims else ""}):
        keys += [_approver_key(delivery, source), source_key(delivery.source_type, source)]
    if delivery.idempotency_key:
        keys.append(_repeat_key(delivery))
    if claims is not None:
        keys.append(_used_key(delivery, claims))
    return keys


def deliver(
    snapshot: Snapshot | None,
    now: Millis,
    loaded: Loaded,
    delivery: Delivery,
    credential: Credential | None = None,
) -> "Change[SignalAnswer]":
    """Delivers a signal to a waitpoint. Without a credential the caller is trusted; with one, an
    unknown waitpoint gets the same answer as a wrong token."""
    snapshot = present(snapshot)
    waitpoint = loaded.waitpoints.get(delivery.waitpoint)
    claims = None
    if credential is not None:
        waitpoint, claims = check_token(loaded, now, delivery.waitpoint, credential)
    if waitpoint is None:
        raise NotFound("waitpoint", delivery.waitpoint)
    source = _source(delivery, waitpoint, claims, trusted=credential is None)
    if source != delivery.source:
        delivery = replace(delivery, source=source)
    return _Delivering(snapshot, now, loaded, delivery, waitpoint, claims).decide()


def deliver_hidden(
    snapshot: Snapshot | None,
    now: Millis,
    loaded: Loaded,
    delivery: Delivery,
    credential: Credential,
) -> "Change[SignalAnswer]":
    """As `deliver`, but an unknown execution is answered like an unknown waitpoint."""
    if snapshot is None:
        verify(credential.ring, None, credential.token, now)
    return deliver(snapshot, now, loaded, delivery, credential)


class _Delivering:
    """One delivery to a waitpoint that exists, by a sender who may."""

    def __init__(
        self,
        snapshot: Snapshot,
        now: Millis,
        loaded: Loaded,
        delivery: Delivery,
        waitpoint: Waitpoint,
        claims: TokenClaims | None,
    ) -> None:
        self._snapshot = snapshot
        self._now = now
        self._delivery = delivery
        self._waitpoint = waitpoint
        self._claims = claims
        self._dedup = loaded.dedup
        self._waits = snapshot.waits
        self._key = _signal_key(delivery)

    def decide(self) -> "Change[SignalAnswer]":
        known = self._delivered() or self._decided()
        if known is not None:
            return unchanged(DuplicateSignal(known))
        self._check_unused()
        if isinstance(self._snapshot.state, Ended):
            raise NotSignalable(f"{self._snapshot.run} has ended")
        active = self._waitpoint.id in [bound.id for bound in self._waits.active]
        if not active:
            self._check_pending()
        self._check_terms()
        if (limit := self._limit) and self._waits.sent >= limit:
            raise SignalLimitExceeded(
                f"{self._snapshot.run} has accepted {self._waits.sent} of at most {limit} signals"
            )
        return self._match() if active else self._buffer()

    @property
    def _limit(self) -> int:
        """How many signals the execution accepts, 0 for any number: what the delivery says, or else
        the policy of the execution."""
        if self._delivery.internal:
            return 0
        given = self._delivery.max_signals
        rules = self._snapshot.execution.rules
        return rules.max_signals_per_execution if given is None else given

    # -- was it delivered before

    def _delivered(self) -> UUID | None:
        """The signal this one repeats, by its id or its idempotency key."""
        known = self._seen(self._key)
        if known is None and self._delivery.idempotency_key:
            known = self._seen(_repeat_key(self._delivery))
        return known

    def _decided(self) -> UUID | None:
        """The signal with which this approver decided the same before: an approver who never saw
        the answer decides again, also when that decision was the last one that was needed. What
        has become outdated is refused instead."""
        delivery, terms = self._delivery, self._waitpoint.terms
        if terms is None:
            return None
        record = self._dedup.get(_approver_key(delivery, delivery.source))
        if record is None or _decision_in(record) != delivery.name:
            return None
        if delivery.about not in (None, terms.about) or self._is_outdated():
            return None
        if self._claims and self._claims.decisions and delivery.name not in self._claims.decisions:
            return None
        return _signal_in(record)

    def _seen(self, key: bytes) -> UUID | None:
        """The signal that left a dedup record, if the record still stands."""
        record = self._dedup.get(key)
        return _signal_in(record) if record and record.stands(self._now) else None

    # -- may it be delivered

    def _check_unused(self) -> None:
        claims = self._claims
        if claims is None or not claims.single_use:
            return
        if self._seen(_used_key(self._delivery, claims)) is not None:
            raise TokenUsed("the token was for one use, and it was used")

    def _check_pending(self) -> None:
        for pending in self._waits.pending:
            if pending.id == self._waitpoint.id:
                if pending.has_expired(self._now):
                    raise WaitpointClosed("the waitpoint expired before it was used")
                return
        if self._is_outdated():
            raise ApprovalOutdated("what is to be approved has changed since this was asked for")
        raise WaitpointClosed("the waitpoint accepts no signals any more")

    def _is_outdated(self) -> bool:
        """Whether another waitpoint has taken the place of this approval's."""
        if isinstance(self._snapshot.state, Ended) or self._waitpoint.terms is None:
            return False
        open_ones = self._waits.open
        if any(other.id == self._waitpoint.id for other in open_ones):
            return False
        return any(other.key == self._waitpoint.key for other in open_ones)

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
        record = self._dedup.get(_approver_key(delivery, delivery.source))
        if record is not None:
            raise AlreadyDecided(f"decided before: {_decision_in(record)[:80]}")

    # -- what it does

    def _buffer(self) -> "Change[SignalAnswer]":
        """Keeps the signal for the suspension that will bind the waitpoint. The version moves, so
        that a suspend that did not see this signal is decided again."""
        row = ReceivedSignal(self._signal(Effect.BUFFERED))
        return self._change(row, self._after(self._numbered))

    def _match(self) -> "Change[SignalAnswer]":
        """Counts the signal for the waits at the waitpoint, and resumes what it satisfies."""
        suspension = self._waits.suspension
        if suspension is None or not isinstance(self._snapshot.state, Suspended):
            raise NotSignalable(f"{self._snapshot.run} is not suspended")
        signal = self._signal(Effect.APPENDED)
        match = match_signal(suspension, signal, self._dedup)
        counted = replace(signal, effect=str(match.effect))
        row = ReceivedSignal(counted, suspension.id if match.counts else None)
        if match.satisfied:
            return self._resume(row, match)
        after = self._after(replace(self._numbered, suspension=match.suspension))
        return self._change(row, after, dedup=match.dedup)

    def _resume(self, row: ReceivedSignal, match: SignalMatch) -> "Change[SignalAnswer]":
        delay = self._delivery.delay
        if delay is None:
            delay = match.suspension.arms[match.satisfied[0]].policy.resume_delay or NO_TIME
        end = SuspensionEnd.by_signal(row.signal, match.satisfied, delay)
        after, steps = end_suspension(
            self._snapshot, self._now, match.suspension, end, self._numbered
        )
        return self._change(row, after, dedup=match.dedup, steps=steps)

    @property
    def _numbered(self) -> Waits:
        """With one more signal."""
        internal = self._waits.internal + self._delivery.internal
        return replace(self._waits, signals=self._waits.signals + 1, internal=internal)

    def _after(self, waits: Waits) -> Snapshot:
        return self._snapshot.to(
            self._snapshot.state, life=replace(self._snapshot.life, waits=waits)
        )

    def _change(
        self,
        row: ReceivedSignal,
        after: Snapshot,
        dedup: tuple[DedupRecord, ...] = (),
        steps: tuple[Step, ...] = (),
    ) -> "Change[SignalAnswer]":
        signal = row.signal
        detail = {
            "signal": to_builtins(signal.id),
            "waitpoint": to_builtins(signal.waitpoint),
            "name": signal.name,
            "source": signal.source,
            "effect": signal.effect,
        }
        return Change(
            Accepted(signal.id, Effect(signal.effect), signal.number),
            self._snapshot,
            after,
            (event_of(self._snapshot, self._now, EventKind.SIGNALLED, detail),),
            steps=steps,
            signals=(row,),
            dedup=(*self._records(), *dedup),
        )

    def _records(self) -> list[DedupRecord]:
        """What makes a repeat of this signal recognisable."""
        delivery, id = self._delivery, self._delivery.id.bytes
        records = [DedupRecord(self._key, doc=id)]
        if delivery.idempotency_key:
            until = Millis(self._now + delivery.dedup_ttl)
            records.append(DedupRecord(_repeat_key(delivery), until, id))
        if self._claims is not None and self._claims.single_use:
            records.append(DedupRecord(_used_key(delivery, self._claims), doc=id))
        if self._waitpoint.terms is not None:
            key = _approver_key(delivery, delivery.source)
            records.append(DedupRecord(key, doc=id + delivery.name.encode()))
        return records

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


def _source(
    delivery: Delivery, waitpoint: Waitpoint, claims: TokenClaims | None, *, trusted: bool
) -> str:
    """Who sends it. A token that names its approver speaks for that one alone. Holders of tokens
    that name none are all one source of an approval, and never one of its approvers."""
    if claims is not None and claims.approver is not None:
        if delivery.source not in ("", claims.approver):
            raise NotAllowed("the token is for another approver")
        return claims.approver
    return delivery.source if trusted or waitpoint.terms is None else ""


def _check_allowed(terms: Terms, delivery: Delivery) -> None:
    if delivery.about is not None and delivery.about != terms.about:
        raise ApprovalOutdated("what is to be approved is not what the sender approves")
    if terms.decisions and delivery.name not in terms.decisions:
        raise NotAllowed(f"{delivery.name[:80]!r} is not one of {', '.join(terms.decisions)}")
    if terms.approvers and delivery.source not in terms.approvers:
        raise NotAllowed("the sender is not one of the approvers")


# -- dedup records: what they say, and their keys


def _signal_in(record: DedupRecord) -> UUID:
    return UUID(bytes=record.doc[:16])


def _decision_in(record: DedupRecord) -> str:
    """What an approver has decided, which follows the id of the signal."""
    return record.doc[16:].decode()


def _signal_key(delivery: Delivery) -> bytes:
    return dedup_key("signal", delivery.waitpoint.bytes, delivery.id.bytes)


def _repeat_key(delivery: Delivery) -> bytes:
    return dedup_key("repeat", delivery.waitpoint.bytes, delivery.idempotency_key or "")


def _used_key(delivery: Delivery, claims: TokenClaims) -> bytes:
    return dedup_key("used", delivery.waitpoint.bytes, claims.id)


def _approver_key(delivery: Delivery, approver: str) -> bytes:
    return dedup_key("approver", delivery.waitpoint.bytes, approver)
