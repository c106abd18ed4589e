"""Events of the worker registry: one for each transition of an entry, none for a heartbeat."""

from collections.abc import Sequence
from typing import Any

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, RegistryEvent
from flowfabric.core.execution.registry import Presence


def on_register(
    before: Presence | None, after: Presence | None, now: Millis
) -> Sequence[RegistryEvent]:
    """A worker that says the same as before has changed nothing. In place of an entry that ran out
    and was not swept yet it is new, and the sweep will not see the old one: both are reported."""
    if after is None:
        return ()
    if before is None:
        return (_event(after, now, EventKind.WORKER_REGISTERED, _offer(after)),)
    if not before.alive(now):
        return (
            expired(before.namespace, before.instance, before, now),
            _event(after, now, EventKind.WORKER_REGISTERED, _offer(after)),
        )
    if _offer(before) == _offer(after) and before.code == after.code:
        return ()
    return (_event(after, now, EventKind.WORKER_CHANGED, _offer(after)),)


def on_leave(
    before: Presence | None, after: Presence | None, now: Millis
) -> Sequence[RegistryEvent]:
    if before is None or after is not None:
        return ()
    return (_event(before, now, EventKind.WORKER_DEREGISTERED, {}),)


def on_mark_dead(
    before: Presence | None, after: Presence | None, now: Millis, reason: str
) -> Sequence[RegistryEvent]:
    """Marking an entry again is not a transition, nor is its removal later."""
    if before is None or before.marked_at is not None:
        return ()
    return (_event(before, now, EventKind.WORKER_MARKED_DEAD, {"reason": reason}),)


def expired(namespace: str, instance: str, presence: Presence | None, now: Millis) -> RegistryEvent:
    """The event of an entry that ran out; `presence` is None if it cannot be read."""
    detail: dict[str, Any] = {"instance": instance}
    if presence is not None:
        detail |= {"worker": presence.worker, "seen_at": presence.seen_at}
    return RegistryEvent(namespace, now, EventKind.WORKER_EXPIRED, detail)


def _event(presence: Presence, now: Millis, kind: EventKind, more: dict[str, Any]) -> RegistryEvent:
    detail = {"worker": presence.worker, "instance": presence.instance, **more}
    return RegistryEvent(presence.namespace, now, kind, detail)


def _offer(presence: Presence) -> dict[str, Any]:
    """What a worker says that it can do."""
    return {
        "lanes": list(presence.lanes),
        "kinds": list(presence.kinds),
        "capabilities": list(presence.capabilities),
        "concurrency": presence.concurrency,
        "everywhere": presence.everywhere,
    }
