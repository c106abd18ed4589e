"""Delaying and handing back: an owner gives its lease up and the same attempt goes on later."""

from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, LeaseExpired, NotActive, StaleLease
from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import Delayed
from flowfabric.core.execution.event import EventKind, Family
from flowfabric.core.execution.handle import HandleKind
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import Outcome, Source, Start
from flowfabric.core.execution.status import (
    AttemptState,
    Blocking,
    Eligibility,
    Ownership,
    Phase,
    PublicState,
    Vector,
)
from flowfabric.core.execution.step import Step
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.leases import describe
from tests.kit.owners import FORMS, every_form, everything

DELAYED = Vector(
    Phase.RUNNABLE,
    Ownership.UNOWNED,
    Eligibility.NOT_UNTIL_TIME,
    Blocking.DELAY,
    "none",
    AttemptState.INTERRUPTED,
)
RESUMED = Vector(
    Phase.RUNNABLE,
    Ownership.UNOWNED,
    Eligibility.ELIGIBLE_NOW,
    Blocking.WORKER,
    "none",
    AttemptState.INTERRUPTED,
)
STEP = Step(generation=0, position=0, name="sleep", occurrence=0, doc=b"until then")


def later(lab: Lab, millis: int = 1000) -> Millis:
    return Millis(lab.clock.now() + millis)


# -- delaying


@every_form
async def test_a_delayed_execution_keeps_its_attempt_and_has_no_lease(lab: Lab, form: str) -> None:
    """E-T150, INV-8, INV-10"""
    claim = await lab.running()
    started_at = lab.clock.now()
    lab.clock.advance(500)
    until = later(lab)
    answer = await lab.engine.attempts.delay(FORMS[form](lab, claim), until)
    assert answer == Delayed(claim.id, PublicState.DELAYED)
    assert await lab.vector(claim.id) == DELAYED
    description = await describe(lab, claim.id)
    assert (description.lease, description.epoch) == (None, 1)
    assert (description.attempt, description.attempt_id) == (0, claim.attempt_id)
    assert (description.attempts_made, description.started_at) == (1, started_at)
    assert description.blocking_detail == f"delayed until {until}"
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.index, attempt.type, attempt.outcome) == (0, Start.INITIAL, "suspended")
    assert (attempt.started_at, attempt.ended_at) == (started_at, None)
    assert await lab.engine.claims.held_by(W1.instance) == []
    assert await lab.claim(W2) == []


async def test_delaying_releases_the_lease_and_ends_nothing(lab: Lab) -> None:
    """INV-5"""
    claim = await lab.running()
    await lab.engine.attempts.delay(claim, later(lab))
    [_, released] = await lab.events(claim.id)
    assert (released.kind, released.lease) == (EventKind.DELAYED, "released")
    assert (released.reason, released.completion) == ("delayed", None)
    assert (released.epoch, released.attempt, released.worker) == (1, 0, W1)
    assert released.detail == {"until": later(lab)}


@pytest.mark.parametrize("worker", [W1, W2])
async def test_a_delayed_execution_wakes_by_itself_and_goes_on(lab: Lab, worker: Any) -> None:
    """E-X10, INV-2, INV-10, INV-18: same attempt, next epoch, whoever takes it"""
    claim = await lab.running(payload=b"work")
    await lab.engine.attempts.delay(claim, later(lab))
    await lab.pass_time(999)
    assert await lab.vector(claim.id) == DELAYED
    await lab.pass_time(1)
    assert await lab.vector(claim.id) == RESUMED
    again = await lab.claim_one(worker)
    assert (again.id, again.payload, again.handle_kind) == (
        claim.id,
        b"work",
        HandleKind.RESUMED,
    )
    assert (again.attempt, again.attempt_id, again.epoch) == (0, claim.attempt_id, 2)
    event = (await lab.events(claim.id))[-1]
    assert (event.kind, event.lease, event.reason) == (
        EventKind.RESUMED,
        "acquired",
        "claim_resumed",
    )
    await lab.complete(again, b"done")
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.type, attempt.outcome, attempt.epoch) == (Start.INITIAL, "ended_success", 2)
    assert (attempt.worker, attempt.lease_id) == (worker, again.lease.id)
    assert attempt.started_at == claim.lease.started_at


@pytest.mark.parametrize("millis", [0, -1, -1_000_000])
async def test_a_delay_that_has_passed_is_none(lab: Lab, millis: int) -> None:
    """§3.16 [C]"""
    claim = await lab.running()
    answer = await lab.engine.attempts.delay(claim, later(lab, millis))
    assert answer == Delayed(claim.id, PublicState.WAITING)
    assert await lab.vector(claim.id) == RESUMED
    assert (await lab.claim_one(W2)).attempt == 0


