"""Suspending: an owner gives its lease up until the outside world has answered."""

import msgspec
import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    AlreadySuspended,
    FenceRequired,
    Invalid,
    LeaseExpired,
    LeaseRevoked,
    NotActive,
    NotFound,
    NotSignalable,
    NotSuspended,
    PartialFence,
    StaleLease,
    WaitpointExists,
)
from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, Family
from flowfabric.core.execution.handle import HandleKind
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import Source, Start
from flowfabric.core.execution.status import PublicState, Vector
from flowfabric.core.execution.step import Recorded, Step
from flowfabric.core.wait.condition.model import (
    AllTrue,
    AnyTrue,
    ByName,
    OperatorOnly,
    Single,
    TimeoutOnly,
    all_waitpoints,
)
from flowfabric.core.wait.model import Effect, ResumePolicy, StepRef, Waited
from flowfabric.core.wait.request import Binding
from flowfabric.core.wait.signal import Accepted
from flowfabric.engine.execution.attempts import FencedExecution
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.owners import FORMS, every_form, everything
from tests.kit.situations import described, missing_ids, take, timeouts
from tests.kit.waits import (
    GO,
    fresh_id,
    in_,
    keys,
    named,
    request,
    signal,
    suspend,
    suspend_by,
    wait_on,
)

ACTIVE = "active leased not_applicable none none running_attempt"
SUSPENDED = "suspended unowned not_applicable waiting_for_signal none attempt_interrupted"
RESUMED = "runnable unowned eligible_now waiting_for_worker none attempt_interrupted"
RETRYING = {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 10}}}


def words(vector: Vector) -> str:
    return " ".join(
        [
            vector.phase,
            vector.ownership,
            vector.eligibility,
            vector.blocking,
            vector.outcome,
            vector.attempt,
        ]
    )


# -- what a suspend is


@every_form
async def test_a_suspend_gives_the_lease_up_and_hands_a_token_out(lab: Lab, form: str) -> None:
    """E-T210, E-T219: ids echoed, a token, a handle of the suspended kind, whatever form the
    caller owns it in."""
    claim = await lab.running()
    wanted = request(lab)
    answer = await suspend_by(lab, FORMS[form](lab, claim), wanted)
    binding = wanted.waits[0].bindings[0]
    assert (answer.suspension, answer.satisfied) == (wanted.id, False)
    assert (answer.primary.id, answer.primary.key) == (binding.id, GO)
    assert answer.additional == ()
    assert answer.primary.token is not None
    assert answer.primary.token.reveal()
    assert answer.handle is not None
    handle = lab.engine.attempts.open(answer.handle)
    assert handle.kind is HandleKind.SUSPENDED
    assert (handle.execution_id, handle.attempt_index) == (claim.id, 0)
    assert (handle.attempt_id, handle.epoch) == (claim.attempt_id, 1)
    assert (handle.lease_ttl, handle.lane) == (TTL, "default")
    assert (handle.worker, handle.instance) == (W1.id, W1.instance)
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    assert await lab.engine.claims.held_by(W1.instance) == []
    assert await lab.claim(W2) == []


async def test_suspend_signal_and_resumed_claim_show_exactly_these_vectors(lab: Lab) -> None:
    """E-T211, E-T236, E-X14: the worked trace; attempt 0 all along, epoch 2 after the claim."""
    claim = await lab.running()
    assert words(await lab.vector(claim.id)) == ACTIVE
    answer = await suspend(lab, claim, wait_on(lab, named("resume_me")))
    assert words(await lab.vector(claim.id)) == SUSPENDED
    seen = await described(lab, claim.id)
    assert (seen.attempt, seen.attempt_id, seen.epoch) == (0, claim.attempt_id, 1)
    assert (seen.lease, seen.state) == (None, PublicState.SUSPENDED)
    assert seen.waitpoint == answer.primary.id  # §3.48
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.outcome, attempt.ended_at) == ("suspended", None)

    heard = await signal(lab, claim.id, answer.primary, "resume_me")
    assert isinstance(heard, Accepted)
    assert heard.effect is Effect.SATISFIED
    assert words(await lab.vector(claim.id)) == RESUMED
    assert await lab.state(claim.id) is PublicState.WAITING
    seen = await described(lab, claim.id)
    assert (seen.epoch, seen.waitpoint) == (1, None)

    again = await lab.claim_one(W2)
    assert words(await lab.vector(claim.id)) == ACTIVE
    assert (again.id, again.attempt, again.attempt_id) == (claim.id, 0, claim.attempt_id)
    assert (again.epoch, again.handle_kind) == (2, HandleKind.RESUMED)
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.type, attempt.outcome) == (Start.INITIAL, "started")
    leases = [event.lease for event in await lab.events(claim.id, family=Family.LEASE)]
    assert leases == ["acquired", "released", "acquired"]
    assert len(await lab.events(claim.id, family=Family.SIGNAL)) == 1


