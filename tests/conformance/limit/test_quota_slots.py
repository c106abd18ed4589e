"""A slot is being ready or running: who takes one, who gives it back, and when a start counts."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState
from flowfabric.core.limit.check_admission import RateExceeded
from flowfabric.core.limit.quota import Rate
from flowfabric.engine.execution.claims import Claim
from tests.kit import waits as waiting
from tests.kit.lab import TTL, W2, Lab
from tests.kit.limiting import began, crowd, define, finish, one, settled, slots, waits
from tests.kit.situations import RETRY, RETRY_AT_ONCE, is_legal, timeouts

MINUTE = Millis(60_000)
Act = Callable[[Lab, Claim], Awaitable[list[Claim] | None]]


async def completes(lab: Lab, claim: Claim) -> None:
    await lab.complete(claim)


async def fails_for_good(lab: Lab, claim: Claim) -> None:
    await lab.fail(claim, "permanent")


async def backs_off(lab: Lab, claim: Claim) -> None:
    await lab.fail(claim)


async def suspends(lab: Lab, claim: Claim) -> None:
    await waiting.suspend(lab, claim)


async def delays(lab: Lab, claim: Claim) -> None:
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 10_000))


async def hands_back(lab: Lab, claim: Claim) -> None:
    await lab.engine.attempts.hand_back(claim)


async def is_cancelled(lab: Lab, claim: Claim) -> None:
    await lab.engine.executions.cancel(claim.id, reason="enough")


async def cancels_itself(lab: Lab, claim: Claim) -> None:
    await lab.engine.attempts.cancel(claim, "enough")


async def passes_its_deadline(lab: Lab, claim: Claim) -> None:
    await lab.pass_time(5_000)


async def is_lost_too_often(lab: Lab, claim: Claim) -> list[Claim]:
    await lab.pass_time(TTL)
    return await lab.claim(W2)


async def is_revoked_too_often(lab: Lab, claim: Claim) -> list[Claim]:
    await lab.engine.claims.revoke(claim.id, reason="maintenance")
    return await lab.claim(W2)


GIVES_BACK: dict[str, tuple[Act, dict[str, Any], str]] = {
    "completes": (completes, {}, "completed"),
    "fails": (fails_for_good, {}, "failed"),
    "backs off": (backs_off, RETRY, "delayed"),
    "retries at once": (backs_off, RETRY_AT_ONCE, "rate_limited"),
    "suspends": (suspends, {}, "suspended"),
    "delays": (delays, {}, "delayed"),
    "hands back": (hands_back, {}, "rate_limited"),
    "cancelled": (is_cancelled, {}, "cancelled"),
    "cancels": (cancels_itself, {}, "cancelled"),
    "deadline": (passes_its_deadline, timeouts(deadline=5_000), "expired"),
    "attempt timeout": (passes_its_deadline, timeouts(attempt=5_000), "expired"),
    "lost": (is_lost_too_often, {"max_reclaim_count": 0}, "failed"),
    "revoked": (is_revoked_too_often, {"max_reclaim_count": 0}, "failed"),
}


@pytest.mark.parametrize("name", GIVES_BACK)
async def test_a_run_that_stops_running_gives_its_slot_back(lab: Lab, name: str) -> None:
    """I-28, C-T96, F-08: with the end of the attempt, at once, and to the line whose turn it is"""
    act, policy, state = GIVES_BACK[name]
    await define(lab, concurrency=1)
    claim = await began(lab, ("q", "one"), policy=policy)
    next = await one(lab, ("q", "two"))
    assert await slots(lab) == (1, 1)
    assert await lab.claim(W2) == []
    # A takeover that fails the lost run frees its slot: the same claim may get the next run.
    taken = await act(lab, claim) or []
    await settled(lab)
    assert await lab.state(claim.id) == state
    assert await slots(lab) == (1, 1 if state == "rate_limited" else 0)
    [second] = taken or await lab.claim(W2)
    assert second.id == next
    await finish(lab, second)
    assert await slots(lab) == (1 if state == "rate_limited" else 0, 0)


async def test_one_that_is_ready_has_a_slot_and_gives_it_back_as_well(lab: Lab) -> None:
    """I-28, C-T98: cancelled, blocked or expired before anybody took it"""
    await define(lab, concurrency=1)
    first = await one(lab, deadline_at=Millis(lab.clock.now() + 500))
    second, third, fourth = [await one(lab) for _ in range(3)]
    assert await slots(lab) == (1, 3)
    await lab.pass_time(500)
    assert (await lab.state(first), await waits(lab, second)) == (PublicState.EXPIRED, False)
    await lab.engine.executions.cancel(second, reason="enough")
    assert await waits(lab, fourth)
    assert not await waits(lab, third)
    await lab.engine.executions.block(third, "paused_by_operator")
    assert not await waits(lab, fourth)
    await lab.engine.executions.unblock(third)
    assert await waits(lab, third), "an unblocked one stands at the limit again"
    assert (await lab.claim_one()).id == fourth
    assert await slots(lab) == (1, 1)


async def test_a_lost_lease_keeps_its_slot_until_the_takeover(lab: Lab) -> None:
    """I-28: a crash while holding a slot; the attempt may go on elsewhere"""
    await define(lab, concurrency=1)
    claim = await began(lab)
    second = await one(lab)
    await lab.lose(claim)
    assert await waits(lab, second)
    assert await slots(lab) == (1, 1)
    again = await lab.claim_one(W2)
    assert (again.id, again.epoch) == (claim.id, 2)
    assert await slots(lab) == (1, 1)
    with pytest.raises(FlowFabricError):
        await lab.complete(claim)
    assert await slots(lab) == (1, 1), "whoever lost its lease gives nothing back"
    await finish(lab, again)
    assert await slots(lab) == (1, 0)
    revoked = await lab.claim_one()
    assert revoked.id == second
    third = await one(lab)
    await lab.engine.claims.revoke(second, reason="maintenance")
    assert await waits(lab, third)
    await lab.engine.executions.cancel(second, reason="enough")
    assert not await waits(lab, third)


async def test_a_slot_is_given_back_once_however_often_it_is_said(lab: Lab) -> None:
    """I-28, C-T96, F-09, F-40: ended twice, cancelled twice, released twice"""
    await define(lab, concurrency=2)
    ids = await crowd(lab, 6)
    claims = await lab.claim(limit=6)
    assert [claim.id for claim in claims] == ids[:2]
    for _ in range(2):
        await lab.complete(claims[0])
        lab.engine._releases.kick([claims[0].snapshot.execution] * 2)
        await lab.engine.sweep.once()
    assert await slots(lab) == (2, 3)
    for _ in range(2):
        await lab.engine.executions.cancel(claims[1].id, reason="enough")
    assert await slots(lab) == (2, 2)
    assert [claim.id for claim in await lab.claim(limit=6)] == ids[2:4]


async def test_a_replay_takes_a_slot_of_its_own(lab: Lab) -> None:
    """I-28, C-T94: the same execution again is one slot, not two and not none"""
    await define(lab, concurrency=1, rate=Rate(3, MINUTE))
    claim = await began(lab)
    await finish(lab, claim)
    assert await slots(lab) == (0, 0)
    other = await began(lab)
    replayed = await lab.engine.executions.replay(claim.id)
    assert replayed.state == "rate_limited"
    assert await slots(lab) == (1, 1)
    await finish(lab, other)
    assert (await lab.claim_one()).id == claim.id
    assert await slots(lab) == (1, 0)
    assert (await lab.engine.quotas.status("q")).opens_at == lab.clock.now() + MINUTE


async def test_who_waits_at_the_limit_is_seen_to(lab: Lab) -> None:
    """S4, C-T95: public state, vector, and no way around the limit"""
    await define(lab, concurrency=1)
    await began(lab)
    id = await one(lab)
    shape = await lab.vector(id)
    assert is_legal(shape)
    assert (shape.phase, shape.ownership, shape.public) == ("runnable", "unowned", "rate_limited")
    assert (shape.eligibility, shape.blocking) == ("blocked_by_quota", "waiting_for_quota")
    assert shape.attempt == "pending_first_attempt"
    assert await lab.claim(limit=5) == []
    for call in (lab.engine.grants.issue(id, "w1"), lab.engine.grants.take(id)):
        with pytest.raises(FlowFabricError):
            await call
    with pytest.raises(FlowFabricError):
        await lab.engine.executions.unblock(id)
    assert await waits(lab, id)


async def test_a_resumed_run_needs_a_slot_but_no_start(lab: Lab) -> None:
    """C-T95, I-27: a rate counts starts of attempts, a wait in between is none"""
    await define(lab, concurrency=1, rate=Rate(2, MINUTE))
    first = await began(lab)
    await waiting.suspend(lab, first)
    second = await began(lab)
    third = await one(lab)
    await lab.engine.executions.resume(first.id)
    assert await waits(lab, first.id), "no slot"
    await finish(lab, second)
    assert await waits(lab, third), "no start"
    again = await lab.claim_one()
    assert (again.id, again.attempt) == (first.id, first.attempt)
    await lab.engine.attempts.delay(again, Millis(lab.clock.now() + 1_000))
    await lab.pass_time(1_000)
    await finish(lab, await lab.claim_one())
    assert await lab.claim() == []
    await lab.pass_time(MINUTE - 1_000)
    assert (await lab.claim_one()).id == third


async def test_a_retry_is_a_start(lab: Lab) -> None:
    """I-27: attempts are counted, not executions"""
    await define(lab, rate=Rate(2, MINUTE))
    claim = await began(lab, policy=RETRY_AT_ONCE)
    await lab.fail(claim)
    await settled(lab)
    await lab.fail(await lab.claim_one())
    assert await waits(lab, claim.id)
    await lab.pass_time(MINUTE - 1)
    assert await lab.claim() == []
    await lab.pass_time(1)
    assert (await lab.claim_one()).attempt == 2


async def test_starts_are_given_back_in_whichever_order_runs_are_held(lab: Lab) -> None:
    """C-T95, Q-7: the run that was admitted last goes back first, and so may have taken back the
    start of the other one."""
    await define(lab, rate=Rate(2, MINUTE))
    first = await one(lab)
    lab.clock.advance(1_000)
    second = await one(lab)
    for left, id in ((1, second), (0, first)):
        await lab.engine.executions.hold(id)
        await settled(lab)
        assert (await lab.engine.quotas.status("q")).started == left
    others = [await one(lab) for _ in range(3)]
    assert [await waits(lab, id) for id in others] == [False, False, True]


@pytest.mark.parametrize("keep", ["hold", "block"])
async def test_a_run_that_is_kept_from_starting_is_no_start(lab: Lab, keep: str) -> None:
    """I-28, Q-7: the start goes with the slot, so that it counts once however often it is held."""
    kept = {"hold": (), "block": ("paused_by_policy",)}[keep]
    await define(lab, concurrency=2, rate=Rate(2, MINUTE))
    id = await one(lab)
    for _ in range(3):
        await getattr(lab.engine.executions, keep)(id, *kept)
        await settled(lab)
        assert (await lab.engine.quotas.status("q")).started == 0
        await getattr(lab.engine.executions, f"un{keep}")(id)
        await settled(lab)
        assert (await lab.engine.quotas.status("q")).started == 1
    other = await one(lab)
    assert [claim.id for claim in await lab.claim(limit=9)] == [id, other]
    third = await one(lab)
    await lab.pass_time(MINUTE - 1)
    assert await waits(lab, third)


async def test_the_status_counts_the_starts_of_the_window(lab: Lab) -> None:
    await define(lab, concurrency=9)
    assert (await lab.engine.quotas.status("q")).started is None
    await define(lab, rate=Rate(2, Millis(1_000)))
    assert (await lab.engine.quotas.status("q")).started == 0
    await crowd(lab, 4)
    await lab.claim(limit=9)
    assert (await lab.engine.quotas.status("q")).started == 2
    lab.clock.advance(1_000)
    assert (await lab.engine.quotas.status("q")).started == 0


async def test_a_rate_opens_exactly_when_it_says(lab: Lab) -> None:
    """C-T95, I-27, F-10: retry-after is right to the millisecond, start by start"""
    await define(lab, rate=Rate(2, Millis(1_000)))
    quotas = lab.engine.quotas
    begun = lab.clock.now()
    assert (await quotas.status("q")).opens_at is None
    ids = [await one(lab)]
    lab.clock.advance(300)
    ids += await crowd(lab, 4)
    assert (await quotas.status("q")).opens_at == begun + 1_000
    assert [claim.id for claim in await lab.claim(limit=9)] == ids[:2]
    for step, expected in ((699, 0), (1, 1), (299, 0), (1, 1), (699, 0), (1, 1)):
        await lab.pass_time(step)
        taken = await lab.claim(limit=9)
        assert len(taken) == expected, lab.clock.now() - begun
        for claim in taken:
            await lab.complete(claim)
    assert (await quotas.status("q")).opens_at == begun + 2_300, "nobody waits and it is still told"
    assert lab.engine._limits.opens_at is None
    lab.clock.advance(300)
    assert (await quotas.status("q")).opens_at is None


async def test_a_rate_of_a_day_opens_exactly_when_it_says(lab: Lab) -> None:
    """§3.2, C-T95: retry-after is the oldest start and the window, also of a long one"""
    day = 86_400_000
    await define(lab, rate=Rate(2, Millis(day)))
    lab.clock.advance(12_345)
    await one(lab)
    lab.clock.advance(1_000)
    await one(lab)
    last = await one(lab)
    answer = await lab.engine.quotas.check_admission("q", last)
    assert answer == RateExceeded("q", Millis(day - 1_000))
    await lab.pass_time(day - 1_001)
    assert await waits(lab, last)
    await lab.pass_time(1)
    assert not await waits(lab, last)


async def test_windows_of_a_key_are_its_own(lab: Lab) -> None:
    """C-T95, I-27: per key and altogether"""
    await define(lab, rate=Rate(3, Millis(10_000)), rate_per_key=Rate(1, Millis(1_000)))
    a = await crowd(lab, 3, ("q", "a"))
    b = await crowd(lab, 3, ("q", "b"))
    assert {claim.id for claim in await lab.claim(limit=9)} == {a[0], b[0]}
    await lab.pass_time(999)
    assert await lab.claim(limit=9) == []
    await lab.pass_time(1)
    (only,) = await lab.claim(limit=9)
    assert only.id in (a[1], b[1])
    assert (await lab.engine.quotas.status("q")).opens_at == lab.clock.now() + 9_000
    await lab.pass_time(8_999)
    assert await lab.claim(limit=9) == []
    await lab.pass_time(1)
    assert len(await lab.claim(limit=9)) == 2


async def test_a_clock_that_jumps_lets_through_one_window_and_no_more(lab: Lab) -> None:
    """I-27: a day later there is one fresh window, not what was missed"""
    await define(lab, rate=Rate(2, Millis(1_000)))
    ids = await crowd(lab, 7)
    assert len(await lab.claim(limit=9)) == 2
    await lab.pass_time(86_400_000)
    await lab.engine.sweep.once()
    assert [claim.id for claim in await lab.claim(limit=9) if claim.epoch == 1] == ids[2:4]
    assert await waits(lab, ids[4])


async def test_a_delayed_one_has_no_slot_until_its_time(lab: Lab) -> None:
    """I-31, I-35: no slot for what could not run anyhow"""
    await define(lab, concurrency=1)
    late = await one(lab, delay_until=Millis(lab.clock.now() + 1_000))
    assert await slots(lab) == (0, 0)
    claim = await began(lab)
    await lab.pass_time(1_000)
    assert await waits(lab, late)
    await finish(lab, claim)
    assert (await lab.claim_one()).id == late


async def test_a_resumed_run_does_not_wait_behind_starts(lab: Lab) -> None:
    """A rate that is used up keeps starts, however many of better rank stand in front"""
    await define(lab, concurrency=5, rate=Rate(1, MINUTE))
    first = await began(lab)
    await suspends(lab, first)
    await crowd(lab, 1_200, priority=9)
    assert (await slots(lab))[0] == 0
    await lab.engine.executions.resume(first.id)
    assert (await slots(lab))[0] == 1
    assert (await lab.claim_one(W2)).id == first.id
