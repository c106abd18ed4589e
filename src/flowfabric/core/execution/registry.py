"""The worker registry: which workers are alive, what they can run, and when they last reported.

It is advisory: it authorises nothing and ends no lease. A worker need not register to claim.
"""

import unicodedata
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import replace

from flowfabric.core.base.document import Document
from flowfabric.core.base.errors import Contention, Invalid
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.json import check_json
from flowfabric.core.base.numbers import check_flag, check_kind_of, check_names, check_whole
from flowfabric.core.base.text import (
    check_kind,
    check_lane,
    check_namespace,
    check_text,
    check_worker,
)
from flowfabric.core.base.time import Millis, check_span
from flowfabric.core.execution.mismatch import check_fingerprint
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.routing import check_capabilities

MAX_MARK_REASON = 256
FOREVER = Millis(2**63 - 1)


class Presence(Document, frozen=True, kw_only=True, omit_defaults=True):
    """One worker process. `running` is what it held at its last heartbeat.

    No lanes or no kinds means any. `everywhere` means that it claims from every namespace; its
    entry is in one namespace all the same.

    `code` has the fingerprint of its code for each task, as far as it says so.

    `marked_at` and `reason` are set while the leases of a worker marked dead are being revoked.
    `version` identifies the last write; the next write compares it. Every registration starts with
    a new version, so that an entry is never mistaken for an earlier one.
    """

    worker: str
    instance: str
    namespace: str = "default"
    everywhere: bool = False
    lanes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    concurrency: int = 1
    running: int = 0
    code: dict[str, str] = field(default_factory=dict)
    ttl: Millis = Millis(30_000)
    registered_at: Millis = Millis(0)
    seen_at: Millis = Millis(0)
    marked_at: Millis | None = None
    reason: str = ""
    version: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """The sort key of a list, and so its cursor."""
        return self.namespace, self.instance

    @property
    def expires_at(self) -> Millis:
        return Millis(self.seen_at + self.ttl)

    @property
    def kept_until(self) -> Millis:
        """A marked entry does not expire; it is removed when its leases are gone."""
        return self.expires_at if self.marked_at is None else FOREVER

    @property
    def load(self) -> float:
        """The share of its concurrency in use; 1.0 if it is full."""
        return self.running / self.concurrency

    @property
    def identity(self) -> WorkerIdentity:
        return WorkerIdentity(self.worker, self.instance)

    def alive(self, now: Millis) -> bool:
        return self.marked_at is None and self.expires_at > now


class HeldLease(Struct, frozen=True):
    """A lease that a worker holds according to the store."""

    id: ExecutionId
    lease_id: UUID
    epoch: int
    attempt: int
    worker: WorkerIdentity
    namespace: str
    lane: str
    kind: str
    since: Millis
    expires_at: Millis


class Registered(Struct, frozen=True):
    expires_at: Millis


class Refreshed(Struct, frozen=True):
    expires_at: Millis


class NotRegistered(Struct, frozen=True):
    """The worker has no live entry: register again."""


class Marked(Struct, frozen=True):
    """The worker was removed from the registry; `revoked` leases were revoked."""

    revoked: int = 0


class Wanted(Struct, frozen=True, kw_only=True):
    """A filter over workers; members at their default do not filter. `alive` is True for live
    workers, False for expired or marked ones, None for both."""

    lane: str | None = None
    kind: str | None = None
    capabilities: frozenset[str] = frozenset()
    alive: bool | None = True

    def has(self, entry: Presence, now: Millis) -> bool:
        return (
            (self.alive is None or entry.alive(now) == self.alive)
            and (self.lane is None or not entry.lanes or self.lane in entry.lanes)
            and (self.kind is None or not entry.kinds or self.kind in entry.kinds)
            and self.capabilities.issubset(entry.capabilities)
        )


