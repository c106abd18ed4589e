"""Cancelling: from every state, by whoever may, once. E-T160 to E-T172, E-X11, INV-3 to INV-6."""

import asyncio
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    FenceRequired,
    FlowFabricError,
    Invalid,
    InvalidGrant,
    InvalidId,
    LeaseExpired,
    LeaseLost,
    LeaseRevoked,
    MaxReplays,
    NotActive,
    NotEligible,
    NotFound,
    NotLeaseable,
    NotSuspended,
    PartialFence,
    StaleLease,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import Family
from flowfabric.core.execution.lease import AlreadySatisfied, Owner
from flowfabric.core.execution.model import AttemptOutcome, Outcome, Source
from flowfabric.core.execution.operator import Cancelled
from flowfabric.core.execution.status import PublicState
from flowfabric.engine.execution.attempts import FencedExecution
from tests.kit import situations
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.situations import ENDED, LIVING, completions, is_legal, load, missing_ids, suspend

HOLDER = Owner(source=Source.LEASE_HOLDER)


async def cancel(lab: Lab, id: str, reason: str = "enough") -> Cancelled:
    return await lab.engine.executions.cancel(id, reason=reason)


async def released(lab: Lab, id: str) -> int:
    """How often a lease was given back."""
    events = await lab.events(id, family=Family.LEASE)
    return sum(event.lease == "released" for event in events)


@pytest.mark.parametrize("name", LIVING)
async def test_an_operator_cancels_whatever_lives(lab: Lab, name: str) -> None:
    """E-T160, E-T161, E-T162, E-T166, E-X11, INV-5, INV-6"""
    id = await LIVING[name](lab)
    before = await load(lab, id)
    given_back = await released(lab, id)
    assert await cancel(lab, id) == Cancelled(id)
    seen = await lab.engine.views.describe(id)
    assert seen is not None
    assert is_legal(seen.vector)
    assert (seen.state, seen.lease) == (PublicState.CANCELLED, None)
    assert (seen.cancel_reason, seen.cancelled_by) == ("enough", "operator_override")
    assert (seen.ended_at, seen.epoch) == (lab.clock.now(), before.head.epoch)
    assert seen.attempts_made == before.attempts_made
    ran = name == "replay_ready"
    assert await completions(lab, id) == [Outcome.SUCCESS] * ran + [Outcome.CANCELLED]
    assert await released(lab, id) == given_back + (name == "running")
    assert await lab.claim(limit=10) == []
    assert await lab.engine.grants.eligible("default") == []
    assert await lab.engine.claims.expired(as_of=Millis(lab.clock.now() + 10 * TTL)) == []


async def test_what_never_ran_keeps_the_attempt_that_never_came(lab: Lab) -> None:
    """E-T160: S17"""
    id = await situations.cancelled_unrun(lab)
    shape = await lab.vector(id)
    assert (shape.attempt, shape.outcome) == ("pending_first_attempt", "cancelled")
    assert await lab.engine.views.attempts(id) == []
    assert not await lab.events(id, family=Family.LEASE)


@pytest.mark.parametrize("name", ["running", "suspended", "lost", "revoked", "worker_delayed"])
async def test_the_attempt_in_hand_ends_cancelled(lab: Lab, name: str) -> None:
    """E-T161, E-T162: S16"""
    id = await LIVING[name](lab)
    lab.clock.advance(5)
    await cancel(lab, id)
    (attempt,) = await lab.engine.views.attempts(id)
    assert (attempt.index, attempt.outcome) == (0, AttemptOutcome.CANCELLED)
    assert attempt.ended_at == lab.clock.now()
    assert attempt.worker == W1
    assert (await lab.vector(id)).attempt == "attempt_terminal"


async def test_a_cancelled_lease_is_given_back_once_at_the_epoch_it_had(lab: Lab) -> None:
    """E-T165 without the epoch of the original's Postgres store"""
    claim = await lab.running()
    await cancel(lab, claim.id)
    acquired, given_back = await lab.events(claim.id, family=Family.LEASE)
    assert (acquired.lease, given_back.lease) == ("acquired", "released")
    assert (given_back.epoch, given_back.attempt, given_back.worker) == (1, 0, W1)
    assert await lab.engine.claims.held_by(W1.instance) == []


@pytest.mark.parametrize("name", [name for name in ENDED if name.startswith("cancelled")])
async def test_cancelling_twice_is_one_cancel(lab: Lab, name: str) -> None:
    """E-T167, D-6: success, nothing written, the first reason stays"""
    id = await ENDED[name](lab)
    before, events = await load(lab, id), await lab.events(id)
    lab.clock.advance(1)
    assert await cancel(lab, id, "again") == Cancelled(id)
    assert await lab.engine.executions.cancel(id, reason="again", owner=HOLDER) == Cancelled(id)
    assert await load(lab, id) == before
    assert await lab.events(id) == events


