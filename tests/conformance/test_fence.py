"""The fence: who may act on an execution, in which order that is asked, what a refusal leaves."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.errors import (
    FenceRequired,
    FlowFabricError,
    Invalid,
    InvalidHandle,
    LeaseExpired,
    LeaseRevoked,
    NotActive,
    NotFound,
    PartialFence,
    StaleLease,
)
from flowfabric.core.event import EventKind
from flowfabric.core.execution import Failure, Fence, Source, Worker
from flowfabric.core.handle import HandleKind, seal
from flowfabric.core.ids import ExecutionId, new_uuid7
from flowfabric.core.lease import Owner
from flowfabric.core.step import Step
from flowfabric.core.time import Millis
from flowfabric.core.vector import Ownership, PublicState
from flowfabric.engine.attempts import Held, Owned
from flowfabric.engine.claims import Claim
from flowfabric.store.contract import Progress, Store
from tests.lab import TTL, W1, W2, Lab

Operation = Callable[[Lab, Owned], Awaitable[object]]

RETRYING = {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 10}}}
STEP = Step(generation=0, position=0, name="charge", occurrence=0, doc=b"late")

OPERATIONS: dict[str, Operation] = {
    "complete": lambda lab, owned: lab.engine.attempts.complete(owned, b"late"),
    "fail": lambda lab, owned: lab.engine.attempts.fail(owned, Failure("late")),
    "delay": lambda lab, owned: lab.engine.attempts.delay(owned, Millis(lab.clock.now() + 1000)),
    "hand_back": lambda lab, owned: lab.engine.attempts.hand_back(owned),
    "cancel": lambda lab, owned: lab.engine.attempts.cancel(owned, "late"),
    "renew": lambda lab, owned: lab.engine.attempts.renew(owned, TTL),
    "progress": lambda lab, owned: lab.engine.attempts.progress(owned, 99, "late"),
    "record_step": lambda lab, owned: lab.engine.attempts.record_step(owned, STEP),
}
FOR_OPERATORS = {"complete", "fail", "delay", "hand_back", "cancel"}

STATE_AFTER = {
    "complete": PublicState.COMPLETED,
    "fail": PublicState.DELAYED,
    "delay": PublicState.DELAYED,
    "hand_back": PublicState.WAITING,
    "cancel": PublicState.CANCELLED,
    "renew": PublicState.ACTIVE,
    "progress": PublicState.ACTIVE,
    "record_step": PublicState.ACTIVE,
}
"""What becomes of an execution with retries left."""

FORMS: dict[str, Callable[[Lab, Claim], Owned]] = {
    "claim": lambda lab, claim: claim,
    "handle": lambda lab, claim: lab.engine.attempts.seal(claim),
    "fence": lambda lab, claim: Held(claim.id, claim.owner),
}

every_operation = pytest.mark.parametrize("name", OPERATIONS)
every_form = pytest.mark.parametrize("form", FORMS)


async def everything(lab: Lab, id: str) -> tuple[Any, ...]:
    """All that can be seen of an execution."""
    views, key = lab.engine.views, ExecutionId(id)
    if await views.info(id) is None:
        return (await lab.events(id),)
    steps = await lab.engine.attempts.steps(key.uuid, 0)
    return (
        await views.describe(id),
        await views.result(id),
        await views.attempts(id),
        await lab.events(id),
        steps,
    )


async def refuse_all(lab: Lab, owned: Owned, error: type[FlowFabricError]) -> None:
    """Every operation is refused with exactly this error."""
    for operation in OPERATIONS.values():
        with pytest.raises(FlowFabricError) as refusal:
            await operation(lab, owned)
        assert refusal.type is error


# -- who may act


@every_form
@every_operation
async def test_the_owner_can_do_everything_in_every_form(lab: Lab, name: str, form: str) -> None:
    """A claim, its handle and its bare fence are the same proof."""
    claim = await lab.running(policy=RETRYING)
    await OPERATIONS[name](lab, FORMS[form](lab, claim))
    assert await lab.state(claim.id) is STATE_AFTER[name]


@every_form
@every_operation
async def test_a_renewed_owner_can_do_everything_after_its_first_expiry(
    lab: Lab, name: str, form: str
) -> None:
    """INV-3: the stored expiry counts, not the one the worker was given with its claim."""
    claim = await lab.running(policy={**RETRYING, "max_reclaim_count": 0})
    lab.clock.advance(TTL - 1)
    await lab.engine.claims.renew(claim)
    lab.clock.advance(TTL - 1)
    await OPERATIONS[name](lab, FORMS[form](lab, claim))
    assert await lab.state(claim.id) is STATE_AFTER[name]


@every_operation
async def test_another_process_can_act_with_the_handle(
    lab: Lab, second_lab: Lab, name: str
) -> None:
    claim = await lab.running(policy=RETRYING)
    await OPERATIONS[name](second_lab, lab.engine.attempts.seal(claim))
    assert await lab.state(claim.id) is STATE_AFTER[name]


@pytest.mark.parametrize("name", sorted(FOR_OPERATORS))
async def test_an_operator_needs_no_fence_for_the_endings(lab: Lab, name: str) -> None:
    """E-T132"""
    claim = await lab.running(policy=RETRYING)
    await OPERATIONS[name](lab, Held(claim.id, Owner(source=Source.OPERATOR)))
    assert await lab.state(claim.id) is STATE_AFTER[name]


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - FOR_OPERATORS))
async def test_nobody_renews_or_writes_beside_a_lease_without_its_fence(
    lab: Lab, name: str
) -> None:
    """E-T092, INV-24"""
    claim = await lab.running()
    before = await everything(lab, claim.id)
    with pytest.raises(FenceRequired):
        await OPERATIONS[name](lab, Held(claim.id, Owner(source=Source.OPERATOR)))
    assert await everything(lab, claim.id) == before


async def test_an_operator_that_presents_a_fence_is_held_to_it(lab: Lab) -> None:
    """The override skips the comparison only when there is nothing to compare."""
    claim = await lab.running()
    fence = claim.fence
    stale = Owner(fence.lease_id, fence.epoch + 1, fence.attempt_id, Source.OPERATOR)
    before = await everything(lab, claim.id)
    await refuse_all(lab, Held(claim.id, stale), StaleLease)
    assert await everything(lab, claim.id) == before


@pytest.mark.parametrize("source", [*set(Source) - {Source.OPERATOR}, "scheduler"])
async def test_no_other_source_acts_without_a_fence(lab: Lab, source: str) -> None:
    """E-T131, E-T145: only an operator's override may, whatever a caller calls itself."""
    claim = await lab.running()
    before = await everything(lab, claim.id)
    await refuse_all(lab, Held(claim.id, Owner(source=source)), FenceRequired)
    assert await everything(lab, claim.id) == before


