"""How often an execution may be lost and reclaimed."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.core.errors import (
    LeaseExpired,
    NotActive,
)
from flowfabric.core.event import EventKind, Family
from flowfabric.core.execution import Failure, Outcome, Start, Worker
from flowfabric.core.grant import Granted, GrantNotFound, ReclaimCapExceeded
from flowfabric.core.ids import ExecutionId, new_uuid7
from flowfabric.core.lease import MarkedExpired, Revoked
from flowfabric.core.time import Millis
from flowfabric.core.vector import PublicState
from flowfabric.engine.claims import Claim
from flowfabric.engine.views import Description
from tests.lab import TTL, W2, Lab

NOBODY = ExecutionId.solo("default", new_uuid7(1, 1))
GRANT = Millis(10_000)


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


async def reclaim(lab: Lab, id: str, worker: Worker = W2, **options: Any) -> Claim:
    """Granted and redeemed."""
    assert isinstance(await lab.engine.grants.issue_reclaim(id, worker.id), Granted)
    claim = await lab.engine.grants.reclaim(id, worker, ttl=TTL, **options)
    assert isinstance(claim, Claim)
    return claim


async def describe(lab: Lab, id: str) -> Description:
    description = await lab.engine.views.describe(id)
    assert description is not None
    return description


async def kinds(lab: Lab, id: str) -> list[EventKind]:
    return [event.kind for event in await lab.events(id)]


# -- too often


async def by_the_sweep(lab: Lab, claim: Claim) -> object:
    await lab.pass_time(TTL)
    return None


async def by_marking(lab: Lab, claim: Claim) -> object:
    lab.clock.advance(TTL)
    return await lab.engine.claims.mark_expired(claim.id)


async def by_revoking(lab: Lab, claim: Claim) -> object:
    return await lab.engine.claims.revoke(claim.id, reason="")


async def by_a_reclaim_grant(lab: Lab, claim: Claim) -> object:
    lab.clock.advance(TTL)
    return await lab.engine.grants.issue_reclaim(claim.id, W2.id)


async def by_its_own_owner(lab: Lab, claim: Claim) -> object:
    lab.clock.advance(TTL)
    with pytest.raises(LeaseExpired):
        await lab.engine.attempts.complete(claim)
    return None


WAYS: dict[str, Callable[[Lab, Claim], Awaitable[object]]] = {
    way.__name__: way
    for way in (by_the_sweep, by_marking, by_revoking, by_a_reclaim_grant, by_its_own_owner)
}
POLICIES = [
    {"max_reclaim_count": 2},
    {"max_reclaim_count": 9, "timeout_policy": {"max_reclaim_count": 2}},
]


@pytest.mark.parametrize("policy", POLICIES, ids=["policy", "timeout policy"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_loss_over_the_cap_ends_the_execution_at_once(
    lab: Lab, way: str, policy: dict[str, Any]
) -> None:
    """E-T117, E-T119, INV-5, INV-11: whoever finds the loss ends it, with the attempted count"""
    await lost_after(lab, 1, policy=policy)
    claim = await lab.claim_one()
    assert (await describe(lab, claim.id)).reclaims == 2
    answer = await WAYS[way](lab, claim)
    assert answer in (
        None,
        MarkedExpired(claim.id),
        Revoked(claim.lease.id, 3),
        ReclaimCapExceeded(3),
    )
    await assert_ended_over_the_cap(lab, claim, reclaims=3)
    assert await lab.claim(W2) == []


async def assert_ended_over_the_cap(lab: Lab, claim: Claim, *, reclaims: int) -> None:
    assert await lab.state(claim.id) is PublicState.FAILED
    description = await describe(lab, claim.id)
    assert description.failure == Failure("max_reclaims_exceeded", "infra_crash")
    assert (description.reclaims, description.lease) == (reclaims, None)
    assert description.ended_at == lab.clock.now()
    last = (await lab.engine.views.attempts(claim.id))[-1]
    assert (last.index, last.lease_id, last.outcome, last.ended_at) == (
        claim.attempt,
        claim.lease.id,
        "ended_failure",
        lab.clock.now(),
    )
    [completion] = await lab.events(claim.id, family=Family.COMPLETION)
    assert (completion.completion, completion.lease) == (Outcome.FAILED, "revoked")
    assert (completion.epoch, completion.attempt) == (claim.epoch, claim.attempt)
    assert (completion.reason, completion.worker) == (
        "max_reclaims_exceeded",
        claim.lease.worker,
    )
    leases = [event.lease for event in await lab.events(claim.id, family=Family.LEASE)]
    assert leases.count("revoked") == 1


@pytest.mark.parametrize(("count", "cap"), [(0, 0), (4, 4), (5, 5), (5, 3)])
async def test_a_redemption_over_the_cap_ends_the_execution(lab: Lab, count: int, cap: int) -> None:
    """E-T117, E-T118, E-T119: an argument below the policy's cap, reported as attempted"""
    claim = await lost_after(lab, count)
    await lab.engine.grants.issue_reclaim(claim.id, W2.id)
    lab.clock.advance(5)
    answer = await lab.engine.grants.reclaim(claim.id, W2, max_reclaims=cap)
    assert answer == ReclaimCapExceeded(count + 1)
    await assert_ended_over_the_cap(lab, claim, reclaims=count + 1)
    assert await lab.engine.grants.reclaim(claim.id, W2) == GrantNotFound()


