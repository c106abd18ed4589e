"""Suspensions whose time is over, and what else ends one: deadlines, cancels, the execution."""

from typing import Any

import msgspec
import pytest

from flowfabric.core.base.errors import NotSignalable, NotSuspended
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import AlreadySatisfied
from flowfabric.core.execution.model import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Recorded
from flowfabric.core.wait.condition.model import (
    AllTrue,
    Count,
    CountKind,
    Single,
    TimeoutOnly,
    all_waitpoints,
)
from flowfabric.core.wait.model import Behaviour, StepRef, Waited
from flowfabric.core.wait.resume import SuspensionExpired
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import W2, Lab
from tests.kit.owners import everything
from tests.kit.situations import completions, described, load, missing_ids, take
from tests.kit.waits import GO, SuspendAnswer, in_, signal, suspend, wait_on

SECOND = 1_000

ENDINGS = {
    Behaviour.FAIL: (PublicState.FAILED, Outcome.FAILED),
    Behaviour.CANCEL: (PublicState.CANCELLED, Outcome.CANCELLED),
    Behaviour.EXPIRE: (PublicState.EXPIRED, Outcome.EXPIRED),
}

every_ending = pytest.mark.parametrize("behaviour", ENDINGS)
by_both = pytest.mark.parametrize("how", ["sweep", "expire"])


async def waiting(
    lab: Lab, behaviour: Behaviour = Behaviour.FAIL, timeout: int = SECOND, **members: Any
) -> tuple[Claim, SuspendAnswer]:
    """A suspended execution with a timeout."""
    claim = await take(lab, await lab.submit())
    wait = wait_on(lab, timeout_at=in_(lab, timeout), behaviour=behaviour, **members)
    return claim, await suspend(lab, claim, wait)


async def let_it_expire(lab: Lab, id: ExecutionId, how: str, wait: int = SECOND) -> None:
    lab.clock.advance(wait)
    if how == "sweep":
        await lab.engine.sweep.once()
    else:
        assert isinstance(await lab.engine.suspensions.expire(id), SuspensionExpired)


async def waited(lab: Lab, claim: Claim) -> dict[str, str]:
    """The waits that have become steps, and how they ended."""
    steps = await lab.engine.attempts.steps(claim.uuid, 0)
    return {step.name: msgspec.json.decode(step.doc, type=Recorded).waited for step in steps}


def as_step(name: str, position: int) -> StepRef:
    return StepRef(generation=0, position=position, name=name, occurrence=0)


# -- each behaviour


@by_both
@every_ending
async def test_a_timeout_that_ends_the_execution(lab: Lab, behaviour: Behaviour, how: str) -> None:
    """E-T221, E-T225, E-X24, C-T127, INV-12: the ending is told by its own word; suspension and
    waitpoints are closed with it."""
    claim, answer = await waiting(lab, behaviour)
    await let_it_expire(lab, claim.id, how)
    state, outcome = ENDINGS[behaviour]
    seen = await described(lab, claim.id)
    assert (seen.state, seen.ended_at) == (state, lab.clock.now())
    reason = f"suspension_timeout:{behaviour}"
    if behaviour is Behaviour.CANCEL:
        assert (seen.cancel_reason, seen.failure) == (reason, None)
    else:
        assert seen.failure is not None
        assert seen.failure.message == reason
    assert await completions(lab, claim.id) == [outcome]
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert attempt.outcome.final
    assert await lab.engine.suspensions.waitpoints(claim.id) == []
    assert await lab.engine.suspensions.suspended() == []
    waits = (await load(lab, claim.id)).life.waits
    assert waits is None or waits.suspension is None
    with pytest.raises(NotSignalable):
        await signal(lab, claim.id, answer.primary)


@by_both
async def test_a_timeout_that_resumes(lab: Lab, how: str) -> None:
    """E-T222, E-X24, FLAW-29: the attempt goes on and sees the signal that tells of it."""
    claim, answer = await waiting(lab, Behaviour.AUTO_RESUME)
    await let_it_expire(lab, claim.id, how)
    vector = await lab.vector(claim.id)
    assert (vector.phase, vector.eligibility) == ("runnable", "eligible_now")
    assert await lab.state(claim.id) is PublicState.WAITING
    with pytest.raises(NotSignalable):
        await signal(lab, claim.id, answer.primary)
    again = await lab.claim_one(W2)
    assert (again.attempt, again.attempt_id, again.epoch) == (0, claim.attempt_id, 2)
    [told] = await lab.engine.suspensions.observe(again)
    assert (told.name, told.category, told.source_type) == ("timeout", "timeout", "system")
    assert told.accepted_at == lab.clock.now()
    assert EventKind.WOKEN in [event.kind for event in await lab.events(claim.id)]
    assert await completions(lab, claim.id) == []


