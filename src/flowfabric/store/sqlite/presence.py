"""The worker registry: one row per worker process."""

from flowfabric.core import document
from flowfabric.core.registry import Presence
from flowfabric.core.time import Millis
from flowfabric.store.sqlite.session import Session


def presence(session: Session, namespace: str, instance: str) -> Presence | None:
    row = session.row("presence", {"namespace": namespace, "instance": instance})
    return None if row is None else document.read(Presence, bytes(row[0]))


def presences(session: Session, namespace: str, after: str, limit: int) -> list[Presence]:
    values = {"namespace": namespace, "after": after, "limit": limit}
    return [document.read(Presence, bytes(doc)) for (doc,) in session.rows("presences", values)]


def put_presence(session: Session, presence: Presence, fresh: bool) -> bool:
    values = {
        "namespace": presence.namespace,
        "instance": presence.instance,
        "expires_at": presence.expires_at,
        "doc": document.write(presence),
    }
    name = "new_presence" if fresh else "changed_presence"
    return session.row(name, values) is not None


def drop_presence(session: Session, namespace: str, instance: str) -> bool:
    values = {"namespace": namespace, "instance": instance}
    return session.row("dropped_presence", values) is not None


def drop_lapsed_presences(session: Session, now: Millis) -> int:
    return len(session.rows("lapsed_presences", {"now": now}))