async def test_a_whole_life_with_a_suspension_in_it(lab: Lab) -> None:
    """E-T153, E-T212: progress, renewal, suspend, signal, resumed claim, completion."""
    claim = await lab.running()
    await lab.engine.attempts.progress(claim, 40, "half")
    lab.clock.advance(1_000)
    await lab.engine.attempts.renew(claim, TTL)
    answer = await suspend(lab, lab.engine.attempts.seal(claim))
    await signal(lab, claim.id, answer.primary, payload=b"yes", correlation="c1")
    again = await lab.claim_one(W2)
    assert (again.attempt, again.epoch) == (0, 2)
    [heard] = await lab.engine.suspensions.observe(again)
    assert (heard.name, heard.payload, heard.correlation) == (GO, b"yes", "c1")
    await lab.complete(again, b"done")
    assert await lab.state(claim.id) is PublicState.COMPLETED
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.index, attempt.outcome) == (0, "ended_success")


async def test_the_release_is_told_with_its_reason(lab: Lab) -> None:
    """INV-5: one released event, no ending."""
    claim = await lab.running()
    answer = await suspend(lab, claim, reason="waiting_for_approval")
    [_, released] = await lab.events(claim.id)
    assert (released.kind, released.epoch) == (EventKind.SUSPENDED, 1)
    assert released.detail is not None
    assert released.detail["suspension"] == str(answer.suspension)
    assert released.detail["reason"] == "waiting_for_approval"
    assert not await lab.events(claim.id, family=Family.COMPLETION)


@pytest.mark.rules
@pytest.mark.parametrize(
    ("reason", "blocking"),
    [
        ("waiting_for_signal", "waiting_for_signal"),
        ("waiting_for_approval", "waiting_for_approval"),
        ("waiting_for_callback", "waiting_for_callback"),
        ("waiting_for_tool_result", "waiting_for_tool_result"),
        ("waiting_for_operator_review", "paused_by_operator"),
        ("manual_pause", "paused_by_operator"),
        ("paused_by_policy", "paused_by_policy"),
        ("paused_by_budget", "waiting_for_budget"),
        ("step_boundary", "waiting_for_signal"),
        ("the moon is full", "waiting_for_signal"),
    ],
)
async def test_the_reason_decides_what_blocks(lab: Lab, reason: str, blocking: str) -> None:
    claim = await lab.running()
    await suspend(lab, claim, reason=reason)
    assert (await described(lab, claim.id)).blocking == blocking


async def test_several_waitpoints_are_answered_in_their_order(lab: Lab) -> None:
    """E-T210: primary and additional, each with a token of its own."""
    claim = await lab.running()
    answer = await suspend(lab, claim, wait_on(lab, all_waitpoints("a", "b", "c")))
    assert keys(answer.waitpoints) == ["a", "b", "c"]
    assert (answer.primary.key, keys(answer.additional)) == ("a", ["b", "c"])
    assert len({ticket.token for ticket in answer.waitpoints}) == 3
    for ticket in answer.waitpoints:
        assert await lab.state(claim.id) is PublicState.SUSPENDED
        await signal(lab, claim.id, ticket)
    assert await lab.state(claim.id) is PublicState.WAITING
    heard = await lab.engine.suspensions.observe(await lab.claim_one())
    assert [item.key for item in heard] == ["a", "b", "c"]


async def test_any_of_several_arms_wakes_the_execution_and_closes_the_others(lab: Lab) -> None:
    """INV-12, INV-15"""
    claim = await lab.running()
    answer = await suspend(lab, claim, wait_on(lab, "left"), wait_on(lab, "right"))
    left, right = answer.waitpoints
    await signal(lab, claim.id, right)
    assert await lab.state(claim.id) is PublicState.WAITING
    with pytest.raises(NotSignalable):
        await signal(lab, claim.id, left)
    assert await lab.engine.suspensions.waitpoints(claim.id) == []


