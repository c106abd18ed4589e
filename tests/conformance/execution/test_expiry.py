"""Time: every timer fires by itself and a stale one changes nothing.

E-T190, E-T191, E-X07, E-X10, §3.24 to §3.29, D-18, INV-18, INV-19, INV-20.
"""

from uuid import UUID

import pytest

from flowfabric.core.base.errors import Invalid, LeaseLost
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import RetryScheduled, TerminalFailed
from flowfabric.core.execution.lease import AlreadySatisfied, MarkedExpired
from flowfabric.core.execution.model import AttemptOutcome, Failure, Outcome, Start
from flowfabric.core.execution.operator import Expired
from flowfabric.core.execution.status import PublicState
from tests.kit import situations
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.situations import DELAY, LIVING, RETRY, completions, load, take, timeouts


async def due_in(lab: Lab, id_of: UUID, span: int) -> None:
    """Exactly one timer stands, and it fires in `span` and not before."""
    store, now = lab.engine.store, lab.clock.now()
    moment = Millis(now + span)
    assert await store.next_due(now) == moment
    assert await store.due(Millis(moment - 1), 10) == []
    assert await store.due(moment, 10) == [id_of]


@pytest.mark.parametrize(
    ("name", "blocking", "attempt"),
    [
        ("delayed", "waiting_for_delay", "pending_first_attempt"),
        ("resume_delayed", "waiting_for_resume_delay", "attempt_interrupted"),
        ("worker_delayed", "waiting_for_delay", "attempt_interrupted"),
        ("backing_off", "waiting_for_retry_backoff", "pending_retry_attempt"),
    ],
)
async def test_what_waits_for_a_moment_wakes_by_itself(
    lab: Lab, name: str, blocking: str, attempt: str
) -> None:
    """E-X10, C-T128, FLAW-8: promoted on time, not a millisecond before, and told to nobody"""
    id = await LIVING[name](lab)
    await due_in(lab, id.uuid, DELAY)
    events = await lab.events(id)
    await lab.pass_time(DELAY - 1)
    shape = await lab.vector(id)
    assert (shape.eligibility, shape.blocking) == ("not_eligible_until_time", blocking)
    assert (shape.attempt, shape.public) == (attempt, PublicState.DELAYED)
    assert await lab.claim() == []
    await lab.pass_time(1)
    shape = await lab.vector(id)
    assert (shape.eligibility, shape.blocking) == ("eligible_now", "waiting_for_worker")
    assert (shape.attempt, shape.public) == (attempt, PublicState.WAITING)
    assert await lab.events(id) == events
    assert (await lab.claim_one()).id == id


@pytest.mark.parametrize("name", ["delayed", "resume_delayed", "worker_delayed", "backing_off"])
async def test_a_cancelled_delay_wakes_no_run(lab: Lab, name: str) -> None:
    """A stale timer changes nothing"""
    id = await LIVING[name](lab)
    await lab.engine.executions.cancel(id, reason="r")
    await lab.pass_time(DELAY)
    assert await lab.state(id) is PublicState.CANCELLED
    assert await lab.engine.store.next_due(lab.clock.now()) is None


async def test_a_lease_runs_out_by_itself(lab: Lab) -> None:
    """§3.29: equality counts as expired, the epoch stays, the attempt is not over yet"""
    claim = await lab.running()
    await due_in(lab, claim.uuid, TTL)
    await lab.pass_time(TTL - 1)
    assert (await lab.vector(claim.id)).ownership == "leased"
    await lab.pass_time(1)
    shape = await lab.vector(claim.id)
    assert (shape.ownership, shape.blocking) == ("lease_expired_reclaimable", "waiting_for_worker")
    assert (shape.attempt, shape.public) == ("attempt_interrupted", PublicState.ACTIVE)
    *_, event = await lab.events(claim.id)
    assert (event.lease, event.epoch, event.worker) == ("expired", 1, W1)
    assert event.completion is None
    seen = await lab.engine.views.describe(claim.id)
    assert seen is not None
    assert (seen.epoch, seen.lease, seen.attempts_made) == (1, None, 1)
    assert seen.blocking_detail == "lease expired, awaiting reclaim"