async def test_after_a_timeout_only_the_timeout_is_observed(lab: Lab) -> None:
    """E-X24: signals that were not enough satisfied nothing, whatever their category."""
    claim = await lab.running()
    wait = wait_on(
        lab,
        Count(2, CountKind.SIGNALS, (GO,)),
        timeout_at=in_(lab, SECOND),
        behaviour=Behaviour.AUTO_RESUME,
    )
    answer = await suspend(lab, claim, wait)
    await signal(lab, claim.id, answer.primary, "half", category="timeout")
    await lab.pass_time(SECOND)
    [told] = await lab.engine.suspensions.observe(await lab.claim_one())
    assert told.name == "timeout"
    names = [heard.signal.name for heard in await lab.engine.signals.of(claim.id)]
    assert names == ["half", "timeout"]


@by_both
async def test_a_timeout_that_calls_an_operator(lab: Lab, how: str) -> None:
    """E-X24, FLAW-29: it stays suspended, for review, without a timer, its waitpoints open."""
    claim, answer = await waiting(lab, Behaviour.ESCALATE)
    await let_it_expire(lab, claim.id, how)
    seen = await described(lab, claim.id)
    assert (seen.state, seen.blocking) == (PublicState.SUSPENDED, "paused_by_operator")
    [listed] = await lab.engine.suspensions.suspended()
    assert (listed.reason, listed.due_at) == ("waiting_for_operator_review", None)
    [open_] = await lab.engine.suspensions.waitpoints(claim.id)
    assert (open_.id, open_.state, open_.expires_at) == (answer.primary.id, "active", None)
    assert [event.kind for event in await lab.events(claim.id)][-1] is EventKind.ESCALATED
    before = await everything(lab, claim.id)
    await lab.pass_time(3_600 * SECOND)
    assert await everything(lab, claim.id) == before


@pytest.mark.parametrize("by", ["signal", "operator"])
async def test_an_escalated_suspension_still_ends(lab: Lab, by: str) -> None:
    """INV-15: by a signal or by the operator it was escalated to."""
    claim, answer = await waiting(lab, Behaviour.ESCALATE)
    await lab.pass_time(SECOND)
    if by == "signal":
        await signal(lab, claim.id, answer.primary)
    else:
        await lab.engine.executions.resume(claim.id)
    assert await lab.state(claim.id) is PublicState.WAITING
    heard = await lab.engine.suspensions.observe(await lab.claim_one())
    assert [item.name for item in heard] == ([GO] if by == "signal" else [])


async def test_the_answer_says_what_happened(lab: Lab) -> None:
    claim, _ = await waiting(lab, Behaviour.ESCALATE)
    lab.clock.advance(SECOND)
    answer = await lab.engine.suspensions.expire(claim.id)
    assert answer == SuspensionExpired(claim.id, Behaviour.ESCALATE, PublicState.SUSPENDED)


async def test_waiting_for_the_timeout_alone(lab: Lab) -> None:
    claim = await lab.running()
    wait = wait_on(lab, TimeoutOnly(), timeout_at=in_(lab, SECOND), behaviour=Behaviour.AUTO_RESUME)
    answer = await suspend(lab, claim, wait)
    await signal(lab, claim.id, answer.primary)
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    await lab.pass_time(SECOND)
    assert await lab.state(claim.id) is PublicState.WAITING


# -- timers that have nothing to do


async def test_a_timer_that_has_nothing_to_do_says_why(lab: Lab) -> None:
    """E-X08: every reason there is; nothing changes."""
    expire = lab.engine.suspensions.expire
    for id in await missing_ids(lab):
        assert await expire(id) == AlreadySatisfied("not_found")
    claim, answer = await waiting(lab)
    before = await everything(lab, claim.id)
    lab.clock.advance(SECOND - 1)
    assert await expire(claim.id) == AlreadySatisfied("not_yet_due")
    assert await everything(lab, claim.id) == before
    await signal(lab, claim.id, answer.primary)
    lab.clock.advance(1)
    assert await expire(claim.id) == AlreadySatisfied("not_suspended_cleaned")
    again = await lab.engine.claims.claim(W2, ttl=Millis(30_000), limit=5)
    assert claim.id in [held.id for held in again]
    assert await expire(claim.id) == AlreadySatisfied("not_suspended_cleaned")


