"""Lanes: listed, paused, resumed, and served by weight. E-T330."""

import asyncio
from collections import Counter

import pytest

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.limit.lanes import share_out
from flowfabric.store.queries import ClaimCall, Taken
from tests.kit import situations
from tests.kit.lab import TTL, W1, W2, Lab


async def fill(lab: Lab, lane: str, number: int) -> None:
    await lab.engine.executions.submit_many([Submission(kind="job", lane=lane)] * number)


# -- the list


async def test_lanes_are_listed_in_order_and_by_pages(lab: Lab) -> None:
    """E-T330, C-T63: sorted by text, the cursor is exclusive, each once"""
    names = ["b", "a", "B", "lane with space", "a1", "~", "!", "z" * 64]
    for name in names * 2:
        await lab.submit(lane=name)
    lanes = lab.engine.lanes
    assert await lanes.list() == sorted(names)
    paged: list[str] = []
    while page := await lanes.list(after=paged[-1] if paged else None, limit=3):
        paged += page
    assert paged == sorted(names)
    assert await lanes.list(after="z" * 64) == ["~"]
    assert await lanes.list(after="nothing of that name", limit=1) == ["z" * 64]


async def test_no_lane_is_listed_before_anything_was_submitted(lab: Lab) -> None:
    """E-T330, C-T63"""
    assert await lab.engine.lanes.list() == []
    await lab.submit()
    assert await lab.engine.lanes.list() == ["default"]
    assert await lab.engine.lanes.list(limit=0) == []
    assert await lab.engine.lanes.list(limit=-1) == []
    assert await lab.engine.lanes.list(limit=10**9) == ["default"]


async def test_a_lane_is_listed_once_however_many_routes_it_has(lab: Lab) -> None:
    gpu = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    await lab.submit(lane="a")
    await lab.submit(lane="a", namespace="other")
    await lab.submit(lane="a", policy=gpu)
    assert await lab.engine.lanes.list() == ["a"]


async def test_lanes_of_another_engine_are_seen(lab: Lab, second_lab: Lab) -> None:
    await second_lab.submit(lane="theirs")
    assert await lab.engine.lanes.list() == ["theirs"]


@pytest.mark.rules
@pytest.mark.parametrize("wrong", ["a\0b", 7])
async def test_a_cursor_of_lanes_is_text(lab: Lab, wrong: str) -> None:
    with pytest.raises(Invalid):
        await lab.engine.lanes.list(after=wrong)


# -- pausing


async def test_a_paused_lane_gives_nothing_out_until_it_is_resumed(lab: Lab) -> None:
    """Design §6: a gate of the claim; no row moves"""
    paused = await lab.submit(lane="paused", priority=9)
    other = await lab.submit(lane="other")
    await lab.engine.lanes.pause("paused")
    shape = await lab.vector(paused)
    assert (shape.eligibility, shape.public) == ("eligible_now", "waiting")
    assert [claim.id for claim in await lab.claim(limit=5)] == [other]
    assert await lab.claim(lanes=["paused"]) == []
    await lab.engine.lanes.resume("paused")
    assert (await lab.claim_one(lanes=["paused"])).id == paused


async def test_what_runs_in_a_paused_lane_goes_on(lab: Lab) -> None:
    claim = await lab.running(policy=situations.RETRY_AT_ONCE)
    await lab.engine.lanes.pause("default")
    await lab.engine.claims.renew(claim)
    await lab.engine.attempts.progress(claim, 50)
    await lab.fail(claim)
    assert await lab.claim() == []
    await lab.engine.lanes.resume("default")
    await lab.complete(await lab.claim_one())


async def test_what_was_lost_in_a_paused_lane_waits_as_well(lab: Lab) -> None:
    claim = await lab.running()
    await lab.engine.lanes.pause("default")
    await lab.lose(claim)
    assert await lab.claim(W2) == []
    await lab.engine.lanes.resume("default")
    assert (await lab.claim_one(W2)).id == claim.id


async def test_timers_of_a_paused_lane_go_on(lab: Lab) -> None:
    delayed = await situations.delayed(lab)
    late = await lab.submit(deadline_at=Millis(lab.clock.now() + 1))
    await lab.engine.lanes.pause("default")
    await lab.pass_time(TTL)
    assert await lab.state(delayed) == "waiting"
    assert await lab.state(late) == "expired"


async def test_pausing_twice_is_pausing_once(lab: Lab) -> None:
    id = await lab.submit()
    for _ in range(2):
        await lab.engine.lanes.pause("default")
    await lab.engine.lanes.resume("default")
    assert (await lab.claim_one()).id == id
    await lab.engine.lanes.resume("default")


