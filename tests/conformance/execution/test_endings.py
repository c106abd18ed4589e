"""Endings by the owner: complete and fail for good. Retries are in test_retry."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid, NotActive, PayloadTooLarge, StaleLease
from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import Completed, TerminalFailed
from flowfabric.core.execution.event import EventKind, Family
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import Failure, Outcome, Source
from flowfabric.core.execution.operator import Cancelled
from flowfabric.core.execution.status import (
    AttemptState,
    Blocking,
    Eligibility,
    Ownership,
    Phase,
    PublicState,
    Vector,
)
from flowfabric.engine.execution.attempts import FencedExecution
from tests.kit.lab import W1, W2, Lab
from tests.kit.leases import UNKNOWN, describe
from tests.kit.owners import FORMS, RETRYING, every_form, everything


def terminal(outcome: str) -> Vector:
    return Vector(
        Phase.TERMINAL,
        Ownership.UNOWNED,
        Eligibility.NOT_APPLICABLE,
        Blocking.NONE,
        outcome,
        AttemptState.TERMINAL,
    )


# -- complete


@every_form
async def test_a_completed_execution_is_over(lab: Lab, form: str) -> None:
    """E-T130, INV-5, INV-8, INV-28"""
    claim = await lab.running()
    started_at = lab.clock.now()
    lab.clock.advance(1234)
    answer = await lab.engine.attempts.complete(FORMS[form](lab, claim), b"42")
    assert answer == Completed(claim.id)
    assert await lab.vector(claim.id) == terminal("success")
    assert await lab.state(claim.id) is PublicState.COMPLETED
    description = await describe(lab, claim.id)
    assert (description.started_at, description.ended_at) == (started_at, lab.clock.now())
    assert (description.lease, description.failure, description.epoch) == (None, None, 1)
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.outcome, attempt.ended_at, attempt.result) == (
        "ended_success",
        lab.clock.now(),
        b"42",
    )
    assert await lab.engine.claims.held_by(W1.instance) == []
    assert await lab.claim(W2) == []


async def test_completing_writes_one_event_that_is_lease_and_completion(lab: Lab) -> None:
    """E-T130, INV-5"""
    claim = await lab.running()
    await lab.complete(claim)
    [_, completed] = await lab.events(claim.id)
    assert (completed.kind, completed.completion) == (EventKind.COMPLETED, Outcome.SUCCESS)
    assert (completed.lease, completed.reason) == ("released", "completed")
    assert (completed.epoch, completed.attempt, completed.worker) == (1, 0, W1)
    assert completed.at == lab.clock.now()


async def test_an_operator_completes_without_a_fence(lab: Lab) -> None:
    """E-T132"""
    claim = await lab.running()
    answer = await lab.engine.attempts.complete(
        FencedExecution(claim.id, Owner(source=Source.OPERATOR)), b"by hand"
    )
    assert answer == Completed(claim.id)
    assert await lab.vector(claim.id) == terminal("success")
    assert await lab.engine.views.result(claim.id) == b"by hand"


async def test_the_first_result_stays(lab: Lab) -> None:
    """E-T136 [C], E-X06, E-X18, INV-23: a repeat is answered like the first call"""
    claim = await lab.running()
    forms = [form(lab, claim) for form in FORMS.values()]
    first = await lab.engine.attempts.complete(claim, b"first")
    before = await everything(lab, claim.id)
    lab.clock.advance(100_000)
    for owned in forms:
        assert await lab.engine.attempts.complete(owned, b"second") == first
    assert await everything(lab, claim.id) == before
    assert await lab.engine.views.result(claim.id) == b"first"


@every_form
async def test_a_result_keeps_its_encoding(lab: Lab, form: str) -> None:
    """§3.14, §3.0.1, INV-23: it is the first one's, as the result is"""
    claim = await lab.running()
    owned = FORMS[form](lab, claim)
    await lab.engine.attempts.complete(owned, b"\x80", encoding="msgpack")
    await lab.engine.attempts.complete(owned, b"{}", encoding="json")
    assert (await describe(lab, claim.id)).result_encoding == "msgpack"
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.result, attempt.result_encoding) == (b"\x80", "msgpack")


