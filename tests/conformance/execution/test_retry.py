"""Retries: when a failed attempt is followed by another, after how long, and how often."""

import random
from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid, NotActive, StaleLease
from flowfabric.core.base.time import MAX_SPAN, Millis
from flowfabric.core.execution.attempt import RetryScheduled, TerminalFailed
from flowfabric.core.execution.event import EventKind, Family
from flowfabric.core.execution.handle import HandleKind
from flowfabric.core.execution.model import Failure, Outcome, Start
from flowfabric.core.execution.status import (
    AttemptState,
    Blocking,
    Eligibility,
    Ownership,
    Phase,
    PublicState,
    Vector,
)
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.leases import describe
from tests.kit.owners import FORMS, every_form, everything

BACKING_OFF = Vector(
    Phase.RUNNABLE,
    Ownership.UNOWNED,
    Eligibility.NOT_UNTIL_TIME,
    Blocking.RETRY_BACKOFF,
    "none",
    AttemptState.PENDING_RETRY,
)
RETRY_READY = Vector(
    Phase.RUNNABLE,
    Ownership.UNOWNED,
    Eligibility.ELIGIBLE_NOW,
    Blocking.WORKER,
    "none",
    AttemptState.PENDING_RETRY,
)


def retrying(times: int = 1, delay: int = 10, **members: Any) -> dict[str, Any]:
    backoff = {"type": "fixed", "delay_ms": delay}
    return {"retry_policy": {"max_retries": times, "backoff": backoff, **members}}


async def delays(lab: Lab, policy: dict[str, Any], failures: int) -> list[int]:
    """How long an execution waits after each of its failures."""
    claim = await lab.running(policy=policy)
    waited = []
    for _ in range(failures):
        answer = await lab.fail(claim)
        assert isinstance(answer, RetryScheduled)
        waited.append(answer.delay_until - lab.clock.now())
        await lab.pass_time(waited[-1])
        claim = await lab.claim_one()
    return waited


# -- one retry


@every_form
async def test_a_failure_with_a_retry_left_schedules_it(lab: Lab, form: str) -> None:
    """E-T141, E-T146, INV-5: no completion is told"""
    claim = await lab.running(policy=retrying())
    lab.clock.advance(1000)
    answer = await lab.engine.attempts.fail(FORMS[form](lab, claim), Failure("boom"))
    assert answer == RetryScheduled(claim.id, Millis(lab.clock.now() + 10), 1)
    assert await lab.vector(claim.id) == BACKING_OFF
    assert await lab.state(claim.id) is PublicState.DELAYED
    description = await describe(lab, claim.id)
    assert (description.retries, description.attempts_made, description.epoch) == (1, 1, 1)
    assert (description.lease, description.attempt, description.attempt_id) == (None, None, None)
    assert (description.failure, description.ended_at) == (None, None)
    assert description.blocking_detail == f"attempt 0 failed, retry after {lab.clock.now() + 10}"
    [_, released] = await lab.events(claim.id)
    assert (released.kind, released.lease) == (EventKind.RETRY_SCHEDULED, "released")
    assert (released.reason, released.completion) == ("failed_retry_scheduled", None)
    assert (released.epoch, released.attempt, released.worker) == (1, 0, W1)


async def test_a_retry_comes_by_itself_and_is_a_new_attempt(lab: Lab) -> None:
    """E-T142, E-X10, INV-2, INV-9, INV-10, INV-18"""
    claim = await lab.running(policy=retrying(), payload=b"work")
    await lab.fail(claim, message="boom")
    [first] = await lab.engine.views.attempts(claim.id)
    assert (first.outcome, first.failure) == ("ended_failure", Failure("boom"))
    await lab.pass_time(9)
    assert await lab.vector(claim.id) == BACKING_OFF
    assert await lab.claim(W2) == []
    await lab.pass_time(1)
    assert await lab.vector(claim.id) == RETRY_READY
    second = await lab.claim_one(W2)
    assert (second.id, second.payload) == (claim.id, b"work")
    assert (second.attempt, second.epoch, second.lease.start) == (1, 2, Start.RETRY)
    assert second.handle_kind is HandleKind.FRESH
    await lab.complete(second, b"done")
    attempts = await lab.engine.views.attempts(claim.id)
    assert attempts[0] == first
    assert (attempts[1].type, attempts[1].previous) == (Start.RETRY, 0)
    assert await lab.engine.views.result(claim.id) == b"done"


