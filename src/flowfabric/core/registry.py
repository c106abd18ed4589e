"""The worker registry: which workers are there, what they can run, and when they last said so.

Advisory: it authorises nothing and ends no lease. A worker need not register to claim.
"""

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.check import check_whole
from flowfabric.core.document import Document
from flowfabric.core.errors import Invalid
from flowfabric.core.routing import check_capabilities
from flowfabric.core.text import check_kind, check_lane, check_namespace, check_text, check_worker
from flowfabric.core.time import MAX_SPAN, Millis

MAX_MARK_REASON = 256


class Presence(Document, frozen=True, kw_only=True, omit_defaults=True):
    """One worker process. `running` is what it held at its last heartbeat."""

    worker: str
    instance: str
    namespace: str = "default"
    lanes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    concurrency: int = 1
    running: int = 0
    ttl: Millis = Millis(30_000)
    registered_at: Millis = Millis(0)
    seen_at: Millis = Millis(0)

    @property
    def expires_at(self) -> Millis:
        return Millis(self.seen_at + self.ttl)

    def alive(self, now: Millis) -> bool:
        return self.expires_at > now


class Registered(Struct, frozen=True):
    expires_at: Millis


class Refreshed(Struct, frozen=True):
    expires_at: Millis


class NotRegistered(Struct, frozen=True):
    """Nobody of that name is there (any more): register again."""


class Marked(Struct, frozen=True):
    """The worker was taken off the registry."""


def check_presence(presence: Presence) -> Presence:
    check_worker(presence.worker, "worker")
    check_worker(presence.instance, "instance")
    check_namespace(presence.namespace)
    for lane in presence.lanes:
        check_lane(lane)
    for kind in presence.kinds:
        check_kind(kind)
    check_whole(presence.concurrency, "concurrency", 1)
    check_whole(presence.running, "running")
    check_whole(presence.ttl, "ttl", 1, MAX_SPAN)
    return replace(presence, capabilities=check_capabilities(presence.capabilities, "worker"))


def register(
    old: Presence | None, new: Presence, now: Millis
) -> tuple[Presence, Registered | Refreshed]:
    """The entry of a worker that says what it is; an instance never changes its worker."""
    checked = replace(check_presence(new), registered_at=now, seen_at=now)
    if old is not None and old.alive(now) and old.worker != new.worker:
        raise Invalid(f"instance {new.instance!r} belongs to worker {old.worker!r}")
    known = old is not None and old.alive(now)
    outcome = Refreshed(checked.expires_at) if known else Registered(checked.expires_at)
    return checked, outcome


def beat(old: Presence, now: Millis, running: int) -> Presence | None:
    """The entry after a heartbeat, None when it had run out: the worker must register again."""
    if not old.alive(now):
        return None
    return replace(old, seen_at=now, running=check_whole(running, "running"))


def check_reason(reason: object) -> str:
    text = check_text(reason, "reason", limit=MAX_MARK_REASON)
    if not text.isprintable():
        raise Invalid("the reason contains control characters")
    return text