async def test_a_renewed_lease_is_left_alone(lab: Lab) -> None:
    """The timer of the first expiry is stale"""
    claim = await lab.running()
    await lab.pass_time(TTL // 2)
    await lab.engine.claims.renew(claim)
    await lab.pass_time(TTL // 2)
    assert (await lab.vector(claim.id)).ownership == "leased"
    assert await lab.engine.claims.mark_expired(claim.id) == AlreadySatisfied("not_yet_expired")
    await lab.complete(claim)
    assert await completions(lab, claim.id) == [Outcome.SUCCESS]


async def test_marking_a_lease_that_is_not_due_says_why(
    lab: Lab, subtests: pytest.Subtests
) -> None:
    """§3.29, INV-24"""
    answers = {
        "running": "not_yet_expired",
        "lost": "already_expired",
        "revoked": "already_revoked",
    }
    for name, situation in situations.ALL.items():
        with subtests.test(name):
            id = await situation(lab)
            before = await load(lab, id)
            answer = await lab.engine.claims.mark_expired(id)
            assert answer == AlreadySatisfied(answers.get(name, "not_active"))
            assert await load(lab, id) == before


async def test_a_lease_is_marked_by_hand_once(lab: Lab) -> None:
    """§3.29"""
    claim = await lab.running()
    lab.clock.advance(TTL)
    assert await lab.engine.claims.mark_expired(claim.id) == MarkedExpired(claim.id)
    assert await lab.engine.claims.mark_expired(claim.id) == AlreadySatisfied("already_expired")
    assert [event.lease for event in await lab.events(claim.id)] == ["acquired", "expired"]


async def test_after_a_reclaim_no_sweep_disturbs_the_new_owner(lab: Lab) -> None:
    """E-X07, C-T127, FLAW-5"""
    first = await lab.running()
    await lab.lose(first)
    second = await lab.claim_one(W2)
    before = await load(lab, second.id)
    assert await lab.engine.sweep.once() == 0
    await lab.pass_time(TTL - 1)
    assert await load(lab, second.id) == before
    await lab.complete(second)


async def test_an_attempt_that_runs_too_long_expires_the_execution(lab: Lab) -> None:
    """E-T190, C-T126, D-18: no retry left"""
    claim = await lab.running(policy=timeouts(attempt=5000))
    await due_in(lab, claim.uuid, 5000)
    await lab.pass_time(4999)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.pass_time(1)
    seen = await lab.engine.views.describe(claim.id)
    assert seen is not None
    assert (seen.state, seen.lease) == (PublicState.EXPIRED, None)
    assert seen.failure == Failure("attempt_timeout", "timeout")
    (attempt,) = await lab.engine.views.attempts(claim.id)
    assert (attempt.outcome, attempt.failure) == (
        AttemptOutcome.FAILURE,
        Failure("attempt_timeout", "timeout"),
    )
    *_, event = await lab.events(claim.id)
    assert (event.lease, event.completion) == ("released", Outcome.EXPIRED)
    assert event.reason == "expired:attempt_timeout"
    with pytest.raises(LeaseLost):
        await lab.complete(claim)


async def test_an_attempt_that_runs_too_long_is_retried_while_it_may_be(lab: Lab) -> None:
    """C-T126, D-18: a failure of category timeout"""
    claim = await lab.running(policy={**RETRY, **timeouts(attempt=5000)})
    for expected in (1, 2):
        await lab.pass_time(5000)
        shape = await lab.vector(claim.id)
        assert (shape.attempt, shape.public) == ("pending_retry_attempt", PublicState.DELAYED)
        await lab.pass_time(DELAY)
        claim = await lab.claim_one()
        assert (claim.attempt, claim.lease.start) == (expected, Start.RETRY)
    await lab.pass_time(5000)
    assert await lab.state(claim.id) is PublicState.EXPIRED
    assert await completions(lab, claim.id) == [Outcome.EXPIRED]
    attempts = await lab.engine.views.attempts(claim.id)
    assert [attempt.failure for attempt in attempts] == [
        Failure("attempt_timeout", "timeout"),
    ] * 3


async def test_an_owner_whose_timer_is_ahead_of_the_clock_times_its_attempt_out(lab: Lab) -> None:
    """D-18: as the sweep would, a moment later; repeating it changes nothing."""
    claim = await lab.running(policy=timeouts(attempt=5000))
    await lab.pass_time(4999)
    for _ in range(2):
        answer = await lab.engine.attempts.time_out(claim)
        assert answer == TerminalFailed(claim.id)
        assert await lab.state(claim.id) is PublicState.EXPIRED
    (attempt,) = await lab.engine.views.attempts(claim.id)
    assert attempt.failure == Failure("attempt_timeout", "timeout")
    assert await completions(lab, claim.id) == [Outcome.EXPIRED]


async def test_an_owner_that_times_its_attempt_out_gets_the_retry_it_may_have(lab: Lab) -> None:
    claim = await lab.running(policy={**RETRY, **timeouts(attempt=5000)})
    first = await lab.engine.attempts.time_out(claim)
    assert isinstance(first, RetryScheduled)
    assert await lab.engine.attempts.time_out(claim) == first
    await lab.pass_time(DELAY)
    assert (await lab.claim_one()).attempt == 1
    with pytest.raises(LeaseLost):
        await lab.engine.attempts.time_out(claim)


@pytest.mark.rules
async def test_an_attempt_without_a_timeout_cannot_time_out(lab: Lab) -> None:
    claim = await lab.running()
    with pytest.raises(Invalid, match="no timeout"):
        await lab.engine.attempts.time_out(claim)
    await lab.complete(claim)


async def test_a_timeout_is_not_retried_when_the_policy_leaves_it_out(lab: Lab) -> None:
    """§3.15: categories"""
    retry = {"max_retries": 5, "retryable_categories": ["transient"]}
    claim = await lab.running(policy={"retry_policy": retry, **timeouts(attempt=5000)})
    await lab.pass_time(5000)
    assert await lab.state(claim.id) is PublicState.EXPIRED


async def test_renewing_the_lease_does_not_lengthen_the_attempt(lab: Lab) -> None:
    claim = await lab.running(policy=timeouts(attempt=TTL))
    await lab.pass_time(TTL - 1)
    await lab.engine.claims.renew(claim)
    await lab.pass_time(1)
    assert await lab.state(claim.id) is PublicState.EXPIRED


async def test_an_attempt_that_sleeps_does_not_run(lab: Lab) -> None:
    """What is left of its time is left when it goes on; a retry has all of it again."""
    claim = await lab.running(policy=timeouts(attempt=5000))
    await lab.pass_time(3000)
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + DELAY))
    await lab.pass_time(DELAY)
    again = await lab.claim_one()
    assert (again.attempt, again.lease.times_out_at) == (0, lab.clock.now() + 2000)
    await lab.pass_time(1999)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.pass_time(1)
    assert await lab.state(claim.id) is PublicState.EXPIRED