def check_presence(presence: object) -> Presence:
    """`presence` with only the members that a worker may set itself."""
    checked = check_kind_of(presence, Presence, "presence")
    check_worker(checked.worker, "worker")
    check_worker(checked.instance, "instance")
    check_namespace(checked.namespace)
    check_flag(checked.everywhere, "everywhere")
    for lane in check_names(checked.lanes, "lanes"):
        check_lane(lane)
    for kind in check_names(checked.kinds, "kinds"):
        check_kind(kind)
    for kind, fingerprint in check_kind_of(checked.code, dict, "code").items():
        check_kind(kind)
        check_fingerprint(fingerprint)
    check_whole(checked.concurrency, "concurrency", 1)
    check_whole(checked.running, "running")
    ttl = check_span(checked.ttl, "ttl", 1)
    check_json(check_kind_of(checked.unknown, dict, "unknown members"), "unknown members")
    capabilities = check_capabilities(checked.capabilities, "worker")
    return replace(checked, capabilities=capabilities, ttl=ttl, marked_at=None, reason="")


def check_wanted(lane: object, kind: object, capabilities: object, alive: object) -> Wanted:
    names = check_names(capabilities, "capabilities")
    return Wanted(
        lane=None if lane is None else check_lane(lane),
        kind=None if kind is None else check_kind(kind),
        capabilities=frozenset(check_capabilities(names, "worker")),
        alive=None if alive is None else check_flag(alive, "alive"),
    )


def check_reason(reason: object) -> str:
    text = check_text(reason, "reason", limit=MAX_MARK_REASON)
    if any(unicodedata.category(character) == "Cc" for character in text):
        raise Invalid("the reason contains control characters")
    return text


def register(
    old: Presence | None, now: Millis, new: Presence, first_version: int
) -> tuple[Presence, Registered | Refreshed]:
    """The entry of a worker that says what it is. A live instance never changes its worker, and
    one that was marked dead stays so until its leases are revoked."""
    if old is not None and old.marked_at is not None:
        raise Contention(
            f"instance {new.instance!r} was marked dead and its leases are being revoked"
        )
    known = old is not None and old.alive(now)
    if known and old is not None and old.worker != new.worker:
        raise Invalid(
            f"instance_id reassigned: instance {new.instance!r} belongs to worker {old.worker!r}"
        )
    entry = replace(new, registered_at=now, seen_at=now, version=first_version)
    return entry, Refreshed(entry.expires_at) if known else Registered(entry.expires_at)


def beat(
    old: Presence | None, now: Millis, running: int, worker: str | None
) -> tuple[Presence | None, Refreshed | NotRegistered]:
    """The entry after a heartbeat, unless it has run out, is marked dead or is another worker's."""
    if old is None or worker not in (None, old.worker) or not old.alive(now):
        return old, NotRegistered()
    entry = replace(old, seen_at=now, running=running)
    return entry, Refreshed(entry.expires_at)


def leave(
    old: Presence | None, now: Millis, worker: str | None
) -> tuple[Presence | None, Marked | NotRegistered]:
    """Nothing is left of a worker that stops. An entry that is marked dead, or is another worker's,
    stays."""
    if old is None or old.marked_at is not None or worker not in (None, old.worker):
        return old, NotRegistered()
    return None, Marked()


def mark_dead(
    old: Presence | None, now: Millis, reason: str, *, revoke: bool
) -> tuple[Presence | None, Marked | NotRegistered]:
    """The entry of a dead worker goes at once, or stays marked until its leases are revoked."""
    if old is None or (old.marked_at is not None and not revoke):
        return old, NotRegistered()
    if not revoke:
        return None, Marked()
    marked = old if old.marked_at is not None else replace(old, marked_at=now, reason=reason)
    return marked, Marked()


def is_its(entry: Presence, worker: WorkerIdentity, namespace: str) -> bool:
    """Whether a lease of that worker in that namespace belongs to the entry."""
    return worker == entry.identity and (entry.everywhere or namespace == entry.namespace)


def falls_with(entry: Presence, lease: HeldLease) -> bool:
    """Whether marking the worker dead revokes the lease. Leases taken after the mark stay: they
    prove that the worker lives, and revoking them might never end."""
    return (
        entry.marked_at is not None
        and lease.since <= entry.marked_at
        and is_its(entry, lease.worker, lease.namespace)
    )