async def test_a_retry_keeps_its_place_in_the_queue(lab: Lab) -> None:
    claim = await lab.running(policy=retrying(), priority=5)
    await lab.fail(claim)
    await lab.submit(priority=9)
    await lab.submit(priority=1)
    await lab.pass_time(10)
    claims = await lab.claim(limit=3)
    assert [claim.snapshot.priority for claim in claims] == [9, 5, 1]


@every_form
async def test_a_failure_repeated_gets_the_same_answer(lab: Lab, form: str) -> None:
    """E-T148 [C], E-X18, INV-23: also after the retry became ready; the luck of the second call
    does not count"""
    policy = retrying(delay=10_000)
    policy["retry_policy"]["backoff"]["jitter"] = True
    claim = await lab.running(policy=policy)
    owned = FORMS[form](lab, claim)
    first = await lab.engine.attempts.fail(owned, Failure("boom"))
    before = await everything(lab, claim.id)
    for _ in range(3):
        lab.clock.advance(100)
        assert await lab.engine.attempts.fail(owned, Failure("again", "permanent")) == first
    assert await everything(lab, claim.id) == before
    await lab.pass_time(10_000)
    ready = await everything(lab, claim.id)
    assert await lab.engine.attempts.fail(owned, Failure("again")) == first
    assert await everything(lab, claim.id) == ready


async def test_anything_else_after_a_scheduled_retry_is_not_active(lab: Lab) -> None:
    """E-T148: outcome none, epoch kept, phase runnable, no attempt in hand"""
    claim = await lab.running(policy=retrying())
    await lab.fail(claim)
    with pytest.raises(NotActive) as refusal:
        await lab.engine.attempts.complete(claim)
    assert (refusal.value.phase, refusal.value.outcome) == ("runnable", "none")
    assert (refusal.value.epoch, refusal.value.attempt_id) == (1, None)


async def test_the_old_attempt_cannot_fail_the_new_one(lab: Lab) -> None:
    """E-X05: a retry is not spent twice"""
    old = await lab.running(policy=retrying(times=5))
    await lab.fail(old)
    await lab.pass_time(10)
    await lab.claim_one(W2)
    with pytest.raises(StaleLease):
        await lab.fail(old)
    assert (await describe(lab, old.id)).retries == 1


# -- which failures, how often


@pytest.mark.rules
@pytest.mark.parametrize("category", ["transient", "infra_crash", "timeout"])
async def test_what_may_pass_by_itself_is_retried(lab: Lab, category: str) -> None:
    """D-3, E-T146"""
    claim = await lab.running(policy=retrying())
    assert isinstance(await lab.fail(claim, category), RetryScheduled)


@pytest.mark.rules
@pytest.mark.parametrize("category", ["permanent", "cancelled"])
@pytest.mark.parametrize("named", [True, False])
async def test_what_cannot_pass_is_final(lab: Lab, category: str, named: bool) -> None:
    """D-3, E-T147: whatever the policy names"""
    members: dict[str, Any] = {"retryable_categories": [category]} if named else {}
    claim = await lab.running(policy=retrying(**members))
    assert await lab.fail(claim, category) == TerminalFailed(claim.id)
    assert (await describe(lab, claim.id)).failure == Failure("boom", category)


@pytest.mark.rules
async def test_a_word_of_its_own_is_kept_and_retried_like_a_transient_failure(lab: Lab) -> None:
    """server-sdk.md 3.3: a free string, passed through verbatim; unknown is the class transient"""
    claim = await lab.running(policy=retrying(times=1))
    assert isinstance(await lab.fail(claim, "simulated_503"), RetryScheduled)
    await lab.pass_time(10)
    again = await lab.claim_one()
    assert await lab.fail(again, "simulated_503") == TerminalFailed(claim.id)
    assert (await describe(lab, claim.id)).failure == Failure("boom", "simulated_503")


