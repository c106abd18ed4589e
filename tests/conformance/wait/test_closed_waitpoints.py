"""What an operator closed stays closed, whoever asks for it again; and what it does to a wait."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from flowfabric.core.base.errors import WaitpointClosed, WaitpointNotPending
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import AlreadySatisfied
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Recorded
from flowfabric.core.wait.channel import channel_id
from flowfabric.core.wait.condition.model import Condition, Single, all_waitpoints, any_waitpoint
from flowfabric.core.wait.model import ResumePolicy, StepRef, Waited
from flowfabric.core.wait.request import Binding, Wait, WaitpointUse
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import Lab
from tests.kit.signalling import delivery_to, fresh
from tests.kit.situations import load
from tests.kit.waits import SuspendAnswer, suspend

LASTING = ResumePolicy(close_waitpoint_on_resume=False)


async def channels(lab: Lab, claim: Claim, *keys: str) -> list[UUID]:
    snapshot = await load(lab, claim.id)
    return [channel_id(snapshot, key) for key in keys]


async def wait(
    lab: Lab, claim: Claim, condition: Condition, *keys: str, step: int | None = 0
) -> SuspendAnswer:
    """Waits at channels as a handler does, or as one without steps."""
    ids = await channels(lab, claim, *keys)
    bindings = tuple(
        Binding(id=id, key=key, use=WaitpointUse.EITHER, lasting=True)
        for id, key in zip(ids, keys, strict=True)
    )
    ref = None if step is None else StepRef(0, step, f"wait {step}", 0)
    wanted = Wait(condition=condition, bindings=bindings, policy=LASTING, step=ref)
    return await suspend(lab, claim, wanted)


async def close(lab: Lab, claim: Claim, key: str, reason: str = "a mistake") -> Any:
    (id,) = await channels(lab, claim, key)
    return await lab.engine.suspensions.close_waitpoint(claim.id, id, reason=reason)


async def recorded(lab: Lab, claim: Claim) -> list[tuple[str, str]]:
    """How waits ended, and why if somebody said so."""
    steps = await lab.engine.attempts.steps(claim.uuid, 0)
    docs = [msgspec.json.decode(step.doc, type=Recorded) for step in steps]
    return [(doc.waited, msgspec.json.decode(doc.value) or "") for doc in docs]


async def test_a_wait_that_cannot_be_answered_any_more_is_over(lab: Lab) -> None:
    """INV-13: the run is woken, the step says why, the history too; asking again ends at once"""
    claim = await lab.running()
    await wait(lab, claim, Single("news"), "news")
    await close(lab, claim, "news", "no news today")
    assert await lab.state(claim.id) is PublicState.WAITING
    assert await recorded(lab, claim) == [(Waited.CLOSED, "no news today")]
    page = await lab.engine.events.read(limit=100)
    (event,) = [event for event in page.events if event.kind is EventKind.WAITPOINT_CLOSED]
    assert (event.reason, (event.detail or {})["name"]) == ("no news today", "news")
    again = await lab.claim_one()
    assert await lab.engine.suspensions.observe(again) == []
    assert (await wait(lab, again, Single("news"), "news", step=1)).satisfied
    assert await recorded(lab, claim) == [(Waited.CLOSED, "no news today")] * 2
    assert await lab.state(claim.id) is PublicState.ACTIVE
    with pytest.raises(WaitpointClosed):
        await lab.engine.signals.send(claim.id, "news", delivery_to(fresh()))
    assert await close(lab, claim, "news") == AlreadySatisfied("already_closed")
    await lab.complete(again)


async def test_a_wait_that_can_do_without_goes_on(lab: Lab) -> None:
    """Any of two waits for the other one; both of two never get both"""
    claim = await lab.running()
    await wait(lab, claim, any_waitpoint("a", "b"), "a", "b")
    await close(lab, claim, "a")
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    await lab.engine.executions.resume(claim.id)
    again = await lab.claim_one()
    assert not (await wait(lab, again, any_waitpoint("a", "b"), "a", "b", step=1)).satisfied
    await lab.engine.signals.send(claim.id, "b", delivery_to(fresh()))
    last = await lab.claim_one()
    assert (await wait(lab, last, all_waitpoints("a", "b"), "a", "b", step=2)).satisfied
    ends = [how for how, _ in await recorded(lab, claim)]
    assert ends == [Waited.RESUMED, Waited.SIGNALLED, Waited.CLOSED]


async def test_one_of_both_that_was_heard_before_it_was_closed_counts(lab: Lab) -> None:
    claim = await lab.running()
    await wait(lab, claim, all_waitpoints("a", "b"), "a", "b")
    await lab.engine.signals.send(claim.id, "a", delivery_to(fresh()))
    await close(lab, claim, "a")
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    await lab.engine.signals.send(claim.id, "b", delivery_to(fresh()))
    assert await recorded(lab, claim) == [(Waited.SIGNALLED, "")]


async def test_who_waits_without_a_step_is_refused_and_stays_asleep(lab: Lab) -> None:
    """§3.38: only the rest of its condition, an operator or the timeout ends such a wait"""
    claim = await lab.running()
    await wait(lab, claim, Single("news"), "news", step=None)
    await close(lab, claim, "news")
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    await lab.engine.executions.resume(claim.id)
    again = await lab.claim_one()
    with pytest.raises(WaitpointNotPending, match="was closed: a mistake"):
        await wait(lab, again, Single("news"), "news", step=None)
    assert await lab.state(claim.id) is PublicState.ACTIVE


async def test_closed_stays_closed_through_an_end_and_a_replay(lab: Lab) -> None:
    claim = await lab.running()
    await lab.engine.signals.send(claim.id, "news", delivery_to(fresh()))
    await close(lab, claim, "news")
    await lab.fail(claim, "permanent")
    await lab.engine.executions.replay(claim.id)
    again = await lab.claim_one()
    assert (await wait(lab, again, Single("news"), "news")).satisfied
    assert await recorded(lab, claim) == [(Waited.CLOSED, "a mistake")]