async def test_a_suspension_without_a_timeout_is_never_due(lab: Lab) -> None:
    claim = await lab.running()
    await suspend(lab, claim)
    await lab.pass_time(365 * 86_400 * SECOND)
    answer = await lab.engine.suspensions.expire(claim.id)
    assert answer == AlreadySatisfied("not_yet_due")
    assert await lab.state(claim.id) is PublicState.SUSPENDED


@pytest.mark.parametrize("behaviour", Behaviour)
@pytest.mark.parametrize("by", ["signal", "operator"])
async def test_the_timeout_of_a_suspension_that_is_over_does_nothing(
    lab: Lab, behaviour: Behaviour, by: str
) -> None:
    """E-X08, FLAW-6, INV-15: neither while it waits, nor while it runs, nor after its end."""
    claim, answer = await waiting(lab, behaviour)
    if by == "signal":
        await signal(lab, claim.id, answer.primary)
    else:
        await lab.engine.executions.resume(claim.id)
    await lab.pass_time(2 * SECOND)
    assert await lab.state(claim.id) is PublicState.WAITING
    again = await lab.claim_one()
    await lab.pass_time(SECOND)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.complete(again, b"done")
    await lab.pass_time(SECOND)
    assert await completions(lab, claim.id) == [Outcome.SUCCESS]


async def test_the_timeout_of_one_suspension_does_not_touch_the_next(lab: Lab) -> None:
    """E-X08, FLAW-6"""
    claim, answer = await waiting(lab)
    await signal(lab, claim.id, answer.primary)
    second = await suspend(lab, await lab.claim_one(), wait_on(lab, timeout_at=in_(lab, 5_000)))
    await lab.pass_time(2 * SECOND)
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    assert await lab.engine.suspensions.expire(claim.id) == AlreadySatisfied("not_yet_due")
    await signal(lab, claim.id, second.primary)
    assert await lab.state(claim.id) is PublicState.WAITING


async def test_a_signal_that_comes_after_the_timeout_and_before_the_sweep_counts(lab: Lab) -> None:
    """INV-15: whichever is first ends the suspension, and the other finds it over."""
    claim, answer = await waiting(lab)
    lab.clock.advance(2 * SECOND)
    await signal(lab, claim.id, answer.primary)
    await lab.engine.sweep.once()
    assert await lab.state(claim.id) is PublicState.WAITING


# -- several arms


async def test_one_of_several_arms_times_out(lab: Lab) -> None:
    """The wait that timed out is over; the other goes on when it is asked for again."""
    claim = await lab.running()
    left = wait_on(
        lab,
        "left",
        timeout_at=in_(lab, SECOND),
        behaviour=Behaviour.AUTO_RESUME,
        step=as_step("left", 0),
    )
    right = wait_on(lab, "right", timeout_at=in_(lab, 9_000), step=as_step("right", 1))
    answer = await suspend(lab, claim, left, right)
    await lab.pass_time(SECOND)
    assert await lab.state(claim.id) is PublicState.WAITING
    assert await waited(lab, claim) == {"left": Waited.TIMED_OUT}
    [open_] = await lab.engine.suspensions.waitpoints(claim.id)
    assert (open_.key, open_.state) == ("right", "pending")
    with pytest.raises(NotSignalable):
        await signal(lab, claim.id, answer.waitpoints[0])
    await signal(lab, claim.id, answer.waitpoints[1])


async def test_the_earliest_timeout_decides(lab: Lab) -> None:
    """Also when the sweep comes late and all are over."""
    claim = await lab.running()
    arms = [
        wait_on(lab, "late", timeout_at=in_(lab, 3_000), behaviour=Behaviour.CANCEL),
        wait_on(lab, "early", timeout_at=in_(lab, 1_000), behaviour=Behaviour.EXPIRE),
    ]
    await suspend(lab, claim, *arms)
    await lab.pass_time(5_000)
    assert await lab.state(claim.id) is PublicState.EXPIRED


async def test_until_wakes_it_whatever_it_waits_for(lab: Lab) -> None:
    """No wait is over by it: they go on when they are asked for again."""
    claim = await lab.running()
    wait = wait_on(lab, step=as_step("wait", 0))
    answer = await suspend(lab, claim, wait, until=in_(lab, SECOND))
    [listed] = await lab.engine.suspensions.suspended()
    assert listed.due_at == in_(lab, SECOND)
    await lab.pass_time(SECOND)
    assert await lab.state(claim.id) is PublicState.WAITING
    assert await waited(lab, claim) == {}
    await signal(lab, claim.id, answer.primary)
    [open_] = await lab.engine.suspensions.waitpoints(claim.id)
    assert open_.state == "pending"