@pytest.mark.rules
@pytest.mark.parametrize("category", ["simulated_503", "transient"])
async def test_a_policy_may_name_a_word_of_its_own(lab: Lab, category: str) -> None:
    """§3.15, server-sdk.md 1.4: a list of strings"""
    claim = await lab.running(policy=retrying(retryable_categories=["simulated_503"]))
    retried = isinstance(await lab.fail(claim, category), RetryScheduled)
    assert retried is (category == "simulated_503")


@pytest.mark.rules
async def test_categories_that_are_named_exclude_the_others(lab: Lab) -> None:
    """§3.15"""
    policy = retrying(times=9, retryable_categories=["timeout", "infra_crash"])
    claim = await lab.running(policy=policy)
    assert isinstance(await lab.fail(claim, "infra_crash"), RetryScheduled)
    await lab.pass_time(10)
    assert isinstance(await lab.fail(await lab.claim_one(), "timeout"), RetryScheduled)
    await lab.pass_time(10)
    claim = await lab.claim_one()
    assert await lab.fail(claim, "transient") == TerminalFailed(claim.id)


@pytest.mark.rules
@pytest.mark.parametrize("policy", [None, {}, {"priority": 3}, retrying(times=0)])
async def test_without_retries_the_first_failure_is_final(lab: Lab, policy: Any) -> None:
    """E-T143, E-T144"""
    claim = await lab.running(policy=policy)
    assert await lab.fail(claim) == TerminalFailed(claim.id)


@pytest.mark.rules
@pytest.mark.parametrize("times", [1, 3])
async def test_retries_end_when_they_are_used_up(lab: Lab, times: int) -> None:
    """INV-11: and the last failure is the one that counts"""
    claim = await lab.running(policy=retrying(times))
    for number in range(times):
        answer = await lab.fail(claim, message=f"failure {number}")
        assert isinstance(answer, RetryScheduled)
        assert answer.next_attempt == number + 1
        await lab.pass_time(10)
        claim = await lab.claim_one()
    assert await lab.fail(claim, message="the last") == TerminalFailed(claim.id)
    description = await describe(lab, claim.id)
    assert (description.retries, description.attempts_made) == (times, times + 1)
    assert description.failure == Failure("the last")
    messages = [attempt.failure for attempt in await lab.engine.views.attempts(claim.id)]
    assert messages == [*(Failure(f"failure {n}") for n in range(times)), Failure("the last")]
    [completion] = await lab.events(claim.id, family=Family.COMPLETION)
    assert (completion.completion, completion.attempt) == (Outcome.FAILED, times)


@pytest.mark.rules
async def test_a_policy_without_a_number_means_three_retries(lab: Lab) -> None:
    """§1.7"""
    claim = await lab.running(policy={"retry_policy": {}})
    for delay in (1000, 2000, 4000):
        assert isinstance(await lab.fail(claim), RetryScheduled)
        await lab.pass_time(delay)
        claim = await lab.claim_one()
    assert isinstance(await lab.fail(claim), TerminalFailed)


async def test_a_pause_spends_no_retry(lab: Lab) -> None:
    """INV-10, INV-11"""
    claim = await lab.running(policy=retrying())
    for _ in range(3):
        await lab.engine.attempts.hand_back(claim)
        claim = await lab.claim_one()
    assert (await describe(lab, claim.id)).retries == 0
    assert isinstance(await lab.fail(claim), RetryScheduled)


async def test_a_replay_begins_with_all_its_retries(lab: Lab) -> None:
    """E-X23, INV-11"""
    claim = await lab.running(policy=retrying())
    await lab.fail(claim)
    await lab.pass_time(10)
    await lab.fail(await lab.claim_one())
    await lab.engine.executions.replay(claim.id)
    description = await describe(lab, claim.id)
    assert (description.retries, description.failure) == (0, None)
    assert isinstance(await lab.fail(await lab.claim_one()), RetryScheduled)


# -- how long


@pytest.mark.rules
async def test_a_fixed_delay_stays_the_same(lab: Lab) -> None:
    """§3.15"""
    assert await delays(lab, retrying(times=3, delay=250), 3) == [250, 250, 250]


