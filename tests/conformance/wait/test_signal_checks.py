"""Signals that are refused: by what, in which order, and what the sender learns from it.

E-T251 to E-T261, E-T273, E-X09, INV-13, INV-21, INV-22, FLAW-7, FLAW-27; §3.34.
"""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import (
    FlowFabricError,
    Invalid,
    InvalidId,
    InvalidToken,
    MissingToken,
    NotFound,
    NotSignalable,
    PayloadTooLarge,
    SignalLimitExceeded,
    Unauthorized,
    WaitpointClosed,
)
from flowfabric.core.execution.status import PublicState
from flowfabric.core.wait.model import Effect
from flowfabric.core.wait.signal import Accepted, DuplicateSignal
from flowfabric.core.wait.token import Token
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import Lab
from tests.kit.signalling import deliver, deliver_with, delivery_to, effect, fresh, kept, waiting
from tests.kit.situations import load, missing_ids, take
from tests.kit.waits import create_waitpoint, named, suspend

pytestmark = pytest.mark.rules

Refusal = tuple[type[FlowFabricError], str, str, str]


async def refusal(call: Awaitable[object]) -> Refusal:
    """All that a sender can tell of an answer."""
    with pytest.raises(FlowFabricError) as caught:
        await call
    error = caught.value
    return type(error), error.code, str(error), repr(error.args)


def revealed(token: Token | None) -> str:
    assert token is not None
    return token.reveal()


def flipped(token: Token | None, place: int = -1) -> str:
    """The token with one digit of its digest changed."""
    kid, digest = revealed(token).split(":")
    digits = list(digest)
    digits[place] = "0" if digits[place] != "0" else "1"
    return f"{kid}:{''.join(digits)}"


# -- the order of the checks


async def test_what_cannot_be_a_signal_is_refused_before_anything_is_looked_at(lab: Lab) -> None:
    with pytest.raises(InvalidId):
        await deliver_with(None, lab, "nonsense", fresh())
    id = (await missing_ids(lab))[0]
    with pytest.raises(PayloadTooLarge):
        await deliver_with(None, lab, id, fresh(), payload=b"x" * 300_000)


async def test_an_execution_that_is_not_there_is_not_found(lab: Lab) -> None:
    """3.34 check 1: before the token is looked at, whatever it is"""
    _, answer = await waiting(lab)
    for token in (None, "", "k:" + "a" * 64, "nonsense", answer.primary.token):
        for id in await missing_ids(lab):
            with pytest.raises(NotFound) as caught:
                await deliver_with(token, lab, id, answer.primary.id)
            assert caught.value.entity == "execution"
    for id in await missing_ids(lab):
        with pytest.raises(NotFound) as missing:
            await lab.engine.signals.decide_at(id, delivery_to(fresh()))
        assert missing.value.entity == "execution"


async def test_a_waitpoint_that_is_not_there_is_a_wrong_token(lab: Lab) -> None:
    """3.34 check 2: the same answer as at a waitpoint that exists, so that ids cannot be probed"""
    claim, answer = await waiting(lab)
    kid = answer.primary.token.kid if answer.primary.token else ""
    for token in (None, "", "k:" + "a" * 64, f"{kid}:{'a' * 64}", "nonsense"):
        answers = set()
        for waitpoint in (answer.primary.id, fresh()):
            with pytest.raises(Unauthorized) as caught:
                await deliver_with(token, lab, claim.id, waitpoint)
            answers.add((type(caught.value), str(caught.value)))
        assert len(answers) == 1, token


async def test_there_must_be_a_token(lab: Lab) -> None:
    """E-T251, check 3: at a waitpoint that exists, and at one that does not"""
    claim, answer = await waiting(lab)
    for waitpoint in (answer.primary.id, fresh()):
        for token in (None, "", Token("")):
            with pytest.raises(MissingToken) as caught:
                await deliver_with(token, lab, claim.id, waitpoint)
            assert caught.value.code == "missing_token"


