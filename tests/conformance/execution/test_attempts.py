"""What an execution leaves behind: its attempts, its epochs, its events, its exact states."""

from typing import Any

import pytest

from flowfabric.core.base.errors import NotFound
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import Family, StoredEvent
from flowfabric.core.execution.model import Attempt, AttemptOutcome, Failure, Start
from flowfabric.core.execution.outcome import CloseReason
from flowfabric.engine.execution.claims import Claim
from tests.kit import situations
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.leases import UNKNOWN, describe
from tests.kit.waits import signal, suspend

RETRYING: dict[str, Any] = {
    "retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 10}}
}


async def attempts_of(lab: Lab, id: str) -> list[Attempt]:
    return await lab.engine.views.attempts(id)


# -- the worked trace


async def seen(lab: Lab, id: str) -> tuple[str, int | None, int]:
    """The vector in the order of the specification, the attempt in hand, the epoch."""
    description = await describe(lab, id)
    vector = description.vector
    line = " / ".join(
        [
            vector.phase,
            vector.ownership,
            vector.eligibility,
            vector.blocking,
            vector.outcome,
            vector.attempt,
            description.state,
        ]
    )
    return line, description.attempt, description.epoch


RUNNING = "active / leased / not_applicable / none / none / running_attempt / active"


async def test_the_worked_trace_has_exactly_these_states(lab: Lab) -> None:
    """§3.68 without the suspension: INV-2, INV-6, INV-7, INV-8, INV-9"""
    id = await lab.submit(policy=RETRYING)
    assert await seen(lab, id) == (
        "runnable / unowned / eligible_now / waiting_for_worker / none / pending_first_attempt"
        " / waiting",
        None,
        0,
    )
    claim = await lab.claim_one()
    assert await seen(lab, id) == (RUNNING, 0, 1)
    await lab.fail(claim)
    assert await seen(lab, id) == (
        "runnable / unowned / not_eligible_until_time / waiting_for_retry_backoff / none"
        " / pending_retry_attempt / delayed",
        None,
        1,
    )
    await lab.pass_time(10)
    assert await seen(lab, id) == (
        "runnable / unowned / eligible_now / waiting_for_worker / none / pending_retry_attempt"
        " / waiting",
        None,
        1,
    )
    claim = await lab.claim_one()
    assert await seen(lab, id) == (RUNNING, 1, 2)
    await lab.lose(claim)
    assert await seen(lab, id) == (
        "active / lease_expired_reclaimable / not_applicable / waiting_for_worker / none"
        " / attempt_interrupted / active",
        1,
        2,
    )
    await lab.engine.grants.issue_reclaim(id, W2.id)
    reclaimed = await lab.engine.grants.reclaim(id, W2, ttl=TTL)
    assert isinstance(reclaimed, Claim)
    assert await seen(lab, id) == (RUNNING, 2, 3)
    await lab.complete(reclaimed)
    assert await seen(lab, id) == (
        "terminal / unowned / not_applicable / none / success / attempt_terminal / completed",
        2,
        3,
    )
    await lab.engine.executions.replay(id)
    assert await seen(lab, id) == (
        "runnable / unowned / eligible_now / waiting_for_worker / none / pending_replay_attempt"
        " / waiting",
        None,
        3,
    )
    await lab.claim_one()
    assert await seen(lab, id) == (RUNNING, 3, 4)
    await lab.engine.claims.revoke(id, reason="enough")
    assert await seen(lab, id) == (
        "active / lease_revoked / not_applicable / waiting_for_worker / none"
        " / attempt_interrupted / active",
        3,
        4,
    )
    await lab.engine.executions.cancel(id, reason="enough")
    assert await seen(lab, id) == (
        "terminal / unowned / not_applicable / none / cancelled / attempt_terminal / cancelled",
        3,
        4,
    )
    await assert_trace(lab, id)


