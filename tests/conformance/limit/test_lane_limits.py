"""What operators decide about lanes: paused, draining, how many at once, in which proportion."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.submission import Submission
from flowfabric.core.limit.lane import Lane, LaneState
from tests.kit import situations
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.limiting import crowd, define, one, settled, slots
from tests.kit.situations import take


async def fill(lab: Lab, lane: str, number: int) -> None:
    await lab.engine.executions.submit_many([Submission(kind="job", lane=lane)] * number)


def lanes_of(claims: list[Any]) -> Counter[str]:
    return Counter(claim.snapshot.execution.route.lane for claim in claims)


# -- waiting for room


async def test_an_ending_wakes_who_waits_for_a_place_in_a_lane(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-47: not only at the next poll, also in another process"""
    monkeypatch.setattr("flowfabric.engine.execution.claims.POLL_FLOOR", 60.0)
    await lab.engine.lanes.set("a", concurrency=1)
    await fill(lab, "a", 3)
    for waits in (lab, second_lab):
        (held,) = await lab.engine.claims.claim(W1, lanes=["a"])
        waiting = asyncio.create_task(waits.engine.claims.claim(W2, lanes=["a"], max_wait=99))
        while not waits.engine.store.hints.waiting:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        await lab.engine.attempts.complete(held, b"1")
        (claim,) = await asyncio.wait_for(waiting, 30)
        await lab.engine.attempts.complete(claim, b"1")
        await fill(lab, "a", 1)


# -- who, when, why


async def test_a_lane_tells_who_changed_its_state_when_and_why(lab: Lab, second_lab: Lab) -> None:
    """F-47: the first word stays until somebody says something else"""
    lanes = lab.engine.lanes
    assert await lanes.get("a") == Lane(name="a")
    begun = lab.clock.now()
    paused = await lanes.pause("a", by="ada", reason="the mail server is down")
    assert (paused.state, paused.by, paused.at) == (LaneState.PAUSED, "ada", begun)
    lab.clock.advance(5)
    assert await second_lab.engine.lanes.pause("a", by="bob", reason="me too") == paused
    assert await second_lab.engine.lanes.get("a") == paused
    drained = await second_lab.engine.lanes.drain("a", by="bob", reason="nearly back")
    assert (drained.state, drained.by, drained.reason) == (LaneState.DRAINING, "bob", "nearly back")
    assert drained.at == begun + 5
    await lanes.set("a", weight=3, concurrency=2)
    kept = await lanes.get("a")
    assert (kept.by, kept.at, kept.weight, kept.concurrency) == ("bob", begun + 5, 3, 2)
    opened = await lanes.resume("a", by="ada")
    assert (opened.state, opened.by, opened.reason) == (LaneState.OPEN, "ada", "")
    assert (opened.weight, opened.concurrency) == (3, 2)
    assert await lanes.settings() == {"a": opened}
    assert await lanes.settings(["a", "b"]) == {"a": opened}
    assert await lanes.list() == ["a"], "a lane with settings is listed before anything is in it"


@pytest.mark.rules
async def test_what_makes_no_sense_changes_no_lane(lab: Lab) -> None:
    """F-47: bad input"""
    lanes = lab.engine.lanes
    wrong: list[dict[str, Any]] = [{}, {"weight": 0}, {"weight": 1001}, {"weight": True}]
    wrong += [{"weight": 1.5}, {"concurrency": -1}, {"concurrency": 2**31}, {"concurrency": "1"}]
    for settings in wrong:
        with pytest.raises(Invalid):
            await lanes.set("a", **settings)
    for name in ("", "ä", "x" * 65, "a\n"):
        for call in (lanes.get(name), lanes.drain(name), lanes.set(name, weight=2)):
            with pytest.raises(Invalid):
                await call
    for said in ({"by": "x" * 300}, {"by": "a\0b"}, {"reason": "x" * 5000}, {"reason": 7}):
        with pytest.raises(Invalid):
            await lanes.pause("a", **said)
    assert await lanes.settings() == {}


async def test_decisions_of_two_processes_at_once_all_count(lab: Lab, second_lab: Lab) -> None:
    first, second = lab.engine.lanes, second_lab.engine.lanes
    await asyncio.gather(
        first.set("a", weight=7), second.set("a", concurrency=3), first.pause("a", by="ada")
    )
    found = await second.get("a")
    assert (found.weight, found.concurrency, found.state) == (7, 3, LaneState.PAUSED)
    assert found.version == 3


# -- draining


async def test_a_draining_lane_goes_on_with_what_has_begun(lab: Lab) -> None:
    """F-47: retries, resumes and reclaims are taken; nothing begins, and nothing begins again"""
    begun = {
        await situations.retry_ready(lab),
        await situations.resumed(lab),
        await situations.lost(lab),
        await situations.revoked(lab),
    }
    again = await situations.replay_ready(lab)
    asleep = await situations.suspended(lab)
    fresh = await lab.submit(priority=9)
    other = await lab.submit(lane="other")
    drained = await lab.engine.lanes.drain("default", by="ada", reason="release")
    assert drained.state is LaneState.DRAINING
    assert {claim.id for claim in await lab.claim(limit=9)} == begun | {other}
    assert (await lab.vector(fresh)).public == "waiting"
    await lab.engine.executions.resume(asleep)
    assert (await lab.claim_one()).id == asleep
    waiter = asyncio.create_task(lab.claim(W2, max_wait=20.0))
    assert await lab.claim() == []
    await lab.engine.lanes.resume("default")
    assert [claim.id for claim in await waiter] == [fresh]
    assert (await lab.claim_one()).id == again


