"""Signals by name, from the application itself: no token, and nobody need be waiting yet.

A name is a waitpoint's key. Where nothing of that name is open, a *channel* is: a waitpoint that
belongs to the execution as long as it lives, so that a signal is never early.
"""

from uuid import UUID, uuid5

from msgspec.structs import replace

from flowfabric.core.change import Change
from flowfabric.core.errors import NoSigningKey, NotFound, NotSignalable
from flowfabric.core.execution import Ended, Flags, Snapshot
from flowfabric.core.lease import present
from flowfabric.core.signal import (
    Accepted,
    Delivery,
    DuplicateSignal,
    ask_to_deliver,
    deliver,
)
from flowfabric.core.time import Millis
from flowfabric.core.waits import NO_WAITS, Ask, Memory, Pending, Waitpoint


def waitpoint_id(execution: UUID, generation: int, *parts: str) -> UUID:
    """A waitpoint's id that is the same whenever the same is asked for."""
    sized = "".join(f"{len(part)}:{part}" for part in parts)
    return uuid5(execution, f"waitpoint:{generation}:{sized}")


def channel_id(snapshot: Snapshot, name: str) -> UUID:
    return waitpoint_id(snapshot.execution.uuid, snapshot.life.generation, "channel", name)


def open_waitpoint(snapshot: Snapshot, key: str) -> Pending | None:
    """The open waitpoint of that key: one that is waited at, else one that is pending."""
    waits = snapshot.life.waits or NO_WAITS
    return next((p for p in (*waits.active, *waits.pending) if p.key == key), None)


def ask_to_send(snapshot: Snapshot | None, name: str, delivery: Delivery) -> Ask | None:
    if snapshot is None:
        return None
    return ask_to_deliver(snapshot, _addressed(snapshot, name, delivery))


def send(
    snapshot: Snapshot | None,
    now: Millis,
    name: str,
    delivery: Delivery,
    kid: str | None,
    memory: Memory,
) -> "Change[Accepted | DuplicateSignal]":
    """Delivers a signal to whatever waits for that name, now or later."""
    snapshot = present(snapshot)
    if isinstance(snapshot.state, Ended):
        raise NotSignalable("the execution has ended")
    addressed = _addressed(snapshot, name, delivery)
    if addressed.waitpoint in memory.waitpoints:
        return deliver(snapshot, now, addressed, None, memory)
    if kid is None:
        raise NoSigningKey("seed a key before anything waits for signals")
    channel = Waitpoint(
        id=addressed.waitpoint,
        execution=snapshot.execution.uuid,
        key=name,
        created_at=now,
        kid=kid,
    )
    memory.waitpoints[channel.id] = channel
    change = deliver(_with_channel(snapshot, channel), now, addressed, None, memory)
    return replace(change, before=snapshot, waitpoints=(channel,))


def decide(
    snapshot: Snapshot | None, now: Millis, name: str, delivery: Delivery, memory: Memory
) -> "Change[Accepted | DuplicateSignal]":
    """Delivers an approver's decision to the approval of that name, which must have been asked
    for."""
    snapshot = present(snapshot)
    addressed = _addressed(snapshot, name, delivery)
    if isinstance(snapshot.state, Ended):
        raise NotSignalable("the execution has ended")
    if open_waitpoint(snapshot, name) is None:
        raise NotFound("approval", name)
    return deliver(snapshot, now, addressed, None, memory)


def _addressed(snapshot: Snapshot, name: str, delivery: Delivery) -> Delivery:
    found = open_waitpoint(snapshot, name)
    target = channel_id(snapshot, name) if found is None else found.id
    return replace(delivery, waitpoint=target)


def _with_channel(snapshot: Snapshot, channel: Waitpoint) -> Snapshot:
    waits = snapshot.life.waits or NO_WAITS
    pending = (*waits.pending, Pending(channel.id, channel.key))
    life = replace(snapshot.life, waits=replace(waits, pending=pending))
    head = replace(snapshot.head, life=life, flags=snapshot.head.flags | Flags.WAITPOINTS)
    return replace(snapshot, head=head)
