"""Asking a quota for one execution: admitted, or what keeps it waiting."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotActive, NotEligible, NotFound
from flowfabric.core.base.ids import ExecutionId, new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState
from flowfabric.core.limit.check_admission import (
    AdmissionReleased,
    Admitted,
    ConcurrencyExceeded,
    RateExceeded,
)
from flowfabric.core.limit.quota import Rate
from flowfabric.store.rows.record import QUOTAS
from tests.kit.lab import TTL, Lab
from tests.kit.limiting import began, define, finish, one, settled, slots, using

MINUTE = Millis(60_000)
MISSING = ExecutionId.solo("default", new_uuid7(1, 1))


async def asleep(lab: Lab, *uses: tuple[str, str] | str, **members: Any) -> ExecutionId:
    """An execution the engine has not let through yet: its quota was full when it came."""
    id = await lab.submit(policy=using(*(uses or ("q",))), **members)
    await settled(lab)
    assert await lab.state(id) is PublicState.RATE_LIMITED
    return id


async def unseen_room(lab: Lab, **limits: Any) -> None:
    """New limits that no process has acted on yet: the room is there to be asked for."""
    quota = await lab.engine.quotas.get("q")
    assert await lab.engine.store.records.put(QUOTAS, replace(quota, **limits), quota.version)


async def test_the_asking_execution_takes_the_slot(lab: Lab) -> None:
    """C-T94, C-T95: one slot, taken by the one that asks, not by the first of the line."""
    await define(lab, concurrency=1)
    holder = await began(lab)
    first, asking = await asleep(lab), await asleep(lab)
    await unseen_room(lab, concurrency=2)
    check = lab.engine.quotas.check_admission
    assert await check("q", asking) == Admitted(asking)
    assert await lab.state(asking) is PublicState.WAITING
    assert await check("q", asking) == Admitted(asking, already=True)
    assert await check("q", first) == ConcurrencyExceeded("q", cap=2, taken=2)
    assert await slots(lab) == (2, 1)
    assert (await lab.claim_one()).id == asking
    assert await check("q", asking) == Admitted(asking, already=True)
    await finish(lab, holder)
    assert await check("q", first) == Admitted(first, already=True)


async def test_a_refusal_takes_nothing(lab: Lab) -> None:
    """§3.2: nothing is recorded for one that is refused."""
    await define(lab, concurrency=1, rate=Rate(2, MINUTE))
    holder = await began(lab)
    waiting = await asleep(lab)
    before = await lab.engine.store.load([waiting.uuid])
    for _ in range(3):
        answer = await lab.engine.quotas.check_admission("q", waiting)
        assert answer == ConcurrencyExceeded("q", cap=1, taken=1)
    assert await lab.engine.store.load([waiting.uuid]) == before
    await finish(lab, holder)
    assert await lab.state(waiting) is PublicState.WAITING


async def test_a_used_up_rate_says_when_to_ask_again(lab: Lab) -> None:
    """C-T95: the oldest start and the window; the rate is asked before concurrency."""
    await define(lab, rate=Rate(1, MINUTE), concurrency=1)
    await began(lab)
    lab.clock.advance(20_000)
    waiting = await asleep(lab)
    check = lab.engine.quotas.check_admission
    assert await check("q", waiting) == RateExceeded("q", Millis(40_000))
    lab.clock.advance(40_000)
    assert await check("q", waiting) == ConcurrencyExceeded("q", cap=1, taken=1)


async def test_the_start_is_taken_by_the_one_that_asks(lab: Lab) -> None:
    """The start of the asking execution counts in the window, once however often it asks."""
    await define(lab, rate=Rate(1, MINUTE))
    await began(lab)
    asking, other = await asleep(lab), await asleep(lab)
    await unseen_room(lab, rate=Rate(2, MINUTE))
    check = lab.engine.quotas.check_admission
    answers = [await check("q", asking) for _ in range(3)]
    assert answers == [Admitted(asking), *[Admitted(asking, already=True)] * 2]
    assert await check("q", other) == RateExceeded("q", MINUTE)


async def test_rivals_ask_for_the_last_slot(lab: Lab, second_lab: Lab) -> None:
    """Two processes, one slot: one is admitted and the other is refused."""
    await define(lab, concurrency=1)
    await began(lab)
    asking = [await asleep(lab) for _ in range(6)]
    await unseen_room(lab, concurrency=2)
    answers = await asyncio.gather(
        *(
            each.engine.quotas.check_admission("q", id)
            for each, id in zip([lab, second_lab] * 3, asking, strict=True)
        )
    )
    assert sum(isinstance(answer, Admitted) for answer in answers) == 1
    assert answers.count(ConcurrencyExceeded("q", cap=2, taken=2)) == 5
    assert await slots(lab) == (2, 5)


async def test_the_same_execution_asks_many_times_at_once(lab: Lab, second_lab: Lab) -> None:
    await define(lab, concurrency=1)
    await began(lab)
    asking = await asleep(lab)
    await unseen_room(lab, concurrency=5)
    answers = await asyncio.gather(
        *(each.engine.quotas.check_admission("q", asking) for each in [lab, second_lab] * 4)
    )
    assert all(isinstance(answer, Admitted) for answer in answers)
    assert answers.count(Admitted(asking)) == 1
    assert await slots(lab) == (2, 0)


async def test_each_key_is_asked_for_on_its_own(lab: Lab) -> None:
    await define(lab, concurrency_per_key=1)
    await began(lab, ("q", "ada"))
    blocked = await asleep(lab, ("q", "ada"))
    free = await one(lab, ("q", "bob"))
    check = lab.engine.quotas.check_admission
    assert await check("q", blocked) == ConcurrencyExceeded("q", cap=1, taken=1)
    assert await check("q", free) == Admitted(free, already=True)


async def test_all_quotas_of_the_execution_must_have_room(lab: Lab) -> None:
    """It takes its room in all of them or in none; the one that refuses is named."""
    await define(lab, concurrency=5)
    await define(lab, "other", concurrency=1)
    await began(lab, "other")
    waiting = await asleep(lab, "other", "q")
    answer = await lab.engine.quotas.check_admission("q", waiting)
    assert answer == ConcurrencyExceeded("other", cap=1, taken=1)
    assert await slots(lab) == (0, 1)


async def test_an_attempt_that_goes_on_takes_no_start(lab: Lab) -> None:
    """A rate counts starts; what continues needs a slot only."""
    await define(lab, rate=Rate(1, MINUTE), concurrency=1)
    claim = await began(lab)
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 1000))
    await lab.pass_time(1000)
    await settled(lab)
    answer = await lab.engine.quotas.check_admission("q", claim.id)
    assert answer == Admitted(claim.id, already=True)


async def test_only_one_that_waits_for_its_limits_can_be_admitted(lab: Lab) -> None:
    await define(lab, concurrency=9)
    check = lab.engine.quotas.check_admission
    delayed = await lab.submit(policy=using("q"), delay_until=Millis(lab.clock.now() + TTL))
    with pytest.raises(NotEligible):
        await check("q", delayed)
    ended = await one(lab)
    await lab.engine.executions.cancel(ended, reason="enough")
    with pytest.raises(NotActive):
        await check("q", ended)
    stranger = await lab.submit()
    with pytest.raises(Invalid, match="does not use quota 'q'"):
        await check("q", stranger)
    with pytest.raises(NotFound, match="no run"):
        await check("q", MISSING)
    with pytest.raises(NotFound, match="quota"):
        await check("nothing", stranger)


# -- giving room back


async def test_room_that_is_given_back_is_free_at_once(lab: Lab) -> None:
    """§3.3, C-T96, Q-7: the slot and the start, once; the run is asked for again, or returns"""
    quotas = lab.engine.quotas
    await define(lab, concurrency=1, rate=Rate(1, MINUTE))
    first = await one(lab)
    assert await slots(lab) == (1, 0)
    for _ in range(2):
        assert await quotas.release_admission("q", first) == AdmissionReleased(first)
        assert await slots(lab) == (0, 0)
    vector = await lab.vector(first)
    assert (vector.eligibility, vector.blocking) == ("blocked_by_quota", "waiting_for_quota")
    assert (await quotas.status("q")).started == 0
    assert await lab.claim() == []
    second = await one(lab)
    assert await quotas.check_admission("q", second) == Admitted(second, already=True)
    assert await quotas.check_admission("q", first) == RateExceeded("q", MINUTE)
    assert await quotas.release_admission("q", second) == AdmissionReleased(second)
    await settled(lab)
    assert (await lab.claim_one()).id == first
    await lab.pass_time(5_000)
    assert await slots(lab) == (1, 1)


async def test_an_execution_that_gave_its_room_back_is_admitted_when_it_is_asked_for(
    lab: Lab,
) -> None:
    """§3.2, §3.3: without its guard it is admitted anew"""
    quotas = lab.engine.quotas
    await define(lab, concurrency=1, rate=Rate(1, MINUTE))
    id = await one(lab)
    for _ in range(3):
        await quotas.release_admission("q", id)
        assert await quotas.check_admission("q", id) == Admitted(id)
    assert await quotas.check_admission("q", id) == Admitted(id, already=True)
    assert (await lab.claim_one()).id == id


async def test_only_room_that_no_worker_has_is_given_back(lab: Lab) -> None:
    """F-09, F-40, I-28: nothing is taken from a worker, and nothing that was not held"""
    quotas = lab.engine.quotas
    await define(lab, concurrency=1)
    claim = await began(lab)
    with pytest.raises(NotEligible):
        await quotas.release_admission("q", claim.id)
    waiting = await one(lab)
    other = await lab.submit()
    for id in (waiting, other, MISSING):
        assert await quotas.release_admission("q", id) == AdmissionReleased(id)
    assert await slots(lab) == (1, 1)
    await finish(lab, claim)
    assert await quotas.release_admission("q", claim.id) == AdmissionReleased(claim.id)
    await lab.engine.grants.issue(waiting, "w1")
    with pytest.raises(NotEligible):
        await quotas.release_admission("q", waiting)
    with pytest.raises(NotFound):
        await quotas.release_admission("none", waiting)
    assert await slots(lab) == (1, 0)


async def test_two_that_give_the_same_room_back(lab: Lab, second_lab: Lab) -> None:
    """I-28: exactly one slot and one start come back"""
    await define(lab, concurrency=2, rate=Rate(2, MINUTE))
    id, kept = await one(lab), await one(lab)
    await asyncio.gather(
        *(
            each.engine.quotas.release_admission("q", id)
            for each in (lab, second_lab, lab, second_lab)
        )
    )
    assert await slots(lab) == (1, 0)
    assert (await lab.engine.quotas.status("q")).started == 1
    assert (await lab.claim_one()).id == kept