async def test_the_timeout_of_an_attempt_that_is_over_has_no_effect(lab: Lab) -> None:
    """A stale timer changes nothing"""
    claim = await lab.running(policy={**situations.RETRY_AT_ONCE, **timeouts(attempt=5000)})
    await lab.pass_time(3000)
    await lab.fail(claim)
    second = await lab.claim_one()
    await lab.pass_time(2000)
    assert (await load(lab, second.id)).state == second.snapshot.state
    await lab.pass_time(3000)
    assert (await lab.vector(second.id)).attempt == "pending_retry_attempt"


async def test_a_lease_and_an_attempt_that_end_together_are_a_timeout(lab: Lab) -> None:
    claim = await lab.running(policy=timeouts(attempt=TTL))
    await lab.pass_time(TTL)
    assert await lab.state(claim.id) is PublicState.EXPIRED
    assert await completions(lab, claim.id) == [Outcome.EXPIRED]


async def test_a_sweep_that_comes_late_takes_no_lost_worker_for_a_timeout(lab: Lab) -> None:
    """FLAW-10: everything was down from before the lease ran out until after the timeout"""
    claim = await lab.running(policy=timeouts(attempt=TTL + 1))
    await lab.pass_time(10 * TTL)
    assert (await lab.vector(claim.id)).ownership == "lease_expired_reclaimable"
    again = await lab.claim_one(W2)
    assert (again.attempt, again.lease.start) == (1, Start.RECLAIM)
    await lab.pass_time(TTL - 1)
    await lab.engine.claims.renew(again)
    await lab.pass_time(2)
    assert await lab.state(claim.id) is PublicState.EXPIRED


