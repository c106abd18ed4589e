"""The worker registry: one row per worker process, and the leases workers hold."""

from collections.abc import Sequence
from uuid import UUID

from msgspec.json import encode

from flowfabric.core.base import document
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import FOREVER, HeldLease, Presence
from flowfabric.store.queries import Holding
from flowfabric.store.readable import read_document, readable_documents
from flowfabric.store.rows.worker import read_held, read_holding, stamp_of
from flowfabric.store.sqlite.session import Session, Values, read_uuid


def presence(session: Session, namespace: str, instance: str) -> Presence | None:
    row = session.row("presence", {"namespace": namespace, "instance": instance})
    return None if row is None else read_document(Presence, "worker", row)


def presences(
    session: Session, namespace: str | None, after: tuple[str, str], limit: int
) -> list[Presence]:
    values = {
        "namespace": namespace,
        "after_namespace": after[0],
        "after_instance": after[1],
        "limit": limit,
    }
    return _read(session, "presences", values)


def marked_presences(session: Session, limit: int) -> list[Presence]:
    return _read(session, "marked_presences", {"forever": FOREVER, "limit": limit})


def put_presence(session: Session, presence: Presence, old: Presence | None) -> bool:
    values = {
        "namespace": presence.namespace,
        "instance": presence.instance,
        "expires_at": presence.kept_until,
        "doc": document.write(presence),
    }
    if old is None:
        return session.row("new_presence", values) is not None
    return session.row("changed_presence", {**values, "stamp": stamp_of(old)}) is not None


def drop_presence(session: Session, old: Presence) -> bool:
    values = {"namespace": old.namespace, "instance": old.instance, "stamp": stamp_of(old)}
    return session.row("dropped_presence", values) is not None


def drop_lapsed_presences(session: Session, now: Millis) -> list[tuple[str, str]]:
    return [
        (namespace, instance)
        for namespace, instance in session.rows("lapsed_presences", {"now": now})
    ]


def held_leases(
    session: Session,
    instance: str,
    limit: int,
    *,
    worker: str | None = None,
    namespace: str | None = None,
    after: UUID | None = None,
) -> list[HeldLease]:
    values = {
        "instance": instance,
        "worker": worker,
        "namespace": namespace,
        "after": b"" if after is None else after.bytes,
        "limit": limit,
    }
    return [read_held(row, read_uuid) for row in session.rows("held_leases", values)]


def held_counts(session: Session, instances: Sequence[str]) -> list[Holding]:
    values = {"instances": encode(list(instances)).decode()}
    return [read_holding(row) for row in session.rows("held_counts", values)]


def _read(session: Session, name: str, values: Values) -> list[Presence]:
    return readable_documents(Presence, "worker", session.rows(name, values))