# -- who may not


async def after_a_retry(lab: Lab) -> tuple[Claim, type[FlowFabricError]]:
    stale = await lab.running(policy=RETRYING)
    await lab.fail(stale)
    await lab.pass_time(10)
    await lab.claim_one(W2)
    return stale, StaleLease


async def after_a_reclaim(lab: Lab) -> tuple[Claim, type[FlowFabricError]]:
    stale = await lab.running()
    await lab.lose(stale)
    await lab.claim_one(W2)
    return stale, StaleLease


async def after_a_replay(lab: Lab) -> tuple[Claim, type[FlowFabricError]]:
    stale = await lab.running()
    await lab.complete(stale)
    await lab.engine.executions.replay(stale.id)
    await lab.claim_one(W2)
    return stale, StaleLease


async def after_another_continues(lab: Lab) -> tuple[Claim, type[FlowFabricError]]:
    stale = await lab.running()
    await lab.engine.attempts.hand_back(stale)
    await lab.claim_one(W2)
    return stale, StaleLease


async def after_itself_continues(lab: Lab) -> tuple[Claim, type[FlowFabricError]]:
    stale = await lab.running()
    await lab.engine.attempts.hand_back(stale)
    await lab.claim_one(W1)
    return stale, StaleLease


async def after_a_revocation(lab: Lab) -> tuple[Claim, type[FlowFabricError]]:
    stale = await lab.running()
    await lab.engine.claims.revoke(stale.id, reason="maintenance")
    return stale, LeaseRevoked


async def after_an_expiry(lab: Lab) -> tuple[Claim, type[FlowFabricError]]:
    stale = await lab.running()
    await lab.lose(stale)
    return stale, LeaseExpired


