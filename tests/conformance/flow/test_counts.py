"""What a flow says of itself: exact counts of endings and one state, whoever ends what and when.
I-22, Q-3, F-26, F-32, E-T192, E-T223."""

import asyncio
import random
from collections import Counter

import pytest

from flowfabric.core.base.errors import LeaseLost
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.join import AnyOf, On, Quorum
from flowfabric.core.flow.model import FlowState
from flowfabric.core.wait.model import Behaviour
from tests.kit.flow_lab import Drawn, declare
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.situations import DELAY, described
from tests.kit.waits import suspend, wait_on


async def end(drawn: Drawn, name: str, outcome: Outcome) -> None:
    lab = drawn.lab
    match outcome:
        case Outcome.SUCCESS:
            await lab.complete(await drawn.take(name))
        case Outcome.FAILED:
            await lab.fail(await drawn.take(name), "permanent")
        case Outcome.CANCELLED:
            await lab.engine.executions.cancel(drawn[name], reason="enough")
        case _:
            await lab.engine.executions.expire(drawn[name])


@pytest.mark.parametrize(
    "outcome", [Outcome.SUCCESS, Outcome.FAILED, Outcome.CANCELLED, Outcome.EXPIRED]
)
async def test_a_flow_failed_if_any_member_did_not_succeed(lab: Lab, outcome: Outcome) -> None:
    """I-22, E-T192: running until the last of them has ended"""
    at = Millis(lab.clock.now() + DELAY)
    drawn = await declare(lab, "a", "b", given={"a": {"deadline_at": at}})
    if outcome is Outcome.EXPIRED:
        lab.clock.advance(DELAY)
    await end(drawn, "a", outcome)
    assert (await drawn.check()).state is FlowState.RUNNING
    lab.clock.advance(3)
    await drawn.complete("b")
    flow = await drawn.check()
    good = outcome is Outcome.SUCCESS
    assert flow.state is (FlowState.COMPLETED if good else FlowState.FAILED)
    assert flow.ended_at == lab.clock.now()
    assert Counter(flow.ended) == Counter([outcome.name.lower(), "success"])
    assert await drawn.endings() == {"a": [outcome], "b": [Outcome.SUCCESS]}


async def test_skipped_members_are_no_failure_of_their_own(lab: Lab) -> None:
    """Q-3, §1.11: an alarm nobody needed"""
    drawn = await declare(lab, "a>alarm>page", on={"a>alarm": On.FAILURE})
    await drawn.complete("a")
    flow = await drawn.check()
    assert (flow.state, flow.ended) == (FlowState.COMPLETED, {"success": 1, "skipped": 2})


@pytest.mark.parametrize("policy", [AnyOf(), Quorum(2)])
async def test_losers_of_a_race_do_not_fail_the_flow(lab: Lab, policy: AnyOf | Quorum) -> None:
    """Q-3, F-26: they are cancelled as anybody is, told once, with their reason"""
    names = ["a", "b", "c", "d"]
    drawn = await declare(lab, *(f"{name}>z" for name in names), joins={"z": policy})
    needed = 1 if isinstance(policy, AnyOf) else 2
    running = await drawn.take("d")
    await drawn.complete(*names[:needed])
    await drawn.complete("z")
    flow = await drawn.check()
    losers = names[needed:]
    assert (flow.state, flow.ended) == (
        FlowState.COMPLETED,
        {"success": needed + 1, "spared": len(losers)},
    )
    for name in losers:
        seen = await described(lab, drawn[name])
        assert (seen.state, seen.cancel_reason) == (
            PublicState.CANCELLED,
            "sibling_quorum_satisfied",
        )
    told = await drawn.endings()
    assert [told[name] for name in losers] == [[Outcome.CANCELLED]] * len(losers)
    with pytest.raises(LeaseLost):
        await lab.complete(running)


async def test_a_race_that_is_lost_fails_the_flow_by_those_who_failed(lab: Lab) -> None:
    drawn = await declare(lab, "a>z", "b>z", "c>z", joins={"z": Quorum(2)})
    await drawn.fail("a", "b")
    flow = await drawn.check()
    assert (flow.state, flow.ended) == (
        FlowState.FAILED,
        {"failed": 2, "spared": 1, "skipped": 1},
    )


async def test_an_operators_cancel_of_a_would_be_loser_is_a_failure(lab: Lab) -> None:
    drawn = await declare(lab, "a>z", "b>z", joins={"z": AnyOf()})
    await lab.engine.executions.cancel(drawn["b"], reason="enough")
    await drawn.complete("a")
    await drawn.complete("z")
    assert (await drawn.check()).state is FlowState.FAILED


@pytest.mark.parametrize("seed", range(3))
async def test_however_many_end_at_once_every_ending_is_counted_once(
    lab: Lab, second_lab: Lab, seed: int
) -> None:
    """I-22: two processes end, cancel and settle the same flow at the same time"""
    jitter = random.Random(seed)
    names = [f"m{n}" for n in range(60)]
    drawn = await declare(lab, *(f"{name}>{name}x" for name in names))
    labs, claims = (lab, second_lab), []
    for each, worker in zip(labs, (W1, W2), strict=True):
        claims += [
            (each, claim) for claim in await each.engine.claims.claim(worker, limit=30, ttl=TTL)
        ]
    jitter.shuffle(claims)

    async def finish(number: int) -> None:
        owner, claim = claims[number]
        match number % 3:
            case 0:
                await owner.complete(claim)
            case 1:
                await owner.fail(claim, "permanent")
            case _:
                other = labs[number % 2]
                await other.engine.executions.cancel(claim.id, reason="enough")

    sweeps = [each.engine.sweep.once() for each in labs for _ in range(2)]
    await asyncio.gather(*(finish(number) for number in range(60)), *sweeps)
    flow = await drawn.check()
    assert flow.ended == {"success": 20, "failed": 20, "cancelled": 20, "skipped": 40}
    assert flow.state is FlowState.RUNNING
    left = [name for name in drawn.members if await lab.state(drawn[name]) is PublicState.WAITING]
    await drawn.complete(*left)
    flow = await drawn.check()
    assert (flow.state, flow.ended["success"]) == (FlowState.FAILED, 40)
    assert [len(told) for told in (await drawn.endings()).values()] == [1] * 120


async def test_the_last_two_members_end_at_the_same_moment(lab: Lab, second_lab: Lab) -> None:
    """One of them ends the flow, and nobody forgets to"""
    for _ in range(5):
        drawn = await declare(lab, "a", "b")
        one, two = await drawn.take("a"), await drawn.take("b")
        await asyncio.gather(lab.complete(one), second_lab.complete(two))
        await second_lab.engine._dispatcher.drain()
        await lab.engine._dispatcher.drain()
        assert (await drawn.check()).state is FlowState.COMPLETED


@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [("fail", "failed"), ("cancel", "cancelled"), ("expire", "expired")],
)
async def test_a_suspension_that_times_out_ends_a_member_for_its_flow(
    lab: Lab, behaviour: str, outcome: str
) -> None:
    """E-T223"""
    drawn = await declare(lab, "a>b")
    claim = await drawn.take("a")
    until = Millis(lab.clock.now() + DELAY)
    await suspend(lab, claim, wait_on(lab, timeout_at=until, behaviour=Behaviour(behaviour)))
    await lab.pass_time(DELAY)
    flow = await drawn.check()
    assert (flow.state, flow.ended) == (FlowState.FAILED, {outcome: 1, "skipped": 1})
