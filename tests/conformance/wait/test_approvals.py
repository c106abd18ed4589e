"""Approvals: an operator's word without a token, decisions by named approvers on an exact thing.

E-T266, E-T268; §3.36 as [C] has it.
"""

from typing import Any

import pytest

from flowfabric.core.base.errors import (
    AlreadyDecided,
    ApprovalOutdated,
    FlowFabricError,
    Invalid,
    NotAllowed,
    NotFound,
    NotSignalable,
    SignalLimitExceeded,
    WaitpointClosed,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState
from flowfabric.core.wait.condition.model import ByName, Condition, Count, CountKind
from flowfabric.core.wait.model import Effect, Terms
from flowfabric.core.wait.request import Binding, Wait
from flowfabric.core.wait.signal import DuplicateSignal
from flowfabric.core.wait.token import digest_of
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import Lab
from tests.kit.signalling import (
    Answer,
    deliver,
    deliver_with,
    delivery_to,
    effect_of,
    fresh,
    kept,
    names,
    waiting,
)
from tests.kit.situations import load, missing_ids, take
from tests.kit.waits import SuspendAnswer, create_waitpoint, named, suspend

PLAN = digest_of({"deploy": "v2", "to": "production"})
OTHER_PLAN = digest_of({"deploy": "v3", "to": "production"})
TERMS = Terms(about=PLAN, decisions=("approve", "reject"), approvers=("ann", "bob", "cy"))
TWO_OF_THREE = Count(2, CountKind.SOURCES, ("deploy",), ByName("approve"))


async def ask(
    lab: Lab, claim: Claim, terms: Terms = TERMS, condition: Condition = TWO_OF_THREE
) -> SuspendAnswer:
    """Suspends until the deployment is approved."""
    binding = Binding(id=fresh(), key="deploy", terms=terms)
    return await suspend(lab, claim, Wait(condition=condition, bindings=(binding,)))


async def asked(lab: Lab, **terms: Any) -> Claim:
    claim = await lab.running()
    wanted = Terms(**terms) if terms else TERMS
    await ask(lab, claim, wanted)
    return claim


async def decide(lab: Lab, claim: Claim, who: str, what: str = "approve", **members: Any) -> Answer:
    delivery = delivery_to(fresh(), what, source=who, **members)
    return await lab.engine.signals.decide(claim.id, "deploy", delivery)


async def approve(lab: Lab, claim: Claim, answer: SuspendAnswer, name: str, **more: Any) -> Answer:
    given = {"suffix": "1", **more}
    return await lab.engine.signals.approve(claim.id, "default", answer.primary.id, name, **given)


# -- an operator's word


async def test_an_operator_approves(lab: Lab) -> None:
    """E-T266: no token, the execution resumes"""
    claim, answer = await waiting(lab, named("approved"))
    assert effect_of(await approve(lab, claim, answer, "approved")) is Effect.SATISFIED
    assert await lab.state(claim.id) is PublicState.WAITING
    (heard,) = await kept(lab, claim.id)
    signal = heard.signal
    assert (signal.category, signal.source_type, signal.source) == ("approval", "operator", "")
    assert (signal.scope, signal.idempotency_key) == ("execution", "approval:approved:1")
    assert signal.payload is None


async def test_an_operator_rejects(lab: Lab) -> None:
    """D-4: recorded, not counted, not resumed"""
    claim, answer = await waiting(lab, named("approved"))
    assert effect_of(await approve(lab, claim, answer, "rejected")) is Effect.NO_OP
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    assert await names(lab, claim.id) == ["rejected"]


async def test_an_operator_s_repeat_is_a_duplicate(lab: Lab) -> None:
    """By name and suffix, within the window"""
    claim, answer = await waiting(lab, named("never"))
    ttl = Millis(100)
    first = await approve(lab, claim, answer, "x", dedup_ttl=ttl)
    assert await approve(lab, claim, answer, "x", dedup_ttl=ttl) == DuplicateSignal(first.signal)
    assert effect_of(await approve(lab, claim, answer, "x", suffix="2")) is Effect.NO_OP
    assert effect_of(await approve(lab, claim, answer, "y")) is Effect.NO_OP
    lab.clock.advance(100)
    assert effect_of(await approve(lab, claim, answer, "x", dedup_ttl=ttl)) is Effect.NO_OP
    with pytest.raises(SignalLimitExceeded):
        await approve(lab, claim, answer, "z", max_signals=4)


async def test_an_operator_names_the_right_lane_and_waitpoint(lab: Lab) -> None:
    """E-T268: execution, then lane, then waitpoint"""
    claim, answer = await waiting(lab)
    approve = lab.engine.signals.approve
    for id in await missing_ids(lab):
        with pytest.raises(NotFound) as missing:
            await approve(id, "default", fresh(), "x", suffix="1")
        assert missing.value.entity == "execution"
    with pytest.raises(Invalid) as caught:
        await approve(claim.id, "other", fresh(), "x", suffix="1")
    assert caught.value.detail.startswith("lane_mismatch")
    with pytest.raises(NotFound) as missing:
        await approve(claim.id, "default", fresh(), "x", suffix="1")
    assert missing.value.entity == "waitpoint"
    other, others = await waiting(lab)
    with pytest.raises(NotFound) as missing:
        await approve(claim.id, "default", others.primary.id, "x", suffix="1")
    assert missing.value.entity == "waitpoint"
    assert await kept(lab, claim.id) == await kept(lab, other.id) == []
    assert effect_of(await approve(claim.id, "default", answer.primary.id, "x", suffix="1"))


@pytest.mark.rules
async def test_an_operator_s_request_has_to_make_sense(lab: Lab) -> None:
    claim, answer = await waiting(lab)
    wrong: list[dict[str, Any]] = [
        {"lane": ""},
        {"waitpoint": "x"},
        {"name": ""},
        {"suffix": "\0"},
        {"suffix": 5},
        {"max_signals": -1},
    ]
    good = {"lane": "default", "waitpoint": answer.primary.id, "name": "x", "suffix": "1"}
    for each in wrong:
        with pytest.raises(Invalid):
            await lab.engine.signals.approve(claim.id, **{**good, **each})
    assert await kept(lab, claim.id) == []


async def test_an_operator_comes_too_late(lab: Lab) -> None:
    claim, answer = await waiting(lab)
    await lab.engine.executions.resume(claim.id)
    with pytest.raises(WaitpointClosed):
        await approve(lab, claim, answer, "approved")
    await lab.engine.executions.cancel(claim.id, reason="enough")
    with pytest.raises(NotSignalable):
        await approve(lab, claim, answer, "approved")


# -- decisions


async def test_two_of_three_distinct_approvers(lab: Lab) -> None:
    """One of them twice is one"""
    claim = await asked(lab)
    first = await decide(lab, claim, "ann")
    assert effect_of(first) is Effect.APPENDED
    assert await decide(lab, claim, "ann") == DuplicateSignal(first.signal)
    assert await decide(lab, claim, "ann", source_type="web") == DuplicateSignal(first.signal)
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    assert effect_of(await decide(lab, claim, "cy")) is Effect.SATISFIED
    again = await lab.claim_one()
    signals = await lab.engine.suspensions.observe(again)
    assert [(signal.source, signal.name, signal.category) for signal in signals] == [
        ("ann", "approve", "approval"),
        ("cy", "approve", "approval"),
    ]


async def test_a_rejection_is_recorded_and_does_not_count(lab: Lab) -> None:
    claim = await asked(lab)
    assert effect_of(await decide(lab, claim, "ann", "reject")) is Effect.MATCHER_FAILED
    assert effect_of(await decide(lab, claim, "bob")) is Effect.APPENDED
    assert effect_of(await decide(lab, claim, "cy")) is Effect.SATISFIED


async def test_an_approver_decides_once(lab: Lab) -> None:
    claim = await asked(lab)
    for first, then in (("approve", "reject"), ("reject", "approve")):
        who = "ann" if first == "approve" else "bob"
        await decide(lab, claim, who, first)
        with pytest.raises(AlreadyDecided) as caught:
            await decide(lab, claim, who, then)
        assert first in str(caught.value)
    assert await names(lab, claim.id) == ["approve", "reject"]
    assert await lab.state(claim.id) is PublicState.SUSPENDED


async def test_only_what_the_terms_name_may_be_decided(lab: Lab) -> None:
    claim = await asked(lab)
    for what in ("approved", "Approve", "maybe"):
        with pytest.raises(NotAllowed) as caught:
            await decide(lab, claim, "ann", what)
        assert caught.value.code == "decision_not_allowed"
    assert await kept(lab, claim.id) == []


async def test_only_those_the_terms_name_may_decide(lab: Lab) -> None:
    claim = await asked(lab)
    for who in ("eve", "Ann", "", "ann "):
        with pytest.raises(NotAllowed):
            await decide(lab, claim, who)
    assert await kept(lab, claim.id) == []


async def test_terms_without_names_let_every_approver_decide(lab: Lab) -> None:
    """Each once, nevertheless"""
    claim = await asked(lab, decisions=("approve",))
    assert effect_of(await decide(lab, claim, "eve")) is Effect.APPENDED
    assert isinstance(await decide(lab, claim, "eve"), DuplicateSignal)
    assert effect_of(await decide(lab, claim, "mallory")) is Effect.SATISFIED


async def test_an_operator_is_bound_by_the_terms_too(lab: Lab) -> None:
    claim = await lab.running()
    answer = await ask(lab, claim)
    for name in ("approve", "maybe"):
        with pytest.raises(NotAllowed):
            await approve(lab, claim, answer, name)


async def test_a_decision_can_be_made_before_a_run_waits_for_it(lab: Lab) -> None:
    claim = await lab.running()
    ticket = await create_waitpoint(lab, claim, "deploy", terms=TERMS, lasting=True)
    assert effect_of(await decide(lab, claim, "ann")) is Effect.BUFFERED
    with pytest.raises(AlreadyDecided):
        await decide(lab, claim, "ann", "reject")
    with pytest.raises(NotAllowed):
        await decide(lab, claim, "eve")
    with pytest.raises(NotAllowed):  # it names nobody, whoever its holder claims to be
        await deliver(lab, claim.id, ticket, "approve", source="bob")
    token = await lab.engine.suspensions.issue_token(claim.id, ticket.id, approver="bob")
    assert effect_of(await deliver_with(token, lab, claim.id, ticket.id, "approve"))
    assert await names(lab, claim.id) == ["approve", "approve"]


async def test_a_decision_that_was_not_asked_for_is_refused(lab: Lab) -> None:
    claim = await lab.running()
    with pytest.raises(NotFound) as caught:
        await decide(lab, claim, "ann")
    assert caught.value.entity == "approval"
    for id in await missing_ids(lab):
        with pytest.raises(NotFound) as missing:
            await lab.engine.signals.decide(id, "deploy", delivery_to(fresh()))
        assert missing.value.entity == "execution"
    await lab.complete(claim)
    with pytest.raises(NotSignalable):
        await decide(lab, claim, "ann")


async def test_the_decision_that_settled_it_is_a_duplicate_when_repeated(lab: Lab) -> None:
    """E-X16: the waitpoint is closed by then, and the execution may have ended"""
    claim = await asked(lab)
    await decide(lab, claim, "ann")
    id = fresh()
    await decide(lab, claim, "bob", id=id)
    assert await decide(lab, claim, "bob", id=id) == DuplicateSignal(id)
    await lab.complete(await lab.claim_one())
    assert await decide(lab, claim, "bob", id=id) == DuplicateSignal(id)
    with pytest.raises(NotSignalable):
        await decide(lab, claim, "cy")


# -- the exact thing


async def test_a_decision_names_the_exact_thing(lab: Lab) -> None:
    claim = await asked(lab)
    with pytest.raises(ApprovalOutdated) as caught:
        await decide(lab, claim, "ann", about=OTHER_PLAN)
    assert caught.value.code == "approval_outdated"
    assert await kept(lab, claim.id) == []
    assert effect_of(await decide(lab, claim, "ann", about=PLAN)) is Effect.APPENDED
    assert effect_of(await decide(lab, claim, "bob")) is Effect.SATISFIED


async def test_a_token_of_what_has_changed_says_so(lab: Lab) -> None:
    """The new question is open; the token of the old one does not answer it"""
    claim = await lab.running()
    old = await ask(lab, claim)
    await lab.engine.executions.resume(claim.id)
    new = await ask(lab, await lab.claim_one(), Terms(about=OTHER_PLAN, decisions=("approve",)))
    bound = await lab.engine.suspensions.issue_token(claim.id, new.primary.id, approver="ann")
    before = await load(lab, claim.id)
    with pytest.raises(ApprovalOutdated) as caught:
        await deliver(lab, claim.id, old.primary, "approve", source="ann")
    assert "changed" in str(caught.value)
    with pytest.raises(ApprovalOutdated):
        await decide(lab, claim, "ann", about=PLAN)
    assert await load(lab, claim.id) == before
    answer = await lab.engine.signals.deliver(
        claim.id, delivery_to(new.primary.id, "approve", about=OTHER_PLAN), bound
    )
    assert effect_of(answer) is Effect.APPENDED


async def test_what_was_decided_of_the_old_thing_does_not_count_for_the_new(lab: Lab) -> None:
    claim = await asked(lab)
    await decide(lab, claim, "ann")
    await lab.engine.executions.resume(claim.id)
    await ask(lab, await lab.claim_one(), Terms(about=OTHER_PLAN, approvers=("ann", "bob")))
    assert effect_of(await decide(lab, claim, "bob", about=OTHER_PLAN)) is Effect.APPENDED
    assert effect_of(await decide(lab, claim, "ann", about=OTHER_PLAN)) is Effect.SATISFIED


async def test_an_approval_that_is_over_is_closed_not_outdated(lab: Lab) -> None:
    claim = await lab.running()
    answer = await ask(lab, claim)
    await lab.engine.executions.resume(claim.id)
    with pytest.raises(WaitpointClosed):
        await deliver(lab, claim.id, answer.primary, "approve", source="ann")


async def test_a_waitpoint_that_is_no_approval_is_never_outdated(lab: Lab) -> None:
    claim, answer = await waiting(lab)
    await lab.engine.executions.resume(claim.id)
    await suspend(lab, await lab.claim_one())
    with pytest.raises(WaitpointClosed):
        await deliver(lab, claim.id, answer.primary)


@pytest.mark.rules
@pytest.mark.parametrize(
    "terms",
    [
        Terms(decisions=("a", "a")),
        Terms(decisions=("",)),
        Terms(approvers=("ann", "ann")),
        Terms(approvers=("\0",)),
        Terms(approvers=tuple(f"a{n}" for n in range(101))),
        Terms(about="\ud800"),
        "approve",
    ],
    ids=repr,
)
async def test_terms_have_to_make_sense(lab: Lab, terms: Any) -> None:
    claim = await take(lab, await lab.submit())
    with pytest.raises(FlowFabricError) as caught:
        await create_waitpoint(lab, claim, "deploy", terms=terms)
    assert isinstance(caught.value, Invalid)