async def test_a_timeout_before_until_comes_first(lab: Lab) -> None:
    claim = await lab.running()
    wait = wait_on(lab, timeout_at=in_(lab, SECOND), behaviour=Behaviour.CANCEL)
    await suspend(lab, claim, wait, until=in_(lab, 9_000))
    await lab.pass_time(SECOND)
    assert await lab.state(claim.id) is PublicState.CANCELLED


# -- the end of the execution


async def test_a_cancel_ends_a_suspension(lab: Lab) -> None:
    """E-T162, INV-15: a late signal and a late timer change nothing."""
    claim, answer = await waiting(lab, Behaviour.AUTO_RESUME)
    await lab.engine.executions.cancel(claim.id, reason="enough")
    seen = await described(lab, claim.id)
    assert (seen.state, seen.cancel_reason) == (PublicState.CANCELLED, "enough")
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert attempt.outcome == "ended_cancelled"
    before = await everything(lab, claim.id)
    with pytest.raises(NotSignalable):
        await signal(lab, claim.id, answer.primary)
    with pytest.raises(NotSuspended):
        await lab.engine.executions.resume(claim.id)
    await lab.pass_time(2 * SECOND)
    expired = await lab.engine.suspensions.expire(claim.id)
    assert expired == AlreadySatisfied("not_suspended_cleaned")
    assert await everything(lab, claim.id) == before
    assert await lab.engine.suspensions.suspended() == []


async def test_a_cancel_closes_every_waitpoint_and_forgets_what_was_heard(lab: Lab) -> None:
    """E-T163, E-T164, INV-12: what was accepted stays on record."""
    claim = await lab.running()
    answer = await suspend(lab, claim, wait_on(lab, all_waitpoints("a", "b", "c")))
    await signal(lab, claim.id, answer.primary)
    await lab.engine.executions.cancel(claim.id, reason="enough")
    for ticket in answer.waitpoints:
        with pytest.raises(NotSignalable):
            await signal(lab, claim.id, ticket)
        assert await lab.engine.suspensions.token(claim.id, ticket.id) is None
    waits = (await load(lab, claim.id)).life.waits
    assert waits is not None
    assert (waits.suspension, waits.pending, waits.last) == (None, (), None)
    assert len(await lab.engine.signals.of(claim.id)) == 1


async def test_a_timeout_forgets_what_was_heard(lab: Lab) -> None:
    """E-T225"""
    claim = await lab.running()
    wait = wait_on(lab, AllTrue((Single("a"), Single("b"))), timeout_at=in_(lab, SECOND))
    answer = await suspend(lab, claim, wait)
    await signal(lab, claim.id, answer.primary)
    await lab.pass_time(SECOND)
    waits = (await load(lab, claim.id)).life.waits
    assert waits is not None
    assert (waits.suspension, waits.pending) == (None, ())


async def test_the_deadline_ends_a_suspended_execution(lab: Lab) -> None:
    """E-X10: whichever is first, deadline or timeout."""
    claim = await take(lab, await lab.submit(deadline_at=in_(lab, SECOND)))
    wait = wait_on(lab, timeout_at=in_(lab, 5 * SECOND), behaviour=Behaviour.CANCEL)
    answer = await suspend(lab, claim, wait)
    await lab.pass_time(SECOND)
    assert await lab.state(claim.id) is PublicState.EXPIRED
    await lab.pass_time(5 * SECOND)
    assert await completions(lab, claim.id) == [Outcome.EXPIRED]
    with pytest.raises(NotSignalable):
        await signal(lab, claim.id, answer.primary)


@every_ending
async def test_a_replay_begins_without_the_old_suspension(lab: Lab, behaviour: Behaviour) -> None:
    """INV-12, INV-13: what was closed stays so, and a new suspension is a new one."""
    claim, answer = await waiting(lab, behaviour)
    await lab.pass_time(SECOND)
    await lab.engine.executions.replay(claim.id)
    again = await lab.claim_one()
    assert (again.attempt, again.epoch) == (1, 2)
    with pytest.raises(NotSignalable):
        await signal(lab, claim.id, answer.primary)
    assert await lab.engine.suspensions.observe(again) == []
    second = await suspend(lab, again)
    await lab.pass_time(5 * SECOND)
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    await signal(lab, claim.id, second.primary)
    assert (await lab.claim_one()).attempt == 1
