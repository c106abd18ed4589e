"""Races around signals: nothing is lost, nothing is heard twice, a suspension is resumed once.

The rival is another engine on the same database, or the same engine in the same batch. E-T274,
INV-13, INV-14, INV-15; design §2 rules 1, 6 and 7; review R1, R9, R11.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.core.base.errors import (
    AlreadyDecided,
    NotSignalable,
    NotSuspended,
    SignalLimitExceeded,
    TokenRevoked,
    TokenUsed,
    WaitpointClosed,
)
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.model import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.wait.condition.model import Count, CountKind, Single, all_waitpoints
from flowfabric.core.wait.model import Behaviour, Effect, Terms
from flowfabric.core.wait.request import Binding, Wait
from flowfabric.core.wait.signal import Accepted, DuplicateSignal
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.wait.suspensions import Ticket
from tests.kit.lab import Lab
from tests.kit.race import Race, Rival, cancel, kinds
from tests.kit.signalling import (
    Answer,
    deliver,
    deliver_with,
    delivery_to,
    effect,
    effect_of,
    fresh,
    kept,
    names,
    waiting,
)
from tests.kit.situations import completions
from tests.kit.waits import create_waitpoint, in_, named, suspend, wait_at

Moment = Callable[[Race, Rival], None]
Call = Callable[[Lab], Awaitable[Any]]


def after_load(race: Race, rival: Rival) -> None:
    race.after_load(rival)


def before_recall(race: Race, rival: Rival) -> None:
    race.before("load_needs", rival)


def before_apply(race: Race, rival: Rival) -> None:
    race.before("apply", rival)


MOMENTS = [after_load, before_recall, before_apply]
moments = pytest.mark.parametrize("moment", MOMENTS)


@pytest.fixture(params=["one engine", "two engines"])
def labs(request: pytest.FixtureRequest, lab: Lab, second_lab: Lab) -> tuple[Lab, Lab]:
    return lab, lab if request.param == "one engine" else second_lab


async def both(labs: tuple[Lab, Lab], *calls: Call) -> list[Any]:
    """All at once, from two engines in turn; an answer may be an exception."""
    running = (call(labs[number % 2]) for number, call in enumerate(calls))
    return await asyncio.gather(*running, return_exceptions=True)


async def woken_once(lab: Lab, claim: Claim) -> Claim:
    """The execution was resumed exactly once, and is claimed."""
    assert await lab.state(claim.id) is PublicState.WAITING
    told = await lab.events(claim.id)
    satisfied = [
        event
        for event in told
        if (event.detail or {}).get("effect") == Effect.SATISFIED or event.kind is EventKind.WOKEN
    ]
    assert len(satisfied) == 1
    again = await lab.claim_one()
    assert (again.id, again.epoch, again.attempt) == (claim.id, claim.epoch + 1, claim.attempt)
    assert await lab.claim() == []
    return again


# -- two signals


@moments
async def test_of_two_signals_that_satisfy_one_resumes(
    lab: Lab, second_lab: Lab, race: Race, moment: Moment
) -> None:
    """INV-15"""
    claim, answer = await waiting(lab)
    moment(race, lambda: deliver(second_lab, claim.id, answer.primary, "first"))
    with pytest.raises(WaitpointClosed):
        await deliver(lab, claim.id, answer.primary, "second")
    again = await woken_once(lab, claim)
    (signal,) = await lab.engine.suspensions.observe(again)
    assert signal.name == "first"
    assert await names(lab, claim.id) == ["first"]


@moments
async def test_two_halves_at_different_waitpoints_resume(
    lab: Lab, second_lab: Lab, race: Race, moment: Moment
) -> None:
    """Review R1 (c): neither overlooks the other"""
    claim, answer = await waiting(lab, all_waitpoints("a", "b"))
    one, other = answer.waitpoints
    moment(race, lambda: deliver(second_lab, claim.id, other))
    assert await effect(lab, claim.id, one) is Effect.SATISFIED
    again = await woken_once(lab, claim)
    assert [s.key for s in await lab.engine.suspensions.observe(again)] == ["b", "a"]


async def test_many_halves_at_once_resume_once(lab: Lab, labs: tuple[Lab, Lab]) -> None:
    """From one engine and from two, without any barrier"""
    keys = [f"k{number}" for number in range(12)]
    claim, answer = await waiting(lab, all_waitpoints(*keys))
    answers = await asyncio.gather(
        *(
            effect(labs[number % 2], claim.id, ticket)
            for number, ticket in enumerate(answer.waitpoints)
        )
    )
    assert sorted(answers) == [Effect.APPENDED] * 11 + [Effect.SATISFIED]
    await lab.complete(await woken_once(lab, claim))


async def test_many_that_would_all_satisfy_resume_once(lab: Lab, labs: tuple[Lab, Lab]) -> None:
    """INV-15"""
    claim, answer = await waiting(lab)
    answers = await both(
        labs, *[lambda each: deliver(each, claim.id, answer.primary) for _ in range(12)]
    )
    accepted = [given for given in answers if isinstance(given, Accepted)]
    refused = [given for given in answers if isinstance(given, WaitpointClosed)]
    assert (len(accepted), len(refused)) == (1, 11)
    await lab.complete(await woken_once(lab, claim))


@pytest.mark.parametrize("by", ["id", "idempotency_key"])
@pytest.mark.parametrize("condition", [Single("go"), named("never")], ids=["met", "unmet"])
async def test_the_same_signal_three_times_at_once_is_one(
    lab: Lab, labs: tuple[Lab, Lab], by: str, condition: Single
) -> None:
    """INV-14: whether it satisfies or not"""
    claim, answer = await waiting(lab, condition)
    same: dict[str, Any] = {"id": fresh()} if by == "id" else {by: "k"}
    answers = await both(
        labs, *[lambda each: deliver(each, claim.id, answer.primary, **same) for _ in range(3)]
    )
    (accepted,) = [given for given in answers if isinstance(given, Accepted)]
    assert answers.count(DuplicateSignal(accepted.signal)) == 2
    assert len(await kept(lab, claim.id)) == 1


# -- a signal and a suspend


@pytest.mark.parametrize("moment", [after_load, before_apply])
async def test_a_suspend_hears_what_is_being_buffered(
    lab: Lab, second_lab: Lab, race: Race, moment: Moment
) -> None:
    """Review R1 (b): decided on a value that knows nothing of the signal"""
    claim = await lab.running()
    ticket = await create_waitpoint(lab, claim, "go")
    moment(race, lambda: deliver(second_lab, claim.id, ticket))
    handle = lab.engine.attempts.seal(claim)
    answer = await suspend(lab, handle, wait_at(ticket))
    assert answer.satisfied
    assert await lab.state(claim.id) is PublicState.ACTIVE
    assert await lab.engine.suspensions.signals_of(claim.uuid, answer.suspension) != []
    await lab.complete(claim)


async def test_a_suspend_on_a_held_claim_hears_what_is_being_sent(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """By name, before anything of that name existed: the held value has no flag for it"""
    claim = await lab.running()
    binding = Binding(id=fresh(), key="go")
    race.before("apply", lambda: send(second_lab, claim))
    answer = await suspend(lab, claim, Wait(condition=Single("go"), bindings=(binding,)))
    assert not answer.satisfied
    assert await names(lab, claim.id) == ["go"]
    assert effect_of(await send(lab, claim)) is Effect.SATISFIED


async def send(lab: Lab, claim: Claim, **members: Any) -> Answer:
    return await lab.engine.signals.send(claim.id, "go", delivery_to(fresh(), **members))


@moments
async def test_a_signal_being_buffered_meets_the_suspend(
    lab: Lab, second_lab: Lab, race: Race, moment: Moment
) -> None:
    """The other way round: it was about to be kept, and resumes"""
    claim = await lab.running()
    ticket = await create_waitpoint(lab, claim, "go")
    moment(race, lambda: suspend(second_lab, claim, wait_at(ticket)))
    assert await effect(lab, claim.id, ticket) is Effect.SATISFIED
    await woken_once(lab, claim)


async def test_signals_and_suspends_at_once_lose_nothing(lab: Lab, labs: tuple[Lab, Lab]) -> None:
    """Whatever comes first, the execution goes on"""
    for number in range(10):
        claim = await lab.running()
        ticket = await create_waitpoint(lab, claim, "go")
        calls = [suspending(claim, ticket), delivering(claim, ticket)]
        await both(labs, *(calls if number % 3 else reversed(calls)))
        state = await lab.state(claim.id)
        held = claim if state is PublicState.ACTIVE else await lab.claim_one()
        assert [s.name for s in await lab.engine.suspensions.observe(held)] == ["go"]
        await lab.complete(held)


def suspending(claim: Claim, ticket: Ticket) -> Call:
    return lambda lab: suspend(lab, claim, wait_at(ticket))


def delivering(claim: Claim, ticket: Ticket) -> Call:
    return lambda lab: deliver(lab, claim.id, ticket)


# -- a signal and the other ways to go on


@moments
@pytest.mark.parametrize("behaviour", [Behaviour.FAIL, Behaviour.CANCEL, Behaviour.EXPIRE])
async def test_a_signal_that_comes_after_the_timeout_is_refused(
    lab: Lab, second_lab: Lab, race: Race, moment: Moment, behaviour: Behaviour
) -> None:
    """INV-15"""
    claim, answer = await waiting(lab, timeout_at=in_(lab, 5), behaviour=behaviour)
    lab.clock.advance(5)
    moment(race, lambda: second_lab.engine.suspensions.expire(claim.id))
    with pytest.raises(NotSignalable):
        await deliver(lab, claim.id, answer.primary)
    assert len(await completions(lab, claim.id)) == 1
    assert await kept(lab, claim.id) == []


@pytest.mark.parametrize("behaviour", list(Behaviour))
async def test_a_timeout_that_comes_after_the_signal_does_nothing(
    lab: Lab, second_lab: Lab, race: Race, behaviour: Behaviour
) -> None:
    """INV-15, E-X08"""
    claim, answer = await waiting(lab, timeout_at=in_(lab, 5), behaviour=behaviour)
    lab.clock.advance(5)
    race.after_load(lambda: deliver(second_lab, claim.id, answer.primary))
    await lab.engine.suspensions.expire(claim.id)
    again = await woken_once(lab, claim)
    assert [s.name for s in await lab.engine.suspensions.observe(again)] == ["go"]
    assert await completions(lab, claim.id) == []


async def test_a_signal_that_comes_after_a_timeout_that_resumed_is_refused(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    resume = Behaviour.AUTO_RESUME
    claim, answer = await waiting(lab, timeout_at=in_(lab, 5), behaviour=resume)
    lab.clock.advance(5)
    race.after_load(lambda: second_lab.engine.suspensions.expire(claim.id))
    with pytest.raises(WaitpointClosed):
        await deliver(lab, claim.id, answer.primary)
    await woken_once(lab, claim)


async def test_a_signal_ends_what_was_escalated_meanwhile(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    escalate = Behaviour.ESCALATE
    claim, answer = await waiting(lab, timeout_at=in_(lab, 5), behaviour=escalate)
    lab.clock.advance(5)
    race.after_load(lambda: second_lab.engine.suspensions.expire(claim.id))
    assert await effect(lab, claim.id, answer.primary) is Effect.SATISFIED
    await woken_once(lab, claim)


@moments
async def test_a_signal_that_comes_after_a_cancel_is_refused(
    lab: Lab, second_lab: Lab, race: Race, moment: Moment
) -> None:
    """INV-15, E-X09: never after cancel"""
    claim, answer = await waiting(lab)
    moment(race, lambda: cancel(second_lab, claim.id))
    with pytest.raises(NotSignalable):
        await deliver(lab, claim.id, answer.primary)
    assert await completions(lab, claim.id) == [Outcome.CANCELLED]
    assert await lab.claim() == []


async def test_a_cancel_that_comes_after_the_signal_cancels(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    claim, answer = await waiting(lab)
    race.after_load(lambda: deliver(second_lab, claim.id, answer.primary))
    await cancel(lab, claim.id)
    assert await kinds(lab, claim.id) == [
        EventKind.CLAIMED,
        EventKind.SUSPENDED,
        EventKind.SIGNALLED,
        EventKind.CANCELLED,
    ]
    assert await lab.claim() == []


@moments
async def test_a_signal_that_comes_after_an_operator_is_refused(
    lab: Lab, second_lab: Lab, race: Race, moment: Moment
) -> None:
    claim, answer = await waiting(lab)
    moment(race, lambda: second_lab.engine.executions.resume(claim.id))
    with pytest.raises(WaitpointClosed):
        await deliver(lab, claim.id, answer.primary)
    again = await woken_once(lab, claim)
    assert await lab.engine.suspensions.observe(again) == []


async def test_an_operator_who_comes_after_the_signal_is_refused(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    claim, answer = await waiting(lab)
    race.after_load(lambda: deliver(second_lab, claim.id, answer.primary))
    with pytest.raises(NotSuspended):
        await lab.engine.executions.resume(claim.id)
    await woken_once(lab, claim)


@moments
async def test_a_signal_that_comes_after_the_end_is_refused(
    lab: Lab, second_lab: Lab, race: Race, moment: Moment
) -> None:
    """The worker completes while a signal is about to be kept"""
    claim = await lab.running()
    ticket = await create_waitpoint(lab, claim, "go")
    moment(race, lambda: second_lab.complete(claim, b"done"))
    with pytest.raises(NotSignalable):
        await deliver(lab, claim.id, ticket)
    assert await lab.engine.views.result(claim.id) == b"done"
    assert await kept(lab, claim.id) == []


async def test_signal_timeout_cancel_and_operator_at_once_leave_one_end(
    lab: Lab, labs: tuple[Lab, Lab]
) -> None:
    """INV-15: a free fight over ten executions"""
    games = [await waiting(lab, timeout_at=in_(lab, 5)) for _ in range(10)]
    lab.clock.advance(5)
    for claim, answer in games:
        await both(labs, *fighting(claim, answer.primary))
        told = await kinds(lab, claim.id)
        ends = [kind for kind in told if kind in (EventKind.CANCELLED, EventKind.FAILED)]
        woken = [kind for kind in told if kind in (EventKind.SIGNALLED, EventKind.WOKEN)]
        assert len(ends) == 1
        assert len(woken) <= 1
    assert await lab.claim() == []


def fighting(claim: Claim, ticket: Ticket) -> list[Call]:
    return [
        delivering(claim, ticket),
        lambda lab: lab.engine.suspensions.expire(claim.id),
        lambda lab: lab.engine.executions.resume(claim.id),
        lambda lab: cancel(lab, claim.id),
    ]


# -- tokens


@moments
async def test_a_token_that_is_taken_back_meanwhile_is_refused(
    lab: Lab, second_lab: Lab, race: Race, moment: Moment
) -> None:
    claim, answer = await waiting(lab)
    moment(race, lambda: second_lab.engine.signals.revoke(claim.id, answer.primary.id))
    with pytest.raises(TokenRevoked):
        await deliver(lab, claim.id, answer.primary)
    assert await lab.state(claim.id) is PublicState.SUSPENDED


async def test_what_was_delivered_before_the_token_was_taken_back_counts(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    claim, answer = await waiting(lab)
    race.after_load(lambda: deliver(second_lab, claim.id, answer.primary))
    await lab.engine.signals.revoke(claim.id, answer.primary.id)
    await woken_once(lab, claim)


async def test_a_token_for_one_use_is_used_once_by_many(lab: Lab, labs: tuple[Lab, Lab]) -> None:
    claim, answer = await waiting(lab, named("never"))
    at = answer.primary.id
    token = await lab.engine.suspensions.issue_token(claim.id, at, single_use=True)
    answers = await both(
        labs, *[lambda each: deliver_with(token, each, claim.id, at) for _ in range(6)]
    )
    assert len([given for given in answers if isinstance(given, Accepted)]) == 1
    assert len([given for given in answers if isinstance(given, TokenUsed)]) == 5


async def test_an_approver_who_decides_both_ways_at_once_decides_once(
    lab: Lab, labs: tuple[Lab, Lab]
) -> None:
    claim = await lab.running()
    binding = Binding(id=fresh(), key="go", terms=Terms(decisions=("yes", "no")))
    two = Count(2, CountKind.SOURCES, ("go",))
    await suspend(lab, claim, Wait(condition=two, bindings=(binding,)))
    calls = [decision(claim, name) for name in ("yes", "no", "yes", "no")]
    answers = await both(labs, *calls)
    counts = [
        len([given for given in answers if isinstance(given, kind)])
        for kind in (Accepted, DuplicateSignal, AlreadyDecided)
    ]
    assert counts == [1, 1, 2]
    await cancel(lab, claim.id)


def decision(claim: Claim, name: str) -> Call:
    return lambda lab: lab.engine.signals.decide(
        claim.id, "go", delivery_to(fresh(), name, source="ann")
    )


async def test_the_limit_holds_for_many_at_once(lab: Lab, labs: tuple[Lab, Lab]) -> None:
    claim, answer = await waiting(lab, named("never"))
    answers = await both(
        labs,
        *[lambda each: deliver(each, claim.id, answer.primary, max_signals=5) for _ in range(12)],
    )
    assert len([given for given in answers if isinstance(given, Accepted)]) == 5
    assert len([given for given in answers if isinstance(given, SignalLimitExceeded)]) == 7
    assert [heard.signal.number for heard in await kept(lab, claim.id)] == [1, 2, 3, 4, 5]
