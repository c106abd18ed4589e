"""Whatever way a worker came to its lease, the same ownership stands behind it."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.core.base.errors import NotActive, StaleLease
from flowfabric.core.execution.handle import HandleKind
from flowfabric.core.execution.lease import Revoked
from flowfabric.core.execution.model import AttemptOutcome, WorkerIdentity
from flowfabric.core.execution.operator import Cancelled
from flowfabric.core.execution.status import Ownership
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import TTL, W1, W2, Lab

RETRY = {"retry_policy": {"max_retries": 9, "backoff": {"type": "fixed", "delay_ms": 0}}}

Take = Callable[[Lab], Awaitable[Claim]]


async def fresh(lab: Lab) -> Claim:
    return await lab.running(policy=RETRY)


async def granted(lab: Lab) -> Claim:
    id = await lab.submit(policy=RETRY)
    await lab.engine.grants.issue(id, "w1")
    return await lab.engine.grants.claim(id, W1, ttl=TTL)


async def taken_by_operator(lab: Lab) -> Claim:
    return await lab.engine.grants.take(await lab.submit(policy=RETRY), ttl=TTL)


async def retried(lab: Lab) -> Claim:
    await lab.fail(await fresh(lab))
    return await lab.claim_one()


async def resumed(lab: Lab) -> Claim:
    await lab.engine.attempts.hand_back(await fresh(lab))
    return await lab.claim_one()


async def resumed_by_grant(lab: Lab) -> Claim:
    claim = await fresh(lab)
    await lab.engine.attempts.hand_back(claim)
    await lab.engine.grants.issue(claim.id, "w1")
    return await lab.engine.grants.claim_resumed(claim.id, W1, ttl=TTL)


async def replayed(lab: Lab) -> Claim:
    claim = await fresh(lab)
    await lab.complete(claim)
    await lab.engine.executions.replay(claim.id)
    return await lab.claim_one()


async def reclaimed(lab: Lab) -> Claim:
    await lab.lose(await fresh(lab))
    return await lab.claim_one()


WAYS: list[Take] = [
    fresh, granted, taken_by_operator, retried, resumed, resumed_by_grant, replayed, reclaimed,
]  # fmt: skip
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


@ways
async def test_cancel_finds_the_leased_attempt_after_every_kind_of_claim(
    lab: Lab, way: Take
) -> None:
    """E-X13"""
    claim = await way(lab)
    assert await lab.engine.executions.cancel(claim.id, reason="no") == Cancelled(claim.id)
    with pytest.raises(NotActive) as caught:
        await lab.engine.attempts.progress(claim, 1)
    assert (caught.value.epoch, caught.value.attempt_id) == (claim.epoch, claim.attempt_id)
    attempts = await lab.engine.views.attempts(claim.id)
    assert [attempt.index for attempt in attempts] == list(range(claim.attempt + 1))
    assert attempts[-1].outcome is AttemptOutcome.CANCELLED
    assert all(attempt.outcome.final for attempt in attempts)


@ways
async def test_revoke_and_reclaim_find_the_leased_attempt_after_every_kind_of_claim(
    lab: Lab, way: Take
) -> None:
    """E-X13, INV-3"""
    claim = await way(lab)
    revoked = await lab.engine.claims.revoke(claim.id, reason="no", lease_id=claim.lease.id)
    assert revoked == Revoked(claim.lease.id, claim.epoch)
    rescue = await lab.claim_one(W2)
    assert (rescue.id, rescue.attempt) == (claim.id, claim.attempt + 1)
    assert (rescue.epoch, rescue.handle_kind) == (claim.epoch + 1, HandleKind.RECLAIMED)
    with pytest.raises(StaleLease):
        await lab.complete(claim)
    outcomes = [attempt.outcome for attempt in await lab.engine.views.attempts(claim.id)]
    assert outcomes[-2:] == [AttemptOutcome.RECLAIMED, AttemptOutcome.STARTED]
    await lab.complete(rescue)


@ways
async def test_the_lease_of_every_kind_of_claim_runs_out(lab: Lab, way: Take) -> None:
    """E-X13"""
    claim = await way(lab)
    await lab.pass_time(TTL - 1)
    assert (await lab.vector(claim.id)).ownership is Ownership.LEASED
    await lab.pass_time(1)
    assert (await lab.vector(claim.id)).ownership is Ownership.EXPIRED
    assert (await lab.claim_one(W2)).id == claim.id


async def test_the_epoch_grows_with_every_lease_and_never_falls(lab: Lab) -> None:
    """E-X14, INV-2"""
    seen = []
    claim = await fresh(lab)
    seen.append((claim.epoch, claim.attempt, claim.handle_kind))
    steps: list[Callable[[Claim], Awaitable[Any]]] = [
        lab.fail,
        lambda held: lab.engine.attempts.delay(held, lab.clock.now()),
        lab.lose,
        lambda held: lab.engine.claims.revoke(held.id, reason="no"),
        lab.engine.attempts.hand_back,
        lambda held: _complete_and_replay(lab, held),
        lab.fail,
    ]
    for step in steps:
        await step(claim)
        claim = await lab.claim_one(WorkerIdentity("w1", f"w1-{claim.epoch}"))
        seen.append((claim.epoch, claim.attempt, claim.handle_kind))
    assert seen == [
        (1, 0, HandleKind.FRESH),
        (2, 1, HandleKind.FRESH),
        (3, 1, HandleKind.RESUMED),
        (4, 2, HandleKind.RECLAIMED),
        (5, 3, HandleKind.RECLAIMED),
        (6, 3, HandleKind.RESUMED),
        (7, 4, HandleKind.FRESH),
        (8, 5, HandleKind.FRESH),
    ]
    acquired = [event.epoch for event in await lab.events(claim.id) if event.kind <= 3]
    assert acquired == list(range(1, 9))


async def _complete_and_replay(lab: Lab, claim: Claim) -> None:
    await lab.complete(claim)
    await lab.engine.executions.replay(claim.id)
