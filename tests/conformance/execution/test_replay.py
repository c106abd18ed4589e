"""Replay: an ended execution runs again. E-T184, E-T185, E-T188, E-X05, E-X23, INV-2, INV-28."""

import asyncio

import pytest

from flowfabric.core.base.errors import LeaseLost, MaxReplays, NotFound, NotTerminal
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import RetryScheduled
from flowfabric.core.execution.event import EventKind, Family
from flowfabric.core.execution.model import AttemptOutcome, Failure, Outcome, Start
from flowfabric.core.execution.operator import Replayed
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Step
from tests.kit import situations
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.situations import ENDED, LIVING, described, load, missing_ids, take


async def replay(lab: Lab, id: str) -> Replayed:
    return await lab.engine.executions.replay(id)


@pytest.mark.parametrize("name", ENDED)
async def test_whatever_has_ended_can_run_again(lab: Lab, name: str) -> None:
    """E-T184, E-T185: S16 and S17 to S15"""
    id = await ENDED[name](lab)
    before = await described(lab, id)
    lab.clock.advance(7)
    assert await replay(lab, id) == Replayed(id, PublicState.WAITING)
    seen = await described(lab, id)
    assert (seen.vector.phase, seen.vector.eligibility) == ("runnable", "eligible_now")
    assert (seen.vector.blocking, seen.vector.outcome) == ("waiting_for_worker", "none")
    assert (seen.vector.attempt, seen.state) == ("pending_replay_attempt", PublicState.WAITING)
    assert (seen.replays, seen.retries) == (1, 0)
    assert (seen.ended_at, seen.failure, seen.cancel_reason, seen.cancelled_by) == (None,) * 4
    assert await lab.engine.views.result(id) is None
    assert (seen.epoch, seen.attempts_made) == (before.epoch, before.attempts_made)
    assert seen.started_at == before.started_at
    assert (seen.attempt, seen.lease) == (None, None)


async def test_a_replay_is_told_once(lab: Lab) -> None:
    """E-T184: branch normal; a replay is no ending"""
    id = await situations.completed(lab)
    await replay(lab, id)
    *_, event = await lab.events(id)
    assert (event.kind, event.operator) == (EventKind.REPLAYED, "replayed")
    assert event.detail == {"branch": "normal", "groups_reset": 0}
    assert (event.lease, event.completion) == (None, None)
    outcomes = [event.completion for event in await lab.events(id, family=Family.COMPLETION)]
    assert outcomes == [Outcome.SUCCESS]


async def test_a_replayed_execution_is_a_new_attempt_and_can_end_again(lab: Lab) -> None:
    """E-X23, D-9, INV-2, INV-9, INV-28: the history keeps what the record gave up"""
    first = await lab.running()
    await lab.complete(first, b"one")
    ended_at = lab.clock.now()
    lab.clock.advance(50)
    await replay(lab, first.id)
    second = await lab.claim_one(W2)
    assert (second.attempt, second.epoch, second.lease.start) == (1, 2, Start.REPLAY)
    assert second.attempt_id != first.attempt_id
    assert (await described(lab, first.id)).started_at == first.lease.started_at
    await lab.complete(second, b"two")
    assert await lab.engine.views.result(first.id) == b"two"
    one, two = await lab.engine.views.attempts(first.id)
    assert (one.type, one.outcome, one.result) == (Start.INITIAL, AttemptOutcome.SUCCESS, b"one")
    assert (one.ended_at, one.worker, one.epoch) == (ended_at, W1, 1)
    assert (two.type, two.outcome, two.result) == (Start.REPLAY, AttemptOutcome.SUCCESS, b"two")
    assert (two.previous, two.worker, two.epoch) == (0, W2, 2)
    outcomes = [event.completion for event in await lab.events(first.id, family=Family.COMPLETION)]
    assert outcomes == [Outcome.SUCCESS, Outcome.SUCCESS]


async def test_a_failure_leaves_the_record_and_stays_in_the_history(lab: Lab) -> None:
    claim = await lab.running()
    await lab.fail(claim, "permanent", "broken")
    await replay(lab, claim.id)
    assert (await described(lab, claim.id)).failure is None
    (attempt,) = await lab.engine.views.attempts(claim.id)
    assert (attempt.outcome, attempt.failure) == (
        AttemptOutcome.FAILURE,
        Failure("broken", "permanent"),
    )


