"""What a quota tells of itself, and rates that are spread."""

import asyncio

import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.limit.quota import Rate, parse_rate
from tests.kit.lab import Lab
from tests.kit.limiting import crowd, define, finish, one, settled

MINUTE = Millis(60_000)


async def test_running_is_with_a_worker_and_admitted_has_a_slot(lab: Lab) -> None:
    """C-T87"""
    await define(lab, concurrency=3)
    await crowd(lab, 5, "q")
    await lab.claim_one()
    status = await lab.engine.quotas.status("q")
    assert (status.running, status.admitted, status.waiting) == (1, 3, 2)
    assert [(key.running, key.held, key.waiting) for key in status.keys] == [(1, 3, 2)]


async def test_every_key_tells_when_it_may_start_again(lab: Lab) -> None:
    """C-T95: the retry-after of one key is not that of another."""
    await define(lab, rate_per_key=Rate(1, MINUTE))
    for key in ("a", "b"):
        await crowd(lab, 2, ("q", key))
        lab.clock.advance(1000)
    await one(lab, ("q", "c"))
    status = await lab.engine.quotas.status("q")
    first = lab.clock.now() - 2000 + MINUTE
    assert status.key_opens_at == {"a": first, "b": first + 1000}
    assert status.opens_at is None


async def test_very_many_keys_are_counted(lab: Lab) -> None:
    """Each is exact, also beyond a thousand."""
    await define(lab, concurrency=1)
    uses = ({"quotas": [{"quota": "q", "key": str(number)}]} for number in range(1200))
    await asyncio.gather(*(lab.submit(policy=policy) for policy in uses))
    await settled(lab)
    status = await lab.engine.quotas.status("q")
    assert (status.admitted, status.waiting, len(status.keys)) == (1, 1199, 1200)
    explained = await lab.engine.explain.lane("default")
    assert {share.text: share.count for share in explained.shares}["blocked by quota q"] == 1199


async def test_a_delayed_run_names_the_quotas_that_will_keep_it(lab: Lab) -> None:
    """All reasons are told, not only the first."""
    await define(lab, concurrency=1, rate=Rate(1, MINUTE))
    await one(lab, "q")
    later = await one(lab, "q", delay_until=lab.clock.now() + 5000)
    codes = [reason.code for reason in (await lab.engine.explain(later)).reasons]
    assert codes[0] == "delayed"
    assert {"quota_full", "rate_used_up"} <= set(codes)


@pytest.mark.rules
@pytest.mark.parametrize("per_key", [False, True])
async def test_smooth_spreads_the_starts_of_a_rate(lab: Lab, per_key: bool) -> None:
    """C-T95: four a second are one every 250 ms, never two at once, also after a pause; and never
    more than four in any second."""
    rate = parse_rate("4/s smooth")
    await define(lab, rate=None if per_key else rate, rate_per_key=rate if per_key else None)
    begun = lab.clock.now()
    await crowd(lab, 9, ("q", "k"))
    started = []
    for _ in range(2600 // 50):
        started += [lab.clock.now() - begun for _ in await lab.claim(limit=9)]
        await lab.pass_time(50)
        await settled(lab)
    assert started == [250 * n for n in range(9)]
    status = await lab.engine.quotas.status("q")
    assert status.waiting == 0


@pytest.mark.rules
async def test_a_rate_holds_at_the_edge_of_its_window(lab: Lab) -> None:
    """C-T95: in no span of a window more are let through than it allows, wherever it begins."""
    await define(lab, rate=Rate(3, Millis(1000)))
    await crowd(lab, 30, "q")
    moments = []
    for _ in range(400):
        for claim in await lab.claim(limit=9):
            moments.append(lab.clock.now())
            await finish(lab, claim)
        await lab.pass_time(7)
        await settled(lab)
    for first in moments:
        assert sum(first <= at < first + 1000 for at in moments) <= 3
