"""Time: every timer fires by itself and a stale one changes nothing; retention forgets.

E-T190, E-T191, E-X07, E-X10, §3.24 to §3.30, §3.62, §3.66, D-18, INV-18, INV-19, INV-20, INV-27.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.attempt import RetryScheduled
from flowfabric.core.control import Expired
from flowfabric.core.errors import Corruption, LeaseExpired, LeaseLost, NotFound, Unavailable
from flowfabric.core.event import EventKind, Family
from flowfabric.core.execution import AttemptOutcome, Failure, Outcome, Snapshot, Start
from flowfabric.core.ids import ExecutionId
from flowfabric.core.lease import AlreadySatisfied, MarkedExpired
from flowfabric.core.step import Step
from flowfabric.core.submission import Submission, Submitted
from flowfabric.core.time import Millis
from flowfabric.core.vector import PublicState
from flowfabric.engine import sweep as sweep_module
from flowfabric.engine.claims import Claim
from flowfabric.engine.engine import Engine
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Query
from flowfabric.store.open import open_store
from tests import situations
from tests.lab import TTL, W1, W2, Lab
from tests.situations import DELAY, ENDED, LIVING, RETRY, load, take

DAY = 86_400_000
WEEK = Millis(7 * DAY)


def timeouts(*, attempt: int | None = None, deadline: int | None = None) -> dict[str, Any]:
    limits = {"attempt_timeout_ms": attempt, "execution_deadline_ms": deadline}
    return {"timeout_policy": {name: span for name, span in limits.items() if span is not None}}


async def completions(lab: Lab, id: str) -> list[Outcome | None]:
    return [event.completion for event in await lab.events(id, family=Family.COMPLETION)]


async def due_in(lab: Lab, id_of: UUID, span: int) -> None:
    """Exactly one timer stands, and it fires in `span` and not before."""
    store, now = lab.engine.store, lab.clock.now()
    moment = Millis(now + span)
    assert await store.next_due(now) == moment
    assert await store.due(Millis(moment - 1), 10) == []
    assert await store.due(moment, 10) == [id_of]


# -- every timer


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
    """E-X10, §3.25, FLAW-8: promoted on time, not a millisecond before, and told to nobody"""
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
async def test_a_delay_that_was_cancelled_wakes_nobody(lab: Lab, name: str) -> None:
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
    """E-X07, FLAW-5"""
    first = await lab.running()
    await lab.lose(first)
    second = await lab.claim_one(W2)
    before = await load(lab, second.id)
    assert await lab.engine.sweep.once() == 0
    await lab.pass_time(TTL - 1)
    assert await load(lab, second.id) == before
    await lab.complete(second)


async def test_an_attempt_that_runs_too_long_expires_the_execution(lab: Lab) -> None:
    """E-T190, D-18: no retry left"""
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
    """D-18: a failure of category timeout"""
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


@pytest.mark.parametrize("name", LIVING)
async def test_a_deadline_ends_whatever_lives(lab: Lab, name: str) -> None:
    """E-T190, E-T191, E-X10, FLAW-9: in every state, once, and with the attempt in hand"""
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


# -- expired leases are found


async def test_lost_leases_are_listed_by_expiry_and_id_whatever_claim_they_come_from(
    lab: Lab,
) -> None:
    """E-X20, §3.30: claimed, granted, taken by an operator, resumed, reclaimed, revoked"""
    grants, claims = lab.engine.grants, lab.engine.claims
    plain = await lab.running()
    granted = await take(lab, await lab.submit())
    taken = await grants.take(await lab.submit(), ttl=TTL)
    resumed_id = await situations.resumed(lab)
    await grants.issue(resumed_id, "w1")
    resumed = await grants.claim_resumed(resumed_id, W1, ttl=TTL)
    lost_id = await situations.lost(lab)
    await grants.issue_reclaim(lost_id, "w2")
    reclaimed = await grants.reclaim(lost_id, W2, ttl=TTL)
    assert isinstance(reclaimed, Claim)
    revoked = await take(lab, await lab.submit())
    await claims.revoke(revoked.id, reason="r")
    lab.clock.advance(TTL)
    expected = sorted(
        [plain, granted, taken, resumed, reclaimed, revoked],
        key=lambda claim: (claim.expires_at, claim.uuid),
    )
    for _ in range(2):
        page = await claims.expired()
        assert [entry.id for entry in page] == [claim.id for claim in expected]
        assert [entry.lease_id for entry in page] == [claim.lease.id for claim in expected]
        assert [entry.epoch for entry in page] == [claim.epoch for claim in expected]
        assert [entry.attempt for entry in page] == [claim.attempt for claim in expected]
        assert [entry.expires_at for entry in page] == [claim.expires_at for claim in expected]
        instances = [claim.lease.worker.instance for claim in expected]
        assert [entry.instance for entry in page] == instances
        await lab.engine.sweep.once()


async def test_the_list_of_lost_leases_has_pages(lab: Lab) -> None:
    """E-X20: the cursor is exclusive; nothing twice, nothing missed"""
    ids = []
    for number in range(7):
        ids.append((await take(lab, await lab.submit())).id)
        lab.clock.advance(number % 3 == 2)
    lab.clock.advance(TTL)
    claims = lab.engine.claims
    whole = await claims.expired()
    assert sorted(entry.id for entry in whole) == sorted(ids)
    paged, cursor = [], None
    while page := await claims.expired(after=cursor, limit=2):
        paged += page
        cursor = (page[-1].expires_at, page[-1].id)
    assert paged == whole
    assert await claims.expired(limit=0) == []
    assert len(await claims.expired(limit=100_000)) == 7


async def test_the_list_of_lost_leases_knows_what_was_lost_when_and_where(lab: Lab) -> None:
    """§3.30: as of a moment, of a namespace, and nothing that is alive, ended or waiting"""
    mine = await take(lab, await lab.submit(namespace="mine"))
    await situations.waiting(lab)
    await situations.completed(lab)
    claims = lab.engine.claims
    assert await claims.expired() == []
    assert len(await claims.expired(as_of=mine.expires_at)) == 1
    assert await claims.expired(as_of=Millis(mine.expires_at - 1)) == []
    lab.clock.advance(TTL)
    assert [entry.id for entry in await claims.expired(namespace="mine")] == [mine.id]
    assert await claims.expired(namespace="other") == []
    await lab.engine.sweep.once()
    await lab.claim_one(W2)
    assert await claims.expired() == []


# -- the sweep


async def test_one_sweep_does_everything_that_is_due(lab: Lab) -> None:
    """§3.66"""
    members: dict[str, Any] = {"deadline_at": Millis(lab.clock.now() + 1000)}
    late = await lab.submit(**members)
    delayed = await situations.delayed(lab)
    backing = await situations.backing_off(lab)
    leased = await situations.running(lab)
    slow = await situations.running(lab, policy=timeouts(attempt=1000))
    untouched = await situations.suspended(lab)
    lab.clock.advance(TTL)
    assert await lab.engine.sweep.once() == 5
    states = [await lab.state(id) for id in (late, delayed, backing, leased, slow, untouched)]
    assert states == ["expired", "waiting", "waiting", "active", "expired", "suspended"]
    assert await lab.engine.sweep.once() == 0


async def test_a_sweep_is_not_limited_to_a_page(lab: Lab) -> None:
    until = Millis(lab.clock.now() + 1)
    submissions = [Submission(kind="job", delay_until=until) for _ in range(1200)]
    await lab.engine.executions.submit_many(submissions)
    lab.clock.advance(1)
    assert await lab.engine.sweep.once() == 1200
    counts = await lab.engine.views.counts()
    assert counts.by_state["waiting"] == 1200


async def test_two_engines_that_sweep_at_once_do_each_thing_once(lab: Lab, second_lab: Lab) -> None:
    """§3.66: safe to run on many nodes"""
    leased = [await situations.running(lab, policy=RETRY) for _ in range(20)]
    late = [await lab.submit(deadline_at=Millis(lab.clock.now() + 5)) for _ in range(20)]
    slow = [await situations.running(lab, policy=timeouts(attempt=9)) for _ in range(20)]
    lab.clock.advance(TTL)
    await asyncio.gather(
        *(each.engine.sweep.once() for each in (lab, second_lab) for _ in range(3))
    )
    for id in leased:
        assert [event.lease for event in await lab.events(id)] == ["acquired", "expired"]
    for id in late + slow:
        assert await completions(lab, id) == [Outcome.EXPIRED]
    for id in leased:
        seen = await lab.engine.views.describe(id)
        assert seen is not None
        assert (seen.reclaims, seen.attempts_made) == (0, 1)


async def test_a_row_that_cannot_be_swept_stops_no_other(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """§3.66: never stops at one bad row"""
    bad, good = await situations.delayed(lab), await situations.delayed(lab)
    lab.clock.advance(DELAY)
    store = lab.engine.store
    honest = store.load

    async def broken(uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        if bad.uuid in uuids:
            raise Corruption("no document")
        return await honest(uuids)

    monkeypatch.setattr(store, "load", broken)
    with caplog.at_level(logging.ERROR, "flowfabric.sweep"):
        assert await lab.engine.sweep.once() == 2
    assert "could not be swept" in caplog.text
    monkeypatch.undo()
    assert await lab.state(good) is PublicState.WAITING
    assert await lab.state(bad) is PublicState.DELAYED


async def test_a_stale_timer_is_looked_at_once_and_changes_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-18: the rule decides on what is stored now"""
    ids = [await situations.ALL[name](lab) for name in ("running", "waiting", "completed")]
    befores = [await load(lab, id) for id in ids]

    async def stale(now: Millis, limit: int) -> list[UUID]:
        return [*(id.uuid for id in ids), UUID(int=9)]

    monkeypatch.setattr(lab.engine.store, "due", stale)
    assert await lab.engine.sweep.once() == 4
    assert [await load(lab, id) for id in ids] == befores