async def after_a_replay_nobody_claimed(lab: Lab) -> tuple[Claim, type[FlowFabricError]]:
    stale = await lab.running()
    await lab.fail(stale)
    await lab.engine.executions.replay(stale.id)
    return stale, NotActive


async def after_an_attempt_timeout(lab: Lab) -> tuple[Claim, type[FlowFabricError]]:
    stale = await lab.running(policy={"timeout_policy": {"attempt_timeout_ms": 1000}})
    await lab.pass_time(1000)
    return stale, NotActive


async def after_the_deadline(lab: Lab) -> tuple[Claim, type[FlowFabricError]]:
    stale = await lab.running(deadline_at=Millis(lab.clock.now() + 1000))
    await lab.pass_time(1000)
    return stale, NotActive


LOSSES = {
    situation.__name__: situation
    for situation in (
        after_a_retry,
        after_a_reclaim,
        after_a_replay,
        after_another_continues,
        after_itself_continues,
        after_a_revocation,
        after_an_expiry,
        after_a_replay_nobody_claimed,
        after_an_attempt_timeout,
        after_the_deadline,
    )
}


@pytest.mark.parametrize("situation", LOSSES)
async def test_whoever_lost_the_lease_can_change_nothing(lab: Lab, situation: str) -> None:
    """E-X05, E-X15, E-T094, E-T095, E-T134, E-T145, INV-3, INV-4, INV-24"""
    stale, error = await LOSSES[situation](lab)
    before = await everything(lab, stale.id)
    for form in FORMS.values():
        await refuse_all(lab, form(lab, stale), error)
    assert await everything(lab, stale.id) == before


@pytest.mark.parametrize("situation", ["after_a_retry", "after_a_reclaim", "after_a_replay"])
async def test_the_new_owner_is_not_disturbed_by_the_old_one(lab: Lab, situation: str) -> None:
    """E-X05, INV-1, INV-3: the work of attempt 1 counts, whatever attempt 0 tries."""
    stale, _ = await LOSSES[situation](lab)
    [fresh] = await lab.engine.claims.held_by(W2.instance)
    description = await lab.engine.views.describe(fresh)
    assert description is not None
    assert description.lease is not None
    await refuse_all(lab, stale, StaleLease)
    attempt_id = description.attempt_id
    assert attempt_id is not None
    fence = Fence(description.lease.lease_id, description.epoch, attempt_id)
    await lab.engine.attempts.complete(Held(fresh, Owner.of(fence)), b"mine")
    assert await lab.engine.views.result(fresh) == b"mine"


@pytest.mark.parametrize("member", ["lease_id", "epoch", "attempt_id"])
async def test_every_member_of_the_fence_is_compared(lab: Lab, member: str) -> None:
    """E-T093, E-T133, E-T135, E-X15, INV-24"""
    claim = await lab.running()
    wrong = {"epoch": claim.epoch + 1}.get(member, new_uuid7(1, 1))
    before = await everything(lab, claim.id)
    await refuse_all(lab, Held(claim.id, replace(claim.owner, **{member: wrong})), StaleLease)
    assert await everything(lab, claim.id) == before


async def test_an_id_in_another_partition_names_nothing(lab: Lab) -> None:
    claim = await lab.running()
    other = ExecutionId.of((claim.id.partition_index + 1) % 256, claim.uuid)
    before = await everything(lab, claim.id)
    await refuse_all(lab, Held(other, claim.owner), NotFound)
    assert await everything(lab, claim.id) == before


# -- the order of the questions


async def missing(lab: Lab) -> str:
    return ExecutionId.solo("default", new_uuid7(1, 1))


async def waiting(lab: Lab) -> str:
    return await lab.submit()


async def running(lab: Lab) -> str:
    return (await lab.running()).id


async def delayed(lab: Lab) -> str:
    claim = await lab.running()
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 1000))
    return claim.id


async def ended(lab: Lab) -> str:
    claim = await lab.running()
    await lab.complete(claim)
    return claim.id


async def revoked(lab: Lab) -> str:
    return (await after_a_revocation(lab))[0].id


async def revoked_and_past_its_expiry(lab: Lab) -> str:
    id = await revoked(lab)
    await lab.pass_time(TTL)
    return id


async def expired(lab: Lab) -> str:
    return (await after_an_expiry(lab))[0].id


