"""Reclaiming: what becomes of an execution whose owner was lost."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from flowfabric.core.base.errors import (
    FlowFabricError,
    GrantExists,
    Invalid,
    InvalidCapabilities,
    LeaseExpired,
    NotFound,
)
from flowfabric.core.base.ids import derive_attempt_id, new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, Family
from flowfabric.core.execution.grant import (
    Granted,
    GrantNotFound,
    NotReclaimable,
    ReclaimCapExceeded,
)
from flowfabric.core.execution.handle import HandleKind
from flowfabric.core.execution.lease import AlreadySatisfied
from flowfabric.core.execution.model import Outcome, Start, WorkerIdentity
from flowfabric.core.execution.status import AttemptState, Ownership, Phase, PublicState
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from tests.kit import situations
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.leases import UNKNOWN, describe, lost, lost_after, reclaim
from tests.kit.race import kinds

GRANT = Millis(10_000)


# -- granting


@pytest.mark.parametrize("how", ["expired", "revoked"])
async def test_a_lost_execution_is_reserved_for_its_rescuer(lab: Lab, how: str) -> None:
    """E-T110, INV-17: the state does not change and no event is written"""
    claim = await lab.running()
    if how == "expired":
        await lab.lose(claim)
    else:
        await lab.engine.claims.revoke(claim.id, reason="")
    vector, events = await lab.vector(claim.id), await lab.events(claim.id)
    granted = await lab.engine.grants.issue_reclaim(claim.id, W2.id, ttl=GRANT, key="k")
    assert granted == Granted(claim.id, "w2", Millis(lab.clock.now() + GRANT), key="k")
    assert (await lab.vector(claim.id), await lab.events(claim.id)) == (vector, events)
    assert await lab.claim(W1) == []


async def test_a_lease_found_expired_is_marked_by_the_grant(lab: Lab) -> None:
    """§3.10 [C]"""
    claim = await lab.running()
    lab.clock.advance(TTL)
    assert isinstance(await lab.engine.grants.issue_reclaim(claim.id, W2.id), Granted)
    assert (await lab.vector(claim.id)).ownership is Ownership.EXPIRED
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED, EventKind.LEASE_EXPIRED]
    assert isinstance(await lab.engine.grants.reclaim(claim.id, W2), Claim)


@pytest.mark.rules
@pytest.mark.parametrize("situation", sorted(situations.ALL.keys() - {"lost", "revoked"}))
async def test_only_what_was_lost_can_be_reclaimed(lab: Lab, situation: str) -> None:
    """E-T111, INV-24: neither granted nor, without a grant, redeemed"""
    id = await situations.ALL[situation](lab)
    before, events = await describe(lab, id), await lab.events(id)
    granted = await lab.engine.grants.issue_reclaim(id, W2.id, max_reclaims=0)
    assert isinstance(granted, NotReclaimable)
    assert await lab.engine.grants.reclaim(id, W2, max_reclaims=0) == GrantNotFound()
    assert (await describe(lab, id), await lab.events(id)) == (before, events)


async def test_a_missing_execution_cannot_be_granted(lab: Lab) -> None:
    with pytest.raises(NotFound):
        await lab.engine.grants.issue_reclaim(UNKNOWN, W2.id)


async def test_malformed_capabilities_are_looked_at_last(lab: Lab) -> None:
    """§3.10: existence, loss, cap and a live grant come first"""
    reclaim = partial(lab.engine.grants.issue_reclaim, worker=W2.id, capabilities=["a,b"])
    with pytest.raises(NotFound):
        await reclaim(UNKNOWN)
    claim = await lab.running()
    assert isinstance(await reclaim(claim.id), NotReclaimable)
    lab.clock.advance(TTL)
    assert isinstance(await reclaim(claim.id, max_reclaims=0), ReclaimCapExceeded)
    with pytest.raises(InvalidCapabilities):
        await reclaim(claim.id)
    await lab.engine.grants.issue_reclaim(claim.id, W2.id)
    with pytest.raises(GrantExists):
        await reclaim(claim.id)


@pytest.mark.parametrize("reclaims", [0, 1, 3])
async def test_a_grant_over_the_cap_is_refused_and_changes_nothing(lab: Lab, reclaims: int) -> None:
    """E-T112: the stored count is reported, the execution stays lost"""
    claim = await lost_after(lab, reclaims)
    before, events = await describe(lab, claim.id), await lab.events(claim.id)
    answer = await lab.engine.grants.issue_reclaim(claim.id, W2.id, max_reclaims=reclaims)
    assert answer == ReclaimCapExceeded(reclaims)
    assert (await describe(lab, claim.id), await lab.events(claim.id)) == (before, events)
    assert isinstance(
        await lab.engine.grants.issue_reclaim(claim.id, W2.id, max_reclaims=reclaims + 1), Granted
    )


async def test_a_rescuer_needs_the_capabilities(lab: Lab) -> None:
    """E-T113, INV-25: and the execution stays as lost as it was"""
    await lab.submit(policy={"routing_requirements": {"required_capabilities": ["gpu", "eu"]}})
    claim = await lab.claim_one(capabilities=["gpu", "eu"])
    await lab.lose(claim)
    answer = await lab.engine.grants.issue_reclaim(claim.id, W2.id, capabilities=["cpu"])
    assert answer == NotReclaimable("capability_mismatch:eu,gpu")
    assert (await lab.vector(claim.id)).ownership is Ownership.EXPIRED
    assert await lab.claim(W2, capabilities=["cpu"]) == []
    granted = await lab.engine.grants.issue_reclaim(claim.id, W2.id, capabilities=["eu", "gpu"])
    assert isinstance(granted, Granted)


async def test_a_second_live_grant_is_refused(lab: Lab) -> None:
    """INV-17: also for the same worker"""
    claim = await lost(lab)
    await lab.engine.grants.issue_reclaim(claim.id, W2.id)
    for worker in (W1, W2):
        with pytest.raises(GrantExists):
            await lab.engine.grants.issue_reclaim(claim.id, worker.id)
    assert isinstance(await lab.engine.grants.reclaim(claim.id, W2), Claim)


async def test_the_cap_is_asked_first_then_the_grant_then_the_capabilities(lab: Lab) -> None:
    """§3.10, the order of checks"""
    await lab.submit(policy={"routing_requirements": {"required_capabilities": ["gpu"]}})
    claim = await lab.claim_one(capabilities=["gpu"])
    await lab.lose(claim)
    await lab.engine.grants.issue_reclaim(claim.id, W2.id, capabilities=["gpu"], ttl=GRANT)
    answer = await lab.engine.grants.issue_reclaim(claim.id, W1.id, max_reclaims=0)
    assert answer == ReclaimCapExceeded(0)
    with pytest.raises(GrantExists):
        await lab.engine.grants.issue_reclaim(claim.id, W1.id)
    lab.clock.advance(GRANT)
    answer = await lab.engine.grants.issue_reclaim(claim.id, W1.id)
    assert answer == NotReclaimable("capability_mismatch:gpu")


async def test_a_grant_that_runs_out_needs_no_sweep(lab: Lab) -> None:
    """E-T116, INV-17, INV-19: reaching its end is too late, and then anybody may come"""
    claim = await lost(lab)
    await lab.engine.grants.issue_reclaim(claim.id, W2.id, ttl=GRANT)
    lab.clock.advance(GRANT - 1)
    assert await lab.claim(W1) == []
    lab.clock.advance(1)
    assert await lab.engine.grants.reclaim(claim.id, W2) == GrantNotFound()
    assert (await lab.vector(claim.id)).ownership is Ownership.EXPIRED
    assert (await lab.claim_one(W1)).id == claim.id


async def test_the_last_millisecond_of_a_grant_is_good(lab: Lab) -> None:
    claim = await lost(lab)
    await lab.engine.grants.issue_reclaim(claim.id, W2.id, ttl=GRANT)
    lab.clock.advance(GRANT - 1)
    assert isinstance(await lab.engine.grants.reclaim(claim.id, W2), Claim)


@pytest.mark.rules
@pytest.mark.parametrize("ttl", [0, -1, 86_400_001, 1.5, True])
async def test_a_grant_lasts_at_most_a_day(lab: Lab, ttl: Any) -> None:
    claim = await lost(lab)
    with pytest.raises(Invalid):
        await lab.engine.grants.issue_reclaim(claim.id, W2.id, ttl=ttl)
    assert (await lab.claim_one(W1)).id == claim.id


# -- redeeming


async def test_a_reclaim_starts_a_new_attempt_in_place_of_the_lost_one(lab: Lab) -> None:
    """E-T114, INV-2, INV-9, INV-10"""
    old = await lost(lab)
    lab.clock.advance(500)
    claim = await reclaim(lab, old.id)
    assert claim.handle_kind is HandleKind.RECLAIMED
    assert (claim.attempt, claim.epoch, claim.payload) == (1, 2, old.payload)
    assert claim.expires_at == lab.clock.now() + TTL
    vector = await lab.vector(old.id)
    assert (vector.phase, vector.ownership, vector.attempt) == (
        Phase.ACTIVE,
        Ownership.LEASED,
        AttemptState.RUNNING,
    )
    description = await describe(lab, old.id)
    assert (description.reclaims, description.retries, description.attempts_made) == (1, 0, 2)
    first, second = await lab.engine.views.attempts(old.id)
    assert (first.outcome, first.type, first.ended_at) == (
        "interrupted_reclaimed",
        Start.INITIAL,
        lab.clock.now(),
    )
    assert (second.outcome, second.type, second.previous) == ("started", Start.RECLAIM, 0)
    event = (await lab.events(old.id))[-1]
    assert (event.lease, event.epoch, event.attempt, event.worker) == ("reclaimed", 2, 1, W2)


async def test_a_grant_is_redeemed_once(lab: Lab) -> None:
    """E-T114, INV-17"""
    old = await lost(lab)
    claim = await reclaim(lab, old.id)
    assert await lab.engine.grants.reclaim(old.id, W2) == GrantNotFound()
    await lab.lose(claim)
    assert await lab.engine.grants.reclaim(old.id, W2) == GrantNotFound()


async def test_two_redemptions_at_once_give_one_lease(lab: Lab, second_lab: Lab) -> None:
    """INV-1, INV-17"""
    old = await lost(lab)
    await lab.engine.grants.issue_reclaim(old.id, W2.id)
    answers = await asyncio.gather(
        *(each.engine.grants.reclaim(old.id, W2) for each in (lab, second_lab, lab))
    )
    assert sorted(type(answer).__name__ for answer in answers) == [
        "Claim",
        "GrantNotFound",
        "GrantNotFound",
    ]
    assert (await kinds(lab, old.id)).count(EventKind.RECLAIMED) == 1


async def test_another_worker_cannot_redeem_the_grant(lab: Lab) -> None:
    """E-T115: and the grant is kept"""
    old = await lost(lab)
    await lab.engine.grants.issue_reclaim(old.id, W2.id)
    before = await describe(lab, old.id)
    with pytest.raises(Invalid):
        await lab.engine.grants.reclaim(old.id, W1)
    assert await describe(lab, old.id) == before
    assert isinstance(await lab.engine.grants.reclaim(old.id, W2), Claim)


async def test_the_worker_is_compared_before_the_expiry_of_the_grant(lab: Lab) -> None:
    """§3.11, the order of checks"""
    old = await lost(lab)
    await lab.engine.grants.issue_reclaim(old.id, W2.id, ttl=GRANT)
    lab.clock.advance(GRANT)
    with pytest.raises(Invalid):
        await lab.engine.grants.reclaim(old.id, W1)
    assert await lab.engine.grants.reclaim(old.id, W2) == GrantNotFound()


async def test_another_instance_of_the_worker_can_redeem_the_grant(lab: Lab) -> None:
    """E-X17"""
    old = await lost(lab)
    await lab.engine.grants.issue_reclaim(old.id, W2.id)
    claim = await lab.engine.grants.reclaim(old.id, WorkerIdentity(W2.id, "w2-b"))
    assert isinstance(claim, Claim)
    assert claim.lease.worker.instance == "w2-b"


async def test_without_a_grant_there_is_nothing_to_redeem(lab: Lab) -> None:
    """E-X17: also where there is no execution, for the grant is asked first"""
    old = await lost(lab)
    assert await lab.engine.grants.reclaim(old.id, W2) == GrantNotFound()
    assert await lab.engine.grants.reclaim(UNKNOWN, W2) == GrantNotFound()
    assert (await lab.vector(old.id)).ownership is Ownership.EXPIRED


async def test_the_claim_carries_the_lease_id_of_the_caller(lab: Lab) -> None:
    """E-T120: the attempt id follows from the execution and the index"""
    old = await lost(lab)
    mine = new_uuid7(2, 2)
    claim = await reclaim(lab, old.id, lease_id=mine)
    assert claim.lease.id == mine
    assert claim.attempt_id == derive_attempt_id(old.uuid, 1)
    body = lab.engine.attempts.open(lab.engine.attempts.seal(claim))
    assert (body.lease_id, body.attempt_id) == (mine, claim.attempt_id)


async def test_every_reclaim_raises_the_epoch(lab: Lab) -> None:
    """E-T122, INV-2: by grant and by pull alike"""
    old = await lost(lab, policy={"max_reclaim_count": 4})
    claims = [old]
    for number in range(4):
        claims.append(await reclaim(lab, old.id, W1) if number % 2 else await lab.claim_one(W1))
        await lab.lose(claims[-1])
    assert [claim.epoch for claim in claims] == [1, 2, 3, 4, 5]
    assert [claim.attempt for claim in claims] == [0, 1, 2, 3, 4]
    assert (await describe(lab, old.id)).reclaims == 4


async def test_a_reclaim_moves_the_execution_to_the_new_worker(lab: Lab) -> None:
    """E-T123"""
    old = await lost(lab)
    await reclaim(lab, old.id, W2)
    assert await lab.engine.claims.held_by(W1.instance) == []
    assert await lab.engine.claims.held_by(W2.instance) == [old.id]


# -- reclaiming by pulling


@pytest.mark.parametrize("worker", [W1, W2])
async def test_a_pull_takes_a_lost_execution_without_any_grant(
    lab: Lab, worker: WorkerIdentity
) -> None:
    """D-1, D-2, INV-19"""
    old = await lost(lab)
    claim = await lab.claim_one(worker)
    assert (claim.id, claim.attempt, claim.epoch) == (old.id, 1, 2)
    assert claim.handle_kind is HandleKind.RECLAIMED
    assert (await kinds(lab, old.id))[-1] is EventKind.RECLAIMED


async def test_the_rescuer_may_redeem_its_grant_by_pulling(lab: Lab) -> None:
    old = await lost(lab)
    await lab.engine.grants.issue_reclaim(old.id, W2.id)
    claim = await lab.claim_one(W2)
    assert (claim.id, claim.attempt) == (old.id, 1)
    assert await lab.engine.grants.reclaim(old.id, W2) == GrantNotFound()


async def test_a_lost_execution_keeps_its_place_in_the_queue(lab: Lab) -> None:
    old = await lab.running(priority=5)
    await lab.submit(priority=9)
    await lab.submit(priority=1)
    await lab.lose(old)
    claims = await lab.claim(limit=3)
    assert [claim.snapshot.priority for claim in claims] == [9, 5, 1]


# -- afterwards


async def test_no_sweep_disturbs_the_new_owner(lab: Lab, second_lab: Lab) -> None:
    """E-X07, INV-18: neither the old lease nor the old attempt's timeout counts any more"""
    old = await lab.running(policy={"timeout_policy": {"attempt_timeout_ms": TTL + 1000}})
    await lab.lose(old)
    claim = await lab.claim_one(W2)
    for _ in range(3):
        lab.clock.advance(10_000)
        await lab.engine.claims.renew(claim, record=False)
        await lab.engine.sweep.once()
        await second_lab.engine.sweep.once()
    assert await lab.engine.claims.mark_expired(old.id) == AlreadySatisfied("not_yet_expired")
    assert await lab.engine.executions.expire(old.id) == AlreadySatisfied("not_yet_due")
    assert await lab.engine.claims.held_by(W2.instance) == [old.id]
    await lab.complete(claim, b"done")
    assert await kinds(lab, old.id) == [
        EventKind.CLAIMED,
        EventKind.LEASE_EXPIRED,
        EventKind.RECLAIMED,
        EventKind.COMPLETED,
    ]