@pytest.mark.rules
@pytest.mark.parametrize("until", [-1, 253_402_300_800_000, 10**30, 1.5, "soon", None, True])
async def test_a_delay_ends_at_a_moment(lab: Lab, until: Any) -> None:
    """INV-24"""
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.attempts.delay(claim, until)
    assert await lab.state(claim.id) is PublicState.ACTIVE


async def test_an_operator_delays_without_a_fence(lab: Lab) -> None:
    """§3.16"""
    claim = await lab.running()
    operator = FencedExecution(claim.id, Owner(source=Source.OPERATOR))
    await lab.engine.attempts.delay(operator, later(lab))
    assert await lab.vector(claim.id) == DELAYED


@every_form
async def test_a_delay_repeated_gets_the_same_answer(lab: Lab, form: str) -> None:
    """INV-23: the first moment counts"""
    claim = await lab.running()
    owned = FORMS[form](lab, claim)
    first = await lab.engine.attempts.delay(owned, later(lab))
    before = await everything(lab, claim.id)
    assert await lab.engine.attempts.delay(owned, later(lab, 999_999)) == first
    assert await everything(lab, claim.id) == before


@every_form
async def test_a_delay_repeated_later_gets_the_first_answer(lab: Lab, form: str) -> None:
    """INV-23, §3.0.3: also after it became ready, and after an operator cancelled it"""
    claim = await lab.running()
    owned = FORMS[form](lab, claim)
    first = await lab.engine.attempts.delay(owned, later(lab))
    await lab.pass_time(1000)
    assert await lab.vector(claim.id) == RESUMED
    assert await lab.engine.attempts.delay(owned, later(lab)) == first
    await lab.engine.executions.cancel(claim.id, reason="enough")
    before = await everything(lab, claim.id)
    assert await lab.engine.attempts.delay(owned, later(lab)) == first
    assert await everything(lab, claim.id) == before


async def test_a_worker_that_gave_its_lease_up_has_none(lab: Lab) -> None:
    """E-X05, INV-3: told with what another call needs to understand"""
    claim = await lab.running()
    await lab.engine.attempts.delay(claim, later(lab))
    with pytest.raises(NotActive) as refusal:
        await lab.engine.attempts.complete(claim)
    assert (refusal.value.phase, refusal.value.outcome) == ("runnable", "none")
    assert (refusal.value.epoch, refusal.value.attempt_id) == (1, claim.attempt_id)
    other = replace(claim.owner, lease_id=new_uuid7(1, 1))
    with pytest.raises(NotActive):
        await lab.engine.attempts.delay(FencedExecution(claim.id, other), later(lab))


async def test_a_delay_can_follow_a_delay(lab: Lab) -> None:
    """INV-2, INV-9, INV-10, E-X14"""
    claim = await lab.running()
    started_at = lab.clock.now()
    for epoch in range(1, 5):
        assert (claim.attempt, claim.epoch) == (0, epoch)
        await lab.engine.attempts.delay(claim, later(lab))
        await lab.pass_time(1000)
        claim = await lab.claim_one()
    description = await describe(lab, claim.id)
    assert (description.attempts_made, description.started_at) == (1, started_at)
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.type, attempt.started_at) == (Start.INITIAL, started_at)


async def test_a_delayed_execution_keeps_its_place_in_the_queue(lab: Lab) -> None:
    claim = await lab.running(priority=5)
    await lab.engine.attempts.delay(claim, later(lab))
    await lab.submit(priority=9)
    await lab.submit(priority=1)
    await lab.pass_time(1000)
    claims = await lab.claim(limit=3)
    assert [claim.snapshot.priority for claim in claims] == [9, 5, 1]


# -- a step recorded by the change that parks


async def steps_of(lab: Lab, claim: Claim) -> list[Step]:
    return await lab.engine.attempts.steps(claim.uuid, 0)


@every_form
async def test_a_step_given_along_is_recorded_with_the_delay(lab: Lab, form: str) -> None:
    claim = await lab.running()
    owned = FORMS[form](lab, claim)
    await lab.engine.attempts.delay(owned, later(lab), step=STEP)
    assert await steps_of(lab, claim) == [STEP]
    await lab.engine.attempts.delay(owned, later(lab), step=replace(STEP, doc=b"second"))
    assert await steps_of(lab, claim) == [STEP]


