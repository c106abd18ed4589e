"""Grants: an execution reserved for one worker, redeemed once or forgotten by itself."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import (
    CapabilityMismatch,
    FlowFabricError,
    GrantExists,
    GrantExpired,
    InvalidCapabilities,
    InvalidGrant,
    LeaseConflict,
    NotEligible,
    NotFound,
    NotLeaseable,
    NotResumed,
    StaleLease,
    UseClaimResumed,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.grant import Granted
from flowfabric.core.execution.handle import HandleKind
from flowfabric.core.execution.model import Hold, Ready, Start, WorkerIdentity
from flowfabric.core.execution.status import AttemptState, Ownership, Phase, PublicState
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import TTL, W1, W2, Lab

MISSING = ExecutionId.of(0, UUID("018f4c3e-0000-7000-8000-0123456789ab"))
GRANT = Millis(10_000)
RETRY = {"retry_policy": {"max_retries": 9, "backoff": {"type": "fixed", "delay_ms": 0}}}


def needs(*capabilities: str) -> dict[str, Any]:
    return {"routing_requirements": {"required_capabilities": list(capabilities)}}


async def hold_of(lab: Lab, id: ExecutionId) -> Hold | None:
    state = (await lab.engine.store.load([id.uuid]))[id.uuid].state
    return state.hold if isinstance(state, Ready) else None


async def waiting_again(lab: Lab) -> ExecutionId:
    """An execution whose first attempt was interrupted and waits to be continued."""
    claim = await lab.running(policy=RETRY)
    await lab.engine.attempts.hand_back(claim)
    return claim.id


# -- issuing


async def test_a_grant_names_its_execution_its_worker_and_its_end(lab: Lab) -> None:
    """E-T071, E-T077, §3.3"""
    id = await lab.submit()
    before = await lab.vector(id)
    until = Millis(lab.clock.now() + GRANT)
    granted = await lab.engine.grants.issue(id, "w1", ttl=GRANT, key="k")
    assert granted == Granted(id, "w1", until, key="k")
    assert await hold_of(lab, id) == Hold(until, "w1")
    assert await lab.vector(id) == before
    assert await lab.events(id) == ()


async def test_nothing_can_be_granted_that_does_not_exist(lab: Lab) -> None:
    """E-T057"""
    with pytest.raises(NotFound) as caught:
        await lab.engine.grants.issue(MISSING, "w1")
    assert caught.value.entity == "execution"


async def test_a_second_grant_is_refused_while_the_first_lives(lab: Lab) -> None:
    """INV-17"""
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1", ttl=GRANT)
    for worker in ("w1", "w2"):
        with pytest.raises(GrantExists):
            await lab.engine.grants.issue(id, worker)
    lab.clock.advance(GRANT - 1)
    with pytest.raises(GrantExists):
        await lab.engine.grants.issue(id, "w2")
    lab.clock.advance(1)
    await lab.engine.grants.issue(id, "w2")
    assert (await lab.engine.grants.claim(id, W2)).id == id


@pytest.mark.parametrize("offered", [["gpu", "linux"], ["x", "linux", "gpu"]])
async def test_a_worker_that_can_run_it_is_granted(lab: Lab, offered: list[str]) -> None:
    """E-T064"""
    demanding = await lab.submit(policy=needs("gpu", "linux"))
    plain = await lab.submit()
    await lab.engine.grants.issue(demanding, "w1", capabilities=offered)
    await lab.engine.grants.issue(plain, "w1", capabilities=[])


@pytest.mark.parametrize(
    ("offered", "missing"),
    [(["linux"], ("gpu",)), ([], ("gpu", "linux")), (["GPU", "x"], ("gpu", "linux"))],
)
async def test_a_worker_that_cannot_run_it_is_told_what_it_lacks(
    lab: Lab, offered: list[str], missing: tuple[str, ...]
) -> None:
    """E-T065; E-T066 to E-T068 are overridden: a mismatch changes no state."""
    id = await lab.submit(policy=needs("linux", "gpu"))
    before = await lab.vector(id)
    with pytest.raises(CapabilityMismatch) as caught:
        await lab.engine.grants.issue(id, "w1", capabilities=offered)
    assert (caught.value.missing, caught.value.detail) == (missing, ",".join(missing))
    assert await lab.vector(id) == before
    assert await hold_of(lab, id) is None
    assert await lab.engine.grants.eligible("default") == [id]


async def test_the_run_is_asked_before_the_capabilities(lab: Lab) -> None:
    """§3.3, checks 1 to 6: a malformed list is noticed after the state and the grant."""
    malformed = ["g,pu"]
    with pytest.raises(NotFound):
        await lab.engine.grants.issue(MISSING, "w1", capabilities=malformed)
    owned = await lab.running()
    with pytest.raises(NotEligible):
        await lab.engine.grants.issue(owned.id, "w1", capabilities=malformed)
    id = await lab.submit(policy=needs("gpu"))
    with pytest.raises(InvalidCapabilities):
        await lab.engine.grants.issue(id, "w1", capabilities=malformed)
    await lab.engine.grants.issue(id, "w1", capabilities=["gpu"])
    for offered in (malformed, []):
        with pytest.raises(GrantExists):
            await lab.engine.grants.issue(id, "w2", capabilities=offered)


async def test_only_what_waits_for_a_worker_can_be_granted(lab: Lab) -> None:
    """§3.3"""
    delayed = await lab.submit(delay_until=Millis(lab.clock.now() + 1))
    blocked = await lab.submit()
    await lab.engine.executions.block(blocked, "paused_by_operator")
    running = await lab.running()
    lost = await lab.running()
    await lab.engine.claims.revoke(lost.id, reason="no")
    ended = await lab.submit()
    await lab.engine.executions.cancel(ended, reason="no")
    for id in (delayed, blocked, running.id, lost.id, ended):
        with pytest.raises(NotEligible):
            await lab.engine.grants.issue(id, "w1")


# -- what a grant hides, and from whom


async def test_a_granted_execution_is_hidden_from_every_other_worker(lab: Lab) -> None:
    """§3.2, §3.3"""
    id = await lab.submit(priority=9)
    other = await lab.submit()
    await lab.engine.grants.issue(id, "w1", ttl=GRANT)
    assert await lab.engine.grants.eligible("default") == [other]
    assert [claim.id for claim in await lab.claim(W2, limit=5)] == [other]
    assert await lab.engine.grants.find_and_issue("w2", lane="default") is None
    with pytest.raises(GrantExists):
        await lab.engine.grants.take(id)
    assert (await lab.claim_one(WorkerIdentity("w1", "w1-b"))).id == id


async def test_a_lapsed_grant_needs_no_cleanup(lab: Lab) -> None:
    """E-X04, E-T076, INV-17: no sweep runs here."""
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1", ttl=GRANT)
    lab.clock.advance(GRANT - 1)
    assert await lab.claim(W2) == []
    lab.clock.advance(1)
    assert await lab.engine.grants.eligible("default") == [id]
    assert (await lab.claim_one(W2)).id == id


async def test_a_changed_priority_leaves_the_grant_alone(lab: Lab) -> None:
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1")
    await lab.engine.executions.change_priority(id, 9)
    assert await lab.claim(W2) == []
    assert (await lab.engine.grants.claim(id, W1)).id == id


async def test_a_cancel_ends_the_grant(lab: Lab) -> None:
    """§3.19"""
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1")
    await lab.engine.executions.cancel(id, reason="no")
    with pytest.raises(NotLeaseable):
        await lab.engine.grants.claim(id, W1)


# -- redeeming


async def test_a_grant_is_redeemed_for_a_lease_and_is_gone(lab: Lab) -> None:
    """E-T058, INV-17"""
    id = await lab.submit(payload=b"in")
    await lab.engine.grants.issue(id, "w1")
    claim = await lab.engine.grants.claim(id, W1, ttl=TTL, lease_id=MISSING.uuid)
    assert (claim.id, claim.payload, claim.attempt, claim.epoch) == (id, b"in", 0, 1)
    assert (claim.lease.id, claim.lease.start) == (MISSING.uuid, Start.INITIAL)
    assert (claim.handle_kind, claim.expires_at) == (HandleKind.FRESH, lab.clock.now() + TTL)
    shape = await lab.vector(id)
    assert (shape.phase, shape.ownership) == (Phase.ACTIVE, Ownership.LEASED)
    assert [event.lease for event in await lab.events(id)] == ["acquired"]
    with pytest.raises(LeaseConflict):
        await lab.engine.grants.claim(id, W1)
    await lab.complete(claim)


async def test_another_instance_of_the_granted_worker_may_redeem(lab: Lab) -> None:
    """§1.2: the worker id authorises, the instance is for the record."""
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1")
    claim = await lab.engine.grants.claim(id, WorkerIdentity("w1", "restarted"))
    assert claim.lease.worker == WorkerIdentity("w1", "restarted")


async def test_an_expired_grant_is_not_redeemed(lab: Lab) -> None:
    """E-T059, E-T076"""
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1", ttl=GRANT)
    lab.clock.advance(GRANT + 1)
    with pytest.raises(GrantExpired):
        await lab.engine.grants.claim(id, W1)
    assert await lab.state(id) is PublicState.WAITING


async def test_a_grant_can_be_redeemed_up_to_its_very_end(lab: Lab) -> None:
    """§3.4, check 9"""
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1", ttl=GRANT)
    lab.clock.advance(GRANT)
    assert (await lab.engine.grants.claim(id, W1)).id == id


async def test_the_grant_of_another_worker_is_not_redeemed_and_survives(lab: Lab) -> None:
    """E-T060"""
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1")
    with pytest.raises(InvalidGrant):
        await lab.engine.grants.claim(id, W2)
    assert (await lab.engine.grants.claim(id, W1)).id == id


async def test_without_a_grant_nothing_is_redeemed(lab: Lab) -> None:
    """E-T061"""
    id = await lab.submit()
    with pytest.raises(InvalidGrant):
        await lab.engine.grants.claim(id, W1)
    with pytest.raises(NotFound):
        await lab.engine.grants.claim(MISSING, W1)
    assert await lab.state(id) is PublicState.WAITING


async def test_what_does_not_wait_for_a_worker_is_not_leaseable(lab: Lab) -> None:
    """E-T062 as [C] has it, E-T063"""
    delayed = await lab.submit(delay_until=Millis(lab.clock.now() + 1))
    blocked = await lab.submit()
    await lab.engine.executions.block(blocked, "paused_by_operator")
    ended = await lab.submit()
    await lab.engine.executions.cancel(ended, reason="no")
    lost = await lab.running()
    await lab.engine.claims.revoke(lost.id, reason="no")
    for id in (delayed, blocked, ended, lost.id):
        with pytest.raises(NotLeaseable):
            await lab.engine.grants.claim(id, W1)
    await lab.claim_one()
    owned = await lab.running()
    with pytest.raises(LeaseConflict):
        await lab.engine.grants.claim(owned.id, W1)
    with pytest.raises(NotLeaseable):  # §3.65: what a second redemption gets
        await lab.engine.grants.claim(owned.id, W1)


async def test_an_attempt_that_is_not_the_expected_one_is_not_started(lab: Lab) -> None:
    """§3.4: a mismatch is refused as stale, and the grant survives."""
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1")
    with pytest.raises(StaleLease):
        await lab.engine.grants.claim(id, W1, expected_attempt=1)
    assert (await lab.engine.grants.claim(id, W1, expected_attempt=0)).attempt == 0


async def test_rivals_redeem_a_grant_once(lab: Lab, second_lab: Lab) -> None:
    """INV-1, INV-17"""
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1")
    answers = await asyncio.gather(
        *(each.engine.grants.claim(id, W1) for each in [lab, second_lab] * 4),
        return_exceptions=True,
    )
    assert sum(isinstance(answer, Claim) for answer in answers) == 1
    assert sum(isinstance(answer, LeaseConflict) for answer in answers) == 7
    assert len(await lab.events(id)) == 1


# -- finding and granting in one step


async def test_the_scheduler_grants_in_the_order_of_priority(lab: Lab) -> None:
    """E-T069, E-T074"""
    made = {priority: await lab.submit(priority=priority) for priority in (100, 1000, 10)}
    granted = [await lab.engine.grants.find_and_issue("w1", lane="default") for _ in range(4)]
    found = [grant.id if grant else None for grant in granted]
    assert found == [made[1000], made[100], made[10], None]


async def test_a_scheduled_grant_is_redeemed_and_run_to_its_end(lab: Lab) -> None:
    """E-T070, E-T071, E-X04"""
    id = await lab.submit(kind="resize", lane="images", policy=needs("gpu"))
    granted = await lab.engine.grants.find_and_issue(
        "w1", lane="images", capabilities=["gpu"], ttl=GRANT
    )
    assert granted is not None
    assert (granted.id, granted.worker) == (id, "w1")
    assert granted.expires_at == lab.clock.now() + GRANT
    claim = await lab.engine.grants.claim(granted.id, W1)
    assert (claim.id, claim.attempt, claim.kind) == (id, 0, "resize")
    await lab.complete(claim)
    assert await lab.state(id) is PublicState.COMPLETED


async def test_the_scheduler_grants_nothing_a_worker_cannot_run(lab: Lab) -> None:
    """E-T072; E-T066 to E-T068 are overridden: nothing is blocked, so nothing needs freeing."""
    id = await lab.submit(policy=needs("gpu"))
    before = await lab.vector(id)
    assert await lab.engine.grants.find_and_issue("w1", lane="default") is None
    assert await lab.vector(id) == before
    assert await lab.engine.grants.find_and_issue("w1", lane="other", capabilities=["gpu"]) is None
    granted = await lab.engine.grants.find_and_issue("w1", lane="default", capabilities=["gpu"])
    assert granted is not None
    assert granted.id == id


async def test_what_a_worker_cannot_run_hides_nothing_from_the_scheduler(lab: Lab) -> None:
    """E-X12"""
    for number in range(250):
        await lab.submit(priority=9, policy=needs("gpu", f"model-{number % 3}"))
    low = await lab.submit()
    granted = await lab.engine.grants.find_and_issue("w1", lane="default")
    assert granted is not None
    assert granted.id == low


async def test_the_scheduler_stays_in_the_lane_and_the_namespace(lab: Lab) -> None:
    a = await lab.submit(namespace="a")
    await lab.submit(lane="other")
    grants = lab.engine.grants
    assert await grants.eligible("default", namespace="b") == []
    assert await grants.find_and_issue("w1", lane="default", namespace="b") is None
    granted = await grants.find_and_issue("w1", lane="default", namespace="a")
    assert granted is not None
    assert granted.id == a


async def test_the_scheduler_grants_nothing_of_a_paused_lane(lab: Lab) -> None:
    """§3.2: what waits in it can still be seen."""
    id = await lab.submit()
    await lab.engine.lanes.pause("default")
    assert await lab.engine.grants.find_and_issue("w1", lane="default") is None
    assert await lab.engine.grants.eligible("default") == [id]
    await lab.engine.lanes.resume("default")
    granted = await lab.engine.grants.find_and_issue("w1", lane="default")
    assert granted is not None
    assert granted.id == id


async def test_two_schedulers_at_once_grant_different_executions(lab: Lab, second_lab: Lab) -> None:
    """E-T075"""
    made = {await lab.submit() for _ in range(6)}
    granted = await asyncio.gather(
        *(
            each.engine.grants.find_and_issue(worker, lane="default")
            for each, worker in [(lab, "w1"), (second_lab, "w2")] * 3
        )
    )
    assert {grant.id for grant in granted if grant} == made


async def test_eligible_shows_the_order_and_takes_nothing(lab: Lab) -> None:
    """§3.6"""
    made = [await lab.submit(priority=priority) for priority in (3, 2, 1)]
    assert await lab.engine.grants.eligible("default", limit=2) == made[:2]
    assert await lab.engine.grants.eligible("default", limit=0) == []
    assert [claim.id for claim in await lab.claim(limit=3)] == made


# -- continuing an interrupted attempt


async def test_an_interrupted_attempt_is_continued_by_its_own_way(lab: Lab) -> None:
    """§3.4, §3.8, §3.9, INV-10"""
    id = await waiting_again(lab)
    await lab.engine.grants.issue(id, "w2")
    with pytest.raises(UseClaimResumed):
        await lab.engine.grants.claim(id, W2)
    claim = await lab.engine.grants.claim_resumed(id, W2, ttl=TTL)
    assert (claim.attempt, claim.epoch, claim.handle_kind) == (0, 2, HandleKind.RESUMED)
    [attempt] = await lab.engine.views.attempts(id)
    assert (attempt.index, attempt.type, attempt.worker) == (0, Start.INITIAL, W2)
    events = await lab.events(id)
    assert (events[-1].lease, events[-1].reason) == ("acquired", "claim_resumed")
    with pytest.raises(NotLeaseable):
        await lab.engine.grants.claim_resumed(id, W2)
    assert await lab.engine.grants.try_resume(id, W1) is None
    with pytest.raises(NotLeaseable):  # D-13: nothing only for the lease of another worker
        await lab.engine.grants.try_resume(id, W2)


async def test_nothing_is_the_answer_only_while_a_lease_is_live(lab: Lab) -> None:
    """§3.8, D-13: at its expiry a lease is not live, marked or not."""
    id = await waiting_again(lab)
    await lab.engine.grants.issue(id, "w2")
    await lab.engine.grants.claim_resumed(id, W2, ttl=TTL)
    lab.clock.advance(TTL - 1)
    assert await lab.engine.grants.try_resume(id, W1) is None
    lab.clock.advance(1)
    with pytest.raises(NotLeaseable):
        await lab.engine.grants.try_resume(id, W1)
    await lab.engine.sweep.once()
    with pytest.raises(NotLeaseable):
        await lab.engine.grants.try_resume(id, W1)


async def test_a_new_attempt_is_not_continued(lab: Lab) -> None:
    """§3.9, check 3"""
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1")
    with pytest.raises(NotResumed):
        await lab.engine.grants.claim_resumed(id, W1)
    with pytest.raises(NotResumed):
        await lab.engine.grants.try_resume(id, W1)


async def test_the_phase_is_asked_first_then_the_attempt_then_the_eligibility(lab: Lab) -> None:
    """§3.9, checks 2 to 4"""
    ended = await lab.submit()
    await lab.engine.executions.cancel(ended, reason="no")
    lost = await lab.running()
    await lab.engine.claims.revoke(lost.id, reason="no")
    await lab.engine.executions.cancel(lost.id, reason="no")
    owned = await lab.running()
    delayed = await lab.submit(delay_until=Millis(lab.clock.now() + 1))
    blocked = await lab.submit()
    await lab.engine.executions.block(blocked, "paused_by_operator")
    interrupted = await waiting_again(lab)
    await lab.engine.executions.block(interrupted, "paused_by_operator")
    for resume in (lab.engine.grants.claim_resumed, lab.engine.grants.try_resume):
        for id in (ended, lost.id, interrupted):
            with pytest.raises(NotLeaseable):
                await resume(id, W1)
        for id in (delayed, blocked):
            with pytest.raises(NotResumed):
                await resume(id, W1)
    with pytest.raises(NotLeaseable):
        await lab.engine.grants.claim_resumed(owned.id, W1)


async def test_continuing_takes_a_grant_of_this_worker_that_lives(lab: Lab) -> None:
    """§3.9, checks 5 and 6: a grant that has expired is deleted"""
    id = await waiting_again(lab)
    for resume in (lab.engine.grants.claim_resumed, lab.engine.grants.try_resume):
        with pytest.raises(InvalidGrant):
            await resume(id, W1)
    await lab.engine.grants.issue(id, "w1", ttl=GRANT)
    with pytest.raises(InvalidGrant):
        await lab.engine.grants.claim_resumed(id, W2)
    lab.clock.advance(GRANT + 1)
    for resume in (lab.engine.grants.claim_resumed, lab.engine.grants.try_resume):
        await lab.engine.grants.issue(id, "w1", ttl=GRANT)
        lab.clock.advance(GRANT + 1)
        with pytest.raises(GrantExpired):
            await resume(id, W1)
        with pytest.raises(InvalidGrant):
            await resume(id, W1)
    assert await hold_of(lab, id) is None
    with pytest.raises(NotFound):
        await lab.engine.grants.claim_resumed(MISSING, W1)


# -- an operator takes in one step


async def test_an_operator_takes_a_waiting_execution_whatever_it_requires(lab: Lab) -> None:
    """E-T084"""
    id = await lab.submit(policy=needs("gpu"))
    claim = await lab.engine.grants.take(id, ttl=TTL)
    assert (claim.epoch, claim.attempt) == (1, 0)
    assert claim.lease.worker == WorkerIdentity("operator", "operator")
    shape = await lab.vector(id)
    assert (shape.phase, shape.ownership, shape.attempt) == (
        Phase.ACTIVE,
        Ownership.LEASED,
        AttemptState.RUNNING,
    )
    described = await lab.engine.views.describe(id)
    assert described is not None
    assert (described.attempt, described.attempts_made) == (0, 1)
    await lab.complete(claim)


async def test_an_operator_takes_nothing_that_does_not_wait(lab: Lab) -> None:
    """E-T085, E-T086, E-T087 as [C] has it: no grant is left behind."""
    delayed = await lab.submit(delay_until=Millis(lab.clock.now() + 1))
    ended = await lab.submit()
    await lab.engine.executions.cancel(ended, reason="no")
    leased = await lab.running()
    refusals: list[tuple[ExecutionId, type[FlowFabricError]]] = [
        (leased.id, LeaseConflict),
        (MISSING, NotFound),
        (delayed, NotEligible),
        (ended, NotEligible),
    ]
    for id, error in refusals:
        with pytest.raises(error):
            await lab.engine.grants.take(id)
    await lab.pass_time(1)
    assert await hold_of(lab, delayed) is None
    assert (await lab.claim_one(W2)).id == delayed


async def test_an_operator_is_told_of_the_grant_before_the_eligibility(lab: Lab) -> None:
    """§3.7, checks 6 and 7: the grant of a blocked run lives"""
    id = await lab.submit()
    await lab.engine.grants.issue(id, W1.id, ttl=GRANT)
    await lab.engine.executions.block(id, "paused_by_operator")
    with pytest.raises(GrantExists):
        await lab.engine.grants.take(id)
    lab.clock.advance(GRANT)
    with pytest.raises(NotEligible):
        await lab.engine.grants.take(id)


async def test_a_grant_may_last_as_long_as_a_lease(lab: Lab) -> None:
    """§1.10: only the HTTP routes limit it to a minute"""
    id = await lab.submit()
    granted = await lab.engine.grants.issue(id, "w1", ttl=3_600_000)
    assert granted.expires_at == lab.clock.now() + 3_600_000
    lab.clock.advance(3_599_999)
    assert await lab.claim(W2) == []
    assert (await lab.engine.grants.claim(id, W1)).id == id
