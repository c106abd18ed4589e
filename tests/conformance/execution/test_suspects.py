"""What was lost with its worker is a suspect: marked, told apart by claims, watched and cleared."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.model import Flags, Probation, Snapshot
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Step
from flowfabric.core.explain.reasons import ReasonCode
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.queries import Suspects
from tests.kit.lab import W2, Lab
from tests.kit.situations import RETRY


async def snapshot_of(lab: Lab, id: ExecutionId) -> Snapshot:
    return (await lab.engine.store.load([id.uuid]))[id.uuid]


async def is_suspect(lab: Lab, id: ExecutionId) -> bool:
    return bool((await snapshot_of(lab, id)).head.flags & Flags.SUSPECT)


async def suspect(lab: Lab, **members: Any) -> Claim:
    """One whose lease ran out; the claim is the one that was lost."""
    claim = await lab.running(**members)
    await lab.lose(claim)
    return claim


async def tried(lab: Lab, *, alone: bool = True) -> Claim:
    """The next suspect, taken and watched."""
    claim = await lab.claim_one(W2, suspects=Suspects.ONLY)
    return await lab.engine.claims.watch(claim, alone=alone)


# -- who is one


async def runs_out(lab: Lab, claim: Claim) -> None:
    await lab.lose(claim)


async def is_revoked(lab: Lab, claim: Claim) -> None:
    await lab.engine.claims.revoke(claim.id, reason="maintenance")


async def hands_back(lab: Lab, claim: Claim) -> None:
    await lab.engine.attempts.hand_back(claim)


LOSSES: dict[Callable[[Lab, Claim], Awaitable[None]], bool] = {
    runs_out: True,
    is_revoked: False,
    hands_back: False,
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_only_a_lease_that_ran_out_makes_a_suspect(
    lab: Lab, loss: Callable[[Lab, Claim], Awaitable[None]]
) -> None:
    """A worker that stops and an operator who revokes say nothing about the run"""
    claim = await lab.running()
    await loss(lab, claim)
    assert await is_suspect(lab, claim.id) is LOSSES[loss]


@pytest.mark.parametrize("loss", [is_revoked, hands_back])
async def test_a_suspect_stays_one_until_it_is_cleared(
    lab: Lab, loss: Callable[[Lab, Claim], Awaitable[None]]
) -> None:
    old = await suspect(lab)
    await loss(lab, await tried(lab))
    assert await is_suspect(lab, old.id)
    assert [claim.id for claim in await lab.claim(suspects=Suspects.ONLY)] == [old.id]


# -- telling them apart


@pytest.mark.parametrize("lane_state", ["open", "draining", "limited"])
async def test_a_claim_takes_suspects_or_none_or_as_they_come(lab: Lab, lane_state: str) -> None:
    """In claim order each, whatever the lane is like"""
    first = await suspect(lab)
    begun = await lab.submit()
    await lab.engine.attempts.hand_back(await lab.claim_one(suspects=Suspects.NONE))
    if lane_state == "draining":
        await lab.engine.lanes.drain("default")
    if lane_state == "limited":
        await lab.engine.lanes.set("default", concurrency=3)
    suspects = await lab.claim(limit=1, suspects=Suspects.ONLY)
    assert [claim.id for claim in suspects] == [first.id]
    await lab.engine.attempts.hand_back(suspects[0])
    others = await lab.claim(limit=9, suspects=Suspects.NONE)
    assert [claim.id for claim in others] == [begun]
    await lab.engine.attempts.hand_back(others[0])
    both = await lab.claim(limit=2)
    assert [claim.id for claim in both] == [first.id, begun]


async def test_one_that_is_spent_is_given_up_by_any_claim(lab: Lab) -> None:
    """It is not run: nothing has to be kept from it"""
    claim = await suspect(lab, policy={"max_reclaim_count": 0})
    assert await lab.claim(suspects=Suspects.NONE) == []
    assert await lab.state(claim.id) is PublicState.FAILED


async def test_suspects_of_other_routes_are_left_alone(lab: Lab) -> None:
    claim = await suspect(lab, lane="far")
    assert await lab.claim(lanes=["default"], suspects=Suspects.ONLY) == []
    assert await lab.claim(kinds=["other"], suspects=Suspects.ONLY) == []
    assert [it.id for it in await lab.claim(lanes=["far"], suspects=Suspects.ONLY)] == [claim.id]


# -- probation


async def test_an_innocent_one_never_comes_to_the_cap(lab: Lab) -> None:
    """However often it shares a process with one that kills it: each time it survives alone"""
    claim = await lab.running(policy=RETRY | {"max_reclaim_count": 1})
    for generation in range(4):
        await lab.lose(claim)
        claim = await tried(lab)
        step = Step(0, generation, f"step-{generation}", 0, b"{}")
        await lab.engine.attempts.record_step(claim, step)
        assert await lab.engine.claims.clear(claim, "it recorded a step")
        assert not await is_suspect(lab, claim.id)
    await lab.complete(claim)
    assert (await lab.engine.views.describe(claim.id)).reclaims == 4  # type: ignore[union-attr]


async def test_the_guilty_one_comes_to_the_cap_alone(lab: Lab) -> None:
    claim = await suspect(lab)
    for _ in range(3):
        claim = await tried(lab)
        await lab.lose(claim)
    assert await lab.claim(W2) == []
    assert await lab.state(claim.id) is PublicState.FAILED


async def test_a_loss_beside_others_is_not_held_against_it(lab: Lab) -> None:
    claim = await suspect(lab)
    for _ in range(5):
        claim = await tried(lab, alone=False)
        await lab.lose(claim)
    claim = await tried(lab)
    await lab.complete(claim)


async def suspends(lab: Lab, claim: Claim) -> None:
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 5))


async def fails(lab: Lab, claim: Claim) -> None:
    await lab.fail(claim)


@pytest.mark.parametrize("how", [suspends, fails])
async def test_whatever_comes_so_far_by_itself_is_cleared(
    lab: Lab, how: Callable[[Lab, Claim], Awaitable[None]]
) -> None:
    """A wait or a failure of its own: the worker has survived it"""
    await suspect(lab, policy=RETRY)
    claim = await tried(lab)
    await how(lab, claim)
    found = await snapshot_of(lab, claim.id)
    assert not found.head.flags & Flags.SUSPECT
    assert (found.life.losses, found.life.excused, found.life.probation) == (1, 1, None)


async def test_without_a_probation_nothing_is_excused(lab: Lab) -> None:
    """A claim that takes everything says nothing about who else was there"""
    await suspect(lab, policy=RETRY)
    claim = await lab.claim_one(W2)
    await lab.fail(claim)
    found = await snapshot_of(lab, claim.id)
    assert not found.head.flags & Flags.SUSPECT
    assert (found.life.losses, found.life.excused) == (1, 0)


async def test_a_claim_goes_on_after_watching_and_clearing(lab: Lab) -> None:
    """Both repeat without effect, and the run ends under the same fence"""
    await suspect(lab)
    claim = await tried(lab)
    again = await lab.engine.claims.watch(claim, alone=True)
    assert again == claim
    assert await lab.engine.claims.clear(claim, "enough")
    assert not await lab.engine.claims.clear(claim, "enough")
    await lab.complete(claim)
    assert await lab.state(claim.id) is PublicState.COMPLETED


async def test_watching_one_that_is_no_suspect_changes_nothing(lab: Lab) -> None:
    claim = await lab.running()
    assert await lab.engine.claims.watch(claim, alone=True) == claim


async def test_one_that_was_given_up_is_replayed_as_a_suspect(lab: Lab) -> None:
    claim = await suspect(lab, policy={"max_reclaim_count": 0})
    assert await lab.claim(W2) == []
    await lab.engine.executions.replay(claim.id)
    assert await lab.claim(suspects=Suspects.NONE) == []
    await lab.complete(await tried(lab))
    await lab.engine.executions.replay(claim.id)
    assert len(await lab.claim(suspects=Suspects.NONE)) == 1


# -- being told


async def test_events_tell_of_the_probation(lab: Lab) -> None:
    await suspect(lab)
    claim = await tried(lab)
    await lab.engine.claims.clear(claim, "it recorded a step")
    told = [(event.kind, event.detail) for event in await lab.events(claim.id)]
    assert told[-3:] == [
        (EventKind.RECLAIMED, None),
        (EventKind.PROBATION, {"how": "alone"}),
        (EventKind.CLEARED, {"reason": "it recorded a step"}),
    ]


async def test_explain_tells_of_suspects(lab: Lab) -> None:
    """Waiting, on probation, and about to be given up"""
    claim = await suspect(lab)
    assert await children(lab, claim) == [(ReasonCode.SUSPECT, None, 1)]
    claim = await tried(lab)
    assert await children(lab, claim) == [(ReasonCode.SUSPECT, Probation.ALONE, 1)]
    await lab.engine.claims.clear(claim, "enough")
    assert await children(lab, claim) == []
    spent = await suspect(lab, policy={"max_reclaim_count": 0}, lane="other")
    assert await children(lab, spent) == [(ReasonCode.SPENT, None, 1)]


async def test_explain_says_that_a_grant_with_a_higher_cap_is_not_given_up(lab: Lab) -> None:
    """As long as the grant is live, the next claim is that of its worker, which takes it over"""
    claim = await suspect(lab, policy={"max_reclaim_count": 0})
    await lab.engine.grants.issue_reclaim(claim.id, W2.id, max_reclaims=1, ttl=Millis(1_000))
    assert await children(lab, claim) == [(ReasonCode.SUSPECT, None, 1)]
    lab.clock.advance(1_000)
    assert await children(lab, claim) == [(ReasonCode.SPENT, None, 1)]


async def children(lab: Lab, claim: Claim) -> list[Any]:
    """What the main reason says besides."""
    found = (await lab.engine.explain(claim.id)).main.children
    return [(it.code, it.detail["probation"], it.detail["losses"]) for it in found]


async def test_explain_tells_of_a_suspect_that_was_handed_back(lab: Lab) -> None:
    await suspect(lab)
    claim = await tried(lab)
    await lab.engine.attempts.hand_back(claim)
    assert ReasonCode.SUSPECT in (await lab.engine.explain(claim.id)).codes