async def test_the_whole_history_of_a_hard_life_survives_a_replay(lab: Lab) -> None:
    """INV-9: retries, a lost attempt, an interrupted one, and two replays"""
    id = await lab.submit(policy=situations.RETRY_AT_ONCE)
    await lab.fail(await lab.claim_one())
    await lab.lose(await lab.claim_one())
    paused = await lab.claim_one()
    await lab.engine.attempts.hand_back(paused)
    await lab.engine.executions.cancel(id, reason="r")
    await replay(lab, id)
    await lab.engine.executions.cancel(id, reason="r")
    await replay(lab, id)
    await lab.complete(await lab.claim_one())
    attempts = await lab.engine.views.attempts(id)
    assert [(attempt.index, attempt.type, attempt.outcome) for attempt in attempts] == [
        (0, Start.INITIAL, AttemptOutcome.FAILURE),
        (1, Start.RETRY, AttemptOutcome.RECLAIMED),
        (2, Start.RECLAIM, AttemptOutcome.CANCELLED),
        (3, Start.REPLAY, AttemptOutcome.SUCCESS),
    ]
    assert await lab.engine.views.attempts_made(id) == 4


async def test_what_has_not_ended_cannot_be_replayed(lab: Lab, subtests: pytest.Subtests) -> None:
    """E-T188, INV-24"""
    for name, situation in LIVING.items():
        with subtests.test(name):
            id = await situation(lab)
            before, events = await load(lab, id), await lab.events(id)
            with pytest.raises(NotTerminal):
                await replay(lab, id)
            assert await load(lab, id) == before
            assert await lab.events(id) == events


async def test_what_does_not_exist_cannot_be_replayed(lab: Lab) -> None:
    for wrong in await missing_ids(lab):
        with pytest.raises(NotFound):
            await replay(lab, wrong)


@pytest.mark.parametrize("allowed", [0, 1, 3])
async def test_an_execution_is_replayed_as_often_as_its_policy_allows(
    lab: Lab, allowed: int
) -> None:
    """E-X23, INV-11; being alive is the first reason to refuse, the count the second"""
    id = await situations.completed(lab, policy={"max_replay_count": allowed})
    for _ in range(allowed):
        await replay(lab, id)
        await lab.complete(await take(lab, id))
    before, events = await load(lab, id), await lab.events(id)
    with pytest.raises(MaxReplays):
        await replay(lab, id)
    assert await load(lab, id) == before
    assert await lab.events(id) == events
    assert (await described(lab, id)).replays == allowed


async def test_ten_replays_are_allowed_by_default(lab: Lab) -> None:
    """§3.22"""
    id = await lab.submit()
    for _ in range(10):
        await lab.engine.executions.cancel(id, reason="r")
        await replay(lab, id)
    await lab.engine.executions.cancel(id, reason="r")
    with pytest.raises(MaxReplays):
        await replay(lab, id)


async def test_a_replay_has_its_whole_retry_budget_again(lab: Lab) -> None:
    """E-X23"""
    id = await lab.submit(policy=situations.RETRY_AT_ONCE)
    for _ in range(3):
        await lab.fail(await lab.claim_one())
    assert await lab.state(id) is PublicState.FAILED
    await replay(lab, id)
    outcomes = [await lab.fail(await lab.claim_one()) for _ in range(3)]
    assert [type(outcome) is RetryScheduled for outcome in outcomes] == [True, True, False]
    assert await lab.engine.views.attempts_made(id) == 6


async def test_the_worker_of_the_old_run_can_change_nothing(lab: Lab) -> None:
    """E-X05, INV-3: neither while the replay waits nor while it runs nor when it has ended"""
    old = await lab.running()
    await lab.complete(old, b"old")
    handle = lab.engine.attempts.seal(old)
    await replay(lab, old.id)
    for step in ("waits", "runs", "ended"):
        if step == "runs":
            new = await lab.claim_one(W2)
        elif step == "ended":
            await lab.complete(new, b"new")
        before, events = await load(lab, old.id), await lab.events(old.id)
        for owned in (old, handle):
            for call in (
                lab.engine.attempts.complete(owned, b"late"),
                lab.engine.attempts.fail(owned, Failure("late")),
                lab.engine.attempts.delay(owned, Millis(lab.clock.now() + 1)),
                lab.engine.attempts.cancel(owned, "late"),
                lab.engine.attempts.renew(owned),
                lab.engine.attempts.progress(owned, 99),
            ):
                with pytest.raises(LeaseLost):
                    await call
        assert await load(lab, old.id) == before
        assert await lab.events(old.id) == events
    assert await lab.engine.views.result(old.id) == b"new"


