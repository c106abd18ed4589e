"""How the registry's rows become values, the same for every store."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.registry import HeldLease
from flowfabric.store.queries import Holding


def read_held(row: Sequence[Any], read_uuid: Callable[[Any], UUID]) -> HeldLease:
    """From a row of `held_leases`."""
    id, flow, namespace, lane, kind, claim, epoch, attempt, name, instance, since, expires_at = row
    uuid = read_uuid(id)
    solo = flow is None
    return HeldLease(
        id=ExecutionId.solo(lane, uuid) if solo else ExecutionId.member(read_uuid(flow), uuid),
        lease_id=read_uuid(claim),
        epoch=epoch,
        attempt=attempt,
        worker=WorkerIdentity(name, instance),
        namespace=namespace,
        lane=lane,
        kind=kind,
        since=since,
        expires_at=expires_at,
    )


def read_holding(row: Sequence[Any]) -> Holding:
    """From a row of `held_counts`."""
    name, instance, namespace, leases = row
    return Holding(WorkerIdentity(name, instance), namespace, leases)