STRANGER = Owner(new_uuid7(1, 2), 7, new_uuid7(1, 3))
OPERATOR = Owner(source=Source.OPERATOR)
PARTS = [
    replace(STRANGER, lease_id=None),
    replace(STRANGER, epoch=None),
    replace(STRANGER, attempt_id=None),
    Owner(lease_id=STRANGER.lease_id),
    Owner(epoch=STRANGER.epoch),
    Owner(attempt_id=STRANGER.attempt_id),
    Owner(epoch=STRANGER.epoch, source=Source.OPERATOR),
]

ORDER: list[tuple[Callable[[Lab], Awaitable[str]], type[FlowFabricError] | None]] = [
    (waiting, NotActive),
    (delayed, NotActive),
    (ended, NotActive),
    (revoked, LeaseRevoked),
    (revoked_and_past_its_expiry, LeaseRevoked),
    (expired, LeaseExpired),
    (running, StaleLease),
]
SITUATIONS = {situation.__name__: (situation, error) for situation, error in ORDER}


async def test_existence_is_asked_first(lab: Lab) -> None:
    """G1 before everything"""
    id = ExecutionId(await missing(lab))
    for owner in (Owner(), STRANGER, *PARTS, OPERATOR):
        await refuse_all(lab, Held(id, owner), NotFound)


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_the_fence_is_asked_before_the_state(lab: Lab, situation: str) -> None:
    """G2 before G3 to G6: E-T092, E-T131, E-T145, INV-24. Part of a fence is never taken for none
    of it."""
    id = ExecutionId(await SITUATIONS[situation][0](lab))
    before = await everything(lab, id)
    await refuse_all(lab, Held(id, Owner()), FenceRequired)
    for part in PARTS:
        await refuse_all(lab, Held(id, part), PartialFence)
    assert await everything(lab, id) == before


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_the_state_is_asked_before_the_fence_is_compared(lab: Lab, situation: str) -> None:
    """G3, G4, G5, then G6: E-T095, E-T134, E-X15, INV-24"""
    make, error = SITUATIONS[situation]
    id = ExecutionId(await make(lab))
    before = await everything(lab, id)
    assert error is not None
    await refuse_all(lab, Held(id, STRANGER), error)
    assert await everything(lab, id) == before


@pytest.mark.parametrize("situation", sorted(SITUATIONS.keys() - {"running"}))
async def test_an_override_passes_the_same_questions(lab: Lab, situation: str) -> None:
    """§1.3: only the comparison is skipped"""
    make, error = SITUATIONS[situation]
    id = ExecutionId(await make(lab))
    before = await everything(lab, id)
    assert error is not None
    for name in FOR_OPERATORS:
        with pytest.raises(FlowFabricError) as refusal:
            await OPERATIONS[name](lab, Held(id, OPERATOR))
        assert refusal.type is error
    assert await everything(lab, id) == before


@pytest.mark.parametrize("owner", [Owner(), PARTS[0]], ids=["no fence", "part of a fence"])
@every_operation
async def test_an_expired_lease_is_not_marked_for_somebody_without_a_fence(
    lab: Lab, name: str, owner: Owner
) -> None:
    """G2 before G5, INV-24"""
    claim = await lab.running()
    lab.clock.advance(TTL)
    with pytest.raises((FenceRequired, PartialFence)):
        await OPERATIONS[name](lab, Held(claim.id, owner))
    assert (await lab.vector(claim.id)).ownership is Ownership.LEASED


async def assert_marked(lab: Lab, claim: Claim) -> None:
    vector = await lab.vector(claim.id)
    assert vector.ownership is Ownership.EXPIRED
    kinds = [event.kind for event in await lab.events(claim.id)]
    assert kinds == [EventKind.CLAIMED, EventKind.LEASE_EXPIRED]


@every_form
@every_operation
async def test_a_lease_found_expired_is_marked_although_the_owner_gets_an_error(
    lab: Lab, name: str, form: str
) -> None:
    """G5, E-T094, INV-24: reaching the expiry counts as expired"""
    claim = await lab.running()
    owned = FORMS[form](lab, claim)
    lab.clock.advance(TTL)
    with pytest.raises(LeaseExpired):
        await OPERATIONS[name](lab, owned)
    await assert_marked(lab, claim)
    with pytest.raises(LeaseExpired):
        await OPERATIONS[name](lab, owned)
    await assert_marked(lab, claim)