async def test_a_reclaimed_attempt_has_its_whole_time(lab: Lab) -> None:
    """D-18: a new attempt, a new timeout"""
    old = await lab.running(policy={"timeout_policy": {"attempt_timeout_ms": 40_000}})
    await lab.lose(old)
    claim = await lab.claim_one(W2, ttl=Millis(100_000))
    await lab.pass_time(39_999)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.pass_time(1)
    assert await lab.state(claim.id) is PublicState.EXPIRED


async def test_a_lost_execution_can_be_cancelled(lab: Lab) -> None:
    """INV-5, INV-19: no lease is released, for there was none"""
    claim = await lost(lab)
    await lab.engine.executions.cancel(claim.id, reason="enough")
    assert await lab.state(claim.id) is PublicState.CANCELLED
    [cancelled] = await lab.events(claim.id, family=Family.COMPLETION)
    assert (cancelled.completion, cancelled.lease) == (Outcome.CANCELLED, None)
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.outcome, attempt.lease_id) == ("ended_cancelled", claim.lease.id)
    assert await lab.claim(W2) == []


@pytest.mark.parametrize("how", ["cancelled", "expired"])
async def test_what_ended_under_a_grant_is_not_reclaimable(lab: Lab, how: str) -> None:
    """§3.11, checks 1 to 3 before check 5, which removes the grant"""
    members = {"deadline_at": Millis(lab.clock.now() + TTL + 1)} if how == "expired" else {}
    claim = await lost(lab, **members)
    await lab.engine.grants.issue_reclaim(claim.id, W2.id, ttl=GRANT)
    if how == "expired":
        await lab.pass_time(1)
    else:
        await lab.engine.executions.cancel(claim.id, reason="enough")
        lab.clock.advance(1)
    assert await lab.state(claim.id) == how
    assert await lab.engine.grants.identity(claim.id) is None
    with pytest.raises(Invalid):
        await lab.engine.grants.reclaim(claim.id, W1)
    before = await lab.events(claim.id)
    assert isinstance(await lab.engine.grants.reclaim(claim.id, W2), NotReclaimable)
    assert await lab.engine.grants.reclaim(claim.id, W2) == GrantNotFound()
    assert (await lab.state(claim.id), await lab.events(claim.id)) == (how, before)
    await lab.engine.executions.replay(claim.id)
    assert await lab.engine.grants.reclaim(claim.id, W2) == GrantNotFound()