def told(event: StoredEvent) -> tuple[str | None, str | None, str | None, int]:
    completion = None if event.completion is None else event.completion.name.lower()
    return event.lease, completion, event.operator, event.epoch


async def assert_trace(lab: Lab, id: str) -> None:
    """The events along the trace and the attempts it leaves."""
    assert [told(event) for event in await lab.events(id)] == [
        ("acquired", None, None, 1),
        ("released", None, None, 1),
        ("acquired", None, None, 2),
        ("expired", None, None, 2),
        ("reclaimed", None, None, 3),
        ("released", "success", None, 3),
        (None, None, "replayed", 3),
        ("acquired", None, None, 4),
        ("revoked", None, None, 4),
        (None, "cancelled", None, 4),
    ]
    attempts = await attempts_of(lab, id)
    assert [(attempt.index, attempt.type, attempt.outcome) for attempt in attempts] == [
        (0, Start.INITIAL, AttemptOutcome.FAILURE),
        (1, Start.RETRY, AttemptOutcome.RECLAIMED),
        (2, Start.RECLAIM, AttemptOutcome.SUCCESS),
        (3, Start.REPLAY, AttemptOutcome.CANCELLED),
    ]
    description = await describe(lab, id)
    assert (description.retries, description.reclaims, description.replays) == (0, 1, 1)


async def test_each_family_of_events_is_told_apart(lab: Lab) -> None:
    """INV-5: and in the order of time"""
    claim = await lab.running()
    await lab.complete(claim)
    await lab.engine.executions.replay(claim.id)
    claim = await lab.claim_one()
    await lab.fail(claim)
    lease = await lab.events(claim.id, family=Family.LEASE)
    completion = await lab.events(claim.id, family=Family.COMPLETION)
    operator = await lab.events(claim.id, family=Family.OPERATOR)
    assert [event.lease for event in lease] == ["acquired", "released", "acquired", "released"]
    assert [event.attempt for event in completion] == [0, 1]
    assert [event.operator for event in operator] == ["replayed"]
    every = [event.seq for event in await lab.events(claim.id)]
    assert every == sorted(every)


# -- attempts


async def test_nothing_was_tried_before_the_first_claim(lab: Lab) -> None:
    id = await lab.submit()
    assert await attempts_of(lab, id) == []
    assert await lab.engine.views.attempts_made(id) == 0
    assert await lab.engine.views.current_attempt(id) == 0
    for view in (
        lab.engine.views.attempts,
        lab.engine.views.attempts_made,
        lab.engine.views.current_attempt,
    ):
        with pytest.raises(NotFound):
            await view(UNKNOWN)


async def test_an_attempt_tells_who_when_and_how(lab: Lab) -> None:
    claim = await lab.running()
    started = Attempt(
        index=0,
        type=Start.INITIAL,
        outcome=AttemptOutcome.STARTED,
        worker=W1,
        lease_id=claim.lease.id,
        id=claim.attempt_id,
        epoch=1,
        started_at=lab.clock.now(),
    )
    assert await attempts_of(lab, claim.id) == [started]


async def test_the_attempts_after_a_retry(lab: Lab) -> None:
    """INV-9"""
    first = await lab.running(policy=RETRYING)
    started_at = lab.clock.now()
    failed_at = lab.clock.advance(100)
    await lab.fail(first, message="boom")
    await lab.pass_time(10)
    second = await lab.claim_one(W2)
    retried_at = lab.clock.now()
    ended_at = lab.clock.advance(100)
    await lab.complete(second, b"done")
    assert await attempts_of(lab, first.id) == [
        Attempt(
            index=0,
            type=Start.INITIAL,
            outcome=AttemptOutcome.FAILURE,
            worker=W1,
            lease_id=first.lease.id,
            id=first.attempt_id,
            epoch=1,
            started_at=started_at,
            ended_at=failed_at,
            failure=Failure("boom"),
        ),
        Attempt(
            index=1,
            type=Start.RETRY,
            outcome=AttemptOutcome.SUCCESS,
            worker=W2,
            lease_id=second.lease.id,
            id=second.attempt_id,
            epoch=2,
            started_at=retried_at,
            ended_at=ended_at,
            previous=0,
            result=b"done",
        ),
    ]


