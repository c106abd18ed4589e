"""Signals by name, from the application itself: no token, and nobody need be waiting yet.

A name is a waitpoint's key. Where nothing of that name is open, a *channel* is: a waitpoint that
belongs to the execution as long as it lives, so that a signal is never early.

Which waitpoint has the name changes with time, so a repeat is recognised by the name: whoever
never saw the answer sends again, and must not be heard twice.
"""

from uuid import UUID, uuid5

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    AlreadyDecided,
    ApprovalOutdated,
    NoSigningKey,
    NotAllowed,
    NotFound,
    NotSignalable,
)
from flowfabric.core.base.redact import without_secrets
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.lease import present
from flowfabric.core.execution.model import Ended, Flags, Snapshot
from flowfabric.core.wait.match import mark_key
from flowfabric.core.wait.model import NO_WAITS, DedupRecord, Loaded, Needs, Pending, Waitpoint
from flowfabric.core.wait.signal import (
    Accepted,
    Delivery,
    DuplicateSignal,
    ask_to_deliver,
    deliver,
)


def waitpoint_id(execution: UUID, generation: int, *parts: str) -> UUID:
    """A waitpoint's id that is the same whenever the same is asked for."""
    sized = "".join(f"{len(part)}:{part}" for part in parts)
    return uuid5(execution, f"waitpoint:{generation}:{sized}")


def channel_id(snapshot: Snapshot, name: str) -> UUID:
    return waitpoint_id(snapshot.execution.uuid, snapshot.life.generation, "channel", name)


def open_waitpoints(snapshot: Snapshot, key: str, now: Millis) -> list[Pending]:
    """The open waitpoints of that key: those that are waited at, then those that are pending and
    have not run out."""
    waits = snapshot.life.waits or NO_WAITS
    pending = (p for p in waits.pending if p.expires_at is None or p.expires_at > now)
    return [p for p in (*waits.active, *pending) if p.key == key]


def ask_to_send(snapshot: Snapshot | None, name: str, delivery: Delivery) -> Needs | None:
    """About every waitpoint that may have the name by the time the signal is decided: others that
    are decided before it may open and close some."""
    if snapshot is None:
        return None
    waits = snapshot.life.waits or NO_WAITS
    named = (p.id for p in (*waits.active, *waits.pending) if p.key == name)
    targets = tuple({*named, channel_id(snapshot, name)})
    asks = [ask_to_deliver(snapshot, replace(delivery, waitpoint=each)) for each in targets]
    marks = {mark for ask in asks if ask is not None for mark in ask.marks}
    return Needs(
        execution=snapshot.execution.uuid,
        waitpoints=targets,
        marks=(
            *marks,
            *_sent_keys(snapshot, name, delivery),
            _decided_key(snapshot, name, delivery),
        ),
    )


def send(
    snapshot: Snapshot | None,
    now: Millis,
    name: str,
    delivery: Delivery,
    kid: str | None,
    memory: Loaded,
) -> "Change[Accepted | DuplicateSignal]":
    """Delivers a signal to whatever waits for that name, now or later."""
    snapshot = present(snapshot)
    known = _sent_before(snapshot, now, name, delivery, memory)
    if known is not None:
        return unchanged(DuplicateSignal(known))
    if isinstance(snapshot.state, Ended):
        raise NotSignalable("the execution has ended")
    addressed = _addressed(snapshot, now, name, delivery)
    if addressed.waitpoint in memory.waitpoints:
        change = deliver(snapshot, now, addressed, None, memory)
    elif kid is None:
        raise NoSigningKey("seed a key before anything waits for signals")
    else:
        channel = _channel(snapshot, now, name, kid)
        change = _deliver_to_new(snapshot, now, channel, addressed, memory)
    return _remembering(change, snapshot, now, name, delivery)


def decide(
    snapshot: Snapshot | None, now: Millis, name: str, delivery: Delivery, memory: Loaded
) -> "Change[Accepted | DuplicateSignal]":
    """Delivers an approver's decision to the approval of that name, which must have been asked
    for."""
    snapshot = present(snapshot)
    known = _sent_before(snapshot, now, name, delivery, memory)
    if known is not None:
        return unchanged(DuplicateSignal(known))
    ended = isinstance(snapshot.state, Ended)
    approval = None if ended else _open_approval(snapshot, now, name, memory)
    if approval is None:
        before = _decided(snapshot, name, delivery, memory)
        if before is not None:
            return unchanged(DuplicateSignal(before))
        shown = without_secrets(name)
        raise NotSignalable("the execution has ended") if ended else NotFound("approval", shown)
    change = deliver(snapshot, now, replace(delivery, waitpoint=approval), None, memory)
    change = _remembering(change, snapshot, now, name, delivery)
    return _deciding(change, snapshot, delivery, memory.waitpoints[approval])


def decide_at(
    snapshot: Snapshot | None, now: Millis, delivery: Delivery, memory: Loaded
) -> "Change[Accepted | DuplicateSignal]":
    """The same at the waitpoint that the delivery names."""
    waitpoint = memory.waitpoints.get(delivery.waitpoint)
    if waitpoint is not None and waitpoint.terms is None:
        raise NotAllowed("what is waited for here is no approval")
    change = deliver(snapshot, now, delivery, None, memory)
    return _deciding(change, present(snapshot), delivery, memory.waitpoints[delivery.waitpoint])


