"""Leases: renewed, and run out. Who may act under one is in test_fence."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import (
    FenceRequired,
    Invalid,
    LeaseExpired,
    LeaseRevoked,
    NotActive,
    PartialFence,
    StaleLease,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, Family
from flowfabric.core.execution.event_views import LeasePart, view
from flowfabric.core.execution.lease import AlreadySatisfied, MarkedExpired, Owner, Renewed
from flowfabric.core.execution.model import Snapshot, Source
from flowfabric.core.execution.status import (
    Ownership,
    PublicState,
)
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.engine.execution.described import LeaseView
from flowfabric.store.queries import Renewal
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.leases import RUNNING, UNKNOWN, describe, lease_of, lost_vector
from tests.kit.owners import FORMS, every_form
from tests.kit.race import kinds

# -- renewing


@every_form
async def test_renewing_moves_the_expiry_and_keeps_the_epoch(lab: Lab, form: str) -> None:
    """E-T090, E-T091, INV-2"""
    claim = await lab.running()
    assert claim.expires_at == lab.clock.now() + TTL
    lab.clock.advance(10_000)
    renewed = await lab.engine.attempts.renew(FORMS[form](lab, claim), TTL)
    assert renewed == Renewed(Millis(lab.clock.now() + TTL), 1)
    assert await lease_of(lab, claim.id) == LeaseView(
        lease_id=claim.lease.id,
        epoch=1,
        worker="w1",
        instance="w1-a",
        attempt=0,
        expires_at=renewed.expires_at,
        renewed_at=lab.clock.now(),
    )
    assert await lab.vector(claim.id) == RUNNING


@every_form
async def test_a_renewal_is_an_event_of_the_lease(lab: Lab, form: str) -> None:
    """E-T090, D-12: it names the lease, its attempt and its worker"""
    claim = await lab.running()
    lab.clock.advance(10_000)
    await lab.engine.attempts.renew(FORMS[form](lab, claim), TTL)
    _, event = await lab.events(claim.id, family=Family.LEASE)
    assert (event.kind, event.lease) == (EventKind.LEASE_RENEWED, "renewed")
    assert (event.at, event.epoch, event.attempt) == (lab.clock.now(), 1, 0)
    assert event.worker == W1
    assert view(event).lease == LeasePart(
        change="renewed", epoch=1, worker_id="w1", worker_instance="w1-a"
    )


@every_form
async def test_the_event_of_a_renewal_can_be_switched_off(lab: Lab, form: str) -> None:
    """D-12: a worker renews many leases, many times"""
    claim = await lab.running()
    lab.clock.advance(10_000)
    renewed = await lab.engine.attempts.renew(FORMS[form](lab, claim), TTL, record=False)
    assert renewed.expires_at == lab.clock.now() + TTL
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED]


async def test_a_heartbeat_for_many_claims_records_its_renewals_only_if_asked(lab: Lab) -> None:
    """D-12"""
    claims = [await lab.running(), await lab.running()]
    await lab.engine.claims.renew_all(claims)
    assert await kinds(lab, claims[0].id) == [EventKind.CLAIMED]
    await lab.engine.claims.renew_all(claims, record=True)
    for claim in claims:
        assert await kinds(lab, claim.id) == [EventKind.CLAIMED, EventKind.LEASE_RENEWED]


async def test_a_refused_renewal_is_no_event(lab: Lab) -> None:
    """D-12, INV-24"""
    claim = await lab.running()
    with pytest.raises(StaleLease):
        await lab.engine.attempts.renew(
            FencedExecution(claim.id, Owner(UUID(int=1), 1, claim.attempt_id)), TTL
        )
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED]


@every_form
async def test_a_lease_lives_as_long_as_it_is_renewed(lab: Lab, form: str) -> None:
    """E-X07: the sweep looks at the lease as it stands"""
    claim = await lab.running()
    for _ in range(5):
        await lab.pass_time(TTL - 1)
        await lab.engine.attempts.renew(FORMS[form](lab, claim), TTL)
    assert await lab.vector(claim.id) == RUNNING
    await lab.pass_time(TTL - 1)
    assert await lab.vector(claim.id) == RUNNING
    await lab.pass_time(1)
    assert await lab.vector(claim.id) == lost_vector(Ownership.EXPIRED)


@every_form
async def test_renewing_never_shortens_a_lease(lab: Lab, form: str) -> None:
    """§3.12"""
    claim = await lab.running()
    renewed = await lab.engine.attempts.renew(FORMS[form](lab, claim), Millis(1000))
    assert renewed == Renewed(claim.expires_at, 1)
    lease = await lease_of(lab, claim.id)
    assert lease is not None
    assert lease.expires_at == claim.expires_at


@every_form
async def test_renewing_twice_is_renewing_once(lab: Lab, form: str) -> None:
    """INV-23"""
    claim = await lab.running()
    lab.clock.advance(1000)
    owned = FORMS[form](lab, claim)
    first = await lab.engine.attempts.renew(owned, TTL)
    once = await describe(lab, claim.id)
    assert await lab.engine.attempts.renew(owned, TTL) == first
    assert await describe(lab, claim.id) == once


@pytest.mark.parametrize("form", ["claim", "handle"])
async def test_the_ttl_is_the_one_the_lease_was_taken_with(lab: Lab, form: str) -> None:
    await lab.submit()
    claim = await lab.claim_one(ttl=Millis(5000))
    lab.clock.advance(4000)
    renewed = await lab.engine.attempts.renew(FORMS[form](lab, claim))
    assert renewed.expires_at == lab.clock.now() + 5000


@pytest.mark.rules
async def test_a_renewal_by_fence_says_for_how_long(lab: Lab) -> None:
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.attempts.renew(FencedExecution(claim.id, claim.owner))


@pytest.mark.rules
@every_form
@pytest.mark.parametrize("ttl", [0, -1, 24 * 3_600_000 + 1, True, "long"])
async def test_a_ttl_is_between_a_millisecond_and_a_day(lab: Lab, form: str, ttl: Any) -> None:
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.attempts.renew(FORMS[form](lab, claim), ttl)
    lease = await lease_of(lab, claim.id)
    assert lease is not None
    assert lease.expires_at == claim.expires_at


async def test_a_lease_may_last_a_day(lab: Lab) -> None:
    claim = await lab.running()
    renewed = await lab.engine.claims.renew(claim, Millis(24 * 3_600_000))
    assert renewed.expires_at == lab.clock.now() + 24 * 3_600_000


@pytest.mark.parametrize("source", [Source.LEASE_HOLDER, Source.OPERATOR])
async def test_a_renewal_needs_the_whole_fence(lab: Lab, source: Source) -> None:
    """E-T092: not even an operator"""
    claim = await lab.running()
    with pytest.raises(FenceRequired):
        await lab.engine.claims.renew_as(claim.id, Owner(source=source), TTL)
    with pytest.raises(PartialFence):
        await lab.engine.claims.renew_as(claim.id, Owner(epoch=1, source=source), TTL)
    lease = await lease_of(lab, claim.id)
    assert lease is not None
    assert lease.renewed_at is None


async def test_a_wrong_epoch_is_a_stale_lease(lab: Lab) -> None:
    """E-T093"""
    claim = await lab.running()
    fence = claim.fence
    wrong = Owner(fence.lease_id, fence.epoch + 1, fence.attempt_id)
    with pytest.raises(StaleLease):
        await lab.engine.claims.renew_as(claim.id, wrong, TTL)


@every_form
async def test_a_lease_that_ran_out_is_not_renewed(lab: Lab, form: str) -> None:
    """E-T094, G5: and it is lost from then on, although no sweep looked at it"""
    claim = await lab.running()
    lab.clock.advance(TTL)
    with pytest.raises(LeaseExpired):
        await lab.engine.attempts.renew(FORMS[form](lab, claim), TTL)
    assert await lab.vector(claim.id) == lost_vector(Ownership.EXPIRED)
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED, EventKind.LEASE_EXPIRED]


@every_form
async def test_an_ended_execution_has_no_lease_to_renew(lab: Lab, form: str) -> None:
    """E-T095"""
    claim = await lab.running()
    owned = FORMS[form](lab, claim)
    await lab.complete(claim)
    with pytest.raises(NotActive) as refusal:
        await lab.engine.attempts.renew(owned, TTL)
    assert (refusal.value.phase, refusal.value.outcome) == ("terminal", "success")
    assert (refusal.value.epoch, refusal.value.attempt_id) == (1, claim.attempt_id)


async def test_one_heartbeat_tells_why_each_lost_lease_was_lost(lab: Lab) -> None:
    await lab.engine.executions.submit_many([Submission(kind=str(n)) for n in range(6)])
    claims = {claim.kind: claim for claim in await lab.claim(limit=6)}
    revoked, ended, expired, stolen, moved, kept = (claims[str(n)] for n in range(6))
    await lab.engine.claims.revoke(revoked.id, reason="maintenance")
    await lab.complete(ended)
    await lab.engine.claims.renew(kept, Millis(2 * TTL))
    await lab.engine.claims.renew(stolen, Millis(TTL + 1000))
    await lab.engine.attempts.hand_back(moved)
    again = {claim.id for claim in await lab.claim(W2, limit=2, ttl=Millis(2 * TTL))}
    assert again == {revoked.id, moved.id}
    lab.clock.advance(TTL)
    answers = await lab.engine.claims.renew_all(list(claims.values()))
    assert {lease: type(answer) for lease, answer in answers.items()} == {
        revoked.lease.id: StaleLease,
        ended.lease.id: NotActive,
        expired.lease.id: LeaseExpired,
        stolen.lease.id: Renewed,
        moved.lease.id: StaleLease,
        kept.lease.id: Renewed,
    }
    assert answers[kept.uuid] == Renewed(Millis(lab.clock.now() + TTL), 1)


async def test_an_old_and_a_new_claim_of_one_execution_have_an_answer_each(lab: Lab) -> None:
    """Whichever is given first."""
    old = await lab.running()
    await lab.engine.claims.revoke(old.id, reason="maintenance")
    new = await lab.claim_one()
    for given in ([old, new], [new, old]):
        answers = await lab.engine.claims.renew_all(given)
        assert isinstance(answers[old.lease.id], StaleLease)
        assert answers[new.lease.id] == Renewed(Millis(lab.clock.now() + TTL), new.epoch)
        assert answers[new.uuid] == answers[new.lease.id]
        assert len(answers) == 2


async def test_a_heartbeat_for_nothing_is_nothing(lab: Lab) -> None:
    assert await lab.engine.claims.renew_all([]) == {}


async def test_a_heartbeat_with_an_epoch_that_no_lease_can_have_is_refused(lab: Lab) -> None:
    """INV-24: in the words of the engine, whichever store it has"""
    claim = await lab.running()
    renewal = Renewal(claim.uuid, claim.lease.id, 1 << 31, TTL)
    with pytest.raises(Invalid, match="epoch must be 0 to 2147483647"):
        await lab.engine.claims.extend([renewal])


async def test_a_revoked_lease_says_so_to_the_heartbeat(lab: Lab) -> None:
    claim = await lab.running()
    await lab.engine.claims.revoke(claim.id, reason="the node is drained")
    answers = await lab.engine.claims.renew_all([claim])
    assert isinstance(answers[claim.uuid], LeaseRevoked)
    assert "the node is drained" in str(answers[claim.uuid])


async def test_a_lease_renewed_while_another_process_looks_is_not_lost(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-3, INV-18: a timer is looked at again under the lock; a renewal that was promised in
    time stands, also when it came between the look and the write."""
    claim = await lab.running()
    lab.clock.advance(TTL - 1)
    load = second_lab.engine.store.load

    async def load_before_the_renewal(uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        found = await load(uuids)
        monkeypatch.undo()
        await lab.engine.claims.renew(claim)
        lab.clock.advance(1)
        return found

    monkeypatch.setattr(second_lab.engine.store, "load", load_before_the_renewal)
    await second_lab.engine.claims.mark_expired(claim.id)
    assert await lab.vector(claim.id) == RUNNING
    await lab.complete(claim)


# -- running out


async def test_the_sweep_marks_a_lease_that_ran_out(lab: Lab) -> None:
    """E-T097, INV-8, INV-18"""
    claim = await lab.running()
    await lab.pass_time(TTL - 1)
    assert await lab.vector(claim.id) == RUNNING
    await lab.pass_time(1)
    assert await lab.vector(claim.id) == lost_vector(Ownership.EXPIRED)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    description = await describe(lab, claim.id)
    assert description.blocking_detail == "lease expired, awaiting reclaim"
    assert (description.lease, description.epoch, description.reclaims) == (None, 1, 0)
    assert description.attempt_id == claim.attempt_id
    [_, expired] = await lab.events(claim.id)
    assert (expired.kind, expired.lease) == (EventKind.LEASE_EXPIRED, "expired")
    assert (expired.epoch, expired.attempt, expired.worker) == (1, 0, W1)
    assert expired.at == lab.clock.now()


async def test_the_sweep_marks_a_lost_lease_once(lab: Lab) -> None:
    """INV-23"""
    claim = await lab.running()
    for _ in range(3):
        await lab.pass_time(TTL)
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED, EventKind.LEASE_EXPIRED]


