"""Admitted runs are claimed in the order of their admission, so that what is fair at the quota is
fair at the worker too."""

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from flowfabric.core.base.time import Millis
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from tests.kit.lab import Lab
from tests.kit.limiting import began, crowd, define, finish, keys_of, one, settled


@pytest.fixture
async def aging_lab(store: Store, clock: ManualClock) -> AsyncIterator[Lab]:
    lab = await Lab.open(store, clock, aging=Millis(1_000))
    yield lab
    await lab.engine.close()


async def test_ten_of_a_small_customer_do_not_wait_for_300_of_a_large_one(lab: Lab) -> None:
    """C-T100: ten slots, but room for two at the worker. The small customer came last; its ten runs
    are done after little more than twice as many of the large one."""
    await define(lab, concurrency=10)
    await crowd(lab, 300, ("q", "large"))
    await crowd(lab, 10, ("q", "small"))
    done: Counter[str] = Counter()
    while done["small"] < 10:
        claims = await lab.claim(limit=2)
        done += keys_of(claims)
        for claim in claims:
            await finish(lab, claim)
    assert done["large"] <= 24


async def test_lines_that_are_let_through_together_are_claimed_in_turn(lab: Lab) -> None:
    """C-T100: one release lets everybody through; the claims take one of each line in turn, however
    many of one line were created first."""
    await define(lab, concurrency=1)
    first = await began(lab, ("q", "z"))
    for key, number in (("a", 40), ("b", 20), ("c", 20)):
        await crowd(lab, number, ("q", key))
    await define(lab, concurrency=100)
    await finish(lab, first)
    keys = [claim.policy.quotas[0].key for claim in await lab.claim(limit=80)]
    assert Counter(keys[:60]) == {"a": 20, "b": 20, "c": 20}
    assert set(keys[60:]) == {"a"}
    assert all(len(set(keys[n : n + 3])) == 3 for n in range(0, 60, 3))


async def test_within_one_priority(lab: Lab) -> None:
    """C-T100: who is more urgent is claimed first, although it was admitted later; and changing the
    priority of one that was admitted keeps its admission."""
    await define(lab, concurrency=4)
    older = [await one(lab, ("q", key)) for key in "ab"]
    urgent = await one(lab, ("q", "a"), priority=5)
    late = await one(lab, ("q", "c"))
    await lab.engine.executions.change_priority(late, 1)
    await lab.engine.executions.change_priority(late, 0)
    await lab.engine.executions.change_priority(older[0], 1)
    claimed = [claim.id for claim in await lab.claim(limit=4)]
    assert claimed == [urgent, older[0], older[1], late]


async def test_one_that_goes_on_comes_before_those_who_were_created_later(lab: Lab) -> None:
    """An admission is for one time: back in its line a run stands where its creation puts it."""
    await define(lab, concurrency=1)
    claim = await began(lab, "q")
    waiting = await crowd(lab, 3, "q")
    lab.clock.advance(1000)
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 1000))
    await settled(lab)
    second = await lab.claim_one()
    assert second.id == waiting[0]
    await lab.pass_time(1000)
    await finish(lab, second)
    assert (await lab.claim_one()).id == claim.id


async def test_aging_keeps_the_place_in_the_line(aging_lab: Lab) -> None:
    """With aging the rank by creation cannot be told from the priority alone: it is kept."""
    lab = aging_lab
    await define(lab, concurrency=1)
    claim = await began(lab, "q", priority=3)
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 1000))
    await settled(lab)
    early = await one(lab, "q", priority=1)
    running = await lab.claim_one()
    assert running.id == early
    lab.clock.advance(500)
    other = await one(lab, "q", priority=2)
    await lab.pass_time(500)
    await finish(lab, running)
    first = await lab.claim_one()
    assert first.id == claim.id
    await finish(lab, first)
    assert (await lab.claim_one()).id == other
