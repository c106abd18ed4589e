"""The gate every owner passes: in which order its questions are asked."""

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    FenceRequired,
    LeaseExpired,
    LeaseRevoked,
    NotActive,
    NotFound,
    PartialFence,
    StaleLease,
)
from flowfabric.core.base.ids import ExecutionId, new_uuid7
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import Source
from flowfabric.core.execution.status import Ownership
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.engine.execution.claims import Claim
from tests.kit import situations
from tests.kit.lab import TTL, Lab
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

pytestmark = pytest.mark.rules

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

ERRORS = {"running": StaleLease, "lost": LeaseExpired, "revoked": LeaseRevoked}
"""What a stranger with a whole fence is told; in any other state, that nobody runs it."""


def repeats(situation: str) -> set[str]:
    """Cancelling what is cancelled already is no error, whoever asks (D-6)."""
    return {"cancel"} if situation.startswith("cancelled") else set()


every_situation = pytest.mark.parametrize("situation", situations.ALL)


async def test_existence_is_asked_first(lab: Lab) -> None:
    """G1 before everything"""
    id = ExecutionId.solo("default", new_uuid7(1, 1))
    for owner in (Owner(), STRANGER, *PARTS, OPERATOR):
        await refuse_all(lab, FencedExecution(id, owner), NotFound)


@every_situation
async def test_the_fence_is_asked_before_the_state(lab: Lab, situation: str) -> None:
    """G2 before G3 to G6: E-T092, E-T131, E-T145, INV-24. Part of a fence is never taken for none
    of it."""
    id = await situations.ALL[situation](lab)
    before = await everything(lab, id)
    await refuse_all(lab, FencedExecution(id, Owner()), FenceRequired)
    for part in PARTS:
        await refuse_all(lab, FencedExecution(id, part), PartialFence)
    assert await everything(lab, id) == before


@every_situation
async def test_the_state_is_asked_before_the_fence_is_compared(lab: Lab, situation: str) -> None:
    """G3, G4, G5, then G6: E-T095, E-T134, E-X15, INV-24"""
    id = await situations.ALL[situation](lab)
    before = await everything(lab, id)
    error = ERRORS.get(situation, NotActive)
    await refuse_all(lab, FencedExecution(id, STRANGER), error, besides=repeats(situation))
    assert await everything(lab, id) == before


@pytest.mark.parametrize("situation", sorted(situations.ALL.keys() - {"running"}))
async def test_an_override_passes_the_same_questions(lab: Lab, situation: str) -> None:
    """§1.3: only the comparison is skipped"""
    id = await situations.ALL[situation](lab)
    before = await everything(lab, id)
    error = ERRORS.get(situation, NotActive)
    for name in FOR_OPERATORS - repeats(situation):
        with pytest.raises(error) as refusal:
            await OPERATIONS[name](lab, FencedExecution(id, OPERATOR))
        assert refusal.type is error
    assert await everything(lab, id) == before


@pytest.mark.parametrize("owner", [Owner(), PARTS[0]], ids=["no fence", "part of a fence"])
@every_operation
async def test_an_expired_lease_is_not_marked_for_a_caller_without_a_fence(
    lab: Lab, name: str, owner: Owner
) -> None:
    """G2 before G5, INV-24"""
    claim = await lab.running()
    lab.clock.advance(TTL)
    with pytest.raises((FenceRequired, PartialFence)):
        await OPERATIONS[name](lab, FencedExecution(claim.id, owner))
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
    [(name, STRANGER) for name in OPERATIONS]
    + [(name, OPERATOR) for name in sorted(FOR_OPERATORS)],
)
async def test_a_lease_found_expired_is_marked_by_every_operation(
    lab: Lab, name: str, owner: Owner
) -> None:
    """G5 before G6"""
    claim = await lab.running()
    lab.clock.advance(TTL)
    with pytest.raises(LeaseExpired):
        await OPERATIONS[name](lab, FencedExecution(claim.id, owner))
    await assert_marked(lab, claim)


@every_operation
async def test_the_last_millisecond_of_a_lease_is_still_the_owners(lab: Lab, name: str) -> None:
    claim = await lab.running(policy=RETRYING)
    lab.clock.advance(TTL - 1)
    await OPERATIONS[name](lab, claim)
    assert await lab.state(claim.id) is STATE_AFTER[name]