MALFORMED: list[Any] = [
    "nonsense",
    ":",
    "kid:",
    ":" + "a" * 64,
    "kid:" + "a" * 63,
    "kid:" + "a" * 65,
    "kid:" + "g" * 64,
    "kid:" + "A" * 64,
    "k id:" + "a" * 64,
    "kid:x:" + "a" * 64,
    "kid:" + "a" * 64 + ".",
    "kid:" + "a" * 64 + ".e30",
    "kid:" + "a" * 64 + "\n",
    "\0",
    "\ud800",
    "k" * 10_000,
    5,
    b"kid:x",
    ["kid"],
    True,
]


@pytest.mark.inside
async def test_a_malformed_token_is_an_invalid_one(lab: Lab) -> None:
    """Check 4: not a fault, and nothing is written"""
    claim, answer = await waiting(lab)
    before = await load(lab, claim.id)
    for token in MALFORMED:
        with pytest.raises(InvalidToken):
            await deliver_with(token, lab, claim.id, answer.primary.id)
    assert await load(lab, claim.id) == before


async def test_a_flipped_digit_is_an_invalid_token(lab: Lab) -> None:
    """E-T252, E-T273: and the genuine one still works"""
    claim, answer = await waiting(lab)
    for place in range(64):
        wrong = flipped(answer.primary.token, place)
        with pytest.raises(InvalidToken) as caught:
            await deliver_with(wrong, lab, claim.id, answer.primary.id)
        assert caught.value.code == "invalid_token"
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    assert await effect(lab, claim.id, answer.primary) is Effect.SATISFIED


async def test_an_unknown_key_id_is_an_invalid_token(lab: Lab) -> None:
    """E-T253, check 6"""
    claim, answer = await waiting(lab)
    digest = revealed(answer.primary.token).split(":")[1]
    for kid in ("other", "seed-00000000"):
        with pytest.raises(InvalidToken):
            await deliver_with(f"{kid}:{digest}", lab, claim.id, answer.primary.id)


async def test_a_token_is_for_its_own_waitpoint_only(lab: Lab) -> None:
    """E-T258, check 7: not for a sister, not for the same one of another execution"""
    claim, answer = await waiting(lab)
    other, others = await waiting(lab)
    again = await take(lab, await lab.submit())
    sister = await create_waitpoint(lab, again, "go")
    twin = await create_waitpoint(lab, again, "go")
    for token, id, waitpoint in [
        (others.primary.token, claim.id, answer.primary.id),
        (others.primary.token, claim.id, others.primary.id),
        (answer.primary.token, other.id, answer.primary.id),
        (sister.token, again.id, twin.id),
        (twin.token, again.id, sister.id),
    ]:
        with pytest.raises(InvalidToken):
            await deliver_with(token, lab, id, waitpoint)
    for id in (claim.id, other.id, again.id):
        assert await kept(lab, id) == []


async def test_a_pending_waitpoint_wants_its_token_too(lab: Lab) -> None:
    """E-T257"""
    claim = await lab.running()
    ticket = await create_waitpoint(lab, claim, "go")
    with pytest.raises(InvalidToken):
        await deliver_with(flipped(ticket.token), lab, claim.id, ticket.id)
    assert await effect(lab, claim.id, ticket) is Effect.BUFFERED


async def test_a_repeat_is_told_before_any_state(lab: Lab) -> None:
    """Checks 8 and 9: a repeat at an ended execution is a duplicate, a new signal is refused"""
    claim, answer = await waiting(lab, named("never"))
    first = await deliver(lab, claim.id, answer.primary, idempotency_key="k")
    assert isinstance(first, Accepted)
    await lab.engine.executions.cancel(claim.id, reason="enough")
    repeat = await deliver(lab, claim.id, answer.primary, idempotency_key="k", max_signals=1)
    assert repeat == DuplicateSignal(first.signal)
    with pytest.raises(NotSignalable) as caught:
        await deliver(lab, claim.id, answer.primary, max_signals=1)
    assert caught.value.code == "target_not_signalable"


async def test_a_closed_waitpoint_is_told_before_the_limit(lab: Lab) -> None:
    """Checks 13 and 14"""
    claim, answer = await waiting(lab)
    await deliver(lab, claim.id, answer.primary)
    with pytest.raises(WaitpointClosed) as caught:
        await deliver(lab, claim.id, answer.primary, max_signals=1)
    assert caught.value.code == "waitpoint_closed"


# -- what has ended, what runs on


