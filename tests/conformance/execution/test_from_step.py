"""Replay and fork from a chosen step, renamed and skipped steps, in every state of an execution."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import NotEligible, NotFound, NotTerminal
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.event import EventKind, Family
from flowfabric.core.execution.model import Start
from flowfabric.core.execution.operator import Replayed
from flowfabric.core.execution.rewrite import StepSkipped
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.submission import Submitted
from flowfabric.core.limit.quota import Quota
from flowfabric.engine.execution.claims import Claim
from tests.kit import situations
from tests.kit.lab import W1, W2, Lab
from tests.kit.signalling import fresh
from tests.kit.situations import ENDED, LIVING, described, load, missing_ids, take

ALL = {**LIVING, **ENDED}
UNLEASED = {name: each for name, each in ALL.items() if name != "running"}


async def record(lab: Lab, claim: Claim, *names: str) -> None:
    for position, name in enumerate(names):
        step = Step(0, position, name, 0, b'{"value":%d}' % position)
        await lab.engine.attempts.record_step(claim, step)


async def ended(lab: Lab) -> ExecutionId:
    claim = await take(lab, await lab.submit())
    await record(lab, claim, "a", "b", "c")
    await lab.complete(claim, b"1")
    return claim.id


async def names(lab: Lab, id: ExecutionId) -> list[tuple[str, int]]:
    generation = (await load(lab, id)).life.generation
    steps = await lab.engine.attempts.steps(id.uuid, generation)
    return [(step.name, step.position) for step in steps]


async def test_a_replay_keeps_what_is_before_the_step(lab: Lab) -> None:
    id = await ended(lab)
    found = await lab.engine.executions.replay(id, from_step="b")
    assert found == Replayed(id, PublicState.WAITING)
    assert await names(lab, id) == [("a", 0)]
    seen = await described(lab, id)
    assert (seen.replays, seen.retries, seen.vector.attempt) == (1, 0, "pending_replay_attempt")
    claim = await lab.claim_one(W2)
    assert (claim.lease.start, claim.lease.attempt) == (Start.REPLAY, 1)
    old = await lab.engine.attempts.steps(id.uuid, 0)
    assert [step.name for step in old] == ["a", "b", "c"], "what was done stays known"


async def test_a_replay_without_a_step_is_told_as_before(lab: Lab) -> None:
    id = await ended(lab)
    await lab.engine.executions.replay(id)
    *_, event = await lab.events(id, family=Family.OPERATOR)
    assert event.detail == {"branch": "normal", "groups_reset": 0}
    assert await names(lab, id) == []


@pytest.mark.parametrize("name", LIVING)
async def test_only_ended_ones_are_replayed_from_a_step(lab: Lab, name: str) -> None:
    id = await LIVING[name](lab)
    before = await load(lab, id)
    with pytest.raises(NotTerminal):
        await lab.engine.executions.replay(id, from_step="a")
    assert await load(lab, id) == before


@pytest.mark.parametrize("name", ALL)
async def test_any_can_be_forked_and_stays_as_it_is(lab: Lab, name: str) -> None:
    id = await ALL[name](lab, payload=b"7", tags={"app.a": "b"})
    before = await load(lab, id)
    made = await lab.engine.executions.fork(id)
    assert isinstance(made, Submitted)
    assert await load(lab, id) == before
    detail = await lab.engine.store.detail(made.id.uuid)
    assert detail is not None
    assert detail.payload == b"7"
    assert detail.tags == {"app.a": "b", "flowfabric.forked_from": str(id)}
    facts = detail.snapshot.execution.facts
    assert (facts.forked_from, facts.forked_at) == (str(id), None)
    assert (await described(lab, made.id)).forked_from == id


async def test_a_fork_and_its_steps_are_written_together(lab: Lab) -> None:
    claim = await take(lab, await lab.submit())
    await record(lab, claim, "a", "b", "c")
    made = [await lab.engine.executions.fork(claim.id, from_step=name) for name in ("a", "c")]
    assert [await names(lab, each.id) for each in made] == [[], [("a", 0), ("b", 1)]]
    assert [(await load(lab, each.id)).life.seeded for each in made] == [False, True]
    claims = {each.id for each in await lab.claim(W2, limit=5)}
    assert claims == {each.id for each in made}


async def test_a_repeated_fork_gets_the_first_answer_without_its_quota(lab: Lab) -> None:
    """INV-23: what was not there before is still refused"""
    await lab.engine.quotas.define(Quota(name="q", concurrency=1))
    id = await lab.submit(policy={"quotas": [{"quota": "q", "key": ""}]})
    first, other = fresh(), fresh()
    made = await lab.engine.executions.fork(id, fresh=first)
    await lab.engine.quotas.delete("q")
    await lab.engine.settle()
    assert (await lab.engine.executions.fork(id, fresh=first)).id == made.id
    with pytest.raises(NotFound):
        await lab.engine.executions.fork(id, fresh=other)


async def test_what_does_not_exist(lab: Lab) -> None:
    engine = lab.engine
    for id in await missing_ids(lab):
        with pytest.raises(NotFound):
            await engine.executions.replay(id, from_step="a")
        with pytest.raises(NotFound):
            await engine.executions.fork(id, from_step="a")
        with pytest.raises(NotFound):
            await engine.steps.rename(id, "a", "b")
        with pytest.raises(NotFound):
            await engine.steps.skip(id, "a", b"1")
    id = await ended(lab)
    with pytest.raises(NotFound, match="'x' among the recorded ones"):
        await engine.executions.replay(id, from_step="x")
    with pytest.raises(NotFound, match="'x' among the recorded ones"):
        await engine.executions.fork(id, from_step="x")
    assert await lab.state(id) is PublicState.COMPLETED


async def test_deleted_with_the_execution(lab: Lab) -> None:
    id = await ended(lab)
    await lab.engine.executions.replay(id, from_step="b")
    await lab.complete(await lab.claim_one())
    lab.clock.advance(8 * 86_400_000)
    assert await lab.engine.sweep.trim() == 1
    assert await lab.engine.views.state(id) is None
    assert [await lab.engine.attempts.steps(id.uuid, each) for each in (0, 1)] == [[], []]


# -- what operators change


@pytest.mark.parametrize("name", UNLEASED)
async def test_a_step_is_skipped_in_any_state_without_a_lease(lab: Lab, name: str) -> None:
    id = await UNLEASED[name](lab)
    state, vector = (await load(lab, id)).state, await lab.vector(id)
    told = len(await lab.events(id))
    lab.clock.advance(5)
    done = await lab.engine.steps.skip(id, "pay", b"1", by="ada", reason="by hand")
    assert done == StepSkipped(id, "pay", recorded=False)
    assert (await load(lab, id)).state == state
    assert await lab.vector(id) == vector
    assert (await described(lab, id)).touched_at == lab.clock.now()
    *_, event = await lab.events(id)
    assert len(await lab.events(id)) == told + 1
    assert (event.kind, event.operator) == (EventKind.STEP_SKIPPED, "step_skipped")
    assert event.detail is not None
    assert (event.detail["by"], event.detail["reason"]) == ("ada", "by hand")
    (view,) = [each for each in await lab.engine.views.steps(id) if each.skipped]
    assert (view.name, view.result) == ("pay", b"1")


async def test_a_leased_one_keeps_its_steps(lab: Lab) -> None:
    claim = await take(lab, await lab.submit())
    await record(lab, claim, "a")
    for change in (
        lab.engine.steps.rename(claim.id, "a", "b"),
        lab.engine.steps.skip(claim.id, "a", b"1"),
    ):
        with pytest.raises(NotEligible, match="a worker executes"):
            await change
    assert await names(lab, claim.id) == [("a", 0)]


async def test_a_renamed_step_keeps_its_place(lab: Lab) -> None:
    claim = await take(lab, await lab.submit())
    await record(lab, claim, "a", "b", "c")
    await situations.suspend(lab, claim)
    done = await lab.engine.steps.rename(claim.id, "b", "x", by="ada")
    assert done.steps == ("x",)
    assert await names(lab, claim.id) == [("a", 0), ("x", 1), ("c", 2)]
    assert await lab.state(claim.id) is PublicState.SUSPENDED


# -- races


async def test_a_claim_and_a_rename_at_once(lab: Lab) -> None:
    """Either the rename was there before the worker, or it is refused."""
    for _ in range(10):
        claim = await take(lab, await lab.submit())
        await record(lab, claim, "a")
        await lab.engine.attempts.hand_back(claim)
        answers: Any = await asyncio.gather(
            lab.claim(W2, limit=1),
            lab.engine.steps.rename(claim.id, "a", "b"),
            return_exceptions=True,
        )
        (held,) = answers[0] or await lab.claim(W2, limit=1)
        expected = "a" if isinstance(answers[1], NotEligible) else "b"
        assert await names(lab, claim.id) == [(expected, 0)]
        await lab.complete(held)


async def test_renames_at_once_are_made_one_after_the_other(lab: Lab) -> None:
    id = await ended(lab)
    rename = lab.engine.steps.rename
    await asyncio.gather(rename(id, "a", "x"), rename(id, "b", "y"), rename(id, "c", "z"))
    assert await names(lab, id) == [("x", 0), ("y", 1), ("z", 2)]
    both = await asyncio.gather(rename(id, "x", "p"), rename(id, "x", "q"), return_exceptions=True)
    assert len([each for each in both if isinstance(each, NotFound)]) == 1


async def test_a_rename_and_a_replay_at_once(lab: Lab) -> None:
    for _ in range(10):
        id = await ended(lab)
        answers = await asyncio.gather(
            lab.engine.executions.replay(id, from_step="c"),
            lab.engine.steps.rename(id, "a", "x"),
            return_exceptions=True,
        )
        assert not [each for each in answers if isinstance(each, BaseException)]
        assert await names(lab, id) == [("x", 0), ("b", 1)]
        await lab.complete(await lab.claim_one(W1))


async def test_replays_from_a_step_at_once(lab: Lab) -> None:
    id = await ended(lab)
    replay = lab.engine.executions.replay
    answers = await asyncio.gather(
        *(replay(id, from_step=name) for name in "abc"), replay(id), return_exceptions=True
    )
    assert len([each for each in answers if isinstance(each, NotTerminal)]) == 3
    assert (await load(lab, id)).life.replays == 1
