"""How often an execution may be lost and reclaimed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.core.base.errors import (
    LeaseExpired,
    NotActive,
    StaleLease,
)
from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, Family
from flowfabric.core.execution.grant import Granted, GrantNotFound, ReclaimCapExceeded
from flowfabric.core.execution.lease import MarkedExpired, Revoked
from flowfabric.core.execution.model import Failure, Outcome, Start, WorkerIdentity
from flowfabric.core.execution.status import Ownership, PublicState
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.queries import ClaimCall, Taken
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.leases import describe, lost, lost_after, reclaim
from tests.kit.race import kinds

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
async def test_a_loss_over_the_cap_ends_the_execution_at_the_takeover(
    lab: Lab, way: str, policy: dict[str, Any]
) -> None:
    """E-T117, E-T119, §3.10, §3.11, §3.20, INV-5, INV-11: not by the loss, whoever finds it, but by
    the next claim, with the attempted count"""
    await lost_after(lab, 1, policy=policy)
    claim = await lab.claim_one()
    answer = await WAYS[way](lab, claim)
    assert answer in (
        None,
        MarkedExpired(claim.id),
        Revoked(claim.lease.id, 3),
        ReclaimCapExceeded(2),
    )
    lost = await describe(lab, claim.id)
    ownership = Ownership.REVOKED if way == "by_revoking" else Ownership.EXPIRED
    assert (lost.state, lost.vector.ownership) == (PublicState.ACTIVE, ownership)
    assert (lost.reclaims, lost.attempts_made, lost.epoch) == (2, 3, 3)
    lab.clock.advance(5)
    assert await lab.claim(W2) == []
    await assert_ended_over_the_cap(lab, claim, reclaims=3, revokes=way == "by_revoking")
    assert (await describe(lab, claim.id)).attempts_made == 3
    assert (await kinds(lab, claim.id)).count(EventKind.RECLAIMED) == 2


async def test_others_are_taken_by_the_claim_that_gives_one_up(lab: Lab) -> None:
    """§3.11: those behind it do not wait for the next poll"""
    spent = await lost(lab, policy={"max_reclaim_count": 0})
    other = await lab.submit()
    assert [claim.id for claim in await lab.claim(W2)] == [other]
    await assert_ended_over_the_cap(lab, spent, reclaims=1)


async def test_a_claim_that_dies_before_it_gives_up_leaves_it_to_the_next(lab: Lab) -> None:
    """Nothing happened: the same loss, the same count, no event"""
    claim = await lost(lab, policy={"max_reclaim_count": 0})
    before, events = await describe(lab, claim.id), await lab.events(claim.id)
    call = ClaimCall(new_uuid7(9, 9), W2, frozenset(), (), None, 1, TTL)
    assert len(await lab.engine.store.claim(call, lab.clock.now())) == 1
    await lab.pass_time(TTL)
    assert (await describe(lab, claim.id), await lab.events(claim.id)) == (before, events)
    assert await lab.claim(W2) == []
    await assert_ended_over_the_cap(lab, claim, reclaims=1)


async def test_a_revoke_never_ends_an_execution_without_a_cap_of_its_own(lab: Lab) -> None:
    """§3.20: an operator's doing is not held against it, however often"""
    claim = await lab.running()
    for _ in range(6):
        await lab.engine.claims.revoke(claim.id, reason="maintenance")
        claim = await lab.claim_one()
    assert (await describe(lab, claim.id)).reclaims == 6
    await lab.engine.attempts.complete(claim)


async def test_the_default_cap_is_three(lab: Lab) -> None:
    """D-8"""
    claim = await lost_after(lab, 3)
    assert await lab.engine.grants.issue_reclaim(claim.id, W2.id) == ReclaimCapExceeded(3)
    assert await lab.claim(W2) == []
    await assert_ended_over_the_cap(lab, claim, reclaims=4)


@pytest.mark.parametrize("redeemed", ["with the same cap", "without", "by a claim"])
async def test_the_cap_of_a_grant_comes_before_the_policy_s(lab: Lab, redeemed: str) -> None:
    """§3.11, D-8: argument > policy, also for the redemption that names none"""
    old = await lost_after(lab, 1, policy={"max_reclaim_count": 1})
    assert await lab.engine.grants.issue_reclaim(old.id, W2.id) == ReclaimCapExceeded(1)
    granted = await lab.engine.grants.issue_reclaim(old.id, W2.id, max_reclaims=2)
    assert isinstance(granted, Granted)
    claim: object
    if redeemed == "by a claim":
        claim = await lab.claim_one(W2)
    else:
        cap = 2 if redeemed == "with the same cap" else None
        claim = await lab.engine.grants.reclaim(old.id, W2, max_reclaims=cap)
    assert isinstance(claim, Claim)
    assert (await describe(lab, old.id)).reclaims == 2
    await lab.engine.attempts.complete(claim)


