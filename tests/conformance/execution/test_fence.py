"""The fence: who may act on an execution and who may not."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    FenceRequired,
    FlowFabricError,
    ForeignHandle,
    InvalidHandle,
    LeaseExpired,
    LeaseRevoked,
    NotActive,
    NotFound,
    StaleLease,
)
from flowfabric.core.base.ids import ExecutionId, new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.handle import HandleKind, seal
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import Fence, Snapshot, Source, WorkerIdentity
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.contract import Store
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.owners import (
    FOR_OPERATORS,
    FORMS,
    OPERATIONS,
    RETRYING,
    STATE_AFTER,
    every_form,
    every_operation,
    everything,
    refuse_all,
)
from tests.kit.waits import signal, suspend

# -- who may act


@every_form
@every_operation
async def test_the_owner_can_do_everything_in_every_form(lab: Lab, name: str, form: str) -> None:
    """A claim, its handle and its bare fence are the same proof."""
    claim = await lab.running(policy=RETRYING)
    await OPERATIONS[name](lab, FORMS[form](lab, claim))
    assert await lab.state(claim.id) is STATE_AFTER[name]


@pytest.mark.rules
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
    await OPERATIONS[name](lab, FencedExecution(claim.id, Owner(source=Source.OPERATOR)))
    assert await lab.state(claim.id) is STATE_AFTER[name]


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - FOR_OPERATORS))
async def test_a_renewal_or_a_note_needs_the_fence_of_its_lease(lab: Lab, name: str) -> None:
    """E-T092, INV-24"""
    claim = await lab.running()
    before = await everything(lab, claim.id)
    with pytest.raises(FenceRequired):
        await OPERATIONS[name](lab, FencedExecution(claim.id, Owner(source=Source.OPERATOR)))
    assert await everything(lab, claim.id) == before


async def test_an_operator_that_presents_a_fence_is_held_to_it(lab: Lab) -> None:
    """The override skips the comparison only when there is nothing to compare."""
    claim = await lab.running()
    fence = claim.fence
    stale = Owner(fence.lease_id, fence.epoch + 1, fence.attempt_id, Source.OPERATOR)
    before = await everything(lab, claim.id)
    await refuse_all(lab, FencedExecution(claim.id, stale), StaleLease)
    assert await everything(lab, claim.id) == before


@pytest.mark.parametrize("source", [*sorted(set(Source) - {Source.OPERATOR}), "scheduler"])
async def test_no_other_source_acts_without_a_fence(lab: Lab, source: str) -> None:
    """E-T131, E-T145: only an operator's override may, whatever a caller calls itself."""
    claim = await lab.running()
    before = await everything(lab, claim.id)
    await refuse_all(lab, FencedExecution(claim.id, Owner(source=source)), FenceRequired)
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


async def after_a_lease_of_the_same_id(lab: Lab) -> tuple[Claim, type[FlowFabricError]]:
    """Whoever redeems a grant may choose the lease id; the epoch tells two of them apart."""
    id, lease_id = await lab.submit(), new_uuid7(1, 1)
    await lab.engine.grants.issue(id, W1.id)
    stale = await lab.engine.grants.claim(id, W1, ttl=TTL, lease_id=lease_id)
    await lab.engine.attempts.hand_back(stale)
    await lab.engine.grants.issue(id, W1.id)
    await lab.engine.grants.claim_resumed(id, W1, ttl=TTL, lease_id=lease_id)
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
        after_a_lease_of_the_same_id,
        after_a_revocation,
        after_an_expiry,
        after_a_replay_nobody_claimed,
        after_an_attempt_timeout,
        after_the_deadline,
    )
}


@pytest.mark.parametrize("situation", LOSSES)
async def test_a_worker_that_lost_the_lease_can_change_nothing(lab: Lab, situation: str) -> None:
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
    await lab.engine.attempts.complete(FencedExecution(fresh, Owner.of(fence)), b"mine")
    assert await lab.engine.views.result(fresh) == b"mine"