async def test_a_relative_deadline_counts_from_the_replay(lab: Lab) -> None:
    """§3.22"""
    policy = {"timeout_policy": {"execution_deadline_ms": 1000}}
    id = await lab.submit(policy=policy)
    await lab.pass_time(1000)
    assert await lab.state(id) is PublicState.EXPIRED
    lab.clock.advance(5000)
    await replay(lab, id)
    assert (await described(lab, id)).deadline_at == lab.clock.now() + 1000
    await lab.pass_time(999)
    assert await lab.state(id) is PublicState.WAITING
    await lab.pass_time(1)
    assert await lab.state(id) is PublicState.EXPIRED


async def test_an_absolute_deadline_that_has_passed_does_not_end_the_replay(lab: Lab) -> None:
    id = await situations.expired_unrun(lab)
    await replay(lab, id)
    assert (await described(lab, id)).deadline_at is None
    await lab.pass_time(10**9)
    assert await lab.state(id) is PublicState.WAITING


async def test_a_replay_can_run_too_long_like_the_first_run(lab: Lab) -> None:
    policy = {"timeout_policy": {"attempt_timeout_ms": 1000}}
    id = await situations.completed(lab, policy=policy)
    await replay(lab, id)
    await lab.claim_one()
    await lab.pass_time(1000)
    assert await lab.state(id) is PublicState.EXPIRED


async def test_steps_of_a_failed_run_are_kept_and_those_of_a_success_start_over(lab: Lab) -> None:
    """Design §7"""
    step = Step(generation=0, position=0, name="charge", occurrence=0, doc=b'"done"')
    claim = await lab.running()
    await lab.engine.attempts.record_step(claim, step)
    await lab.fail(claim, "permanent")
    await replay(lab, claim.id)
    second = await lab.claim_one()
    assert second.snapshot.life.generation == 0
    assert await lab.engine.attempts.steps(claim.uuid, 0) == [step]
    await lab.complete(second)
    await replay(lab, claim.id)
    third = await lab.claim_one()
    assert third.snapshot.life.generation == 1
    assert await lab.engine.attempts.steps(claim.uuid, 1) == []
    assert await lab.engine.attempts.steps(claim.uuid, 0) == [step]


async def test_a_replayed_execution_is_not_old_enough_to_be_deleted(lab: Lab) -> None:
    """INV-27"""
    id = await situations.completed(lab)
    lab.clock.advance(8 * 86_400_000)
    await replay(lab, id)
    assert await lab.engine.sweep.trim() == 0
    await lab.complete(await lab.claim_one())
    assert await lab.engine.sweep.trim() == 0
    assert await lab.state(id) is PublicState.COMPLETED


async def test_replays_at_once_are_one_replay(lab: Lab, second_lab: Lab) -> None:
    """INV-11: the losers learn that it has not ended any more"""
    id = await situations.completed(lab)
    answers = await asyncio.gather(
        *(replay(each, id) for each in (lab, second_lab) for _ in range(4)),
        return_exceptions=True,
    )
    won = [answer for answer in answers if isinstance(answer, Replayed)]
    lost = [answer for answer in answers if isinstance(answer, NotTerminal)]
    assert (len(won), len(lost)) == (1, 7)
    assert (await described(lab, id)).replays == 1
    told = [event.operator for event in await lab.events(id, family=Family.OPERATOR)]
    assert told == ["replayed"]


async def test_a_replay_can_be_lost_and_reclaimed(lab: Lab) -> None:
    id = await situations.completed(lab)
    await replay(lab, id)
    await lab.lose(await lab.claim_one())
    rescuer = await lab.claim_one(W2)
    assert (rescuer.attempt, rescuer.lease.start) == (2, Start.RECLAIM)
    lab.clock.advance(TTL // 2)
    await lab.complete(rescuer)
    assert await lab.state(id) is PublicState.COMPLETED