async def test_the_attempts_after_a_reclaim(lab: Lab) -> None:
    """INV-9: the lost one ends when it is replaced"""
    first = await lab.running()
    started_at = lab.clock.now()
    await lab.lose(first)
    [lost] = await attempts_of(lab, first.id)
    assert (lost.outcome, lost.ended_at) == (AttemptOutcome.STARTED, None)
    lost_at, reclaimed_at = lab.clock.now(), lab.clock.advance(700)
    second = await lab.claim_one(W2)
    replaced = Attempt(
        index=0,
        type=Start.INITIAL,
        outcome=AttemptOutcome.RECLAIMED,
        worker=W1,
        lease_id=first.lease.id,
        id=first.attempt_id,
        epoch=1,
        started_at=started_at,
        ended_at=reclaimed_at,
        closed=CloseReason.LEASE_EXPIRED,
        closed_at=lost_at,
    )
    assert (await attempts_of(lab, first.id))[0] == replaced
    ended_at = lab.clock.advance(100)
    await lab.fail(second, message="boom")
    assert await attempts_of(lab, first.id) == [
        replaced,
        Attempt(
            index=1,
            type=Start.RECLAIM,
            outcome=AttemptOutcome.FAILURE,
            worker=W2,
            lease_id=second.lease.id,
            id=second.attempt_id,
            epoch=2,
            started_at=reclaimed_at,
            ended_at=ended_at,
            previous=0,
            failure=Failure("boom"),
        ),
    ]


async def test_the_attempts_after_a_replay(lab: Lab) -> None:
    """INV-9, D-9: the first run and its result stay in the history"""
    first = await lab.running()
    await lab.complete(first, b"first")
    before = await attempts_of(lab, first.id)
    await lab.engine.executions.replay(first.id)
    assert await attempts_of(lab, first.id) == before
    assert await lab.engine.views.result(first.id) is None
    lab.clock.advance(100)
    second = await lab.claim_one(W2)
    await lab.complete(second, b"second")
    attempts = await attempts_of(lab, first.id)
    assert attempts[:1] == before
    assert (before[0].outcome, before[0].result) == (AttemptOutcome.SUCCESS, b"first")
    assert (attempts[1].type, attempts[1].previous, attempts[1].result) == (
        Start.REPLAY,
        0,
        b"second",
    )
    assert (attempts[1].epoch, attempts[1].lease_id) == (2, second.lease.id)
    assert await lab.engine.views.result(first.id) == b"second"


async def test_a_replayed_failure_stays_in_the_history_only(lab: Lab) -> None:
    claim = await lab.running()
    await lab.fail(claim, message="boom")
    await lab.engine.executions.replay(claim.id)
    assert (await describe(lab, claim.id)).failure is None
    claim = await lab.claim_one()
    await lab.complete(claim)
    assert (await describe(lab, claim.id)).failure is None
    assert [attempt.failure for attempt in await attempts_of(lab, claim.id)] == [
        Failure("boom"),
        None,
    ]


async def test_a_replay_of_what_never_ran_is_its_first_attempt(lab: Lab) -> None:
    """INV-9, E-X14"""
    id = await lab.submit()
    await lab.engine.executions.cancel(id, reason="")
    await lab.engine.executions.replay(id)
    claim = await lab.claim_one()
    assert (claim.attempt, claim.epoch) == (0, 1)
    [attempt] = await attempts_of(lab, id)
    assert (attempt.index, attempt.type, attempt.previous) == (0, Start.REPLAY, None)