@pytest.fixture
async def live_engine(store_url: str) -> AsyncIterator[Engine]:
    """An engine on the real clock."""
    engine = await Engine.open(await open_store(store_url))
    yield engine
    await engine.close()


async def test_the_sweep_runs_in_the_background(live_engine: Engine) -> None:
    """INV-18 on the real clock: a delay, a lease and a deadline come true by themselves"""
    live_engine.sweep.start()
    live_engine.sweep.start()
    soon = Millis(live_engine.now() + 50)
    late = await live_engine.executions.submit(Submission(kind="late", deadline_at=soon))
    assert isinstance(late, Submitted)
    ending = await live_engine.views.wait(late.id, timeout=20)
    assert ending.outcome is Outcome.EXPIRED
    soon = Millis(live_engine.now() + 50)
    await live_engine.executions.submit(Submission(kind="delayed", delay_until=soon))
    (first,) = await live_engine.claims.claim(W1, ttl=Millis(50), max_wait=20)
    (second,) = await live_engine.claims.claim(W2, max_wait=20)
    assert (second.id, second.attempt, second.lease.start) == (first.id, 1, Start.RECLAIM)
    with pytest.raises(LeaseLost):
        await live_engine.attempts.complete(first)
    await live_engine.attempts.complete(second)


class Turns:
    """Counts how often the duty was asked for, and lets a test wait for the next time."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[bool] = []
        self._more = asyncio.Event()
        self._take = lab.engine.store.take_duty
        monkeypatch.setattr(lab.engine.store, "take_duty", self.take_duty)
        monkeypatch.setattr(sweep_module, "MAX_PAUSE", 0.01)

    async def take_duty(self, duty: str, holder: str, now: Millis, until: Millis) -> bool:
        self.answers.append(await self._take(duty, holder, now, until))
        self._more.set()
        return self.answers[-1]

    async def wait_for(self, answer: bool, times: int = 1) -> None:
        async with asyncio.timeout(20):
            while self.answers.count(answer) < times:
                self._more.clear()
                await self._more.wait()


async def test_the_duty_moves_when_its_holder_is_gone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design §5: anyone takes over when it lapses, nobody before"""
    turns = Turns(lab, monkeypatch)
    now = lab.clock.now()
    crashed_until = Millis(now + sweep_module.DUTY_SPAN)
    assert await lab.engine.store.take_duty("sweep", "crashed", now, crashed_until)
    id = await lab.submit(deadline_at=Millis(now + 1))
    lab.clock.advance(1)
    lab.engine.sweep.start()
    await turns.wait_for(False, times=3)
    assert await lab.state(id) is PublicState.WAITING
    lab.clock.advance(sweep_module.DUTY_SPAN)
    assert (await lab.engine.views.wait(id, timeout=20)).outcome is Outcome.EXPIRED


