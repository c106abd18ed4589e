"""Revoking: an operator takes a lease away."""

from typing import Any

import pytest

from flowfabric.core.base.errors import (
    Invalid,
    NotActive,
    NotFound,
    StaleLease,
)
from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import AlreadySatisfied, Revoked
from flowfabric.core.execution.model import Failure
from flowfabric.core.execution.status import Ownership, PublicState
from tests.kit.lab import W1, W2, Lab
from tests.kit.leases import RUNNING, UNKNOWN, describe, lost_vector
from tests.kit.race import kinds

# -- revoking


async def test_a_revoked_lease_is_gone_at_once(lab: Lab) -> None:
    """E-T101 [C], INV-3: S7, and the epoch is the one of the lease that was taken away"""
    claim = await lab.running()
    lab.clock.advance(100)
    answer = await lab.engine.claims.revoke(claim.id, reason="runaway")
    assert answer == Revoked(claim.lease.id, 1)
    assert await lab.vector(claim.id) == lost_vector(Ownership.REVOKED)
    description = await describe(lab, claim.id)
    assert description.blocking_detail == "lease revoked: runaway"
    assert (description.lease, description.epoch) == (None, 1)
    assert await lab.engine.claims.held_by(W1.instance) == []
    [_, revoked] = await lab.events(claim.id)
    assert (revoked.kind, revoked.lease, revoked.reason) == (
        EventKind.LEASE_REVOKED,
        "revoked",
        "runaway",
    )
    assert (revoked.epoch, revoked.attempt, revoked.worker) == (1, 0, W1)
    assert revoked.at == lab.clock.now()


async def test_a_revocation_aimed_at_another_instance_changes_nothing(lab: Lab) -> None:
    """E-T102"""
    claim = await lab.running()
    before = await describe(lab, claim.id)
    answer = await lab.engine.claims.revoke(claim.id, reason="", instance="w1-b")
    assert answer == AlreadySatisfied("different_worker_instance_id")
    assert await describe(lab, claim.id) == before
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED]


async def test_a_revocation_aimed_at_another_lease_is_stale(lab: Lab) -> None:
    """§3.20, E-X15"""
    claim = await lab.running()
    with pytest.raises(StaleLease):
        await lab.engine.claims.revoke(claim.id, reason="", lease_id=new_uuid7(1, 1))
    assert await lab.vector(claim.id) == RUNNING
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED]


async def test_the_instance_is_compared_before_the_lease(lab: Lab) -> None:
    claim = await lab.running()
    answer = await lab.engine.claims.revoke(
        claim.id, reason="", instance="w1-b", lease_id=new_uuid7(1, 1)
    )
    assert answer == AlreadySatisfied("different_worker_instance_id")


async def test_a_revocation_may_name_its_target_twice(lab: Lab) -> None:
    claim = await lab.running()
    answer = await lab.engine.claims.revoke(
        claim.id, reason="", instance=W1.instance, lease_id=claim.lease.id
    )
    assert answer == Revoked(claim.lease.id, 1)


async def test_a_revocation_that_comes_too_late_spares_the_next_owner(lab: Lab) -> None:
    """INV-3: aimed at a lease that is gone"""
    claim = await lab.running()
    await lab.lose(claim)
    await lab.claim_one(W2)
    with pytest.raises(StaleLease):
        await lab.engine.claims.revoke(claim.id, reason="", lease_id=claim.lease.id)
    answer = await lab.engine.claims.revoke(claim.id, reason="", instance=W1.instance)
    assert answer == AlreadySatisfied("different_worker_instance_id")
    assert await lab.vector(claim.id) == RUNNING


async def test_without_an_owner_there_is_no_lease_to_revoke(lab: Lab) -> None:
    """E-T103 [C]: not active is said before anything is compared; no event, INV-24"""
    id = await lab.submit()
    with pytest.raises(NotActive) as refusal:
        await lab.engine.claims.revoke(id, reason="", instance="nobody", lease_id=new_uuid7(1, 1))
    assert (refusal.value.phase, refusal.value.outcome) == ("runnable", "none")
    assert (refusal.value.epoch, refusal.value.attempt_id) == (0, None)
    claim = await lab.claim_one()
    await lab.complete(claim)
    with pytest.raises(NotActive) as refusal:
        await lab.engine.claims.revoke(id, reason="")
    assert (refusal.value.phase, refusal.value.outcome) == ("terminal", "success")
    assert await kinds(lab, id) == [EventKind.CLAIMED, EventKind.COMPLETED]


async def test_a_delayed_execution_has_no_lease_to_revoke(lab: Lab) -> None:
    claim = await lab.running()
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 1000))
    with pytest.raises(NotActive) as refusal:
        await lab.engine.claims.revoke(claim.id, reason="")
    assert (refusal.value.phase, refusal.value.attempt_id) == ("runnable", claim.attempt_id)


