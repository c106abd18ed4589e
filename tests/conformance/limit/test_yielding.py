"""Slots are not hoarded: who cannot be taken now gives its slot to others and keeps its place."""

import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import Presence
from flowfabric.core.limit.quota import Rate
from flowfabric.core.limit.unclaimable import KEEPS_SLOT
from flowfabric.engine.limit.unclaimable import LINES, PAGE
from tests.kit.lab import W2, Lab
from tests.kit.limiting import crowd, define, finish, one, settled, slots, waits
from tests.kit.race import Race

CLOSING = ["pause", "drain"]


async def close(lab: Lab, how: str, lane: str = "mail") -> None:
    await getattr(lab.engine.lanes, how)(lane)
    await settled(lab)


async def waited(lab: Lab, millis: int = KEEPS_SLOT + 1) -> None:
    """One more: a slot taken in the millisecond its limit was made in counts from the next."""
    await lab.pass_time(millis)
    await settled(lab)


@pytest.mark.parametrize("how", CLOSING)
async def test_a_closed_lane_gives_its_slots_to_others(lab: Lab, how: str) -> None:
    """C-T95: both slots are held by runs of a lane that is closed then; others get them after a
    bounded time, not before, and the runs of the lane keep their turn."""
    await define(lab, concurrency=2)
    held = [await one(lab, "q", lane="mail") for _ in range(2)]
    await close(lab, how)
    other = await one(lab, "q", lane="default")
    await waited(lab, KEEPS_SLOT - 1)
    assert await waits(lab, other)
    await waited(lab, 10)
    claim = await lab.claim_one()
    assert claim.id == other
    late = await one(lab, "q", lane="default")
    await finish(lab, claim)
    reason = (await lab.engine.explain(held[0])).main
    assert reason.code == "in_line"
    assert "takes no slot of quota q from others while lane mail" in reason.text
    claim = await lab.claim_one()
    assert claim.id == late
    await lab.engine.lanes.resume("mail")
    await settled(lab)
    await finish(lab, claim)
    assert [claim.id for claim in await lab.claim(limit=5)] == held


@pytest.mark.parametrize("how", CLOSING)
async def test_a_closed_lane_takes_no_slots_that_others_wait_for(lab: Lab, how: str) -> None:
    """C-T95: what is submitted to a closed lane does not stand before others."""
    await define(lab, concurrency=2)
    await close(lab, how)
    shut = await crowd(lab, 50, ("q", "k"), lane="mail")
    mine = await crowd(lab, 5, ("q", "k"))
    done = []
    for _ in range(3):
        for claim in await lab.claim(limit=5):
            done.append(claim.id)
            await finish(lab, claim)
    assert done == mine
    await lab.engine.lanes.resume("mail")
    await settled(lab)
    assert [claim.id for claim in await lab.claim(limit=5)] == shut[:2]


async def test_what_has_begun_in_a_draining_lane_keeps_its_slot(lab: Lab) -> None:
    """C-T95: a draining lane goes on with it."""
    await define(lab, concurrency=1)
    id = await one(lab, "q", lane="mail")
    claim = await lab.claim_one()
    other = await one(lab, "q")
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 10))
    await settled(lab)
    running = await lab.claim_one()
    assert running.id == other
    await close(lab, "drain")
    await waited(lab, 10)
    await finish(lab, running)
    third = await one(lab, "q")
    await waited(lab)
    assert await waits(lab, third)
    assert (await lab.claim_one()).id == id


async def test_a_slot_that_no_other_run_wants_is_kept(lab: Lab) -> None:
    """C-T95: giving it back would help nobody: not those of the same lane, and not another key."""
    await define(lab, concurrency_per_key=1)
    await one(lab, ("q", "a"), lane="mail")
    await one(lab, ("q", "a"), lane="mail")
    await close(lab, "pause")
    claim = await lab.claim(limit=5)
    assert claim == []
    await one(lab, ("q", "b"))
    await one(lab, ("q", "b"))
    await waited(lab)
    assert await slots(lab) == (2, 2)