async def test_a_timeout_that_passed_before_the_lease_ran_out_counts_however_late(lab: Lab) -> None:
    """FLAW-10, §3.24"""
    claim = await lab.running(policy=timeouts(attempt=TTL - 1))
    await lab.pass_time(10 * TTL)
    assert await lab.state(claim.id) is PublicState.EXPIRED


@pytest.mark.parametrize("name", LIVING)
async def test_a_deadline_ends_whatever_lives(lab: Lab, name: str) -> None:
    """E-T190, E-T191, E-X10, C-T128, FLAW-9: in every state, once, and with the attempt in hand"""
    policy = {**RETRY, **timeouts(deadline=100_000)}
    id = await LIVING[name](lab, policy=policy)
    before = await load(lab, id)
    assert before.deadline_at is not None
    lab.clock.advance(before.deadline_at - lab.clock.now() - 1)
    assert await lab.engine.executions.expire(id) == AlreadySatisfied("not_yet_due")
    assert await load(lab, id) == before
    await lab.pass_time(1)
    seen = await lab.engine.views.describe(id)
    assert seen is not None
    assert situations.is_legal(seen.vector)
    assert (seen.state, seen.lease) == (PublicState.EXPIRED, None)
    assert (seen.ended_at, seen.epoch) == (before.deadline_at, before.head.epoch)
    assert seen.failure == Failure("execution_deadline", "timeout")
    if before.current_attempt is None:
        assert seen.vector.attempt not in ("attempt_terminal", "running_attempt")
    else:
        last = (await lab.engine.views.attempts(id))[-1]
        assert last.outcome is AttemptOutcome.FAILURE
        assert last.index == before.current_attempt
    outcomes = await completions(lab, id)
    assert outcomes[-1] is Outcome.EXPIRED
    assert outcomes.count(Outcome.EXPIRED) == 1
    *_, event = await lab.events(id)
    assert event.reason == "expired:execution_deadline"
    assert (event.lease == "released") == (name == "running")
    assert await lab.claim(limit=5) == []
    await lab.pass_time(TTL)
    assert len(await completions(lab, id)) == len(outcomes)


async def test_what_never_ran_is_still_pending_when_it_expires(lab: Lab) -> None:
    """E-T191"""
    id = await situations.expired_unrun(lab)
    shape = await lab.vector(id)
    assert (shape.outcome, shape.attempt) == ("expired", "pending_first_attempt")
    assert await lab.engine.grants.eligible("default") == []
    assert await lab.engine.views.attempts(id) == []