async def test_revoking_twice_is_revoking_once(lab: Lab) -> None:
    """E-T104, INV-23: whatever the second one is aimed at"""
    claim = await lab.running()
    await lab.engine.claims.revoke(claim.id, reason="first")
    for aim in ({}, {"instance": "other"}, {"lease_id": new_uuid7(1, 1)}):
        answer = await lab.engine.claims.revoke(claim.id, reason="second", **aim)
        assert answer == AlreadySatisfied("already_revoked")
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED, EventKind.LEASE_REVOKED]
    assert (await describe(lab, claim.id)).blocking_detail == "lease revoked: first"


async def test_a_lease_that_ran_out_needs_no_revoking(lab: Lab) -> None:
    """§3.20"""
    claim = await lab.running()
    await lab.lose(claim)
    answer = await lab.engine.claims.revoke(claim.id, reason="")
    assert answer == AlreadySatisfied("already_expired")
    assert await lab.vector(claim.id) == lost_vector(Ownership.EXPIRED)


async def test_a_missing_execution_cannot_be_revoked(lab: Lab) -> None:
    with pytest.raises(NotFound):
        await lab.engine.claims.revoke(UNKNOWN, reason="")


@pytest.mark.rules
@pytest.mark.parametrize("reason", ["x" * 4097, "\0", "\ud800", 7])
async def test_a_reason_is_short_storable_text(lab: Lab, reason: Any) -> None:
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.claims.revoke(claim.id, reason=reason)
    assert await lab.vector(claim.id) == RUNNING


# -- timers


def limited(millis: int, **policy: Any) -> dict[str, Any]:
    return {"timeout_policy": {"attempt_timeout_ms": millis}, **policy}


ONE_RETRY = {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 10}}}


async def test_a_revocation_keeps_the_timer_of_the_attempt(lab: Lab) -> None:
    """§3.20, §3.66, D-18, INV-5: no worker takes it over, and its time runs out"""
    claim = await lab.running(policy=limited(60_000))
    await lab.pass_time(1_000)
    await lab.engine.claims.revoke(claim.id, reason="runaway")
    await lab.pass_time(58_999)
    assert await lab.vector(claim.id) == lost_vector(Ownership.REVOKED)
    await lab.pass_time(1)
    assert await lab.state(claim.id) is PublicState.EXPIRED
    description = await describe(lab, claim.id)
    assert description.failure == Failure("attempt_timeout", "timeout")
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.outcome, attempt.failure) == ("ended_failure", description.failure)
    assert await kinds(lab, claim.id) == [
        EventKind.CLAIMED,
        EventKind.LEASE_REVOKED,
        EventKind.EXPIRED,
    ]
    assert await lab.claim() == []


async def test_a_revoked_attempt_that_runs_out_of_time_is_retried(lab: Lab) -> None:
    """§3.20, D-18: the timeout spends a retry, the revocation is no reclaim"""
    claim = await lab.running(policy=limited(60_000, **ONE_RETRY))
    await lab.engine.claims.revoke(claim.id, reason="runaway")
    await lab.engine.grants.issue_reclaim(claim.id, "w2", ttl=60_000)
    await lab.pass_time(60_000)
    vector = await lab.vector(claim.id)
    assert (vector.blocking, vector.attempt) == (
        "waiting_for_retry_backoff",
        "pending_retry_attempt",
    )
    description = await describe(lab, claim.id)
    assert (description.retries, description.reclaims, description.grant) == (1, 0, None)
    assert (await lab.events(claim.id))[-1].lease is None
    await lab.pass_time(10)
    again = await lab.claim_one(W2)
    assert (again.attempt, again.epoch) == (1, 2)
    assert again.lease.times_out_at == lab.clock.now() + 60_000
    first, second = await lab.engine.views.attempts(claim.id)
    assert (first.outcome, first.failure) == (
        "ended_failure",
        Failure("attempt_timeout", "timeout"),
    )
    assert (second.outcome, second.previous) == ("started", 0)
    await lab.complete(again)


async def test_a_timer_of_a_revoked_attempt_does_not_disturb_its_successor(lab: Lab) -> None:
    """§3.20, E-X07: the new attempt has its own timer, and can end before and after the old one"""
    for wait in (0, 31_000):
        claim = await lab.running(policy=limited(60_000))
        lab.clock.advance(29_000)
        await lab.engine.claims.revoke(claim.id, reason="runaway")
        again = await lab.claim_one(W2, ttl=60_000)
        await lab.pass_time(wait)
        assert await lab.vector(claim.id) == RUNNING
        await lab.complete(again, b"done")
        await lab.pass_time(60_000)
        assert await lab.engine.views.result(claim.id) == b"done"
        assert await lab.engine.sweep.once() == 0


async def test_the_deadline_of_a_revoked_execution_stands(lab: Lab) -> None:
    """§3.20, §3.24"""
    claim = await lab.running(deadline_at=Millis(lab.clock.now() + 50_000))
    await lab.engine.claims.revoke(claim.id, reason="runaway")
    await lab.pass_time(50_000)
    description = await describe(lab, claim.id)
    assert description.state is PublicState.EXPIRED
    assert description.failure == Failure("execution_deadline", "timeout")