async def test_who_stops_gives_the_duty_back(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(lab, monkeypatch)
    lab.engine.sweep.start()
    await turns.wait_for(True)
    now = lab.clock.now()
    other = second_lab.engine.store
    assert not await other.take_duty("sweep", "next", now, Millis(now + 1))
    await lab.engine.sweep.stop()
    await lab.engine.sweep.stop()
    assert await other.take_duty("sweep", "next", now, Millis(now + 1))
    await other.drop_duty("sweep", "somebody else")
    assert not await other.take_duty("sweep", "third", now, Millis(now + 1))
    await other.drop_duty("sweep", "next")
    assert await other.take_duty("sweep", "third", now, Millis(now + 1))


@pytest.mark.parametrize("trouble", [Unavailable("gone"), RuntimeError("bug")])
async def test_a_sweep_in_trouble_goes_on_when_it_is_over(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: Exception,
) -> None:
    turns = Turns(lab, monkeypatch)
    store = lab.engine.store
    honest, troubles = store.due, [trouble, trouble]

    async def troubled(now: Millis, limit: int) -> list[UUID]:
        if troubles:
            raise troubles.pop()
        return await honest(now, limit)

    monkeypatch.setattr(store, "due", troubled)
    id = await lab.submit(deadline_at=lab.clock.now())
    with caplog.at_level(logging.WARNING, "flowfabric.sweep"):
        lab.engine.sweep.start()
        await turns.wait_for(True, times=3)
        assert (await lab.engine.views.wait(id, timeout=20)).outcome is Outcome.EXPIRED
    assert "sweep" in caplog.text


async def test_the_sweep_sleeps_no_longer_than_the_next_timer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design §5: until the next due moment, and at most a second"""
    pauses: list[float] = []
    more = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        more.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(lab.engine.sweep, "_pause", pause)
    for delay, expected in ((None, 1.0), (250, 0.25), (60_000, 0.25)):
        if delay is not None:
            await lab.submit(delay_until=Millis(lab.clock.now() + delay))
        lab.engine.sweep.start()
        async with asyncio.timeout(20):
            await more.wait()
        more.clear()
        await lab.engine.sweep.stop()
        assert pauses[-1] == pytest.approx(expected)


async def test_retention_is_swept_in_the_background_as_well(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(lab, monkeypatch)
    lab.engine.sweep.start()
    await turns.wait_for(True)
    id = await situations.completed(lab)
    deleted = asyncio.Event()
    trim = lab.engine.store.trim

    async def watched(ended_before: Millis, now: Millis, limit: int) -> int:
        count = await trim(ended_before, now, limit)
        if count:
            deleted.set()
        return count

    monkeypatch.setattr(lab.engine.store, "trim", watched)
    lab.clock.advance(WEEK + 60_000)
    async with asyncio.timeout(20):
        await deleted.wait()
    assert await lab.engine.views.state(id) is None


# -- retention


@pytest.mark.parametrize("name", ENDED)
async def test_what_ended_long_ago_is_forgotten(lab: Lab, name: str) -> None:
    """§3.62: after seven days, to the millisecond"""
    id = await ENDED[name](lab)
    lab.clock.advance(WEEK - 1)
    assert await lab.engine.sweep.trim() == 0
    assert await lab.engine.views.state(id) is not None
    lab.clock.advance(1)
    assert await lab.engine.sweep.trim() == 1
    assert await lab.engine.views.state(id) is None
    assert await lab.engine.sweep.trim() == 0


async def test_what_lives_is_never_forgotten(lab: Lab, subtests: pytest.Subtests) -> None:
    """INV-27"""
    for name, situation in LIVING.items():
        with subtests.test(name):
            id = await situation(lab)
            before = await load(lab, id)
            lab.clock.advance(100 * WEEK)
            assert await lab.engine.sweep.trim() == 0
            assert await load(lab, id) == before


async def test_nothing_of_the_forgotten_remains(lab: Lab) -> None:
    """INV-27: attempts, steps, tags, key, events, deadline; its neighbours lose nothing"""
    members: dict[str, Any] = {
        "policy": {**situations.RETRY_AT_ONCE, **timeouts(deadline=10 * WEEK)},
        "tags": {"app.tenant": "a"},
    }
    kept = await situations.waiting(lab, key="other", **members)
    id = await lab.submit(key="once", payload=b"payload", **members)
    first = await take(lab, id)
    await lab.engine.attempts.progress(first, 50, "half")
    await lab.engine.attempts.record_step(first, Step(0, 0, "charge", 0, b"1"))
    await lab.fail(first)
    await lab.complete(await take(lab, id), b"result")
    lab.clock.advance(WEEK)
    assert await lab.engine.sweep.trim() == 1
    views, executions = lab.engine.views, lab.engine.executions
    for read in (views.describe(id), views.info(id), views.result(id), views.namespace(id)):
        assert await read is None
    for call in (
        views.context(id),
        views.attempts(id),
        views.attempts_made(id),
        executions.replay(id),
        executions.set_tag(id, "app.tenant", "b"),
    ):
        with pytest.raises(NotFound):
            await call
    assert await executions.get_tag(id, "app.tenant") is None
    assert not await lab.events(id)
    assert await lab.engine.attempts.steps(id.uuid, 0) == []
    assert [info.id for info in (await views.list(Query(tag=("app.tenant", "a")))).items] == [kept]
    assert (await views.counts()).by_state.get("completed", 0) == 0
    again = await executions.submit(Submission(kind="job", id=id, key="once", **members))
    assert again == Submitted(id, PublicState.WAITING)
    assert await views.attempts(id) == []
    assert (await take(lab, id)).epoch == 1
    await lab.pass_time(10 * WEEK)
    assert await views.state(kept) is PublicState.EXPIRED


@pytest.mark.parametrize(
    ("retention", "kept_for"), [(1000, 1000), (0, 0), (30 * DAY, 30 * DAY), (None, WEEK)]
)
async def test_an_execution_may_have_a_retention_of_its_own(
    lab: Lab, retention: int | None, kept_for: int
) -> None:
    """§3.62: shorter or longer than everybody's"""
    stream = {} if retention is None else {"stream_policy": {"retention_ttl_ms": retention}}
    id = await situations.completed(lab, policy=stream)
    if kept_for:
        lab.clock.advance(kept_for - 1)
        assert await lab.engine.sweep.trim() == 0
        lab.clock.advance(1)
    assert await lab.engine.sweep.trim() == 1
    assert await lab.engine.views.state(id) is None


@pytest.mark.parametrize("name", ENDED)
async def test_its_own_retention_counts_from_any_ending(lab: Lab, name: str) -> None:
    id = await ENDED[name](lab, policy={"stream_policy": {"retention_ttl_ms": 500}})
    lab.clock.advance(499)
    assert await lab.engine.sweep.trim() == 0
    lab.clock.advance(1)
    assert await lab.engine.sweep.trim() == 1
    assert await lab.engine.views.state(id) is None


async def test_the_retention_of_a_deployment_can_be_chosen(
    store_url: str, clock: ManualClock
) -> None:
    lab = await Lab.open(await open_store(store_url, clock=clock), clock, retention=Millis(60))
    short = await situations.completed(lab)
    own = await situations.completed(lab, policy={"stream_policy": {"retention_ttl_ms": 90}})
    lab.clock.advance(60)
    assert await lab.engine.sweep.trim() == 1
    assert await lab.engine.views.state(short) is None
    lab.clock.advance(30)
    assert await lab.engine.sweep.trim() == 1
    assert await lab.engine.views.state(own) is None
    await lab.engine.close()


async def test_retention_is_not_limited_to_a_page(lab: Lab) -> None:
    submissions = [Submission(kind="job") for _ in range(1100)]
    await lab.engine.executions.submit_many(submissions)
    claims = [claim for _ in range(3) for claim in await lab.claim(limit=500)]
    await asyncio.gather(*(lab.complete(claim) for claim in claims))
    lab.clock.advance(WEEK)
    assert await lab.engine.sweep.trim() == 1100
    assert (await lab.engine.views.list(Query())).items == ()


async def test_two_engines_that_forget_at_once_forget_each_once(lab: Lab, second_lab: Lab) -> None:
    for _ in range(30):
        await situations.cancelled_unrun(lab)
    lab.clock.advance(WEEK)
    deleted = await asyncio.gather(lab.engine.sweep.trim(), second_lab.engine.sweep.trim())
    assert sum(deleted) == 30


async def test_a_lease_found_expired_by_its_owner_is_not_swept_again(lab: Lab) -> None:
    """G5 and the sweep are one transition, whoever is first"""
    claim = await lab.running()
    lab.clock.advance(TTL)
    with pytest.raises(LeaseExpired):
        await lab.complete(claim)
    assert await lab.engine.sweep.once() == 0
    kinds = [event.kind for event in await lab.events(claim.id)]
    assert kinds == [EventKind.CLAIMED, EventKind.LEASE_EXPIRED]