async def test_two_sweeps_at_once_mark_a_lease_once(lab: Lab, second_lab: Lab) -> None:
    claim = await lab.running()
    lab.clock.advance(TTL)
    await lab.engine.sweep.once()
    await second_lab.engine.sweep.once()
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED, EventKind.LEASE_EXPIRED]


async def test_marking_tells_every_case_apart(lab: Lab) -> None:
    """§3.29, INV-24"""
    mark = lab.engine.claims.mark_expired
    assert await mark(UNKNOWN) == AlreadySatisfied("execution_not_found")
    id = await lab.submit()
    assert await mark(id) == AlreadySatisfied("not_active")
    claim = await lab.claim_one()
    assert await mark(id) == AlreadySatisfied("not_yet_expired")
    lab.clock.advance(TTL)
    assert await mark(id) == MarkedExpired(id)
    assert await mark(id) == AlreadySatisfied("already_expired")
    claim = await lab.claim_one()
    await lab.engine.claims.revoke(id, reason="")
    assert await mark(id) == AlreadySatisfied("already_revoked")
    claim = await lab.claim_one()
    await lab.complete(claim)
    assert await mark(id) == AlreadySatisfied("not_active")
    assert await kinds(lab, id) == [
        EventKind.CLAIMED,
        EventKind.LEASE_EXPIRED,
        EventKind.RECLAIMED,
        EventKind.LEASE_REVOKED,
        EventKind.RECLAIMED,
        EventKind.COMPLETED,
    ]


async def test_only_one_of_many_claims_gets_the_lease(lab: Lab, second_lab: Lab) -> None:
    """INV-1, also of a lost execution"""
    await lab.submit()
    for epoch in (1, 2):
        labs = [lab, second_lab] * 4
        answers = await asyncio.gather(*(each.claim(W1) for each in labs))
        claims = [claim for answer in answers for claim in answer]
        assert [claim.epoch for claim in claims] == [epoch]
        await lab.lose(claims[0])