def _sent_keys(snapshot: Snapshot, name: str, delivery: Delivery) -> tuple[bytes, ...]:
    """What a repeat is known by: its signal id, and its idempotency key if it has one."""
    scope = (str(snapshot.life.generation), name)
    by_id = mark_key("sent", *scope, delivery.id.bytes)
    if not delivery.idempotency_key:
        return (by_id,)
    return by_id, mark_key("sent again", *scope, delivery.idempotency_key)


def _sent_before(
    snapshot: Snapshot, now: Millis, name: str, delivery: Delivery, memory: Loaded
) -> UUID | None:
    for key in _sent_keys(snapshot, name, delivery):
        mark = memory.marks.get(key)
        if mark is not None and mark.stands(now):
            return UUID(bytes=mark.doc)
    return None


def _remembering(
    change: "Change[Accepted | DuplicateSignal]",
    snapshot: Snapshot,
    now: Millis,
    name: str,
    delivery: Delivery,
) -> "Change[Accepted | DuplicateSignal]":
    if not isinstance(change.outcome, Accepted):
        return change
    seen = change.outcome.signal.bytes
    untils = (None, Millis(now + delivery.dedup_ttl))
    keys = _sent_keys(snapshot, name, delivery)
    marks = (DedupRecord(key, until, seen) for key, until in zip(keys, untils, strict=False))
    return replace(change, marks=(*change.marks, *marks))


def _channel(snapshot: Snapshot, now: Millis, name: str, kid: str) -> Waitpoint:
    return Waitpoint(
        id=channel_id(snapshot, name),
        execution=snapshot.execution.uuid,
        key=name,
        created_at=now,
        kid=kid,
    )


def _deliver_to_new(
    snapshot: Snapshot, now: Millis, channel: Waitpoint, delivery: Delivery, memory: Loaded
) -> "Change[Accepted | DuplicateSignal]":
    """In a memory of its own: when the delivery is refused, the channel was never made."""
    known = {**memory.waitpoints, channel.id: channel}
    richer = Loaded(known, memory.marks, memory.signals)
    change = deliver(_with_channel(snapshot, channel), now, delivery, None, richer)
    return replace(change, before=snapshot, waitpoints=(channel,))


def _addressed(snapshot: Snapshot, now: Millis, name: str, delivery: Delivery) -> Delivery:
    found = open_waitpoints(snapshot, name, now)
    target = found[0].id if found else channel_id(snapshot, name)
    return replace(delivery, waitpoint=target)


def _open_approval(snapshot: Snapshot, now: Millis, name: str, memory: Loaded) -> UUID | None:
    """The open approval of that name, whatever else is called so."""
    for pending in open_waitpoints(snapshot, name, now):
        waitpoint = memory.waitpoints.get(pending.id)
        if waitpoint is not None and waitpoint.terms is not None:
            return pending.id
    return None


class _Decided(Struct, frozen=True, array_like=True):
    """The last decision of an approver on an approval of some name."""

    signal: UUID
    decision: str
    about: str | None


def _decided_key(snapshot: Snapshot, name: str, delivery: Delivery) -> bytes:
    generation = str(snapshot.life.generation)
    return mark_key("decided", generation, name, delivery.source)


def _deciding(
    change: "Change[Accepted | DuplicateSignal]",
    snapshot: Snapshot,
    delivery: Delivery,
    waitpoint: Waitpoint,
) -> "Change[Accepted | DuplicateSignal]":
    if not isinstance(change.outcome, Accepted):
        return change
    about = None if waitpoint.terms is None else waitpoint.terms.about
    decided = _Decided(change.outcome.signal, delivery.name, about)
    mark = DedupRecord(
        _decided_key(snapshot, waitpoint.key, delivery), doc=msgspec.json.encode(decided)
    )
    return replace(change, marks=(*change.marks, mark))


def _decided(snapshot: Snapshot, name: str, delivery: Delivery, memory: Loaded) -> UUID | None:
    """The signal with which this approver decided the same, when no approval of the name is open:
    the decision that ended it is asked for again by whoever never saw the answer."""
    mark = memory.marks.get(_decided_key(snapshot, name, delivery))
    if mark is None:
        return None
    before = msgspec.json.decode(mark.doc, type=_Decided)
    if delivery.about not in (None, before.about):
        raise ApprovalOutdated("what was to be approved is not what the sender approves")
    if before.decision != delivery.name:
        raise AlreadyDecided(f"decided before: {before.decision[:80]}")
    return before.signal


def _with_channel(snapshot: Snapshot, channel: Waitpoint) -> Snapshot:
    waits = snapshot.life.waits or NO_WAITS
    pending = (*waits.pending, Pending(channel.id, channel.key))
    life = replace(snapshot.life, waits=replace(waits, pending=pending))
    head = replace(snapshot.head, life=life, flags=snapshot.head.flags | Flags.WAITPOINTS)
    return replace(snapshot, head=head)