@pytest.mark.rules
@pytest.mark.parametrize("backoff", [{"type": "linear", "delay_ms": 5}, {"delay_ms": 5}])
async def test_a_backoff_of_an_unknown_kind_is_a_second(lab: Lab, backoff: Any) -> None:
    """§3.15: the submission is not refused, because nothing is restricted by it"""
    policy = {"retry_policy": {"max_retries": 2, "backoff": backoff}}
    claim = await lab.running(policy=policy)
    for index in (1, 2):
        until = Millis(lab.clock.now() + 1000)
        assert await lab.fail(claim) == RetryScheduled(claim.id, until, index)
        await lab.pass_time(1000)
        claim = await lab.claim_one()


@pytest.mark.rules
async def test_an_exponential_delay_grows_to_its_maximum(lab: Lab) -> None:
    """§3.15: min(initial × multiplier^n, max), n being the retries before this failure"""
    backoff = {
        "type": "exponential",
        "initial_delay_ms": 100,
        "multiplier": 3.0,
        "max_delay_ms": 2000,
    }
    policy = {"retry_policy": {"max_retries": 5, "backoff": backoff}}
    assert await delays(lab, policy, 5) == [100, 300, 900, 2000, 2000]


async def test_reclaims_do_not_lengthen_the_delay(lab: Lab) -> None:
    policy = {"retry_policy": {"max_retries": 5, "backoff": {"type": "exponential"}}}
    claim = await lab.running(policy=policy)
    for _ in range(3):
        await lab.lose(claim)
        claim = await lab.claim_one()
    answer = await lab.fail(claim)
    assert answer == RetryScheduled(claim.id, Millis(lab.clock.now() + 1000), 4)