async def test_a_redeemed_grant_is_not_found_after_the_end(lab: Lab) -> None:
    """§3.65, INV-17: also if the rescuer was lost as well."""
    claim = await lost(lab)
    again = await reclaim(lab, claim.id)
    await lab.engine.claims.revoke(again.id, reason="enough")
    await lab.engine.executions.cancel(again.id, reason="enough")
    assert await lab.engine.grants.reclaim(claim.id, W2) == GrantNotFound()
    other = await lost(lab)
    await lab.complete(await reclaim(lab, other.id))
    assert await lab.engine.grants.reclaim(other.id, W2) == GrantNotFound()


async def test_a_lost_execution_still_has_its_deadline(lab: Lab) -> None:
    """INV-18"""
    claim = await lost(lab, deadline_at=Millis(lab.clock.now() + 2 * TTL))
    await lab.pass_time(TTL)
    assert await lab.state(claim.id) is PublicState.EXPIRED


# -- the grace period


@pytest.fixture
async def gracious(store: Store, clock: ManualClock) -> AsyncIterator[Lab]:
    """A lab in which a lost execution waits five seconds before anybody may take it."""
    lab = await Lab.open(store, clock, reclaim_grace=Millis(5000))
    yield lab
    await lab.engine.close()


@pytest.mark.parametrize("marked_by", ["sweep", "operator"])
async def test_a_lost_execution_waits_out_the_grace_period(gracious: Lab, marked_by: str) -> None:
    """INV-19: and needs nobody to end it"""
    old = await gracious.running()
    gracious.clock.advance(TTL)
    if marked_by == "sweep":
        await gracious.engine.sweep.once()
    else:
        await gracious.engine.claims.mark_expired(old.id)
    assert (await gracious.vector(old.id)).ownership is Ownership.EXPIRED
    assert await gracious.claim(W1) == []
    await gracious.pass_time(4999)
    assert await gracious.claim(W2) == []
    await gracious.pass_time(1)
    assert (await gracious.claim_one(W2)).id == old.id


async def test_a_grace_period_needs_no_redemption(gracious: Lab) -> None:
    """A hold for nobody is no grant."""
    old = await gracious.running()
    await gracious.lose(old)
    assert await gracious.engine.grants.reclaim(old.id, W2) == GrantNotFound()


async def test_what_an_operator_revoked_waits_for_nothing(gracious: Lab) -> None:
    old = await gracious.running()
    await gracious.engine.claims.revoke(old.id, reason="")
    assert (await gracious.claim_one(W2)).id == old.id


async def test_the_owner_learns_of_its_loss_in_the_grace_period(gracious: Lab) -> None:
    """INV-3"""
    old = await gracious.running()
    await gracious.lose(old)
    with pytest.raises(FlowFabricError) as refusal:
        await gracious.engine.attempts.complete(old)
    assert refusal.type is LeaseExpired