async def test_a_cancel_before_the_retry_leaves_only_what_was_tried(lab: Lab) -> None:
    """INV-9, S17: the pending attempt never came"""
    claim = await lab.running(policy=RETRYING)
    await lab.fail(claim)
    before = await attempts_of(lab, claim.id)
    await lab.engine.executions.cancel(claim.id, reason="")
    assert await attempts_of(lab, claim.id) == before
    assert (await lab.vector(claim.id)).attempt == "pending_retry_attempt"
    assert await lab.engine.views.attempts_made(claim.id) == 1


class Past:
    """What was seen of attempts that are over; they may never be seen otherwise again."""

    def __init__(self, lab: Lab, id: str) -> None:
        self.lab, self.id = lab, id
        self.attempts: dict[int, Attempt] = {}

    async def look(self) -> None:
        attempts = await attempts_of(self.lab, self.id)
        assert [attempt.index for attempt in attempts] == list(range(len(attempts)))
        assert len(attempts) == await self.lab.engine.views.attempts_made(self.id)
        assert sum(not attempt.outcome.final for attempt in attempts) <= 1
        for attempt in attempts:
            assert attempt.previous == (attempt.index - 1 if attempt.index else None)
            assert self.attempts.get(attempt.index, attempt) == attempt
            if attempt.outcome.final:
                self.attempts[attempt.index] = attempt


async def test_what_is_history_never_changes(lab: Lab) -> None:
    """INV-9: an attempt that is over is read the same in every later state"""
    policy: dict[str, Any] = {
        "retry_policy": {"max_retries": 9, "backoff": {"type": "fixed", "delay_ms": 0}},
        "max_reclaim_count": 9,
    }
    claim = await lab.running(policy=policy)
    past = Past(lab, claim.id)

    async def fail_for_good(claim: Claim) -> None:
        await lab.fail(claim, "permanent")
        await past.look()
        await lab.engine.executions.replay(claim.id)

    async def complete(claim: Claim) -> None:
        await lab.complete(claim, b"done")
        await past.look()
        await lab.engine.executions.replay(claim.id)

    pause = lab.engine.attempts.hand_back
    for turn in (
        *(lab.lose, lab.fail, lab.lose, lab.lose, pause, lab.lose, pause, lab.fail, lab.lose),
        *(complete, lab.lose, complete, fail_for_good, lab.lose, fail_for_good, pause, complete),
    ):
        await past.look()
        lab.clock.advance(7)
        await turn(claim)
        await past.look()
        lab.clock.advance(7)
        claim = await lab.claim_one()
    await lab.engine.executions.cancel(claim.id, reason="")
    await past.look()
    assert len(past.attempts) == claim.attempt + 1 == 15


# -- moments


async def test_the_beginning_is_told_once_and_the_end_until_a_replay(lab: Lab) -> None:
    """INV-28"""
    id = await lab.submit(policy=RETRYING)
    assert (await describe(lab, id)).started_at is None
    started_at = lab.clock.advance(100)
    claim = await lab.claim_one()

    async def moments() -> tuple[Millis | None, Millis | None]:
        description = await describe(lab, id)
        return description.started_at, description.ended_at

    assert await moments() == (started_at, None)
    await lab.engine.attempts.hand_back(claim)
    assert await moments() == (started_at, None)
    lab.clock.advance(100)
    await lab.fail(await lab.claim_one())
    assert await moments() == (started_at, None)
    await lab.pass_time(10)
    claim = await lab.claim_one()
    assert await moments() == (started_at, None)
    await lab.lose(claim)
    assert await moments() == (started_at, None)
    claim = await lab.claim_one()
    ended_at = lab.clock.advance(100)
    await lab.complete(claim)
    assert await moments() == (started_at, ended_at)
    lab.clock.advance(100)
    await lab.engine.executions.replay(id)
    assert await moments() == (started_at, None)
    claim = await lab.claim_one()
    assert await moments() == (started_at, None)
    ended_at = lab.clock.advance(100)
    await lab.engine.executions.cancel(id, reason="")
    assert await moments() == (started_at, ended_at)