async def cancelled(lab: Lab, claim: Claim) -> None:
    await lab.engine.executions.cancel(claim.id, reason="enough")


async def completed(lab: Lab, claim: Claim) -> None:
    await lab.engine.executions.resume(claim.id)
    await lab.complete(await lab.claim_one())


async def replayed(lab: Lab, claim: Claim) -> None:
    await cancelled(lab, claim)
    await lab.engine.executions.replay(claim.id)


async def resumed(lab: Lab, claim: Claim) -> None:
    await lab.engine.executions.resume(claim.id)


async def running_again(lab: Lab, claim: Claim) -> None:
    await resumed(lab, claim)
    await lab.claim_one()


async def waiting_elsewhere(lab: Lab, claim: Claim) -> None:
    await resumed(lab, claim)
    await suspend(lab, await lab.claim_one())


async def still_waiting(lab: Lab, claim: Claim) -> None:
    """Nothing happened."""


PostCommit = Callable[[Lab, Claim], Awaitable[None]]
LATER: list[PostCommit] = [
    cancelled,
    completed,
    replayed,
    resumed,
    running_again,
    waiting_elsewhere,
]


@pytest.mark.parametrize("later", LATER)
async def test_a_late_signal_changes_nothing(lab: Lab, later: PostCommit) -> None:
    """E-X09, FLAW-7, INV-13: closed is final, whatever the execution does now"""
    claim, answer = await waiting(lab)
    await later(lab, claim)
    before = await load(lab, claim.id)
    told = await lab.events(claim.id)
    with pytest.raises(NotSignalable):
        await deliver(lab, claim.id, answer.primary)
    assert await load(lab, claim.id) == before
    assert await lab.events(claim.id) == told
    assert await kept(lab, claim.id) == []


async def test_an_old_condition_hears_nothing_of_a_new_waitpoint(lab: Lab) -> None:
    """FLAW-7 (b): the running worker keeps its lease"""
    claim, answer = await waiting(lab)
    await deliver(lab, claim.id, answer.primary)
    again = await lab.claim_one()
    ticket = await create_waitpoint(lab, again, "go")
    assert await effect(lab, claim.id, ticket) is Effect.BUFFERED
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.complete(again)


async def test_pending_waitpoints_close_with_the_execution(lab: Lab) -> None:
    """INV-13"""
    claim = await lab.running()
    tickets = [
        await create_waitpoint(lab, claim, "a"),
        await create_waitpoint(lab, claim, "b", lasting=True),
    ]
    await lab.complete(claim)
    for ticket in tickets:
        with pytest.raises(NotSignalable):
            await deliver(lab, claim.id, ticket)


# -- no oracle


@pytest.mark.parametrize("later", [still_waiting, *LATER])
async def test_a_bad_token_learns_nothing_about_the_execution(lab: Lab, later: PostCommit) -> None:
    """E-T259, INV-21: type, code and text are the same in every state, and for no waitpoint"""
    claim, answer = await waiting(lab)
    await later(lab, claim)
    before = await load(lab, claim.id)
    _, others = await waiting(lab)
    wrong = flipped(answer.primary.token)
    pairs = [
        (wrong, answer.primary.id),
        (wrong, fresh()),
        (answer.primary.token, fresh()),
        (others.primary.token, others.primary.id),
        (others.primary.token, answer.primary.id),
        (wrong, UUID(int=0)),
        ("nonsense", answer.primary.id),
    ]
    calls = [deliver_with(token, lab, claim.id, waitpoint) for token, waitpoint in pairs]
    assert len({await refusal(call) for call in calls}) == 1
    assert await load(lab, claim.id) == before


async def test_a_bad_token_learns_nothing_about_signals_or_limits(lab: Lab) -> None:
    """INV-21: neither that one was delivered before, nor that there were too many"""
    claim, answer = await waiting(lab, named("never"))
    id = fresh()
    await deliver(lab, claim.id, answer.primary, id=id, idempotency_key="k")
    wrong = flipped(answer.primary.token)
    members: list[dict[str, Any]] = [
        {},
        {"id": id},
        {"idempotency_key": "k"},
        {"max_signals": 1},
        {"about": "digest"},
    ]
    answers = {
        await refusal(deliver_with(wrong, lab, claim.id, answer.primary.id, **more))
        for more in members
    }
    assert [kind for kind, *_ in answers] == [InvalidToken]