# -- how many at once


async def test_two_processes_together_run_no_more_than_a_lane_allows(
    lab: Lab, second_lab: Lab
) -> None:
    """F-47, I-27: a limit of a lane holds over all workers; nobody else is held up"""
    await lab.engine.lanes.set("slow", concurrency=3)
    await fill(lab, "slow", 9)
    await fill(lab, "fast", 1)
    done = 0
    while done < 9:
        asked = [each.claim(limit=4, lanes=["slow"]) for each in [lab, second_lab] * 3]
        taken = [claim for found in await asyncio.gather(*asked) for claim in found]
        assert 0 < len(taken) <= 3
        assert await lab.claim(lanes=["slow"]) == []
        done += len(taken)
        for claim in taken:
            await second_lab.complete(claim)
    assert lanes_of(await lab.claim(limit=9)) == {"fast": 1}


async def test_a_lost_run_leaves_its_place_in_the_lane(lab: Lab) -> None:
    """What nobody runs counts for no lane, and needs a place again when it is taken over"""
    await lab.engine.lanes.set("default", concurrency=1)
    claim = await take(lab, await lab.submit())
    next = await lab.submit(priority=9)
    assert await lab.claim(W2) == []
    await lab.lose(claim)
    second = await lab.claim_one(W2)
    assert await lab.claim(W2) == []
    await lab.complete(second)
    third = await lab.claim_one(W2)
    assert {second.id, third.id} == {claim.id, next}


async def test_more_room_in_a_lane_wakes_waiting_workers(lab: Lab) -> None:
    await lab.engine.lanes.set("default", concurrency=1)
    await fill(lab, "default", 4)
    assert len(await lab.claim(limit=9)) == 1
    waiter = asyncio.create_task(lab.claim(W2, limit=9, max_wait=20.0))
    assert await lab.claim() == []
    await lab.engine.lanes.set("default", concurrency=3)
    assert len(await waiter) == 2
    await lab.engine.lanes.set("default", concurrency=0)
    assert (await lab.engine.lanes.get("default")).concurrency is None
    assert len(await lab.claim(limit=9)) == 1


async def test_limits_of_lanes_and_quotas_hold_together(lab: Lab) -> None:
    """A full or paused lane keeps the slots of who is ready in it; blocking gives them back"""
    await define(lab, concurrency=2)
    await lab.engine.lanes.set("slow", concurrency=1)
    slow = await crowd(lab, 2, lane="slow")
    fast = await one(lab, lane="fast")
    assert lanes_of(await lab.claim(limit=9)) == {"slow": 1}
    assert await slots(lab) == (2, 1)
    await lab.engine.executions.block(slow[1], "paused_by_operator")
    await settled(lab)
    assert [claim.id for claim in await lab.claim(limit=9)] == [fast]


# -- proportion


async def test_weights_of_operators_are_used_by_workers_that_give_none(
    lab: Lab, second_lab: Lab
) -> None:
    """F-47, F-50: several lanes in proportion; a worker's own weights come first"""
    for lane in ("a", "b"):
        await fill(lab, lane, 60)
    await lab.engine.lanes.set("a", weight=3)
    assert lanes_of(await lab.claim(limit=40, lanes=["a", "b"])) == {"a": 30, "b": 10}
    singles = [await second_lab.claim_one(lanes=["a", "b"]) for _ in range(8)]
    assert lanes_of(singles) == {"a": 6, "b": 2}
    assert lanes_of(await lab.claim(limit=8, lanes={"a": 1, "b": 3})) == {"a": 2, "b": 6}
    assert lanes_of(await lab.claim(limit=4)) == {"a": 3, "b": 1}, "no lane named: all of them"
    await lab.engine.lanes.set("a", weight=1)
    for _ in range(2):
        await lab.submit(lane="b", priority=5)
    first = await lab.claim(limit=2, lanes=["a", "b"])
    assert lanes_of(first) == {"b": 2}, "equal weights: the order is by priority over all"


# -- every lane


async def test_every_lane_is_swept_and_served_whatever_its_name(lab: Lab) -> None:
    """I-34, F-46: no list of lanes is configured anywhere"""
    names = [f"lane {number}" for number in range(30)]
    at = Millis(lab.clock.now() + TTL)
    await define(lab, concurrency_per_key=1)
    delayed = [await lab.submit(lane=name, delay_until=at) for name in names]
    doomed = [await lab.submit(lane=name, deadline_at=at, priority=1) for name in names]
    limited = [await one(lab, ("q", name), lane=name, priority=2) for name in names]
    lost = await lab.claim(W1, limit=30)
    assert {claim.id for claim in lost} == set(limited)
    await lab.pass_time(TTL)
    assert {await lab.state(id) for id in doomed} == {"expired"}
    taken = await lab.claim(W2, limit=99)
    assert {claim.id for claim in taken} == {*delayed, *limited}
    assert await lab.engine.lanes.list() == sorted(names)