@pytest.mark.parametrize("worker", [W1, W2], ids=["another", "its own"])
async def test_the_cap_of_a_grant_expires_with_it(lab: Lab, worker: WorkerIdentity) -> None:
    """§3.11, INV-11, INV-17: an expired grant is none, so the policy's cap decides again"""
    old = await lost_after(lab, 1, policy={"max_reclaim_count": 1})
    await lab.engine.grants.issue_reclaim(old.id, W2.id, max_reclaims=2, ttl=Millis(1_000))
    assert await lab.claim(W1) == []
    assert await lab.state(old.id) is PublicState.ACTIVE
    lab.clock.advance(1_000)
    assert await lab.claim(worker) == []
    await assert_ended_over_the_cap(lab, old, reclaims=2)


async def test_the_cap_of_a_grant_also_holds_for_a_claim_of_its_worker(lab: Lab) -> None:
    """§3.0.2, §3.11, INV-2: a takeover as any other, with its event, epoch and attempt"""
    old = await lost_after(lab, 1, policy={"max_reclaim_count": 1})
    await lab.engine.grants.issue_reclaim(old.id, W2.id, max_reclaims=2)
    claim = await lab.claim_one(W2)
    assert (claim.epoch, claim.attempt, claim.lease.start) == (3, 2, Start.RECLAIM)
    assert (await lab.events(old.id))[-1].kind is EventKind.RECLAIMED
    assert (await lab.events(old.id))[-1].epoch == 3
    with pytest.raises(StaleLease):
        await lab.engine.attempts.complete(old)
    await lab.engine.claims.renew(claim)
    await lab.engine.attempts.complete(claim)


@pytest.mark.inside
async def test_a_claim_that_is_cancelled_before_it_gives_up_leaves_it_to_the_next(lab: Lab) -> None:
    """§3.11: nothing was taken, so nothing is handed back; the revoked run stays revoked"""
    claim = await lab.running(policy={"max_reclaim_count": 0})
    await lab.engine.claims.revoke(claim.id, reason="maintenance")
    before, events = await describe(lab, claim.id), await lab.events(claim.id)
    waiting = asyncio.create_task(lab.claim(W2))
    store, reached = lab.engine.store, asyncio.Event()
    take = store.claim

    async def then_cancel(call: ClaimCall, now: Millis) -> list[Taken]:
        taken = await take(call, now)
        waiting.cancel()
        reached.set()
        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "claim", then_cancel)
        await reached.wait()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await lab.engine.claims.drain()
    assert (await describe(lab, claim.id), await lab.events(claim.id)) == (before, events)
    assert await lab.claim(W2) == []
    await assert_ended_over_the_cap(lab, claim, reclaims=1, revokes=1)


async def test_the_cap_of_a_grant_holds_for_one_takeover(lab: Lab) -> None:
    """§3.11: the next loss is measured by the policy again"""
    old = await lost_after(lab, 1, policy={"max_reclaim_count": 1})
    await lab.engine.grants.issue_reclaim(old.id, W2.id, max_reclaims=9)
    claim = await lab.engine.grants.reclaim(old.id, W2, ttl=TTL)
    assert isinstance(claim, Claim)
    await lab.lose(claim)
    assert await lab.claim(W2) == []
    await assert_ended_over_the_cap(lab, claim, reclaims=3)


async def assert_ended_over_the_cap(
    lab: Lab, claim: Claim, *, reclaims: int, revokes: int = 0
) -> None:
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
    assert leases[-1] == "revoked"
    assert leases.count("revoked") == 1 + revokes


@pytest.mark.parametrize(("count", "cap"), [(0, 0), (4, 4), (5, 5), (5, 3)])
async def test_a_redemption_over_the_cap_ends_the_execution(lab: Lab, count: int, cap: int) -> None:
    """E-T117, E-T118, E-T119: an argument below the policy's cap, reported as attempted"""
    claim = await lost_after(lab, count, policy={"max_reclaim_count": 9})
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
    assert await lab.claim(W2) == []
    await assert_ended_over_the_cap(lab, claim, reclaims=1)
    with pytest.raises(NotActive) as refusal:
        await lab.engine.attempts.complete(claim)
    assert (refusal.value.outcome, refusal.value.epoch) == ("failed", 1)
    assert refusal.value.attempt_id == claim.attempt_id


async def test_a_replay_after_too_many_losses_is_within_the_cap_again(lab: Lab) -> None:
    """INV-11: only the terminal record may exceed the cap"""
    claim = await lost(lab, policy={"max_reclaim_count": 0})
    assert await lab.claim(W2) == []
    await lab.engine.executions.replay(claim.id)
    assert (await describe(lab, claim.id)).reclaims == 0
    claim = await lab.claim_one()
    assert (claim.attempt, claim.epoch) == (1, 2)


async def test_a_loss_without_a_takeover_is_no_reclaim(lab: Lab) -> None:
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
    assert await lab.claim(W2) == []
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