async def test_what_never_ran_has_no_beginning(lab: Lab) -> None:
    """INV-28"""
    id = await lab.submit()
    await lab.engine.executions.cancel(id, reason="")
    description = await describe(lab, id)
    assert (description.started_at, description.ended_at) == (None, lab.clock.now())


# -- rules for every state


@pytest.mark.rules
@pytest.mark.parametrize("situation", situations.ALL)
async def test_a_lease_a_running_attempt_and_an_active_phase_are_one(
    lab: Lab, situation: str
) -> None:
    """INV-8"""
    id = await situations.ALL[situation](lab)
    description = await describe(lab, id)
    leased = description.vector.ownership == "leased"
    assert leased == (description.lease is not None)
    assert leased == (description.vector.attempt == "running_attempt")
    assert leased == bool(await lab.engine.claims.held_by(W1.instance))


@pytest.mark.rules
@pytest.mark.parametrize("situation", situations.ALL)
async def test_attempts_are_counted_without_gaps_in_every_state(lab: Lab, situation: str) -> None:
    """INV-9"""
    id = await situations.ALL[situation](lab)
    attempts = await attempts_of(lab, id)
    assert [attempt.index for attempt in attempts] == list(range(len(attempts)))
    assert len(attempts) == await lab.engine.views.attempts_made(id)
    assert sum(not attempt.outcome.final for attempt in attempts) <= 1


@pytest.mark.parametrize("situation", situations.ALL)
async def test_an_ending_is_told_exactly_once(lab: Lab, situation: str) -> None:
    """INV-5: the outcome that is told is the one that stands"""
    id = await situations.ALL[situation](lab)
    told = [event.completion for event in await lab.events(id, family=Family.COMPLETION)]
    description = await describe(lab, id)
    if description.vector.phase == "terminal":
        assert [outcome.name.lower() for outcome in told if outcome is not None] == [
            description.vector.outcome
        ]
    else:
        assert len(told) == description.replays


async def test_a_caller_s_clock_decides_nothing(lab: Lab, second_lab: Lab) -> None:
    """INV-20: every moment is the store's"""
    claim = await lab.running()
    lab.clock.advance(5)
    await second_lab.engine.attempts.complete(lab.engine.attempts.seal(claim))
    description = await describe(lab, claim.id)
    assert description.created_at == description.started_at == claim.lease.started_at
    assert description.ended_at == lab.clock.now()
    assert [event.at for event in await lab.events(claim.id)] == [
        claim.lease.started_at,
        lab.clock.now(),
    ]


# -- when an attempt waited


async def test_an_attempt_says_when_it_was_suspended_and_resumed(lab: Lab) -> None:
    """§2.6, §3.9: of the last wait, while it waits, runs, is lost and after its end"""
    claim = await lab.running()
    id = claim.id

    async def moments(index: int = 0) -> tuple[int | None, int | None]:
        found = (await attempts_of(lab, id))[index]
        begin = claim.lease.started_at
        return tuple(  # type: ignore[return-value]
            None if at is None else at - begin for at in (found.suspended_at, found.resumed_at)
        )

    assert await moments() == (None, None)
    lab.clock.advance(1)
    answer = await suspend(lab, claim)
    lab.clock.advance(1)
    assert await moments() == (1, None)
    await signal(lab, id, answer.primary)
    lab.clock.advance(1)
    again = await lab.claim_one()
    assert await moments() == (1, 3)
    lab.clock.advance(1)
    await lab.engine.attempts.delay(again, Millis(lab.clock.now() + 1))
    assert await moments() == (4, None)
    await lab.pass_time(1)
    again = await lab.claim_one()
    assert await moments() == (4, 5)
    await lab.lose(again)
    assert await moments() == (4, 5)
    rescuer = await lab.claim_one(W2)
    assert [await moments(0), await moments(1)] == [(4, 5), (None, None)]
    await lab.complete(rescuer)
    assert [await moments(0), await moments(1)] == [(4, 5), (None, None)]
