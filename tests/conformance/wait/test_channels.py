"""Signals by name, from the application itself: never early, never lost, never heard twice.

INV-13, INV-14; design §2 rule 7, §8.
"""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import (
    Invalid,
    NoSigningKey,
    NotFound,
    NotSignalable,
    SignalLimitExceeded,
    WaitpointClosed,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import Family
from flowfabric.core.execution.model import Start
from flowfabric.core.execution.status import PublicState
from flowfabric.core.wait.channel import channel_id
from flowfabric.core.wait.condition.model import AllTrue, Single
from flowfabric.core.wait.model import Effect, ResumePolicy, Terms
from flowfabric.core.wait.request import Binding, Wait, WaitpointUse
from flowfabric.core.wait.signal import Accepted, DuplicateSignal
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from tests.kit import situations
from tests.kit.lab import W2, Lab
from tests.kit.signalling import Answer, delivery_to, effect, effect_of, fresh, kept, names, waiting
from tests.kit.situations import RETRY_AT_ONCE, described, load, missing_ids
from tests.kit.waits import suspend

LASTING = ResumePolicy(close_waitpoint_on_resume=False)


async def send(lab: Lab, execution: str, channel: str = "news", **members: Any) -> Answer:
    delivery = delivery_to(fresh(), **{"name": channel, **members})
    return await lab.engine.signals.send(execution, channel, delivery)


async def sent(lab: Lab, execution: str, channel: str = "news", **members: Any) -> Effect:
    return effect_of(await send(lab, execution, channel, **members))


async def wait(lab: Lab, claim: Claim, channel: str = "news", **members: Any) -> bool:
    """Waits for the next signal of a name; whether it was there already."""
    id = channel_id(await load(lab, claim.id), channel)
    binding = Binding(id=id, key=channel, use=WaitpointUse.EITHER, lasting=True)
    arm = Wait(condition=Single(channel), bindings=(binding,), policy=LASTING, **members)
    return (await suspend(lab, claim, arm)).satisfied


async def heard(lab: Lab, claim: Claim) -> list[str]:
    return [signal.name for signal in await lab.engine.suspensions.observe(claim)]


# -- when it is sent


async def test_a_signal_may_come_before_the_first_claim(lab: Lab) -> None:
    id = await lab.submit()
    assert await sent(lab, id) is Effect.BUFFERED
    assert await lab.state(id) is PublicState.WAITING
    claim = await lab.claim_one()
    assert await wait(lab, claim)
    assert await heard(lab, claim) == ["news"]
    await lab.complete(claim)


@pytest.mark.rules
@pytest.mark.parametrize(
    "situation", sorted(set(situations.LIVING) - {"suspended", "waiting_children"})
)
async def test_a_signal_is_kept_whatever_the_execution_does(lab: Lab, situation: str) -> None:
    id = await situations.LIVING[situation](lab)
    before = await described(lab, id)
    assert await sent(lab, id) is Effect.BUFFERED
    after = await described(lab, id)
    assert (after.vector, after.epoch, after.attempts_made) == (
        before.vector,
        before.epoch,
        before.attempts_made,
    )


async def test_a_signal_may_come_while_it_runs(lab: Lab) -> None:
    """The worker keeps its lease, and ends as if nothing had come"""
    claim = await lab.running()
    assert await sent(lab, claim.id) is Effect.BUFFERED
    await lab.engine.claims.renew(claim)
    await lab.complete(claim, b"done")
    assert await lab.engine.views.result(claim.id) == b"done"


async def test_a_signal_resumes_what_waits_for_its_name(lab: Lab) -> None:
    claim = await lab.running()
    assert not await wait(lab, claim)
    assert await sent(lab, claim.id, "other") is Effect.BUFFERED
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    assert await sent(lab, claim.id) is Effect.SATISFIED
    again = await lab.claim_one(W2)
    assert (again.attempt, again.lease.start) == (0, Start.CONTINUE)
    assert await heard(lab, again) == ["news"]


async def test_a_name_is_the_key_of_any_waitpoint(lab: Lab) -> None:
    """Also of one whose token was handed out"""
    claim, _ = await waiting(lab, "go")
    assert await sent(lab, claim.id, "go") is Effect.SATISFIED


async def test_nothing_is_sent_to_what_has_ended(lab: Lab) -> None:
    """E-X09"""
    for situation in sorted(situations.ENDED):
        id = await situations.ENDED[situation](lab)
        before = await load(lab, id)
        with pytest.raises(NotSignalable) as caught:
            await send(lab, id)
        assert caught.value.code == "target_not_signalable"
        assert await load(lab, id) == before
        assert await kept(lab, id) == []


async def test_nothing_is_sent_to_what_does_not_exist(lab: Lab) -> None:
    for id in await missing_ids(lab):
        with pytest.raises(NotFound) as caught:
            await send(lab, id)
        assert caught.value.entity == "execution"


@pytest.mark.rules
@pytest.mark.parametrize("method", ["send", "decide"])
async def test_a_name_is_text(lab: Lab, method: str) -> None:
    id = await lab.submit()
    wrong: list[Any] = ["", None, 5, b"x", "a\0b", "\ud800", "n" * 10_000]
    for name in wrong:
        with pytest.raises(Invalid):
            await getattr(lab.engine.signals, method)(id, name, delivery_to(fresh()))
    assert await kept(lab, id) == []


async def test_a_channel_needs_a_key_to_sign_with(store: Store, clock: ManualClock) -> None:
    """§3.31 check 6: whoever lists it may hand its token out"""
    lab = await Lab.open(store, clock, make_keys=False)
    id = await lab.submit()
    with pytest.raises(NoSigningKey):
        await send(lab, id)
    await lab.engine.keys.seed("k", "ab" * 32)
    assert await sent(lab, id) is Effect.BUFFERED
    await lab.engine.close()


# -- one signal for one wait


async def test_a_lasting_wait_takes_one_signal_each_time_in_order(lab: Lab) -> None:
    claim = await lab.running()
    for number in range(3):
        await sent(lab, claim.id, name=f"n{number}")
    for number in range(3):
        assert await wait(lab, claim)
        assert await heard(lab, claim) == [f"n{number}"]
    assert not await wait(lab, claim)
    assert await sent(lab, claim.id, name="n3") is Effect.SATISFIED
    again = await lab.claim_one()
    assert await heard(lab, again) == ["n3"]
    assert not await wait(lab, again)


async def test_a_signal_that_comes_between_two_waits_is_for_the_second(lab: Lab) -> None:
    claim = await lab.running()
    assert not await wait(lab, claim)
    await sent(lab, claim.id, name="first")
    assert await sent(lab, claim.id, name="second") is Effect.BUFFERED
    again = await lab.claim_one()
    assert await heard(lab, again) == ["first"]
    assert await sent(lab, claim.id, name="third") is Effect.BUFFERED
    for expected in ("second", "third"):
        assert await wait(lab, again)
        assert await heard(lab, again) == [expected]


async def test_names_do_not_hear_each_other(lab: Lab) -> None:
    claim = await lab.running()
    for channel in ("a", "b", "a"):
        await sent(lab, claim.id, channel, name=f"for {channel}")
    assert await wait(lab, claim, "b")
    assert await heard(lab, claim) == ["for b"]
    assert not await wait(lab, claim, "b")


async def test_a_channel_survives_a_retry(lab: Lab) -> None:
    """What was not taken is there for the next attempt, what was taken is not"""
    claim = await lab.running(policy=RETRY_AT_ONCE)
    await sent(lab, claim.id, name="first")
    await sent(lab, claim.id, name="second")
    assert await wait(lab, claim)
    await lab.fail(claim)
    again = await lab.claim_one()
    assert again.attempt == 1
    assert await wait(lab, again)
    assert await heard(lab, again) == ["second"]
    assert not await wait(lab, again)
    assert await sent(lab, claim.id, name="third") is Effect.SATISFIED


async def test_a_channel_survives_a_lost_lease(lab: Lab) -> None:
    claim = await lab.running()
    await sent(lab, claim.id, name="first")
    await lab.lose(claim)
    await sent(lab, claim.id, name="second")
    again = await lab.claim_one(W2)
    for expected in ("first", "second"):
        assert await wait(lab, again)
        assert await heard(lab, again) == [expected]


async def test_a_channel_survives_an_operator_s_resume(lab: Lab) -> None:
    """What half of a condition heard is used up with it (INV-15)"""
    claim = await lab.running()
    assert not await wait(lab, claim)
    await lab.engine.executions.resume(claim.id)
    assert await sent(lab, claim.id) is Effect.BUFFERED
    assert await wait(lab, await lab.claim_one())


async def test_a_finished_run_that_is_replayed_hears_only_what_is_new(lab: Lab) -> None:
    """A replay of what completed is another generation"""
    claim = await lab.running()
    key = {"idempotency_key": "k"}
    await sent(lab, claim.id, **key)
    await lab.complete(claim)
    await lab.engine.executions.replay(claim.id)
    again = await lab.claim_one()
    assert not await wait(lab, again)
    assert await sent(lab, claim.id, **key) is Effect.SATISFIED


async def test_a_closed_channel_stays_closed(lab: Lab) -> None:
    """INV-13"""
    claim = await lab.running()
    await sent(lab, claim.id)
    id = channel_id(await load(lab, claim.id), "news")
    await lab.engine.suspensions.close_waitpoint(claim.id, id)
    with pytest.raises(WaitpointClosed):
        await send(lab, claim.id)


async def test_a_waitpoint_of_that_name_that_ran_out_is_passed_over(lab: Lab) -> None:
    """INV-13: before the sweep has closed it; what is sent is kept for who waits by name"""
    claim = await lab.running()
    make = lab.engine.suspensions.create_waitpoint
    terms = Terms(decisions=("yes",))
    await make(claim, "news", expires_in=Millis(10))
    await make(claim, "plan", expires_in=Millis(10), terms=terms)
    await make(claim, "plan", lasting=True, terms=terms)
    lab.clock.advance(10)
    assert await sent(lab, claim.id) is Effect.BUFFERED
    decision = delivery_to(fresh(), "yes", source="ann")
    assert effect_of(await lab.engine.signals.decide(claim.id, "plan", decision)) is Effect.BUFFERED
    assert await wait(lab, claim)


# -- repeats


@pytest.mark.parametrize("by", ["id", "key"])
async def test_a_repeat_is_a_duplicate_whatever_has_the_name_by_then(lab: Lab, by: str) -> None:
    """INV-14, design §2 rule 7: the answer was lost, so the application sends again"""
    claim, _ = await waiting(lab, "news")
    id = fresh()

    async def repeat() -> Answer:
        members: dict[str, Any] = {"id": id} if by == "id" else {"idempotency_key": "k"}
        return await send(lab, claim.id, **members)

    first = await send(lab, claim.id, id=id, idempotency_key="k")
    assert effect_of(first) is Effect.SATISFIED
    expected = DuplicateSignal(id)
    assert await repeat() == expected
    again = await lab.claim_one()
    assert await repeat() == expected
    assert not await wait(lab, again)
    assert await repeat() == expected
    await lab.engine.executions.cancel(claim.id, reason="enough")
    assert await repeat() == expected
    assert len(await kept(lab, claim.id)) == 1


async def test_a_repeat_of_what_a_channel_keeps_is_not_heard_elsewhere(lab: Lab) -> None:
    claim = await lab.running()
    id = fresh()
    await send(lab, claim.id, id=id)
    await suspend(lab, claim, Wait(condition=Single("news"), bindings=(_fresh("news"),)))
    assert await send(lab, claim.id, id=id) == DuplicateSignal(id)
    assert await lab.state(claim.id) is PublicState.SUSPENDED


def _fresh(key: str) -> Binding:
    return Binding(id=fresh(), key=key)


async def test_the_window_of_a_key_ends(lab: Lab) -> None:
    id = await lab.submit()
    members: dict[str, Any] = {"idempotency_key": "k", "dedup_ttl": Millis(100)}
    await send(lab, id, **members)
    lab.clock.advance(99)
    assert isinstance(await send(lab, id, **members), DuplicateSignal)
    lab.clock.advance(1)
    assert await sent(lab, id, **members) is Effect.BUFFERED


async def test_a_key_belongs_to_its_name(lab: Lab) -> None:
    id = await lab.submit()
    assert await sent(lab, id, "a", idempotency_key="k") is Effect.BUFFERED
    assert await sent(lab, id, "b", idempotency_key="k") is Effect.BUFFERED


# -- many at once


async def test_many_at_once_are_all_kept_in_one_order(lab: Lab, second_lab: Lab) -> None:
    id = await lab.submit()
    labs = [lab, second_lab]
    answers = await asyncio.gather(*(send(labs[n % 2], id, name=f"n{n}") for n in range(40)))
    assert {answer.number for answer in answers if isinstance(answer, Accepted)} == {*range(1, 41)}
    order = await names(lab, id)
    assert sorted(order) == sorted(f"n{n}" for n in range(40))
    claim = await lab.claim_one()
    for expected in order:
        assert await wait(lab, claim)
        assert await heard(lab, claim) == [expected]


async def test_two_at_once_for_one_wait_are_for_two_waits(lab: Lab) -> None:
    """Both are decided together: the first ends the wait, the second is for the next"""
    claim = await lab.running()
    await sent(lab, claim.id, name="zero")
    assert await wait(lab, claim)
    await suspend(lab, claim, Wait(condition=Single("news"), bindings=(_fresh("news"),)))
    answers = await asyncio.gather(*(send(lab, claim.id, name=f"n{n}") for n in range(3)))
    assert sorted(effect_of(answer) for answer in answers) == [
        Effect.BUFFERED,
        Effect.BUFFERED,
        Effect.SATISFIED,
    ]
    again = await lab.claim_one()
    (taken,) = await heard(lab, again)
    rest = [name for name in ("n0", "n1", "n2") if name != taken]
    for expected in rest:
        assert await wait(lab, again)
        assert await heard(lab, again) == [expected]
    assert not await wait(lab, again)


async def test_a_refused_signal_makes_no_channel(lab: Lab) -> None:
    """Neither for itself nor for the one that is decided with it"""
    claim = await lab.running()
    await sent(lab, claim.id, "other")
    refused, accepted = await asyncio.gather(
        send(lab, claim.id, max_signals=1), send(lab, claim.id), return_exceptions=True
    )
    assert isinstance(refused, SignalLimitExceeded)
    assert effect_of(accepted) is Effect.BUFFERED
    assert len(await lab.engine.suspensions.waitpoints(claim.id)) == 2


async def test_a_channel_is_listed_and_its_token_works(lab: Lab) -> None:
    id = await lab.submit()
    await sent(lab, id)
    (listed,) = await lab.engine.suspensions.waitpoints(id)
    assert (listed.key, listed.state) == ("news", "pending")
    token = await lab.engine.suspensions.token(id, listed.id)
    answer = await lab.engine.signals.deliver(id, delivery_to(listed.id), token)
    assert effect_of(answer) is Effect.BUFFERED


async def test_a_condition_may_name_several_channels(lab: Lab) -> None:
    claim = await lab.running()
    await sent(lab, claim.id, "a")
    snapshot = await load(lab, claim.id)
    bindings = tuple(
        Binding(id=channel_id(snapshot, key), key=key, use=WaitpointUse.EITHER, lasting=True)
        for key in ("a", "b")
    )
    arm = Wait(condition=AllTrue((Single("a"), Single("b"))), bindings=bindings, policy=LASTING)
    assert not (await suspend(lab, claim, arm)).satisfied
    assert await sent(lab, claim.id, "b") is Effect.SATISFIED
    assert await heard(lab, await lab.claim_one()) == ["a", "b"]


async def test_each_signal_is_told_once(lab: Lab) -> None:
    """E-T264"""
    id = await lab.submit()
    answer = await send(lab, id)
    await send(lab, id, id=answer.signal)
    (event,) = await lab.events(id, family=Family.SIGNAL)
    assert (event.detail or {})["signal"] == str(answer.signal)


async def test_a_token_is_not_asked_for_and_not_enough(lab: Lab) -> None:
    """The application vouches for itself: what needs a token is `deliver`"""
    claim, answer = await waiting(lab)
    assert await sent(lab, claim.id, "go", name="x") is Effect.SATISFIED
    with pytest.raises(WaitpointClosed):
        await effect(lab, claim.id, answer.primary)