@pytest.mark.parametrize(
    ("name", "owner"),
    [(name, STRANGER) for name in OPERATIONS] + [(name, OPERATOR) for name in FOR_OPERATORS],
)
async def test_a_lease_found_expired_is_marked_whoever_finds_it(
    lab: Lab, name: str, owner: Owner
) -> None:
    """G5 before G6"""
    claim = await lab.running()
    lab.clock.advance(TTL)
    with pytest.raises(LeaseExpired):
        await OPERATIONS[name](lab, Held(claim.id, owner))
    await assert_marked(lab, claim)


@every_operation
async def test_the_last_millisecond_of_a_lease_is_still_the_owners(lab: Lab, name: str) -> None:
    claim = await lab.running(policy=RETRYING)
    lab.clock.advance(TTL - 1)
    await OPERATIONS[name](lab, claim)
    assert await lab.state(claim.id) is STATE_AFTER[name]


# -- handles


async def test_a_handle_says_what_the_claim_says(lab: Lab) -> None:
    claim = await lab.running(lane="blue", worker=Worker("w7", "w7-b"))
    body = lab.engine.attempts.open(lab.engine.attempts.seal(claim))
    assert body.execution_id == claim.id
    assert Fence(body.lease_id, body.epoch, body.attempt_id) == claim.fence
    assert (body.attempt_index, body.lease_ttl, body.lane) == (0, TTL, "blue")
    assert (body.worker, body.instance, body.kind) == ("w7", "w7-b", HandleKind.FRESH)


async def test_a_handle_says_how_its_lease_came_about(lab: Lab) -> None:
    fresh = await lab.running()
    await lab.engine.attempts.hand_back(fresh)
    resumed = await lab.claim_one()
    await lab.lose(resumed)
    reclaimed = await lab.claim_one()
    kinds = [
        lab.engine.attempts.open(lab.engine.attempts.seal(claim)).kind
        for claim in (fresh, resumed, reclaimed)
    ]
    assert kinds == [HandleKind.FRESH, HandleKind.RESUMED, HandleKind.RECLAIMED]


async def test_a_handle_signed_elsewhere_opens_nothing(lab: Lab, store: Store) -> None:
    claim = await lab.running()
    body = lab.engine.attempts.open(lab.engine.attempts.seal(claim))
    secret = await store.secret()
    forged = [
        seal(body, b"another key"),
        seal(replace(body, store="another store"), secret),
        seal(replace(body, store="another store"), b"another key"),
        lab.engine.attempts.seal(claim)[:-1],
        "",
        "ffh1.",
        str(claim.id),
    ]
    before = await everything(lab, claim.id)
    for handle in forged:
        await refuse_all(lab, handle, InvalidHandle)
    assert await everything(lab, claim.id) == before


async def test_a_handle_that_gave_its_lease_up_owns_nothing(lab: Lab, store: Store) -> None:
    claim = await lab.running()
    body = lab.engine.attempts.open(lab.engine.attempts.seal(claim))
    suspended = seal(replace(body, kind=HandleKind.SUSPENDED), await store.secret())
    before = await everything(lab, claim.id)
    await refuse_all(lab, suspended, InvalidHandle)
    assert await everything(lab, claim.id) == before


# -- what is written beside the lease


async def progress_of(lab: Lab, id: str) -> Progress | None:
    description = await lab.engine.views.describe(id)
    assert description is not None
    return description.progress


async def test_progress_stores_percentage_and_message(lab: Lab) -> None:
    """E-T149: what is not given stays as it was, and no event is written"""
    claim = await lab.running()
    assert await progress_of(lab, claim.id) is None
    await lab.engine.attempts.progress(claim, 10, "begun")
    assert await progress_of(lab, claim.id) == Progress(10, "begun")
    await lab.engine.attempts.progress(claim, 50)
    assert await progress_of(lab, claim.id) == Progress(50, "begun")
    await lab.engine.attempts.progress(claim, message="halfway")
    assert await progress_of(lab, claim.id) == Progress(50, "halfway")
    await lab.engine.attempts.progress(claim, 0, "")
    assert await progress_of(lab, claim.id) == Progress(0, "")
    assert [event.kind for event in await lab.events(claim.id)] == [EventKind.CLAIMED]