@pytest.mark.parametrize("name", [name for name in ENDED if not name.startswith("cancelled")])
async def test_what_ended_otherwise_cannot_be_cancelled(lab: Lab, name: str) -> None:
    """E-T168, INV-4, INV-24"""
    id = await ENDED[name](lab)
    before, events = await load(lab, id), await lab.events(id)
    with pytest.raises(NotActive) as caught:
        await cancel(lab, id)
    error = caught.value
    assert (error.phase, error.outcome) == ("terminal", (await lab.vector(id)).outcome)
    assert (error.epoch, error.attempt_id) == (before.head.epoch, before.attempt_id)
    assert await load(lab, id) == before
    assert await lab.events(id) == events


async def test_what_does_not_exist_cannot_be_cancelled(lab: Lab) -> None:
    """E-T170; the right uuid in another partition is as missing as none"""
    for wrong in await missing_ids(lab):
        with pytest.raises(NotFound) as caught:
            await cancel(lab, wrong)
        assert caught.value.entity == "execution"
    with pytest.raises(InvalidId):
        await cancel(lab, "nonsense")
    assert (await lab.engine.views.counts()).by_state["waiting"] == 1


@pytest.mark.rules
@pytest.mark.parametrize("reason", ["a\0b", "\ud800", "x" * 5000, None, 7])
async def test_a_reason_must_be_storable_text(lab: Lab, reason: str) -> None:
    claim = await lab.running()
    with pytest.raises(Invalid):
        await cancel(lab, claim.id, reason)
    with pytest.raises(Invalid):
        await lab.engine.attempts.cancel(claim, reason)
    assert await lab.state(claim.id) is PublicState.ACTIVE


async def test_any_reason_that_can_be_stored_is_stored_as_it_is(lab: Lab) -> None:
    for reason in ("", "ünïcödé 🚀\nsecond line", "x" * 4096):
        id = await lab.submit()
        await cancel(lab, id, reason)
        seen = await lab.engine.views.describe(id)
        assert seen is not None
        assert seen.cancel_reason == reason


# -- who may


@pytest.mark.parametrize("source", [Source.FLOW_CASCADE, Source.SYSTEM_TIMEOUT])
async def test_cascades_and_timeouts_need_no_fence(lab: Lab, source: Source) -> None:
    """E-X11"""
    claim = await lab.running()
    await lab.engine.executions.cancel(claim.id, reason="r", owner=Owner(source=source))
    seen = await lab.engine.views.describe(claim.id)
    assert seen is not None
    assert (seen.state, seen.cancelled_by) == (PublicState.CANCELLED, source.value)
    assert await completions(lab, claim.id) == [Outcome.CANCELLED]


@pytest.mark.parametrize("source", ["lease_holder", "billing"])
async def test_every_other_source_shows_the_whole_fence(lab: Lab, source: str) -> None:
    """E-T169, D-20, INV-24"""
    claim = await lab.running()
    before = await load(lab, claim.id)
    fence = claim.fence
    wrong = {
        FenceRequired: [Owner(source=source)],
        PartialFence: [
            Owner(lease_id=fence.lease_id, source=source),
            Owner(epoch=fence.epoch, attempt_id=fence.attempt_id, source=source),
        ],
        StaleLease: [
            Owner(UUID(int=1), fence.epoch, fence.attempt_id, source),
            Owner(fence.lease_id, fence.epoch + 1, fence.attempt_id, source),
            Owner(fence.lease_id, fence.epoch, UUID(int=1), source),
        ],
    }
    for error, owners in wrong.items():
        for owner in owners:
            with pytest.raises(error):
                await lab.engine.executions.cancel(claim.id, reason="r", owner=owner)
    assert await load(lab, claim.id) == before
    whole = Owner(fence.lease_id, fence.epoch, fence.attempt_id, source)
    await lab.engine.executions.cancel(claim.id, reason="r", owner=whole)
    seen = await lab.engine.views.describe(claim.id)
    assert seen is not None
    assert seen.cancelled_by == source
    assert await completions(lab, claim.id) == [Outcome.CANCELLED]


async def test_the_order_of_the_checks_when_a_lease_was_revoked(lab: Lab) -> None:
    """No fence, then revoked, then stale: the first that fails decides"""
    claim = await lab.running()
    await lab.engine.claims.revoke(claim.id, reason="maintenance")
    stale = Owner(UUID(int=1), 99, UUID(int=2))
    for owner, error in (
        (HOLDER, FenceRequired),
        (claim.owner, LeaseRevoked),
        (stale, LeaseRevoked),
    ):
        with pytest.raises(error):
            await lab.engine.executions.cancel(claim.id, reason="r", owner=owner)
    with pytest.raises(LeaseRevoked, match="maintenance"):
        await lab.engine.attempts.cancel(claim, "r")
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await cancel(lab, claim.id)
    assert await completions(lab, claim.id) == [Outcome.CANCELLED]


