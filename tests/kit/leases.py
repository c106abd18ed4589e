"""Leases that run, are lost and are reclaimed, and what can be seen of them."""

from typing import Any

from flowfabric.core.base.ids import ExecutionId, new_uuid7
from flowfabric.core.execution.grant import Granted
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.status import (
    AttemptState,
    Blocking,
    Eligibility,
    Ownership,
    Phase,
    Vector,
)
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.execution.described import Description, LeaseView
from tests.kit.lab import TTL, W2, Lab

UNKNOWN = ExecutionId.solo("default", new_uuid7(1, 1))
"""The id of no execution."""

RUNNING = Vector(
    Phase.ACTIVE,
    Ownership.LEASED,
    Eligibility.NOT_APPLICABLE,
    Blocking.NONE,
    "none",
    AttemptState.RUNNING,
)


def lost_vector(ownership: Ownership) -> Vector:
    """How a lease that was lost in this way looks."""
    return Vector(
        Phase.ACTIVE,
        ownership,
        Eligibility.NOT_APPLICABLE,
        Blocking.WORKER,
        "none",
        AttemptState.INTERRUPTED,
    )


async def lost(lab: Lab, **members: Any) -> Claim:
    """An execution whose lease ran out; the claim is the one that was lost."""
    claim = await lab.running(**members)
    await lab.lose(claim)
    return claim


async def lost_after(lab: Lab, reclaims: int, **members: Any) -> Claim:
    """An execution that was reclaimed so often already, and is lost again."""
    claim = await lost(lab, **members)
    for _ in range(reclaims):
        claim = await lab.claim_one()
        await lab.lose(claim)
    return claim


async def reclaim(lab: Lab, id: str, worker: WorkerIdentity = W2, **options: Any) -> Claim:
    """Granted and redeemed."""
    assert isinstance(await lab.engine.grants.issue_reclaim(id, worker.id), Granted)
    claim = await lab.engine.grants.reclaim(id, worker, ttl=TTL, **options)
    assert isinstance(claim, Claim)
    return claim


async def describe(lab: Lab, id: str) -> Description:
    description = await lab.engine.views.describe(id)
    assert description is not None
    return description


async def lease_of(lab: Lab, id: str) -> LeaseView | None:
    return (await describe(lab, id)).lease