class JitterSource(random.Random):
    """Chance that is not left to chance."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.mark.rules
@pytest.mark.parametrize(("jitter", "delay"), [(0.0, 500), (0.5, 750), (0.999_999, 999)])
@pytest.mark.parametrize(
    "backoff",
    [
        {"type": "fixed", "delay_ms": 1000, "jitter": True},
        {"type": "exponential", "jitter": True},
    ],
    ids=["fixed", "exponential"],
)
async def test_jitter_shortens_by_up_to_a_half(
    store: Store, clock: ManualClock, backoff: dict[str, Any], jitter: float, delay: int
) -> None:
    """§3.15"""
    lab = Lab(await Engine.open(store, jitter=JitterSource(jitter)), clock)
    policy = {"retry_policy": {"max_retries": 1, "backoff": backoff}}
    waited = await delays(lab, policy, 1)
    await lab.engine.close()
    assert waited == [delay]


async def test_a_delay_of_nothing_is_ready_at_once(lab: Lab) -> None:
    claim = await lab.running(policy=retrying(delay=0))
    answer = await lab.fail(claim)
    assert answer == RetryScheduled(claim.id, lab.clock.now(), 1)
    assert await lab.vector(claim.id) == RETRY_READY
    assert await lab.fail(claim) == answer
    assert (await lab.claim_one()).attempt == 1


@pytest.mark.rules
@pytest.mark.parametrize("wait", [0, 1, 5000, MAX_SPAN])
@every_form
async def test_the_worker_may_ask_for_another_delay(lab: Lab, form: str, wait: int) -> None:
    """`retry_after` replaces the backoff for this once"""
    claim = await lab.running(policy=retrying(times=2))
    answer = await lab.engine.attempts.fail(
        FORMS[form](lab, claim), Failure("busy"), retry_after=Millis(wait)
    )
    assert answer == RetryScheduled(claim.id, Millis(lab.clock.now() + wait), 1)
    expected = BACKING_OFF if wait else RETRY_READY
    assert await lab.vector(claim.id) == expected
    assert (await describe(lab, claim.id)).retries == 1


async def test_a_delay_that_is_asked_for_gives_no_further_retry(lab: Lab) -> None:
    for policy, category in ((None, "transient"), (retrying(), "permanent")):
        claim = await lab.running(policy=policy)
        answer = await lab.engine.attempts.fail(
            claim, Failure("busy", category), retry_after=Millis(10)
        )
        assert answer == TerminalFailed(claim.id)


@pytest.mark.rules
@pytest.mark.parametrize("wait", [-1, MAX_SPAN + 1, 10**30, 1.5, "soon", True])
async def test_a_delay_that_is_asked_for_is_a_span(lab: Lab, wait: Any) -> None:
    """INV-24"""
    claim = await lab.running(policy=retrying())
    with pytest.raises(Invalid):
        await lab.engine.attempts.fail(claim, Failure("busy"), retry_after=wait)
    assert await lab.state(claim.id) is PublicState.ACTIVE


# -- attempts that run too long


def limited(timeout: int, **members: Any) -> dict[str, Any]:
    return {"timeout_policy": {"attempt_timeout_ms": timeout}, **members}


async def keep(lab: Lab, claim: Claim, millis: int) -> None:
    """The owner lives and renews, and time passes."""
    await lab.engine.claims.renew(claim, Millis(millis + TTL))
    await lab.pass_time(millis)


async def test_an_attempt_that_runs_too_long_is_retried(lab: Lab) -> None:
    """D-18, E-T194 [C], INV-18: a failure of category timeout; renewing does not help"""
    claim = await lab.running(policy=limited(60_000, **retrying()))
    await keep(lab, claim, 59_999)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.pass_time(1)
    assert await lab.vector(claim.id) == BACKING_OFF
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert attempt.failure == Failure("attempt_timeout", "timeout")
    assert (attempt.outcome, attempt.lease_id) == ("ended_failure", claim.lease.id)
    event = (await lab.events(claim.id))[-1]
    assert (event.lease, event.reason) == ("released", "failed_retry_scheduled")
    with pytest.raises(NotActive):
        await lab.complete(claim)
    await lab.pass_time(10)
    assert (await lab.claim_one()).attempt == 1


@pytest.mark.parametrize(
    "policy",
    [limited(60_000), limited(60_000, **retrying(retryable_categories=["transient"]))],
    ids=["no retries", "timeouts are not retried"],
)
async def test_an_attempt_that_runs_too_long_may_expire_the_execution(
    lab: Lab, policy: dict[str, Any]
) -> None:
    """D-18, E-T190, E-T195, INV-5"""
    claim = await lab.running(policy=policy)
    await keep(lab, claim, 60_000)
    assert await lab.state(claim.id) is PublicState.EXPIRED
    description = await describe(lab, claim.id)
    assert description.failure == Failure("attempt_timeout", "timeout")
    assert description.lease is None
    [completion] = await lab.events(claim.id, family=Family.COMPLETION)
    assert (completion.completion, completion.lease) == (Outcome.EXPIRED, "released")
    assert completion.reason == "expired:attempt_timeout"
    with pytest.raises(NotActive) as refusal:
        await lab.fail(claim)
    assert refusal.value.outcome == "expired"


async def test_every_attempt_has_its_whole_time(lab: Lab) -> None:
    claim = await lab.running(policy=limited(60_000, **retrying(times=2)))
    await keep(lab, claim, 50_000)
    await lab.fail(claim)
    await lab.pass_time(10)
    claim = await lab.claim_one()
    await keep(lab, claim, 59_999)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.pass_time(1)
    assert await lab.vector(claim.id) == BACKING_OFF


async def test_an_attempt_that_ends_in_time_has_no_timer_left(lab: Lab) -> None:
    """INV-18"""
    claim = await lab.running(policy=limited(60_000))
    await lab.complete(claim)
    await lab.pass_time(60_000)
    assert await lab.state(claim.id) is PublicState.COMPLETED
    assert len(await lab.events(claim.id)) == 2


async def test_a_lost_lease_is_no_timeout(lab: Lab) -> None:
    """FLAW-10: it spends no retry"""
    claim = await lab.running(policy=limited(60_000, **retrying()))
    await lab.pass_time(60_000 - 1)
    description = await describe(lab, claim.id)
    assert description.vector.ownership is Ownership.EXPIRED
    assert description.retries == 0
