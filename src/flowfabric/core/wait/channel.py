"""Signals by name, from the application itself: without a token, and never too early.

A name is a waitpoint's key. Where no waitpoint of that name is open, a *channel* is opened: a
waitpoint that lasts as long as the execution. From there on a signal is delivered as every other
is (`signal.deliver`).

Which waitpoint has the name changes with time, so a repeat is recognised by the name: a sender that
never saw the answer sends again, and the signal must not count twice.
"""

from functools import lru_cache
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
)
from flowfabric.core.base.ids import derive_uuid
from flowfabric.core.base.redact import without_secrets
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.lease import present
from flowfabric.core.execution.model import Ended, Snapshot
from flowfabric.core.wait.model import (
    DedupRecord,
    Loaded,
    Needs,
    Pending,
    Waitpoint,
    dedup_key,
)
from flowfabric.core.wait.signal import (
    Accepted,
    Delivery,
    DuplicateSignal,
    SignalAnswer,
    deliver,
    needs_to_deliver,
)
from flowfabric.core.wait.waitpoint import new_waitpoint, with_pending


@lru_cache(maxsize=4096)
def waitpoint_id(execution: UUID, generation: int, *parts: str) -> UUID:
    """A waitpoint's id that is the same whenever the same is asked for."""
    sized = "".join(f"{len(part)}:{part}" for part in parts)
    return derive_uuid(execution, f"waitpoint:{generation}:{sized}")


def channel_id(snapshot: Snapshot, name: str) -> UUID:
    return waitpoint_id(snapshot.execution.uuid, _generation(snapshot), "channel", name)


def _generation(snapshot: Snapshot) -> int:
    """The generation of its channels. A replay from a chosen step keeps them, with the signals
    that nothing has used so far."""
    life = snapshot.life
    return life.generation if life.channels is None else life.channels


def needs_to_send(snapshot: Snapshot | None, name: str, delivery: Delivery) -> Needs | None:
    """What `send` and `decide` read: about every waitpoint that may have the name by the time the
    signal is decided, since rules that are decided before it may open and close some."""
    if snapshot is None:
        return None
    waits = snapshot.waits
    targets = {p.id for p in waits.open if p.key == name} | {channel_id(snapshot, name)}
    needs = [needs_to_deliver(snapshot, replace(delivery, waitpoint=each)) for each in targets]
    keys = {key for each in needs if each is not None for key in each.dedup}
    if waits.signals:  # only an accepted signal leaves these
        keys |= {*_sent_keys(snapshot, name, delivery), _decided_key(snapshot, name, delivery)}
    return Needs(snapshot.execution.uuid, waitpoints=tuple(targets), dedup=tuple(keys))


def send(
    snapshot: Snapshot | None,
    now: Millis,
    loaded: Loaded,
    name: str,
    delivery: Delivery,
    kid: str | None,
) -> "Change[SignalAnswer]":
    """Delivers a signal to the first open waitpoint of that name, or to its channel."""
    snapshot = present(snapshot)
    known = _sent_before(snapshot, now, loaded, name, delivery)
    if known is not None:
        return unchanged(DuplicateSignal(known))
    if isinstance(snapshot.state, Ended):
        raise NotSignalable(f"{snapshot.run} has ended")
    found = _open_waitpoints(snapshot, now, name)
    target = found[0].id if found else channel_id(snapshot, name)
    addressed = replace(delivery, waitpoint=target)
    if target in loaded.waitpoints:
        change = deliver(snapshot, now, loaded, addressed)
    else:
        channel = new_waitpoint(snapshot, now, target, name, kid)
        change = _deliver_to_new(snapshot, now, loaded, channel, addressed)
    return _with_sent(change, snapshot, now, name, delivery)


def decide(
    snapshot: Snapshot | None, now: Millis, loaded: Loaded, name: str, delivery: Delivery
) -> "Change[SignalAnswer]":
    """Delivers an approver's decision to the approval of that name, which must have been asked
    for."""
    snapshot = present(snapshot)
    known = _sent_before(snapshot, now, loaded, name, delivery)
    if known is not None:
        return unchanged(DuplicateSignal(known))
    ended = isinstance(snapshot.state, Ended)
    approval = None if ended else _open_approval(snapshot, now, loaded, name)
    if approval is None:
        before = _decided(snapshot, loaded, name, delivery)
        if before is not None:
            return unchanged(DuplicateSignal(before))
        shown = without_secrets(name)
        over = NotSignalable(f"{snapshot.run} has ended")
        raise over if ended else NotFound("approval", shown)
    change = deliver(snapshot, now, loaded, replace(delivery, waitpoint=approval.id))
    change = _with_sent(change, snapshot, now, name, delivery)
    return _with_decision(change, snapshot, delivery, approval)