@pytest.mark.parametrize("member", ["lease_id", "epoch", "attempt_id"])
async def test_every_member_of_the_fence_is_compared(lab: Lab, member: str) -> None:
    """E-T093, E-T133, E-T135, E-X15, INV-24"""
    claim = await lab.running()
    wrong = {"epoch": claim.epoch + 1}.get(member, new_uuid7(1, 1))
    before = await everything(lab, claim.id)
    await refuse_all(
        lab, FencedExecution(claim.id, replace(claim.owner, **{member: wrong})), StaleLease
    )
    assert await everything(lab, claim.id) == before


async def test_an_id_in_another_partition_names_nothing(lab: Lab) -> None:
    claim = await lab.running()
    other = ExecutionId.of((claim.id.partition_index + 1) % 256, claim.uuid)
    before = await everything(lab, claim.id)
    await refuse_all(lab, FencedExecution(other, claim.owner), NotFound)
    assert await everything(lab, claim.id) == before


# -- rivals


@every_form
@every_operation
@pytest.mark.inside
async def test_a_caller_overtaken_between_its_decision_and_its_write_writes_nothing(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str, form: str
) -> None:
    """INV-3, INV-24: an operator of another process takes the lease away just then"""
    claim = await lab.running(policy=RETRYING)
    owned, store = FORMS[form](lab, claim), lab.engine.store
    revoked: list[tuple[Any, ...]] = []

    def overtaken(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def after_the_rival(*arguments: Any) -> Any:
            if not revoked:
                await second_lab.engine.claims.revoke(claim.id, reason="enough")
                revoked.append(await everything(lab, claim.id))
            return await write(*arguments)

        return after_the_rival

    for method in ("apply", "end", "write_progress", "renew"):
        monkeypatch.setattr(store, method, overtaken(getattr(store, method)))
    with pytest.raises(LeaseRevoked):
        await OPERATIONS[name](lab, owned)
    assert [await everything(lab, claim.id)] == revoked


@every_form
async def test_a_refusal_is_told_at_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """E-X15: what a fence refuses is not tried again"""
    stale, _ = await after_a_reclaim(lab)
    owned, loads = FORMS[form](lab, stale), list[Any]()
    load = lab.engine.store.load

    async def counted(uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        loads.append(uuids)
        return await load(uuids)

    monkeypatch.setattr(lab.engine.store, "load", counted)
    await refuse_all(lab, owned, StaleLease)
    assert loads == [[stale.uuid]] * len(OPERATIONS)


# -- handles


async def test_a_handle_says_what_the_claim_says(lab: Lab) -> None:
    claim = await lab.running(lane="blue", worker=WorkerIdentity("w7", "w7-b"))
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
    secret = (await store.identity()).secret
    elsewhere = replace(body, store="another store")
    foreign = [seal(elsewhere, secret), seal(elsewhere, b"another key")]
    forged = [
        seal(body, b"another key"),
        lab.engine.attempts.seal(claim)[:-1],
        "",
        "ffh1.",
        str(claim.id),
    ]
    before = await everything(lab, claim.id)
    for handle in forged:
        await refuse_all(lab, handle, InvalidHandle)
    for handle in foreign:
        await refuse_all(lab, handle, ForeignHandle)
    assert await everything(lab, claim.id) == before


async def test_a_handle_that_gave_its_lease_up_owns_nothing(lab: Lab) -> None:
    """§1.4, §3.0.3: the gate answers as it does for every lease of the past"""
    claim = await lab.running()
    answer = await suspend(lab, claim)
    assert answer.handle is not None
    before = await everything(lab, claim.id)
    await refuse_all(lab, answer.handle, NotActive)
    assert await everything(lab, claim.id) == before
    await signal(lab, claim.id, answer.primary)
    await refuse_all(lab, answer.handle, NotActive)
    await lab.claim_one(W2)
    before = await everything(lab, claim.id)
    await refuse_all(lab, answer.handle, StaleLease)
    assert await everything(lab, claim.id) == before