async def test_a_refused_delay_records_no_step(lab: Lab) -> None:
    """INV-3, INV-24"""
    claim = await lab.running()
    await lab.engine.attempts.hand_back(claim)
    with pytest.raises(NotActive):
        await lab.engine.attempts.delay(claim, later(lab), step=STEP)
    again = await lab.claim_one()
    with pytest.raises(StaleLease):
        await lab.engine.attempts.delay(claim, later(lab), step=STEP)
    lab.clock.advance(TTL)
    with pytest.raises(LeaseExpired):
        await lab.engine.attempts.delay(again, later(lab), step=STEP)
    assert await steps_of(lab, claim) == []
    assert (await lab.vector(claim.id)).ownership is Ownership.EXPIRED


@pytest.mark.rules
async def test_a_step_that_cannot_be_stored_keeps_the_delay_from_happening(lab: Lab) -> None:
    """INV-24"""
    claim = await lab.running()
    wrong: list[dict[str, Any]] = [{"name": "nul \0"}, {"doc": "text"}, {"name": "x" * 2049}]
    for members in wrong:
        with pytest.raises(Invalid):
            await lab.engine.attempts.delay(claim, later(lab), step=replace(STEP, **members))
    assert await lab.state(claim.id) is PublicState.ACTIVE


async def test_a_step_that_is_recorded_already_stays_when_a_delay_brings_it(lab: Lab) -> None:
    claim = await lab.running()
    await lab.engine.attempts.record_step(claim, STEP)
    await lab.engine.attempts.delay(claim, later(lab), step=replace(STEP, doc=b"second"))
    assert await steps_of(lab, claim) == [STEP]


# -- handing back


@every_form
async def test_what_is_handed_back_can_be_claimed_at_once(lab: Lab, form: str) -> None:
    """INV-10: same attempt, no retry and no reclaim spent"""
    claim = await lab.running()
    answer = await lab.engine.attempts.hand_back(FORMS[form](lab, claim))
    assert answer == Delayed(claim.id, PublicState.WAITING)
    assert await lab.vector(claim.id) == RESUMED
    again = await lab.claim_one(W2)
    assert (again.id, again.attempt, again.epoch) == (claim.id, 0, 2)
    description = await describe(lab, claim.id)
    assert (description.retries, description.reclaims, description.attempts_made) == (0, 0, 1)
    released = (await lab.events(claim.id))[1]
    assert (released.kind, released.lease, released.reason) == (
        EventKind.HANDED_BACK,
        "released",
        "handed_back",
    )


async def test_handing_back_twice_is_handing_back_once(lab: Lab) -> None:
    """INV-23"""
    claim = await lab.running()
    first = await lab.engine.attempts.hand_back(claim)
    before = await everything(lab, claim.id)
    assert await lab.engine.attempts.hand_back(claim) == first
    assert await everything(lab, claim.id) == before
    await lab.engine.executions.block(claim.id, "waiting_for_quota")
    assert await lab.engine.attempts.hand_back(claim) == first


async def test_a_delay_is_no_repeat_of_a_hand_back(lab: Lab) -> None:
    claim = await lab.running()
    await lab.engine.attempts.hand_back(claim)
    with pytest.raises(NotActive):
        await lab.engine.attempts.delay(claim, later(lab))


# -- timers


def limited(timeout: int) -> dict[str, Any]:
    return {"timeout_policy": {"attempt_timeout_ms": timeout}}


@pytest.mark.parametrize("way", ["delay", "hand_back"])
async def test_an_attempt_that_goes_on_has_only_the_time_that_was_left(lab: Lab, way: str) -> None:
    """§3.9: the timer stands still while nobody runs it"""
    claim = await lab.running(policy=limited(60_000))
    await lab.engine.claims.renew(claim, Millis(100_000))
    await lab.pass_time(20_000)
    if way == "delay":
        await lab.engine.attempts.delay(claim, later(lab, 500_000))
    else:
        await lab.engine.attempts.hand_back(claim)
    await lab.pass_time(500_000)
    assert await lab.state(claim.id) is PublicState.WAITING
    claim = await lab.claim_one(ttl=Millis(100_000))
    await lab.pass_time(39_999)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.pass_time(1)
    assert await lab.state(claim.id) is PublicState.EXPIRED
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.index, attempt.outcome) == (0, "ended_failure")