# -- repeating it


async def test_a_repeat_with_the_same_key_gets_the_first_answer(lab: Lab) -> None:
    """E-T213: same suspension id, key and token, although the lease is gone."""
    claim = await lab.running()
    first = await suspend(lab, claim, idempotency_key="k")
    before = await everything(lab, claim.id)
    second = await suspend(lab, claim, wait_on(lab, "other"), idempotency_key="k")
    assert (second.suspension, second.waitpoints) == (first.suspension, first.waitpoints)
    assert second.satisfied is False
    assert await everything(lab, claim.id) == before


async def test_a_repeat_is_known_when_another_lease_stands_and_after_the_end(lab: Lab) -> None:
    """E-T213: before every check of the state."""
    claim = await lab.running()
    first = await suspend(lab, claim, idempotency_key="k")
    await signal(lab, claim.id, first.primary)
    again = await lab.claim_one(W2)
    assert (await suspend(lab, claim, idempotency_key="k")).waitpoints == first.waitpoints
    await lab.complete(again)
    assert (await suspend(lab, claim, idempotency_key="k")).waitpoints == first.waitpoints
    assert await lab.state(claim.id) is PublicState.COMPLETED


async def test_two_executions_with_the_same_key_do_not_share_an_answer(lab: Lab) -> None:
    """E-X25"""
    one, two = await lab.running(), await lab.running()
    first = await suspend(lab, one, idempotency_key="k")
    second = await suspend(lab, two, idempotency_key="k")
    assert first.suspension != second.suspension
    assert first.primary.token != second.primary.token
    assert await lab.state(two.id) is PublicState.SUSPENDED


async def test_an_empty_key_is_none(lab: Lab) -> None:
    """E-T214"""
    claim = await lab.running()
    await suspend(lab, claim, idempotency_key="")
    with pytest.raises(NotActive):
        await suspend(lab, claim, idempotency_key="")


async def test_a_timeout_of_zero_is_none(lab: Lab) -> None:
    """§1.2: a moment of zero is not set"""
    claim = await lab.running()
    await suspend(lab, claim, wait_on(lab, timeout_at=Millis(0)))
    await lab.pass_time(10 * 86_400_000)
    assert await lab.engine.views.state(claim.id) is PublicState.SUSPENDED


@pytest.mark.parametrize(
    ("timeout", "window"), [(None, 7 * 86_400_000), (5_000, 65_000), (8 * 86_400_000, 604_800_000)]
)
async def test_a_key_is_remembered_for_its_window(
    lab: Lab, timeout: int | None, window: int
) -> None:
    """E-T213: a minute longer than the timeout, a week at most."""
    claim = await lab.running()
    at = None if timeout is None else in_(lab, timeout)
    first = await suspend(lab, claim, wait_on(lab, timeout_at=at), idempotency_key="k")
    lab.clock.advance(window - 1)
    known = await suspend(lab, claim, idempotency_key="k")
    assert known.suspension == first.suspension
    lab.clock.advance(1)
    with pytest.raises(NotActive):
        await suspend(lab, claim, idempotency_key="k")


async def test_a_key_is_remembered_for_the_timeout_of_the_policy(lab: Lab) -> None:
    """E-T213, §1.9: the timeout that the request does not say is said by the policy"""
    policy = {"suspension_policy": {"default_timeout_ms": 5_000, "timeout_behavior": "escalate"}}
    claim = await lab.running(policy=policy)
    first = await suspend(lab, claim, idempotency_key="k")
    lab.clock.advance(64_999)
    assert (await suspend(lab, claim, idempotency_key="k")).suspension == first.suspension
    lab.clock.advance(1)
    with pytest.raises(NotActive):
        await suspend(lab, claim, idempotency_key="k")


@every_form
async def test_the_very_same_request_may_be_repeated_without_a_key(lab: Lab, form: str) -> None:
    """A lost reply: the same fence and the same suspension id get the same answer."""
    claim = await lab.running()
    wanted = request(lab, wait_on(lab, all_waitpoints("a", "b")))
    owned = FORMS[form](lab, claim)
    first = await suspend_by(lab, owned, wanted)
    before = await everything(lab, claim.id)
    second = await suspend_by(lab, owned, wanted)
    assert (second.suspension, second.waitpoints) == (first.suspension, first.waitpoints)
    assert await everything(lab, claim.id) == before


