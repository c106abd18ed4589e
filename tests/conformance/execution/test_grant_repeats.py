"""A redemption whose reply was lost is repeated: the same caller gets the same lease again."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import LeaseConflict, NotLeaseable, StaleLease
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.grant import Granted, GrantNotFound
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import TTL, W1, W2, Lab

MINE = UUID("018f4c3e-0000-7000-8000-0123456789ab")
OTHER = UUID("018f4c3e-0000-7000-8000-0123456789ac")
RETRY = {"retry_policy": {"max_retries": 9, "backoff": {"type": "fixed", "delay_ms": 0}}}


async def granted(lab: Lab) -> ExecutionId:
    id = await lab.submit(payload=b"in")
    await lab.engine.grants.issue(id, "w1")
    return id


async def granted_resume(lab: Lab) -> ExecutionId:
    claim = await lab.running(payload=b"in", policy=RETRY)
    await lab.engine.attempts.hand_back(claim)
    await lab.engine.grants.issue(claim.id, "w1")
    return claim.id


async def granted_reclaim(lab: Lab) -> ExecutionId:
    claim = await lab.running(payload=b"in")
    await lab.lose(claim)
    assert isinstance(await lab.engine.grants.issue_reclaim(claim.id, "w1"), Granted)
    return claim.id


WAYS = {
    "claim": granted,
    "claim_resumed": granted_resume,
    "try_resume": granted_resume,
    "reclaim": granted_reclaim,
}


async def redeem(
    lab: Lab, way: str, id: str, worker: WorkerIdentity = W1, lease: UUID = MINE
) -> Any:
    return await getattr(lab.engine.grants, way)(id, worker, ttl=TTL, lease_id=lease)


def same_lease(a: Claim, b: Claim) -> bool:
    return (a.fence, a.attempt, a.handle_kind, a.payload, a.ttl) == (
        b.fence,
        b.attempt,
        b.handle_kind,
        b.payload,
        b.ttl,
    )


@pytest.mark.parametrize("way", WAYS)
async def test_the_same_caller_gets_the_same_lease_again(
    lab: Lab, second_lab: Lab, way: str
) -> None:
    """§3.4, §3.8, §3.9, §3.11: nothing is taken twice and no event is written twice."""
    id = await WAYS[way](lab)
    first = await redeem(lab, way, id)
    events = await lab.events(id)
    for again in (lab, second_lab):
        repeat = await redeem(again, way, id)
        assert same_lease(repeat, first)
        assert repeat.expires_at == first.expires_at
    assert await lab.events(id) == events
    renewed = await lab.engine.claims.renew(first, Millis(2 * TTL))
    assert (await redeem(lab, way, id)).expires_at == renewed.expires_at
    await lab.complete(repeat)


@pytest.mark.parametrize("way", WAYS)
async def test_repeats_at_the_same_moment_get_one_lease(
    lab: Lab, second_lab: Lab, way: str
) -> None:
    id = await WAYS[way](lab)
    claims = await asyncio.gather(*(redeem(each, way, id) for each in [lab, second_lab] * 3))
    assert all(same_lease(claim, claims[0]) for claim in claims)


@pytest.mark.parametrize("way", WAYS)
async def test_no_other_caller_gets_it(lab: Lab, way: str) -> None:
    """Another lease id, another worker or another instance is another caller."""
    id = await WAYS[way](lab)
    first = await redeem(lab, way, id)
    others = [(W1, OTHER), (W2, MINE), (WorkerIdentity("w1", "w1-b"), MINE)]
    for worker, lease in others:
        try:
            answer = await redeem(lab, way, id, worker, lease)
        except (LeaseConflict, NotLeaseable):
            continue
        assert answer is None or isinstance(answer, GrantNotFound)
    await lab.complete(first)
    if way == "reclaim":
        assert isinstance(await redeem(lab, way, id), GrantNotFound)
        return
    with pytest.raises(NotLeaseable):
        await redeem(lab, way, id)


@pytest.mark.parametrize("way", WAYS)
async def test_a_lease_that_ran_out_is_not_given_again(lab: Lab, way: str) -> None:
    id = await WAYS[way](lab)
    await redeem(lab, way, id)
    lab.clock.advance(TTL)
    try:
        answer = await redeem(lab, way, id)
    except (LeaseConflict, NotLeaseable):
        return
    assert answer is None or isinstance(answer, GrantNotFound)


async def test_a_repeat_that_expects_another_attempt_is_stale(lab: Lab) -> None:
    id = await granted(lab)
    await redeem(lab, "claim", id)
    with pytest.raises(StaleLease):
        await lab.engine.grants.claim(id, W1, lease_id=MINE, expected_attempt=1)


async def test_an_operator_takes_once_however_often_it_is_asked(lab: Lab) -> None:
    """§3.7"""
    id = await lab.submit()
    first = await lab.engine.grants.take(id, lease_id=MINE)
    assert same_lease(await lab.engine.grants.take(id, lease_id=MINE), first)
    with pytest.raises(LeaseConflict):
        await lab.engine.grants.take(id, lease_id=OTHER)