async def test_a_replay_leaves_the_encoding_with_the_attempt(lab: Lab) -> None:
    """§3.14, §3.22: the next result has its own"""
    claim = await lab.running()
    await lab.engine.attempts.complete(claim, b"\x80", encoding="msgpack")
    await lab.engine.executions.replay(claim.id)
    assert (await describe(lab, claim.id)).result_encoding is None
    await lab.complete(await lab.claim_one(), b"{}")
    assert (await describe(lab, claim.id)).result_encoding is None
    attempts = await lab.engine.views.attempts(claim.id)
    assert [attempt.result_encoding for attempt in attempts] == ["msgpack", None]


@pytest.mark.rules
@pytest.mark.parametrize("encoding", [1, b"json", "x" * 257, "a\0b", "\ud800"])
async def test_an_encoding_is_short_text(lab: Lab, encoding: Any) -> None:
    """§3.14, INV-24"""
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.attempts.complete(claim, b"{}", encoding=encoding)
    assert await lab.state(claim.id) is PublicState.ACTIVE


async def test_completes_at_once_from_two_processes_are_one(lab: Lab, second_lab: Lab) -> None:
    """E-X06, INV-5"""
    claim = await lab.running()
    handle = lab.engine.attempts.seal(claim)
    answers = await asyncio.gather(
        lab.engine.attempts.complete(claim, b"a"),
        second_lab.engine.attempts.complete(handle, b"b"),
        second_lab.engine.attempts.complete(handle, b"c"),
        lab.engine.attempts.complete(claim, b"d"),
    )
    assert set(answers) == {Completed(claim.id)}
    assert len(await lab.events(claim.id, family=Family.COMPLETION)) == 1
    assert await lab.engine.views.result(claim.id) in (b"a", b"b", b"c", b"d")


async def test_another_fence_is_told_how_it_ended(lab: Lab) -> None:
    """E-T134, E-T136: enough for a caller to find out whether it was its own call"""
    claim = await lab.running()
    await lab.complete(claim)
    fence = claim.fence
    other = Owner(new_uuid7(1, 1), fence.epoch, fence.attempt_id)
    with pytest.raises(NotActive) as refusal:
        await lab.engine.attempts.complete(FencedExecution(claim.id, other))
    assert (refusal.value.phase, refusal.value.outcome) == ("terminal", "success")
    assert (refusal.value.epoch, refusal.value.attempt_id) == (1, claim.attempt_id)


async def test_an_override_repeated_is_refused(lab: Lab) -> None:
    """There is no fence by which a repeat could be known."""
    claim = await lab.running()
    operator = FencedExecution(claim.id, Owner(source=Source.OPERATOR))
    await lab.engine.attempts.complete(operator)
    with pytest.raises(NotActive):
        await lab.engine.attempts.complete(operator)


async def test_the_owner_recognises_what_an_operator_did_for_it(lab: Lab) -> None:
    """§3.0.3: same epoch, same attempt, same outcome"""
    claim = await lab.running()
    await lab.engine.attempts.complete(
        FencedExecution(claim.id, Owner(source=Source.OPERATOR)), b"by hand"
    )
    assert await lab.engine.attempts.complete(claim, b"late") == Completed(claim.id)
    assert await lab.engine.views.result(claim.id) == b"by hand"


@pytest.mark.parametrize("member", ["lease_id", "epoch", "attempt_id"])
async def test_a_wrong_fence_completes_nothing(lab: Lab, member: str) -> None:
    """E-T133, E-T135"""
    claim = await lab.running()
    fence: dict[str, Any] = {
        "lease_id": claim.fence.lease_id,
        "epoch": claim.fence.epoch,
        "attempt_id": claim.fence.attempt_id,
    }
    fence[member] = {"epoch": 2}.get(member, new_uuid7(1, 1))
    with pytest.raises(StaleLease):
        await lab.engine.attempts.complete(FencedExecution(claim.id, Owner(**fence)))
    assert await lab.state(claim.id) is PublicState.ACTIVE