async def test_another_request_of_the_old_owner_is_refused(lab: Lab) -> None:
    """E-T214: by the order of the gate it is not active, rather than already suspended."""
    claim = await lab.running()
    await suspend(lab, claim)
    before = await everything(lab, claim.id)
    with pytest.raises(NotActive) as refusal:
        await suspend(lab, claim)
    assert refusal.value.phase == "suspended"
    assert await everything(lab, claim.id) == before


async def test_the_handle_of_a_suspended_execution_suspends_nothing(lab: Lab) -> None:
    """E-T215"""
    claim = await lab.running()
    answer = await suspend(lab, claim)
    assert answer.handle is not None
    with pytest.raises(AlreadySuspended):
        await suspend(lab, answer.handle)


# -- who may


async def test_only_the_current_fence_suspends(lab: Lab) -> None:
    """E-T220: a stale fence is a stale lease, and nothing changes."""
    claim = await lab.running()
    wrong = [
        replace(claim.owner, lease_id=new_uuid7(lab.clock.now(), 9)),
        replace(claim.owner, epoch=7),
        replace(claim.owner, attempt_id=new_uuid7(lab.clock.now(), 9)),
    ]
    before = await everything(lab, claim.id)
    for owner in wrong:
        with pytest.raises(StaleLease):
            await suspend(lab, FencedExecution(claim.id, owner))
    with pytest.raises(PartialFence):
        await suspend(lab, FencedExecution(claim.id, Owner(lease_id=claim.lease.id)))
    for source in (Source.LEASE_HOLDER, Source.OPERATOR):
        with pytest.raises(FenceRequired):
            await suspend(lab, FencedExecution(claim.id, Owner(source=source)))
    assert await everything(lab, claim.id) == before


@every_form
async def test_a_lease_that_is_gone_suspends_nothing(lab: Lab, form: str) -> None:
    """E-T220: expired, revoked, taken by another, ended, missing."""
    claim = await lab.running()
    owned = FORMS[form](lab, claim)
    lab.clock.advance(claim.ttl)
    with pytest.raises(LeaseExpired):
        await suspend(lab, owned)
    assert (await lab.vector(claim.id)).ownership == "lease_expired_reclaimable"
    again = await lab.claim_one(W2)
    with pytest.raises(StaleLease):
        await suspend(lab, owned)
    await lab.engine.claims.revoke(claim.id, reason="maintenance")
    with pytest.raises(LeaseRevoked):
        await suspend(lab, FORMS[form](lab, again))
    await lab.engine.executions.cancel(claim.id, reason="enough")
    with pytest.raises(NotActive):
        await suspend(lab, FORMS[form](lab, again))
    assert await lab.engine.suspensions.suspended() == []


async def test_an_execution_that_does_not_exist_cannot_be_suspended(lab: Lab) -> None:
    claim = await lab.running()
    for id in await missing_ids(lab):
        with pytest.raises(NotFound):
            await suspend(lab, FencedExecution(id, claim.owner))


async def test_the_id_of_a_waitpoint_is_used_once(lab: Lab) -> None:
    """A new waitpoint never takes the place of one that exists."""
    claim = await lab.running()
    binding = Binding(id=fresh_id(lab), key=GO)
    answer = await suspend(lab, claim, wait_on(lab, GO, binding))
    await signal(lab, claim.id, answer.primary)
    again = await lab.claim_one()
    with pytest.raises(WaitpointExists):
        await suspend(lab, again, wait_on(lab, GO, binding))
    twice = wait_on(lab, all_waitpoints("a", "b"), replace(binding, key="a"))
    both = (Binding(id=new_uuid7(1, 1), key="a"), Binding(id=new_uuid7(1, 1), key="b"))
    with pytest.raises(WaitpointExists):
        await suspend(lab, again, replace(twice, bindings=both))
    assert await lab.state(claim.id) is PublicState.ACTIVE


