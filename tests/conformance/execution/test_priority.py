"""Priority: who goes first, and how an operator changes it. E-T180 to E-T182, C-T78, E-X12,
INV-29."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid, NotEligible, NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.event import EventKind, Family
from flowfabric.core.execution.operator import Changed
from tests.kit import situations
from tests.kit.lab import Lab
from tests.kit.situations import ALL, load, missing_ids

READY = {"waiting", "resumed", "retry_ready", "replay_ready"}
UNTOUCHABLE = {"running", "lost", "revoked", *situations.ENDED}


async def change(lab: Lab, id: str, priority: int, **options: Any) -> Changed:
    return await lab.engine.executions.change_priority(id, priority, **options)


async def priority_of(lab: Lab, id: str) -> int:
    seen = await lab.engine.views.describe(id)
    assert seen is not None
    return seen.priority


async def order(lab: Lab, **options: Any) -> list[ExecutionId]:
    """What claims of one at a time take, first to last."""
    taken = []
    while claims := await lab.claim(limit=1, **options):
        taken.append(claims[0].id)
    return taken


async def test_an_operator_moves_an_execution_to_the_front(lab: Lab) -> None:
    """E-T180"""
    first, second, third = [await lab.submit() for _ in range(3)]
    lab.clock.advance(3)
    assert await change(lab, third, 5000) == Changed(third, 5000)
    assert await priority_of(lab, third) == 5000
    (event,) = await lab.events(third)
    assert (event.kind, event.operator) == (EventKind.PRIORITY_CHANGED, "priority_changed")
    assert event.detail == {"old_priority": 0, "new_priority": 5000}
    assert (event.at, event.lease, event.completion) == (lab.clock.now(), None, None)
    assert await lab.engine.grants.eligible("default") == [third, first, second]
    assert await order(lab) == [third, first, second]


async def test_an_operator_moves_an_execution_back_again(lab: Lab) -> None:
    first = await lab.submit(priority=7)
    second = await lab.submit(priority=6)
    await change(lab, first, 5)
    assert await order(lab) == [second, first]


async def test_priority_comes_before_age_and_age_before_anything_else(lab: Lab) -> None:
    """§1.5: also within one millisecond"""
    slow = [await lab.submit(priority=1) for _ in range(3)]
    lab.clock.advance(1_000_000)
    fast = [await lab.submit(priority=2) for _ in range(3)]
    assert await order(lab) == fast + slow


async def test_a_changed_priority_keeps_the_place_of_its_age(lab: Lab) -> None:
    """The old one is before the young one of the same priority, whenever it got it."""
    old = await lab.submit()
    lab.clock.advance(10)
    young = await lab.submit(priority=3)
    lab.clock.advance(10)
    await change(lab, old, 3)
    assert await order(lab) == [old, young]


@pytest.mark.parametrize(
    ("given", "stored"), [(10_000, 9000), (-5, 0), (2**80, 9000), (9000, 9000)]
)
async def test_a_priority_is_kept_within_its_range(lab: Lab, given: int, stored: int) -> None:
    """INV-29: the event tells what is stored"""
    id = await lab.submit(priority=4)
    assert await change(lab, id, given) == Changed(id, stored)
    assert await priority_of(lab, id) == stored
    (event,) = await lab.events(id)
    assert event.detail == {"old_priority": 4, "new_priority": stored}
    other = await lab.submit(priority=given)
    assert await priority_of(lab, other) == stored


@pytest.mark.rules
@pytest.mark.parametrize("wrong", ["5", 1.5, None, True])
async def test_a_priority_is_a_whole_number(lab: Lab, wrong: int) -> None:
    id = await lab.submit()
    with pytest.raises(Invalid):
        await change(lab, id, wrong)
    assert not await lab.events(id)


async def test_changing_again_is_told_again(lab: Lab) -> None:
    """§3.65: no two changes are one"""
    id = await lab.submit()
    await change(lab, id, 5)
    await change(lab, id, 5)
    told = [event.detail for event in await lab.events(id, family=Family.OPERATOR)]
    assert told == [
        {"old_priority": 0, "new_priority": 5},
        {"old_priority": 5, "new_priority": 5},
    ]


async def test_only_what_waits_for_a_worker_can_be_moved(
    lab: Lab, subtests: pytest.Subtests
) -> None:
    """E-T181, E-T182, D-19, INV-24"""
    for name in ALL:
        with subtests.test(name):
            id = await ALL[name](lab)
            before, events = await load(lab, id), await lab.events(id)
            if name in READY:
                await change(lab, id, 6)
                assert await priority_of(lab, id) == 6
                continue
            with pytest.raises(NotEligible):
                await change(lab, id, 6)
            assert await load(lab, id) == before
            assert await lab.events(id) == events


async def test_anywhere_reaches_what_is_parked_too(lab: Lab, subtests: pytest.Subtests) -> None:
    """D-19, with the flag"""
    for name in ALL:
        with subtests.test(name):
            id = await ALL[name](lab)
            shape = await lab.vector(id)
            if name in UNTOUCHABLE:
                with pytest.raises(NotEligible):
                    await change(lab, id, 6, anywhere=True)
            else:
                await change(lab, id, 6, anywhere=True)
            assert await priority_of(lab, id) == (0 if name in UNTOUCHABLE else 6)
            assert await lab.vector(id) == shape


async def test_a_priority_given_while_parked_counts_once_it_waits(lab: Lab) -> None:
    parked = await situations.delayed(lab)
    young = await lab.submit(priority=5)
    await change(lab, parked, 6, anywhere=True)
    await lab.pass_time(situations.DELAY)
    assert await order(lab) == [parked, young]


async def test_what_does_not_exist_has_no_priority(lab: Lab) -> None:
    for wrong in await missing_ids(lab):
        with pytest.raises(NotFound):
            await change(lab, wrong, 5)


@pytest.mark.parametrize("name", ["retry_ready", "lost", "worker_delayed", "replay_ready"])
async def test_a_changed_priority_lasts(lab: Lab, name: str) -> None:
    """Through retries, reclaims, delays and replays"""
    id = await lab.submit(priority=1, policy=situations.RETRY_AT_ONCE)
    await change(lab, id, 8)
    claim = await situations.take(lab, id)
    match name:
        case "retry_ready":
            await lab.fail(claim)
        case "lost":
            await lab.lose(claim)
        case "worker_delayed":
            await lab.engine.attempts.delay(claim, lab.clock.now())
        case _:
            await lab.complete(claim)
            await lab.engine.executions.replay(id)
    other = await lab.submit(priority=7)
    assert await priority_of(lab, id) == 8
    assert await order(lab) == [id, other]


async def test_priority_is_global_over_lanes_and_partitions(lab: Lab) -> None:
    """E-X12, FLAW-21"""
    lanes = [f"lane-{number}" for number in range(12)]
    ids = {
        priority: await lab.submit(lane=lane, priority=priority)
        for priority, lane in enumerate(lanes)
    }
    assert len({id.partition_index for id in ids.values()}) > 1
    assert await order(lab) == [ids[priority] for priority in sorted(ids, reverse=True)]


async def test_priority_is_global_over_namespaces_and_requirements(lab: Lab) -> None:
    """E-X12: over all routes a worker can serve"""
    gpu = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    ids = [
        await lab.submit(priority=1),
        await lab.submit(priority=2, policy=gpu),
        await lab.submit(priority=3, namespace="other"),
        await lab.submit(priority=4, namespace="other", policy=gpu),
    ]
    assert await order(lab, capabilities=["gpu", "cpu"]) == ids[::-1]


async def test_a_head_the_worker_cannot_run_hides_nothing_behind_it(lab: Lab) -> None:
    """E-X12"""
    gpu = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    heads = [await lab.submit(priority=9000, policy=gpu) for _ in range(250)]
    plain, last = await lab.submit(), await lab.submit()
    granted = await lab.engine.grants.find_and_issue("w9", lane="default")
    assert granted is not None
    assert granted.id == plain
    assert await order(lab) == [last]
    assert (await lab.claim_one(capabilities=["gpu"])).id == heads[0]


async def test_two_changes_at_once_are_both_told(lab: Lab, second_lab: Lab) -> None:
    """Serializable: each tells the priority it really replaced"""
    id = await lab.submit()
    await asyncio.gather(
        *(change(each, id, value) for each in (lab, second_lab) for value in range(1, 11))
    )
    told = [event.detail for event in await lab.events(id)]
    assert len(told) == 20
    before = 0
    for detail in told:
        assert detail is not None
        assert detail["old_priority"] == before
        before = detail["new_priority"]
    assert await priority_of(lab, id) == before