async def test_a_completed_execution_cannot_fail(lab: Lab) -> None:
    """E-X06, INV-4"""
    claim = await lab.running(policy=RETRYING)
    await lab.complete(claim, b"done")
    before = await everything(lab, claim.id)
    for form in FORMS.values():
        with pytest.raises(NotActive) as refusal:
            await lab.engine.attempts.fail(form(lab, claim), Failure("late"))
        assert (refusal.value.outcome, refusal.value.epoch) == ("success", 1)
    assert await everything(lab, claim.id) == before


async def test_a_failed_execution_cannot_be_completed(lab: Lab) -> None:
    """INV-4"""
    claim = await lab.running()
    await lab.fail(claim)
    before = await everything(lab, claim.id)
    with pytest.raises(NotActive) as refusal:
        await lab.engine.attempts.complete(claim)
    assert (refusal.value.phase, refusal.value.outcome) == ("terminal", "failed")
    assert await everything(lab, claim.id) == before


async def test_a_complete_and_a_cancel_at_once_end_it_once(lab: Lab, second_lab: Lab) -> None:
    """INV-5: whoever comes second is told"""
    claim = await lab.running()
    answers = await asyncio.gather(
        lab.engine.attempts.complete(claim, b"done"),
        second_lab.engine.executions.cancel(claim.id, reason="enough"),
        return_exceptions=True,
    )
    [event] = await lab.events(claim.id, family=Family.COMPLETION)
    if event.completion is Outcome.SUCCESS:
        assert answers[0] == Completed(claim.id)
        assert isinstance(answers[1], NotActive)
    else:
        assert isinstance(answers[0], NotActive)
        assert answers[1] == Cancelled(claim.id)


# -- results


@pytest.mark.parametrize("result", [b"", b"plain", bytes(range(256)), b"\xff\xfe\x00"])
async def test_a_result_is_kept_byte_for_byte(lab: Lab, result: bytes) -> None:
    """E-T138, E-T139, E-T140"""
    claim = await lab.running()
    await lab.complete(claim, result)
    assert await lab.engine.views.result(claim.id) == result


async def test_there_is_no_result_before_the_completion(lab: Lab) -> None:
    """E-T137, E-T140"""
    assert await lab.engine.views.result(UNKNOWN) is None
    id = await lab.submit()
    assert await lab.engine.views.result(id) is None
    claim = await lab.claim_one()
    assert await lab.engine.views.result(id) is None
    await lab.complete(claim)
    assert await lab.engine.views.result(id) is None


async def test_a_result_has_a_limit(lab: Lab) -> None:
    claim = await lab.running()
    with pytest.raises(PayloadTooLarge):
        await lab.complete(claim, bytes((1 << 20) + 1))
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.complete(claim, bytes(1 << 20))
    assert await lab.engine.views.result(claim.id) == bytes(1 << 20)


@pytest.mark.rules
@pytest.mark.parametrize("result", ["text", 5, {"a": 1}])
async def test_a_result_is_bytes(lab: Lab, result: Any) -> None:
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.complete(claim, result)
    assert await lab.state(claim.id) is PublicState.ACTIVE


# -- fail for good


@every_form
async def test_a_failure_without_a_policy_is_final(lab: Lab, form: str) -> None:
    """E-T143, E-T147, INV-5, INV-28"""
    claim = await lab.running()
    lab.clock.advance(1000)
    failure = Failure("no such file", "transient", b"\xfftrace")
    answer = await lab.engine.attempts.fail(FORMS[form](lab, claim), failure)
    assert answer == TerminalFailed(claim.id)
    assert await lab.vector(claim.id) == terminal("failed")
    description = await describe(lab, claim.id)
    assert (description.failure, description.lease) == (failure, None)
    assert (description.ended_at, description.retries) == (lab.clock.now(), 0)
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.outcome, attempt.failure) == ("ended_failure", failure)
    assert await lab.engine.views.result(claim.id) is None
    assert await lab.claim(W2) == []