async def test_an_id_of_a_suspension_that_is_over_is_refused(lab: Lab) -> None:
    """It was answered as satisfied, though no signal had come."""
    claim = await lab.running()
    answer = await suspend(lab, claim)
    await signal(lab, claim.id, answer.primary)
    again = await lab.claim_one()
    with pytest.raises(Invalid, match="id of its own"):
        await suspend(lab, again, id=answer.suspension)
    await lab.engine.attempts.delay(again, lab.clock.now())
    await lab.pass_time(0)
    with pytest.raises(Invalid, match="id of its own"):
        await suspend(lab, await lab.claim_one(), id=answer.suspension)
    assert await lab.state(claim.id) is PublicState.ACTIVE


async def test_a_condition_that_no_signal_satisfies_is_logged(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """§4.2: accepted, with a warning; only an operator or the timeout ends it"""
    hopeless = AllTrue((Single(GO), AllTrue((OperatorOnly(),))))
    for condition, warnings in (
        (hopeless, 1),
        (AllTrue((Single(GO), TimeoutOnly())), 1),
        (AnyTrue((Single(GO), OperatorOnly())), 0),
        (OperatorOnly(), 0),
        (all_waitpoints(GO, "b"), 0),
    ):
        caplog.clear()
        claim = await lab.running()
        await suspend(lab, claim, wait_on(lab, condition))
        found = [each for each in caplog.records if each.name == "flowfabric.suspensions"]
        assert [each.levelname for each in found] == ["WARNING"] * warnings
        assert all(claim.id in each.getMessage() for each in found)
        assert await lab.state(claim.id) is PublicState.SUSPENDED


# -- going on


async def test_an_operator_resumes_without_a_signal(lab: Lab) -> None:
    """E-T233, E-T235, INV-12: the suspension and its waitpoints are closed."""
    claim = await lab.running()
    answer = await suspend(lab, claim, wait_on(lab, timeout_at=in_(lab, 5_000)))
    resumed = await lab.engine.executions.resume(claim.id)
    assert (resumed.id, resumed.state) == (claim.id, PublicState.WAITING)
    assert words(await lab.vector(claim.id)) == RESUMED
    assert [e.kind for e in await lab.events(claim.id)][-1] is EventKind.WOKEN
    with pytest.raises(NotSuspended):
        await lab.engine.executions.resume(claim.id)
    with pytest.raises(NotSignalable):
        await signal(lab, claim.id, answer.primary)
    await lab.pass_time(10_000)
    again = await lab.claim_one()
    assert (again.attempt, again.epoch) == (0, 2)
    assert await lab.engine.suspensions.observe(again) == []


async def test_the_signals_of_an_earlier_suspension_are_not_those_of_the_open_one(lab: Lab) -> None:
    """§3.37, E-T271: of the most recent suspension, which none has ended yet"""
    claim = await lab.running()
    first = await suspend(lab, claim)
    await signal(lab, claim.id, first.primary)
    again = await lab.claim_one()
    assert len(await lab.engine.suspensions.observe(again)) == 1
    second = await suspend(lab, again)
    assert second.handle is not None
    for owned in (second.handle, again):
        assert await lab.engine.suspensions.observe(owned) == []
    await signal(lab, claim.id, second.primary, "second")
    [heard] = await lab.engine.suspensions.observe(second.handle)
    assert heard.name == "second"


async def test_an_operator_resumes_with_a_delay(lab: Lab) -> None:
    """E-T234, E-X10: it wakes by itself."""
    claim = await lab.running()
    await suspend(lab, claim)
    resumed = await lab.engine.executions.resume(claim.id, delay=Millis(1_000))
    assert resumed.state is PublicState.DELAYED
    assert (await lab.vector(claim.id)).blocking == "waiting_for_resume_delay"
    await lab.pass_time(999)
    assert await lab.claim() == []
    await lab.pass_time(1)
    assert (await lab.claim_one()).attempt == 0


async def test_only_a_suspended_execution_can_be_resumed(lab: Lab) -> None:
    """E-T235"""
    with pytest.raises(NotSuspended):
        await lab.engine.executions.resume(await lab.submit())
    for id in await missing_ids(lab):
        with pytest.raises(NotFound):
            await lab.engine.executions.resume(id)


@pytest.mark.parametrize(("call", "policy", "wait"), [(None, 700, 700), (300, 700, 300), (0, 7, 0)])
async def test_the_delay_of_the_call_beats_that_of_the_policy(
    lab: Lab, call: int | None, policy: int, wait: int
) -> None:
    """E-X10"""
    claim = await lab.running()
    resume = ResumePolicy(resume_delay=Millis(policy))
    answer = await suspend(lab, claim, wait_on(lab, policy=resume))
    await signal(lab, claim.id, answer.primary, delay=call)
    if wait:
        await lab.pass_time(wait - 1)
        assert await lab.claim() == []
        await lab.pass_time(1)
    assert (await lab.claim_one()).id == claim.id


async def test_the_attempt_timeout_counts_only_while_it_runs(lab: Lab) -> None:
    """E-T211: what was left of it goes on after the suspension."""
    claim = await take(lab, await lab.submit(policy=timeouts(attempt=10_000)))
    lab.clock.advance(4_000)
    answer = await suspend(lab, claim)
    await lab.pass_time(60_000)
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    await signal(lab, claim.id, answer.primary)
    again = await lab.claim_one()
    assert again.lease.times_out_at == in_(lab, 6_000)
    await lab.pass_time(6_000)
    assert await lab.state(claim.id) is PublicState.EXPIRED


async def test_a_wait_becomes_a_step_by_the_change_that_satisfies_it(lab: Lab) -> None:
    """The step of the arm that was satisfied, and of no other; steps of the request at once."""
    claim = await lab.running()
    arms = [
        wait_on(lab, key, step=StepRef(generation=0, position=at, name=key, occurrence=0))
        for at, key in enumerate(["left", "right"], start=1)
    ]
    made = Step(generation=0, position=0, name="made", occurrence=0, doc=b"1")
    answer = await suspend(lab, claim, *arms, steps=(made,))
    assert await lab.engine.attempts.steps(claim.uuid, 0) == [made]
    await signal(lab, claim.id, answer.waitpoints[1])
    [_, step] = await lab.engine.attempts.steps(claim.uuid, 0)
    assert (step.position, step.name, step.occurrence) == (2, "right", 0)
    recorded = msgspec.json.decode(step.doc, type=Recorded)
    assert (recorded.waited, recorded.suspension) == (Waited.SIGNALLED, answer.suspension)
    open_ = await lab.engine.suspensions.waitpoints(claim.id)
    assert [(item.key, item.state) for item in open_] == [("left", "pending")]


async def test_an_operators_resume_ends_every_wait_that_is_a_step(lab: Lab) -> None:
    claim = await lab.running()
    ref = StepRef(generation=0, position=0, name="w", occurrence=0, branch="b")
    await suspend(lab, claim, wait_on(lab, step=ref))
    await lab.engine.executions.resume(claim.id)
    [step] = await lab.engine.attempts.steps(claim.uuid, 0)
    recorded = msgspec.json.decode(step.doc, type=Recorded)
    assert (recorded.waited, recorded.branch) == (Waited.RESUMED, "b")


async def test_a_retry_after_a_suspension_is_a_new_attempt(lab: Lab) -> None:
    """E-X14, E-T213: the worked trace goes on with a retry under a higher epoch."""
    claim = await take(lab, await lab.submit(policy=RETRYING))
    answer = await suspend(lab, claim, wait_on(lab, AllTrue((Single(GO, ByName("a")),))))
    await signal(lab, claim.id, answer.primary, "a")
    again = await lab.claim_one()
    await lab.fail(again)
    assert (await lab.vector(claim.id)).blocking == "waiting_for_retry_backoff"
    await lab.pass_time(10)
    retry = await lab.claim_one()
    assert (retry.attempt, retry.epoch) == (1, 3)
    assert await lab.engine.suspensions.observe(retry) == []


async def test_the_handle_of_a_suspended_execution_reads_its_signals(lab: Lab) -> None:
    """§3.37: nothing while it waits, then what ended the wait; it owns nothing all the same"""
    claim = await lab.running()
    answer = await suspend(lab, claim, wait_on(lab, GO))
    assert answer.handle is not None
    assert await lab.engine.suspensions.observe(answer.handle) == []
    await signal(lab, claim.id, answer.primary, payload=b"here")
    [heard] = await lab.engine.suspensions.observe(answer.handle)
    assert (heard.name, heard.payload) == (GO, b"here")
    with pytest.raises(NotActive):
        await lab.engine.attempts.complete(answer.handle)