async def test_a_deadline_outlives_retries_delays_and_reclaims(lab: Lab) -> None:
    """E-X10, FLAW-9"""
    id = await lab.submit(policy=RETRY, deadline_at=Millis(lab.clock.now() + 100_000))
    await lab.engine.attempts.delay(await lab.claim_one(), Millis(lab.clock.now() + DELAY))
    await lab.pass_time(DELAY)
    await lab.fail(await lab.claim_one())
    await lab.pass_time(DELAY)
    await lab.lose(await lab.claim_one())
    await lab.claim_one(W2)
    await lab.pass_time(TTL - 1)
    await lab.engine.executions.block((await lab.submit()), "paused_by_operator")
    assert await lab.state(id) is PublicState.ACTIVE
    await lab.pass_time(100_000 - 2 * DELAY - 2 * TTL + 1)
    assert await lab.state(id) is PublicState.EXPIRED


@pytest.mark.parametrize("how", ["complete", "fail"])
async def test_the_deadline_of_what_has_ended_has_no_effect(lab: Lab, how: str) -> None:
    claim = await lab.running(deadline_at=Millis(lab.clock.now() + DELAY))
    await (lab.complete(claim) if how == "complete" else lab.fail(claim))
    before, events = await load(lab, claim.id), await lab.events(claim.id)
    lab.clock.advance(DELAY)
    assert await lab.engine.sweep.once() == 0
    assert await lab.engine.executions.expire(claim.id) == AlreadySatisfied("already_terminal")
    assert await load(lab, claim.id) == before
    assert await lab.events(claim.id) == events


async def test_a_deadline_that_has_passed_already_ends_it_at_the_first_look(lab: Lab) -> None:
    id = await lab.submit(deadline_at=Millis(lab.clock.now() - 1))
    await lab.pass_time(0)
    assert await lab.state(id) is PublicState.EXPIRED


async def test_expiring_by_hand_acts_only_on_what_is_due(lab: Lab) -> None:
    """§3.24"""
    late = await lab.submit(deadline_at=Millis(lab.clock.now() + 1))
    slow = await take(lab, await lab.submit(policy=timeouts(attempt=1)))
    slower = await take(lab, await lab.submit(policy={**RETRY, **timeouts(attempt=1)}))
    missing = ExecutionId.of(late.partition_index, UUID(int=7))
    expire = lab.engine.executions.expire
    for id in (late, slow.id, slower.id):
        assert await expire(id) == AlreadySatisfied("not_yet_due")
    assert await expire(missing) == AlreadySatisfied("already_terminal")
    lab.clock.advance(1)
    assert await expire(late) == Expired(late)
    assert await expire(slow.id) == Expired(slow.id)
    until = Millis(lab.clock.now() + DELAY)
    assert await expire(slower.id) == RetryScheduled(slower.id, until, 1)
    assert await expire(late) == AlreadySatisfied("already_terminal")
    assert await completions(lab, late) == await completions(lab, slow.id) == [Outcome.EXPIRED]


@pytest.mark.rules
@pytest.mark.parametrize("name", sorted(set(LIVING) - {"depending", "waiting_children"}))
async def test_everything_that_lives_finds_a_way_to_a_worker(lab: Lab, name: str) -> None:
    """INV-19: nothing is ever stuck"""
    id = await LIVING[name](lab)
    match name:
        case "blocked" | "rate_limited":
            await lab.engine.executions.unblock(id)
        case "suspended":
            await lab.engine.executions.resume(id)
        case _:
            pass
    await lab.pass_time(TTL)
    claim = await lab.claim_one(W2)
    assert claim.id == id
    await lab.complete(claim)
    assert await lab.state(id) is PublicState.COMPLETED


async def test_moments_are_those_of_the_clock_of_the_store(lab: Lab) -> None:
    """INV-20"""
    created_at = lab.clock.now()
    id = await lab.submit()
    started_at = lab.clock.advance(11)
    claim = await lab.claim_one()
    ended_at = lab.clock.advance(13)
    await lab.complete(claim)
    seen = await lab.engine.views.describe(id)
    assert seen is not None
    assert (seen.created_at, seen.started_at, seen.ended_at) == (created_at, started_at, ended_at)
    assert [event.at for event in await lab.events(id)] == [started_at, ended_at]
    assert lab.engine.now() == ended_at