async def test_a_final_failure_writes_one_event_that_is_lease_and_completion(lab: Lab) -> None:
    """E-T143, INV-5"""
    claim = await lab.running()
    await lab.fail(claim, "permanent", "no such file")
    [_, failed] = await lab.events(claim.id)
    assert (failed.kind, failed.completion) == (EventKind.FAILED, Outcome.FAILED)
    assert (failed.lease, failed.reason) == ("released", "failed")
    assert (failed.epoch, failed.attempt, failed.worker) == (1, 0, W1)
    assert failed.detail is not None
    assert failed.detail["message"] == "no such file"
    assert failed.detail["category"] == "permanent"


async def test_the_first_failure_stays(lab: Lab) -> None:
    """E-X18, INV-23"""
    claim = await lab.running()
    forms = [form(lab, claim) for form in FORMS.values()]
    first = await lab.fail(claim, message="first")
    before = await everything(lab, claim.id)
    lab.clock.advance(100_000)
    for owned in forms:
        assert await lab.engine.attempts.fail(owned, Failure("second")) == first
    assert await everything(lab, claim.id) == before


async def test_an_operator_fails_without_a_fence(lab: Lab) -> None:
    claim = await lab.running()
    operator = FencedExecution(claim.id, Owner(source=Source.OPERATOR))
    answer = await lab.engine.attempts.fail(operator, Failure("by hand"))
    assert answer == TerminalFailed(claim.id)


@pytest.mark.rules
@pytest.mark.parametrize(
    "failure",
    [
        Failure("boom", "x" * 257),
        Failure("boom", ""),
        Failure("nul \0"),
        Failure("\ud800"),
        Failure("x" * ((1 << 16) + 1)),
        Failure("boom", detail=bytes((1 << 20) + 1)),
    ],
    ids=["category", "no category", "nul", "surrogate", "long", "large detail"],
)
async def test_a_failure_that_cannot_be_stored_changes_nothing(lab: Lab, failure: Failure) -> None:
    """INV-24"""
    claim = await lab.running(policy=RETRYING)
    before = await everything(lab, claim.id)
    for form in FORMS.values():
        with pytest.raises(Invalid):
            await lab.engine.attempts.fail(form(lab, claim), failure)
    assert await everything(lab, claim.id) == before


async def test_a_cancel_by_the_owner_repeated_is_one_cancel(lab: Lab) -> None:
    """E-X18, §3.18, INV-5"""
    claim = await lab.running()
    forms = [form(lab, claim) for form in FORMS.values()]
    assert await lab.engine.attempts.cancel(claim, "not needed") == Cancelled(claim.id)
    before = await everything(lab, claim.id)
    lab.clock.advance(100_000)
    for owned in forms:
        assert await lab.engine.attempts.cancel(owned, "again") == Cancelled(claim.id)
    assert await everything(lab, claim.id) == before
    description = await describe(lab, claim.id)
    assert (description.cancel_reason, description.cancelled_by) == ("not needed", "lease_holder")


async def test_an_ending_with_a_deadline_is_an_ending_like_any_other(lab: Lab) -> None:
    """INV-18: and its timer is gone with it"""
    deadline = Millis(lab.clock.now() + 5000)
    ids = []
    for end in (lab.complete, lab.fail):
        claim = await lab.running(deadline_at=deadline)
        await end(claim)
        ids.append(claim.id)
    await lab.pass_time(5000)
    assert [await lab.state(id) for id in ids] == [PublicState.COMPLETED, PublicState.FAILED]
    for id in ids:
        assert len(await lab.events(id, family=Family.COMPLETION)) == 1