async def test_a_refusal_never_repeats_the_token(lab: Lab) -> None:
    """E-X22, INV-22"""
    claim, answer = await waiting(lab)
    secret = revealed(answer.primary.token).split(":")[1]
    await lab.engine.executions.cancel(claim.id, reason="enough")
    tokens: list[Token | str | None] = [answer.primary.token, flipped(answer.primary.token), secret]
    for token in tokens:
        told = await refusal(deliver_with(token, lab, claim.id, answer.primary.id))
        assert secret[:8] not in repr(told)
        assert secret[:-1] not in repr(told)


async def test_a_refused_signal_is_no_event(lab: Lab) -> None:
    """INV-24"""
    claim, answer = await waiting(lab, named("never"))
    await deliver(lab, claim.id, answer.primary)
    before = await load(lab, claim.id), await lab.events(claim.id)
    for call in (
        deliver_with("x", lab, claim.id, answer.primary.id),
        deliver(lab, claim.id, answer.primary, max_signals=1),
    ):
        with pytest.raises((Unauthorized, SignalLimitExceeded)):
            await call
    assert (await load(lab, claim.id), await lab.events(claim.id)) == before


# -- what makes no sense

WRONG: list[dict[str, Any]] = [
    {"id": "x"},
    {"id": 5},
    {"waitpoint": "x"},
    {"name": ""},
    {"name": 5},
    {"name": "a\0b"},
    {"name": "\ud800"},
    {"name": "n" * 10_000},
    {"category": "\0"},
    {"source_type": None},
    {"source": "s" * 10_000},
    {"scope": 7},
    {"encoding": "\ud800"},
    {"correlation": "c" * 10_000},
    {"idempotency_key": 5},
    {"idempotency_key": "\0"},
    {"payload": "text"},
    {"payload": 5},
    {"created_at": -1},
    {"created_at": "now"},
    {"dedup_ttl": -1},
    {"dedup_ttl": 1.5},
    {"dedup_ttl": True},
    {"delay": -1},
    {"delay": 2**63},
    {"max_signals": -1},
    {"max_signals": "many"},
    {"about": "\0"},
]


async def test_a_signal_that_cannot_be_stored_is_refused(lab: Lab) -> None:
    claim, answer = await waiting(lab)
    before = await load(lab, claim.id)
    for wrong in WRONG:
        with pytest.raises(Invalid):
            await deliver(lab, claim.id, answer.primary, **wrong)
        delivery = delivery_to(answer.primary.id, **wrong)
        with pytest.raises(Invalid):
            await lab.engine.signals.send(claim.id, "go", delivery)
    assert await load(lab, claim.id) == before


async def test_only_a_delivery_is_delivered(lab: Lab) -> None:
    claim, answer = await waiting(lab)
    wrong: list[Any] = [None, {}, "go", answer]
    for delivery in wrong:
        for call in (
            lab.engine.signals.deliver(claim.id, delivery, answer.primary.token),
            lab.engine.signals.send(claim.id, "go", delivery),
            lab.engine.signals.decide(claim.id, "go", delivery),
        ):
            with pytest.raises(Invalid):
                await call


async def test_signals_of_what_does_not_exist_cannot_be_listed(lab: Lab) -> None:
    for id in await missing_ids(lab):
        with pytest.raises(NotFound):
            await lab.engine.signals.of(id)
    with pytest.raises(Invalid):
        await lab.engine.signals.of(await lab.submit(), after=-1)


async def test_what_was_forgotten_is_not_found(lab: Lab) -> None:
    """With the execution its waitpoints and signals are gone (INV-27)"""
    claim, answer = await waiting(lab)
    await deliver(lab, claim.id, answer.primary, idempotency_key="k")
    await lab.complete(await lab.claim_one())
    await lab.pass_time(8 * 86_400_000)
    assert await lab.engine.sweep.trim() in (0, 1)
    with pytest.raises(NotFound):
        await deliver(lab, claim.id, answer.primary, idempotency_key="k")
    with pytest.raises(NotFound):
        await lab.engine.signals.of(claim.id)