async def test_work_without_a_live_worker_gives_its_slot_to_others(lab: Lab) -> None:
    """C-T95, C-T103: nobody offers a gpu; others run. When a worker comes that does, the run has
    its turn before those created later."""
    await define(lab, concurrency=1)
    await lab.engine.workers.register(Presence(worker="w1", instance="w1-a", lanes=("default",)))
    stuck = await one(lab, "q", policy={"routing_requirements": {"required_capabilities": ["gpu"]}})
    first, second = await one(lab, "q"), await one(lab, "q")
    assert await lab.claim() == []
    await waited(lab)
    claim = await lab.claim_one()
    assert claim.id == first
    reason = (await lab.engine.explain(stuck)).reasons
    assert any("while no live worker can run it" in each.text for each in reason)
    presence = Presence(worker="w2", instance="w2-a", capabilities=("gpu",))
    await lab.engine.workers.register(presence)
    await settled(lab)
    await finish(lab, claim)
    assert await waits(lab, second)
    assert (await lab.claim_one(capabilities=["gpu"])).id == stuck


async def test_many_that_keep_their_slots_hide_no_run_that_must_give_its_slot_back(
    lab: Lab,
) -> None:
    """F-29: the slots that no other run wants are more than one look reads."""
    await define(lab, "roomy", concurrency=1000)
    await define(lab, concurrency=1)
    await crowd(lab, PAGE + 1, "roomy", lane="mail")
    lab.clock.advance(1000)
    await one(lab, "q", lane="mail")
    await close(lab, "pause")
    other = await one(lab, "q")
    await waited(lab)
    await waited(lab, 1000)
    assert (await lab.claim_one()).id == other
    assert await slots(lab, "roomy") == (PAGE + 1, 0)


async def test_many_lines_that_wait_for_running_runs_hide_no_line_that_needs_a_slot(
    lab: Lab,
) -> None:
    """F-29: each of the others waits for a run of its own key, which takes long"""
    await define(lab, concurrency_per_key=1)
    for number in range(LINES + 1):
        await crowd(lab, 2, ("q", f"other {number}"))
    assert len(await lab.claim(limit=500)) == LINES + 1
    await one(lab, ("q", "mine"), lane="mail")
    await close(lab, "pause")
    mine = await one(lab, ("q", "mine"))
    await waited(lab, KEEPS_SLOT + 1000)
    assert (await lab.claim_one()).id == mine


async def test_without_registered_workers_nothing_is_given_back(lab: Lab) -> None:
    """A worker need not register to claim: nobody is taken for missing while none is known."""
    await define(lab, concurrency=1)
    first = await one(lab, "q", policy={"routing_requirements": {"required_capabilities": ["gpu"]}})
    await one(lab, "q")
    await waited(lab)
    assert (await lab.claim_one(capabilities=["gpu"])).id == first


async def test_a_start_that_was_not_made_is_given_back_with_the_slot(lab: Lab) -> None:
    """C-T95: the rate counts starts; who never started leaves its start to another."""
    await define(lab, concurrency=1, rate=Rate(1, Millis(60_000)))
    held = await one(lab, "q", lane="mail")
    await close(lab, "pause")
    other = await one(lab, "q")
    await waited(lab)
    claim = await lab.claim_one()
    assert claim.id == other
    await finish(lab, claim)
    await lab.engine.lanes.resume("mail")
    await settled(lab)
    assert await waits(lab, held)
    await waited(lab, 60_000)
    assert (await lab.claim_one()).id == held


@pytest.mark.inside
async def test_one_that_is_granted_meanwhile_keeps_its_slot(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-28, I-30: its worker redeems the grant, also if it came between the look and the change"""
    await define(lab, concurrency=1)
    held = await one(lab, "q", lane="mail")
    await close(lab, "pause")
    other = await one(lab, "q")
    Race(lab, monkeypatch).before("apply", lambda: second_lab.engine.grants.issue(held, W2))
    await waited(lab)
    assert await waits(lab, other)
    assert (await lab.engine.grants.claim(held, W2)).id == held


async def test_a_draining_lane_takes_no_replays(lab: Lab) -> None:
    """What has ended has not begun: a replay waits until the lane is resumed."""
    id = await lab.submit(lane="mail")
    await lab.complete(await lab.claim_one())
    await close(lab, "drain")
    await lab.engine.executions.replay(id)
    assert await lab.claim() == []
    assert (await lab.engine.explain(id)).main.code == "lane_draining"
    await lab.engine.lanes.resume("mail")
    assert (await lab.claim_one()).id == id