async def test_a_lost_lease_cancels_nothing(lab: Lab) -> None:
    """INV-3"""
    claim = await lab.running()
    await lab.lose(claim)
    with pytest.raises(FenceRequired):
        await lab.engine.executions.cancel(claim.id, reason="r", owner=HOLDER)
    with pytest.raises(LeaseLost):
        await lab.engine.executions.cancel(claim.id, reason="r", owner=claim.owner)
    with pytest.raises(LeaseExpired):
        await lab.engine.attempts.cancel(claim, "r")
    rescuer = await lab.claim_one(W2)
    with pytest.raises(StaleLease):
        await lab.engine.attempts.cancel(claim, "r")
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.engine.attempts.cancel(rescuer, "r")
    assert await completions(lab, claim.id) == [Outcome.CANCELLED]


async def test_an_expired_lease_is_marked_when_its_owner_tries_to_cancel(lab: Lab) -> None:
    """G5: the caller is refused and the expiry is written"""
    claim = await lab.running()
    lab.clock.advance(TTL)
    with pytest.raises(LeaseExpired):
        await lab.engine.attempts.cancel(claim, "r")
    assert (await lab.vector(claim.id)).ownership == "lease_expired_reclaimable"
    assert await completions(lab, claim.id) == []


# -- the owner's own way


@pytest.mark.parametrize("form", ["claim", "handle"])
async def test_a_worker_cancels_what_it_owns_and_may_say_so_twice(lab: Lab, form: str) -> None:
    """E-T172, E-X18, INV-23"""
    claim = await lab.running()
    owned = claim if form == "claim" else lab.engine.attempts.seal(claim)
    first = await lab.engine.attempts.cancel(owned, "mine")
    before = await load(lab, claim.id)
    assert await lab.engine.attempts.cancel(owned, "mine") == first == Cancelled(claim.id)
    assert await load(lab, claim.id) == before
    seen = await lab.engine.views.describe(claim.id)
    assert seen is not None
    assert (seen.state, seen.cancelled_by) == (PublicState.CANCELLED, "lease_holder")
    assert await completions(lab, claim.id) == [Outcome.CANCELLED]
    assert await released(lab, claim.id) == 1


async def test_only_the_last_owner_may_cancel_what_was_cancelled(lab: Lab) -> None:
    """§3.18, INV-3: a cancel by handle passes the gate; D-6 is about the cancel of an operator"""
    first = await lab.running()
    await lab.lose(first)
    last = await lab.claim_one(W2)
    await cancel(lab, last.id)
    before = await load(lab, last.id)
    for owned in (first, lab.engine.attempts.seal(first)):
        with pytest.raises(NotActive) as caught:
            await lab.engine.attempts.cancel(owned, "late")
        assert (caught.value.phase, caught.value.outcome) == ("terminal", "cancelled")
        assert (caught.value.epoch, caught.value.attempt_id) == (2, last.attempt_id)
    forged = FencedExecution(last.id, replace(last.owner, lease_id=first.owner.lease_id))
    with pytest.raises(NotActive):
        await lab.engine.attempts.cancel(forged, "late")
    assert await lab.engine.attempts.cancel(last, "late") == Cancelled(last.id)
    override = FencedExecution(last.id, Owner(source=Source.OPERATOR))
    assert await lab.engine.attempts.cancel(override, "again") == Cancelled(last.id)
    assert await load(lab, last.id) == before


async def test_a_worker_finds_out_that_it_was_cancelled(lab: Lab) -> None:
    """INV-4: nothing it still says counts"""
    claim = await lab.running()
    await cancel(lab, claim.id)
    before, events = await load(lab, claim.id), await lab.events(claim.id)
    for call in (
        lab.engine.attempts.complete(claim, b"late"),
        lab.fail(claim),
        lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 5)),
        lab.engine.attempts.hand_back(claim),
        lab.engine.attempts.progress(claim, 50),
        lab.engine.claims.renew(claim),
    ):
        with pytest.raises(NotActive) as caught:
            await call
        assert (caught.value.outcome, caught.value.epoch) == ("cancelled", 1)
        assert caught.value.attempt_id == claim.attempt_id
    assert await load(lab, claim.id) == before
    assert await lab.events(claim.id) == events