async def test_progress_is_seen_as_the_last_thing_that_happened(lab: Lab) -> None:
    claim = await lab.running()
    lab.clock.advance(500)
    await lab.engine.attempts.progress(claim, 10)
    description = await lab.engine.views.describe(claim.id)
    assert description is not None
    assert description.touched_at == lab.clock.now()


@pytest.mark.parametrize("percent", [-1, 101, 10**30, 5.0, "5", True])
async def test_progress_is_a_whole_percentage(lab: Lab, percent: Any) -> None:
    """§3.13"""
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.attempts.progress(claim, percent)
    assert await progress_of(lab, claim.id) is None


@pytest.mark.parametrize("message", ["x" * 4097, "nul \0", "\ud800", 5])
async def test_a_progress_message_is_short_storable_text(lab: Lab, message: Any) -> None:
    claim = await lab.running()
    await lab.engine.attempts.progress(claim, message="x" * 4096)
    with pytest.raises(Invalid):
        await lab.engine.attempts.progress(claim, message=message)
    assert await progress_of(lab, claim.id) == Progress(None, "x" * 4096)


async def test_writing_beside_a_lease_does_not_disturb_its_owner(lab: Lab) -> None:
    """Renewals, progress and steps leave the version alone that an ending is decided on."""
    claim = await lab.running()
    await lab.engine.attempts.progress(claim, 10)
    await lab.engine.attempts.record_step(claim, STEP)
    await lab.engine.claims.renew(claim)
    found = await lab.engine.store.load([claim.uuid])
    assert found[claim.uuid].head == claim.snapshot.head
    await lab.complete(claim, b"done")
    assert await lab.engine.views.result(claim.id) == b"done"


async def steps_of(lab: Lab, claim: Claim, generation: int = 0) -> list[Step]:
    return await lab.engine.attempts.steps(claim.uuid, generation)


async def test_a_recorded_step_is_never_overwritten(lab: Lab) -> None:
    """INV-23: also not by another attempt"""
    first = await lab.running(policy=RETRYING)
    recorded = replace(STEP, doc=b"first")
    await lab.engine.attempts.record_step(first, recorded)
    await lab.engine.attempts.record_step(first, replace(STEP, doc=b"second"))
    assert await steps_of(lab, first) == [recorded]
    await lab.fail(first)
    await lab.pass_time(10)
    second = await lab.claim_one()
    await lab.engine.attempts.record_step(second, replace(STEP, doc=b"third"))
    assert await steps_of(lab, second) == [recorded]


async def test_steps_are_told_apart_by_name_and_occurrence_and_come_in_order(lab: Lab) -> None:
    claim = await lab.running()
    steps = [
        Step(0, 2, "charge", 1, b"c"),
        Step(0, 0, "charge", 0, b"a"),
        Step(0, 1, "mail", 0, bytes(range(256))),
        Step(1, 0, "charge", 0, b"another generation"),
    ]
    for step in steps:
        await lab.engine.attempts.record_step(claim, step)
    assert await steps_of(lab, claim) == [steps[1], steps[2], steps[0]]
    assert await steps_of(lab, claim, generation=1) == [steps[3]]


async def test_a_step_needs_a_name_and_bytes_that_can_be_stored(lab: Lab) -> None:
    claim = await lab.running()
    wrong: list[dict[str, Any]] = [
        {"name": "x" * 257},
        {"name": "nul \0"},
        {"doc": "text"},
        {"doc": bytes((1 << 20) + 1)},
    ]
    for members in wrong:
        with pytest.raises(Invalid):
            await lab.engine.attempts.record_step(claim, replace(STEP, **members))
    assert await steps_of(lab, claim) == []


async def test_steps_outlive_a_loss_and_a_failure_but_not_a_success(lab: Lab) -> None:
    """A replay keeps the steps of a run that had failed and begins anew after one that had
    succeeded."""
    claim = await lab.running()
    await lab.engine.attempts.record_step(claim, STEP)
    await lab.lose(claim)
    claim = await lab.claim_one()
    await lab.fail(claim)
    await lab.engine.executions.replay(claim.id)
    claim = await lab.claim_one()
    assert claim.snapshot.life.generation == 0
    assert await steps_of(lab, claim) == [STEP]
    await lab.complete(claim)
    await lab.engine.executions.replay(claim.id)
    claim = await lab.claim_one()
    assert claim.snapshot.life.generation == 1
    assert await steps_of(lab, claim, claim.snapshot.life.generation) == []
