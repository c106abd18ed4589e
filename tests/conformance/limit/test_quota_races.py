"""Quotas under rivals and crashes: never more than a limit, and nobody forgotten."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from flowfabric.core.base.errors import Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.limit.quota import Quota, Rate
from tests.kit.lab import TTL, Lab
from tests.kit.limiting import began, crowd, define, finish, one, settled, slots, waits
from tests.kit.race import Race

WORKERS = [WorkerIdentity(f"w{number}", f"w{number}-a") for number in range(10)]


def cut_off(lab: Lab) -> None:
    """From now on this process dies right after each of its commits."""
    lab.engine._releases.committed = lambda commit: None  # type: ignore[method-assign]


async def test_the_last_slot_is_had_by_one_of_ten_workers(lab: Lab, second_lab: Lab) -> None:
    """I-27, I-28, C-T95: at any moment exactly one runs, whoever asks"""
    await define(lab, concurrency=1)
    ids = await crowd(lab, 10)
    served = []
    for _ in ids:
        asked = [
            each.claim(worker, limit=3)
            for each, worker in zip([lab, second_lab] * 5, WORKERS, strict=True)
        ]
        ((claim,),) = [found for found in await asyncio.gather(*asked) if found]
        served.append(claim.id)
        await finish(second_lab, claim)
    assert served == ids
    assert await slots(lab) == (0, 0)


async def test_runs_end_and_arrive_at_once(lab: Lab, second_lab: Lab) -> None:
    """I-27: endings, arrivals and other limits of two processes at the same time"""
    await define(lab, concurrency=4, concurrency_per_key=2)
    ids = [id for key in "abc" for id in await crowd(lab, 6, ("q", key))]
    done = 0
    while done < len(ids):
        claims = await lab.claim(limit=9)
        assert 0 < len(claims) <= 4
        ending = [
            each.complete(claim) for each, claim in zip([lab, second_lab] * 2, claims, strict=False)
        ]
        coming = [each.engine.sweep.once() for each in (lab, second_lab)]
        await asyncio.gather(*ending, *coming)
        await settled(lab)
        await settled(second_lab)
        done += len(claims)
        running, waiting = await slots(lab)
        assert running == min(4, len(ids) - done)
        assert running + waiting == len(ids) - done
    assert await slots(lab) == (0, 0)


async def test_two_releases_at_once_let_no_run_through_twice(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """I-27, C-T94: what a rival has just given away is not given again"""
    await define(lab, concurrency=3, rate=Rate(4, Millis(60_000)))
    ids = await crowd(second_lab, 9)
    claims = await lab.claim(limit=9)
    for claim in claims[:2]:
        await lab.engine.executions.cancel(claim.id, reason="enough")
    await settled(lab)
    assert await slots(lab) == (2, 5), "the rate allows one more start"

    async def rival() -> None:
        await second_lab.engine.sweep.once()

    lab.clock.advance(60_000)
    race.before("release", rival)
    await lab.engine.sweep.once()
    assert await slots(lab) == (3, 4)
    status = await lab.engine.quotas.status("q")
    assert status.opens_at is None
    assert not await waits(lab, ids[4])


async def test_a_candidate_cancelled_meanwhile_leaves_its_slot_to_the_next(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """I-28: at once, not only when the sweep comes by"""
    await define(lab, concurrency=1)
    claim = await began(lab, ("q", "a"))
    doomed, next = await one(lab, ("q", "b")), await one(lab, ("q", "c"))

    async def rival() -> None:
        await second_lab.engine.executions.cancel(doomed, reason="enough")

    race.before("release", rival)
    await finish(lab, claim)
    assert await lab.state(doomed) == "cancelled"
    assert (await lab.claim_one()).id == next
    assert await slots(lab) == (1, 0)


async def test_a_candidate_moved_meanwhile_is_let_through_once(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """I-32: a changed priority counts at once"""
    await define(lab, concurrency=1)
    claim = await began(lab)
    first, second = await crowd(lab, 2)
    cut_off(second_lab)

    async def rival() -> None:
        change = second_lab.engine.executions.change_priority
        await change(first, 1, anywhere=True)
        await change(second, 2, anywhere=True)

    race.before("release", rival)
    await finish(lab, claim)
    await settled(second_lab)
    assert (await lab.claim_one()).id == second
    assert await slots(lab) == (1, 1)


@pytest.mark.parametrize("deleted", [False, True])
async def test_other_limits_meanwhile_are_the_ones_that_hold(
    lab: Lab, second_lab: Lab, race: Race, deleted: bool
) -> None:
    """F-11, I-27: a decision on old limits is made again"""
    await define(lab, concurrency=3)
    claims = [claim for _ in range(3) for claim in [await began(lab)]]
    await crowd(lab, 5)
    cut_off(lab)
    for claim in claims:
        await lab.complete(claim)

    async def rival() -> None:
        quotas = second_lab.engine.quotas
        if deleted:
            await quotas.delete("q")
        else:
            await quotas.define(Quota(name="q", concurrency=1))

    race.before("release", rival)
    await lab.engine.sweep.once()
    await settled(second_lab)
    await define(lab, concurrency=1)
    assert await slots(lab) == ((5, 0) if deleted else (1, 4))


async def test_a_process_that_dies_after_its_commit_leaves_no_run_behind(
    lab: Lab, second_lab: Lab
) -> None:
    """I-28, C-T97: the sweep of another one finds who may go: new, resumed, let go"""
    await define(lab, concurrency=1)
    cut_off(lab)
    first = await lab.submit(policy={"quotas": [{"quota": "q"}]})
    assert await waits(lab, first)
    assert await lab.claim() == []
    await second_lab.engine.sweep.once()
    claim = await lab.claim_one()
    second = await lab.submit(policy={"quotas": [{"quota": "q"}]})
    await second_lab.engine.sweep.once()
    assert await waits(lab, second)
    await lab.complete(claim)
    assert await waits(lab, second)
    await second_lab.engine.sweep.once()
    assert (await lab.claim_one()).id == second


async def test_a_process_that_dies_with_a_slot_keeps_no_run_out_for_ever(
    lab: Lab, second_lab: Lab
) -> None:
    """I-28, C-T97: the slot goes with the lease, and comes back when the run ends"""
    await define(lab, concurrency=1)
    dead = await began(lab, policy={"max_reclaim_count": 1})
    next = await one(second_lab)
    for _ in range(2):
        second_lab.clock.advance(TTL)
        await second_lab.engine.sweep.once()
        taken = await second_lab.claim()
        if await second_lab.state(dead.id) == "failed":
            break
        assert [claim.id for claim in taken] == [dead.id]
        assert await slots(second_lab) == (1, 1)
    assert await second_lab.state(dead.id) == "failed"
    assert not await waits(second_lab, next)


async def test_a_run_parked_in_a_queue_just_trimmed_is_found(lab: Lab, second_lab: Lab) -> None:
    """I-31: known here, forgotten there"""
    await define(lab, concurrency=1)
    await finish(lab, await began(lab))
    await second_lab.engine._limits.trim()
    id = await one(lab)
    await second_lab.engine.sweep.once()
    assert not await waits(lab, id)
    assert await slots(lab) == (1, 0)


async def test_a_queue_half_trimmed_counts_for_all_its_quotas(lab: Lab, second_lab: Lab) -> None:
    """I-27: rows of one queue are forgotten together, or a slot would not be counted"""
    for name in ("a", "b"):
        await define(lab, name, concurrency=1)
    await finish(lab, await began(lab, "a", "b"))
    await second_lab.engine.store.trim_limits(lab.clock.now(), lab.clock.now(), 1)
    await one(lab, "a", "b")
    for name in ("a", "b"):
        await one(lab, name)
    await lab.engine.sweep.once()
    running = await lab.claim(limit=9)
    used = Counter(use.quota for claim in running for use in claim.snapshot.execution.uses)
    assert used == {"a": 1, "b": 1}


async def test_a_store_that_cannot_be_read_admits_no_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-29: fail closed; the sweep makes up for it"""
    await define(lab, concurrency=5)

    async def gone(*args: Any) -> Any:
        raise Unavailable("gone")

    for method in ("quota_view", "release", "put_queues"):
        with monkeypatch.context() as broken:
            broken.setattr(lab.engine.store, method, gone)
            id = await one(lab, ("q", method))
            assert await waits(lab, id)
            await lab.engine.sweep.once()
            assert await waits(lab, id)
        await lab.engine.sweep.once()
        assert (await lab.claim_one()).id == id