@pytest.mark.parametrize("name", ENDED)
async def test_ended_stays_ended(lab: Lab, name: str) -> None:
    """INV-4, E-X09: only a replay, tags and retention act on what has ended"""
    id = await ENDED[name](lab, policy={"max_replay_count": 0})
    before, events = await load(lab, id), await lab.events(id)
    executions, claims, grants = lab.engine.executions, lab.engine.claims, lab.engine.grants
    refused: list[type[FlowFabricError]] = []
    for call in (
        executions.change_priority(id, 5),
        executions.block(id, "paused_by_operator"),
        executions.unblock(id),
        executions.resume(id),
        executions.replay(id),
        claims.revoke(id, reason="r"),
        grants.issue(id, "w1"),
        grants.take(id),
        grants.claim(id, W1),
    ):
        with pytest.raises(FlowFabricError) as caught:
            await call
        refused.append(type(caught.value))
    assert refused == [
        NotEligible,
        NotActive,
        NotEligible,
        NotSuspended,
        MaxReplays,
        NotActive,
        NotEligible,
        NotEligible,
        NotLeaseable,
    ]
    assert await executions.expire(id) == AlreadySatisfied("already_terminal")
    assert await claims.mark_expired(id) == AlreadySatisfied("not_active")
    await lab.pass_time(10 * TTL)
    assert await lab.claim(limit=10) == []
    assert await load(lab, id) == before
    assert await lab.events(id) == events
    await executions.set_tag(id, "app.note", "kept")
    assert await executions.get_tag(id, "app.note") == "kept"
    assert await load(lab, id) == before


# -- what a cancel takes along


async def test_a_cancel_destroys_a_grant(lab: Lab) -> None:
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1")
    await cancel(lab, id)
    with pytest.raises(NotLeaseable):
        await lab.engine.grants.claim(id, W1)
    await lab.engine.executions.replay(id)
    with pytest.raises(InvalidGrant):
        await lab.engine.grants.claim(id, W1)


async def test_a_cancel_makes_a_reclaim_grant_useless(lab: Lab) -> None:
    """§3.11, check 5"""
    id = await situations.lost(lab)
    await lab.engine.grants.issue_reclaim(id, "w2")
    await cancel(lab, id)
    assert await lab.engine.grants.identity(id) is None
    answer = await lab.engine.grants.reclaim(id, W2)
    assert type(answer).__name__ == "NotReclaimable"
    assert await lab.state(id) is PublicState.CANCELLED


@pytest.mark.rules
@pytest.mark.parametrize("name", LIVING)
async def test_a_cancel_disarms_every_timer(lab: Lab, name: str) -> None:
    """The deadline, the delay, the lease and the attempt's timeout all come and find nothing."""
    policy = {
        **situations.RETRY,
        "timeout_policy": {"attempt_timeout_ms": 1_000_000, "execution_deadline_ms": 2_000_000},
    }
    id = await LIVING[name](lab, policy=policy)
    await cancel(lab, id)
    before, events = await load(lab, id), await lab.events(id)
    lab.clock.advance(10_000_000)
    assert await lab.engine.sweep.once() == 0
    assert await load(lab, id) == before
    assert await lab.events(id) == events


async def test_a_suspended_execution_is_not_woken_after_a_cancel(lab: Lab) -> None:
    """E-T162, E-X09, INV-15"""
    claim = await lab.running()
    await suspend(lab, claim)
    await cancel(lab, claim.id)
    with pytest.raises(NotSuspended):
        await lab.engine.executions.resume(claim.id)
    assert await lab.state(claim.id) is PublicState.CANCELLED


async def test_a_cancel_names_the_lost_attempt_and_those_before_it(lab: Lab) -> None:
    """INV-9"""
    first = await lab.running()
    await lab.lose(first)
    second = await lab.claim_one(W2)
    await cancel(lab, second.id)
    attempts = await lab.engine.views.attempts(second.id)
    assert [(attempt.index, attempt.outcome) for attempt in attempts] == [
        (0, AttemptOutcome.RECLAIMED),
        (1, AttemptOutcome.CANCELLED),
    ]


# -- at once


async def test_two_cancels_at_once_both_succeed_and_are_one(lab: Lab, second_lab: Lab) -> None:
    """E-T171"""
    claim = await lab.running()
    answers = await asyncio.gather(
        *(cancel(each, claim.id) for each in (lab, second_lab) for _ in range(5))
    )
    assert answers == [Cancelled(claim.id)] * 10
    assert await completions(lab, claim.id) == [Outcome.CANCELLED]
    assert await released(lab, claim.id) == 1


async def test_many_cancels_at_once_each_end_their_own(lab: Lab) -> None:
    ids = [await LIVING[name](lab) for name in LIVING if name != "replay_ready"]
    await asyncio.gather(*(cancel(lab, id) for id in ids))
    events = await lab.engine.events.read(family=Family.COMPLETION)
    assert {event.id for event in events.events} == set(ids)
    assert len(events.events) == len(ids)