def decide_at(
    snapshot: Snapshot | None, now: Millis, loaded: Loaded, delivery: Delivery
) -> "Change[SignalAnswer]":
    """The same at the waitpoint that the delivery names."""
    waitpoint = loaded.waitpoints.get(delivery.waitpoint)
    if waitpoint is not None and waitpoint.terms is None:
        raise NotAllowed("this waitpoint is not an approval")
    change = deliver(snapshot, now, loaded, delivery)
    return _with_decision(
        change, present(snapshot), delivery, loaded.waitpoints[delivery.waitpoint]
    )


def _open_waitpoints(snapshot: Snapshot, now: Millis, name: str) -> list[Pending]:
    """The open waitpoints of that name: those that are waited at, then those that are pending."""
    waits = snapshot.waits
    pending = (p for p in waits.pending if not p.has_expired(now))
    return [p for p in (*waits.active, *pending) if p.key == name]


def _open_approval(snapshot: Snapshot, now: Millis, loaded: Loaded, name: str) -> Waitpoint | None:
    """The open approval of that name; other waitpoints of the name do not matter."""
    found = (loaded.waitpoints.get(p.id) for p in _open_waitpoints(snapshot, now, name))
    return next((each for each in found if each is not None and each.terms is not None), None)


def _deliver_to_new(
    snapshot: Snapshot, now: Millis, loaded: Loaded, channel: Waitpoint, delivery: Delivery
) -> "Change[SignalAnswer]":
    """On copies of snapshot and `loaded`: if the delivery is refused, no channel was opened."""
    known = {**loaded.waitpoints, channel.id: channel}
    opened = with_pending(snapshot, Pending(channel.id, channel.key))
    richer = Loaded(known, loaded.dedup, loaded.signals)
    change = deliver(opened, now, richer, delivery)
    return replace(change, before=snapshot, waitpoints=(channel,))


# -- repeats of a signal to the same name


def _sent_keys(snapshot: Snapshot, name: str, delivery: Delivery) -> tuple[bytes, ...]:
    """What a repeat is known by: its signal id, and its idempotency key if it has one."""
    scope = (str(_generation(snapshot)), name)
    by_id = dedup_key("sent", *scope, delivery.id.bytes)
    if not delivery.idempotency_key:
        return (by_id,)
    return by_id, dedup_key("sent again", *scope, delivery.idempotency_key)


def _sent_before(
    snapshot: Snapshot, now: Millis, loaded: Loaded, name: str, delivery: Delivery
) -> UUID | None:
    found = (loaded.dedup.get(key) for key in _sent_keys(snapshot, name, delivery))
    return next((UUID(bytes=each.doc) for each in found if each and each.stands(now)), None)


def _with_sent(
    change: "Change[SignalAnswer]", snapshot: Snapshot, now: Millis, name: str, delivery: Delivery
) -> "Change[SignalAnswer]":
    if not isinstance(change.outcome, Accepted):
        return change
    signal = change.outcome.signal.bytes
    untils = (None, Millis(now + delivery.dedup_ttl))
    keys = _sent_keys(snapshot, name, delivery)
    sent = (DedupRecord(key, until, signal) for key, until in zip(keys, untils, strict=False))
    return replace(change, dedup=(*change.dedup, *sent))


# -- repeats of an approver's decision


class _Decided(Struct, frozen=True, array_like=True):
    """The last decision of an approver on an approval of some name."""

    signal: UUID
    decision: str
    about: str | None


def _decided_key(snapshot: Snapshot, name: str, delivery: Delivery) -> bytes:
    return dedup_key("decided", str(snapshot.life.generation), name, delivery.source)


def _decided(snapshot: Snapshot, loaded: Loaded, name: str, delivery: Delivery) -> UUID | None:
    """The signal with which this approver decided the same, when no approval of the name is open:
    an approver that never saw the answer sends the decision that ended it again."""
    record = loaded.dedup.get(_decided_key(snapshot, name, delivery))
    if record is None:
        return None
    before = msgspec.json.decode(record.doc, type=_Decided)
    if delivery.about not in (None, before.about):
        raise ApprovalOutdated("what was to be approved is not what the sender approves")
    if before.decision != delivery.name:
        raise AlreadyDecided(f"decided before: {before.decision[:80]}")
    return before.signal


def _with_decision(
    change: "Change[SignalAnswer]", snapshot: Snapshot, delivery: Delivery, waitpoint: Waitpoint
) -> "Change[SignalAnswer]":
    if not isinstance(change.outcome, Accepted):
        return change
    about = None if waitpoint.terms is None else waitpoint.terms.about
    decided = _Decided(change.outcome.signal, delivery.name, about)
    key = _decided_key(snapshot, waitpoint.key, delivery)
    record = DedupRecord(key, doc=msgspec.json.encode(decided))
    return replace(change, dedup=(*change.dedup, record))