async def test_the_time_that_is_left_shrinks_with_every_turn(lab: Lab) -> None:
    claim = await lab.running(policy=limited(60_000))
    for _ in range(3):
        await lab.pass_time(20_000 - 1)
        await lab.engine.attempts.hand_back(claim)
        claim = await lab.claim_one()
    await lab.pass_time(2)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.pass_time(1)
    assert await lab.state(claim.id) is PublicState.EXPIRED


async def test_the_deadline_survives_a_delay(lab: Lab) -> None:
    """E-X10, INV-18, FLAW-8"""
    claim = await lab.running(deadline_at=later(lab, 5000))
    await lab.engine.attempts.delay(claim, later(lab))
    assert (await describe(lab, claim.id)).deadline_at == later(lab, 5000)
    await lab.pass_time(1000)
    assert await lab.state(claim.id) is PublicState.WAITING
    claim = await lab.claim_one()
    assert (await describe(lab, claim.id)).deadline_at == later(lab, 4000)
    await lab.pass_time(4000)
    assert await lab.state(claim.id) is PublicState.EXPIRED


async def test_the_deadline_ends_a_delay(lab: Lab) -> None:
    """E-X10, INV-5, INV-18: no lease is released, for there was none"""
    claim = await lab.running(deadline_at=later(lab, 5000))
    await lab.engine.attempts.delay(claim, later(lab, 9000))
    await lab.pass_time(5000)
    assert await lab.state(claim.id) is PublicState.EXPIRED
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.outcome, attempt.ended_at) == ("ended_failure", lab.clock.now())
    [completion] = await lab.events(claim.id, family=Family.COMPLETION)
    assert (completion.completion, completion.lease) == (Outcome.EXPIRED, None)
    await lab.pass_time(5000)
    assert await lab.state(claim.id) is PublicState.EXPIRED


async def test_many_delays_wake_in_one_sweep(lab: Lab) -> None:
    """INV-18, INV-19"""
    claims = [await lab.running() for _ in range(12)]
    for number, claim in enumerate(claims):
        await lab.engine.attempts.delay(claim, later(lab, 1000 + number))
    await lab.pass_time(1005)
    states = [await lab.state(claim.id) for claim in claims]
    assert states == [PublicState.WAITING] * 6 + [PublicState.DELAYED] * 6
    await lab.pass_time(6)
    assert {await lab.state(claim.id) for claim in claims} == {PublicState.WAITING}


# -- what else may become of a paused attempt


async def test_cancelling_a_delayed_execution_ends_its_attempt(lab: Lab) -> None:
    """INV-5, INV-9"""
    claim = await lab.running()
    await lab.engine.attempts.delay(claim, later(lab))
    await lab.engine.executions.cancel(claim.id, reason="enough")
    vector = await lab.vector(claim.id)
    assert (vector.outcome, vector.attempt) == ("cancelled", AttemptState.TERMINAL)
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.index, attempt.outcome) == (0, "ended_cancelled")
    await lab.pass_time(1000)
    assert await lab.claim(W2) == []


async def test_a_continued_attempt_that_is_lost_keeps_what_it_was(lab: Lab) -> None:
    """INV-9: its type and its beginning, not those of its last turn"""
    claim = await lab.running()
    started_at = lab.clock.now()
    lab.clock.advance(100)
    await lab.engine.attempts.hand_back(claim)
    again = await lab.claim_one()
    await lab.lose(again)
    rescue = await lab.claim_one(W2)
    assert rescue.attempt == 1
    first, second = await lab.engine.views.attempts(claim.id)
    assert (first.type, first.outcome, first.started_at) == (
        Start.INITIAL,
        "interrupted_reclaimed",
        started_at,
    )
    assert (first.lease_id, first.epoch) == (again.lease.id, 2)
    assert (second.type, second.previous) == (Start.RECLAIM, 0)


async def test_a_continued_attempt_may_fail_and_be_retried(lab: Lab) -> None:
    """INV-9, INV-10"""
    policy = {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 0}}}
    claim = await lab.running(policy=policy)
    await lab.engine.attempts.hand_back(claim)
    await lab.fail(await lab.claim_one())
    retry = await lab.claim_one()
    assert (retry.attempt, retry.epoch) == (1, 3)
    await lab.engine.attempts.hand_back(retry)
    retry = await lab.claim_one()
    assert (retry.attempt, retry.epoch, retry.handle_kind) == (1, 4, HandleKind.RESUMED)
    await lab.complete(retry)
    attempts = await lab.engine.views.attempts(claim.id)
    assert [(attempt.type, attempt.outcome) for attempt in attempts] == [
        (Start.INITIAL, "ended_failure"),
        (Start.RETRY, "ended_success"),
    ]