async def test_a_lane_can_be_paused_before_anything_is_in_it(lab: Lab) -> None:
    await lab.engine.lanes.pause("new")
    await lab.submit(lane="new")
    assert await lab.claim() == []
    await lab.engine.lanes.resume("new")
    await lab.claim_one()


async def test_another_engine_sees_the_pause_and_its_end(lab: Lab, second_lab: Lab) -> None:
    id = await lab.submit()
    await second_lab.claim(lanes=["unrelated"])
    await lab.engine.lanes.pause("default")
    assert await second_lab.claim() == []
    await second_lab.engine.lanes.resume("default")
    assert (await lab.claim_one()).id == id


async def test_resuming_wakes_waiting_workers(lab: Lab) -> None:
    id = await lab.submit()
    await lab.engine.lanes.pause("default")
    waiter = asyncio.create_task(lab.claim(limit=1, max_wait=20.0))
    assert await lab.claim() == []
    await lab.engine.lanes.resume("default")
    assert [claim.id for claim in await waiter] == [id]


@pytest.mark.rules
@pytest.mark.parametrize("wrong", ["", "ä", "x" * 65, "a\n", 7])
async def test_a_lane_has_a_proper_name(lab: Lab, wrong: str) -> None:
    for call in (lab.engine.lanes.pause(wrong), lab.engine.lanes.resume(wrong)):
        with pytest.raises(Invalid):
            await call


# -- weights


async def test_lanes_with_weights_are_served_in_that_proportion(lab: Lab) -> None:
    """Design §11: lane by weight"""
    await fill(lab, "fast", 60)
    await fill(lab, "slow", 60)
    claims = await lab.claim(limit=40, lanes={"fast": 3, "slow": 1})
    served = Counter(claim.snapshot.execution.route.lane for claim in claims)
    assert served == {"fast": 30, "slow": 10}


async def test_claims_of_one_at_a_time_are_in_proportion_as_well(lab: Lab) -> None:
    await fill(lab, "fast", 40)
    await fill(lab, "slow", 40)
    claims = [await lab.claim_one(lanes={"fast": 3, "slow": 1}) for _ in range(40)]
    served = Counter(claim.snapshot.execution.route.lane for claim in claims)
    assert served == {"fast": 30, "slow": 10}


async def test_an_unused_share_goes_to_the_others(lab: Lab) -> None:
    await fill(lab, "slow", 10)
    assert len(await lab.claim(limit=10, lanes={"fast": 9, "slow": 1, "empty": 5})) == 10


@pytest.mark.rules
async def test_weights_are_whole_numbers_above_zero(lab: Lab) -> None:
    for wrong in (0, -1, 1.5, "2"):
        with pytest.raises(Invalid):
            await lab.claim(lanes={"a": wrong, "b": 1})


async def test_within_a_lane_the_order_is_by_priority_and_age(lab: Lab) -> None:
    low = await lab.submit(lane="a")
    high = await lab.submit(lane="a", priority=5)
    claims = await lab.claim(W1, limit=2, lanes={"a": 2, "b": 1})
    assert [claim.id for claim in claims] == [high, low]


def test_a_share_is_owed_until_it_is_given() -> None:
    weights, turns = {"a": 5, "b": 1}, {"a": 0.0, "b": 0.0}
    given = [share_out(weights, 1, turns)[0][0] for _ in range(12)]
    assert Counter(given) == {"a": 10, "b": 2}
    assert turns == pytest.approx({"a": 0.0, "b": 0.0})
    assert share_out(weights, 6, turns) == [("a", 5), ("b", 1)]


async def test_a_caller_that_goes_away_between_two_lanes_leaves_nothing_taken(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(lab, "a", 1)
    store, calls = lab.engine.store, 0
    claim, reached, gone = store.claim, asyncio.Event(), asyncio.Event()

    async def slow(call: ClaimCall, now: Millis) -> list[Taken]:
        nonlocal calls
        calls += 1
        if calls == 2:
            reached.set()
            await gone.wait()
        return await claim(call, now)

    monkeypatch.setattr(store, "claim", slow)
    asking = asyncio.create_task(lab.claim(lanes={"a": 1, "b": 1}, limit=4))
    await reached.wait()
    asking.cancel()
    await asyncio.wait([asking])
    gone.set()
    await lab.engine.claims.drain()
    monkeypatch.undo()
    assert (await lab.claim_one(W2)).epoch == 2