async def test_a_redemption_that_reaches_the_cap_is_good(lab: Lab) -> None:
    """§3.11: reclaim_count + 1 ≤ cap"""
    old = await lost_after(lab, 2)
    claim = await reclaim(lab, old.id, max_reclaims=3)
    assert claim.attempt == 3


async def test_the_old_owner_is_told_that_all_is_over(lab: Lab) -> None:
    """INV-4: its own failure is what happened, anything else is refused"""
    claim = await lost(lab, policy={"max_reclaim_count": 0})
    await assert_ended_over_the_cap(lab, claim, reclaims=1)
    with pytest.raises(NotActive) as refusal:
        await lab.engine.attempts.complete(claim)
    assert (refusal.value.outcome, refusal.value.epoch) == ("failed", 1)
    assert refusal.value.attempt_id == claim.attempt_id


async def test_a_replay_after_too_many_losses_is_within_the_cap_again(lab: Lab) -> None:
    """INV-11: only the terminal record may exceed the cap"""
    claim = await lost(lab, policy={"max_reclaim_count": 0})
    await lab.engine.executions.replay(claim.id)
    assert (await describe(lab, claim.id)).reclaims == 0
    claim = await lab.claim_one()
    assert (claim.attempt, claim.epoch) == (1, 2)


async def test_a_loss_that_nobody_answered_is_no_reclaim(lab: Lab) -> None:
    """§3.11: the count is of reclaims, also when the lost execution is ended instead"""
    claim = await lost(lab)
    assert (await describe(lab, claim.id)).reclaims == 0
    await lab.engine.executions.cancel(claim.id, reason="")
    assert (await describe(lab, claim.id)).reclaims == 0
    await lab.engine.executions.replay(claim.id)
    assert (await describe(lab, claim.id)).reclaims == 0


async def test_reclaims_and_retries_have_budgets_of_their_own(lab: Lab) -> None:
    """INV-11, D-18: one of each is allowed, in either order, and no more"""
    policy = {
        "max_reclaim_count": 1,
        "retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 0}},
    }
    claim = await lost(lab, policy=policy)
    claim = await lab.claim_one()
    await lab.fail(claim)
    description = await describe(lab, claim.id)
    assert (description.reclaims, description.retries) == (1, 1)
    claim = await lab.claim_one()
    assert (claim.attempt, claim.lease.start) == (2, Start.RETRY)
    await lab.lose(claim)
    await assert_ended_over_the_cap(lab, claim, reclaims=2)


async def test_a_reclaimed_attempt_may_fail_and_be_retried(lab: Lab) -> None:
    policy = {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 0}}}
    claim = await lost(lab, policy=policy)
    claim = await lab.claim_one()
    await lab.fail(claim)
    claim = await lab.claim_one()
    await lab.fail(claim)
    assert await lab.state(claim.id) is PublicState.FAILED
    assert [attempt.type for attempt in await lab.engine.views.attempts(claim.id)] == [
        Start.INITIAL,
        Start.RECLAIM,
        Start.RETRY,
    ]
