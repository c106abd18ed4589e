"""Admission blocks: set, seen, undone. E-T200, E-T201, E-X19, §2.5, D-16."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import (
    FlowFabricError,
    GrantExists,
    Invalid,
    InvalidBlockingReason,
    NotActive,
    NotEligible,
    NotFound,
    NotLeaseable,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.operator import Blocked, Unblocked
from flowfabric.core.execution.status import PublicState
from flowfabric.core.limit.quota import Quota
from tests.kit import situations
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.situations import ALL, ENDED, LIVING, load, missing_ids

READY = {"waiting", "resumed", "retry_ready", "replay_ready"}
REASONS = {
    "waiting_for_budget": ("blocked_by_budget", PublicState.RATE_LIMITED),
    "waiting_for_quota": ("blocked_by_quota", PublicState.RATE_LIMITED),
    "waiting_for_capable_worker": ("blocked_by_route", PublicState.WAITING),
    "paused_by_operator": ("blocked_by_operator", PublicState.WAITING),
    "paused_by_policy": ("blocked_by_lane_state", PublicState.WAITING),
}


async def block(lab: Lab, id: str, reason: str = "waiting_for_budget", **more: Any) -> Blocked:
    return await lab.engine.executions.block(id, reason, **more)


async def unblock(lab: Lab, id: str, expected: str | None = None) -> Unblocked:
    return await lab.engine.executions.unblock(id, expected)


@pytest.mark.parametrize("reason", REASONS)
async def test_a_blocked_execution_is_not_claimed_until_it_is_unblocked(
    lab: Lab, reason: str
) -> None:
    """E-T200, E-X19, D-16: each reason, its eligibility and its public state"""
    id = await lab.submit()
    assert await block(lab, id, reason, detail="why") == Blocked(id)
    shape = await lab.vector(id)
    eligibility, public = REASONS[reason]
    assert (shape.phase, shape.ownership, shape.blocking) == ("runnable", "unowned", reason)
    assert (shape.eligibility, shape.public) == (eligibility, public)
    info = await lab.engine.views.info(id)
    assert info is not None
    assert info.blocking_detail == "why"
    assert await lab.claim(limit=5) == []
    assert await lab.engine.grants.eligible("default") == []
    with pytest.raises(NotEligible):
        await lab.engine.grants.issue(id, "w1")
    with pytest.raises(NotEligible):
        await lab.engine.grants.take(id)
    assert await unblock(lab, id) == Unblocked(id)
    shape = await lab.vector(id)
    assert (shape.eligibility, shape.blocking) == ("eligible_now", "waiting_for_worker")
    info = await lab.engine.views.info(id)
    assert info is not None
    assert info.blocking_detail is None
    assert (await lab.claim_one()).id == id
    kinds = [event.kind.name for event in await lab.events(id)]
    assert kinds == ["CLAIMED"]


@pytest.mark.parametrize("name", sorted(READY))
async def test_an_unblocked_execution_is_what_it_was(
    lab: Lab, subtests: pytest.Subtests, name: str
) -> None:
    """S4: the attempt to come, or to go on with, is not forgotten"""
    id = await LIVING[name](lab)
    before = await lab.vector(id)
    for reason in REASONS:
        with subtests.test(reason):
            await block(lab, id, reason)
            shape = await lab.vector(id)
            assert situations.is_legal(shape)
            assert shape.attempt == before.attempt
            await unblock(lab, id, reason)
            assert await lab.vector(id) == before


async def test_a_newer_block_is_safe_from_an_older_decision(lab: Lab) -> None:
    """E-T201, INV-24"""
    id = await lab.submit()
    await block(lab, id, "waiting_for_quota", detail="full")
    before = await load(lab, id)
    for wrong in (*(set(REASONS) - {"waiting_for_quota"}), "nonsense", ""):
        with pytest.raises(NotEligible):
            await unblock(lab, id, wrong)
    assert await load(lab, id) == before
    assert (await lab.vector(id)).eligibility == "blocked_by_quota"
    await unblock(lab, id, "waiting_for_quota")


async def test_a_block_is_refused_in_the_order_of_its_checks(
    lab: Lab, subtests: pytest.Subtests
) -> None:
    """E-X19: ended, not eligible, unknown reason; nothing is written"""
    for name, situation in ALL.items():
        id = await situation(lab)
        before, events = await load(lab, id), await lab.events(id)
        refusal: type[FlowFabricError] = NotActive if name in ENDED else NotEligible
        if name in READY:
            refusal = InvalidBlockingReason
        for reason in ("nonsense",) if name in READY else ("nonsense", "waiting_for_budget"):
            with subtests.test(name, reason=reason):
                with pytest.raises(refusal):
                    await block(lab, id, reason)
                assert await load(lab, id) == before
                assert await lab.events(id) == events


@pytest.mark.rules
async def test_other_words_are_no_reasons_to_block(lab: Lab) -> None:
    """§2.5"""
    id = await lab.submit()
    for reason in ("waiting_for_worker", "none", "waiting_for_signal", "", "PAUSED_BY_OPERATOR"):
        with pytest.raises(InvalidBlockingReason):
            await block(lab, id, reason)


async def test_what_is_not_blocked_cannot_be_unblocked(lab: Lab, subtests: pytest.Subtests) -> None:
    """§3.28"""
    for name in sorted(set(ALL) - {"blocked", "rate_limited"}):
        with subtests.test(name):
            id = await ALL[name](lab)
            before = await load(lab, id)
            with pytest.raises(NotEligible):
                await unblock(lab, id)
            assert await load(lab, id) == before


async def test_what_does_not_exist_is_neither_blocked_nor_unblocked(lab: Lab) -> None:
    for wrong in await missing_ids(lab):
        with pytest.raises(NotFound):
            await block(lab, wrong, "nonsense")
        with pytest.raises(NotFound):
            await unblock(lab, wrong)


@pytest.mark.rules
async def test_a_detail_must_be_storable_text(lab: Lab) -> None:
    id = await lab.submit()
    for wrong in ("a\0b", "x" * 5000, 7):
        with pytest.raises(Invalid):
            await block(lab, id, detail=wrong)
    assert (await lab.vector(id)).eligibility == "eligible_now"


async def test_a_grant_outlives_a_block(lab: Lab) -> None:
    """§3.3, §3.26, INV-17: it is not redeemed while the run is blocked, nor ended by the block"""
    id = await lab.submit()
    granted = await lab.engine.grants.issue(id, W2.id, ttl=Millis(1_000))
    await block(lab, id)
    with pytest.raises(NotLeaseable):
        await lab.engine.grants.claim(id, W2)
    lab.clock.advance(999)
    await unblock(lab, id)
    identity = await lab.engine.grants.identity(id)
    assert identity is not None
    assert (identity.worker, identity.expires_at) == (W2.id, granted.expires_at)
    assert await lab.claim(W1) == []
    with pytest.raises(GrantExists):
        await lab.engine.grants.issue(id, W1.id)
    assert (await lab.engine.grants.claim(id, W2)).id == id


async def test_a_grant_that_expired_or_was_redeemed_does_not_come_back(lab: Lab) -> None:
    """INV-17: at most once, only before its expiry"""
    id = await lab.submit()
    await lab.engine.grants.issue(id, W2.id, ttl=Millis(1_000))
    await block(lab, id)
    lab.clock.advance(1_000)
    await unblock(lab, id)
    assert await lab.engine.grants.identity(id) is None
    await lab.engine.grants.issue(id, W2.id, ttl=TTL)
    claim = await lab.engine.grants.claim(id, W2)
    await lab.engine.attempts.delay(claim, lab.clock.now())
    await block(lab, id)
    await unblock(lab, id)
    assert await lab.engine.grants.identity(id) is None
    assert (await lab.claim_one(W1)).attempt == 0


async def test_a_grant_outlives_a_wait_in_the_line_of_a_quota(lab: Lab) -> None:
    """INV-17: the run gave its slot back with the block, and got it again"""
    await lab.engine.quotas.define(Quota(name="q", concurrency=1))
    id = await lab.submit(policy={"quotas": [{"quota": "q", "key": ""}]})
    await lab.engine.settle()
    await lab.engine.grants.issue(id, W2.id)
    await block(lab, id)
    await unblock(lab, id)
    await lab.engine.settle()
    with pytest.raises(GrantExists):
        await lab.engine.grants.issue(id, W1.id)
    assert (await lab.engine.grants.claim(id, W2)).id == id


async def test_a_block_outlasts_time_and_a_second_block_is_refused(lab: Lab) -> None:
    id = await lab.submit()
    await block(lab, id, "paused_by_operator")
    with pytest.raises(NotEligible):
        await block(lab, id, "waiting_for_budget")
    lab.clock.advance(100 * TTL)
    assert await lab.engine.sweep.once() == 0
    assert (await lab.vector(id)).blocking == "paused_by_operator"


async def test_an_execution_keeps_its_place_in_the_order_while_it_is_blocked(lab: Lab) -> None:
    first = await lab.submit()
    lab.clock.advance(5)
    second = await lab.submit()
    await block(lab, first)
    lab.clock.advance(5)
    await unblock(lab, first)
    assert [claim.id for claim in await lab.claim(limit=5)] == [first, second]


async def test_blocks_at_once_are_one_block(lab: Lab, second_lab: Lab) -> None:
    id = await lab.submit()
    answers = await asyncio.gather(
        *(block(each, id, reason) for each in (lab, second_lab) for reason in REASONS),
        return_exceptions=True,
    )
    assert answers.count(Blocked(id)) == 1
    assert sum(isinstance(answer, NotEligible) for answer in answers) == 9
