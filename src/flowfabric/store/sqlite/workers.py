"""The leases workers hold."""

from collections.abc import Sequence
from uuid import UUID

from msgspec.json import encode

from flowfabric.core.execution.registry import HeldLease
from flowfabric.store.queries import Holding
from flowfabric.store.rows.worker import read_held, read_holding
from flowfabric.store.sqlite.session import SqliteSession, read_uuid


def held_leases(
    session: SqliteSession,
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


def held_counts(session: SqliteSession, instances: Sequence[str]) -> list[Holding]:
    values = {"instances": encode(list(instances)).decode()}
    return [read_holding(row) for row in session.rows("held_counts", values)]
