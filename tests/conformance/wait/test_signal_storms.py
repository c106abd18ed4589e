"""Signals by the thousand, rivals without end, and answers that get lost.

E-T274, INV-14; design §2 rules 6 and 7, FLAW-27.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.document import write
from flowfabric.core.base.errors import RetryExhausted, SignalLimitExceeded
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.status import PublicState
from flowfabric.core.wait.condition.model import Count, CountKind
from flowfabric.core.wait.model import MAX_SIGNALS, Effect, Loaded, Needs, Terms
from flowfabric.core.wait.request import Binding, Wait
from flowfabric.core.wait.signal import DuplicateSignal
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import Lab
from tests.kit.race import Race
from tests.kit.signalling import Answer, deliver, delivery_to, effect, fresh, kept, waiting
from tests.kit.situations import load
from tests.kit.waits import SuspendAnswer, named, suspend


class Scale:
    """Weighs what the store is asked for and what it is given to write."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        self._store = lab.engine.store
        self.read: list[int] = []
        self.written: list[tuple[int, int, int, int]] = []
        self._apply, self._load_needs = self._store.apply, self._store.load_needs
        monkeypatch.setattr(self._store, "apply", self.apply)
        monkeypatch.setattr(self._store, "load_needs", self.load_needs)

    async def apply(self, changes: Sequence[Change[Any]]) -> Any:
        self.written += [
            (len(c.signals), len(c.events), len(c.dedup), len(write(c.after.life)))
            for c in changes
            if c.after is not None
        ]
        return await self._apply(changes)

    async def load_needs(self, asks: Sequence[Needs]) -> list[Loaded]:
        found = await self._load_needs(asks)
        self.read.append(sum(len(m.waitpoints) + len(m.dedup) + len(m.signals) for m in found))
        return found


@pytest.mark.deep
@pytest.mark.parametrize("kind", [CountKind.SIGNALS, CountKind.SOURCES])
async def test_ten_thousand_signals_are_one_resume_and_linear_work(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, kind: CountKind
) -> None:
    """FLAW-27, review R11: the last signal reads and writes as much as the tenth"""
    claim, answer = await waiting(lab, Count(MAX_SIGNALS, kind, ("go",)))
    scale = Scale(lab, monkeypatch)
    await storm(lab, claim, answer, 0, 9)
    tenth = await weigh(scale, lab, claim, answer, 9)
    await storm(lab, claim, answer, 10, 9_989)
    late = await weigh(scale, lab, claim, answer, 9_989)
    assert late[0] == tenth[0]
    assert late[1][:3] == tenth[1][:3]
    assert late[1][3] - tenth[1][3] < 32
    await storm(lab, claim, answer, 9_990, 9_999)
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    assert await effect(lab, claim.id, answer.primary, source="9999") is Effect.SATISFIED
    assert sum(signals for signals, *_ in scale.written) == MAX_SIGNALS
    assert sum(records for _, _, records, _ in scale.written) <= 2 * MAX_SIGNALS
    again = await lab.claim_one()
    assert len(await lab.engine.suspensions.observe(again)) == MAX_SIGNALS
    with pytest.raises(SignalLimitExceeded):
        await lab.engine.signals.send(claim.id, "more", delivery_to(fresh()))


async def storm(lab: Lab, claim: Claim, answer: SuspendAnswer, first: int, last: int) -> None:
    """Signals from that many sources, 500 at a time."""
    for start in range(first, last, 500):
        effects = await asyncio.gather(
            *(
                effect(lab, claim.id, answer.primary, source=str(number))
                for number in range(start, min(start + 500, last))
            )
        )
        assert set(effects) == {Effect.APPENDED}


async def weigh(
    scale: Scale, lab: Lab, claim: Claim, answer: SuspendAnswer, number: int
) -> tuple[int, tuple[int, int, int, int]]:
    """What one signal on its own reads and writes."""
    assert await effect(lab, claim.id, answer.primary, source=str(number)) is Effect.APPENDED
    return scale.read[-1], scale.written[-1]


# -- rivals without end


@pytest.mark.parametrize("rounds", [9, 10])
async def test_a_signal_gives_up_after_ten_rivals(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """E-T274: retryable, and nothing of it is kept"""
    claim, answer = await waiting(lab, named("never"))
    race = Race(lab, monkeypatch)
    race.after_load(lambda: deliver(second_lab, claim.id, answer.primary), times=rounds)
    if rounds == 9:
        assert await effect(lab, claim.id, answer.primary) is Effect.NO_OP
    else:
        with pytest.raises(RetryExhausted) as caught:
            await deliver(lab, claim.id, answer.primary)
        assert caught.value.retryable
    assert race.left == 0
    assert len(await kept(lab, claim.id)) == 10


# -- lost answers

Way = Callable[[Lab, Claim, SuspendAnswer, Any], Awaitable[Answer]]


async def by_token(lab: Lab, claim: Claim, answer: SuspendAnswer, id: Any) -> Answer:
    return await deliver(lab, claim.id, answer.primary, id=id)


async def by_name(lab: Lab, claim: Claim, answer: SuspendAnswer, id: Any) -> Answer:
    return await lab.engine.signals.send(claim.id, "go", delivery_to(fresh(), id=id))


def lose_an_answer(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The next change is written, but nobody learns of it; the list has it then."""
    honest = lab.engine.store.apply
    lost: list[object] = []

    async def losing(changes: Sequence[Change[Any]]) -> Any:
        applied = await honest(changes)
        if lost:
            return applied
        lost.append(applied)
        return set()

    monkeypatch.setattr(lab.engine.store, "apply", losing)
    return lost


@pytest.mark.parametrize("way", [by_token, by_name])
async def test_a_signal_whose_answer_was_lost_is_heard_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    """Design §2 rule 7: it was written, nobody knows, and it is decided again"""
    claim, answer = await waiting(lab)
    lost = lose_an_answer(lab, monkeypatch)
    id = fresh()
    assert (await way(lab, claim, answer, id)).signal == id
    assert lost
    assert len(await kept(lab, claim.id)) == 1
    again = await lab.claim_one()
    assert (again.epoch, again.attempt) == (2, 0)
    (waitpoints, signals) = (
        await lab.engine.suspensions.waitpoints(claim.id),
        await lab.engine.suspensions.observe(again),
    )
    assert (waitpoints, [signal.id for signal in signals]) == ([], [id])
    assert (await load(lab, claim.id)).life.waits is not None


async def test_the_deciding_one_of_two_approvals_whose_answer_was_lost_counts_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design §2 rule 7, INV-14: decided again by the engine, and asked for again by the approver"""
    claim = await lab.running()
    terms = Terms(decisions=("yes",), approvers=("al", "bo"))
    wait = Wait(
        condition=Count(2, CountKind.SOURCES, ("deploy",)),
        bindings=(Binding(id=fresh(), key="deploy", terms=terms),),
    )
    await suspend(lab, claim, wait)

    async def decide(who: str, id: UUID) -> Answer:
        delivery = delivery_to(fresh(), "yes", id=id, source=who)
        return await lab.engine.signals.decide(claim.id, "deploy", delivery)

    await decide("al", fresh())
    lost, id = lose_an_answer(lab, monkeypatch), fresh()
    assert (await decide("bo", id)).signal == id
    assert lost
    assert [heard.signal.source for heard in await kept(lab, claim.id)] == ["al", "bo"]
    assert await decide("bo", fresh()) == DuplicateSignal(id)
    await lab.complete(await lab.claim_one())
    assert await decide("bo", fresh()) == DuplicateSignal(id)
