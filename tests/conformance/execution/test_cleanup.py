"""Cancelling runs that clean up first: from every state, bounded, once; and undoing after a
failure."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import (
    FlowFabricError,
    Invalid,
    LeaseLost,
    LeaseRevoked,
    NotActive,
    NotEligible,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import CleaningUp, RetryScheduled, TerminalFailed
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.grant import GrantNotFound, ReclaimCapExceeded
from flowfabric.core.execution.model import AttemptOutcome, Failure, Outcome, Start
from flowfabric.core.execution.operator import CancelAnswer
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Step
from flowfabric.core.explain.reasons import ReasonCode
from flowfabric.core.wait.model import Behaviour
from flowfabric.engine.execution.claims import Claim
from tests.kit import situations
from tests.kit.lab import TTL, W2, Lab
from tests.kit.owners import FORMS, every_form
from tests.kit.situations import LIVING, completions, is_legal, load
from tests.kit.waits import request, wait_on

BOUND = Millis(5_000)
POLICY: dict[str, Any] = {"cleanup_policy": {"cleanup_timeout_ms": BOUND}}
UNDO = Step(0, 0, "undo", 0, b'{"value":1}')


async def cancel(lab: Lab, id: ExecutionId, reason: str = "enough", **how: Any) -> CancelAnswer:
    return await lab.engine.executions.cancel(id, reason=reason, **how)


async def cleaning(lab: Lab, **policy: Any) -> Claim:
    """A running execution whose clean-up has begun."""
    claim = await lab.running(policy={**POLICY, **policy})
    await cancel(lab, claim.id)
    return claim


async def saga(lab: Lab, **policy: Any) -> Claim:
    """A running execution with a recorded compensation."""
    claim = await lab.running(policy=policy)
    await lab.engine.attempts.compensate(claim, BOUND)
    return claim


ENDED_BY = {
    Behaviour.CANCEL: PublicState.CANCELLED,
    Behaviour.FAIL: PublicState.FAILED,
    Behaviour.EXPIRE: PublicState.EXPIRED,
}


async def timed_wait(lab: Lab, claim: Claim, behaviour: Behaviour) -> None:
    """Waits for a second, and then for the behaviour."""
    over = Millis(lab.clock.now() + 1_000)
    wait = wait_on(lab, timeout_at=over, behaviour=behaviour)
    await lab.engine.suspensions.suspend(claim, request(lab, wait))


@pytest.mark.parametrize("name", LIVING)
async def test_what_has_run_may_be_claimed_for_its_cleanup_in_every_state(
    lab: Lab, name: str
) -> None:
    retry = situations.RETRY_AT_ONCE if name == "retry_ready" else situations.RETRY
    id = await LIVING[name](lab, policy={**POLICY, **retry})
    before = await load(lab, id)
    answer = await cancel(lab, id)
    seen = await lab.engine.views.describe(id)
    assert seen is not None
    assert is_legal(seen.vector)
    if not before.attempts_made:
        assert answer == CancelAnswer(id)
        assert seen.state is PublicState.CANCELLED
        return
    until = Millis(lab.clock.now() + BOUND)
    assert answer == CancelAnswer(id, until)
    assert seen.state not in (PublicState.CANCELLED, PublicState.SUSPENDED, PublicState.DELAYED)
    assert (seen.cancel_reason, seen.cancelled_by) == ("enough", "operator_override")
    assert seen.cleanup is not None
    assert (seen.cleanup.since, seen.cleanup.until) == (lab.clock.now(), until)
    if name != "running":
        claim = await lab.claim_one(W2)
        assert claim.id == id
        assert claim.snapshot.life.cleanup == seen.cleanup
        await lab.engine.attempts.finish_cleanup(claim)
        assert await lab.state(id) is PublicState.CANCELLED


async def test_the_owner_finishes_its_cleanup(lab: Lab) -> None:
    claim = await cleaning(lab)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.engine.attempts.record_step(claim, UNDO)
    answer = await lab.engine.attempts.finish_cleanup(claim)
    assert answer.state is PublicState.CANCELLED
    assert await lab.engine.attempts.finish_cleanup(claim) == answer
    assert await completions(lab, claim.id) == [Outcome.CANCELLED]
    kinds = [event.kind for event in await lab.events(claim.id)]
    assert kinds == [EventKind.CLAIMED, EventKind.CLEANING_UP, EventKind.CANCELLED]
    seen = await lab.engine.views.describe(claim.id)
    assert seen is not None
    assert (seen.cancel_reason, seen.cancelled_by) == ("enough", "operator_override")
    assert await lab.engine.store.next_due(lab.clock.now()) is None


async def test_without_the_wish_nothing_changes(lab: Lab) -> None:
    claim = await lab.running()
    assert await cancel(lab, claim.id) == CancelAnswer(claim.id)
    assert await lab.state(claim.id) is PublicState.CANCELLED
    with pytest.raises(NotActive):
        await lab.engine.attempts.finish_cleanup(claim)


async def test_there_is_nothing_to_finish_before_a_cancel(lab: Lab) -> None:
    claim = await lab.running(policy=POLICY)
    with pytest.raises(NotEligible, match="not being cancelled"):
        await lab.engine.attempts.finish_cleanup(claim)
    assert await lab.state(claim.id) is PublicState.ACTIVE


async def test_after_the_bound_it_is_cancelled_all_the_same(lab: Lab) -> None:
    claim = await cleaning(lab)
    await lab.pass_time(BOUND - 1)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.pass_time(1)
    assert await lab.state(claim.id) is PublicState.CANCELLED
    with pytest.raises(NotActive):
        await lab.engine.attempts.record_step(claim, UNDO)
    assert await completions(lab, claim.id) == [Outcome.CANCELLED]


@pytest.mark.parametrize("name", ["suspended", "worker_delayed", "lost", "revoked", "retry_ready"])
async def test_the_bound_holds_where_no_worker_comes(lab: Lab, name: str) -> None:
    id = await LIVING[name](lab, policy={**POLICY, **situations.RETRY_AT_ONCE})
    await cancel(lab, id)
    await lab.pass_time(BOUND)
    assert await lab.state(id) is PublicState.CANCELLED
    assert await lab.claim(limit=10) == []


async def test_a_cancel_destroys_the_grant_of_a_run_that_cleans_up(lab: Lab) -> None:
    """§3.19: any worker may clean up at once"""
    claim = await lab.running(policy=POLICY)
    await lab.engine.attempts.delay(claim, lab.clock.now())
    await lab.engine.grants.issue(claim.id, "w3")
    await cancel(lab, claim.id)
    assert await lab.engine.grants.identity(claim.id) is None
    assert (await lab.claim_one(W2)).id == claim.id


async def test_cancelling_again_changes_nothing_and_force_ends_it(lab: Lab) -> None:
    claim = await cleaning(lab)
    before = await load(lab, claim.id)
    lab.clock.advance(10)
    again = await cancel(lab, claim.id, "again")
    assert again.until == before.life.cleanup.until if before.life.cleanup else None
    assert await load(lab, claim.id) == before
    assert await cancel(lab, claim.id, "now", force=True) == CancelAnswer(claim.id)
    seen = await lab.engine.views.describe(claim.id)
    assert seen is not None
    assert (seen.state, seen.cancel_reason) == (PublicState.CANCELLED, "enough")
    assert await cancel(lab, claim.id, force=True) == CancelAnswer(claim.id)
    assert await lab.engine.store.next_due(lab.clock.now()) is None


async def test_force_ends_a_run_that_would_clean_up(lab: Lab) -> None:
    claim = await lab.running(policy=POLICY)
    assert await cancel(lab, claim.id, force=True) == CancelAnswer(claim.id)
    assert await lab.state(claim.id) is PublicState.CANCELLED


@pytest.mark.parametrize("force", [1, None, "yes"])
async def test_force_is_a_flag(lab: Lab, force: Any) -> None:
    claim = await lab.running(policy=POLICY)
    with pytest.raises(Invalid, match="force"):
        await cancel(lab, claim.id, force=force)


async def test_another_worker_goes_on_within_the_same_bound(lab: Lab) -> None:
    claim = await cleaning(lab, cleanup_policy={"cleanup_timeout_ms": 2 * TTL})
    until = lab.clock.now() + 2 * TTL
    await lab.lose(claim)
    with pytest.raises(LeaseLost):
        await lab.engine.attempts.finish_cleanup(claim)
    second = await lab.claim_one(W2)
    assert second.snapshot.life.cleanup is not None
    assert second.snapshot.life.cleanup.until == until
    await lab.pass_time(TTL)
    assert await lab.state(claim.id) is PublicState.CANCELLED


async def test_a_run_that_was_lost_too_often_ends_as_cancelled(lab: Lab) -> None:
    claim = await cleaning(lab, max_reclaim_count=0, cleanup_policy={"cleanup_timeout_ms": 9 * TTL})
    await lab.lose(claim)
    assert await lab.claim(W2) == []
    assert await lab.state(claim.id) is PublicState.CANCELLED
    assert await completions(lab, claim.id) == [Outcome.CANCELLED]


async def test_a_cancel_that_comes_too_late_loses_against_the_result(lab: Lab) -> None:
    """The handler has done everything and does not know of the cancel."""
    claim = await cleaning(lab)
    await lab.complete(claim, b"1")
    seen = await lab.engine.views.describe(claim.id)
    assert seen is not None
    assert (seen.state, seen.cancel_reason) == (PublicState.COMPLETED, None)
    await lab.pass_time(BOUND)
    assert await lab.state(claim.id) is PublicState.COMPLETED


async def test_completing_and_cancelling_at_once_has_one_winner(lab: Lab) -> None:
    claims = [await lab.running(policy=POLICY) for _ in range(8)]
    for claim in claims:
        answers = await asyncio.gather(
            lab.complete(claim),
            cancel(lab, claim.id),
            cancel(lab, claim.id, force=True),
            return_exceptions=True,
        )
        assert not [
            a for a in answers if isinstance(a, Exception) and not isinstance(a, FlowFabricError)
        ]
        (outcome,) = await completions(lab, claim.id)
        assert outcome in (Outcome.SUCCESS, Outcome.CANCELLED)


async def test_a_failure_of_the_cleanup_is_retried_soon_and_then_ends_it(lab: Lab) -> None:
    claim = await cleaning(lab, **situations.RETRY)
    answer = await lab.fail(claim)
    assert isinstance(answer, RetryScheduled)
    assert answer.delay_until <= lab.clock.now() + 1_000
    await lab.pass_time(1_000)
    again = await lab.claim_one(W2)
    assert isinstance(await lab.fail(again, "permanent"), TerminalFailed)
    seen = await lab.engine.views.describe(claim.id)
    assert seen is not None
    assert seen.state is PublicState.CANCELLED
    assert seen.failure is not None
    assert seen.failure.message == "boom"


async def test_a_wait_that_begins_with_the_cancel_is_woken(lab: Lab) -> None:
    """The handler parks before its worker knows of the cancel."""
    claim = await cleaning(lab)
    await lab.engine.suspensions.suspend(claim, request(lab, wait_on(lab)))
    again = await lab.claim_one(W2)
    assert again.snapshot.life.cleanup is not None
    await lab.engine.suspensions.suspend(again, request(lab, wait_on(lab)))
    assert await lab.state(claim.id) is PublicState.SUSPENDED  # the clean-up itself waits
    await lab.pass_time(BOUND)
    assert await lab.state(claim.id) is PublicState.CANCELLED


async def test_a_sleep_that_begins_with_the_cancel_is_woken(lab: Lab) -> None:
    claim = await cleaning(lab)
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 60_000))
    again = await lab.claim_one(W2)
    await lab.engine.attempts.delay(again, Millis(lab.clock.now() + 1_000))
    assert await lab.state(claim.id) is PublicState.DELAYED
    await lab.pass_time(1_000)
    await lab.engine.attempts.finish_cleanup(await lab.claim_one())
    assert await lab.state(claim.id) is PublicState.CANCELLED


@pytest.mark.parametrize("behaviour", [Behaviour.CANCEL, Behaviour.FAIL, Behaviour.EXPIRE])
async def test_a_wait_whose_time_is_over_ends_the_run_after_its_cleanup(
    lab: Lab, behaviour: Behaviour
) -> None:
    """A wait may end its run: that is a cancel or a failure like others."""
    claim = await saga(lab)
    await timed_wait(lab, claim, behaviour)
    await lab.pass_time(1_000)
    assert await lab.state(claim.id) is PublicState.WAITING
    again = await lab.claim_one(W2)
    assert again.snapshot.life.cleanup is not None
    done = await lab.engine.attempts.finish_cleanup(again)
    assert done.state is ENDED_BY[behaviour]
    seen = await lab.engine.views.describe(claim.id)
    assert seen is not None
    if behaviour is Behaviour.CANCEL:
        expected = (f"suspension_timeout:{behaviour}", "system_timeout")
        assert (seen.cancel_reason, seen.cancelled_by) == expected
    else:
        assert seen.failure is not None
        assert seen.failure.message == f"suspension_timeout:{behaviour}"
    assert len(await completions(lab, claim.id)) == 1


async def test_a_wait_that_cancels_its_run_wakes_a_task_that_cleans_up(lab: Lab) -> None:
    claim = await lab.running(policy=POLICY)
    await timed_wait(lab, claim, Behaviour.CANCEL)
    await lab.pass_time(1_000)
    assert (await lab.claim_one(W2)).snapshot.life.cleanup is not None
    await lab.pass_time(BOUND)
    assert await lab.state(claim.id) is PublicState.CANCELLED


async def test_a_failure_is_not_a_cancel_for_a_task_without_compensations(lab: Lab) -> None:
    claim = await lab.running(policy=POLICY)
    await timed_wait(lab, claim, Behaviour.FAIL)
    await lab.pass_time(1_000)
    assert await lab.state(claim.id) is PublicState.FAILED


@pytest.mark.parametrize("behaviour", [Behaviour.CANCEL, Behaviour.FAIL, Behaviour.EXPIRE])
async def test_a_wait_of_the_cleanup_ends_it_as_cancelled(lab: Lab, behaviour: Behaviour) -> None:
    claim = await cleaning(lab)
    await lab.engine.attempts.hand_back(claim)
    again = await lab.claim_one(W2)
    await timed_wait(lab, again, behaviour)
    await lab.pass_time(1_000)
    assert await completions(lab, claim.id) == [Outcome.CANCELLED]
    seen = await lab.engine.views.describe(claim.id)
    assert seen is not None
    assert seen.cancel_reason == "enough"


async def test_a_hold_does_not_keep_a_run_from_its_cleanup(lab: Lab) -> None:
    id = await situations.suspended(lab, policy=POLICY)
    await lab.engine.executions.hold(id)
    await cancel(lab, id)
    assert (await lab.claim_one(W2)).id == id


async def test_the_attempt_timeout_does_not_cut_a_cleanup_short(lab: Lab) -> None:
    claim = await cleaning(lab, timeout_policy={"attempt_timeout_ms": 1_000})
    await lab.pass_time(1_000)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.engine.attempts.finish_cleanup(claim)


async def test_the_deadline_does_not_cut_a_cleanup_short(lab: Lab) -> None:
    claim = await cleaning(lab, timeout_policy={"execution_deadline_ms": 1_000})
    await lab.pass_time(1_000)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.pass_time(BOUND)
    assert await lab.state(claim.id) is PublicState.CANCELLED


async def test_it_is_explained(lab: Lab) -> None:
    claim = await cleaning(lab)
    found = await lab.engine.explain(claim.id)
    (reason,) = [r for r in found.reasons if r.code is ReasonCode.CLEANING_UP]
    assert reason.since == lab.clock.now()
    assert reason.until == lab.clock.now() + BOUND
    assert "being cancelled by operator_override: enough" in reason.text


async def test_a_replay_starts_over_because_the_steps_are_undone(lab: Lab) -> None:
    claim = await cleaning(lab)
    await lab.engine.attempts.finish_cleanup(claim)
    await lab.engine.executions.replay(claim.id)
    again = await lab.claim_one()
    assert again.snapshot.life.generation == 1
    assert again.snapshot.life.cleanup is None
    await lab.complete(again)
    assert await lab.state(claim.id) is PublicState.COMPLETED


# -- compensations


async def test_a_run_with_compensations_is_woken_for_its_cleanup(lab: Lab) -> None:
    claim = await saga(lab)
    await lab.engine.attempts.compensate(claim, Millis(9 * BOUND))  # said before
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 60_000))
    answer = await cancel(lab, claim.id)
    assert answer.until == lab.clock.now() + BOUND
    assert (await lab.claim_one(W2)).snapshot.life.cleanup is not None


async def test_a_final_failure_is_undone_before_it_ends(lab: Lab) -> None:
    claim = await saga(lab)
    answer = await lab.fail(claim)
    assert answer == CleaningUp(claim.id, Millis(lab.clock.now() + BOUND))
    assert await lab.fail(claim) == answer  # a lost reply
    assert await lab.state(claim.id) is PublicState.ACTIVE
    with pytest.raises(NotEligible, match="undone"):
        await lab.complete(claim)
    done = await lab.engine.attempts.finish_cleanup(claim, Failure("undo failed", "permanent"))
    assert done.state is PublicState.FAILED
    seen = await lab.engine.views.describe(claim.id)
    assert seen is not None
    assert seen.failure is not None
    assert seen.failure.message == "boom"
    assert await completions(lab, claim.id) == [Outcome.FAILED]


@every_form
async def test_a_failure_that_ends_a_cleanup_may_be_repeated(lab: Lab, form: str) -> None:
    """E-X18, INV-23: the run ends as it was to, and the lost reply is given again"""
    claim = await cleaning(lab)
    answer = await lab.engine.attempts.fail(FORMS[form](lab, claim), Failure("boom"))
    assert answer == TerminalFailed(claim.id)
    assert await lab.engine.attempts.fail(FORMS[form](lab, claim), Failure("boom")) == answer
    assert await completions(lab, claim.id) == [Outcome.CANCELLED]


async def test_a_failure_that_ends_the_undoing_of_a_deadline_may_be_repeated(lab: Lab) -> None:
    """E-X18, INV-23: as after a cancel"""
    claim = await saga(lab, timeout_policy={"execution_deadline_ms": 1_000})
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 60_000))
    await lab.pass_time(1_000)
    again = await lab.claim_one(W2)
    assert await lab.fail(again) == TerminalFailed(claim.id)
    assert await lab.fail(again) == TerminalFailed(claim.id)
    assert await completions(lab, claim.id) == [Outcome.EXPIRED]


async def test_a_failure_with_retries_left_undoes_nothing(lab: Lab) -> None:
    claim = await saga(lab, **situations.RETRY_AT_ONCE)
    assert isinstance(await lab.fail(claim), RetryScheduled)
    assert (await lab.claim_one()).snapshot.life.cleanup is None


async def test_undoing_a_failure_is_bounded_and_taken_over(lab: Lab) -> None:
    claim = await saga(lab)
    await lab.fail(claim)
    await lab.engine.claims.revoke(claim.id, reason="its worker died")
    second = await lab.claim_one(W2)
    assert second.snapshot.life.cleanup is not None
    assert second.snapshot.life.cleanup.outcome is Outcome.FAILED
    await lab.pass_time(BOUND)
    assert await lab.state(claim.id) is PublicState.FAILED


async def test_undoing_that_is_not_tried_again_in_time_ends_the_run(lab: Lab) -> None:
    """INV-6, INV-19: its bound comes between two attempts; S16, because the failed one was its
    last"""
    claim = await saga(lab, **situations.RETRY)
    assert isinstance(await lab.fail(claim, "permanent"), CleaningUp)
    await lab.engine.attempts.hand_back(claim)
    assert isinstance(await lab.fail(await lab.claim_one(W2)), RetryScheduled)
    await lab.pass_time(BOUND)
    seen = await situations.described(lab, claim.id)
    assert (seen.state, seen.vector.attempt) == (PublicState.FAILED, "attempt_terminal")
    assert await completions(lab, claim.id) == [Outcome.FAILED]
    (attempt,) = await lab.engine.views.attempts(claim.id)
    assert attempt.outcome is AttemptOutcome.FAILURE
    await lab.engine.executions.replay(claim.id)
    again = await lab.claim_one(W2)
    assert (again.attempt, again.lease.start) == (1, Start.REPLAY)


@pytest.mark.inside
async def test_a_grant_over_the_cap_is_used_up_also_in_a_cleanup(lab: Lab) -> None:
    """Execution 3.11, cap branch: the grant is removed, so a repeat finds none"""
    claim = await cleaning(lab)
    await lab.engine.claims.revoke(claim.id, reason="its worker died")
    grants = lab.engine.grants
    await grants.issue_reclaim(claim.id, W2)
    assert await grants.reclaim(claim.id, W2, max_reclaims=0) == ReclaimCapExceeded(1)
    assert await lab.state(claim.id) is PublicState.CANCELLED
    assert await grants.reclaim(claim.id, W2, max_reclaims=0) == GrantNotFound()


async def test_a_cancel_does_not_change_a_failure_that_is_undone(lab: Lab) -> None:
    claim = await saga(lab)
    await lab.fail(claim)
    assert (await cancel(lab, claim.id)).until is not None
    await lab.engine.attempts.finish_cleanup(claim)
    assert await lab.state(claim.id) is PublicState.FAILED


async def test_a_deadline_is_undone_too(lab: Lab) -> None:
    claim = await saga(lab, timeout_policy={"execution_deadline_ms": 1_000})
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 60_000))
    await lab.pass_time(1_000)
    again = await lab.claim_one(W2)
    done = await lab.engine.attempts.finish_cleanup(again)
    assert done.state is PublicState.EXPIRED


async def test_the_last_failure_of_a_cancelled_run_is_undone_by_its_owner(lab: Lab) -> None:
    """The handler fails before its worker knows of the cancel."""
    claim = await saga(lab)
    await cancel(lab, claim.id)
    assert isinstance(await lab.fail(claim), CleaningUp)
    await lab.engine.attempts.finish_cleanup(claim)
    assert await lab.state(claim.id) is PublicState.CANCELLED


@pytest.mark.parametrize("time", [-1, "soon", None, True])
async def test_the_time_to_undo_is_a_span(lab: Lab, time: Any) -> None:
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.attempts.compensate(claim, time)


@pytest.mark.parametrize("time", [0, -1, "1s", 1.5, True])
async def test_the_bound_in_a_policy_is_checked(lab: Lab, time: Any) -> None:
    with pytest.raises(FlowFabricError, match="malformed"):
        await lab.submit(policy={"cleanup_policy": {"cleanup_timeout_ms": time}})


@every_form
async def test_an_owner_without_its_lease_is_told_so_before_that_the_run_is_undone(
    lab: Lab, form: str
) -> None:
    """§3.0.3: the gate is asked first, whatever the owner presents"""
    first = await saga(lab)
    await lab.fail(first)
    await lab.engine.claims.revoke(first.id, reason="moved")
    claim = await lab.claim_one(W2)
    assert claim.snapshot.life.cleanup is not None
    await lab.engine.claims.revoke(first.id, reason="moved again")
    with pytest.raises(LeaseRevoked):
        await lab.engine.attempts.complete(FORMS[form](lab, claim))


async def test_a_stale_owner_cannot_finish(lab: Lab) -> None:
    claim = await cleaning(lab)
    await lab.engine.claims.revoke(claim.id, reason="moved")
    second = await lab.claim_one(W2)
    with pytest.raises(LeaseLost):
        await lab.engine.attempts.finish_cleanup(claim)
    with pytest.raises(LeaseLost):
        await lab.engine.attempts.compensate(claim, BOUND)
    assert (await load(lab, claim.id)).state == second.snapshot.state
